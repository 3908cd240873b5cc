"""From a job to a scenario: each number from the best source there is, with its spread, and what is missing by name."""

from __future__ import annotations

import math

import pytest

from tests.simulation.posing import NO_NOTICE, OFFER, RUN, built, estimate_of, job, lifetime
from windfall.errors import Misuse
from windfall.fleet import Lifetime
from windfall.jobs import DRILL, Injection, Work
from windfall.simulation.scenario import DurationRange, MemorylessLifetimes
from windfall.simulation.scenario_from_job import BuiltScenario, Overrides, made_offer
from windfall.structs import replace
from windfall.terms import Reliability, Seconds, Unit


def source(made: BuiltScenario, name: str) -> str:
    return next(one.source for one in made.inputs if one.name == name)


def test_one_run_gives_the_mean_and_the_spread_that_runs_have_before_any_is_known() -> None:
    """5 % from run to run and as much doubt about the mean: uniform with a deviation of 5 % x sqrt(2)."""
    scenario = built(job(), RUN).scenario

    assert scenario.step_s.mean_s == pytest.approx(2.0)
    assert scenario.step_s.high_s - scenario.step_s.low_s == pytest.approx(
        math.sqrt(12.0) * 0.05 * 2.0 * math.sqrt(2.0)
    )
    assert (scenario.steps, scenario.machines, scenario.price_usd_per_hour) == (5000, 1, 3.6)
    assert scenario.stall_s.mean_s == pytest.approx(0.5)
    assert scenario.upload_s.mean_s == pytest.approx(4.0), "upload and commit"
    assert scenario.allocate_s.mean_s == pytest.approx(10.0)


def test_runs_that_agree_narrow_a_range_and_runs_that_differ_widen_it() -> None:
    """Allocations of 10 s in eight runs, against 7 s and 13 s in turns: by the module's equation."""
    apart = [replace(RUN, allocate_s=Seconds(10.0 + 3.0 * (-1) ** n)) for n in range(8)]
    alike, differing = built(job(), *[RUN] * 8).scenario.allocate_s, built(job(), *apart).scenario.allocate_s

    def half_s(variance: float) -> float:
        return math.sqrt(3.0 * variance / 8.0 * 9.0 / 8.0)

    assert alike.mean_s == differing.mean_s == pytest.approx(10.0)
    assert alike.high_s - 10.0 == pytest.approx(half_s(0.25))
    assert differing.high_s - 10.0 == pytest.approx(half_s(0.25 + 8 * 9.0))


def test_the_first_step_is_no_preparation() -> None:
    """What was measured ends with the first finished step, the scenario's preparation with that step's begin."""
    prepare = built(job(), RUN).scenario.prepare_s

    assert prepare.mean_s == pytest.approx(20.0)
    assert prepare.high_s - 20.0 == pytest.approx(math.sqrt(6.0) * 0.05 * 20.0), "nor is it a part of the spread"


def test_what_the_user_says_wins_and_is_named() -> None:
    """Each of the ten inputs replaces what was measured or offered; the others stay."""
    given = Overrides(
        steps=7,
        step_s=DurationRange(3.0, 4.0),
        stall_s=DurationRange(1.0, 1.0),
        upload_s=DurationRange(6.0, 8.0),
        allocate_s=DurationRange(60.0, 90.0),
        prepare_s=DurationRange(30.0, 30.0),
        mttp_s=7200.0,
        notice_s=120.0,
        announced_share=0.9,
        price_usd_per_hour=0.25,
    )
    made = built(job(), RUN, overrides=given)
    scenario = made.scenario

    assert (scenario.steps, scenario.step_s, scenario.stall_s) == (7, DurationRange(3.0, 4.0), DurationRange(1.0, 1.0))
    assert (scenario.upload_s, scenario.allocate_s) == (DurationRange(6.0, 8.0), DurationRange(60.0, 90.0))
    assert (scenario.prepare_s, scenario.lifetimes) == (DurationRange(30.0, 30.0), MemorylessLifetimes((7200.0,)))
    assert (scenario.notice_s, scenario.announced_share, scenario.price_usd_per_hour) == (120.0, 0.9, 0.25)
    assert scenario.estimates.mttp_s == 7200.0
    assert scenario.estimates.unannounced_share == pytest.approx(0.1)
    assert scenario.estimates.restart_s == 75.0 + 30.0
    assert {one.source for one in made.inputs} == {"given by you"}


@pytest.mark.parametrize(
    ("changes", "given", "words"),
    [
        ({"work": None}, Overrides(), ("work: {steps: 20000}", "--steps", "--step 4.6s", "windfall drill job.yaml")),
        ({}, Overrides(), ("--step 4.6s", "windfall drill job.yaml")),
        ({"work": None}, Overrides(step_s=DurationRange(1.0, 1.0)), ("--steps 20000",)),
        (
            {"work": Work(9.0, Unit.SAMPLE)},
            Overrides(step_s=DurationRange(1.0, 1.0)),
            ("samples", "--steps 20000 --step 4.6s"),
        ),
    ],
)
def test_missing_numbers_are_named_with_how_to_give_them(
    changes: dict[str, object], given: Overrides, words: tuple[str, ...]
) -> None:
    """Nothing was ever measured: the sentence names the numbers that are missing, and those alone."""
    with pytest.raises(Misuse) as caught:
        built(job(**changes), overrides=given)

    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert ("--step 4.6s" in str(caught.value)) == ("--step 4.6s" in " ".join(words))


