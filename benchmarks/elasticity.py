"""Bulk addition and bulk eviction of transient machines, and the same eviction by checkpoint and restart.

Two reliable small machines train (`_small_machines`); four transient ones, whose processes, nodes of Ray and imports are there
before, are admitted all at once; later all four are evicted with notice, and the two train on.  Iterations are timed by
committed clocks, as one machine hears of them.  A round in which a judged iteration found the cores more than
80 % busy is void; void rounds are counted on standard error, and repeated a few times.

- **Add**: no iteration from the admission until all compute and serve may be longer than 1.05x the slowest of the ten before.
- **Evict**: the worst iteration from the notice until the reliable machines have all may be 1.15x of the mean on them alone
  afterwards.
- **Restart**: the same job writes a checkpoint at the notice, ends, and starts again on the reliable machines: how much longer
  all stands still than in the eviction.
- **Sigma and lambda**, what BidBrain must believe: how long all stands still when four machines are added, and when all four
  are killed without a word as an iteration begins, each beside what `lab replicate proteus` states for the paper's machines.

Source: Proteus (EuroSys 2017), sections 4.2 and 6.6.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks._small_machines import SmallMachines
from benchmarks.harness import Benchmark
from windfall.drill.busy_cores import BUSY_MAX
from windfall.lab.proteus_choices import STATED

RELIABLE, TRANSIENT = ("r1", "r2"), ("t1", "t2", "t3", "t4")
PARTS, DATA = 6, 12
BEFORE, TOGETHER, AFTER, WARM_UP = 10, 4, 6, 3
ROUNDS = 3
VOID_MAX = 4
"""Void rounds in a row after which nothing can be measured here."""


def benchmarks() -> list[Callable[[], Benchmark]]:
    return [bulk_add, bulk_eviction, eviction_restart, sigma, lambda_]


@dataclass(frozen=True)
class Elastic:
    """One round; times in seconds.

    Attributes:
        before: the ten iterations before the admission.
        adding: those until all serve and compute.
        together: those on all machines.
        evicting: those from the notice until the reliable machines have all.
        after: those on the reliable machines alone.
        busiest: the largest share of the cores that was busy in a judged iteration.
    """

    before: list[float]
    adding: list[float]
    together: list[float]
    evicting: list[float]
    after: list[float]
    busiest: float

    @property
    def add_stops_s(self) -> float:
        """By how much longer the iterations of the addition took than as many before it."""
        return max(0.0, sum(self.adding) - len(self.adding) * statistics.mean(self.before))

    @property
    def evict_stops_s(self) -> float:
        """By how much longer the iterations of the eviction took than as many on the reliable machines alone."""
        return max(0.0, sum(self.evicting) - len(self.evicting) * statistics.mean(self.after))


def played() -> Elastic:
    """Play a round."""
    machines = SmallMachines([*RELIABLE, *TRANSIENT], PARTS, DATA)
    try:
        machines.start(*RELIABLE)
        machines.until(WARM_UP + BEFORE)
        added = machines.newest()
        machines.order("begin", *TRANSIENT)
        all_there = machines.until_settled({"t1", "t2"}, {*RELIABLE, *TRANSIENT}) + 1
        machines.until(all_there + TOGETHER)
        noticed = machines.newest()
        machines.order("leave", *TRANSIENT)
        alone = machines.until_settled(set(RELIABLE), set(RELIABLE)) + 1
        machines.until(alone + AFTER)
        return Elastic(
            machines.iterations(added - BEFORE + 1, added),
            machines.iterations(added + 1, all_there),
            machines.iterations(all_there + 1, noticed),
            machines.iterations(noticed + 1, alone),
            machines.iterations(alone + 1, alone + AFTER),
            max(machines.busiest(added - BEFORE + 1, all_there), machines.busiest(noticed, alone + AFTER)),
        )
    finally:
        machines.end()


@functools.cache
def round_of(number: int) -> Elastic:
    """Return a round that is not void, if there is one; the void ones before it are counted."""
    for void in range(VOID_MAX + 1):
        found = played()
        words = "  ".join(
            f"{name} {' '.join(f'{took_s:.3f}' for took_s in getattr(found, name))}"
            for name in ("before", "adding", "together", "evicting", "after")
        )
        print(f"    round {number}, {void} void before it, cores up to {found.busiest:.0%}: {words}", file=sys.stderr)
        if found.busiest <= BUSY_MAX:
            return found
    raise SystemExit(f"{VOID_MAX + 1} rounds in a row were void: the cores are too busy for small machines")


def _paired(
    name: str, ours: Callable[[Elastic], float], yardstick: Callable[[Elastic], float], most: float
) -> Benchmark:
    rounds = {"ours": iter(range(ROUNDS + 1)), "yardstick": iter(range(ROUNDS + 1))}
    return Benchmark(
        name,
        lambda: ours(round_of(next(rounds["ours"]))),
        lambda: yardstick(round_of(next(rounds["yardstick"]))),
        most,
        at_most=True,
        unit="s",
        rounds=ROUNDS,
    )


def bulk_add() -> Benchmark:
    """Four machines are admitted at once."""
    name = "add 4 to 2, worst vs slowest of ten before"
    return _paired(name, lambda one: max(one.adding), lambda one: max(one.before), 1.05)


def bulk_eviction() -> Benchmark:
    """They are evicted at once, with notice."""
    name = "evict 4 of 6, worst vs mean on 2 afterwards"
    return _paired(name, lambda one: max(one.evicting), lambda one: statistics.mean(one.after), 1.15)


# ---------------------------------------------------------------------------------------------------- checkpoint and restart


@functools.cache
def restart_stops_s(number: int) -> float:
    """Return for how long all stands still, beyond an iteration, if the job is saved and started on other machines [s]."""
    del number
    first = SmallMachines([*RELIABLE, *TRANSIENT], PARTS, DATA)
    try:
        first.start(*RELIABLE)
        first.until(1)
        first.order("begin", *TRANSIENT)
        first.until_settled({"t1", "t2"}, {*RELIABLE, *TRANSIENT})
        first.until(first.newest() + 3)
        noticed_s = time.monotonic()
        first.stop()
        first.await_event("begun", *RELIABLE, *TRANSIENT)
        first.await_event("over", "r1")
        reached = first.newest()
    finally:
        first.end(keep=True)
    # Machines of the run before are known to have ended: none is awaited.
    names = ["r1-again", "r2-again"]
    again = SmallMachines(names, PARTS, DATA, folder=first.folder, found_within_s=0.3)
    try:
        again.start(*names)
        again.until(reached + 4)
        iteration_s = statistics.mean(again.iterations(reached + 2, reached + 4))
        return again.clocks[min(again.clocks)] - noticed_s - iteration_s * (min(again.clocks) - reached)
    finally:
        again.end()


def eviction_restart() -> Benchmark:
    """How long the job stands still by each way; a way that costs nothing counts as a hundredth of a second."""
    rounds = {"ours": iter(range(ROUNDS + 1)), "yardstick": iter(range(ROUNDS + 1))}
    return Benchmark(
        "evict, time lost, tiers vs checkpoint+restart",
        lambda: max(0.01, round_of(next(rounds["ours"])).evict_stops_s),
        lambda: restart_stops_s(next(rounds["yardstick"])),
        1.0,
        at_most=True,
        unit="s",
        rounds=ROUNDS,
    )


# -------------------------------------------------------------------------------------------------- what BidBrain must believe


@functools.cache
def killed_stops_s(number: int) -> float:
    """Return for how long all stands still, and what is done again takes, if four machines are killed at once [s]."""
    del number
    machines = SmallMachines([*RELIABLE, *TRANSIENT], PARTS, DATA)
    try:
        machines.start(*RELIABLE)
        machines.until(1)
        machines.order("begin", *TRANSIENT)
        machines.until_settled({"t1", "t2"}, {*RELIABLE, *TRANSIENT})
        machines.until(machines.newest() + 3)
        killed_s, reached = time.monotonic(), machines.newest()
        machines.kill(*TRANSIENT)
        alone = machines.until_settled(set(RELIABLE), set(RELIABLE)) + 1
        machines.until(alone + AFTER)
        iteration_s = statistics.mean(machines.iterations(alone + 1, alone + AFTER))
        return machines.clocks[alone] - killed_s - iteration_s * (alone - reached)
    finally:
        machines.end()


def _beside_stated(name: str, ours: Callable[[int], float], stated_s: float) -> Benchmark:
    """Return a time beside the one that is stated; one of nothing counts as a hundredth of a second."""
    rounds = iter(range(ROUNDS + 1))
    return Benchmark(
        name,
        lambda: max(0.01, ours(next(rounds))),
        lambda: stated_s,
        1.0,
        at_most=True,
        unit="s",
        rounds=ROUNDS,
    )


def sigma() -> Benchmark:
    """What an addition costs."""
    return _beside_stated(
        "add 4 to 2, time lost vs stated sigma", lambda one: round_of(one).add_stops_s, STATED.change_s
    )


def lambda_() -> Benchmark:
    """What an eviction without notice costs."""
    return _beside_stated("kill 4 of 6, time lost vs stated lambda", killed_stops_s, STATED.eviction_s)
