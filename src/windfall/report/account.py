"""Where a run's time went, and why: a view of its journal and its log.

Every moment, from the first machine acquiring the run to the last moment at which one can have been alive, belongs to
exactly one kind, so the kinds add up to the total.  Unknowns are named, not guessed: a figure that depends on one is a
range.

Saves that never reached the store, and the failures on the way to it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from windfall import events
from windfall.report.interval_kinds import Interval, Kind
from windfall.report.intervals import JournalWalk
from windfall.report.step_counts import Lost, StepLedger, StepPace, StepRange, pace_of
from windfall.structs import Struct, plain, replace
from windfall.terms import (
    Bytes,
    Cause,
    CheckpointRef,
    LastProgress,
    NoticeLevel,
    SaveKind,
    Seconds,
    Step,
    Term,
    WallTime,
)


class AbandonedSave(Struct, frozen=True):
    """A save that was started and never committed."""

    term: Term
    step: Step
    checkpoint_id: str
    reason: str


class FailureCount(Struct, frozen=True):
    """Transfers and commits that failed for one reason, whether or not a retry succeeded."""

    reason: str
    count: int


def abandoned(term: Term, rows: Iterable[events.Row]) -> list[AbandonedSave]:
    """Return the saves of a term that its machine abandoned, oldest first."""
    commands = [command for row in rows for command in row.commands if isinstance(command, events.AbandonCheckpoint)]
    return [
        AbandonedSave(term, _step(command.checkpoint_id), command.checkpoint_id, command.reason) for command in commands
    ]


def failures(facts: Iterable[events.Fact]) -> tuple[FailureCount, ...]:
    """Count the failures by reason, the most frequent first."""
    counted = Counter(fact.reason for fact in facts if isinstance(fact, (events.ShardFailed, events.CommitFailed)))
    return tuple(FailureCount(reason, count) for reason, count in counted.most_common())


def grouped(saves: Iterable[AbandonedSave]) -> list[tuple[str, int]]:
    """Return each reason, without its step number, and how many saves it cost; the most frequent first."""
    return Counter(re.sub(r"step \d+", "a step", save.reason) for save in saves).most_common()


def _step(checkpoint_id: str) -> Step:
    """Return the step at the start of a checkpoint's id."""
    return Step(int(checkpoint_id.partition("-")[0]))


SILENCE_S = 20.0
"""How long a machine without a heartbeat can have lived after its last row [s]."""
STAMP_S = 1.0
"""How much later than its provider reports a machine can have ended: timestamps are whole seconds [s]."""
SHOWN_S = 0.001
"""Kinds with less time are not shown: sums of wall times differ by that little [s]."""
LOSSES = frozenset({Cause.PREEMPTED_SAVED, Cause.PREEMPTED_UNSAVED, Cause.VANISHED, Cause.SCRIPT_FAILED, Cause.FENCED})


class Lease(Struct, frozen=True):
    """One lease of the run, from the log.

    Attributes:
        acquired_at, released_at: by the holder's wall clock; `released_at` is None if no record ended the term.
        cause: from the record that ended the term.
        reached: progress according to its last heartbeat or what it left on its disk; None if neither is known.
        gone_at: when the machine ended according to its provider; None if unknown.
    """

    term: Term
    holder: str
    acquired_at: WallTime
    released_at: WallTime | None = None
    cause: Cause | None = None
    reached: LastProgress | None = None
    gone_at: WallTime | None = None


class AttemptLoss(Struct, frozen=True):
    """The end of an attempt that left work undone.

    Attributes:
        cause: why it ended.
        steps: complete steps that no committed checkpoint holds; they have to be computed again.
        redone: how many of them have been computed again so far.
        redo_s: time spent so far on computing them again [s].
    """

    term: Term
    attempt: int
    at: WallTime
    cause: Cause
    steps: StepRange
    redone: int
    redo_s: Seconds


class ReceivedNotice(Struct, frozen=True):
    """A notice as it reached the machine; `deadline` by its wall clock, None if the notice names none."""

    at: WallTime
    term: Term
    level: NoticeLevel
    source: str
    deadline: WallTime | None


