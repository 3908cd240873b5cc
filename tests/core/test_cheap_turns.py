"""What makes a turn cheap changes nothing: states are copied once a turn, and plans that nothing has changed stand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.story import Story
from tests.storms.test_worker import storm
from windfall.core import asking, worker
from windfall.models.costs import PAIRS, WINDOW, Costs, Steps, Uploads, Window
from windfall.records import record, renewed, value
from windfall.terms import Bytes, SaveCosts, Seconds

SEEDS = range(24)

KNOWN = SaveCosts(Seconds(0.1), Bytes(1000), Seconds(1.0), Seconds(0.1))


@record
class Pair:
    """Something to renew."""

    left: int
    right: int


@value
class Speck:
    """Something small."""

    left: int


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


def test_a_plan_that_stands_is_the_plan_that_would_be_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storms go the same way, to the last number, whether plans are found to stand or always made anew."""
    with_plans = outcomes(monkeypatch)
    monkeypatch.setattr(asking, "_stands", lambda turn, pending: False)
    assert with_plans == outcomes(monkeypatch)


@pytest.mark.parametrize("policy", ["every:100steps", "every:100s", "adaptive", "young-daly"])
def test_a_save_of_the_users_own_moves_a_plan_that_stood(policy: str) -> None:
    """Intervals count from the newest save, whoever asked for it; the next look finds the plan standing again."""
    told = Story(policy=policy, mttp_s=10_000.0, restart_s=100.0, costs=KNOWN).starts().measures()
    planned = told.state.request
    assert planned is not None
    told.ranks(planned.step - 20)
    assert told.state.request is planned
    told.stores(planned.step - 20)
    moved = told.state.request
    assert moved is not None
    assert moved.number > planned.number
    assert moved.step > planned.step + 20
    told.ranks(planned.step)
    assert told.state.request is moved


def test_plans_do_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the comparison above proves nothing."""
    real, found = asking._stands, []
    monkeypatch.setattr(asking, "_stands", lambda turn, pending: found.append(real(turn, pending)) or found[-1])
    for seed in SEEDS:
        storm(seed)
    assert sum(found) > 100
    assert sum(found) < len(found)


def test_the_state_that_a_turn_was_given_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy that changes during a turn is the turn's own."""
    real = worker.react

    def watched(state: Any, now: Any, facts: Any) -> tuple[Any, ...]:
        before = dict(vars(state))
        after = real(state, now, facts)
        assert all(vars(state)[name] is value for name, value in before.items())
        return after

    monkeypatch.setattr(worker, "react", watched)
    for seed in SEEDS:
        storm(seed)


def test_a_renewed_record_leaves_the_old_one_alone() -> None:
    """As `dataclasses.replace` does."""
    old = Pair(1, 2)
    assert (renewed(old, right=3), old) == (Pair(1, 3), Pair(1, 2))


def test_a_field_that_is_not_there_cannot_be_renewed() -> None:
    """A misspelt name is found at once."""
    with pytest.raises(AssertionError, match="only fields that are there"):
        renewed(Pair(1, 2), rigth=3)


def test_records_and_values_are_compared_by_what_they_hold() -> None:
    """As frozen dataclasses are: equal ones are equal, and are found in sets."""
    assert {Pair(1, 2), renewed(Pair(1, 3), right=2)} == {Pair(1, 2)}
    assert {Speck(1), Speck(1)} == {Speck(1)}
    assert not hasattr(Speck(1), "__dict__")


def test_windows_keep_the_newest_and_say_the_same_twice() -> None:
    """What is worked out once is what would be worked out again."""
    window, steps, uploads = Window(), Steps(), Uploads()
    for count in range(1, 2 * WINDOW):
        window, steps, uploads = window.add(count), steps.add(count, 2.0), uploads.add(count, float(count))
        assert (window.mean, window.p95) == (Window(window.values).mean, Window(window.values).p95)
        assert (uploads.line, uploads.slowness) == (Uploads(uploads.values).line, Uploads(uploads.values).slowness)
    assert len(window.values) == WINDOW
    assert window.values[-1] == 2 * WINDOW - 1
    assert (len(steps.values), len(uploads)) == (PAIRS, PAIRS)
    assert steps.mean_s == 2.0


def test_a_full_window_of_one_value_stays_the_same_window() -> None:
    """What follows from it need not be worked out again."""
    costs = Costs()
    for _ in range(WINDOW):
        costs = costs.add_stall(2.55)
    assert costs.add_stall(2.55).stalls is costs.stalls
    assert costs.add_stall(2.56).stalls is not costs.stalls
