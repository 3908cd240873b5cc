"""The saving policies: what each asks for, and what the user may write."""

from __future__ import annotations

import math

import pytest

from windfall.errors import Misuse
from windfall.models.costs import Costs, Uploads
from windfall.models.preemption_rates import PreemptionHistory
from windfall.policies.checkpointing.decision import (
    Estimates,
    RankProgress,
    SavingView,
    cost_inputs,
    decide,
    parse_policy,
    time_to_step_s,
)
from windfall.structs import replace
from windfall.terms import Phase


def measured(step_s: float = 4.60001, stall_s: float = 2.5495, upload_s: float = 13.0, commit_s: float = 0.0) -> Costs:
    """Costs after one save; the defaults are GPT-117M's."""
    return Costs().add_steps(10, step_s, step_s).add_stall(stall_s).add_upload(10**9, upload_s).add_commit(commit_s)


def view(policy: str, **changes: object) -> SavingView:
    """A single rank that has just begun step 101."""
    ranks = (RankProgress(100, Phase.STEP, 0.0),)
    base = SavingView(policy, running_s=0.0, ranks=ranks, earliest_step=101, anchor_step=100)
    return replace(base, **changes)  # type: ignore[arg-type]


THESIS = PreemptionHistory("azure", mttp_given_s=10_800.0, restart_given_s=136.5)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("adaptive", "adaptive"),
        ("  Young-Daly ", "young-daly"),
        ("every 100 steps", "every:100steps"),
        ("every:100", "every:100steps"),
        ("every:100steps", "every:100steps"),
        ("every 10m", "every:600s"),
        ("every:90s", "every:90s"),
        ("every 1h30m", "every:5400s"),
        ("every 2 minutes", "every:120s"),
    ],
)
def test_a_policy_may_be_written_in_several_ways(text: str, canonical: str) -> None:
    """And its canonical form parses to itself."""
    assert parse_policy(text) == canonical
    assert parse_policy(canonical) == canonical


@pytest.mark.parametrize("text", ["adaptiv", "every", "every 0 steps", "every 0s", "every now", "", "every -5s", "100"])
def test_any_other_policy_is_refused_by_name(text: str) -> None:
    """The sentence quotes it and says what to write."""
    with pytest.raises(Misuse, match="every"):
        parse_policy(text)


def test_a_near_miss_is_named() -> None:
    """`adaptiv` is probably `adaptive`."""
    with pytest.raises(Misuse, match="did you mean 'adaptive'"):
        parse_policy("adaptiv")


def unmeasured(step_s: float) -> Costs:
    """Costs of a run that has not saved yet."""
    return Costs().add_steps(10, step_s, step_s)


@pytest.mark.parametrize(("step_s", "steps"), [(0.05, 100), (1.0, 20), (4.6, 20)])
def test_the_first_save_comes_early_to_learn_what_saving_costs(step_s: float, steps: int) -> None:
    """After 20 steps, or 5 s of them, whichever takes longer; the decision says what for."""
    choice = decide(0.0, view("adaptive", base_step=100), Estimates(THESIS, unmeasured(step_s)))
    assert choice.save_at == 100 + steps
    assert "to learn what saving costs" in choice.decision.choice
    assert {item.name for item in choice.decision.rationale} >= {"stall, assumed", "interval"}


def test_the_early_save_is_never_earlier_than_the_interval() -> None:
    """Losses every 10 s: sqrt(2 * 1 s * 10 s) = 4.5 s, 4 steps."""
    frequent = PreemptionHistory("local", mttp_given_s=10.0, restart_given_s=0.0)
    choice = decide(0.0, view("adaptive", base_step=100), Estimates(frequent, unmeasured(1.0)))
    assert choice.save_at == 104
    assert "to learn" not in choice.decision.choice


def test_a_plan_rests_on_the_step_time_that_its_policy_reads() -> None:
    """The thesis' running mean over all steps; the others' mean of the newest windows."""
    costs = Costs()
    for number in range(40):
        costs = costs.add_steps(10, 1.0 if number < 20 else 3.0, 3.0)
    assert costs.step_running_mean_s == pytest.approx(2.0)
    assert cost_inputs("thesis", Estimates(THESIS, costs))[0] == costs.step_running_mean_s
    assert cost_inputs("adaptive", Estimates(THESIS, costs))[0] == costs.step_mean_s != costs.step_running_mean_s


def test_there_is_one_early_save() -> None:
    """Not again after one that came to nothing, nor while the first is uploaded, nor where the costs are known."""
    estimates = Estimates(THESIS, unmeasured(1.0))
    for asked, known in (
        (view("adaptive", base_step=80), estimates),
        (view("adaptive", base_step=100), Estimates(THESIS, unmeasured(1.0).add_stall(2.0))),
        (view("adaptive", base_step=100), Estimates(THESIS, measured(1.0))),
        (view("young-daly", base_step=100), estimates),
        (view("thesis", base_step=100), estimates),
    ):
        choice = decide(0.0, asked, known)
        assert choice.save_at is None or choice.save_at > 120
        assert "to learn" not in choice.decision.choice


def test_algorithm_1_needs_no_insurance_where_the_emergency_save_fits() -> None:
    """GPT-117M: 20.15 s of 30 s."""
    choice = decide(0.0, view("thesis"), Estimates(THESIS, measured()))
    assert choice.save_at is None
    assert {item.name for item in choice.decision.rationale} >= {"T_grace, assumed", "T_step", "delta", "beta"}