class SaveCount(Struct, frozen=True):
    """The number and size of the committed checkpoints of one kind."""

    kind: SaveKind
    count: int
    size_bytes: Bytes


class Account(Struct, frozen=True):
    """Where the time of a run went.

    Attributes:
        spent: seconds by kind, every kind once.
        intervals: the intervals that add up to `spent`, in order, without gap or overlap.
        machine_s: time that machines certainly held the run; overlaps count for each [s].
        uncertain_s: how much longer it can have been [s].
        upload_s: time of uploads in the background [s]; part of no kind.
        steps: the furthest step known to be complete.
        steps_redone: how many steps were computed again.
        abandoned: saves that were started and never committed, oldest first.
        failures: failed transfers and commits, by reason.
        unknown: one sentence for each gap in the rows.
    """

    start: WallTime
    end: WallTime
    spent: tuple[tuple[Kind, Seconds], ...]
    intervals: tuple[Interval, ...]
    leases: tuple[Lease, ...]
    losses: tuple[AttemptLoss, ...]
    notices: tuple[ReceivedNotice, ...]
    commits: tuple[CheckpointRef, ...]
    machine_s: Seconds
    uncertain_s: Seconds
    upload_s: Seconds
    steps: Step
    steps_redone: StepRange
    abandoned: tuple[AbandonedSave, ...]
    failures: tuple[FailureCount, ...]
    unknown: tuple[str, ...]

    @property
    def total_s(self) -> Seconds:
        """The sum over all kinds [s]: the time from `start` to `end`."""
        return Seconds(sum(seconds for _, seconds in self.spent))

    @property
    def shown(self) -> tuple[tuple[Kind, Seconds], ...]:
        """The kinds that occurred, with their seconds."""
        return tuple((kind, seconds) for kind, seconds in self.spent if seconds >= SHOWN_S)

    @property
    def machine_hours(self) -> StepRange:
        """Time that machines held the run [h]."""
        return StepRange(self.machine_s / 3600, (self.machine_s + self.uncertain_s) / 3600)

    @property
    def compute_s(self) -> StepRange:
        """Time spent on steps computed for the first time [s]."""
        new_s = self.of(Kind.COMPUTE)
        return StepRange(new_s - self._doubted_s, new_s + self.of(Kind.UNKNOWN) + self.of(Kind.UNSEEN))

    @property
    def redo_s(self) -> StepRange:
        """Time spent on steps computed again [s]."""
        again_s = self.of(Kind.REDO)
        return StepRange(again_s, again_s + self._doubted_s + self.of(Kind.UNKNOWN) + self.of(Kind.UNSEEN))

    @property
    def _doubted_s(self) -> float:
        """Time of steps that a lost attempt may have completed before [s]."""
        return sum(
            interval.duration_s
            for interval in self.intervals
            if interval.kind is Kind.COMPUTE and interval.loss is not None
        )

    @property
    def goodput(self) -> StepRange | None:
        """Share of the total spent on steps computed for the first time; None if the total is 0."""
        new_s, total_s = self.compute_s, self.total_s
        assert new_s.high is not None, "time is always bounded"
        return StepRange(new_s.low / total_s, min(new_s.high / total_s, 1.0)) if total_s else None

    @property
    def saves(self) -> tuple[SaveCount, ...]:
        """The committed checkpoints by kind, without empty kinds."""
        kinds = [(kind, [checkpoint for checkpoint in self.commits if checkpoint.kind is kind]) for kind in SaveKind]
        return tuple(
            SaveCount(kind, len(checkpoints), Bytes(sum(checkpoint.size_bytes for checkpoint in checkpoints)))
            for kind, checkpoints in kinds
            if checkpoints
        )

    def of(self, kind: Kind) -> Seconds:
        """Return the time spent on one kind [s]."""
        return dict(self.spent)[kind]


