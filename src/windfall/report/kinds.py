"""What a stretch of a run's time can have been spent on."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from windfall.terms import Seconds, Term, WallTime


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
    UNSEEN = "unseen"
    """The script ran and told nothing of its steps: training of unknown progress."""
    FINISH = "finish"
    """After the script's end: the last uploads, the last commit, the release."""
    WAITING = "waiting"
    """No machine held the run."""
    UNKNOWN = "unknown"
    """A machine held the run, or may have, and the rows that would say what it did never arrived."""


@dataclass(frozen=True, slots=True)
class Spell:
    """A stretch of one kind.

    Attributes:
        loss: numbers the loss (from 0) that made a `REDO` necessary; of a `COMPUTE`, the loss whose attempt may have
            computed these steps already.
        certain: whether a machine is known to have held the run; False between its last sign of life and the moment
            by which it was gone.
    """

    kind: Kind
    begin: WallTime
    end: WallTime
    term: Term
    attempt: int
    loss: int | None = None
    certain: bool = True

    @property
    def duration_s(self) -> Seconds:
        """The spell's length [s]."""
        return Seconds(self.end - self.begin)
