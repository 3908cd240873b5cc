"""Tables 6.1 to 6.3 of the thesis next to the closed form, and the thesis' own slips with the arithmetic.

Published numbers are arguments: `tables` as printed, and `inputs` that the tables imply (times of step, save, backup,
allocation and preparation, prices).  This module contains no published result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from windfall.lab.published_rows import PublishedRow, cannot, compared
from windfall.lab.thesis_closed_form import Inputs, Totals, totals
from windfall.policies.checkpointing import rules

TOTAL_PCT = 0.5
"""Totals and costs match within this [%]."""
PART_PCT = 1.5
"""Parts of a total match within this [%]."""
RUNS = 100
"""Number of simulated runs behind each published mean (thesis, section 6.3)."""
TEXT_STEPS, TEXT_OVERHEAD_PCT, TEXT_INTERVAL, HEADED_STEPS = 10_000.0, 12.44, 31.0, 10_000.0
"""Printed in the text and in a column head: run length [steps], overhead [%], two intervals [steps]."""
METHOD = "closed form, each loss at its mean cost"
_TABLES = {"gpt117m": ("table_6_2_gpt117m", "Table 6.2"), "gpt1_3b": ("table_6_3_gpt1_3b", "Table 6.3")}
"""Model -> key of its table, and the table's name."""
_PARTS = (("comp_s", "compute_s"), ("recompute_s", "recompute_s"), ("save_s", "save_s"),
          ("alloc_s", "allocate_s"), ("prep_s", "prepare_s"), ("total_s", "total_s"))  # fmt: skip

Published = Mapping[str, Any]


def thesis_rows(tables: Published, inputs: Published) -> tuple[PublishedRow, ...]:
    """Return every cell of Tables 6.2 and 6.3, the stated intervals, the slips, and Table 6.1.

    Args:
        tables: the printed tables: `table_6_2_gpt117m`, `table_6_3_gpt1_3b` (columns `adaptive`, `per<k>`,
            `on_demand`, each with `comp_s`, `recompute_s`, `save_s`, `alloc_s`, `prep_s`, `total_s`, `cost_usd`) and
            `table_6_1`.
        inputs: `steps`, `mttp_s`, `grace_s`, `prices_implied_by_costs_usd_h`, `prices_printed_usd_h`,
            `interval_check`, and for each model its times.
    """
    cells = [row for model in _TABLES for row in table_rows(tables, inputs, model).values()]
    return (*cells, *interval_rows(inputs), *slip_rows(tables, inputs), *measured_rows(tables, inputs))


def table_rows(tables: Published, inputs: Published, model: str) -> dict[tuple[str, str], PublishedRow]:
    """Return the cells of Table 6.2 or 6.3 by column and cell, such as `per100` and `comp_s`.

    Args:
        tables: as in `thesis_rows`.
        inputs: as in `thesis_rows`.
        model: `gpt117m` or `gpt1_3b`.
    """
    key, name = _TABLES[model]
    return {
        (column, cell): row
        for column in tables[key]
        for cell, row in _column(tables[key], column, column_inputs(inputs, model, column), inputs, name).items()
    }


def overhead_pct(inputs: Published, model: str, column: str, mttp_s: float) -> float:
    """Return how much longer than on demand a run takes [%]: a point of Figures 6.1 to 6.3.

    Args:
        inputs: as in `thesis_rows`.
        model: `gpt117m` or `gpt1_3b`.
        column: `adaptive` or `per<k>`.
        mttp_s: mean time to preemption [s].
    """
    spot = totals(column_inputs(inputs, model, column, mttp_s)).total_s
    return _over(spot, totals(column_inputs(inputs, model, "on_demand")).total_s)


