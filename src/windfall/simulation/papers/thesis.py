"""The thesis' evaluation again: its tables and figures by the closed form and by simulation, its rule, its slips.

The closed form is the thesis' own accounting; the simulation draws histories of the same runs from the same inputs
(`thesis_runs`).  They differ by what the thesis counts and a history does not have: half a *full* cycle lost at each loss,
though a restart shortens the cycle that it falls in; a whole preparation for each machine, though some are taken while
they prepare.

Source:
    Thesis, chapter 6; `thesis_published` has the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from windfall.models.exact.rows import Row, cannot, compared, unprinted
from windfall.models.exact.thesis import totals
from windfall.policies.saving.schedule_thesis import column_inputs, thesis_rows
from windfall.simulation import kernels
from windfall.simulation.outcomes import Floats, Trials, spread
from windfall.simulation.papers import thesis_claims
from windfall.simulation.papers.parts import Options, Part, Tell
from windfall.simulation.papers.thesis_published import INPUTS, MTTPS_H, OVERHEADS_PCT, TABLES
from windfall.simulation.papers.thesis_runs import (
    NAMES,
    PARTS_OF,
    TABLE_OF,
    columns,
    on_demand,
    overhead,
    published_overhead,
    scenario,
)
from windfall.simulation.scenario import Scenario

TOTAL_PCT, PART_PCT, SIGMAS, POINTS = 1.5, 1.5, 2.0, 0.2
"""Simulated totals and costs match within the first [%], their parts within the second and so many standard errors, simulated
overheads like parts; overheads by the closed form within the last [percentage points of the on-demand run]."""
H = 3_600.0


# --------------------------------------------------------------------------------------------------------------- tables


def _table(model: str, options: Options, tell: Tell) -> tuple[Row, ...]:
    number = TABLE_OF[model][6:9].replace("_", ".")
    source = f"thesis, Table {number}"
    exact = [
        row for row in thesis_rows(TABLES, INPUTS) if row.source == source and row.method.startswith("closed form")
    ]
    return (*exact, *(_simulated(source, model, options, tell) if options.trials else ()))


def _simulated(source: str, model: str, options: Options, tell: Tell) -> list[Row]:
    """Every column by simulation, beside the printed one."""
    found = {}
    _tell_compiling(tell)
    for column in TABLES[TABLE_OF[model]]:
        tell(f"{source}, {column}: {options.trials} simulated runs")
        found[column] = kernels.simulate(scenario(model, column), trials=options.trials, seed=options.seed)
    worst = max(_stderr_pct(trials) for trials in found.values())
    method = (
        f"simulation, {options.trials} trials, standard error of totals at most {worst:.2f} %; totals and costs match within "
        f"{TOTAL_PCT:g} %, parts within {PART_PCT:g} % and {SIGMAS:g} standard errors"
    )
    return [row for column, trials in found.items() for row in _column(source, model, column, trials, method)]


def _tell_compiling(tell: Tell) -> None:
    if kernels.compiles():
        tell("compiling the simulation, some ten seconds, once for each installation")


def _stderr_pct(trials: Trials) -> float:
    finish = spread(trials.finish_s)
    return 100.0 * finish.stderr / finish.mean


def _column(source: str, model: str, column: str, trials: Trials, method: str) -> list[Row]:
    kind = "on_demand" if column == "on_demand" else "spot"
    price = float(INPUTS["prices_implied_by_costs_usd_h"][kind])
    rows = []
    for cell, drawn in _simulated_cells(scenario(model, column), trials, price).items():
        quantity, _, unit = cell.rpartition("_")
        printed = float(TABLES[TABLE_OF[model]][column][cell])
        tolerance = TOTAL_PCT
        if quantity not in ("total", "cost"):
            scatter = 100.0 * SIGMAS * spread(drawn).stderr / printed if printed else 0.0
            tolerance = max(PART_PCT + scatter, 50.0 / printed if printed else 0.0)  # printed in whole seconds
        rows.append(
            compared(
                source,
                column,
                quantity,
                unit="USD" if unit == "usd" else "s",
                published=printed,
                ours=round(float(drawn.mean()), 6),  # sums of long times: what is below a microsecond is rounding
                tolerance_pct=tolerance,
                method=method,
                reason=_why(quantity, model, column, trials),
            )
        )
    return rows


def _simulated_cells(world: Scenario, found: Trials, price: float) -> dict[str, Floats]:
    """The cells of a column, trial by trial; the thesis bills all of the time, waits included."""
    return {
        "comp_s": world.steps * world.step_s.mean_s + found.redo_s,
        "recompute_s": found.redo_s,
        "save_s": found.save_s,
        "alloc_s": found.allocate_s,
        "prep_s": found.prepare_s,
        "total_s": found.finish_s,
        "cost_usd": found.finish_s / H * price,
    }


def _why(quantity: str, model: str, column: str, trials: Trials) -> str:
    """Why a simulated part is not the thesis' one: what the thesis counts, and a history does not have."""
    if quantity == "comp" and column == "per100" and model == "gpt117m":
        return "a misprint: the cell repeats the total; 488135 - 2549 - 6362 - 7363 = 471861"
    if column == "on_demand":
        ends = "the table has ten saves; the simulated run ends with its last step, which the tenth would follow"
        return ends if quantity == "save" else "one machine's time, drawn from a range around the implied mean"
    losses = float(trials.preemptions.mean())
    if quantity in ("comp", "recompute"):
        counted = totals(column_inputs(INPUTS, model, column))
        return (
            f"{counted.recompute_s / counted.losses:.1f} s for each loss in the thesis, which counts half a full cycle, the "
            f"begun step, the save and its upload; {float(trials.redo_s.mean()) / max(losses, 1.0):.1f} s in a history, which "
            "has the lost training, none where a machine is lost while it prepares, and shorter cycles after restarts"
        )
    if quantity == "save":
        return (
            "the table has ten saves that the user asked for, 25 s, and one for each loss; the simulated rule makes emergency "
            "saves alone, and none where a machine is lost while it prepares"
        )
    if quantity == "alloc" and model == "gpt117m" and column == "adaptive":
        return (
            "the next machine is ordered when the last is gone, 30 s after its notice: the rest of the notice after the "
            "emergency save is waited, too, which the thesis does not count"
        )
    printed = float(TABLES[TABLE_OF[model]][column]["total_s"]) / float(INPUTS["mttp_s"])
    return (
        f"{losses:.1f} losses in a history, {printed:.1f} in the thesis, total / MTTP; and a machine that is lost while it "
        "prepares has not prepared for the whole time"
    )


