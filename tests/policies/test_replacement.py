"""When the successor of an announced machine is bought."""

from __future__ import annotations

import pytest

from windfall.policies.replacement import successor


def test_a_short_notice_is_never_waited_on() -> None:
    """AWS' 120 s, Azure's 30 s (thesis, section 4.2): bought at once, whatever a replacement takes."""
    for notice_s in (30.0, 120.0, 300.0):
        assert successor.order_at(1000.0 + notice_s, successor.expect(1.0, 1.0, 1.0)) <= 1000.0


def test_a_long_notice_is_used() -> None:
    """An hour's notice, a replacement of 200 s: bought three times that before the end."""
    expected = successor.expect(None, 140.0, 60.0)
    assert successor.order_at(3600.0, expected) == 3000.0


def test_what_was_seen_counts_more_than_what_was_said() -> None:
    """But an allocation is never expected to be faster than the offer says."""
    assert successor.expect(20.0, None, None).allocation_s == 20.0
    assert successor.expect(20.0, 50.0, 10.0).total_s == 60.0
    assert successor.expect(20.0, 5.0, 10.0).total_s == 30.0
    assert successor.expect(None, None, None).total_s == 120.0


def test_the_decision_says_what_was_compared() -> None:
    """Notice left, allocation, boot."""
    rationale = successor.rationale(2, 100.0, successor.expect(20.0, None, 30.0))
    assert {item.name: item.value for item in rationale} == pytest.approx(
        {"machines announced": 2, "notice left": 100.0, "expected allocation": 20.0, "expected boot": 30.0}
    )