def column_inputs(inputs: Published, model: str, column: str, mttp_s: float | None = None) -> Inputs:
    """Return the inputs of one column: `adaptive`, `per<k>` or `on_demand`.

    Args:
        inputs: as in `thesis_rows`.
        model: `gpt117m` or `gpt1_3b`.
        column: of the table.
        mttp_s: mean time to preemption [s]; by default that of the tables.
    """
    given = inputs[model]
    mttp_s = float(inputs["mttp_s"]) if mttp_s is None else mttp_s
    allocate_s = float(given["alloc_s"])
    covered = False
    if column == "on_demand":
        allocate_s = float(inputs.get("on_demand_alloc_117m_s", allocate_s)) if model == "gpt117m" else allocate_s
        interval = given.get("on_demand_interval_steps", given.get("user_interval_steps"))
        mttp_s = math.inf
    elif column == "adaptive":
        times = (given["step_s"], given["delta_s"], given["backup_s"])
        covered = rules.thesis_emergency_fits(*times, inputs["grace_s"])
        tau_s = rules.thesis_interval_s(given["delta_s"], mttp_s, allocate_s)
        interval = given["user_interval_steps"] if covered else rules.thesis_insurance_step(0, tau_s, given["step_s"])
    else:
        interval = int(column.removeprefix("per"))
    return Inputs(
        steps=int(inputs["steps"]),
        step_s=float(given["step_s"]),
        save_s=float(given["delta_s"]),
        backup_s=float(given["backup_s"]),
        allocate_s=allocate_s,
        prepare_s=float(given["prep_s"]),
        mttp_s=mttp_s,
        interval_steps=int(interval),
        emergency=covered or math.isinf(mttp_s),
    )


def _column(table: Published, column: str, given: Inputs, inputs: Published, name: str) -> dict[str, PublishedRow]:
    published, ours = table[column], totals(given)
    source, item = f"thesis, {name}", column
    rows = {}
    for cell, part in _PARTS:
        tolerance = TOTAL_PCT if cell == "total_s" else PART_PCT
        tolerance = max(tolerance, 50.0 / published[cell]) if published[cell] else tolerance  # printed in whole seconds
        rows[cell] = compared(
            source,
            item,
            cell.removesuffix("_s"),
            unit="s",
            published=float(published[cell]),
            ours=getattr(ours, part),
            tolerance_pct=tolerance,
            method=METHOD,
            reason=_reason(published, cell, ours),
        )
    kind = "on_demand" if column == "on_demand" else "spot"
    price = float(inputs["prices_implied_by_costs_usd_h"][kind])
    rows["cost_usd"] = compared(
        source,
        item,
        "cost",
        unit="USD",
        published=float(published["cost_usd"]),
        ours=ours.cost_usd(price),
        tolerance_pct=TOTAL_PCT,
        method=f"{METHOD}, {price:g} USD/h, which the printed costs imply",
    )
    return rows


def _reason(published: Published, cell: str, ours: Totals) -> str:
    if cell == "comp_s" and published["comp_s"] == published["total_s"]:
        rest = published["total_s"] - published["save_s"] - published["alloc_s"] - published["prep_s"]
        return (
            f"a misprint: the cell repeats the total; {published['total_s']} - {published['save_s']} - "
            f"{published['alloc_s']} - {published['prep_s']} = {rest}"
        )
    if ours.losses <= 0.0:
        return ""
    spread = 100.0 / math.sqrt(RUNS * ours.losses)
    return (
        f"the published mean of {RUNS} runs of {ours.losses:.1f} losses each has a standard error of {spread:.1f} % "
        "from the number of losses alone"
    )


def interval_rows(inputs: Published) -> list[PublishedRow]:
    """Return the stated interval of each table, in the order of the tables."""
    rows = []
    for (model, (_, name)), check in zip(_TABLES.items(), inputs["interval_check"].values(), strict=True):
        given, mttp_s = inputs[model], float(inputs["mttp_s"])
        tau_s = rules.thesis_interval_s(given["delta_s"], mttp_s, given["alloc_s"])
        garbled = math.sqrt(2.0 * given["delta_s"]) * (mttp_s + given["alloc_s"] + given["prep_s"]) / given["step_s"]
        ours = rules.thesis_insurance_step(0, tau_s, given["step_s"])
        rows.append(
            compared(
                f"thesis, {name}",
                "insurance save",
                "interval",
                unit="steps",
                published=float(check["published"]),
                ours=float(ours),
                tolerance_pct=0.0,
                method=f"floor(sqrt(2 delta (MTTP + R)) / t); read as sqrt(2 delta) (MTTP + R) it would be {garbled:.0f}",
            )
        )
    return rows


