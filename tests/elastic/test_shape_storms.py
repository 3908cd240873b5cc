"""An elastic training in storms: no state is torn, and a step is redone only where it is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.elastic.planted_shapes import BUGS, planted
from tests.elastic.shape_storm import storm
from tests.support.checks import Violation
from windfall.errors import Misuse

QUICK, ALL, CAUGHT_WITHIN = 300, 10_000, 1000
HABITS = {
    "begin",
    "stop",
    "plan",
    "wait",
    "a message came late",
    "a coordinator followed",
    "machines joined",
    "machines were told to leave",
    "a machine left in time",
    "a notice was too short",
    "a notice was tight",
    "the layout is given up",
    "a machine vanished",
    "a machine was cut off",
    "a machine hung",
    "a connection broke",
    "a machine vanished in a migration",
    "a machine hung in a migration",
    "a whole stage vanished",
    "a reliable machine vanished",
    "nearly all vanished",
    "a loss was survived",
    "a stage was lost with all that had it",
    "all went to a checkpoint",
}


def storms(seeds: Iterable[int]) -> Counter[str]:
    """Run seeds and return what they visited."""
    visited: Counter[str] = Counter()
    for seed in seeds:
        visited += storm(seed)
    return visited


def test_storms_of_shapes_tear_no_state_and_redo_one_step_at_most() -> None:
    """At most one step without notice while a replica or the backup lives, none with notice in time; all faults are visited."""
    assert not HABITS - storms(range(QUICK)).keys()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_storms_of_shapes_tear_no_state() -> None:
    """The same over ten thousand seeds."""
    assert not HABITS - storms(range(ALL)).keys()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_of_shapes_is_caught(name: str) -> None:
    """Each breaks a promise within a thousand seeds."""

    def caught(seed: int) -> bool:
        try:
            storm(seed)
        except (Violation, Misuse, KeyError, AssertionError):
            # A layer, a machine or a step that the bug has lost.
            return True
        return False

    with planted(name):
        assert any(caught(seed) for seed in range(CAUGHT_WITHIN)), f"{name!r} went unnoticed"
