"""One part of a parameter server's state: what workers have pushed, which clocks are complete, and how it rolls back.

The data are split into a fixed number of data partitions; in each clock the worker that holds one reads rows, computes, and
pushes its changes to every part of the state.  A push is open until its worker has had an answer from every part; then it seals
it.  So of a worker that is lost in between, either every part keeps a push (one of them has it sealed, so all have it), or
every part drops it (`fence`, `resolve`).

A clock is complete once every data partition has sealed it.  Its changes are then added to the values in the order of the data
partitions, not in that in which they came: with bound 0, which reads complete clocks alone, training is bit for bit that of one
process.

**Rolling back.**  The part keeps, of each complete clock since the last common one, which rows it changed and what they were
before.  That gives the changes between any two clocks, which are what a backup is sent, and takes the values back exactly; the
paper subtracts the sum of the changes, which floating point does not undo.

**Who may push.**  A push carries the term of the last roll-back, and how often its data partition has changed hands; those of
an older term or holder are refused, whenever they arrive.

Source: Proteus (EuroSys 2017), section 3.3 and its footnote 6: the consistent state "corresponds to the latest common iteration
and reflects all updates up to that iteration and no updates afterwards".
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.structs import Struct

Rows = NDArray[np.int64]
Values = NDArray[np.float32] | NDArray[np.float64]


class PushId(Struct, frozen=True):
    """Which push it is.

    Attributes:
        data: data partition that it is of.
        clock: from 1.
        holder: how often the data partition has changed hands.
        term: of the last roll-back that the worker knows.
    """

    data: int
    clock: int
    holder: int
    term: int


class PushAnswer(enum.StrEnum):
    """What a part says to a push, or to its seal."""

    KEPT = "kept"
    REPEATED = "repeated"
    """It is here already; the answer was lost."""
    STALE = "stale"
    """Of an older term or holder: it counts nowhere, and must not be sent again."""
    EARLY = "early"
    """What must come before it is not here yet: send it again later."""


class RowValues(Struct, frozen=True, eq=False):
    """Rows and their values, or changes.

    Attributes:
        rows: numbers of rows, ascending, each once.
        values: one line for each of them, shape (rows, width).
    """

    rows: Rows
    values: Values


class ClockChanges(Struct, frozen=True, eq=False):
    """What rows are at a clock that had changed since another one.

    Attributes:
        term: of the last roll-back.
        since, clock: a part that is as at `since`, or later, is as at `clock` with these rows.
        changed: the rows.
    """

    term: int
    since: int
    clock: int
    changed: RowValues


class PartHandOver(Struct, frozen=True, eq=False):
    """What a new owner of a part needs beside a copy of its values at an earlier clock.

    Attributes:
        changes: since the copy.
        oldest: clock to which it can go back.
        fresh_reads, term, sealed, holders, opened, waiting, before: the state of the old owner.
    """

    changes: ClockChanges
    oldest: int
    fresh_reads: bool
    term: int
    sealed: tuple[int, ...]
    holders: tuple[int, ...]
    opened: dict[int, RowValues]
    waiting: dict[int, dict[int, RowValues]]
    before: dict[int, RowValues]


class ParameterPartition:
    """A part of the state as its server has it.

    Args:
        values: of its rows at a clock, shape (rows, width); they are copied.
        holders: how often each data partition has changed hands.
        fresh_reads: whether reads see sealed pushes of clocks that are not complete; with bound 0 they must not.
        clock, term: of the values.

    Attributes:
        clock: the newest that is complete.
        term: of the last roll-back.
        oldest: clock to which it can go back.
    """

    def __init__(
        self, values: Values, holders: Sequence[int], *, fresh_reads: bool, clock: int = 0, term: int = 0
    ) -> None:
        self.clock, self.term, self.oldest = clock, term, clock
        self._values = values.copy()
        self._fresh = values.copy() if fresh_reads else None
        self._sealed = [clock] * len(holders)
        self._holders = list(holders)
        self._opened: dict[int, RowValues] = {}
        self._waiting: dict[int, dict[int, RowValues]] = {}
        self._before: dict[int, RowValues] = {}

    # -------------------------------------------------------------------------------------------------------- what workers do

    def may_read(self, clock: int, bound: int | None) -> bool:
        """Return whether a worker in this clock may read: no data partition is more than `bound` clocks behind; None: any."""
        return bound is None or clock - 1 - bound <= self.clock

    def read(self, rows: Rows) -> Values:
        """Return the values of rows, a copy."""
        return _rows_of(self._values if self._fresh is None else self._fresh, rows)

    def push(self, push: PushId, changes: RowValues) -> PushAnswer:
        """Keep the changes of a data partition in a clock, open.

        Raises:
            Misuse: rows are outside the table, not ascending or named twice, or a value is not finite.
        """
        known = self._place(push)
        if known is not None:
            return known
        if push.data in self._opened:
            return PushAnswer.REPEATED
        self._check(push, changes)
        self._opened[push.data] = changes
        return PushAnswer.KEPT

    def seal(self, push: PushId) -> PushAnswer:
        """Count a push that every part has kept."""
        known = self._place(push)
        if known is not None:
            return known
        if push.data not in self._opened:
            return PushAnswer.EARLY
        self._seal(push.data)
        return PushAnswer.KEPT

    # ----------------------------------------------------------------------------------------------- what the coordinator does

    def fence(self, data: int, holder: int) -> int:
        """Refuse the pushes of all holders of a data partition before this one; return the clock up to which it is sealed."""
        self._holders[data] = max(self._holders[data], holder)
        return self._sealed[data]

    def resolve(self, data: int, clock: int) -> None:
        """Seal the open push of a fenced data partition if some part has sealed this clock, which it is of; else drop it."""
        if data in self._opened and self._sealed[data] < clock:
            self._seal(data)
        self._opened.pop(data, None)

    def changes(self, since: int, until: int) -> ClockChanges:
        """Return what has changed between two complete clocks that are not forgotten."""
        rows = union([self._before[clock].rows for clock in range(since + 1, until + 1)])
        return ClockChanges(self.term, since, until, RowValues(rows, self._values_at(rows, until)))

    def forget(self, clock: int) -> None:
        """Keep nothing for a roll-back to before this clock."""
        self.oldest = max(self.oldest, clock)
        self._before = {one: kept for one, kept in self._before.items() if one > self.oldest}

    def holder(self, data: int) -> int:
        """Return how often a data partition has changed hands, as far as this part has heard."""
        return self._holders[data]

    def roll_back(self, clock: int, term: int) -> None:
        """Go back to a clock that is not forgotten; pushes of an older term are refused from now on."""
        rows = union([kept.rows for one, kept in self._before.items() if one > clock])
        self._values[rows] = self._values_at(rows, clock)
        self._before = {one: kept for one, kept in self._before.items() if one <= clock}
        self.clock, self.term = clock, term
        self._sealed = [clock] * len(self._sealed)
        self._opened.clear()
        self._waiting.clear()
        if self._fresh is not None:
            self._fresh = self._values.copy()

    def hand_over(self, since: int) -> PartHandOver:
        """Return what a new owner needs beside a copy at `since`, a clock that is not forgotten."""
        return PartHandOver(
            self.changes(since, self.clock),
            self.oldest,
            self._fresh is not None,
            self.term,
            tuple(self._sealed),
            tuple(self._holders),
            self._opened,
            self._waiting,
            self._before,
        )

    @classmethod
    def taken_over(cls, copy: Values, hand_over: PartHandOver) -> ParameterPartition:
        """Return a part as its old owner had it, from a copy at `hand_over.changes.since`."""
        part = cls(copy, hand_over.holders, fresh_reads=hand_over.fresh_reads)
        part.clock, part.term, part.oldest = hand_over.changes.clock, hand_over.term, hand_over.oldest
        part._values[hand_over.changes.changed.rows] = hand_over.changes.changed.values
        part._sealed = list(hand_over.sealed)
        part._opened, part._before = dict(hand_over.opened), dict(hand_over.before)
        part._waiting = {clock: dict(pushes) for clock, pushes in hand_over.waiting.items()}
        if part._fresh is not None:
            part._fresh = part._values.copy()
            for _, pushes in sorted(part._waiting.items()):
                for pushed in pushes.values():
                    _add(part._fresh, pushed)
        return part

    # ------------------------------------------------------------------------------------------------------------------ inside

    def _place(self, push: PushId) -> PushAnswer | None:
        """Return the answer to a push that is not the next one of its data partition; None to the next one."""
        if push.term < self.term or (push.term == self.term and push.holder < self._holders[push.data]):
            return PushAnswer.STALE
        if push.term > self.term or push.holder > self._holders[push.data] or push.clock > self._sealed[push.data] + 1:
            return PushAnswer.EARLY
        return PushAnswer.REPEATED if push.clock <= self._sealed[push.data] else None

    def _check(self, push: PushId, changes: RowValues) -> None:
        name, rows = f"the push of data partition {push.data} in clock {push.clock}", changes.rows
        if len(rows) and (rows[0] < 0 or rows[-1] >= len(self._values)):
            raise Misuse(
                f"{name} has row {rows[-1] if rows[0] >= 0 else rows[0]}: rows are 0 to {len(self._values) - 1} here"
            )
        if np.any(np.diff(rows) <= 0):
            raise Misuse(f"{name} has rows that do not ascend, or come twice: add up the changes of a row")
        if changes.values.shape != (len(rows), self._values.shape[1]):
            wanted = (len(rows), self._values.shape[1])
            raise Misuse(f"{name} has changes of shape {changes.values.shape}: {wanted} is needed, a line for each row")
        finite = np.isfinite(changes.values)
        if not finite.all():
            bad = rows[~finite.all(axis=1)][0]
            raise Misuse(f"{name} has a change of row {bad} that is not finite: it would spoil the whole model")

    def _seal(self, data: int) -> None:
        pushed = self._opened.pop(data)
        self._sealed[data] += 1
        self._waiting.setdefault(self._sealed[data], {})[data] = pushed
        if self._fresh is not None:
            _add(self._fresh, pushed)
        while min(self._sealed) > self.clock:
            self._complete()

    def _complete(self) -> None:
        self.clock += 1
        pushes = self._waiting.pop(self.clock)
        rows = union([pushed.rows for pushed in pushes.values()])
        self._before[self.clock] = RowValues(rows, _rows_of(self._values, rows))
        for _, pushed in sorted(pushes.items()):
            _add(self._values, pushed)
        if self._fresh is not None:
            self._refresh(rows)

    def _refresh(self, rows: Rows) -> None:
        """Build what reads see of rows from the values again: by the order of sums it would drift away from them."""
        assert self._fresh is not None
        self._fresh[_place(self._fresh, rows)] = self._values[_place(self._values, rows)]
        for _, pushes in sorted(self._waiting.items()):
            for pushed in pushes.values():
                if len(rows) == len(self._values):
                    _add(self._fresh, pushed)
                    continue
                among = np.isin(pushed.rows, rows, assume_unique=True)
                self._fresh[pushed.rows[among]] += pushed.values[among]

    def _values_at(self, rows: Rows, clock: int) -> Values:
        """Return the values of rows as they were at a complete clock that is not forgotten."""
        found = _rows_of(self._values, rows)
        for later in range(self.clock, clock, -1):
            kept = self._before[later]
            if len(kept.rows) == len(rows) == len(self._values):
                found = kept.values.copy()
                continue
            _, ours, theirs = np.intersect1d(rows, kept.rows, assume_unique=True, return_indices=True)
            found[ours] = kept.values[theirs]
        return found


class BackupPartition:
    """A part of the state on a reliable machine: the values at the last common clock, and changes up to later ones.

    Args:
        values: at a clock, shape (rows, width); they are copied.
        clock, term: of the values.
    """

    def __init__(self, values: Values, clock: int = 0, term: int = 0) -> None:
        self.clock, self.term = clock, term
        self._values = values.copy()
        self._later: dict[int, RowValues] = {}

    @property
    def newest(self) -> int:
        """The newest clock that it can go to."""
        return max(self._later, default=self.clock)

    @property
    def clocks(self) -> frozenset[int]:
        """All clocks that it can go to."""
        return frozenset({self.clock, *self._later})

    def take(self, changes: ClockChanges) -> bool:
        """Keep changes; return whether it has that clock: not those of an older term, or with a gap before them."""
        if changes.term != self.term or changes.since > self.newest:
            return False
        if changes.clock > self.newest:
            self._later[changes.clock] = changes.changed
        return changes.clock in self.clocks

    def go_to(self, clock: int) -> None:
        """Take the changes up to a clock of `clocks` into the values: all backups have it, and none goes back before it."""
        for one in sorted(self._later):
            if one <= clock:
                changed = self._later.pop(one)
                self._values[_place(self._values, changed.rows)] = changed.values
        self.clock = clock

    def roll_back(self, clock: int, term: int) -> None:
        """Be as at a clock of `clocks`; changes of an older term are refused from now on."""
        self.go_to(clock)
        self._later.clear()
        self.term = term

    def copy(self) -> Values:
        """Return the values at `clock`."""
        return self._values.copy()


def union(rows: Sequence[Rows]) -> Rows:
    """Return which rows are in any of some, each ascending; they ascend, each once."""
    some = [one for one in rows if len(one)]
    if not some:
        return np.empty(0, np.int64)
    most = max(some, key=len)
    first, last = most[0], most[-1]
    if last - first + 1 == len(most) and all(first <= one[0] and one[-1] <= last for one in some):
        return most
    # numpy's own `unique` takes far longer, since it does not see that they ascend already.
    merged: Rows = np.sort(np.concatenate(some), kind="stable")
    found: Rows = merged[np.diff(merged, prepend=merged[:1] - 1) != 0]
    return found


def _place(values: Values, rows: Rows) -> Rows | slice:
    """Return where rows are; a slice if they are all, which takes one pass where a list of rows takes three."""
    return slice(None) if len(rows) == len(values) else rows


def _rows_of(values: Values, rows: Rows) -> Values:
    """Return a copy of the values of rows."""
    return values.copy() if len(rows) == len(values) else values[rows]


def _add(values: Values, pushed: RowValues) -> None:
    """Add a push to values."""
    if len(pushed.rows) == len(values):
        values += pushed.values
    else:
        values[pushed.rows] += pushed.values