@pytest.mark.trial("E3")
def test_what_nobody_measured_or_told_is_named_as_assumed() -> None:
    """136.5 s to restart, 3 h between losses, 30 s of notice, a second to save: until they are known."""
    for policy in ("adaptive", "young-daly", "thesis"):
        names = {
            item.name
            for item in decide(
                0.0, view(policy), Estimates(PreemptionHistory("local"), unmeasured(1.0))
            ).decision.rationale
        }
        assert "mean time to preemption, assumed" in names
    adaptive = decide(0.0, view("adaptive"), Estimates(PreemptionHistory("local"), unmeasured(1.0)))
    names = {item.name for item in adaptive.decision.rationale}
    assert names >= {"restart, assumed", "notice, assumed", "stall, assumed"}
    known = replace(THESIS, notice_given_s=30.0)
    told = {item.name for item in decide(0.0, view("adaptive"), Estimates(known, measured())).decision.rationale}
    assert not [name for name in told if "assumed" in name]


def test_algorithm_1_insures_where_it_does_not_fit() -> None:
    """GPT-1.3B: 33 steps after the last save, and none moves until the next save."""
    costs = measured(19.75029, 19.4995, 69.25)
    choice = decide(0.0, view("thesis"), Estimates(THESIS, costs))
    assert choice.save_at == 133
    sooner = replace(THESIS, mttp_given_s=100.0)
    assert decide(0.0, view("thesis", held=(100, 133)), Estimates(sooner, costs)).save_at == 133
    assert decide(0.0, view("thesis", held=(67, 100)), Estimates(sooner, costs)).save_at == 104


def test_algorithm_1_uses_the_running_average_of_all_steps() -> None:
    """T_step = sum of T_k / i, not a window."""
    costs = measured(19.75029, 19.4995, 69.25)
    for _ in range(100):
        costs = costs.add_steps(1, 40.0, 40.0)
    assert costs.step_running_mean_s == pytest.approx((10 * 19.75029 + 100 * 40.0) / 110)
    assert costs.step_mean_s == pytest.approx(40.0)


def test_adaptive_insures_even_where_the_notice_suffices() -> None:
    """Because some losses come without one: of nine that came with a notice the share is one in ten, not none."""
    seen = replace(THESIS, preemptions=9, announced=9, notices_s=(30.0,) * 9)
    choice = decide(0.0, view("adaptive"), Estimates(seen, measured()))
    assert choice.interval_s == pytest.approx((2 * 2.5495 * (10_800.0 / 0.1 + 136.5)) ** 0.5)


def test_adaptive_counts_every_loss_where_the_notice_is_too_short() -> None:
    """A state that needs 69 s to upload cannot use 30 s."""
    choice = decide(0.0, view("adaptive"), Estimates(THESIS, measured(19.75029, 19.4995, 69.25)))
    assert choice.interval_s == pytest.approx((2 * 19.4995 * (10_800.0 + 136.5)) ** 0.5)


def test_machines_that_stay_need_no_insurance() -> None:
    """Where no loss is expected at all."""
    choice = decide(0.0, view("adaptive"), Estimates(replace(THESIS, mttp_given_s=math.inf), measured()))
    assert choice.save_at is None


def test_the_emergency_save_counts_the_rest_of_the_phase_only() -> None:
    """Four seconds into a step of 4.6 s, 0.6 s are left; the thesis counts a whole step."""
    near = (RankProgress(100, Phase.STEP, 4.0),)
    estimates = Estimates(THESIS, measured())
    assert decide(0.0, view("adaptive", ranks=near, remaining_s=17.0), estimates).save_at == 101
    assert decide(0.0, view("thesis", ranks=near, remaining_s=17.0), estimates).save_at is None


@pytest.mark.parametrize("share", [0.8, 1.2])
def test_what_the_uplink_carries_in_the_notice_decides(share: float) -> None:
    """0.8 x rate x notice fits, 1.2 x is refused, where everything else is below a tenth of the notice."""
    notice_s, rate = 100.0, 10**7
    costs = measured(2.0, 2.0, 50.0, 1.0)
    costs = replace(costs, uploads=Uploads(((50 * rate, 50.0),)), state_bytes=int(share * rate * notice_s))
    choice = decide(0.0, view("adaptive", remaining_s=notice_s), Estimates(THESIS, costs))
    assert (choice.save_at is not None) is (share < 1.0)


def test_the_time_to_a_step_adds_the_phase_and_the_steps_between() -> None:
    """An evaluation of 30 s, 10 s old, then two steps."""
    costs = Costs().add_steps(5, 2.0, 2.0).add_phase(Phase.EVALUATION, 30.0)
    assert time_to_step_s(RankProgress(7, Phase.EVALUATION, 10.0), 9, costs) == pytest.approx(24.0)
    assert time_to_step_s(RankProgress(7, Phase.STEP, 0.5), 9, costs) == pytest.approx(3.5)
    assert time_to_step_s(RankProgress(7, Phase.BETWEEN, 0.5), 9, costs) == pytest.approx(4.0)


def test_asking_twice_gives_the_same_answer() -> None:
    """A policy keeps nothing between calls."""
    estimates = Estimates(THESIS, measured())
    assert decide(0.0, view("adaptive"), estimates) == decide(9.0, view("adaptive"), estimates)
