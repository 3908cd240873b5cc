"""When the backup of an elastic training saves its state."""

from __future__ import annotations

from windfall.policies.shapes.spill_rule import spill_is_due


def test_spills_take_little_of_the_backups_time() -> None:
    """Every minute; one that takes 10 s is followed by the next after 200 s."""
    assert [spill_is_due(since_s, 1.0) for since_s in (59.0, 60.0)] == [False, True]
    assert [spill_is_due(since_s, 10.0) for since_s in (199.0, 200.0)] == [False, True]
