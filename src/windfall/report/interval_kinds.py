"""The kinds of intervals that a run's time is divided into."""

from __future__ import annotations

import enum

from windfall.structs import Struct
from windfall.terms import Seconds, Term, WallTime


class Kind(enum.StrEnum):
    """What an interval of a run's time was spent on."""

    COMPUTE = "compute"
    """Steps computed for the first time."""
    REDO = "redo"
    """Steps computed again, because their results were lost."""
    SAVE = "save"
    """The script was blocked while it wrote a checkpoint; uploads in the background do not count."""
    RESTORE = "restore"
    """The newest whole checkpoint was fetched and verified."""
    START = "start"
    """Everything else before the first step: acquiring the run, imports, loading."""
    OTHER = "other"
    """Inside the script but not in a finished step: evaluation, compilation, waiting for data, a step cut short."""
    UNSEEN = "unseen"
    """The script ran and reported no steps: training of unknown progress."""
    FINISH = "finish"
    """After the script's end: the last uploads, the last commit, the release."""
    WAITING = "waiting"
    """No machine held the run."""
    UNKNOWN = "unknown"
    """A machine held the run, or may have, and the rows about it never arrived."""


class Interval(Struct, frozen=True):
    """A stretch of time of one kind.

    Attributes:
        loss: for `REDO`, number of the loss (from 0) that made it necessary; for `COMPUTE`, number of the loss whose
            attempt may have computed these steps already.
        certain: whether a machine is known to have held the run; False between its last sign of life and the latest
            moment at which it can have ended.
    """

    kind: Kind
    start: WallTime
    end: WallTime
    term: Term
    attempt: int
    loss: int | None = None
    certain: bool = True

    @property
    def duration_s(self) -> Seconds:
        """Its length [s]."""
        return Seconds(self.end - self.start)