def slip_rows(tables: Published, inputs: Published) -> list[PublishedRow]:
    """Return what the thesis prints next to what its own numbers give."""
    small, large = tables["table_6_2_gpt117m"], tables["table_6_3_gpt1_3b"]
    steps, model = float(inputs["steps"]), inputs["gpt1_3b"]
    base_s, bare_s = float(large["on_demand"]["total_s"]), float(large["on_demand"]["comp_s"])
    best_s = float(large["per33"]["total_s"])
    small_pct = _over(small["adaptive"]["total_s"], small["on_demand"]["total_s"])
    saves = large["on_demand"]["save_s"] / model["delta_s"]
    tau_s = rules.thesis_interval_s(model["delta_s"], inputs["mttp_s"], model["alloc_s"])
    printed, implied = inputs["prices_printed_usd_h"], inputs["prices_implied_by_costs_usd_h"]
    slips = [
        ("section 6.3.2", "GPT-1.3B", "run length", "steps", TEXT_STEPS, bare_s / model["step_s"],
         f"{bare_s:.0f} s of computation / {model['step_s']:g} s a step: the text's 10K is the captions' 0.1M"),
        ("section 6.3.2", "GPT-1.3B, per 33", "overhead", "%", TEXT_OVERHEAD_PCT, _over(best_s, base_s),
         f"{best_s:.0f} / {bare_s:.0f} - 1; as the 117M model's {small_pct:.2f} % is counted, {best_s:.0f} / {base_s:.0f} - 1"),
        ("Table 6.3", "text below it", "interval", "steps", TEXT_INTERVAL, tau_s // model["step_s"],
         f"sqrt(2 delta (MTTP + R)) = {tau_s:.1f} s / {model['step_s']:g} s a step: the table's head has it right"),
        ("Table 6.3", "on_demand", "interval", "steps", HEADED_STEPS, steps / saves,
         f"headed per 10000, but {large['on_demand']['save_s']} s / {model['delta_s']:g} s = {saves:.0f} saves"),
        ("section 6.1.1", "spot", "price", "USD/h", printed["spot"], _price(small["per51"]),
         f"{small['per51']['cost_usd']} USD / {small['per51']['total_s']} s; all ten costs follow {implied['spot']:g}"),
        ("section 6.1.1", "on demand", "price", "USD/h", printed["on_demand"], _price(large["on_demand"]),
         f"{large['on_demand']['cost_usd']} USD / {large['on_demand']['total_s']} s; not the printed {printed['on_demand']:g}"),
    ]  # fmt: skip
    return [
        compared(
            f"thesis, {source}",
            item,
            quantity,
            unit=unit,
            published=float(published),
            ours=float(ours),
            tolerance_pct=0.05,
            method="the thesis' own numbers",
            reason=reason,
        )
        for source, item, quantity, unit, published, ours, reason in slips
    ]


def _over(longer_s: float, base_s: float) -> float:
    return 100.0 * (longer_s / base_s - 1.0)


def _price(column: Published) -> float:
    return float(column["cost_usd"]) / float(column["total_s"]) * 3600.0


def measured_rows(tables: Published, inputs: Published) -> list[PublishedRow]:
    """Return Table 6.1, adaptive: measured steps in 12 h, whose inputs are not published."""
    rows = []
    for entry in tables["table_6_1"]:
        model = "gpt117m" if entry["model"] == "117M" else "gpt1_3b"
        given = column_inputs(
            {**inputs, "steps": entry["adaptive_steps_12h"]}, model, "adaptive", float(entry["mttp_s"])
        )
        hours = totals(given).total_s / 3600.0
        rows.append(
            cannot(
                "thesis, Table 6.1",
                f"{entry['model']}, MTTP {entry['mttp_s']} s, adaptive",
                "steps in 12 h",
                unit="steps",
                published=float(entry["adaptive_steps_12h"]),
                reason=(
                    "the inputs of the measured runs are not published; with those of "
                    f"{'Table 6.2' if model == 'gpt117m' else 'Table 6.3'} these steps would take {hours:.1f} h"
                ),
            )
        )
    return rows
