"""However contenders race for a run, one holder per term writes, nothing committed is lost, and one contender finishes."""

from __future__ import annotations

import pytest

from tests.storms import planted
from tests.storms.takeover import Violation, race
from windfall.terms import RecordKind

QUICK = 150
ALL = 1000
CAUGHT_WITHIN = 200


def run_races(seeds: range) -> tuple[int, int]:
    """Return how many operations and how many takes the races had."""
    races = [race(seed) for seed in seeds]
    takes = sum(record.kind is RecordKind.ACQUIRE for one in races for record in one.records)
    return sum(one.world.operations for one in races), takes


def test_races_keep_every_promise() -> None:
    """Two to five contenders under lost and doubled replies, pauses, deaths and clock jumps keep the law of the store."""
    operations, takes = run_races(range(QUICK))
    print(f"{QUICK} races, {operations} store operations, {takes} takes")
    assert takes > QUICK, "most races must see the run change hands, or they prove nothing"


@pytest.mark.slow
def test_a_thousand_races_keep_every_promise() -> None:
    """The same over a thousand seeds."""
    operations, takes = run_races(range(QUICK, ALL))
    print(f"{ALL - QUICK} races, {operations} store operations, {takes} takes")
    assert takes > ALL - QUICK


def violation(seed: int, name: str) -> str | None:
    """Return what a race with a planted bug says, None if it goes unnoticed."""
    try:
        race(seed, name)
    except Violation as found:
        return str(found)
    return None


@pytest.mark.parametrize("name", sorted(planted.BUGS))
def test_a_planted_bug_is_caught(name: str) -> None:
    """Each bug that a take-over must not have breaks a promise within two hundred seeds, and says how to replay it."""
    caught = next((words for seed in range(CAUGHT_WITHIN) if (words := violation(seed, name))), None)
    assert caught is not None, f"{name!r} went unnoticed in {CAUGHT_WITHIN} races"
    assert f"--bug '{name}'" in caught


def test_the_same_seed_is_the_same_race() -> None:
    """A race is replayed by its seed alone, record by record."""
    first, second = race(11), race(11)
    assert first.records == second.records
    assert first.world.operations == second.world.operations
