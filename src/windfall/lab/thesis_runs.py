"""The runs of the thesis' evaluation: in closed form, and as scenarios for the simulation.

The closed form is the thesis' own accounting (`lab.thesis_closed_form`).  A scenario (`simulation.scenario`) has the same
inputs: the next machine is ordered when the last one has ended; a run with a fixed interval makes no emergency saves; a
machine's mean lifetime is MTTP minus the wait for it and minus its notice, because the tables have Alloc. / allocation
= Prep. / preparation = Total / MTTP + 1 machines, which is one loss per MTTP of total time.

Source:
    Thesis, sections 4.1 and 6.2.2; `thesis_published` has the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from windfall.lab.thesis_closed_form import Inputs, Totals, totals
from windfall.lab.thesis_published import INPUTS, TABLES
from windfall.lab.thesis_rows import column_inputs
from windfall.simulation.scenario import DurationRange, MemorylessLifetimes, Scenario, WorkerEstimates

TABLE_OF: Final = {"gpt117m": "table_6_2_gpt117m", "gpt1_3b": "table_6_3_gpt1_3b"}
NAMES: Final = {"gpt117m": "GPT-117M", "gpt1_3b": "GPT-1.3B"}
PARTS_OF: Final = (("recompute", "recompute_s"), ("save", "save_s"), ("alloc", "alloc_s"), ("prep", "prep_s"))
"""The parts of an overhead, and their cells in the tables."""
_WAITS, _WHOLE = 0.2, 0.1
"""Half the width of the ranges of allocation and preparation, as shares of their means; the thesis prints no ranges."""


def overhead(model: str, column: str, mttp_s: float | None = None) -> dict[str, float]:
    """Return how much longer than on demand a run takes, by the closed form [% of the on-demand run]: a bar of Figure 6.1.

    Args:
        model: `gpt117m` or `gpt1_3b`.
        column: `adaptive` or `per<k>`.
        mttp_s: mean time to preemption [s]; by default that of the tables, 3 h.

    Returns:
        `recompute`, `save`, `alloc`, `prep`, each minus the on-demand run's, and their sum `overhead`.
    """
    return _over(_cells(totals(column_inputs(INPUTS, model, column, mttp_s))), _cells(on_demand(model)))


def published_overhead(model: str, column: str) -> dict[str, float]:
    """Return the overhead and its parts according to the printed tables [%]."""
    table = TABLES[TABLE_OF[model]]
    return _over(table[column], table["on_demand"])


def columns(model: str) -> tuple[str, ...]:
    """Return the names of a table's spot columns."""
    return tuple(column for column in TABLES[TABLE_OF[model]] if column != "on_demand")


def scenario(model: str, column: str, mttp_s: float | None = None) -> Scenario:
    """Return a column's run as a scenario for the simulation.

    Args:
        model: `gpt117m` or `gpt1_3b`.
        column: `adaptive`, `per<k>` or `on_demand`.
        mttp_s: mean time to preemption [s]; by default that of the tables.
    """
    given = column_inputs(INPUTS, model, column, mttp_s)
    adaptive = column == "adaptive"
    notice_s = float(INPUTS["grace_s"]) if adaptive else 0.0
    return Scenario(
        steps=given.steps,
        step_s=DurationRange.of(given.step_s),
        stall_s=DurationRange.of(given.save_s),
        upload_s=DurationRange.of(given.backup_s),
        allocate_s=DurationRange.of(given.allocate_s, _WAITS),
        prepare_s=DurationRange.of(given.prepare_s, _WHOLE),
        lifetimes=MemorylessLifetimes((given.mttp_s - given.allocate_s - notice_s,)),
        notice_s=notice_s,
        announced_share=1.0 if adaptive else 0.0,
        policy="thesis" if adaptive else f"every:{given.interval_steps}steps",
        estimates=WorkerEstimates(given.mttp_s, 0.0 if adaptive else 1.0, given.allocate_s),
        provider="azure",
        successor_at_notice=False,
    )


def least_steps(given: Inputs) -> int:
    """Return the interval that minimizes the thesis' objective [steps]: equation 4.4 over whole steps.

    T(tau) = Tp + (Tp / tau) delta + ((tau + delta) / 2 + R) (Tp / tau) (tau + delta) / MTTP

    Args:
        given: a column; R is allocation and preparation, as section 4.1 defines it.
    """
    restart_s = given.allocate_s + given.prepare_s

    def slowdown(interval: int) -> float:
        tau_s = interval * given.step_s
        cycle_s = tau_s + given.save_s
        return (given.save_s + (cycle_s / 2.0 + restart_s) * cycle_s / given.mttp_s) / tau_s

    return min(range(1, 1_000), key=slowdown)


def on_demand(model: str) -> Totals:
    """Return the on-demand run of a model, by the closed form."""
    return totals(column_inputs(INPUTS, model, "on_demand"))


def _cells(ours: Totals) -> dict[str, float]:
    return {
        "recompute_s": ours.recompute_s,
        "save_s": ours.save_s,
        "alloc_s": ours.allocate_s,
        "prep_s": ours.prepare_s,
        "total_s": ours.total_s,
    }


def _over(run: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    share = 100.0 / base["total_s"]
    parts = {name: share * (run[cell] - base[cell]) for name, cell in PARTS_OF}
    return parts | {"overhead": share * (run["total_s"] - base["total_s"])}
