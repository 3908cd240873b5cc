"""Storms over the worker's reducer: whatever happens to machines, agents, store and script, the promises hold.

A seed that fails is replayed by the command in its message:

    python -m tests.storms.test_worker SEED
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import MappingProxyType

import pytest

from tests.support.world import World
from windfall import events as ev
from windfall.core import asking, ending, handing, points, retention, worker
from windfall.core.state import Turn
from windfall.models.costs import Costs
from windfall.policies.saving import rules
from windfall.terms import NoticeLevel

SEEDS = 100
SEEDS_SLOW = 1000
SEEDS_TO_CATCH = 200

Plant = Callable[[pytest.MonkeyPatch], None]


def storm(seed: int) -> Counter[str]:
    """Run one seed; return what was visited."""
    world = World(seed)
    try:
        world.run()
    except AssertionError as error:
        error.add_note(f"replay with: python -m tests.storms.test_worker {seed}")
        raise
    return Counter(world.tally)


def test_a_hundred_storms_keep_every_promise() -> None:
    """Under losses with, without and with lying notices every run ends, and no promise is broken on the way."""
    visited: Counter[str] = Counter()
    for seed in range(SEEDS):
        visited += storm(seed)
    for kind in ("insurance", "emergency", "periodic", "stop"):
        assert visited[f"committed {kind}"] > 0
    for fate in ("vanish", "announced", "early", "withdrawn", "hint", "stolen", "stop", "stop now"):
        assert visited[f"fate {fate}"] > 0
    for cause in ("done", "preempted-saved", "preempted-unsaved", "script-failed", "stopped", "vanished", "deleted"):
        assert visited[cause] > 0


@pytest.mark.slow
def test_a_thousand_storms_keep_every_promise() -> None:
    """The same over a thousand seeds, with losses without notice within their bound."""
    visited: Counter[str] = Counter()
    for seed in range(SEEDS_SLOW):
        visited += storm(seed)
    assert visited["bound checked"] > 20
    assert visited["damaged"] > 20


# --------------------------------------------------------------------------------------------------------- planted bugs


def _with_handler(patch: pytest.MonkeyPatch, kind: type[ev.Fact], handler: Callable[[Turn, ev.Fact], None]) -> None:
    patch.setattr(worker, "_HANDLERS", MappingProxyType({**worker._HANDLERS, kind: handler}))


def commit_without_a_rank(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(points, "_agreed", lambda turn, point: True)

    def uploaded_when_one_is_there(turn: Turn) -> None:
        for point in turn.state.checkpoints:
            if not point.whole:
                points._judge(turn, point)
        points._forward(turn)

    patch.setattr(points, "settle", uploaded_when_one_is_there)


def retention_keeps_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention, "WHOLE_MIN", 1)


def acknowledge_before_commit(patch: pytest.MonkeyPatch) -> None:
    def noticed(turn: Turn, fact: ev.Fact) -> None:
        assert isinstance(fact, ev.NoticeReceived)
        ending.noticed(turn, fact)
        if fact.notice.level is NoticeLevel.ANNOUNCED:
            turn.order(ev.AcknowledgeNotice(fact.notice))

    _with_handler(patch, ev.NoticeReceived, noticed)


def feasibility_without_upload(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        rules,
        "emergency_fits",
        lambda remaining_s, rest_s, snapshot_s, upload_s, commit_s: rest_s + snapshot_s + commit_s < remaining_s,
    )


def exact_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asking, "PublishSave", lambda number, step, kind, exact: ev.PublishSave(number, step, kind, False))


def stale_estimate(patch: pytest.MonkeyPatch) -> None:
    real = Costs.add_upload
    patch.setattr(
        Costs, "add_upload", lambda self, size, duration_s: self if self.uploads else real(self, size, duration_s)
    )


def request_number_reused(patch: pytest.MonkeyPatch) -> None:
    real = asking._retire

    def retire(turn: Turn, request: object) -> None:
        real(turn, request)  # type: ignore[arg-type]
        turn.change(requests=0)

    patch.setattr(asking, "_retire", retire)


def fence_ignored(patch: pytest.MonkeyPatch) -> None:
    _with_handler(patch, ev.FenceLost, lambda turn, fact: None)


def withdrawal_ignored(patch: pytest.MonkeyPatch) -> None:
    def noticed(turn: Turn, fact: ev.Fact) -> None:
        assert isinstance(fact, ev.NoticeReceived)
        if fact.notice.level is not NoticeLevel.WITHDRAWN:
            ending.noticed(turn, fact)

    _with_handler(patch, ev.NoticeReceived, noticed)


def failures_forgotten(patch: pytest.MonkeyPatch) -> None:
    def started(turn: Turn, fact: ev.Fact) -> None:
        assert isinstance(fact, ev.ScriptStarted)
        worker._script_started(turn, fact)
        turn.change(failures=0)

    _with_handler(patch, ev.ScriptStarted, started)


def early_bystander_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = handing.moved_on

    def moved_on(turn: Turn, fact: ev.RankMovedOn) -> None:
        real(turn, fact)
        turn.change(moved=())

    patch.setattr(handing, "moved_on", moved_on)


def upload_forgotten_on_resume(patch: pytest.MonkeyPatch) -> None:
    _with_handler(patch, ev.AgentResumed, lambda turn, fact: None)


@pytest.mark.parametrize(
    "plant",
    [
        commit_without_a_rank,
        retention_keeps_one,
        acknowledge_before_commit,
        feasibility_without_upload,
        exact_dropped,
        stale_estimate,
        request_number_reused,
        fence_ignored,
        withdrawal_ignored,
        failures_forgotten,
        early_bystander_forgotten,
        upload_forgotten_on_resume,
    ],
)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each defect, planted alone, breaks a promise within two hundred seeds."""
    plant(monkeypatch)
    for seed in range(SEEDS_TO_CATCH):
        try:
            storm(seed)
        except AssertionError:
            return
    pytest.fail(f"{plant.__name__} was not caught in {SEEDS_TO_CATCH} seeds")


if __name__ == "__main__":
    print(dict(storm(int(sys.argv[1]))))
