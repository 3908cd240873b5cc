"""What is checked of stored values beyond their types."""

from __future__ import annotations

import pytest

from windfall.storage.store_checks import is_wall_time

YEAR_S = 365.25 * 86400.0


@pytest.mark.parametrize(
    ("year", "can_be"), [(1940, True), (2026, True), (3000, True), (-9000, False), (99_000, False)]
)
def test_a_time_is_one_that_a_calendar_shows(year: int, can_be: bool) -> None:
    """A clock may be wrong by decades; a time that no calendar has is no time of a run."""
    assert is_wall_time((year - 1970) * YEAR_S) is can_be
