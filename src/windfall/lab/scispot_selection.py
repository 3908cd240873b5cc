"""SciSpot's choice of a machine type, from the printed running times: what each type costs, and which is chosen.

The cost figure's bars are n c E[T] of the running times' bars, with the price of a preemptible CPU in 2019: so both say which
type was chosen.

Source:
    SciSpot, draft 2019, section 4.3, and its figures on cost and running time.
"""

from __future__ import annotations

from typing import Final

from windfall.lab import scispot_published as paper
from windfall.lab.published_rows import PublishedRow, compared
from windfall.lab.scispot_published import H
from windfall.models.exact.makespan import SurvivalTable
from windfall.policies.planning.selection import MachineChoice, score

SOURCE: Final = "SciSpot, server selection"
SAME_BARS_PCT: Final = 0.5
"""Costs match within this [%]: bars are read to three digits."""


def rows(lifetimes: SurvivalTable) -> tuple[PublishedRow, ...]:
    """Return costs from the running times beside the printed ones, the chosen types, and the expected loss.

    Args:
        lifetimes: of machines, by equation 1.
    """
    found = []
    for name, ours_usd, exosphere_usd, _ in paper.COSTS_USD:
        costs = {cpus: _cost_usd(base_h + lost_h) for cpus, (base_h, lost_h) in paper.RUNS_H[name].items()}
        best = min(costs, key=costs.__getitem__)
        found.append(_cost(name, "SciSpot's bar", ours_usd, costs))
        found.append(_cost(name, "ExoSphere's bar", exosphere_usd, costs))
        found.append(
            compared(
                SOURCE, name, f"cheapest type by the bars, n1-highcpu-{best}", unit="USD", published=ours_usd,
                ours=costs[best], tolerance_pct=SAME_BARS_PCT, method="least n c E[T] over the types of the figure",
                reason=f"{best} CPUs cost {costs[best]:.4f} USD by the same bars: the printed choice was not the cheapest",
            )
        )  # fmt: skip
        found += _expected(name, lifetimes)
    nano = {cpus: _cost_usd(sum(times)) for cpus, times in paper.RUNS_H["nanoconfinement"].items()}
    found.append(
        compared(
            SOURCE, "nanoconfinement, best and worst type", "saved, up to", unit="%", published=paper.SELECTION_PCT,
            ours=100.0 * (1.0 - min(nano.values()) / max(nano.values())), tolerance_pct=10.0,
            method="of the bars; published: up to 40 %; matches within 10 %", reason="1 - least / most of the bars",
        )
    )  # fmt: skip
    return tuple(found)


def _cost_usd(hours: float) -> float:
    return paper.SELECTION_CORES * paper.CPU_USD_PER_HOUR * hours


def _cost(name: str, whose: str, published_usd: float, costs: dict[int, float]) -> PublishedRow:
    nearest = min(costs, key=lambda cpus: abs(costs[cpus] - published_usd))
    return compared(
        SOURCE, name, f"{whose}: 64 cores of n1-highcpu-{nearest}", unit="USD", published=published_usd,
        ours=costs[nearest], tolerance_pct=SAME_BARS_PCT,
        method="64 cores at 0.0075 USD/h times the bars of the running time; the type whose cost is nearest",
        reason="no type of the figure has this cost",
    )  # fmt: skip


def _expected(name: str, lifetimes: SurvivalTable) -> list[PublishedRow]:
    """Return what losses add by the exact expectation, beside the bars."""
    mean_s = lifetimes.mean_left_s()
    choices = [
        MachineChoice(f"n1-highcpu-{cpus}", cpus, cpus * paper.CPU_USD_PER_HOUR, mean_s, base_h * H, lifetimes)
        for cpus, (base_h, _) in paper.RUNS_H[name].items()
    ]
    found = []
    for one in sorted(score(choices, paper.SELECTION_CORES), key=lambda one: one.choice.cores):
        base_h, lost_h = paper.RUNS_H[name][int(one.choice.cores)]
        ours_h = (one.expected_s or 0.0) / H - base_h
        row = compared(
            SOURCE, f"{name}, {one.choice.machine_type}", "added by losses", unit="h", published=lost_h, ours=ours_h,
            tolerance_pct=10.0, method="exact expectation, fresh machines by equation 1, restarts from the start",
            reason="measured on machines of all ages; fresh ones are lost most",
        )  # fmt: skip
        found.append(row)
    return found
