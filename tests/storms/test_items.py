"""A bag in storms: each item counts once, under its newest lease, and the bag ends; bugs that would break this are caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.storms import planted_items
from tests.storms.items import storm
from tests.support.checks import Violation

QUICK, ALL, CAUGHT_WITHIN = 6, 2000, 100
HABITS = {
    "two dispatchers",
    "dispatcher killed",
    "dispatcher with turns of 5 s",
    "a record was there",
    "killed after it lost its record",
    "an older grant came last",
    "a state was damaged",
    "a state was lost",
    "killed after a state, before the next record",
    "machine lost",
    "notice",
    "killed discarded",
    "killed timed-out",
    "killed returned",
    "lease returned",
    "reduced again",
    "rows were added late",
    "sealed and over",
    "closed without its client",
    "preempted: run again",
    "preempted: run last",
    "preempted: discard",
    "revived",
    "ended by its metric",
    "preempted: restart smaller",
    "tried on fewer",
    "on fewer: failed",
    "beside a full machine",
    "stopped and done",
    "done though to be stopped",
    "lost though to be stopped",
    "hopeless and discarded",
}


def storms(seeds: Iterable[int]) -> Counter[str]:
    """Run seeds and return what they visited."""
    visited: Counter[str] = Counter()
    for seed in seeds:
        visited += storm(seed).tally
    return visited


def test_storms_of_bags_keep_every_promise() -> None:
    """Dispatchers, runners and machines that end at any moment lose no outcome and count none twice."""
    assert storms(range(QUICK))["outcome done"] > QUICK


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_thousand_storms_of_bags_keep_every_promise() -> None:
    """The same over two thousand seeds."""
    assert not HABITS - storms(range(ALL)).keys()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", planted_items.BUGS)
def test_a_planted_bug_of_bags_is_caught(name: str) -> None:
    """Each breaks a promise within sixty seeds."""

    def caught(seed: int) -> bool:
        try:
            storm(seed, name)
        except Violation:
            return True
        return False

    assert any(caught(seed) for seed in range(CAUGHT_WITHIN)), f"{name!r} went unnoticed"