def account(
    rows_by_term: Mapping[Term, Sequence[events.Row]],
    leases: Sequence[Lease],
    *,
    commits: Sequence[CheckpointRef] = (),
    alive: Term | None = None,
) -> Account:
    """Return the account of a run.

    Args:
        rows_by_term: the journal's rows that arrived, in order of their sequence; terms may be missing.
        leases: every lease of the run, from the log.  Terms that only the journal has are added.
        commits: every commit in the log; those that only the journal has are added.
        alive: the term whose holder is known to be alive, if any: its attempt is not lost.

    Raises:
        ValueError: neither the log nor the journal has a term.
        LogDamaged: a journal goes back in time.
    """
    every_lease = _all_leases(rows_by_term, leases)
    if not every_lease:
        raise ValueError("the run has no term yet: no machine has acquired it")
    uncounted = _is_uncounted(rows_by_term, commits)
    if uncounted:
        every_lease = [_nothing_saved(lease) for lease in every_lease]
    ledger, pace = StepLedger(), pace_of(row for rows in rows_by_term.values() for row in rows)
    starts = [lease.acquired_at for lease in every_lease]
    stored = _stored(commits)
    walked = []
    for index, lease in enumerate(every_lease):
        before = max((step for term, step in stored.items() if term < lease.term), default=0)
        known = _Known(lease, min(starts[index + 1 :], default=None), stored.get(lease.term, 0), Step(before))
        walked.append(_walk(rows_by_term.get(lease.term, ()), known, ledger, pace, alive))
    intervals, clocks = _tile([walk.intervals for walk in walked], starts, every_lease)
    facts = [(row, fact) for lease in every_lease for row in rows_by_term.get(lease.term, ()) for fact in row.facts]
    checkpoints = {
        fact.checkpoint.checkpoint_id: fact.checkpoint
        for _, fact in facts
        if isinstance(fact, events.CheckpointCommitted)
    }
    checkpoints |= {checkpoint.checkpoint_id: checkpoint for checkpoint in commits}
    committed = tuple(
        sorted(checkpoints.values(), key=lambda checkpoint: (checkpoint.term, checkpoint.step, checkpoint.committed_at))
    )
    lasting = [interval for walk in walked for interval in walk.intervals]
    return Account(
        start=intervals[0].start if intervals else starts[0],
        end=intervals[-1].end if intervals else starts[0],
        spent=tuple((kind, _sum(intervals, kind)) for kind in Kind),
        intervals=intervals,
        leases=tuple(every_lease),
        losses=tuple(_loss(lost, number, intervals, ledger, committed) for number, lost in enumerate(ledger.losses)),
        notices=tuple(_notices(facts)),
        commits=committed,
        machine_s=Seconds(sum(interval.duration_s for interval in lasting if interval.certain)),
        uncertain_s=Seconds(sum(interval.duration_s for interval in lasting if not interval.certain)),
        upload_s=Seconds(sum(fact.duration_s for _, fact in facts if isinstance(fact, events.ShardUploaded))),
        steps=Step(ledger.furthest),
        steps_redone=ledger.computed_again(),
        abandoned=tuple(save for term, rows in sorted(rows_by_term.items()) for save in abandoned(term, rows)),
        failures=failures(fact for _, fact in facts),
        unknown=(
            *([_UNCOUNTED] if uncounted and ledger.losses else ()),
            *itertools.chain.from_iterable(walk.gaps for walk in walked),
            *clocks,
        ),
    )


_UNCOUNTED = (
    "the script never called Windfall: its steps cannot be counted, and a loss cost what was done since its own save"
)


def _is_uncounted(rows_by_term: Mapping[Term, Sequence[events.Row]], commits: Sequence[CheckpointRef]) -> bool:
    """Return whether a script ran that never joined and never handed anything over: what it did is unknown."""
    facts = [fact for rows in rows_by_term.values() for row in rows for fact in row.facts]
    started = any(isinstance(fact, events.ScriptStarted) for fact in facts)
    called = any(
        isinstance(fact, events.ShardHandedOver) or (isinstance(fact, events.RanksObserved) and fact.ranks)
        for fact in facts
    )
    return started and not called and not commits


