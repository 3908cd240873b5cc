"""Many jobs of many arms in the worlds of Proteus, on all processors, and what their means are worth.

Jobs start at random moments, the same for every arm.  Jobs that start close to each other see the same prices, so the
intervals of means come from blocks of time: blocks are drawn with replacement, not jobs.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from windfall.lab import proteus_arms as arms
from windfall.lab import proteus_worlds as worlds
from windfall.lab.proteus_arms import ArmJob, ArmRun, Choices
from windfall.lab.proteus_worlds import PriceWorld, Span
from windfall.linux import processes
from windfall.models.price_evictions import EvictionTable
from windfall.structs import Struct

Floats = NDArray[np.float64]
DAY_S: Final = 86_400.0
CHUNK: Final = 20
"""Jobs that a process plays at a time."""
ROOM: Final = 3.0
"""A job starts at least this many times its hours before the prices end."""
RESAMPLES: Final = 1_000


class ArmRuns(Struct, frozen=True):
    """The jobs of an arm in a zone, in columns, one row for each start.

    Attributes:
        starts_s: moments of the starts [Unix seconds].
        cost_usd, run_s, on_demand_core_h, paid_core_h, free_core_h, evictions: as `ArmRun`; NaN where a job did not finish.
    """

    world: str
    zone: str
    arm: str
    hours: float
    starts_s: Floats
    cost_usd: Floats
    run_s: Floats
    on_demand_core_h: Floats
    paid_core_h: Floats
    free_core_h: Floats
    evictions: Floats

    @property
    def unfinished(self) -> int:
        """How many jobs did not finish."""
        return int(np.isnan(self.cost_usd).sum())


class Replay(Struct, frozen=True):
    """What is played.

    Attributes:
        folder: has the price histories.
        span: TRAIN plays on the last third of the months to learn from; TEST on the months that judge.
        starts: jobs in each zone.
        seed: of their moments.
    """

    folder: Path
    span: Span
    starts: int
    seed: int


class _Chunk(Struct, frozen=True):
    world: str
    zone: str
    arm: str
    hours: float
    choices: Choices
    starts_s: tuple[float, ...]


def play(
    replay: Replay,
    hours: float,
    choices: Mapping[str, Choices],
    progress: Callable[[str], None],
    names: Sequence[str] = tuple(worlds.WORLDS),
) -> tuple[ArmRuns, ...]:
    """Play jobs of all given arms in all zones; the same whatever the number of processors.

    Args:
        replay: what is played.
        hours: length of a job on demand [h].
        choices: the constants of each arm that plays.
        progress: receives how many jobs are done.
        names: of the worlds.

    Raises:
        Misuse: the price histories cannot be read.
    """
    read = {name: worlds.read(replay.folder, name, replay.span) for name in names}
    chunks = list(_chunks(replay, hours, choices, read))
    played: dict[int, list[ArmRun]] = {}
    total, done = sum(len(chunk.starts_s) for chunk in chunks), 0
    processors = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(processors, multiprocessing.get_context("spawn"), _begin, (os.getpid(),)) as pool:
        waiting = {pool.submit(_play, replay.folder, replay.span, chunk): n for n, chunk in enumerate(chunks)}
        for future in as_completed(waiting):
            played[waiting[future]] = future.result()
            done += len(chunks[waiting[future]].starts_s)
            progress(f"Proteus, jobs of {hours:g} h: {done} of {total}")
    return _joined(chunks, [played[number] for number in range(len(chunks))])


def _chunks(
    replay: Replay, hours: float, choices: Mapping[str, Choices], read: Mapping[str, PriceWorld]
) -> Iterator[_Chunk]:
    for number, (name, world) in enumerate(read.items()):
        for place, zone in enumerate(world.dates.zones):
            random = np.random.default_rng((replay.seed, number, place, int(hours)))
            first_s, last_s = played_s(world)
            moments = np.sort(random.uniform(first_s, last_s - ROOM * hours * arms.HOUR_S, replay.starts)).tolist()
            for arm, chosen in choices.items():
                for since in range(0, len(moments), CHUNK):
                    yield _Chunk(name, zone, arm, hours, chosen, tuple(moments[since : since + CHUNK]))


def played_s(world: PriceWorld) -> tuple[float, float]:
    """Return the part of a world's span in which jobs run [Unix seconds]; odds are learnt before it."""
    if world.span is Span.TEST:
        return world.dates.test_s
    return worlds.validating_s(world.dates), world.dates.train_s[1]


