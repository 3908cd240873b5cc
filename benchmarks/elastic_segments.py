"""Two hours of Parcae's trace, played in ten minutes each: is it worth it to follow the machines, and does `simulate` say so?

HADP (hours 5.5 to 6.5 of the p3 trace: many machines, many changes) and LADP (8 to 9: few machines, many changes), scaled from
32 machines to 8; a minute is 10 s.  Machines are processes of this host, which compute by a calibrated wait; transport, votes,
sums, the backup and the coordinator are real.  At the beginning of an interval machines are killed without notice, drawn by a
seed, or started.  The model needs two stages.  The arms, each with the same machines at the same times:

    shapes that follow          the runtime as it is
    restart from checkpoint     at each change all are killed, and new processes begin at the newest checkpoint (every 10 steps)
    fixed shape                 the runtime with one shape, chosen afterwards by the simulation; a spare takes a place

New processes are forks of one that has imported torch, which favours the restarts.  A step counts if it is not taken back until
the end.  Beside each stands what `simulation.elastic_odds`, which `windfall simulate` prints, says of the same machines: from a
profile that the layers' own times, and the pause after a loss, are measured for before.  It charges a restart 14 s for saving
and loading, as published, so that of the restarts the live number is the one to read.  All arms pay for all machines at all
times; the elastic ones also for the reliable one.

`BENCH_DATA` names the folder with `parcae_p3/p3.csv`; without it this is skipped.  `BENCH_INTERVALS=12` plays the first twelve
intervals of each, as a quick check.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks._elastic_fleet import (
    DoneStep,
    ElasticFleet,
    FleetTerms,
    elastic_fleet,
    first_after,
    median_pace,
    until,
)
from benchmarks.harness import Benchmark, Skipped
from windfall.models.elastic_profile import ElasticProfile, training_of
from windfall.models.measured_profile import measured_profile
from windfall.models.shapes import IDLE, Shape
from windfall.simulation import elastic_odds
from windfall.simulation.elastic_odds import ElasticArm, ElasticTerms
from windfall.structs import replace

DATA, INTERVALS = "BENCH_DATA", "BENCH_INTERVALS"
SEGMENTS = {"HADP": 5.5, "LADP": 8.0}
"""First hour of each."""
MACHINES, TRACE_MACHINES, INTERVAL_S, SEED = 8, 32, 10.0, 18
SHAPES = tuple(Shape(pipelines, 2) for pipelines in range(1, 5))
TERMS = FleetTerms(wait_s=0.1, batch=48, micro_batch=2, width=32, shapes=SHAPES)
POSTED_AFTER = 12
"""Steps after which machines have said twice what they measured."""
LOSSES = 3
"""That are measured before."""
SAVE_EVERY = 10
USD_PER_HOUR, RELIABLE_USD_PER_HOUR = 0.918, 0.68
"""A p3.2xlarge on the spot market, and the c5.4xlarge that keeps the state."""
DIFFERENCE_MAX = 0.1


def benchmarks() -> list[Callable[[], Benchmark]]:
    return [hadp, ladp]


# ------------------------------------------------------------------------------------------------------------------- machines


def scaled_counts(path: Path, first_h: float, intervals: int) -> list[int]:
    """Return the machines of each interval of an hour: the fewest in each minute, scaled."""
    events = [tuple(map(int, line.split(","))) for line in path.read_text().split()]
    found = []
    for minute in range(intervals):
        begins_ms = round((first_h * 60.0 + minute) * 60_000)
        held = [count for at_ms, count in events if at_ms <= begins_ms][-1:]
        held += [count for at_ms, count in events if begins_ms < at_ms < begins_ms + 60_000]
        found.append(round(min(held) * MACHINES / TRACE_MACHINES))
    return found


class Player:
    """Machines of a fleet that come and go."""

    def __init__(self, fleet: ElasticFleet, first: int) -> None:
        self.fleet, self._draw, self._next = fleet, random.Random(SEED), first
        self.alive: list[str] = []
        self.restarted = 0

    def set(self, count: int) -> None:
        """Start or kill machines; one that has ended by itself is replaced, as a node agent does."""
        ended = [name for name in self.alive if not self.fleet.is_alive(name)]
        self.restarted += len(ended)
        self.alive = [name for name in self.alive if name not in ended]
        gone = self._draw.sample(self.alive, max(len(self.alive) - count, 0))
        if gone:
            self.fleet.kill(*gone)
            self.alive = [name for name in self.alive if name not in gone]
        while len(self.alive) < count:
            name = f"m{self._next}"
            self._next += 1
            self.fleet.start(name)
            self.alive.append(name)


def newest(fleet: ElasticFleet) -> int:
    """Return the newest step that the fleet's machines have finished and not taken back; 0 if none."""
    lines: list[DoneStep] = [one for name in fleet.names() for one in fleet.steps(name)]
    return max(lines, default=DoneStep(0.0, 0, 0), key=lambda one: one.at_s).step


