"""What the journals of a job say of its time: how far it was when, which machines it lost when, what everything costs.

One reading for both worlds: the journals of a live job and those of a simulated one go through the same lines.
All moments are the journals' wall clocks, counted from the job's submission [s].
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from windfall.events import (
    BeliefsChanged,
    CheckpointCommitted,
    CheckpointRestored,
    NoticeReceived,
    RanksObserved,
    Row,
    ScriptExited,
    ShardHandedOver,
    StepsMeasured,
    WorkerBegan,
)
from windfall.fleet import JobSubmitted, MachineHeard, MachinesSeen
from windfall.market import Ended, Machine
from windfall.models.losses import Losses
from windfall.simulation.scenario import Range, Recorded
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
        return next(row.wall for row in self.job if any(isinstance(fact, JobSubmitted) for fact in row.facts))


@dataclass(frozen=True)
class Stay:
    """One machine of the job [s since the submission].

    Attributes:
        began: when it was there.
        told: when it heard of its end; None if it never did.
        taken: when it was taken; None if it was not.
        trained: when its first step began; None if it never trained.
    """

    machine_id: str
    began: float
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
    spells = list(_by_term(journals).values())
    for number, points in enumerate(spells):
        stays = min((later[0][1] for later in spells[number + 1 :]), default=math.inf)
        for (since, low), (until, high) in itertools.pairwise(points):
            if low < stays:
                moments += [since, until if high <= stays else since + (until - since) * (stays - low) / (high - low)]
                steps += [low, min(high, stays)]
    return Progress(tuple(moments), tuple(steps))


def _by_term(journals: Journals) -> dict[Term, list[tuple[float, float]]]:
    """Return (moment, steps complete) of each term that trained, in order; the first is where its first step begins."""
    found: dict[Term, list[tuple[float, float]]] = {}
    for term in sorted({row.term for row in journals.run}):
        rows = [row for row in journals.run if row.term == term]
        seen = [point for row in rows for point in _points(row)]
        begin = _begin(rows)
        points = [begin] if begin is not None and (not seen or seen[0][1] > begin[1]) else []
        for at, step in seen:
            if not points or (step >= points[-1][1] and at > points[-1][0]):
                points.append((at, step))
        if points:
            found[term] = [(at - journals.submitted_at, float(step)) for at, step in points]
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
                ended = next((at for at, step in _points(row) if step == fact.step), row.wall)
                still_s = math.fsum(stall_s for step, stall_s in stalls if step < fact.step)
                return ended - (fact.step - base) * fact.mean_s - still_s, base
    return None


def _points(row: Row) -> Iterator[tuple[float, int]]:
    """Yield (when, steps complete) of each look at a run of one rank, and of each save: [s since 1970]."""
    for fact in row.facts:
        if isinstance(fact, ShardHandedOver):
            yield row.wall - fact.stall_s, fact.step
        elif isinstance(fact, RanksObserved) and fact.ranks:
            (rank,) = fact.ranks
            if rank.phase in (Phase.STEP, Phase.SAVE):
                # Both are told since the end of the last whole step, the first step since its own begin.
                yield row.wall + (rank.phase_since - row.at), rank.step


# ------------------------------------------------------------------------------------------------------------ machines


def stays(journals: Journals) -> tuple[Stay, ...]:
    """Return the machines of a job of one machine at a time, in the order in which they began."""
    base = journals.submitted_at
    began: dict[str, float] = {}
    taken: dict[str, float] = {}
    for machine in _listed(journals):
        if machine.began is not None:
            began.setdefault(machine.machine_id, machine.began - base)
        if machine.ended is not None and machine.cause is Ended.PREEMPTED:
            taken.setdefault(machine.machine_id, machine.ended - base)
    told = _told(journals)
    trained: dict[str, float] = {}
    for term, points in _by_term(journals).items():
        trained.setdefault(journals.holders[term], points[0][0])
    return tuple(
        Stay(machine_id, at, told.get(machine_id), taken.get(machine_id), trained.get(machine_id))
        for machine_id, at in sorted(began.items(), key=lambda item: item[1])
    )


def _listed(journals: Journals) -> Iterator[Machine]:
    """Yield the machines as the provider listed them."""
    for row in journals.job:
        for fact in row.facts:
            if isinstance(fact, MachinesSeen):
                yield from fact.machines


def _told(journals: Journals) -> dict[str, float]:
    """Return when each machine heard of its end: by its own journal, or by what it told the controller."""
    told: dict[str, float] = {}
    for row in journals.job:
        for fact in row.facts:
            if isinstance(fact, MachineHeard) and fact.report.level in _TOLD:
                told.setdefault(fact.report.machine_id, row.wall - journals.submitted_at)
    for row in journals.run:
        if any(isinstance(fact, NoticeReceived) and fact.notice.level in _TOLD for fact in row.facts):
            machine_id = journals.holders[row.term]
            told[machine_id] = min(told.get(machine_id, math.inf), row.wall - journals.submitted_at)
    return told


def losses(journals: Journals) -> Recorded:
    """Return how long each machine lived until it heard of its end; one that did not hear lives for ever.

    What becomes of a machine after the last step is no loss any more.
    """
    done_s = progress(journals).finish_s
    lives = [
        math.inf if stay.told is None or stay.told >= done_s else stay.told - stay.began for stay in stays(journals)
    ]
    while lives and math.isinf(lives[-1]):
        lives.pop()
    return Recorded((tuple(lives),))


# -------------------------------------------------------------------------------------------------------------- inputs


@dataclass
class Measured:
    """Every single measurement of the inputs of a simulation, over as many jobs as were read [s]."""

    steps: list[tuple[int, float]] = field(default_factory=list)
    stall_s: list[float] = field(default_factory=list)
    upload_s: list[float] = field(default_factory=list)
    allocate_s: list[float] = field(default_factory=list)
    prepare_s: list[float] = field(default_factory=list)
    notice_s: list[float] = field(default_factory=list)

    def add(self, other: Measured) -> Measured:
        """Return both together."""
        return Measured(
            *(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    @property
    def step_s(self) -> float:
        """Mean time of a step [s]."""
        return math.fsum(count * mean_s for count, mean_s in self.steps) / sum(count for count, _ in self.steps)


def measure(journals: Journals) -> Measured:
    """Measure a job.

    An allocation lasts from the submission, or from when the machine before heard of its end, to the machine's start:
    whatever passes until somebody orders belongs to it.  A preparation lasts from there to the first step's begin; it
    counts where no machine before still held the run.  A notice lasts from when the machine heard to its end, whatever
    it was told of its length.
    """
    found = Measured()
    wanted_at: float | None = 0.0
    for stay in stays(journals):
        if wanted_at is not None:
            found.allocate_s.append(stay.began - wanted_at)
        if stay.told is not None and stay.taken is not None:
            found.notice_s.append(stay.taken - stay.told)
        wanted_at = stay.told
    free_at = _free_at(journals)
    for index, stay in enumerate(stays(journals)):
        before = free_at[:index]
        if stay.trained is not None and all(at <= stay.began for at in before):
            found.prepare_s.append(stay.trained - stay.began)
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
    last = {journals.holders[row.term]: row.wall - journals.submitted_at for row in journals.run}
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


def about(values: Sequence[float]) -> Range:
    """Return the range whose uniform draws have the mean and the spread of what was measured."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)
    half = min(math.sqrt(3.0 * variance), mean)
    return Range(mean - half, mean + half)


def policy(journals: Journals) -> str:
    """Return the saving policy."""
    return next(fact.policy for row in journals.run for fact in row.facts if isinstance(fact, WorkerBegan))


def beliefs(journals: Journals) -> tuple[Losses, ...]:
    """Return what each machine that held the run believed of losses: what the log says at its begin, and what it was told."""
    found: dict[Term, Losses] = {}
    for row in journals.run:
        for fact in row.facts:
            if isinstance(fact, WorkerBegan):
                found[row.term] = Losses(
                    fact.provider,
                    fact.lives_s,
                    fact.preemptions,
                    fact.announced,
                    fact.notices_s,
                    mttp_given_s=fact.mttp_s,
                    restart_given_s=fact.restart_s,
                )
            elif isinstance(fact, BeliefsChanged):
                told = {
                    "mttp_given_s": fact.mttp_s,
                    "restart_given_s": fact.restart_s,
                    "share_given": fact.unannounced_share,
                    "notice_given_s": fact.notice_s,
                }
                given = {name: value for name, value in told.items() if value is not None}
                found[row.term] = dataclasses.replace(found[row.term], **given)
    return tuple(found.values())
