"""Policy `optimal`: saves by the table that was given, and by the default rule, in words, where the table says nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import njit

from windfall.models.costs import Costs
from windfall.models.preemption_rates import PreemptionHistory
from windfall.policies.checkpointing import rules
from windfall.policies.checkpointing.decision import Estimates, RankProgress, SavingView, decide, parse_policy
from windfall.structs import replace
from windfall.terms import Phase, SaveKind, SaveTable

SAVED = Costs().add_stall(4.0).add_upload(10**9, 10.0).add_commit(0.5)
COSTS = SAVED.add_steps(10, 2.0, 2.0)
BELIEFS = Estimates(PreemptionHistory("local", mttp_given_s=10_800.0, restart_given_s=100.0), COSTS)
TABLE = SaveTable((1_080.0, 2_280.0, 3_780.0), 5_000.0, 600.0, "it rests on 501 losses, bathtub law")


def view(**changes: object) -> SavingView:
    """One rank at step 100, where its last save was made and the table begins."""
    base = SavingView(
        "optimal", 0.0, (RankProgress(100, Phase.STEP, 0.0),), earliest_step=101, anchor_step=100, table=TABLE,
        table_step=100,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def default(asked: SavingView, estimates: Estimates = BELIEFS) -> int | None:
    """What `adaptive` asks for."""
    return decide(0.0, replace(asked, policy="adaptive"), estimates).save_at


def test_the_user_may_ask_for_it_by_name() -> None:
    """And a near miss of it is named."""
    assert parse_policy("Optimal") == "optimal"
    with pytest.raises(Exception, match="did you mean 'optimal'"):
        parse_policy("optimum")


@pytest.mark.parametrize(("anchor", "expected"), [(100, 640), (640, 1240), (1240, 1990)])
def test_each_save_is_at_the_work_that_the_table_names(anchor: int, expected: int) -> None:
    """Steps of 2 s from step 100 on: 1080 s of work is step 640."""
    choice = decide(0.0, view(anchor_step=anchor), BELIEFS)

    assert (choice.save_at, choice.kind) == (expected, SaveKind.INSURANCE)
    assert choice.decision.choice == (
        f"insurance save at step {expected}, by the schedule: it rests on 501 losses, bathtub law"
    )
    numbers = {item.name: item.value for item in choice.decision.rationale}
    assert numbers["next save at work done"] == 2.0 * (expected - 100)
    assert numbers["work done at the last save"] == 2.0 * (anchor - 100)


def test_a_pace_that_has_changed_a_little_makes_no_second_save() -> None:
    """Saved at step 640, then the steps take 3 % less: the point of the table is behind, not ahead by 16 steps."""
    faster = Estimates(BELIEFS.losses, SAVED.add_steps(10, 1.94, 1.94))

    choice = decide(0.0, view(anchor_step=640), faster)

    assert choice.save_at == 100 + round(2_280.0 / 1.94)


def test_a_save_of_the_user_shortly_before_counts_for_the_tables() -> None:
    """The next one is the table's next; one made early counts for nothing."""
    assert decide(0.0, view(anchor_step=600), BELIEFS).save_at == 1240
    assert decide(0.0, view(anchor_step=200), BELIEFS).save_at == 640


def test_behind_the_last_point_the_run_goes_on_to_the_tables_end() -> None:
    """Known to 5000 s: no save before that, unless an interval of the default rule is longer."""
    assert decide(0.0, view(anchor_step=1990), BELIEFS).save_at == 100 + 2500
    seldom = Estimates(replace(BELIEFS.losses, mttp_given_s=1e7), COSTS)
    interval_s = rules.adaptive_interval_s(4.0, 1e7, 100.0, 14.5)  # the notice of 30 s covers half of all losses
    assert decide(0.0, view(anchor_step=1990), seldom).save_at > 1990 + interval_s / 2.0


def test_a_run_without_an_end_to_its_table_needs_no_further_save() -> None:
    """Infinitely known: the schedule's last point is the run's last insurance save."""
    forever = replace(TABLE, horizon_s=math.inf)
    choice = decide(0.0, view(anchor_step=1990, table=forever), BELIEFS)
    assert choice.save_at is None
    assert "none left before the end of the run" in choice.decision.choice


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"table": None}, "no schedule was made for this machine yet"),
        ({"table": SaveTable((), 0.0, 600.0, "the fit rests on 12 losses: the default rule decides")}, "rests on 12"),
        ({"anchor_step": 2600}, "the schedule ends after 5000 s of work"),
        ({"table_step": 150}, "the run rolled back past the start of its schedule"),
    ],
)
def test_where_the_table_says_nothing_the_default_rule_decides_and_says_why(
    changes: dict[str, object], words: str
) -> None:
    """The step is exactly that of `adaptive`."""
    asked = view(**changes)
    choice = decide(0.0, asked, BELIEFS)

    assert choice.save_at == default(asked)
    assert ", by the default rule: " in choice.decision.choice
    assert words in choice.decision.choice


def test_the_first_save_comes_early_as_with_the_default_rule() -> None:
    """Before one was measured the costs are a guess, also where a table was given."""
    fresh = Estimates(BELIEFS.losses, Costs().add_steps(10, 2.0, 2.0))
    for table in (None, TABLE):
        choice = decide(0.0, view(base_step=100, table=table), fresh)
        assert choice.save_at == 120
        assert "to learn what saving costs" in choice.decision.choice


@pytest.mark.parametrize("remaining_s", [5.0, 120.0])
def test_emergency_saves_are_those_of_the_default_rule(remaining_s: float) -> None:
    """A notice is a notice."""
    asked = view(remaining_s=remaining_s)
    assert decide(0.0, asked, BELIEFS).save_at == default(asked)


def test_a_save_is_never_asked_of_a_step_that_is_over() -> None:
    """A table that came late, or begins long ago, asks for the next step that can still be had."""
    late = view(anchor_step=100, earliest_step=900, table_step=100)
    assert decide(0.0, late, BELIEFS).save_at == 900


def test_the_rule_compiles_and_agrees_with_itself() -> None:
    """Kernels run the very lines that machines run."""
    compiled = njit(rules.scheduled_work_s)
    rng = np.random.default_rng(5)
    for _ in range(200):
        checkpoints = np.sort(rng.uniform(1.0, 5_000.0, size=rng.integers(0, 12)))
        known_s, done_s = rng.uniform(0.0, 6_000.0), rng.uniform(0.0, 7_000.0)
        plain = rules.scheduled_work_s(done_s, tuple(checkpoints), known_s, 300.0)
        assert compiled(done_s, checkpoints, known_s, 300.0) == plain
        assert plain > done_s or plain == min(checkpoint for checkpoint in checkpoints if checkpoint >= plain)
