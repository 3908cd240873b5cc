"""What the saving policies make of notices: of those that came, and of those that are only promised."""

from __future__ import annotations

import math

import pytest

from windfall.models.costs import Costs
from windfall.models.preemption_rates import PreemptionHistory
from windfall.policies.checkpointing import rules
from windfall.policies.checkpointing.decision import Estimates, SavingView, decide
from windfall.structs import replace

MTTP_S, RESTART_S, STALL_S, UPLOAD_S, STEP_S = 10_800.0, 136.5, 2.5, 13.0, 1.0
COSTS = Costs().add_steps(10, STEP_S, STEP_S).add_stall(STALL_S).add_upload(10**9, UPLOAD_S).add_commit(0.0)
AWS = PreemptionHistory("aws", mttp_given_s=MTTP_S, restart_given_s=RESTART_S)
INSURED_S = math.sqrt(2.0 * STALL_S * (MTTP_S + RESTART_S))


def interval_s(losses: PreemptionHistory, policy: str = "adaptive") -> float | None:
    """The interval that a policy chooses; None for no insurance."""
    view = SavingView(policy, running_s=0.0, ranks=(), earliest_step=1, anchor_step=0)
    return decide(0.0, view, Estimates(losses, COSTS)).interval_s


@pytest.mark.trial("E1")
def test_a_promise_is_worth_one_percent_of_a_run_that_ends_behind_its_first_save() -> None:
    """Nothing came yet, all losses are said to be announced, none is; insured, the run would save in the middle as well."""
    said_s = interval_s(replace(AWS, mttp_given_s=600.0, share_given=0.0))
    assert said_s is not None
    insured_s = math.sqrt(2.0 * STALL_S * (600.0 + RESTART_S))
    assert 1.1 * insured_s < said_s < 2.0 * insured_s
    insured = math.expm1((insured_s + STALL_S) / 600.0) + math.expm1((said_s - insured_s) / 600.0)
    assert math.expm1((said_s + STALL_S) / 600.0) == pytest.approx(1.01 * insured, rel=1e-6)


@pytest.mark.trial("E1")
def test_a_promise_is_worth_half_a_percent_of_a_long_run() -> None:
    """Where saves are cheap, so that many fit into the shortest run: without any notice it takes 0.5 % longer, and no more."""

    def cost(interval: float) -> float:
        return math.expm1((interval + 1.0) / 36_000.0) / interval

    insured_s = math.sqrt(2.0 * 1.0 * 36_000.0)
    longest_s = rules.longest_interval_s(insured_s, 1.0, 36_000.0)
    assert longest_s > 2.5 * insured_s
    assert cost(longest_s) == pytest.approx(1.005 * cost(insured_s), rel=1e-6)


@pytest.mark.trial("E1")
@pytest.mark.parametrize("notice_s", [0.0, 15.0, 16.5])
def test_a_notice_that_was_given_too_short_is_believed(notice_s: float) -> None:
    """An emergency save takes 16.5 s: every loss counts, although two minutes are the provider's habit."""
    assert interval_s(replace(AWS, notice_given_s=notice_s)) == pytest.approx(INSURED_S)


@pytest.mark.trial("E1")
def test_a_notice_that_was_given_long_enough_is_believed_against_a_short_habit() -> None:
    """Saves are rarer than against every loss, as far as a promise may be believed."""
    slow = replace(COSTS, uploads=COSTS.uploads.add(10**9, 60.0))
    view = SavingView("adaptive", running_s=0.0, ranks=(), earliest_step=1, anchor_step=0)
    local = PreemptionHistory("local", mttp_given_s=MTTP_S, restart_given_s=RESTART_S, share_given=0.0)
    habitual = decide(0.0, view, Estimates(local, slow)).interval_s
    told = decide(0.0, view, Estimates(replace(local, notice_given_s=120.0), slow)).interval_s
    assert habitual is not None
    assert told is not None
    assert told > 1.4 * habitual


def test_evidence_counts_for_more_than_a_promise() -> None:
    """After 99 losses that were all covered, insurance is ten times as rare; after as many silent ones as dense as ever."""
    covered = replace(AWS, preemptions=99, announced=99, notices_s=(120.0,) * 64)
    assert interval_s(covered) == pytest.approx(math.sqrt(2.0 * STALL_S * (100.0 * MTTP_S + RESTART_S)))
    silent = interval_s(replace(AWS, preemptions=99))
    assert silent is not None
    assert silent < 1.03 * INSURED_S


def test_notices_that_came_too_short_end_the_promise() -> None:
    """The first of 15 s shows that two minutes are not what is given here."""
    assert interval_s(replace(AWS, preemptions=1, announced=1, notices_s=(15.0,))) == pytest.approx(INSURED_S)


@pytest.mark.trial("E1")
@pytest.mark.parametrize(
    ("losses", "insures"),
    [
        (AWS, False),
        (replace(AWS, notice_given_s=0.0), True),
        (replace(AWS, notice_given_s=16.4), True),
        (replace(AWS, notice_given_s=16.6), False),
        (replace(AWS, preemptions=1, announced=1, notices_s=(15.0,)), True),
    ],
)
def test_algorithm_1_goes_by_the_notice_that_was_given_or_seen(losses: PreemptionHistory, insures: bool) -> None:
    """T_step + delta + beta < T_grace, with T_grace as given, else as it came, else the habit: at 0 s it insures."""
    found_s = interval_s(losses, "thesis")
    assert (found_s is not None) is insures
    if insures:
        assert found_s == pytest.approx(INSURED_S)


def test_the_longest_interval_stays_in_its_bounds_however_short_lives_are() -> None:
    """From saves of a millisecond to saves that take as long as a life; never below the interval itself."""
    for stall_s in (1e-3, 1.0, 60.0, 600.0):
        for mttp_s in (30.0, 300.0, 1e4, 1e7):
            shortest_s = math.sqrt(2.0 * stall_s * mttp_s)
            longest_s = rules.longest_interval_s(shortest_s, stall_s, mttp_s)
            assert longest_s >= shortest_s
            if (longest_s + stall_s) / mttp_s < 600.0:
                ratio = math.expm1((longest_s + stall_s) / mttp_s) / longest_s * shortest_s
                ratio /= math.expm1((shortest_s + stall_s) / mttp_s)
                assert ratio <= 1.0 + 1.001 * rules.PRIOR_COST_SHARE
    assert rules.longest_interval_s(0.0, 0.0, 100.0) == 0.0
    assert rules.longest_interval_s(236.0, 2.55, 10_800.0) == pytest.approx(429.8, abs=0.1)
    assert rules.longest_interval_s(2160.0, 600.0, 3600.0) == pytest.approx(36.6 * 60.0, abs=1.0)
    assert rules.longest_interval_s(7.0, 1.0, math.inf) == 7.0
