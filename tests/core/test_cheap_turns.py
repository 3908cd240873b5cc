"""Optimizations of turns change no result: one copy of the state per turn, and no replanning of unchanged plans."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core.story import Story
from tests.storms.test_worker import storm
from windfall.core import save_requests, worker
from windfall.models.costs import WINDOW_PAIRS, WINDOW_VALUES, Costs, Steps, Uploads, Window
from windfall.terms import Bytes, SaveCosts, Seconds

SEEDS = range(24)

KNOWN = SaveCosts(Seconds(0.1), Bytes(1000), Seconds(1.0), Seconds(0.1))


def outcomes(patch: pytest.MonkeyPatch) -> list[str]:
    """Run storms; return all decisions and commands, in order."""
    real, lines = worker.react, []

    def noted(state: Any, now: Any, facts: Any) -> tuple[Any, ...]:
        after = real(state, now, facts)
        lines.append(repr((now, after[1:])))
        return after

    with patch.context() as inside:
        inside.setattr(worker, "react", noted)
        for seed in SEEDS:
            storm(seed)
    return lines


def test_a_reused_plan_equals_a_new_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storms give identical results whether plans are reused or always recomputed."""
    with_plans = outcomes(monkeypatch)
    monkeypatch.setattr(save_requests, "_still_valid", lambda turn, pending: False)
    assert with_plans == outcomes(monkeypatch)


@pytest.mark.parametrize("policy", ["every:100steps", "every:100s", "adaptive", "young-daly"])
def test_a_save_of_the_users_own_changes_a_reused_plan(policy: str) -> None:
    """Intervals count from the newest save, requested or not; the next observation reuses the plan again."""
    logged = Story(policy=policy, mttp_s=10_000.0, restart_s=100.0, costs=KNOWN).starts().measures()
    planned = logged.state.request
    assert planned is not None
    logged.ranks(planned.step - 20)
    assert logged.state.request is planned
    logged.stores(planned.step - 20)
    moved = logged.state.request
    assert moved is not None
    assert moved.number > planned.number
    assert moved.step > planned.step + 20
    logged.ranks(planned.step)
    assert logged.state.request is moved


def test_plans_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the comparison above proves nothing."""
    real, found = save_requests._still_valid, []
    monkeypatch.setattr(
        save_requests, "_still_valid", lambda turn, pending: found.append(real(turn, pending)) or found[-1]
    )
    for seed in SEEDS:
        storm(seed)
    assert sum(found) > 100
    assert sum(found) < len(found)


def test_a_turn_does_not_change_the_given_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the turn's own copy changes."""
    real = worker.react

    def watched(state: Any, now: Any, facts: Any) -> tuple[Any, ...]:
        before = msgspec.structs.asdict(state)
        after = real(state, now, facts)
        assert all(getattr(state, name) is value for name, value in before.items())
        return after

    monkeypatch.setattr(worker, "react", watched)
    for seed in SEEDS:
        storm(seed)


def test_windows_keep_the_newest_and_say_the_same_twice() -> None:
    """A cached value equals a recomputed one."""
    window, steps, uploads = Window(), Steps(), Uploads()
    for count in range(1, 2 * WINDOW_VALUES):
        window, steps, uploads = window.add(count), steps.add(count, 2.0), uploads.add(count, float(count))
        assert (window.mean, window.p95) == (Window(window.values).mean, Window(window.values).p95)
        assert (uploads.line, uploads.slowness) == (Uploads(uploads.values).line, Uploads(uploads.values).slowness)
    assert len(window.values) == WINDOW_VALUES
    assert window.values[-1] == 2 * WINDOW_VALUES - 1
    assert (len(steps.values), len(uploads)) == (WINDOW_PAIRS, WINDOW_PAIRS)
    assert steps.mean_s == 2.0


def test_a_full_window_of_one_value_stays_the_same_window() -> None:
    """Values derived from it need no recomputation."""
    costs = Costs()
    for _ in range(WINDOW_VALUES):
        costs = costs.add_stall(2.55)
    assert costs.add_stall(2.55).stalls is costs.stalls
    assert costs.add_stall(2.56).stalls is not costs.stalls
