"""Whatever happens to a fleet whose needs never rest: no number twice, none lost, no machine too many, paid to the cent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.storms import planted_tickets
from tests.storms.tickets import storm
from tests.support.checks import Violation

QUICK = 150
ALL = 2000
CAUGHT_WITHIN = 200
QUICK_BUGS = (
    "retired slot buys",
    "clerk bought on spot",
    "gang bought in parts",
    "gang released one by one",
    "released before it hands back",
    "release by choice is a preemption",
    "number of a lost machine lost",
)
VISITED = (
    *("gang bought", "partial allocation", "no capacity", "provider out", "database out", "machine failed"),
    *("drained: it is old", "drained: the job no longer needs it", "drained: its successor has taken its place"),
    *("drained empty", "drained to the deadline", "late result refused", "clerk fenced"),
    *("order reply lost", "order doubled", "order carried out late", "order unreachable", "stale listing"),
    *("report lost", "report late", "report doubled", "request lost", "request late", "request doubled"),
    *(
        f"fate {fate}"
        for fate in ("vanish", "honest", "early", "never", "withdrawn", "hint", "zombie", "stopped", "half", "breaks")
    ),
    *(
        "direct cut",
        "clerk cut",
        "outage",
        "controller killed",
        "controller paused",
        "controller replaced",
        "recovered",
    ),
    *("clock jump", "charges told twice", "bought by a call that came late", "machine preempted", "ended done"),
)
"""What storms must have been through, or they prove nothing."""


def storms(seeds: Iterable[int]) -> Counter[str]:
    """Run seeds and return what they visited."""
    visited: Counter[str] = Counter()
    for seed in seeds:
        visited += storm(seed).tally
    return visited


@pytest.mark.timeout(600)
def test_ticket_storms_keep_every_promise() -> None:
    """A clerk, takers and a gang come and go under every fault at once, and each number is done once."""
    visited = storms(range(QUICK))
    print(f"{QUICK} storms, {visited['bought']} orders, {visited['machine started']} machines")
    assert [what for what in VISITED if not visited[what]] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_thousand_ticket_storms_keep_every_promise() -> None:
    """The same over two thousand seeds."""
    visited = storms(range(QUICK, ALL))
    print(f"{ALL - QUICK} storms, {visited['bought']} orders, {visited['machine started']} machines")
    assert [what for what in VISITED if not visited[what]] == []


def violation(seed: int, name: str) -> str | None:
    """Return what a storm with a planted bug says, None if it goes unnoticed."""
    try:
        storm(seed, name)
    except Violation as found:
        return str(found)
    return None


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK_BUGS else pytest.mark.slow) for name in planted_tickets.BUGS],
)
def test_a_planted_bug_of_changing_needs_is_caught(name: str) -> None:
    """Each bug breaks a promise within two hundred seeds, and says how to replay it."""
    caught = next((words for seed in range(CAUGHT_WITHIN) if (words := violation(seed, name))), None)
    assert caught is not None, f"{name!r} went unnoticed in {CAUGHT_WITHIN} storms"
    assert f"--bug '{name}'" in caught


def test_the_same_seed_is_the_same_ticket_storm() -> None:
    """A storm is replayed by its seed alone, journal row by row."""
    first, second = storm(7), storm(7)
    assert first.rows == second.rows
    assert first.tally == second.tally
