"""A bag of equal jobs on machines that can vanish, event by event: a pure function of the bag, its rules and a seed.

Each gang runs one job at a time.  A machine's lifetime is drawn from the survival table when it starts, by its number in the
order of starts.  After a loss the rule decides on the job; before the next job the machines are kept or replaced.
A machine is paid from its start to its loss or release, also while it waits for others; a replacement starts after the wait.
When the completion target is met, everything is released.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from windfall.models.exact.makespan import SurvivalTable
from windfall.models.lifetimes.observations import uniforms
from windfall.policies.planning.early_stopping import MetricReport, StopRule, judge, worth_restarting
from windfall.policies.replacement.item_recovery import (
    BagShare,
    GangTime,
    ItemLoss,
    RecoveryAction,
    RecoveryChoice,
    choose,
)

_HOUR_S = 3600.0
_BLOCK = 1024
"""Lifetimes drawn at once."""
STARTS_MAX = 100_000
"""A bag that starts more machines than this cannot end: its jobs are longer than its machines last."""


class MachineReuse(enum.StrEnum):
    """Which machines the next job gets."""

    ALWAYS = "always"
    NEVER = "never"
    BY_AGE = "by age"


@dataclass(frozen=True, slots=True)
class BagScene:
    """A bag and its machines.

    Attributes:
        jobs: how many.
        gangs: how many jobs run at a time.
        times: of a job on the wanted number of machines, then on fewer, where measured.
        usd_per_hour: price of a machine.
        lifetimes: of machines.
        wait_s: from an order to a machine's start [s].
    """

    jobs: int
    gangs: int
    times: tuple[GangTime, ...]
    usd_per_hour: float
    lifetimes: SurvivalTable
    wait_s: float


@dataclass(frozen=True, slots=True)
class BagPolicy:
    """How a bag is run.

    Attributes:
        reuse: which machines the next job gets.
        kept_ages_s: with `BY_AGE`: spans of age in which a machine is kept [s].
        recovers: whether jobs that lost a machine are recovered by expected cost; else they are always run again on all.
        target: the share of jobs that must be done.
        deadline_s: of the bag [s].
        stops: the rule of early stopping; None: every job runs to its end.
        curves: with `stops`: the reports of each job.
    """

    reuse: MachineReuse
    kept_ages_s: tuple[tuple[float, float], ...] = ()
    recovers: bool = False
    target: float = 1.0
    deadline_s: float = math.inf
    stops: StopRule | None = None
    curves: tuple[tuple[MetricReport, ...], ...] = ()


@dataclass(slots=True)
class BagRun:
    """What a bag took.

    Attributes:
        run_s: until the completion target was met [s].
        machine_s: paid [s].
        lost_s: paid for runs that were cut short [s].
        losses: machines lost while they ran a job.
        done, stopped, discarded: jobs; those stopped early count as done.
        choices: how often each action was chosen.
        made: every choice that was weighed, with its instant [s].
    """

    run_s: float = 0.0
    machine_s: float = 0.0
    lost_s: float = 0.0
    losses: int = 0
    done: int = 0
    stopped: int = 0
    discarded: int = 0
    choices: Counter[RecoveryAction] = field(default_factory=Counter)
    made: list[tuple[float, RecoveryChoice]] = field(default_factory=list)


@dataclass(slots=True)
class _Machine:
    start_s: float
    death_s: float


@dataclass(slots=True)
class _Gang:
    machines: list[_Machine] = field(default_factory=list)
    working: list[_Machine] = field(default_factory=list)
    job: int = -1
    begun_s: float = 0.0
    whole_s: float = 0.0
    stops_at: float = 1.0


def play(scene: BagScene, policy: BagPolicy, seed: int) -> BagRun:
    """Return what a bag took with the machines of a seed; policies with the same seed see the same lifetimes in turn.

    Raises:
        ArithmeticError: its jobs are longer than its machines last.
    """
    return _Bag(scene, policy, seed).play()


class _Bag:
    """A run in progress."""

    def __init__(self, scene: BagScene, policy: BagPolicy, seed: int) -> None:
        self.scene, self.policy, self.seed = scene, policy, seed
        self.needed = math.ceil(policy.target * scene.jobs - 1e-9)
        self.wanted = scene.times[0].machines
        self.result = BagRun()
        self.waiting = list(range(scene.jobs))[::-1]
        self.gangs = [_Gang() for _ in range(scene.gangs)]
        self.events: list[tuple[float, int]] = []
        self.done_curves: list[Sequence[MetricReport]] = []
        self.running = 0
        self.lives: list[float] = []

    def play(self) -> BagRun:
        for place in range(len(self.gangs)):
            self._next_job(place, 0.0)
        while self.events and self.result.done < self.needed:
            now_s, place = heapq.heappop(self.events)
            gang = self.gangs[place]
            if min(one.death_s for one in gang.working) <= now_s:
                self._lose(place, now_s)
            else:
                self._finish(place, now_s)
            self.result.run_s = now_s
        for gang in self.gangs:
            self._release(gang, gang.machines, self.result.run_s)
        return self.result

    # ------------------------------------------------------------------------------------------------------------ machines

    def _start(self, at_s: float) -> _Machine:
        if not self.lives:
            block = self.seed * STARTS_MAX + self._started // _BLOCK
            self.lives = _lifetimes_s(self.scene.lifetimes, block)[::-1]
        self._started += 1
        if self._started > STARTS_MAX:
            raise ArithmeticError(f"a bag started {STARTS_MAX} machines and did not end: its jobs outlast its machines")
        return _Machine(at_s, at_s + self.lives.pop())

    _started = 0

    def _release(self, gang: _Gang, machines: Sequence[_Machine], now_s: float) -> None:
        """Stop paying for machines."""
        for one in list(machines):
            self.result.machine_s += max(0.0, min(now_s, one.death_s) - one.start_s)
            gang.machines.remove(one)

    def _complete(self, gang: _Gang, now_s: float, *, ordered_before: bool) -> float:
        """Bring a gang to its wanted size, and return when it is complete [s]."""
        self._release(gang, [one for one in gang.machines if one.death_s <= now_s], now_s)
        ready_s = now_s
        while len(gang.machines) < self.wanted:
            ready_s = now_s if ordered_before else now_s + self.scene.wait_s
            gang.machines.append(self._start(ready_s))
        if any(one.death_s <= ready_s for one in gang.machines):  # lost while it waited
            return self._complete(gang, ready_s, ordered_before=False)
        return ready_s

    def _keeps(self, machine: _Machine, now_s: float) -> bool:
        reuse = self.policy.reuse
        if reuse is MachineReuse.BY_AGE:
            return any(low <= now_s - machine.start_s <= high for low, high in self.policy.kept_ages_s)
        return reuse is MachineReuse.ALWAYS

    # ---------------------------------------------------------------------------------------------------------------- jobs

    def _next_job(self, place: int, now_s: float) -> None:
        """Give a gang the next job, or release it if none waits."""
        gang = self.gangs[place]
        if not self.waiting:
            self._release(gang, gang.machines, now_s)
            return
        self._release(gang, [one for one in gang.machines if not self._keeps(one, now_s)], now_s)
        ready_s = self._complete(gang, now_s, ordered_before=now_s == 0.0)
        gang.job = self.waiting.pop()
        self.running += 1
        self._run(place, ready_s, gang.machines, self.scene.times[0].runtime_s)

    def _run(self, place: int, now_s: float, machines: Sequence[_Machine], whole_s: float) -> None:
        gang = self.gangs[place]
        gang.working, gang.begun_s, gang.whole_s = list(machines), now_s, whole_s
        gang.stops_at = self._stops_at(gang.job)
        ends_s = min(now_s + gang.stops_at * whole_s, *(one.death_s for one in machines))
        heapq.heappush(self.events, (ends_s, place))

    def _stops_at(self, job: int) -> float:
        """Return the share of its run at which a job ends: 1, or where the rule stops it."""
        if self.policy.stops is None:
            return 1.0
        curve = self.policy.curves[job]
        for count in range(1, len(curve)):
            if judge(self.policy.stops, curve[:count], self.done_curves).stop:
                return curve[count - 1].progress
        return 1.0

    def _finish(self, place: int, now_s: float, *, stopped: bool = False) -> None:
        gang = self.gangs[place]
        self.running -= 1
        self.result.done += 1
        if stopped or gang.stops_at < 1.0:
            self.result.stopped += 1
        elif self.policy.stops is not None:
            self.done_curves.append(self.policy.curves[gang.job])
        self._next_job(place, now_s)

    def _lose(self, place: int, now_s: float) -> None:
        gang = self.gangs[place]
        self.result.losses += sum(one.death_s <= now_s for one in gang.working)
        self.result.lost_s += (now_s - gang.begun_s) * len(gang.working)
        self._release(gang, [one for one in gang.machines if one.death_s <= now_s], now_s)
        made = self._choose(gang, now_s) if self.policy.recovers else None
        if made is not None and self._pointless(gang, now_s):
            self._finish(place, now_s, stopped=True)
            return
        action = RecoveryAction.REPLENISH if made is None else made.chosen.action
        self.result.choices[action] += 1
        if made is not None:
            self.result.made.append((now_s, made))
        if action is RecoveryAction.DISCARD:
            self.running -= 1
            self.result.discarded += 1
            self._next_job(place, now_s)
        elif made is not None and action is RecoveryAction.SMALLER:
            kept = sorted(gang.machines, key=lambda one: one.start_s)[: round(made.chosen.machines)]
            self._release(gang, [one for one in gang.machines if one not in kept], now_s)
            sizes = {one.machines: one.runtime_s for one in self.scene.times}
            self._run(place, now_s, kept, sizes[made.chosen.machines])
        else:
            ready_s = self._complete(gang, now_s, ordered_before=False)
            self._run(place, ready_s, gang.machines, self.scene.times[0].runtime_s)

    def _choose(self, gang: _Gang, now_s: float) -> RecoveryChoice:
        scene, result = self.scene, self.result
        others = self.running - 1
        behind = max(0, self.needed - result.done - others - 1)
        rounds = math.ceil(behind / scene.gangs)
        share = BagShare(scene.jobs, self.policy.target, result.done, others, result.discarded)
        loss = ItemLoss(
            scene.times,
            tuple(now_s - one.start_s for one in gang.machines),
            scene.usd_per_hour,
            scene.lifetimes,
            scene.wait_s,
            time_left_s=self.policy.deadline_s - now_s - rounds * scene.times[0].runtime_s,
            pointless=self._pointless(gang, now_s),
        )
        return choose(loss, share)

    def _pointless(self, gang: _Gang, now_s: float) -> str:
        """Return why a job is not worth another run; empty: it is."""
        if self.policy.stops is None:
            return ""
        progress = (now_s - gang.begun_s) / gang.whole_s
        reported = [one for one in self.policy.curves[gang.job] if one.progress <= progress]
        found = worth_restarting(self.policy.stops, reported, self.done_curves)
        return found.reason if found.stop else ""


def _lifetimes_s(table: SurvivalTable, block: int) -> list[float]:
    """Return the lifetimes of a block of machines [s]; infinite where the table ends before they do."""
    drawn = uniforms(block, _BLOCK)
    ages_s = table.cell_s * np.arange(len(table.survival))
    lives_s = np.interp(drawn, table.survival[::-1], ages_s[::-1])
    return [float(one) for one in np.where(drawn < table.survival[-1], math.inf, lives_s)]


def usd(scene: BagScene, run: BagRun) -> float:
    """Return what a run cost [USD]."""
    return run.machine_s * scene.usd_per_hour / _HOUR_S
