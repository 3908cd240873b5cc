"""Whatever happens to controllers, machines, market and messages, a job buys no machine too many and ends, paid to the cent."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.storms import fleet_scene, planted_fleet
from tests.storms.fleet import storm
from tests.storms.fleet_scene import FleetScene, draw
from tests.support.checks import Violation
from windfall.market import BillingBasis, BillingRule
from windfall.structs import replace

QUICK = 150
ALL = 2000
BILLED_QUICK, BILLED_ALL = 40, 400
CAUGHT_WITHIN = 200
QUICK_BUGS = (
    "token dropped",
    "hint buys",
    "intent journaled after the call",
    "charge counted twice",
    "charge falsified",
    "schedule of an earlier term followed",
    "schedule followed beyond its end",
)
VISITED = (
    *("order unanswered", "order reply lost", "order doubled", "order carried out late", "order unreachable"),
    *("partial allocation", "no capacity", "credentials refused", "provider out", "machine failed"),
    *(
        f"fate {fate}"
        for fate in ("vanish", "honest", "early", "never", "withdrawn", "hint", "zombie", "unacknowledged")
    ),
    *("direct cut", "mailbox cut", "direct message lost", "mailbox message lost", "store out", "database out"),
    *("controller killed", "killed at append", "killed at order", "controller paused", "controller replaced"),
    *("recovered", "clock jump", "outage 3600", "append reply lost", "turn failed"),
    *("restarts with a snapshot", "snapshot cut off"),
    *("stale listing", "charges told twice", "zombie released", "bought before the old one was gone"),
    *(
        "taken at once: its holder's machine is gone",
        "generation broken",
        "JobStopRequested",
        "JobResumeRequested",
        "dead man",
    ),
    *("report on direct", "report on mailbox", "told over-budget", "told waiting", "agent died"),
    *("ended done", "ended failed", "ended stopped"),
)
"""What storms must have been through, or they prove nothing."""


SCHEDULES_VISITED = (
    *("schedule made", "schedule journaled", "schedule journaled again", "schedule late", "schedule failed"),
    *("schedule given", "schedule of another term", "schedule followed"),
    *("estimates late", "estimates repeated", "estimates lost"),
)


def scheduled(count: int) -> list[int]:
    """The first seeds in which full machines save by schedules."""
    found = (seed for seed in itertools.count() if (scene := draw(seed)).scheduled and scene.whole)
    return list(itertools.islice(found, count))


def storms(seeds: Iterable[int]) -> Counter[str]:
    """Run seeds and return what they visited."""
    visited: Counter[str] = Counter()
    for seed in seeds:
        visited += storm(seed).tally
    return visited


@pytest.mark.timeout(600)
def test_fleet_storms_keep_every_promise() -> None:
    """No machine too many, no stale controller, nothing left behind, the meter's bill: under every fault at once."""
    visited = storms(range(QUICK))
    print(f"{QUICK} storms, {visited['bought']} orders, {visited['machine started']} machines")
    assert [what for what in VISITED if not visited[what]] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_thousand_fleet_storms_keep_every_promise() -> None:
    """The same over two thousand seeds."""
    visited = storms(range(QUICK, ALL))
    print(f"{ALL - QUICK} storms, {visited['bought']} orders, {visited['machine started']} machines")
    assert [what for what in VISITED if not visited[what]] == []


def _billed(scene: FleetScene, seed: int) -> FleetScene:
    """A storm in which each market has a billing rule of its own, with hours of minutes."""
    rng = random.Random(f"billing {seed}")

    def rule() -> BillingRule:
        basis = rng.choice(list(BillingBasis))
        # While the minimum of a machine that has ended still runs, its floating price is not known.
        minimum_s = 0.0 if basis is BillingBasis.IN_EFFECT else rng.choice([0.0, 60.0])
        return BillingRule(basis, minimum_s, rng.choice([60.0, 150.0]))

    markets = tuple(replace(market, billing=rule()) for market in scene.markets)
    return dataclasses.replace(scene, markets=markets)


@pytest.mark.parametrize(
    "count", [pytest.param(BILLED_QUICK), pytest.param(BILLED_ALL, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_storms_are_billed_by_every_rule(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Floating prices, started hours, minimums and free hours: what the ledger estimates is what the meter bills."""
    monkeypatch.setattr(fleet_scene, "draw", lambda seed: _billed(draw(seed), seed))
    visited = storms(range(count))
    assert visited["machine started"] > count


@pytest.mark.timeout(300)
def test_no_schedule_of_saves_makes_a_storm_worse() -> None:
    """Handed over late, twice or not at all: followed in its own term alone, never beyond its end, journaled first."""
    storms(scheduled(20))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_hundred_storms_with_schedules_keep_every_promise() -> None:
    """The same over three hundred seeds with full machines, which see everything that can become of a schedule."""
    visited = storms(scheduled(300))
    assert [what for what in SCHEDULES_VISITED if not visited[what]] == []


def violation(seed: int, name: str) -> str | None:
    """Return what a storm with a planted bug says, None if it goes unnoticed."""
    try:
        storm(seed, name)
    except Violation as found:
        return str(found)
    return None


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK_BUGS else pytest.mark.slow) for name in planted_fleet.BUGS]
)
def test_a_planted_fleet_bug_is_caught(name: str) -> None:
    """Each bug that a fleet must not have breaks a promise within two hundred seeds, and says how to replay it."""
    seeds = scheduled(CAUGHT_WITHIN) if name in planted_fleet.SCHEDULE_BUGS else range(CAUGHT_WITHIN)
    caught = next((words for seed in seeds if (words := violation(seed, name))), None)
    assert caught is not None, f"{name!r} went unnoticed in {CAUGHT_WITHIN} storms"
    assert f"--bug '{name}'" in caught


@pytest.mark.parametrize("whole", [True, False])
def test_the_same_seed_is_the_same_fleet_storm(whole: bool) -> None:
    """A storm is replayed by its seed alone, journal row by row, with full machines and with lean ones."""
    seed = next(seed for seed in range(100) if draw(seed).whole is whole)
    first, second = storm(seed), storm(seed)
    assert first.rows == second.rows
    assert first.tally == second.tally
