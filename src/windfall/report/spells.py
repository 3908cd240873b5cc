"""One term's journal as a sequence of spells: what the machine was doing, from when to when.

The journal has no row per step.  Steps come as windows (so many, so long on average), stalls and other phases as
durations that end when their row was written.  Here they are laid over the machine's time so that every moment between
the first and the last row belongs to exactly one kind.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from windfall import events
from windfall.errors import LogDamaged
from windfall.report.counted import Ledger, Pace
from windfall.report.kinds import Kind, Spell
from windfall.terms import Cause, NoticeLevel, Phase, Reached, SaveKind, Term, WallTime

MUTE_S = 60.0
"""A script that has told nothing for so long trains without us [s]; one that ends well has done so too."""


class _Stage(enum.Enum):
    PREPARING = enum.auto()
    STARTING = enum.auto()
    RUNNING = enum.auto()
    ENDED = enum.auto()


_BELIEVED = 10
"""So many times the steps that fit into the time are still believed."""
_WITHIN_SCRIPT = frozenset({Phase.EVALUATION, Phase.COMPILE, Phase.DATA})


@dataclass(slots=True)
class Walk:
    """The walk over one term's rows, in order.  `begin` is when its machine took the run."""

    term: Term
    begin: WallTime
    ledger: Ledger
    spells: list[Spell] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)
    attempt: int = 0
    exit_status: int | None = None
    exit_at: float = 0.0
    _front: float = 0.0
    _open: list[tuple[float, float]] = field(default_factory=list)
    _stage: _Stage = _Stage.PREPARING
    _done: int = 0
    """Up to which step the attempt's time has been given to its steps."""
    _mean_s: float = 0.0
    _started: float = 0.0
    _spoke: bool = False
    _ranks: int = 1
    _still_since: float | None = None
    _held: tuple[float, float] | None = None

    def rows(self, rows: Sequence[events.Row]) -> WallTime:
        """Walk over the rows; return when the last one was written.

        Raises:
            LogDamaged: the monotonic clock goes backwards, which no journal of one machine can show.
        """
        self._front = self.begin
        if not rows:
            return self.begin
        anchor = rows[0].wall - rows[0].at
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

    def take(self, reached: Reached, last: WallTime) -> None:
        """Take in how far a machine had come that gave no last word.

        Args:
            reached: as its last heartbeat, or what it left behind, says.
            last: when its last row was written.
        """
        if reached.attempt > self.attempt:
            # The rows of a later start of the script are missing, and how the one before ended.
            self._settle(last)
            if self.attempt and self.ledger.begun:
                more = self.pace.most(reached.wall - last)
                self.ledger.lose(self.term, self.attempt, last, Cause.SCRIPT_FAILED, more=more)
            self.ledger.restore(reached.first)
            self.attempt, self._stage, self._done = reached.attempt, _Stage.STARTING, reached.first
            self._started, self._spoke = last, True
            trained_s = max(0, reached.step - reached.first) * self._step_s
            self._to(max(last, reached.wall - trained_s), Kind.UNKNOWN)
        if self._stage in (_Stage.STARTING, _Stage.RUNNING) and reached.step > self.ledger.last:
            self.ledger.see(reached.step)

    def more(self, length_s: float) -> int | None:
        """How many steps it may have completed in so much time of which nobody knows; None if nothing bounds them."""
        return 0 if self._stage is _Stage.ENDED else self.pace.most(length_s)

    def close(self, known: WallTime, end: WallTime, until: WallTime) -> None:
        """Assign what lies between the last row and the end of the term.

        Args:
            known: until when its rows, or what it left behind, tell what it did.
            end: until when it held the run for certain.
            until: until when it can have held the run.
        """
        self._settle(known)
        self._to(end, Kind.FINISH if self._stage is _Stage.ENDED else Kind.UNKNOWN)
        end = WallTime(max(end, self._front))  # two clocks' sums differ in the last bit
        if until > end:
            self.spells.append(Spell(Kind.UNKNOWN, end, until, self.term, self.attempt, certain=False))
        self.spells.sort(key=lambda spell: (spell.begin, spell.end))

    # ------------------------------------------------------------------------------------------------------- facts

    def _fact(self, fact: events.Fact, now: float) -> None:
        match fact:
            case events.CheckpointRestored():
                self._restored(fact, now)
            case events.ScriptStarted():
                self._to(now, Kind.START)
                self.attempt, self._stage, self._done = fact.attempt, _Stage.STARTING, self.ledger.last
                self._started, self._spoke = now, False
            case events.StepsMeasured():
                self._steps(fact, now)
            case events.PhaseMeasured():
                self._phase(fact, now)
            case events.ShardHandedOver():
                self._handed_over(fact, now)
            case events.NoticeReceived() if fact.notice.level is NoticeLevel.WITHDRAWN:
                self._still_since = None
            case events.RanksObserved() if fact.ranks and self._stage is not _Stage.PREPARING:
                self._spoke, self._ranks = True, len(fact.ranks)
                if (step := min(rank.step for rank in fact.ranks)) > self.ledger.last:
                    self.ledger.see(step)
            case events.ScriptExited():
                self._end_script(now, fact.status)
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

    def _end_script(self, now: float, status: int | None = None) -> None:
        """The script ended, or is about to be ended because the run is released."""
        silent = not self._spoke or self.ledger.last <= self._done
        if self._stage is _Stage.STARTING and silent and status == 0:
            self._to(now, Kind.UNSEEN)
        self._begin(now)
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
        self._spoke = True
        # Some steps are in no window: the first, which has no beginning, and those that no agent looked at.
        count = max(fact.count, self._computed(fact.step, now))
        length_s = count * fact.mean_s
        self._running(now - length_s)
        self._extend(now)
        shares = self.ledger.split(fact.step - count + 1, fact.step)
        self._fill(length_s, shares, keep_s=fact.longest_s)
        self._done, self._mean_s = fact.step, fact.mean_s

    def _computed(self, last: int, now: float) -> int:
        """How many steps were computed from the last that was laid out up to `last`.

        A script may set its counter to where it resumed without us: what no time was there for was not computed.
        """
        most = self.pace.most(now - self._started)
        count = last - self._done
        return count if most is None or count <= _BELIEVED * (most + 1) else 1

    def _phase(self, fact: events.PhaseMeasured, now: float) -> None:
        self._spoke = True
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

    def _add(self, kind: Kind, begin: float, end: float, loss: int | None = None) -> None:
        if end > begin:
            self.spells.append(Spell(kind, WallTime(begin), WallTime(end), self.term, self.attempt, loss))

    def _handed_over(self, fact: events.ShardHandedOver, now: float) -> None:
        """A save's standstill; what lay before the first one was the script's start, or work that is told of later."""
        if self._stage is _Stage.STARTING:
            if fact.result:
                return  # it says nothing of steps
            since = now - fact.stall_s
            if since > self._front:
                self._held, self._front = (self._front, since), since
        self._spoke = True
        self._running(now - fact.stall_s)
        self._carve(now - fact.stall_s, now, Kind.SAVE)
        self.ledger.see(fact.step)

    def _release(self, worked_s: float, kind: Kind = Kind.COMPUTE, loss: int | None = None) -> None:
        """Assign what was held: so much at its end was work, the rest the start."""
        if self._held is not None:
            (begin, end), self._held = self._held, None
            middle = max(begin, end - max(worked_s, 0.0))
            self._add(Kind.START, begin, middle)
            self._add(kind, middle, end, loss)

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
        """Assign the script's open time up to `now`: steps seen since the last window first, the rest is `OTHER`."""
        mute = not self._spoke and now - self._started >= MUTE_S
        if self._stage is _Stage.STARTING and (mute or self.ledger.last > self._done):
            self._begin(now)
        self._extend(now)
        last = self.ledger.last
        if last > self._done and self._stage in (_Stage.RUNNING, _Stage.ENDED):
            count = self._computed(last, now)
            shares = self.ledger.split(last - count + 1, last)
            self._done = last
            self._fill(count * self._step_s, shares, keep_s=0.0)
        self._release(0.0)
        for begin, end in self._open:
            self._add(Kind.OTHER, begin, end)
        self._open = []

    @property
    def _step_s(self) -> float:
        return self._mean_s or self.pace.mean_s

    def _begin(self, now: float) -> None:
        """The script's start is over, at the latest before the steps that are known; one that never spoke has none."""
        if self._stage is _Stage.STARTING and not self._spoke and now - self._started >= MUTE_S:
            self._to(now, Kind.UNSEEN)
        more = max(0, self.ledger.last - self._done)
        self._running(now - more * self._step_s)

    def _missing(self, first: int, last: int, *, since: float, until: float) -> None:
        self._settle(since)
        self._to(until, Kind.UNKNOWN)
        rows = f"row {first}" if first == last else f"rows {first} to {last}"
        self.gaps.append(f"term {self.term}: {rows} of the journal never arrived; {until - since:.1f} s are not known")