def _nothing_saved(lease: Lease) -> Lease:
    saved = lease.cause is Cause.PREEMPTED_SAVED
    return replace(lease, cause=Cause.PREEMPTED_UNSAVED) if saved else lease


def as_json(made: Account) -> dict[str, Any]:
    """Return an account as data for `json.dumps`; units are in the names, times in seconds since 1970."""
    plain_account: dict[str, Any] = plain(made)
    plain_account["spent"] = {f"{kind.value}_s": seconds for kind, seconds in made.spent}
    plain_account["machine_s"] = {"low": made.machine_s, "high": made.machine_s + plain_account.pop("uncertain_s")}
    ranges = {name: plain(getattr(made, name)) for name in ("compute_s", "redo_s", "machine_hours", "goodput")}
    return plain_account | ranges | {"saves": plain(made.saves), "total_s": made.total_s}


def _sum(intervals: Sequence[Interval], kind: Kind) -> Seconds:
    return Seconds(sum(interval.duration_s for interval in intervals if interval.kind is kind))


def _all_leases(rows_by_term: Mapping[Term, Sequence[events.Row]], leases: Sequence[Lease]) -> list[Lease]:
    """Return every term once, in order, starting no later than its first row."""
    known = {lease.term: lease for lease in leases}
    for term, rows in rows_by_term.items():
        if rows:
            lease = known.get(term, Lease(term, "?", rows[0].wall_time))
            known[term] = replace(lease, acquired_at=min(lease.acquired_at, rows[0].wall_time))
    return [known[term] for term in sorted(known)]


def _stored(commits: Sequence[CheckpointRef]) -> dict[Term, int]:
    """Return the newest step that each term is known to have committed."""
    found: dict[Term, int] = {}
    for checkpoint in commits:
        found[checkpoint.term] = max(found.get(checkpoint.term, 0), checkpoint.step)
    return found


class _Known(Struct, frozen=True):
    """What is known about a term from other sources than its rows.

    Attributes:
        next_at: when the next term started.
        stored: the newest step that it committed.
        before: the newest step committed before it.
    """

    lease: Lease
    next_at: WallTime | None
    stored: int
    before: Step

    def until(self, sign: WallTime) -> WallTime:
        """Return until when its machine can have held the run, given its last sign of life."""
        reached = self.lease.reached
        silence_s = SILENCE_S if reached is None else sign - reached.wall_time + reached.max_gap_s
        gone_at = self.lease.gone_at
        others = (self.next_at, None if gone_at is None else WallTime(gone_at + STAMP_S))
        return max(sign, min([WallTime(sign + silence_s), *(at for at in others if at is not None)]))


def _walk(
    rows: Sequence[events.Row], known: _Known, ledger: StepLedger, pace: StepPace, alive: Term | None
) -> JournalWalk:
    lease = known.lease
    walk = JournalWalk(lease.term, lease.acquired_at, ledger, pace=pace)
    last = walk.rows(rows)
    if known.stored > ledger.last and ledger.started:
        ledger.see(known.stored)
    reached = lease.reached
    more: int | None = 0
    sign = max(last, lease.released_at or last, last if reached is None else reached.wall_time)
    if lease.released_at is not None or _releases(rows):
        walk.close(last, sign, sign)
    else:
        if reached is not None:
            walk.add_progress(reached, last)
        if lease.term == alive:
            walk.close(sign, sign, sign)
        else:
            more = _close_open_end(walk, known, last, sign)
    if not rows:
        walk.gaps.append(f"term {lease.term}: no row of its journal arrived, so what its machine did is unknown")
    cause = _cause(rows, lease, ledger)
    if lease.term != alive and cause in LOSSES:
        ledger.lose(lease.term, walk.attempt, sign, cause, more=more)
    return walk


