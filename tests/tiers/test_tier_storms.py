"""A parameter server in tiers in storms: nothing is lost or counts twice but what is rolled back, which is done again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.support.checks import Violation
from tests.tiers.planted_tiers import BUGS, planted
from tests.tiers.tier_storm import storm

QUICK, ALL, CAUGHT_WITHIN = 60, 10_000, 500
HABITS = {
    "a message came late",
    "a coordinator followed",
    "a coordinator met its successor's record",
    "machines joined",
    "machines were told to leave",
    "a machine is cut off",
    "a machine was lost in a move",
    "a machine was lost in a push",
    "all transient machines were lost",
    "a server is lost: all go back to clock",
    "a machine with backups is lost: all is restored from the checkpoint at clock",
    "data partition lost",
    "data partition goes to",
    "part moves to",
    "the checkpoint at clock is stored",
    "ReadRows was answered by Refused: moved",
    "PushRows was answered by Refused: moved",
}
RARE = {"TakeOverPart was answered by Refused: copy too old"}


def storms(seeds: Iterable[int]) -> Counter[str]:
    """Run seeds and return what they visited."""
    visited: Counter[str] = Counter()
    for seed in seeds:
        visited += storm(seed)
    return visited


def test_storms_of_tiers_lose_nothing_and_count_nothing_twice() -> None:
    """Bit for bit, with every bound; the storms have visited all that can happen."""
    assert not HABITS - storms(range(QUICK)).keys()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_storms_of_tiers_lose_nothing() -> None:
    """The same over ten thousand seeds."""
    assert not (HABITS | RARE) - storms(range(ALL)).keys()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_of_tiers_is_caught(name: str) -> None:
    """Each breaks a promise within a few hundred seeds."""

    def caught(seed: int) -> bool:
        try:
            storm(seed)
        except (Violation, KeyError, ValueError):
            # A clock or a machine that the bug has lost.
            return True
        return False

    with planted(name):
        assert any(caught(seed) for seed in range(CAUGHT_WITHIN)), f"{name!r} went unnoticed"