def test_steps_and_their_length_are_enough_to_ask_before_any_run() -> None:
    """All else is assumed, and marked as such."""
    made = built(job(work=None), overrides=Overrides(steps=100, step_s=DurationRange(4.6, 4.6)))

    assert made.scenario.steps == 100
    assert source(made, "preparation").startswith("assumed")
    assert source(made, "upload and commit per save").startswith("assumed")
    assert made.scenario.prepare_s.mean_s == pytest.approx(160.0)
    assert any("--upload" in note for note in made.notes)
    assert not any("--upload" in note for note in built(job(), RUN).notes)


def test_work_in_samples_takes_as_long_as_it_does_in_the_plan() -> None:
    """1 000 samples at 0.5 samples a second are 2000 s, in steps of a second."""
    run = replace(RUN, unit=Unit.SAMPLE)
    scenario = built(job(work=Work(1000.0, Unit.SAMPLE)), run).scenario

    assert scenario.steps * scenario.step_s.mean_s == pytest.approx(2000.0)
    assert scenario.step_s.mean_s <= 1.0


def test_the_injectors_list_becomes_the_machines_lives() -> None:
    """As a rehearsal takes them: one mean after the other, all announced or none."""
    told = Injection((Seconds(90.0), Seconds(300.0)), 7, Seconds(10.0))
    scenario = built(job(injection=told), RUN).scenario

    assert scenario.lifetimes == MemorylessLifetimes((90.0, 300.0))
    assert (scenario.notice_s, scenario.announced_share) == (10.0, 1.0)


def test_machines_that_cannot_be_taken_back_are_not_lost() -> None:
    """On demand nothing is announced and nothing is lost."""
    reliable = replace(OFFER, reliability=Reliability.RELIABLE)
    scenario = built(job(), RUN, offer=reliable).scenario

    assert scenario.lifetimes == MemorylessLifetimes((math.inf,))
    assert scenario.announced_share == 0.0


def test_without_notice_no_loss_is_announced() -> None:
    """An offer that promises no notice gives none, whatever the provider's usual pattern is."""
    assert built(job(), RUN, offer=NO_NOTICE).scenario.announced_share == 0.0


def test_a_price_alone_makes_an_offer_of_what_is_not_for_sale() -> None:
    """Then only the user's words are known of the machine."""
    assert made_offer(job(), Overrides()) is None
    offer = made_offer(job(), Overrides(price_usd_per_hour=0.5))
    assert offer is not None
    assert (offer.price_usd_per_hour, offer.provider, offer.notice_s) == (0.5, "local", 30.0)


def test_what_a_drill_measured_reaches_the_simulation() -> None:
    """Steps of 0.5 s and a start of 4 s, of which no step is taken off; what a drill cannot know stays the offer's."""
    drill = replace(
        RUN, provider=DRILL, machine_type="desk", work_per_s=2.0, prepare_s=Seconds(4.0), allocate_s=Seconds(0.0)
    )
    made = built(job(), drill)
    scenario = made.scenario

    assert scenario.step_s.mean_s == pytest.approx(0.5)
    assert scenario.step_s.high_s - 0.5 == pytest.approx(math.sqrt(6.0) * 0.05 * 0.5), "the spread of one run"
    assert scenario.prepare_s.mean_s == pytest.approx(4.0)
    assert scenario.upload_s.high_s - 4.0 == pytest.approx(math.sqrt(6.0) * 0.05 * 4.0)
    assert scenario.allocate_s.mean_s == pytest.approx(136.5)
    assert scenario.allocate_s.high_s == pytest.approx(1.25 * 136.5), "assumed"
    assert source(made, "step") == "measured in a drill on desk"
    assert built(job(), drill, RUN).scenario.step_s.mean_s == pytest.approx(2.0), "a run outweighs a drill"


@pytest.mark.parametrize(
    ("lifetimes", "mean", "share"),
    [
        ((lifetime(1, 5.0, preempted=False),), "assumed: raised by 1 machine", "assumed: the provider's usual pattern"),
        (
            (lifetime(1, 5.0), lifetime(2, 5.0, preempted=False)),
            "measured on 2 machines, 1 preempted",
            "measured on 2 machines",
        ),
    ],
)
def test_what_no_loss_has_shown_is_not_called_measured(lifetimes: tuple[Lifetime, ...], mean: str, share: str) -> None:
    """Machines that were never preempted show nothing about notices, and about lifetimes only that they can be longer."""
    sources = {one.name: one.source for one in estimate_of(job(), OFFER, lifetimes=lifetimes).numbers}

    assert sources["mean time to preemption"].startswith(mean)
    assert sources["share of losses without notice"].startswith(share)
