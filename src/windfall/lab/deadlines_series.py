"""The public series of spot availability, and jobs with a deadline played on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.models import availability
from windfall.models.availability import Availability
from windfall.policies.deadlines import deadline_table
from windfall.policies.deadlines.deadline_table import TableInputs
from windfall.simulation import deadline_kernel as kernel
from windfall.simulation import deadline_optimum as optimum
from windfall.simulation.deadline_kernel import DeadlineRun
from windfall.simulation.traces import trace_ticks
from windfall.simulation.traces.trace_events import Count, WatchedUntil
from windfall.structs import Struct

Floats = NDArray[np.float64]
PUBLIC: Final = "availability/1-node/aws-10-26-2022"
"""The folder of the eight series that the paper calls two weeks long."""
ALL: Final = "availability"
ON_DEMAND, GREEDY, UNIFORM, UNIFORM_IDLING = "on demand", "greedy", "uniform progress", "uniform progress, may idle"
OURS, OMNISCIENT = "windfall", "omniscient"
POLICIES: Final = {
    ON_DEMAND: kernel.ON_DEMAND_ONLY,
    GREEDY: kernel.GREEDY,
    UNIFORM: kernel.UNIFORM,
    UNIFORM_IDLING: kernel.UNIFORM_MAY_IDLE,
    OURS: kernel.PLANNED,
}
PROMISING: Final = (GREEDY, UNIFORM, UNIFORM_IDLING, OURS)
"""The policies that choose, and promise the deadline."""


class SpotSeries(Struct, frozen=True):
    """A public series.

    Attributes:
        name: its path in the folder.
        zone: where it was measured.
        step_s: between two values [s].
        up: whether the wanted machines, all of a gang, were available, by step.
    """

    name: str
    zone: str
    step_s: float
    up: Availability

    def ticks(self, tick_s: float) -> Availability:
        """Return it by ticks of another length [s]."""
        count = int(len(self.up) * self.step_s / tick_s)
        return self.up[(np.arange(count) * tick_s / self.step_s).astype(np.int64)]


class Played(Struct, frozen=True):
    """What one policy did from every start.

    Attributes:
        on_demand_h, spot_h: work on either kind [h].
        cost: prices of an hour on spot.
        late_s: after the deadline [s].
    """

    on_demand_h: Floats
    spot_h: Floats
    cost: Floats
    late_s: Floats


def read(folder: Path, under: str) -> tuple[SpotSeries, ...]:
    """Return the series below a folder of the traces, by name.

    Raises:
        Misuse: there is none, or one is bad.
    """
    paths = sorted((folder / under).rglob("*.json")) if (folder / under).is_dir() else []
    if not paths:
        raise Misuse(f"--data: {folder / under} has no series: pass the folder of skypilot-org/spot-traces")
    return tuple(one(folder, str(path.relative_to(folder))) for path in paths)


def one(folder: Path, name: str) -> SpotSeries:
    """Return one series.

    Raises:
        Misuse: it is missing or bad.
    """
    path = folder / name
    if not path.is_file():
        raise Misuse(f"--data: {path} is missing: pass the folder of skypilot-org/spot-traces")
    step_s = trace_ticks.header_of(path).step_s
    assert step_s is not None, "a trace of ticks has a step"
    times_s, counts, end_s = [], [], 0.0
    for _, event in trace_ticks.read(path, step_s):
        if isinstance(event, Count):
            times_s.append(event.at_s)
            counts.append(event.count)
        elif isinstance(event, WatchedUntil):
            end_s = max(end_s, event.at_s)
    steps = np.arange(round(end_s / step_s)) * step_s
    values = np.array(counts)[np.searchsorted(times_s, steps, "right") - 1]
    nodes = next((int(part.removesuffix("-node")) for part in path.parts if part.endswith("-node")), 1)
    return SpotSeries(name, path.name.partition("_")[0], step_s, values >= nodes)


def starts(
    series: Sequence[SpotSeries], window_s: float, tick_s: float, count: int, seed: int
) -> tuple[NDArray[Any], ...]:
    """Return random first ticks for each series, from one stream of chance, so that every run ends within its series."""
    random = np.random.default_rng(seed)
    room = [int(len(each.up) * each.step_s / tick_s) - int(window_s / tick_s) for each in series]
    return tuple(random.integers(0, most, count) for most in room)


def play(
    series: SpotSeries,
    first: NDArray[Any],
    run: DeadlineRun,
    policy: str,
    *,
    ratio: float,
    learnt: Sequence[SpotSeries],
) -> Played:
    """Return what a policy does.

    Args:
        series: what happens.
        first: ticks of the starts.
        run: the job.
        policy: one of `POLICIES`, or `OMNISCIENT`.
        ratio: on-demand price over spot price.
        learnt: what `OURS` has learnt from.
    """
    available = series.ticks(run.tick_s)
    if policy == OMNISCIENT:
        rows = optimum.best(available, first, run, ratio)
        hours = rows / 3600.0
        zeros = np.zeros(len(rows))
        return Played(
            hours[:, optimum.ON_DEMAND_WORK_S], hours[:, optimum.SPOT_WORK_S], hours[:, optimum.COST_S], zeros
        )
    table = None
    if policy == OURS:
        hazards = _learn(tuple(learnt))
        table = deadline_table.solve(TableInputs(hazards, run.compute_s, run.window_s, run.changeover_s, ratio))
    rows = kernel.play(available, first, run, POLICIES[policy], table)
    hours = rows / 3600.0
    return Played(
        hours[:, kernel.ON_DEMAND_WORK_S],
        hours[:, kernel.SPOT_WORK_S],
        ratio * hours[:, kernel.ON_DEMAND_S] + hours[:, kernel.SPOT_S],
        rows[:, kernel.LATE_S],
    )


def elsewhere(series: Sequence[SpotSeries], zone: str) -> tuple[SpotSeries, ...]:
    """Return the series of other zones."""
    return tuple(each for each in series if each.zone != zone)


def _learn(series: tuple[SpotSeries, ...]) -> availability.AvailabilityHazards:
    return availability.learn((each.up, each.step_s) for each in series)


@cache
def public(folder: Path) -> tuple[SpotSeries, ...]:
    """Return the eight series of the paper."""
    return read(folder, PUBLIC)


@cache
def everything(folder: Path) -> tuple[SpotSeries, ...]:
    """Return every series of availability."""
    return read(folder, ALL)