def _close_open_end(walk: JournalWalk, known: _Known, last: WallTime, sign: WallTime) -> int | None:
    """Close a term that ended without a record; return how many steps beyond the known ones it may have completed."""
    lease, until = known.lease, known.until(sign)
    walk.close(sign if walk.attempt else last, sign, until)
    if lease.reached is not None and lease.reached.last:
        return 0
    if not walk.ledger.started:
        walk.ledger.restore(known.before)  # it may have trained
    if until > sign:
        walk.gaps.append(
            f"term {lease.term}: no sign of life after the last row; the machine may have trained for {until - sign:.1f} s"
        )
    return walk.more(until - sign)


def _releases(rows: Sequence[events.Row]) -> list[events.ReleaseRun]:
    return [command for row in rows for command in row.commands if isinstance(command, events.ReleaseRun)]


def _cause(rows: Sequence[events.Row], lease: Lease, ledger: StepLedger) -> Cause:
    """Return why a term ended: from the log, otherwise from its last command, otherwise from its notices."""
    if lease.cause is not None:
        return lease.cause
    released = _releases(rows)
    facts = [fact for row in rows for fact in row.facts]
    if any(isinstance(fact, events.FenceLost) for fact in facts):
        return Cause.FENCED
    if released:
        return released[-1].cause
    levels = [fact.notice.level for fact in facts if isinstance(fact, events.NoticeReceived)]
    levels = [level for level in levels if level is not NoticeLevel.HINT]
    if not levels or levels[-1] is NoticeLevel.WITHDRAWN:
        return Cause.VANISHED
    safe = max(
        (fact.checkpoint.step for fact in facts if isinstance(fact, events.CheckpointCommitted)), default=Step(-1)
    )
    return Cause.PREEMPTED_SAVED if safe >= ledger.last else Cause.PREEMPTED_UNSAVED


def _tile(
    intervals_by_term: Sequence[Sequence[Interval]], starts: Sequence[WallTime], leases: Sequence[Lease]
) -> tuple[tuple[Interval, ...], list[str]]:
    """Join the terms into one timeline: cut where a successor started, fill the gaps.

    Returns:
        The intervals, and one sentence for each pair of terms that overlap.
    """
    joined: list[Interval] = []
    notes: list[str] = []
    for index, (intervals, lease) in enumerate(zip(intervals_by_term, leases, strict=True)):
        limit = min(starts[index + 1 :], default=None)
        end = intervals[-1].end if intervals else starts[index]
        if limit is None:
            joined += intervals
            continue
        if end > limit:
            notes.append(
                f"term {lease.term} and its successor overlap by {end - limit:.1f} s: the older machine was still alive, or "
                "their clocks differ; the older machine's time is cut at the successor's start"
            )
        joined += [replace(interval, end=min(interval.end, limit)) for interval in intervals if interval.start < limit]
        if limit > end:
            kind = Kind.WAITING if intervals else Kind.UNKNOWN
            attempt = intervals[-1].attempt if intervals else 0
            joined.append(Interval(kind, end, limit, lease.term, attempt))
    return tuple(joined), notes


def _loss(
    lost: Lost, number: int, intervals: Sequence[Interval], ledger: StepLedger, commits: Sequence[CheckpointRef]
) -> AttemptLoss:
    newest = max((checkpoint.step for checkpoint in commits if checkpoint.term <= lost.term), default=Step(0))
    kept = newest if lost.restored is None else lost.restored
    redo_s = sum(
        interval.duration_s for interval in intervals if interval.kind is Kind.REDO and interval.loss == number
    )
    return AttemptLoss(
        term=lost.term,
        attempt=lost.attempt,
        at=lost.at,
        cause=lost.cause,
        steps=StepRange(max(0, lost.last - kept), None if lost.high is None else max(0, lost.high - kept)),
        redone=ledger.redone.get(number, 0),
        redo_s=Seconds(redo_s),
    )


def _notices(facts: Sequence[tuple[events.Row, events.Fact]]) -> list[ReceivedNotice]:
    found = []
    for row, fact in facts:
        if isinstance(fact, events.NoticeReceived):
            notice = fact.notice
            deadline = None if notice.deadline is None else WallTime(row.wall_time + notice.deadline - row.at)
            found.append(ReceivedNotice(row.wall_time, row.term, notice.level, notice.source, deadline))
    return found