def _table_6_1(options: Options, tell: Tell) -> tuple[Row, ...]:
    del options, tell
    adaptive = [row for row in thesis_rows(TABLES, INPUTS) if row.source == "thesis, Table 6.1"]
    static = [
        cannot(
            "thesis, Table 6.1",
            f"{entry['model']}, MTTP {entry['mttp_s']} s, static",
            "steps in 12 h",
            unit="steps",
            published=float(entry["static_steps_12h"]),
            reason="neither the inputs of the measured runs nor the static interval are printed",
        )
        for entry in TABLES["table_6_1"]
    ]
    return (*adaptive, *static)


# -------------------------------------------------------------------------------------------------------------- figures


def _figure(number: str, model: str, options: Options, tell: Tell) -> tuple[Row, ...]:
    """The bars of Figure 6.1 or 6.2: overhead and its four parts."""
    del options, tell
    rows = []
    for column in columns(model):
        ours, tabled = overhead(model, column), published_overhead(model, column)
        for quantity in ("overhead", *(name for name, _ in PARTS_OF)):
            printed = OVERHEADS_PCT.get((model, column)) if quantity == "overhead" else None
            published = tabled[quantity] if printed is None else printed
            given = "printed in section 6.3.1" if printed is not None else "from the printed table"
            tolerance = 100.0 * POINTS / abs(published) if published else 0.0
            rows.append(
                compared(
                    f"thesis, {number}",
                    f"{NAMES[model]}, {column}",
                    quantity if quantity == "overhead" else f"overhead, {quantity}",
                    unit="%",
                    published=published,
                    ours=ours[quantity],
                    tolerance_pct=tolerance,
                    method=f"closed form, over the on-demand run; published: {given}; matches within {POINTS} points",
                    reason="more than the scatter of the tables' totals",
                )
            )
    return tuple(rows)


