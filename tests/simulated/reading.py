"""What the journals of a job say of its time: how far it was when, which machines it lost when, what everything costs.

One reading for both worlds: the journals of a live job and those of a simulated one go through the same lines.
All moments are the journals' wall clocks, counted from the job's submission [s].
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from windfall.events import (
    CheckpointCommitted,
    CheckpointRestored,
    EstimatesChanged,
    NoticeReceived,
    RanksObserved,
    Row,
    ScriptExited,
    ShardHandedOver,
    StepsMeasured,
    WorkerStarted,
)
from windfall.fleet import JobSubmitted, MachineReported, MachinesObserved
from windfall.market import Machine, MachineEndCause
from windfall.models.preemption_rates import PreemptionHistory
from windfall.simulation.scenario import DurationRange, RecordedLifetimes
from windfall.structs import replace
from windfall.terms import NoticeLevel, Phase, Term

_TOLD = (NoticeLevel.ANNOUNCED, NoticeLevel.GONE)


@dataclass(frozen=True)
class Journals:
    """Everything that a job wrote down.

    Attributes:
        job: the controller's rows.
        run: the rows of all machines.
        holders: which machine held each term.
    """

    job: Sequence[Row]
    run: Sequence[Row]
    holders: Mapping[Term, str]

    @property
    def submitted_at(self) -> float:
        """When the job was submitted [s since 1970]."""
        return next(row.wall_time for row in self.job if any(isinstance(fact, JobSubmitted) for fact in row.facts))


@dataclass(frozen=True)
class Stay:
    """One machine of the job [s since the submission].

    Attributes:
        started: when it was there.
        told: when it heard of its end; None if it never did.
        taken: when it was taken; None if it was not.
        trained: when its first step began; None if it never trained.
    """

    machine_id: str
    started: float
    told: float | None
    taken: float | None
    trained: float | None


@dataclass(frozen=True)
class Progress:
    """How far the run had come: steps that stay, exact at each point, straight between two.

    A step that is lost and made again later counts from when it was made for good.
    """

    moments_s: tuple[float, ...]
    steps: tuple[float, ...]

    def at(self, moment_s: float) -> float:
        """How many steps were done by a moment that stay done."""
        index = bisect_right(self.moments_s, moment_s)
        if index in (0, len(self.moments_s)):
            return self.steps[index - 1] if index else 0.0
        before, after = self.moments_s[index - 1], self.moments_s[index]
        share = (moment_s - before) / (after - before)
        return self.steps[index - 1] + share * (self.steps[index] - self.steps[index - 1])

    @property
    def finish_s(self) -> float:
        """When the last step was complete."""
        return self.moments_s[self.steps.index(self.steps[-1])]


# ------------------------------------------------------------------------------------------------------------ progress


def progress(journals: Journals) -> Progress:
    """Follow a run over all its machines."""
    moments, steps = [0.0], [0.0]
    intervals = list(_by_term(journals).values())
    for number, checkpoints in enumerate(intervals):
        stays = min((later[0][1] for later in intervals[number + 1 :]), default=math.inf)
        for (since, low), (until, high) in itertools.pairwise(checkpoints):
            if low < stays:
                moments += [since, until if high <= stays else since + (until - since) * (stays - low) / (high - low)]
                steps += [low, min(high, stays)]
    return Progress(tuple(moments), tuple(steps))


def _by_term(journals: Journals) -> dict[Term, list[tuple[float, float]]]:
    """Return (moment, steps complete) of each term that trained, in order; the first is where its first step begins."""
    found: dict[Term, list[tuple[float, float]]] = {}
    for term in sorted({row.term for row in journals.run}):
        rows = [row for row in journals.run if row.term == term]
        seen = [checkpoint for row in rows for checkpoint in _points(row)]
        begin = _begin(rows)
        checkpoints = [begin] if begin is not None and (not seen or seen[0][1] > begin[1]) else []
        for at, step in seen:
            if not checkpoints or (step >= checkpoints[-1][1] and at > checkpoints[-1][0]):
                checkpoints.append((at, step))
        if checkpoints:
            found[term] = [(at - journals.submitted_at, float(step)) for at, step in checkpoints]
    return found


def _begin(rows: Iterable[Row]) -> tuple[float, int] | None:
    """Return when the first step began, and after which: by the first window of steps, less what stood still within it.

    The first look of an agent may come long after it, and its window may lack the first step.
    """
    base, stalls = 0, [(0, 0.0)]
    for row in rows:
        for fact in row.facts:
            if isinstance(fact, CheckpointRestored):
                base = fact.step
            elif isinstance(fact, ShardHandedOver):
                stalls.append((fact.step, fact.stall_s))
            elif isinstance(fact, StepsMeasured):
                ended = next((at for at, step in _points(row) if step == fact.step), row.wall_time)
                still_s = math.fsum(stall_s for step, stall_s in stalls if step < fact.step)
                return ended - (fact.step - base) * fact.mean_s - still_s, base
    return None


def _points(row: Row) -> Iterator[tuple[float, int]]:
    """Yield (when, steps complete) of each look at a run of one rank, and of each save: [s since 1970]."""
    for fact in row.facts:
        if isinstance(fact, ShardHandedOver):
            yield row.wall_time - fact.stall_s, fact.step
        elif isinstance(fact, RanksObserved) and fact.ranks:
            (rank,) = fact.ranks
            if rank.phase in (Phase.STEP, Phase.SAVE):
                # Both are told since the end of the last whole step, the first step since its own begin.
                yield row.wall_time + (rank.phase_since - row.at), rank.step


# ------------------------------------------------------------------------------------------------------------ machines


def stays(journals: Journals) -> tuple[Stay, ...]:
    """Return the machines of a job of one machine at a time, in the order in which they began."""
    base = journals.submitted_at
    started: dict[str, float] = {}
    taken: dict[str, float] = {}
    for machine in _listed(journals):
        if machine.started is not None:
            started.setdefault(machine.machine_id, machine.started - base)
        if machine.ended is not None and machine.cause is MachineEndCause.PREEMPTED:
            taken.setdefault(machine.machine_id, machine.ended - base)
    told = _told(journals)
    trained: dict[str, float] = {}
    for term, checkpoints in _by_term(journals).items():
        trained.setdefault(journals.holders[term], checkpoints[0][0])
    return tuple(
        Stay(machine_id, at, told.get(machine_id), taken.get(machine_id), trained.get(machine_id))
        for machine_id, at in sorted(started.items(), key=lambda item: item[1])
    )


def _listed(journals: Journals) -> Iterator[Machine]:
    """Yield the machines as the provider listed them."""
    for row in journals.job:
        for fact in row.facts:
            if isinstance(fact, MachinesObserved):
                yield from fact.machines


def _told(journals: Journals) -> dict[str, float]:
    """Return when each machine heard of its end: by its own journal, or by what it told the controller."""
    told: dict[str, float] = {}
    for row in journals.job:
        for fact in row.facts:
            if isinstance(fact, MachineReported) and fact.report.level in _TOLD:
                told.setdefault(fact.report.machine_id, row.wall_time - journals.submitted_at)
    for row in journals.run:
        if any(isinstance(fact, NoticeReceived) and fact.notice.level in _TOLD for fact in row.facts):
            machine_id = journals.holders[row.term]
            told[machine_id] = min(told.get(machine_id, math.inf), row.wall_time - journals.submitted_at)
    return told


def losses(journals: Journals) -> RecordedLifetimes:
    """Return how long each machine lived until it heard of its end; one that did not hear lives for ever.

    What becomes of a machine after the last step is no loss any more.
    """
    done_s = progress(journals).finish_s
    lifetimes = [
        math.inf if stay.told is None or stay.told >= done_s else stay.told - stay.started for stay in stays(journals)
    ]
    while lifetimes and math.isinf(lifetimes[-1]):
        lifetimes.pop()
    return RecordedLifetimes((tuple(lifetimes),))


# -------------------------------------------------------------------------------------------------------------- inputs


@dataclass
class Measurement:
    """Every single measurement of the inputs of a simulation, over as many jobs as were read [s]."""

    steps: list[tuple[int, float]] = field(default_factory=list)
    stall_s: list[float] = field(default_factory=list)
    upload_s: list[float] = field(default_factory=list)
    allocate_s: list[float] = field(default_factory=list)
    prepare_s: list[float] = field(default_factory=list)
    notice_s: list[float] = field(default_factory=list)

    def add(self, other: Measurement) -> Measurement:
        """Return both together."""
        return Measurement(
            *(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    @property
    def step_s(self) -> float:
        """Mean time of a step [s]."""
        return math.fsum(count * mean_s for count, mean_s in self.steps) / sum(count for count, _ in self.steps)


def measure(journals: Journals) -> Measurement:
    """Measure a job.

    An allocation lasts from the submission, or from when the machine before heard of its end, to the machine's start:
    whatever passes until somebody orders belongs to it.  A preparation lasts from there to the first step's begin; it
    counts where no machine before still held the run.  A notice lasts from when the machine heard to its end, whatever
    it was told of its length.
    """
    found = Measurement()
    wanted_at: float | None = 0.0
    for stay in stays(journals):
        if wanted_at is not None:
            found.allocate_s.append(stay.started - wanted_at)
        if stay.told is not None and stay.taken is not None:
            found.notice_s.append(stay.taken - stay.told)
        wanted_at = stay.told
    free_at = _free_at(journals)
    for index, stay in enumerate(stays(journals)):
        before = free_at[:index]
        if stay.trained is not None and all(at <= stay.started for at in before):
            found.prepare_s.append(stay.trained - stay.started)
    found.steps = [
        (fact.count, fact.mean_s)
        for row in journals.run
        for fact in row.facts
        if isinstance(fact, StepsMeasured) and fact.count
    ]
    found.stall_s, found.upload_s = _saves(journals.run)
    return found


def _free_at(journals: Journals) -> list[float]:
    """Return when each machine wrote its last row, in the order in which they began; a machine without rows held nothing."""
    last = {journals.holders[row.term]: row.wall_time - journals.submitted_at for row in journals.run}
    return [last.get(stay.machine_id, -math.inf) for stay in stays(journals)]


def _saves(rows: Iterable[Row]) -> tuple[list[float], list[float]]:
    """Return how long each save stood still, and from there to its commit; without those that the script's end overtook."""
    stalls: list[float] = []
    durable: list[float] = []
    handed: dict[int, tuple[float, float]] = {}
    for row in rows:
        for fact in row.facts:
            if isinstance(fact, ShardHandedOver):
                handed[fact.step] = row.at, fact.stall_s
            elif isinstance(fact, ScriptExited):
                handed.clear()
            elif isinstance(fact, CheckpointCommitted) and fact.checkpoint.step in handed:
                at, stall_s = handed.pop(fact.checkpoint.step)
                stalls.append(stall_s)
                durable.append(row.at - at)
    return stalls, durable


