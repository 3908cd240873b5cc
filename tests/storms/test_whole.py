"""Whatever happens to machines, agents, scripts and the store, a run loses nothing that it committed and gets to its end."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.storms import planted_whole
from tests.storms.whole import storm
from tests.storms.whole_scene import draw
from tests.support.checks import Violation
from windfall.terms import Cause

QUICK = 50
ALL = 1000
CAUGHT_WITHIN = 200
VISITED = (
    *(f"committed {kind}" for kind in ("insurance", "emergency", "periodic", "stop")),
    *(f"fate {fate}" for fate in ("vanish", "announced", "early", "withdrawn", "hint", "stolen", "stop", "stop now")),
    *(Cause.DONE, Cause.PREEMPTED_SAVED, Cause.PREEMPTED_UNSAVED, Cause.STOPPED, Cause.SCRIPT_FAILED),
    *("machine died", "agent resumed", "taken from a living machine", "died amid an operation", "power cut"),
    *("torn", "overwritten", "decayed", "skipped a damaged point", "dropped"),
)
"""What a storm must have been through, or it proves nothing."""


def storms(seeds: range) -> Counter[str]:
    """Run seeds and return what they visited."""
    visited: Counter[str] = Counter()
    for seed in seeds:
        world = storm(seed)
        visited += world.tally
        visited["operations"] += world.operations
    return visited


def test_storms_keep_every_promise() -> None:
    """Under every fault the newest committed state can be restored, no stale machine commits, and the run ends right."""
    visited = storms(range(QUICK))
    print(f"{QUICK} storms, {visited['operations']} store operations, {visited['taken']} machines")
    assert [what for what in VISITED if not visited[what]] == []


@pytest.mark.trial("A8")
def test_a_question_that_the_store_did_not_answer_is_no_look_at_a_holder() -> None:
    """Power is cut under the store while a contender asks, its client asks again: a lease of silence is a lease (308)."""
    assert storm(308).checks.done


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_storms_keep_every_promise() -> None:
    """The same over a thousand seeds."""
    visited = storms(range(QUICK, ALL))
    print(f"{ALL - QUICK} storms, {visited['operations']} store operations, {visited['taken']} machines")
    assert [what for what in VISITED if not visited[what]] == []


def violation(seed: int, name: str) -> str | None:
    """Return what a storm with a planted bug says, None if it goes unnoticed."""
    try:
        storm(seed, name)
    except Violation as found:
        return str(found)
    return None


@pytest.mark.parametrize("name", sorted(planted_whole.BUGS))
def test_a_planted_bug_is_caught(name: str) -> None:
    """Each bug that a run must not have breaks a promise within two hundred seeds, and says how to replay it."""
    caught = next((words for seed in range(CAUGHT_WITHIN) if (words := violation(seed, name))), None)
    assert caught is not None, f"{name!r} went unnoticed in {CAUGHT_WITHIN} storms"
    assert f"--bug '{name}'" in caught


@pytest.mark.parametrize("on_disk", [True, False])
def test_the_same_seed_is_the_same_storm(on_disk: bool) -> None:
    """A storm is replayed by its seed alone, record by record, on either kind of store."""
    seed = next(seed for seed in range(20) if draw(seed)[1].on_disk is on_disk)
    first, second = storm(seed), storm(seed)
    # Names of chunks tell inodes, and so differ; what was decided when, and by whom, does not.
    told = [
        [(one.number, one.kind, one.nonce, one.wall_time) for one in world.checks.records] for world in (first, second)
    ]
    assert told[0] == told[1]
    assert first.tally == second.tally