@cache
def _read(folder: Path, name: str, span: Span) -> PriceWorld:
    """Return a world; a process of the pool reads it once."""
    return worlds.read(folder, name, span)


@cache
def _odds(folder: Path, name: str, span: Span, zone: str, deltas: tuple[float, ...]) -> EvictionTable:
    """Return the odds of a zone, learnt before jobs begin."""
    world = _read(folder, name, span)
    return worlds.odds(world, zone, np.array(deltas), (world.dates.train_s[0], played_s(world)[0]))


def _begin(parent_pid: int) -> None:
    """Begin a process of the pool: it does not outlive the one that wants its runs.

    Garbage is looked for seldom: each look passes over all machines of a job, and a tenth of the time went to that.
    """
    processes.die_with_parent(parent_pid)
    gc.set_threshold(200_000, 20, 20)


def _play(folder: Path, span: Span, chunk: _Chunk) -> list[ArmRun]:
    """Play some jobs in a process of the pool."""
    world = _read(folder, chunk.world, span)
    odds = _odds(folder, chunk.world, span, chunk.zone, tuple(chunk.choices.deltas_usd().tolist()))
    return [
        arms.play(world, chunk.arm, ArmJob(chunk.zone, start_s, chunk.hours), chunk.choices, odds)
        for start_s in chunk.starts_s
    ]


def _joined(chunks: Sequence[_Chunk], played: Sequence[list[ArmRun]]) -> tuple[ArmRuns, ...]:
    found: dict[tuple[str, str, str, float], tuple[list[float], list[ArmRun]]] = {}
    for chunk, runs in zip(chunks, played, strict=True):
        starts_s, ran = found.setdefault((chunk.world, chunk.zone, chunk.arm, chunk.hours), ([], []))
        starts_s += chunk.starts_s
        ran += runs
    columns = ArmRun.__struct_fields__
    return tuple(
        ArmRuns(
            *key, np.array(starts_s), *(np.array([getattr(one, name) for one in ran], dtype=float) for name in columns)
        )
        for key, (starts_s, ran) in found.items()
    )


# ------------------------------------------------------------------------------------------------------ means and blocks


class Mean(Struct, frozen=True):
    """A mean with its 95 % interval, and from how many blocks of time that is."""

    value: float
    low: float
    high: float
    blocks: int


def mean(runs: Sequence[ArmRuns], measure: Callable[[ArmRuns], Floats], over: Sequence[ArmRuns] = ()) -> Mean:
    """Return the mean of a measure over jobs, or the ratio of its mean to that of other jobs with the same starts.

    Jobs that did not finish, of either, are left out; `ArmRuns.unfinished` counts them.

    Args:
        runs: of one arm, in one or more zones.
        measure: returns a value for each job.
        over: of another arm, in the same zones; empty: no ratio.
    """
    length_s = max(DAY_S, 2.0 * runs[0].hours * arms.HOUR_S)
    totals: dict[tuple[str, float], Floats] = {}
    for place, one in enumerate(runs):
        values = measure(one)
        others = measure(over[place]) if over else np.ones(len(values))
        for start_s, value, other in zip(one.starts_s.tolist(), values.tolist(), others.tolist(), strict=True):
            if math.isfinite(value) and math.isfinite(other):
                # Zones are alike in time but not in prices: a block is a time in all zones of a world.
                block = one.world, start_s // length_s
                totals[block] = totals.get(block, np.zeros(2)) + np.array((value, other))
    blocks = np.array(list(totals.values()))
    if not len(blocks):
        return Mean(math.nan, math.nan, math.nan, 0)
    draws = np.random.default_rng(0).integers(0, len(blocks), (RESAMPLES, len(blocks)))
    sums = blocks[draws].sum(axis=1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], (0.025, 0.975))
    value, other = blocks.sum(axis=0)
    return Mean(float(value / other), float(low), float(high), len(blocks))
