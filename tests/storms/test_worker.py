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
from windfall.core import checkpoints, handovers, save_requests, shutdown, worker
from windfall.core.worker_state import WorkerTurn
from windfall.models.costs import Costs
from windfall.policies.checkpointing import rules
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


def _with_handler(
    patch: pytest.MonkeyPatch, kind: type[ev.Fact], handler: Callable[[WorkerTurn, ev.Fact], None]
) -> None:
    patch.setattr(worker, "_HANDLERS", MappingProxyType({**worker._HANDLERS, kind: handler}))


def commit_without_a_rank(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoints, "_absent_agreed", lambda turn, checkpoint: True)

    def uploaded_when_one_is_there(turn: WorkerTurn) -> None:
        for checkpoint in turn.state.checkpoints:
            if not checkpoint.complete:
                checkpoints._complete(turn, checkpoint)
        checkpoints._start_next(turn)

    patch.setattr(checkpoints, "settle", uploaded_when_one_is_there)


def retention_keeps_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoints, "INTACT_MIN", 1)


def acknowledge_before_commit(patch: pytest.MonkeyPatch) -> None:
    def noticed(turn: WorkerTurn, fact: ev.Fact) -> None:
        assert isinstance(fact, ev.NoticeReceived)
        shutdown.noticed(turn, fact)
        if fact.notice.level is NoticeLevel.ANNOUNCED:
            turn.emit(ev.AcknowledgeNotice(fact.notice))

    _with_handler(patch, ev.NoticeReceived, noticed)


def feasibility_without_upload(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        rules,
        "emergency_fits",
        lambda remaining_s, rest_s, snapshot_s, upload_s, commit_s: rest_s + snapshot_s + commit_s < remaining_s,
    )


def exact_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        save_requests, "PublishSave", lambda number, step, kind, exact: ev.PublishSave(number, step, kind, False)
    )


def stale_estimate(patch: pytest.MonkeyPatch) -> None:
    real = Costs.add_upload
    patch.setattr(
        Costs, "add_upload", lambda self, size, duration_s: self if self.uploads else real(self, size, duration_s)
    )


def request_number_reused(patch: pytest.MonkeyPatch) -> None:
    real = save_requests._archive

    def archive(turn: WorkerTurn, request: object) -> None:
        real(turn, request)  # type: ignore[arg-type]
        turn.change(requests=0)

    patch.setattr(save_requests, "_archive", archive)


def fence_ignored(patch: pytest.MonkeyPatch) -> None:
    _with_handler(patch, ev.FenceLost, lambda turn, fact: None)


def withdrawal_ignored(patch: pytest.MonkeyPatch) -> None:
    def noticed(turn: WorkerTurn, fact: ev.Fact) -> None:
        assert isinstance(fact, ev.NoticeReceived)
        if fact.notice.level is not NoticeLevel.WITHDRAWN:
            shutdown.noticed(turn, fact)

    _with_handler(patch, ev.NoticeReceived, noticed)


def failures_forgotten(patch: pytest.MonkeyPatch) -> None:
    def started(turn: WorkerTurn, fact: ev.Fact) -> None:
        assert isinstance(fact, ev.ScriptStarted)
        worker._script_started(turn, fact)
        turn.change(failures=0)

    _with_handler(patch, ev.ScriptStarted, started)


def early_bystander_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = handovers.moved_on

    def moved_on(turn: WorkerTurn, fact: ev.RankAdvanced) -> None:
        real(turn, fact)
        turn.change(moved=())

    patch.setattr(handovers, "moved_on", moved_on)


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