def boundaries(counts: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Yield the count of each interval at its beginning, but the first, and whether it is another one; return at the end."""
    began_s = time.monotonic()
    for number, (before, now) in enumerate(itertools.pairwise([*counts, counts[-1]]), 1):
        time.sleep(max(began_s + number * INTERVAL_S - time.monotonic(), 0.0))
        if number < len(counts):
            yield now, now != before


def shape_for(count: int) -> Shape:
    """Return the largest shape for so many machines."""
    return SHAPES[count // 2 - 1] if count >= 2 else IDLE


def play_shapes(counts: Sequence[int], profile: ElasticProfile, shapes: tuple[Shape, ...]) -> float:
    """Return the samples that the runtime trains on machines that come and go."""
    with tempfile.TemporaryDirectory() as text:
        terms = TERMS._replace(shapes=shapes, profile=profile)
        with elastic_fleet(Path(text), terms) as fleet:
            player = Player(fleet, 0)
            fleet.start("R1")
            player.set(counts[0])
            until(lambda: newest(fleet) >= 2 or counts[0] < min(shapes).machines, "training begins")
            first = newest(fleet)
            for count, _ in boundaries(counts):
                player.set(count)
            if player.restarted:
                print(f"    {player.restarted} machines were taken for lost, and replaced", file=sys.stderr)
            return float((newest(fleet) - first) * TERMS.batch)


def play_restarts(counts: Sequence[int]) -> float:
    """Return the samples that are trained if every change starts all again from the newest checkpoint."""
    with tempfile.TemporaryDirectory() as text:
        folder, made = Path(text), 0

        def begun(count: int) -> ElasticFleet:
            nonlocal made
            made += 1
            shape = shape_for(count)
            terms = TERMS._replace(shapes=(shape if shape != IDLE else SHAPES[0],), save_every=SAVE_EVERY)
            fleet = ElasticFleet(folder / str(made), folder / "store", terms)
            Player(fleet, 1000 * made).set(count)
            return fleet

        fleet = begun(counts[0])
        try:
            until(lambda: newest(fleet) >= 2 or counts[0] < 2, "training begins")
            first = newest(fleet)
            for count, changed in boundaries(counts):
                if changed:
                    fleet.close()
                    fleet = begun(count)
            return float((newest(fleet) or fleet.stored()) - first) * TERMS.batch
        finally:
            fleet.close()


# ------------------------------------------------------------------------------------------------------------- what is expected


def pause_of_loss(fleet: ElasticFleet) -> float:
    """Kill a machine, and return how long its loss costs besides the first step after it [s]."""
    layout = fleet.loop.layout
    at_s = fleet.kill(layout.places[0].machine)
    until(
        lambda: fleet.loop.layout.step is not None and fleet.loop.layout.version > layout.version, "a loss is noticed"
    )
    left = [place.machine for place in fleet.loop.layout.places]

    def steps_since(name: str) -> list[DoneStep]:
        return [one for one in fleet.steps(name) if one.layout > layout.version]

    until(lambda: all(len(steps_since(one)) >= 4 for one in left), "the others train")
    usual_s = statistics.median(median_pace(steps_since(one), 0.0, time.monotonic()) for one in left)
    back_s = max(first_after(fleet.steps(one), layout.version) for one in left) - at_s
    return max(back_s - usual_s, 0.0)


@functools.cache
def profile_here() -> ElasticProfile:
    """Return the profile that the coordinator has measured of 4x2, and the pause after a loss."""
    names = [f"m{number}" for number in range(MACHINES)]
    with tempfile.TemporaryDirectory() as text, elastic_fleet(Path(text), TERMS) as fleet:
        fleet.start("R1", *names)
        fleet.wait_shape(SHAPES[-1], names, POSTED_AFTER)

        def found() -> ElasticProfile | None:
            measured = fleet.planner.measured
            return None if measured is None else measured_profile(measured)

        until(lambda: found() is not None, "all have measured their layers", 300.0)
        profile = found()
        pauses_s = [pause_of_loss(fleet) for _ in range(LOSSES)]
    assert profile is not None
    pause_s = statistics.mean(pauses_s)
    print(f"    losses cost {', '.join(f'{one:.2f}' for one in pauses_s)} s besides the next step", file=sys.stderr)
    return replace(profile, groups_s=pause_s)


def simulated(counts: Sequence[int]) -> dict[str, ElasticArm]:
    """Return what the simulation says, by arm."""
    terms = ElasticTerms(interval_s=INTERVAL_S, usd_per_hour=USD_PER_HOUR, reliable_usd_per_hour=RELIABLE_USD_PER_HOUR)
    training = training_of(profile_here(), MACHINES, SHAPES)
    return {arm.name: arm for arm in elastic_odds.arms(counts, training, terms)}


class PlayedSegment(NamedTuple):
    """Samples of each arm, live, and the simulation's arms."""

    live: dict[str, float]
    said: dict[str, ElasticArm]


@functools.cache
def played(segment: str) -> PlayedSegment:
    """Play all arms of a segment, and show what they come to."""
    data = os.environ.get(DATA)
    if not data:
        raise Skipped(f"{DATA} names no folder with parcae_p3/p3.csv")
    path = Path(data, "parcae_p3", "p3.csv")
    if not path.exists():
        raise Skipped(f"there is no {path}")
    counts = scaled_counts(path, SEGMENTS[segment], int(os.environ.get(INTERVALS, "60")))
    said = simulated(counts)
    fixed = said[elastic_odds.FIXED].shape
    live = {
        elastic_odds.FOLLOWING: play_shapes(counts, profile_here(), SHAPES),
        elastic_odds.RESTARTING: play_restarts(counts),
        elastic_odds.FIXED: play_shapes(counts, profile_here(), (fixed,)),
    }
    print(f"    {segment}: machines {' '.join(map(str, counts))}", file=sys.stderr)
    for name, samples in live.items():
        arm = said[name]
        per = 1e6 * arm.cost_usd / samples if samples else float("inf")
        print(
            f"    {segment} {name + (f' {fixed}' if arm.shape != IDLE else ''):<26} live {samples:8,.0f} samples, "
            f"{per:8.2f} USD a million; simulated {arm.samples:8,.0f}, {arm.usd_per_million:8.2f} USD",
            file=sys.stderr,
        )
    return PlayedSegment(live, said)


def _difference(segment: str) -> Benchmark:
    name = elastic_odds.FOLLOWING
    found = played(segment)
    return Benchmark(
        f"{segment}: live against simulated, difference",
        lambda: abs(found.live[name] - found.said[name].samples),
        lambda: found.said[name].samples,
        DIFFERENCE_MAX,
        True,
        "samples",
        rounds=2,
    )


def hadp() -> Benchmark:
    """High availability, dense preemptions."""
    return _difference("HADP")


def ladp() -> Benchmark:
    """Low availability, dense preemptions."""
    return _difference("LADP")
