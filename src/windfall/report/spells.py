"""One term's journal as a sequence of spells: what the machine was doing, from when to when.

The journal has no row per step.  Steps come as windows (so many, so long on average), stalls and other phases as
durations that end when their row was written.  Here they are laid over the machine's time so that every moment between
the first and the last row belongs to exactly one kind.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from windfall import events
from windfall.terms import Cause, NoticeLevel, Phase, SaveKind, Seconds, Step, Term, WallTime


class Kind(enum.StrEnum):
    """What a stretch of a run's time was spent on."""

    COMPUTE = "compute"
    """Steps that were computed for the first time."""
    REDO = "redo"
    """Steps computed again, because their results were lost."""
    SAVE = "save"
    """The script stood still while it wrote a checkpoint; uploads behind it do not count."""
    RESTORE = "restore"
    """The newest whole checkpoint was fetched and verified."""
    START = "start"
    """Everything else before the first step: taking the run, imports, loading."""
    OTHER = "other"
    """Inside the script but not in a finished step: evaluation, compilation, waiting for data, a step cut short."""
    FINISH = "finish"
    """After the script's end: the last uploads, the last commit, the release."""
    WAITING = "waiting"
    """No machine held the run, or the one that did gave no more sign of life."""
    UNKNOWN = "unknown"
    """A machine held the run, but the rows that would say what it did never arrived."""