def about(values: Sequence[float]) -> DurationRange:
    """Return the range whose uniform draws have the mean and the spread of what was measured."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)
    half = min(math.sqrt(3.0 * variance), mean)
    return DurationRange(mean - half, mean + half)


def policy(journals: Journals) -> str:
    """Return the saving policy."""
    return next(fact.options.policy for row in journals.run for fact in row.facts if isinstance(fact, WorkerStarted))


def estimates(journals: Journals) -> tuple[PreemptionHistory, ...]:
    """Return what each machine that held the run believed of losses: what the log says at its begin, and what it was told."""
    found: dict[Term, PreemptionHistory] = {}
    for row in journals.run:
        for fact in row.facts:
            if isinstance(fact, WorkerStarted):
                found[row.term] = PreemptionHistory(
                    fact.provider,
                    fact.lifetimes_s,
                    fact.preemptions,
                    fact.announced,
                    fact.notices_s,
                    mttp_given_s=fact.options.mttp_s,
                    restart_given_s=fact.restart_s,
                )
            elif isinstance(fact, EstimatesChanged):
                told = {
                    "mttp_given_s": fact.mttp_s,
                    "restart_given_s": fact.restart_s,
                    "share_given": fact.unannounced_share,
                    "notice_given_s": fact.notice_s,
                }
                given = {name: value for name, value in told.items() if value is not None}
                found[row.term] = replace(found[row.term], **given)
    return tuple(found.values())
