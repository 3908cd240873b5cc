"""What to do when machines are to leave, by how long they still are there: Parcae's rule inside a notice.

A planned change begins at the end of the step under way and takes as long as changes of its kind took: their 90th percentile
counts.  If that fits into what is left of the notice, the change is made: nothing is redone.  Else the pipelines of machines
that leave are dropped: a change without state to move, if that still fits; if it does not, the layout is given up at once, and
all continue from a step that the others and the backup hold: at most one step is redone.

Source: Parcae (NSDI 2024).
"""

from __future__ import annotations

import enum

from windfall.models.shapes import IDLE, Shape
from windfall.structs import Struct


class NoticeAnswer(enum.Enum):
    """What is done about machines that are to leave."""

    MIGRATE = "migrate"
    DROP = "drop"
    GIVE_UP = "give up"


class NoticeTimes(Struct, frozen=True):
    """What is known when machines are to leave.

    Attributes:
        left_s: until the first of them ends; None: not known [s].
        step_s: of a step [s].
        change_s: 90th percentile of the change that is wanted; None: nothing was measured [s].
        dropped: the shape without the pipelines that they train in; `IDLE` if no pipeline is left, or none is allowed.
        dropped_s: the same percentile of the change to it [s].
    """

    left_s: float | None
    step_s: float
    change_s: float | None
    dropped: Shape = IDLE
    dropped_s: float | None = None


def notice_answer(times: NoticeTimes) -> NoticeAnswer:
    """Return what is done.

    Example:
        10 s are left and a step takes 1 s: a change of at most 9 s is made.
    """
    if times.left_s is None or times.change_s is None or times.step_s + times.change_s <= times.left_s:
        return NoticeAnswer.MIGRATE
    fits = times.dropped_s is not None and times.step_s + times.dropped_s <= times.left_s
    return NoticeAnswer.DROP if fits and times.dropped != IDLE else NoticeAnswer.GIVE_UP