@dataclass(frozen=True, slots=True)
class Spell:
    """A stretch of one kind.  `loss` numbers the loss (from 0) that made a `REDO` necessary, where one did."""

    kind: Kind
    begin: WallTime
    end: WallTime
    term: Term
    attempt: int
    loss: int | None = None

    @property
    def duration_s(self) -> Seconds:
        """The spell's length [s]."""
        return Seconds(self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Lost:
    """The end of an attempt that did not finish its work.

    Attributes:
        last: the newest step it is known to have completed.
        exact: whether its last rows arrived, so that it completed no more.
        restored: the step its successor began from, if any did.
    """

    term: Term
    attempt: int
    at: WallTime
    cause: Cause
    last: Step
    exact: bool
    restored: Step | None = None


@dataclass(slots=True)
class Ledger:
    """Which steps were computed before, over all terms: what turns a step into compute or redo.

    Attributes:
        furthest: the highest step any attempt is known to have completed.
        last: the highest step the present attempt is known to have completed.
        owed: `(loss, upto)`, by rising `upto`: steps up to there are computed again because of that loss.
        losses: so far, oldest first.
        redone: steps computed again so far, by the loss that made it necessary.
        pending: the loss whose price the next restore tells.
        begun: whether the present attempt has restored, or completed a step.
    """

    furthest: int = 0
    last: int = 0
    owed: list[tuple[int | None, int]] = field(default_factory=list)
    losses: list[Lost] = field(default_factory=list)
    redone: dict[int | None, int] = field(default_factory=dict)
    pending: int | None = None
    begun: bool = False

    def see(self, step: int) -> None:
        """Note that the present attempt has completed `step`."""
        self.begun = True
        self.last = max(self.last, step)
        self.furthest = max(self.furthest, step)

    def lose(self, term: Term, attempt: int, at: WallTime, cause: Cause, *, exact: bool) -> None:
        """Note that the present attempt was lost; what that costs is known when its successor restores.

        An attempt that was lost before it restored anything costs no steps of its own.
        """
        self.losses.append(Lost(term, attempt, at, cause, Step(self.last if self.begun else 0), exact))
        self.pending = len(self.losses) - 1 if self.begun else self.pending
        self.begun = False

    def restore(self, step: int) -> None:
        """Begin an attempt from `step`: what was computed beyond it will be computed again."""
        if self.pending is not None:
            self.losses[self.pending] = replace(self.losses[self.pending], restored=Step(step))
        older = [(loss, upto) for loss, upto in self.owed if upto > max(self.last, step)]
        self.owed = [(self.pending, self.last), *older] if self.last > step else older
        self.last = step
        self.pending, self.begun = None, True

    def split(self, first: int, last: int) -> list[tuple[Kind, int | None, int]]:
        """Split the steps `first..last` into `(kind, loss, count)`, in order, and note them as computed."""
        parts: list[tuple[Kind, int | None, int]] = []
        for loss, upto in self.owed:
            if (count := min(upto, last) - first + 1) > 0:
                parts.append((Kind.REDO, loss, count))
                self.redone[loss] = self.redone.get(loss, 0) + count
                first += count
        if last >= first:
            parts.append((Kind.COMPUTE, None, last - first + 1))
        self.see(last)
        return parts


class _Stage(enum.Enum):
    PREPARING = enum.auto()
    STARTING = enum.auto()
    RUNNING = enum.auto()
    ENDED = enum.auto()


_WITHIN_SCRIPT = frozenset({Phase.EVALUATION, Phase.COMPILE, Phase.DATA})


@dataclass(slots=True)
class Walk:
    """The walk over one term's rows, in order.  `begin` is when its machine took the run."""

    term: Term
    begin: WallTime
    ledger: Ledger
    spells: list[Spell] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    attempt: int = 0
    exit_status: int | None = None
    exit_at: float = 0.0
    _front: float = 0.0
    _open: list[tuple[float, float]] = field(default_factory=list)
    _stage: _Stage = _Stage.PREPARING
    _window: tuple[int, float] = (0, 0.0)
    _ranks: int = 1
    _still_since: float | None = None

    def rows(self, rows: Sequence[events.Row]) -> WallTime:
        """Walk over the rows; return when the last one was written.

        Raises:
            ValueError: the monotonic clock goes backwards, which no journal of one machine can show.
        """
        self._front = self.begin
        if not rows:
            return self.begin
        anchor = rows[0].wall - rows[0].at
        expected, previous = 1, rows[0].at
        for row in rows:
            if row.at < previous:
                raise ValueError(f"the journal of term {self.term} goes back in time at row {row.sequence}")
            now = row.at + anchor
            if row.sequence != expected:
                self._missing(expected, row.sequence - 1, since=previous + anchor, until=now)
            for fact in row.facts:
                self._fact(fact, now)
            self._stand_still(row.commands, now)
            if any(isinstance(command, events.ReleaseRun) for command in row.commands):
                self._end_script(now)
            expected, previous = row.sequence + 1, row.at
        self._settle(previous + anchor)
        return WallTime(previous + anchor)

    def close(self, end: WallTime) -> None:
        """Assign what lies between the last row and the end of the term."""
        self._to(end, Kind.FINISH if self._stage is _Stage.ENDED else Kind.UNKNOWN)
        self.spells.sort(key=lambda spell: (spell.begin, spell.end))

    # ------------------------------------------------------------------------------------------------------- facts

    def _fact(self, fact: events.Fact, now: float) -> None:
        match fact:
            case events.CheckpointRestored():
                self._restored(fact, now)
            case events.ScriptStarted():
                self._to(now, Kind.START)
                self.attempt, self._stage, self._window = fact.attempt, _Stage.STARTING, (0, 0.0)
            case events.StepsMeasured():
                self._steps(fact, now)
            case events.PhaseMeasured():
                self._phase(fact, now)
            case events.ShardHandedOver():
                self._running(now - fact.stall_s)
                self._carve(now - fact.stall_s, now, Kind.SAVE)
                self.ledger.see(fact.step)
            case events.NoticeReceived() if fact.notice.level is NoticeLevel.WITHDRAWN:
                self._still_since = None
            case events.RanksObserved() if fact.ranks and self._stage in (_Stage.RUNNING, _Stage.ENDED):
                self._ranks = len(fact.ranks)
                self.ledger.see(min(rank.step for rank in fact.ranks))
            case events.ScriptExited():
                self._end_script(now)
                self.exit_status, self.exit_at = fact.status, now
            case _:
                pass

    def _stand_still(self, commands: Sequence[events.Command], now: float) -> None:
        """From the hand-over of the last save to the release a single rank stands still: the save's, not the steps'."""
        last = (SaveKind.EMERGENCY, SaveKind.STOP)
        if any(isinstance(command, events.UploadShard) and command.kind in last for command in commands):
            self._still_since = now if self._ranks == 1 else None
        if self._still_since is not None and any(isinstance(command, events.ReleaseRun) for command in commands):
            self._carve(self._still_since, now, Kind.SAVE)

    def _end_script(self, now: float) -> None:
        """The script ended, or is about to be ended because the run is released."""
        if self._stage in (_Stage.STARTING, _Stage.RUNNING):
            self._running(now)
            self._extend(now)
        self._stage = _Stage.ENDED

    def _restored(self, fact: events.CheckpointRestored, now: float) -> None:
        if self._stage is _Stage.ENDED and self.exit_status:
            self.ledger.lose(self.term, self.attempt, WallTime(self.exit_at), Cause.SCRIPT_FAILED, exact=True)
        self._close_script()
        self._stage = _Stage.PREPARING
        self._to(now - fact.duration_s, Kind.START)
        self._to(now, Kind.RESTORE)
        self.ledger.restore(fact.step)

    def _steps(self, fact: events.StepsMeasured, now: float) -> None:
        length = fact.count * fact.mean_s
        self._running(now - length)
        self._extend(now)
        shares = self.ledger.split(fact.step - fact.count + 1, fact.step)
        self._fill(length, shares, keep_s=fact.longest_s)
        self._window = (fact.step, fact.mean_s)

    def _phase(self, fact: events.PhaseMeasured, now: float) -> None:
        if fact.phase is Phase.START:
            self._running(now)
        elif self._stage is _Stage.RUNNING and fact.phase in _WITHIN_SCRIPT:
            self._carve(now - fact.duration_s, now, Kind.OTHER)
        elif self._stage is _Stage.RUNNING and fact.phase is Phase.SAVE:
            self._carve(now - fact.duration_s, now, Kind.SAVE)

    # -------------------------------------------------------------------------------------------------------- time

    def _to(self, end: float, kind: Kind) -> None:
        if end > self._front:
            self._add(kind, self._front, end)
            self._front = end

    def _add(self, kind: Kind, begin: float, end: float, loss: int | None = None) -> None:
        if end > begin:
            self.spells.append(Spell(kind, WallTime(begin), WallTime(end), self.term, self.attempt, loss))

    def _running(self, since: float) -> None:
        if self._stage is _Stage.STARTING:
            self._to(since, Kind.START)
            self._stage = _Stage.RUNNING

    def _extend(self, now: float) -> None:
        if now > self._front and self._stage is _Stage.RUNNING:
            self._open.append((self._front, now))
            self._front = now

    def _carve(self, begin: float, end: float, kind: Kind) -> None:
        """Give what is still unassigned between `begin` and `end` to `kind`."""
        self._extend(end)
        rest = []
        for left, right in self._open:
            self._add(kind, max(left, begin), min(right, end))
            rest += [(left, min(right, begin)), (max(left, end), right)]
        self._open = [(left, right) for left, right in rest if right > left]

    def _take(self, length_s: float, kind: Kind, loss: int | None = None) -> None:
        """Give the first `length_s` of what is unassigned to `kind`."""
        rest = []
        for left, right in self._open:
            cut = min(right, left + length_s) if length_s > 0 else left
            self._add(kind, left, cut, loss)
            length_s -= cut - left
            if right > cut:
                rest.append((cut, right))
        self._open = rest

    def _fill(self, length_s: float, shares: list[tuple[Kind, int | None, int]], *, keep_s: float) -> None:
        """Lay a window's steps over the unassigned time; the step under way (`keep_s` at most) waits for the next window."""
        free_s = sum(right - left for left, right in self._open)
        steps_s = min(length_s, free_s)
        count = sum(share[2] for share in shares)
        for kind, loss, steps in shares:
            self._take(steps_s * steps / count, kind, loss)
        self._take(free_s - steps_s - keep_s, Kind.OTHER)

    def _settle(self, now: float) -> None:
        """Assign everything up to `now`."""
        self._extend(now)
        self._close_script()
        self._to(now, Kind.FINISH if self._stage is _Stage.ENDED else Kind.START)

    def _close_script(self) -> None:
        """Assign the script's open time: steps seen since the last window first, the rest is `OTHER`."""
        step, mean_s = self._window
        if mean_s and self._open and (more := self.ledger.last - step) > 0:
            self._fill(more * mean_s, self.ledger.split(step + 1, self.ledger.last), keep_s=0.0)
            self._window = (self.ledger.last, mean_s)
        for begin, end in self._open:
            self._add(Kind.OTHER, begin, end)
        self._open = []

    def _missing(self, first: int, last: int, *, since: float, until: float) -> None:
        self._settle(since)
        self._to(until, Kind.UNKNOWN)
        rows = f"row {first}" if first == last else f"rows {first} to {last}"
        self.gaps.append(f"term {self.term}: {rows} of the journal never arrived; {until - since:.1f} s are not known")
