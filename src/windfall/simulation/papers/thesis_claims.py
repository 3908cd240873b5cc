"""What the thesis says of its rule and of its own numbers, beside what they give.

Source:
    Thesis, chapters 2, 4 and 6; `thesis_published` has the numbers and their places.
"""

from __future__ import annotations

import math

from windfall.models.exact.rows import Row, compared
from windfall.models.exact.thesis import Inputs
from windfall.policies.saving import rules
from windfall.policies.saving.schedule_thesis import column_inputs, thesis_rows
from windfall.simulation.papers.parts import Options, Tell
from windfall.simulation.papers.thesis_published import (
    CAPTIONS,
    INPUTS,
    NOTICES_S,
    OVERHEADS_PCT,
    SAVE_SHARE_PCT,
    SAVED_PCT,
    TABLES,
)
from windfall.simulation.papers.thesis_runs import NAMES, TABLE_OF, least_steps, published_overhead


def interval(options: Options, tell: Tell) -> tuple[Row, ...]:
    """Return the stated intervals, and what each reading of the formula gives."""
    del options, tell
    stated = [row for row in thesis_rows(TABLES, INPUTS) if row.item == "insurance save"]
    rows = []
    for (model, name), row in zip(NAMES.items(), stated, strict=True):
        given = column_inputs(INPUTS, model, "per10")
        assert row.published is not None, "both intervals are printed"
        for reading, steps, reason in _readings(given):
            rows.append(
                compared(
                    row.source,
                    f"{name}, {reading}",
                    "interval",
                    unit="steps",
                    published=row.published,
                    ours=float(steps),
                    tolerance_pct=0.0,
                    method="whole steps in the interval; matches if they are the same",
                    reason=reason,
                )
            )
    return (*stated, *rows)


def _readings(given: Inputs) -> tuple[tuple[str, int, str], ...]:
    delta, mttp_s, step_s = given.save_s, given.mttp_s, given.step_s
    wait_s, restart_s = given.allocate_s, given.allocate_s + given.prepare_s

    exact_s = math.sqrt(2.0 * delta * (mttp_s + restart_s) + delta * delta)

    def steps(restart_s: float) -> int:
        return rules.thesis_insurance_step(0, rules.thesis_interval_s(delta, mttp_s, restart_s), step_s)

    garbled = round(math.sqrt(2.0 * delta) * (mttp_s + restart_s) / step_s)
    return (
        ("equation 4.5, R = allocation", steps(wait_s), ""),
        ("equation 4.5, R = allocation + preparation", steps(restart_s), ""),
        ("equation 4.5, R = 0", steps(0.0), "without R the interval is just below 33 steps: R was in it"),
        (
            "section 4.1's text",
            garbled,
            "sqrt(2 delta) (MTTP + R), as the text has it, is not even a time; Algorithm 1 has sqrt(2 delta (MTTP + R))",
        ),
        (
            "least of equation 4.4",
            least_steps(given),
            f"with R as section 4.1 defines it the least is at {exact_s / step_s:.2f} steps, and the rule rounds down",
        ),
    )


def slips(options: Options, tell: Tell) -> tuple[Row, ...]:
    """Return the paper against itself and against what it cites; claims that hold beside those that do not."""
    del options, tell
    known = [row for row in thesis_rows(TABLES, INPUTS) if row.method == "the thesis' own numbers"]
    misprint = [
        row
        for row in thesis_rows(TABLES, INPUTS)
        if (row.item, row.quantity, row.source) == ("per100", "comp", "thesis, Table 6.2")
    ]
    return (*misprint, *known, *_claims(), *_captions(), *_notices())


def _claims() -> list[Row]:
    rows = []
    for model, published in SAVED_PCT.items():
        table = TABLES[TABLE_OF[model]]
        spot, base = table["adaptive"]["cost_usd"], table["on_demand"]["cost_usd"]
        section = "section 6.3.1" if model == "gpt117m" else "section 6.3.2"
        rows.append(_claim(section, NAMES[model], "cost saved", published, 100.0 * (1.0 - spot / base)))
    for (model, column), published in OVERHEADS_PCT.items():
        ours = published_overhead(model, column)["overhead"]
        rows.append(_claim("section 6.3.1", f"{NAMES[model]}, {column}", "overhead", published, ours))
    per10 = TABLES[TABLE_OF["gpt117m"]]["per10"]
    share = 100.0 * per10["save_s"] / per10["total_s"]
    rows.append(_claim("section 6.3.1", "GPT-117M, per10", "share of saves", SAVE_SHARE_PCT, share))
    return rows


def _claim(section: str, item: str, quantity: str, published: float, ours: float) -> Row:
    return compared(
        f"thesis, {section}",
        item,
        quantity,
        unit="%",
        published=published,
        ours=ours,
        tolerance_pct=1.0,
        method="from the printed tables; matches within 1 %",
    )


def _captions() -> list[Row]:
    return [
        compared(
            "thesis, captions",
            figure,
            "parameters",
            unit="million",
            published=printed,
            ours=meant,
            tolerance_pct=0.0,
            method="the section that the figure belongs to",
            reason=reason,
        )
        for figure, printed, meant, reason in CAPTIONS
    ]


def _notices() -> list[Row]:
    return [
        compared(
            f"thesis, {section}",
            provider,
            "notice",
            unit="s",
            published=printed,
            ours=documented,
            tolerance_pct=0.0,
            method="the provider's documentation",
            reason=(
                "Amazon gives two minutes, as section 4.2 has it; the two were swapped"
                if provider.startswith("Amazon")
                else "Google gives spot machines 30 s; an hour is its notice of maintenance of hosts with GPUs"
            ),
        )
        for section, provider, printed, documented in NOTICES_S
    ]
