"""One term's journal as a sequence of intervals: what the machine was doing, and when.

The journal has no row per step.  Steps come as windows (count and mean duration), stalls and other phases as durations
that end when their row was written.  Here they are laid over the machine's time so that every moment between the first
and the last row belongs to exactly one kind.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from windfall import events
from windfall.errors import LogDamaged
from windfall.report.interval_kinds import Interval, Kind
from windfall.report.step_counts import StepLedger, StepPace
from windfall.terms import Cause, LastProgress, NoticeLevel, Phase, SaveKind, Term, WallTime

MUTE_S = 60.0
"""A script that has reported nothing for this long trains without calling Windfall [s]; so does one that ends with
exit status 0 before it reports."""


class _Stage(enum.Enum):
    PREPARING = enum.auto()
    STARTUP = enum.auto()
    RUNNING = enum.auto()
    ENDED = enum.auto()


_PLAUSIBLE_FACTOR = 10
"""A step count is plausible up to this multiple of the steps that fit into the time."""
_WITHIN_SCRIPT = frozenset({Phase.EVALUATION, Phase.COMPILE, Phase.DATA})


@dataclass(slots=True)
class JournalWalk:
    """The walk over one term's rows, in order; `start` is when its machine acquired the run."""

    term: Term
    start: WallTime
    ledger: StepLedger
    intervals: list[Interval] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    pace: StepPace = field(default_factory=StepPace)
    attempt: int = 0
    exit_status: int | None = None
    exit_at: float = 0.0
    _front: float = 0.0
    _open: list[tuple[float, float]] = field(default_factory=list)
    _stage: _Stage = _Stage.PREPARING
    _done: int = 0
    """The step up to which the attempt's time has been assigned to steps."""
    _mean_s: float = 0.0
    _started: float = 0.0
    _reported: bool = False
    _ranks: int = 1
    _still_since: float | None = None
    _held: tuple[float, float] | None = None

    def rows(self, rows: Sequence[events.Row]) -> WallTime:
        """Process the rows in order; return when the last one was written.

        Raises:
            LogDamaged: the monotonic clock goes backwards, which is impossible within one machine's journal.
        """
        self._front = self.start
        if not rows:
            return self.start
        anchor = rows[0].wall_time - rows[0].at
        expected, previous = 1, rows[0].at
        for row in rows:
            if row.at < previous:
                raise LogDamaged(f"the journal of term {self.term} goes back in time at row {row.sequence}")
            now = row.at + anchor
            if row.sequence != expected:
                self._missing(expected, row.sequence - 1, since=previous + anchor, until=now)
            for fact in row.facts:
                self._fact(fact, now)
            self._stand_still(row.commands, now)
            if any(isinstance(command, events.ReleaseRun) for command in row.commands):
                self._end_script(now)
            expected, previous = row.sequence + 1, row.at
        return WallTime(previous + anchor)

    def add_progress(self, reached: LastProgress, last: WallTime) -> None:
        """Add the progress of a machine that ended without a last row.

        Args:
            reached: its progress according to its last heartbeat or what it left on its disk.
            last: when its last row was written.
        """
        if reached.attempt > self.attempt:
            # The rows about a later start of the script, and about the end of the one before, are missing.
            self._settle(last)
            if self.attempt and self.ledger.started:
                more = self.pace.most(reached.wall_time - last)
                self.ledger.lose(self.term, self.attempt, last, Cause.SCRIPT_FAILED, more=more)
            self.ledger.restore(reached.first_step)
            self.attempt, self._stage, self._done = reached.attempt, _Stage.STARTUP, reached.first_step
            self._started, self._reported = last, True
            trained_s = max(0, reached.step - reached.first_step) * self._step_s
            self._to(max(last, reached.wall_time - trained_s), Kind.UNKNOWN)
        if self._stage in (_Stage.STARTUP, _Stage.RUNNING) and reached.step > self.ledger.last:
            self.ledger.see(reached.step)

    def more(self, length_s: float) -> int | None:
        """Return how many steps it may have completed in this much unrecorded time; None if unbounded."""
        return 0 if self._stage is _Stage.ENDED else self.pace.most(length_s)

    def close(self, known: WallTime, end: WallTime, until: WallTime) -> None:
        """Assign the time between the last row and the end of the term.

        Args:
            known: until when its rows, or what it left on its disk, record what it did.
            end: until when it certainly held the run.
            until: until when it can have held the run.
        """
        self._settle(known)
        self._to(end, Kind.FINISH if self._stage is _Stage.ENDED else Kind.UNKNOWN)
        end = WallTime(max(end, self._front))  # two clocks' sums differ in the last bit
        if until > end:
            self.intervals.append(Interval(Kind.UNKNOWN, end, until, self.term, self.attempt, certain=False))
        self.intervals.sort(key=lambda interval: (interval.start, interval.end))

    # ------------------------------------------------------------------------------------------------------- facts

    def _fact(self, fact: events.Fact, now: float) -> None:
        match fact:
            case events.CheckpointRestored():
                self._restored(fact, now)
            case events.ScriptStarted():
                self._to(now, Kind.START)
                self.attempt, self._stage, self._done = fact.attempt, _Stage.STARTUP, self.ledger.last
                self._started, self._reported = now, False
            case events.StepsMeasured():
                self._steps(fact, now)
            case events.PhaseMeasured():
                self._phase(fact, now)
            case events.ShardHandedOver():
                self._handed_over(fact, now)
            case events.NoticeReceived() if fact.notice.level is NoticeLevel.WITHDRAWN:
                self._still_since = None
            case events.RanksObserved() if fact.ranks and self._stage is not _Stage.PREPARING:
                self._reported, self._ranks = True, len(fact.ranks)
                if (step := min(rank.step for rank in fact.ranks)) > self.ledger.last:
                    self.ledger.see(step)
            case events.ScriptExited():
                self._end_script(now, fact.status)
                self.exit_status, self.exit_at = fact.status, now
            case _:
                pass

    def _stand_still(self, commands: Sequence[events.Command], now: float) -> None:
        """Assign a single rank's pause, from the hand-over of the last save to the release, to that save."""
        last = (SaveKind.EMERGENCY, SaveKind.STOP)
        if any(isinstance(command, events.UploadShard) and command.kind in last for command in commands):
            self._still_since = now if self._ranks == 1 else None
        if self._still_since is not None and any(isinstance(command, events.ReleaseRun) for command in commands):
            self._carve(self._still_since, now, Kind.SAVE)

    def _end_script(self, now: float, status: int | None = None) -> None:
        """Record that the script ended, or is about to end because the run is released."""
        silent = not self._reported or self.ledger.last <= self._done
        if self._stage is _Stage.STARTUP and silent and status == 0:
            self._to(now, Kind.UNSEEN)
        self._finish_start(now)
        self._extend(now)
        self._stage = _Stage.ENDED

    def _restored(self, fact: events.CheckpointRestored, now: float) -> None:
        if self._stage is _Stage.ENDED and self.exit_status:
            self.ledger.lose(self.term, self.attempt, WallTime(self.exit_at), Cause.SCRIPT_FAILED, more=0)
        self._close_script(now - fact.duration_s)
        self._stage = _Stage.PREPARING
        self._to(now - fact.duration_s, Kind.START)
        self._to(now, Kind.RESTORE)
        self.ledger.restore(fact.step)
        self._done = fact.step

    def _steps(self, fact: events.StepsMeasured, now: float) -> None:
        self._reported = True
        # Some steps are in no window: the first, whose start is unknown, and those that no agent observed.
        count = max(fact.count, self._computed(fact.step, now))
        length_s = count * fact.mean_s
        self._running(now - length_s)
        self._extend(now)
        shares = self.ledger.split(fact.step - count + 1, fact.step)
        self._fill(length_s, shares, keep_s=fact.longest_s)
        self._done, self._mean_s = fact.step, fact.mean_s

    def _computed(self, last: int, now: float) -> int:
        """Return how many steps were computed after the last assigned one, up to `last`.

        A script may set its counter to a step it resumed from without Windfall: steps that do not fit into the time
        were not computed.
        """
        most = self.pace.most(now - self._started)
        count = last - self._done
        return count if most is None or count <= _PLAUSIBLE_FACTOR * (most + 1) else 1

    def _phase(self, fact: events.PhaseMeasured, now: float) -> None:
        self._reported = True
        if fact.phase is Phase.START:
            self._running(now)
        elif fact.phase is Phase.STEP:
            self._release(fact.duration_s)
        elif self._stage is _Stage.RUNNING and fact.phase in _WITHIN_SCRIPT:
            self._carve(now - fact.duration_s, now, Kind.OTHER)
        elif self._stage is _Stage.RUNNING and fact.phase is Phase.SAVE:
            self._carve(now - fact.duration_s, now, Kind.SAVE)

    # -------------------------------------------------------------------------------------------------------- time

    def _to(self, end: float, kind: Kind) -> None:
        if end > self._front:
            self._add(kind, self._front, end)
            self._front = end

    def _add(self, kind: Kind, start: float, end: float, loss: int | None = None) -> None:
        if end > start:
            self.intervals.append(Interval(kind, WallTime(start), WallTime(end), self.term, self.attempt, loss))

    def _handed_over(self, fact: events.ShardHandedOver, now: float) -> None:
        """Assign a save's stall; the time before the first one was the script's start, or work that is reported later."""
        if self._stage is _Stage.STARTUP:
            if fact.result:
                return  # a result implies no step
            since = now - fact.stall_s
            if since > self._front:
                self._held, self._front = (self._front, since), since
        self._reported = True
        self._running(now - fact.stall_s)
        self._carve(now - fact.stall_s, now, Kind.SAVE)
        self.ledger.see(fact.step)

    def _release(self, worked_s: float, kind: Kind = Kind.COMPUTE, loss: int | None = None) -> None:
        """Assign the time held back: the last `worked_s` of it was work, the rest the script's start."""
        if self._held is not None:
            (start, end), self._held = self._held, None
            middle = max(start, end - max(worked_s, 0.0))
            self._add(Kind.START, start, middle)
            self._add(kind, middle, end, loss)

    def _running(self, since: float) -> None:
        if self._stage is _Stage.STARTUP:
            self._to(since, Kind.START)
            self._stage = _Stage.RUNNING

    def _extend(self, now: float) -> None:
        if now > self._front and self._stage is _Stage.RUNNING:
            self._open.append((self._front, now))
            self._front = now

    def _carve(self, start: float, end: float, kind: Kind) -> None:
        """Assign the unassigned time between `start` and `end` to `kind`."""
        self._extend(end)
        rest = []
        for left, right in self._open:
            self._add(kind, max(left, start), min(right, end))
            rest += [(left, min(right, start)), (max(left, end), right)]
        self._open = [(left, right) for left, right in rest if right > left]

    def _take(self, length_s: float, kind: Kind, loss: int | None = None) -> None:
        """Assign the first `length_s` of the unassigned time to `kind`."""
        rest = []
        for left, right in self._open:
            cut = min(right, left + length_s) if length_s > 0 else left
            self._add(kind, left, cut, loss)
            length_s -= cut - left
            if right > cut:
                rest.append((cut, right))
        self._open = rest

    def _fill(self, length_s: float, shares: list[tuple[Kind, int | None, int]], *, keep_s: float) -> None:
        """Lay a window's steps over the unassigned time; keep `keep_s` for the current step, which the next window has."""
        free_s = sum(right - left for left, right in self._open)
        self._release(length_s - free_s, shares[0][0], shares[0][1])
        steps_s = min(length_s, free_s)
        count = sum(share[2] for share in shares)
        for kind, loss, steps in shares:
            self._take(steps_s * steps / count, kind, loss)
        self._take(free_s - steps_s - keep_s, Kind.OTHER)

    def _settle(self, now: float) -> None:
        """Assign everything up to `now`."""
        self._close_script(now)
        self._to(now, Kind.FINISH if self._stage is _Stage.ENDED else Kind.START)

    def _close_script(self, now: float) -> None:
        """Assign the script's open time up to `now`: first steps since the last window, the rest is `OTHER`."""
        sdk_inactive = not self._reported and now - self._started >= MUTE_S
        if self._stage is _Stage.STARTUP and (sdk_inactive or self.ledger.last > self._done):
            self._finish_start(now)
        self._extend(now)
        last = self.ledger.last
        if last > self._done and self._stage in (_Stage.RUNNING, _Stage.ENDED):
            count = self._computed(last, now)
            shares = self.ledger.split(last - count + 1, last)
            self._done = last
            self._fill(count * self._step_s, shares, keep_s=0.0)
        self._release(0.0)
        for start, end in self._open:
            self._add(Kind.OTHER, start, end)
        self._open = []

    @property
    def _step_s(self) -> float:
        return self._mean_s or self.pace.mean_s

    def _finish_start(self, now: float) -> None:
        """End the script's start phase before the known steps; a script that never reported has no start phase."""
        if self._stage is _Stage.STARTUP and not self._reported and now - self._started >= MUTE_S:
            self._to(now, Kind.UNSEEN)
        more = max(0, self.ledger.last - self._done)
        self._running(now - more * self._step_s)

    def _missing(self, first: int, last: int, *, since: float, until: float) -> None:
        self._settle(since)
        self._to(until, Kind.UNKNOWN)
        rows = f"row {first}" if first == last else f"rows {first} to {last}"
        self.gaps.append(f"term {self.term}: {rows} of the journal never arrived; {until - since:.1f} s are unknown")
