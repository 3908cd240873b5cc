"""One machine's workers of a parameter server in tiers, as step functions: nothing here waits, sends or computes.

Of each data partition that it holds, a worker does one clock after another: it reads rows of all parts, computes, pushes its
changes to all parts, and once all have them it seals them.  The program that computes asks `turns` what to compute, `read` for
rows, and gives the changes to `computed`; a turn that is not in `turns` any more is given up, because the data partition or
the whole state went elsewhere or back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from windfall.runtimes.parameter_partition import PushAnswer, PushId, Rows, RowValues, Values
from windfall.runtimes.tier_counts import TierCounts
from windfall.runtimes.tier_messages import (
    Answer,
    PushRows,
    PushTaken,
    Question,
    ReadRows,
    RefusalReason,
    Refused,
    RowsRead,
    SealPush,
)
from windfall.tier_layout import ServerLayout

TAKEN = frozenset({PushAnswer.KEPT, PushAnswer.REPEATED})


class _ClockTurn:
    """A clock of a data partition.

    Attributes:
        push: which push it ends with.
        started: something was read in it.
        reading: number of the newest read, so that a late answer to an earlier one is not taken for it.
        wanted: rows that are being read, by part.
        found: their values.
        oldest: clock of the oldest of them.
        changes: what is pushed, by part; None while it computes.
        loss: of what it computed with; None: unknown.
        kept, sealed: parts that have the push, and its seal.
    """

    def __init__(self, push: PushId) -> None:
        self.push = push
        self.started = False
        self.reading = 0
        self.wanted: dict[int, Rows] = {}
        self.found: dict[int, Values] = {}
        self.oldest = push.clock
        self.changes: Sequence[RowValues] | None = None
        self.loss: float | None = None
        self.kept: set[int] = set()
        self.sealed: set[int] = set()


class TierWorker:
    """The data partitions that a machine computes on.

    Args:
        machine: its name.
        layout: the newest that it has seen.
        clocks: training ends with this one.
        counts: where turns and reads are counted.

    Attributes:
        layout: the newest that it has seen.
    """

    def __init__(self, machine: str, layout: ServerLayout, clocks: int, counts: TierCounts) -> None:
        self.machine, self.layout, self.clocks, self.counts = machine, layout, clocks, counts
        self._turns: dict[int, _ClockTurn] = {}
        self._released: dict[int, tuple[int, int]] = {}
        self._serves: dict[int, tuple[int, str]] = {}
        self._loaded: set[int] = set()
        self._done: dict[int, int] = {}
        self._losses: dict[int, tuple[int, float]] = {}
        self._pushed: dict[int, int] = {}
        self._reads = 0
        self._conform_turns()

    # ------------------------------------------------------------------------------------------------ what the coordinator says

    def conform(self, layout: ServerLayout) -> None:
        """Begin and give up turns as a layout wants it; one that is not newer changes nothing."""
        if layout.version > self.layout.version:
            if layout.term > self.layout.term:
                self._done.clear()
                self._losses.clear()
            self.layout = layout
            self._serves.clear()
            self._conform_turns()

    def to_load(self) -> set[int]:
        """Return the data partitions whose data it needs, now or soon."""
        return {
            data
            for data, place in enumerate(self.layout.data)
            if data not in self._loaded and self.machine in {place.holder, place.next_holder}
        }

    def loaded(self, data: int) -> None:
        """Take in that the data of a data partition are here."""
        self._loaded.add(data)

    def loaded_data(self) -> frozenset[int]:
        """Return the data partitions whose data are here."""
        return frozenset(self._loaded)

    def released(self) -> dict[int, tuple[int, int]]:
        """Return each data partition that it has released: its number, and the last clock that is sealed."""
        return dict(self._released)

    def done(self) -> dict[int, int]:
        """Return, of each data partition that it has computed on in this term, the newest clock that is sealed."""
        return dict(self._done)

    def losses(self) -> dict[int, tuple[int, float]]:
        """Return the newest clock that is sealed of each data partition of `done`, with the loss of its batch, if known."""
        return dict(self._losses)

    # --------------------------------------------------------------------------------------------------- what the program does

    def turns(self) -> list[PushId]:
        """Return what is to be computed: the next push of data partitions that are here."""
        return [turn.push for data, turn in self._turns.items() if data in self._loaded and turn.changes is None]

    def read(self, push: PushId, rows: Sequence[Rows]) -> list[Values] | None:
        """Return the values of rows of all parts; None: not all are here yet, or the turn is given up: ask again."""
        turn = self._turn(push)
        if turn is None or turn.changes is not None:
            return None
        if not turn.wanted:
            self._reads += 1
            turn.started, turn.reading = True, self._reads
            turn.wanted, turn.found, turn.oldest = dict(enumerate(rows)), {}, push.clock
        if turn.wanted.keys() > turn.found.keys():
            return None
        found = [turn.found[part] for part in range(len(rows))]
        turn.wanted, turn.found = {}, {}
        self.counts.read(push.clock - 1 - turn.oldest)
        return found

    def computed(self, push: PushId, changes: Sequence[RowValues], loss: float | None = None) -> None:
        """Take what a turn has computed, for each part; of one that was given up it counts nowhere.

        Args:
            push: which turn.
            changes: what it pushes, by part.
            loss: of its batch; None, or what is not finite: unknown.
        """
        turn = self._turn(push)
        if turn is not None and turn.changes is None:
            turn.changes = changes
            turn.loss = loss if loss is not None and math.isfinite(loss) else None
            before = max(self._pushed.get(push.data, 0), self.layout.data[push.data].done_before)
            self.counts.add(redone=push.clock <= before)
            self._pushed[push.data] = max(push.clock, before)

    # ----------------------------------------------------------------------------------------------------- what it asks servers

    def questions(self) -> list[tuple[str, Question]]:
        """Return what it asks, and which machine."""
        return [
            (self._server(question.part)[1], question)
            for turn in self._turns.values()
            for question in self._of_turn(turn)
        ]

    def take(self, question: Question, answer: Answer) -> None:
        """Take in the answer to a question that it asked."""
        if isinstance(answer, Refused):
            # An older answer would name a machine that serves the part no more, or is lost by now.
            if answer.reason is RefusalReason.MOVED and answer.version >= self._server(question.part)[0]:
                self._serves[question.part] = (answer.version, answer.serves)
        elif isinstance(question, ReadRows) and isinstance(answer, RowsRead):
            self._found(question, answer)
        elif isinstance(question, (PushRows, SealPush)) and isinstance(answer, PushTaken):
            turn = self._turn(question.push)
            if turn is not None and answer.answer in TAKEN:
                (turn.kept if isinstance(question, PushRows) else turn.sealed).add(question.part)
                self._end(turn)

    # ------------------------------------------------------------------------------------------------------------------- inside

    def _server(self, part: int) -> tuple[int, str]:
        """Return which machine serves a part, and the version of the layout by which that is known."""
        return self._serves.get(part, (self.layout.version, self.layout.parts[part].active))

    def _conform_turns(self) -> None:
        for data, place in enumerate(self.layout.data):
            turn = self._turns.get(data)
            stands = turn is not None and (turn.push.holder, turn.push.term) == (place.number, self.layout.term)
            if place.holder != self.machine or place.fenced:
                self._give_up(data)
            elif not stands and self._released.get(data, (-1, 0))[0] != place.number:
                self._give_up(data)
                self._begin(data, place.start)
            if place.releasing and data in self._turns and not self._turns[data].started:
                self._release(self._turns[data])

    def _give_up(self, data: int) -> None:
        turn = self._turns.pop(data, None)
        self.counts.add(given_up=turn is not None and turn.started)

    def _begin(self, data: int, clock: int) -> None:
        number = self.layout.data[data].number
        if clock <= self.clocks:
            self._turns[data] = _ClockTurn(PushId(data, clock, number, self.layout.term))
        else:
            self._released[data] = (number, clock - 1)

    def _turn(self, push: PushId) -> _ClockTurn | None:
        turn = self._turns.get(push.data)
        return turn if turn is not None and turn.push == push else None

    def _of_turn(self, turn: _ClockTurn) -> list[ReadRows | PushRows | SealPush]:
        push, parts = turn.push, range(len(self.layout.parts))
        if turn.changes is None:
            waiting = turn.wanted.keys() - turn.found.keys()
            return [ReadRows(part, turn.reading, push.term, push.clock, turn.wanted[part]) for part in sorted(waiting)]
        if len(turn.kept) < len(parts):
            return [PushRows(part, push, turn.changes[part]) for part in parts if part not in turn.kept]
        return [SealPush(part, push) for part in parts if part not in turn.sealed]

    def _found(self, question: ReadRows, answer: RowsRead) -> None:
        for turn in self._turns.values():
            if turn.reading == question.reading and question.part in turn.wanted:
                turn.found.setdefault(question.part, answer.values)
                turn.oldest = min(turn.oldest, answer.clock)

    def _end(self, turn: _ClockTurn) -> None:
        """Begin the next clock if all parts have sealed this one, or release the data partition."""
        if len(turn.sealed) < len(self.layout.parts):
            return
        data, clock = turn.push.data, turn.push.clock
        del self._turns[data]
        self._done[data] = clock
        if turn.loss is not None:
            self._losses[data] = (clock, turn.loss)
        self.counts.add(turns=1)
        if self.layout.data[data].releasing:
            self._released[data] = (turn.push.holder, clock)
        else:
            self._begin(data, clock + 1)

    def _release(self, turn: _ClockTurn) -> None:
        self._released[turn.push.data] = (turn.push.holder, turn.push.clock - 1)
        del self._turns[turn.push.data]