def figure_6_3(mttp_h: float) -> float:
    """Return the overhead of the adaptive GPT-1.3B run [%]: the curve of Figure 6.3.

    Args:
        mttp_h: mean time to preemption [h].
    """
    return overhead("gpt1_3b", "adaptive", mttp_h * H)["overhead"]


def simulated_6_3(mttp_h: float, options: Options) -> tuple[float, float]:
    """Return the same by simulation, and its standard error [%].

    Args:
        mttp_h: mean time to preemption [h].
        options: trials, at least 1, and seed.
    """
    finish = spread(
        kernels.simulate(scenario("gpt1_3b", "adaptive", mttp_h * H), trials=options.trials, seed=options.seed).finish_s
    )
    share = 100.0 / on_demand("gpt1_3b").total_s
    return share * finish.mean - 100.0, share * finish.stderr


def _figure_6_3(options: Options, tell: Tell) -> tuple[Row, ...]:
    rows = [
        _point_6_3(mttp_h, figure_6_3(mttp_h), f"closed form; matches within {POINTS} points", points=POINTS)
        for mttp_h in MTTPS_H
    ]
    if not options.trials:
        return tuple(rows)
    found = {}
    _tell_compiling(tell)
    for mttp_h in MTTPS_H:
        tell(f"Figure 6.3, MTTP {mttp_h} h: {options.trials} simulated runs")
        found[mttp_h] = simulated_6_3(mttp_h, options)
    worst = max(stderr for _, stderr in found.values())
    method = (
        f"simulation, {options.trials} trials, standard error at most {worst:.2f} points; matches within {PART_PCT:g} % of "
        f"the overhead and {SIGMAS:g} standard errors"
    )
    for mttp_h, (ours, stderr) in found.items():
        rows.append(_point_6_3(mttp_h, ours, method, pct=PART_PCT, points=SIGMAS * stderr))
    return tuple(rows)


def _point_6_3(mttp_h: int, ours: float, method: str, *, points: float, pct: float = 0.0) -> Row:
    source, item = "thesis, Figure 6.3", f"GPT-1.3B, adaptive, MTTP {mttp_h} h"
    if mttp_h * H != INPUTS["mttp_s"]:
        reason = "the figure is drawn without numbers; only its point at 3 h is in a table"
        return unprinted(source, item, "overhead", unit="%", ours=ours, reason=reason, method=method)
    published = published_overhead("gpt1_3b", "adaptive")["overhead"]
    return compared(
        source,
        item,
        "overhead",
        unit="%",
        published=published,
        ours=ours,
        tolerance_pct=pct + 100.0 * points / published,
        method=method,
        reason="a history's cycles are shortened by restarts, the thesis counts full ones",
    )


PARTS: Final[Mapping[str, Part]] = {
    "table-6.1": Part(_table_6_1),
    "table-6.2": Part(partial(_table, "gpt117m"), simulated=True),
    "table-6.3": Part(partial(_table, "gpt1_3b"), simulated=True),
    "figure-6.1": Part(partial(_figure, "Figure 6.1", "gpt117m")),
    "figure-6.2": Part(partial(_figure, "Figure 6.2", "gpt1_3b")),
    "figure-6.3": Part(_figure_6_3, simulated=True),
    "interval": Part(thesis_claims.interval),
    "slips": Part(thesis_claims.slips),
}
"""What can be replicated, by the name that the command line has for it."""
