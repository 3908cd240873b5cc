"""The parts of a parameter server in storms: no push is lost or counts twice, but those rolled back, which are done again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.storms.partitions import storm
from tests.storms.planted_partitions import BUGS, planted
from tests.support.checks import Violation

QUICK, ALL, CAUGHT_WITHIN = 150, 10_000, 100
HABITS = {
    "a message came late",
    "waited for the slowest",
    "some servers were lost",
    "all servers were lost",
    "clocks were done again",
    "a worker was lost while it pushed",
    "a worker was lost while it sealed",
    "a part moved",
}


def storms(seeds: Iterable[int]) -> Counter[str]:
    """Run seeds and return what they visited."""
    visited: Counter[str] = Counter()
    for seed in seeds:
        visited += storm(seed)
    return visited


def test_storms_of_a_parameter_server_lose_nothing_and_count_nothing_twice() -> None:
    """Bit for bit, with every bound; the storms have visited all that can happen."""
    assert not HABITS - storms(range(QUICK)).keys()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_storms_of_a_parameter_server_lose_nothing() -> None:
    """The same over ten thousand seeds."""
    assert not HABITS - storms(range(ALL)).keys()


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_of_a_parameter_server_is_caught(name: str) -> None:
    """Each breaks a promise within a hundred seeds."""

    def caught(seed: int) -> bool:
        try:
            storm(seed)
        except (Violation, KeyError):
            # A key error: a part is asked for a clock that the bug has lost.
            return True
        return False

    with planted(name):
        assert any(caught(seed) for seed in range(CAUGHT_WITHIN)), f"{name!r} went unnoticed"
