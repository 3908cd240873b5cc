"""What the machines of a parameter server in tiers ask one another; each question may be asked again, and come late.

Of each question there is one answer that says all is well, or `Refused`.
"""

from __future__ import annotations

import enum

from windfall.runtimes.parameter_partition import (
    ClockChanges,
    PartHandOver,
    PushAnswer,
    PushId,
    Rows,
    RowValues,
    Values,
)
from windfall.structs import Struct


class ReadRows(Struct, frozen=True, eq=False):
    """A worker reads rows of a part, in a clock of its data partition; answered by `RowsRead`.

    Attributes:
        part: number of the part.
        reading: number that the worker gives it.
        term, clock: of the turn that reads.
        rows: which.
    """

    part: int
    reading: int
    term: int
    clock: int
    rows: Rows


class RowsRead(Struct, frozen=True, eq=False):
    """Values, one line for each row, and the newest clock of which they have all pushes."""

    values: Values
    clock: int


class PushRows(Struct, frozen=True, eq=False):
    """A worker pushes changes to a part; answered by `PushTaken`."""

    part: int
    push: PushId
    changes: RowValues


class SealPush(Struct, frozen=True):
    """A worker seals a push that every part has; answered by `PushTaken`."""

    part: int
    push: PushId


class PushTaken(Struct, frozen=True):
    """What the part says to a push, or to its seal."""

    answer: PushAnswer


class BackUpChanges(Struct, frozen=True, eq=False):
    """A server sends changes to the backup of a part; answered by `BackedUp`."""

    part: int
    changes: ClockChanges


class BackedUp(Struct, frozen=True):
    """The newest clock that the backup can go to, and its term."""

    term: int
    newest: int


class CopyPart(Struct, frozen=True):
    """The next server of a part, or the first one in a term, asks the backup for a copy; answered by `PartCopy`."""

    part: int
    term: int


class PartCopy(Struct, frozen=True, eq=False):
    """The values of a part at a clock that is committed."""

    term: int
    clock: int
    values: Values


class TakeOverPart(Struct, frozen=True):
    """The next server of a part asks for what a copy lacks; answered by `PartRest`, from when on the old one serves no more.

    Attributes:
        part: number of the part.
        term, move: as the layout has them.
        since: clock of the copy.
    """

    part: int
    term: int
    move: int
    since: int


class PartRest(Struct, frozen=True, eq=False):
    """What the copy lacks."""

    move: int
    since: int
    rest: PartHandOver


class RefusalReason(enum.StrEnum):
    """Why there is no other answer."""

    LATER = "later"
    """It is not there yet, or not any more: look at the newest layout, and ask again."""
    MOVED = "moved"
    """Another machine serves the part now."""
    COPY_TOO_OLD = "copy too old"
    """Changes since that clock are forgotten: take another copy."""


class Refused(Struct, frozen=True):
    """No other answer.

    Attributes:
        reason: why.
        serves: which machine does, if the part has moved.
        version: of the layout in which it moves.
    """

    reason: RefusalReason
    serves: str = ""
    version: int = 0


Question = ReadRows | PushRows | SealPush | BackUpChanges | CopyPart | TakeOverPart
Answer = RowsRead | PushTaken | BackedUp | PartCopy | PartRest | Refused
