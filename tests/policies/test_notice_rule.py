"""What is done inside a notice, by what is left of it and how long changes took."""

from __future__ import annotations

import pytest

from windfall.models.shapes import IDLE, Shape
from windfall.policies.shapes.notice_rule import NoticeAnswer, NoticeTimes, notice_answer

MIGRATE, DROP, GIVE_UP = NoticeAnswer.MIGRATE, NoticeAnswer.DROP, NoticeAnswer.GIVE_UP
DROPPED = Shape(1, 2)


@pytest.mark.parametrize(
    ("left_s", "change_s", "dropped", "dropped_s", "answer"),
    [
        (10.0, 9.0, DROPPED, 1.0, MIGRATE),
        (9.9, 9.0, DROPPED, 1.0, DROP),
        (2.0, 9.0, DROPPED, 1.0, DROP),
        (1.9, 9.0, DROPPED, 1.0, GIVE_UP),
        (9.9, 9.0, IDLE, 1.0, GIVE_UP),
        (9.9, 9.0, DROPPED, None, GIVE_UP),
        (-1.0, 0.1, DROPPED, 0.1, GIVE_UP),
        (None, 9.0, DROPPED, 1.0, MIGRATE),
        (0.1, None, DROPPED, None, MIGRATE),
    ],
)
def test_what_fits_into_the_notice_is_done(
    left_s: float | None, change_s: float | None, dropped: Shape, dropped_s: float | None, answer: NoticeAnswer
) -> None:
    """A step of one second, then the change; to drop pipelines takes less; what is not known is tried."""
    assert notice_answer(NoticeTimes(left_s, 1.0, change_s, dropped, dropped_s)) is answer
