"""Deadline, budget and `max_duration` of a plan: what meets them, and what is said where nothing does."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.policies.offers import HOUR, JOB, LARGE, MEASURED, SPOT
from tests.policies.test_planning import planned, refused
from windfall.errors import Infeasible
from windfall.jobs import Objective, Resources
from windfall.policies.planning.nearest_limits import LimitOption, nearest
from windfall.structs import replace
from windfall.terms import Seconds, Usd


def test_a_deadline_that_no_offer_meets_is_refused_with_the_quickest() -> None:
    """Ten hours of work do not fit nine; the quickest offer and its time are named."""
    job = replace(JOB, objective=Objective(deadline_s=Seconds(9 * HOUR)))
    slow = replace(MEASURED, machine_type="large", work_per_s=0.5)
    words = refused(job, SPOT, LARGE, measured=(MEASURED, slow))
    assert words.startswith(
        "no offer is expected to meet the deadline: the fastest, small in aws/a (spot), takes 10 h 9 min"
    )
    assert "10 h of work" in words
    assert words.endswith(
        "the deadline is 9 h; a deadline of 10 h 10 min would do (small in aws/a (spot), which takes a budget of 10.35 USD)"
    )
    possible = replace(JOB, objective=Objective(deadline_s=Seconds(10 * HOUR + 600.0)))
    assert planned(possible, SPOT, LARGE, measured=(MEASURED, slow)).chosen.offer is SPOT


def test_a_dearer_offer_is_chosen_if_it_alone_meets_the_deadline() -> None:
    """Twice the speed at four times the price: bought because of the deadline, and the cheap one says why not."""
    job = replace(JOB, objective=Objective(deadline_s=Seconds(9 * HOUR)))
    fast = replace(LARGE, price_usd_per_hour=4.0)
    found = planned(job, SPOT, fast, measured=(MEASURED, replace(MEASURED, machine_type="large", work_per_s=2.0)))
    assert found.chosen.offer is fast
    assert found.refused[0].offer is SPOT
    assert "the deadline is 9 h" in found.refused[0].reason


def test_limits_are_not_left_to_a_type_of_unknown_speed() -> None:
    """Where the measured type misses the deadline, the other is not bought blindly; asked for by name it is tried."""
    job = replace(JOB, objective=Objective(deadline_s=Seconds(9 * HOUR)))
    assert "the speed on large in aws/a (spot) is unknown: request only this machine type to try it" in refused(
        job, SPOT, LARGE
    )
    found = planned(replace(job, resources=(Resources(machine_type="large"),)), SPOT, LARGE)
    assert found.chosen.offer is LARGE
    assert found.warnings == ("whether the deadline can be met is unknown: no earlier run measured the speed",)


def test_a_budget_below_the_cheapest_plan_is_refused_with_what_is_held_back() -> None:
    """Ten dollars of work and what a last save may cost do not fit eight dollars."""
    words = refused(replace(JOB, objective=Objective(budget_usd=Usd(8.0))), SPOT, replace(SPOT, zone="b"))
    assert words.startswith("no offer fits the budget: the cheapest, small in aws/a (spot), is expected to cost 10.")
    assert " plus a reserve of " in words
    assert "for a last save of at most 10 min" in words
    assert words.endswith(
        "the budget is 8.00 USD; a budget of 10.35 USD would do (small in aws/a (spot), done in 10 h 10 min)"
    )
    assert "aws/b" not in words
    assert planned(replace(JOB, objective=Objective(budget_usd=Usd(10.35)))).chosen.offer is SPOT


def test_limits_that_no_offer_meets_together_are_refused_with_what_each_offer_lacks() -> None:
    """The slow offer is cheap enough and the dear one quick enough: neither limit alone is called impossible."""
    measured = (MEASURED, replace(MEASURED, machine_type="large", work_per_s=2.0))
    dear = replace(LARGE, price_usd_per_hour=4.0)
    limits = Objective(deadline_s=Seconds(9 * HOUR), budget_usd=Usd(15.0))
    words = refused(replace(JOB, objective=limits), SPOT, dear, measured=measured)
    assert words.startswith("no offer meets all limits of the job: small in aws/a (spot): it is expected to take 10 h")
    assert "; large in aws/a (spot): it is expected to cost 20." in words
    assert "no offer fits the budget" not in words
    assert words.endswith(
        "; a budget of 21.33 USD would do (large in aws/a (spot), done in 5 h 10 min); or a deadline of 10 h 10 min would do "
        "(small in aws/a (spot), within the budget)"
    )


@given(
    deadline_h=st.none() | st.floats(0.1, 15.0),
    budget_usd=st.none() | st.floats(0.5, 30.0),
    max_duration_h=st.none() | st.floats(0.5, 15.0),
    prices=st.tuples(st.floats(0.2, 5.0), st.floats(0.2, 5.0)),
    speeds=st.tuples(st.floats(0.05, 4.0), st.floats(0.05, 4.0)),
)
def test_the_limits_that_a_refusal_names_are_met(
    deadline_h: float | None,
    budget_usd: float | None,
    max_duration_h: float | None,
    prices: tuple[float, float],
    speeds: tuple[float, float],
) -> None:
    """Whoever writes the deadline, the budget and the max_duration of the message gets a plan; each alternative works."""
    offers = (replace(SPOT, price_usd_per_hour=prices[0]), replace(LARGE, price_usd_per_hour=prices[1]))
    measured = tuple(
        replace(MEASURED, machine_type=offer.machine_type, work_per_s=speed)
        for offer, speed in zip(offers, speeds, strict=True)
    )
    deadline_s = None if deadline_h is None else Seconds(deadline_h * HOUR)
    objective = Objective(deadline_s, None if budget_usd is None else Usd(budget_usd))
    duration_s = None if max_duration_h is None else Seconds(max_duration_h * HOUR)
    job = replace(JOB, objective=objective, max_duration_s=duration_s)
    try:
        planned(job, *offers, measured=measured)
    except Infeasible as error:
        alternatives = re.findall(r"(a [^;()]+) would do \(", str(error))
    else:
        return
    assert alternatives
    for words in alternatives:
        named = dict(re.findall(r"a (deadline|budget|max_duration) of ([0-9,.]+ (?:USD|h \d+ min|h|min|s))", words))
        wider = replace(
            objective,
            deadline_s=_seconds(named["deadline"]) if "deadline" in named else deadline_s,
            budget_usd=Usd(float(named["budget"].split()[0].replace(",", "")))
            if "budget" in named
            else objective.budget_usd,
        )
        longer_s = _seconds(named["max_duration"]) if "max_duration" in named else duration_s
        planned(replace(job, objective=wider, max_duration_s=longer_s), *offers, measured=measured)


def _seconds(words: str) -> Seconds:
    units = {"h": HOUR, "min": 60.0, "s": 1.0}
    return Seconds(
        sum(float(number.replace(",", "")) * units[unit] for number, unit in re.findall(r"([0-9,.]+) (\w+)", words))
    )


def test_a_deadline_before_any_machine_is_ready_is_refused_though_the_work_is_unknown() -> None:
    """A start of 60 s and 70 s until the first step were measured; what is only assumed refuses nothing, but is said."""
    job = replace(JOB, work=None, objective=Objective(deadline_s=Seconds(130.0)))
    quick = replace(MEASURED, allocate_s=Seconds(60.0), prepare_s=Seconds(70.0))
    assert refused(job, SPOT, measured=(quick,)) == (
        "no offer has a machine ready before the deadline: of the fastest, small in aws/a (spot), a machine takes 60 s to "
        "start and 70 s to get ready, and the deadline is 2 min 10 s"
    )
    planned(replace(job, objective=Objective(deadline_s=Seconds(131.0))), SPOT, measured=(quick,))
    (words,) = planned(job, SPOT, measured=()).warnings
    assert words == (
        "the deadline may pass before a machine is ready: it is assumed to take 60 s to start and 2 min 40 s to get ready"
    )


def test_a_deadline_that_max_duration_forbids_is_refused_with_what_would_do() -> None:
    """Ten hours of work in a day, but stopped after eight: without the deadline that is a warning, with it a contradiction."""
    job = replace(JOB, objective=Objective(deadline_s=Seconds(24 * HOUR)), max_duration_s=Seconds(8 * HOUR))
    assert refused(job).startswith(
        "max_duration stops the job before any offer is expected to meet the deadline: of the fastest, small in aws/a (spot), "
        "it is expected to take 10 h 9 min, and max_duration starts the last save after 7 h 49 min; a max_duration of "
        "10 h 21 min would do (small in aws/a (spot), done in 10 h 10 min, "
    )
    (words,) = planned(replace(job, max_duration_s=Seconds(12 * HOUR))).warnings
    assert words.startswith("max_duration 12 h stops the job before its deadline, in 24 h: only max_duration counts; ")
    assert planned(replace(job, max_duration_s=Seconds(25 * HOUR))).warnings == ()


def test_the_reserve_counts_within_the_budget() -> None:
    """The expected cost alone would fit: the job would be stopped just before its end."""
    expected = planned().chosen.expected
    assert expected is not None
    tight = replace(JOB, objective=Objective(budget_usd=Usd(expected.cost_usd + 0.05)))
    assert "reserve" in refused(tight)
    planned(replace(JOB, objective=Objective(budget_usd=Usd(expected.cost_usd + 0.3))))


def test_limits_of_a_job_of_unknown_length_are_a_warning() -> None:
    """Whether they can be met is not known; a budget that not even a last save fits is refused all the same."""
    limits = Objective(deadline_s=Seconds(HOUR), budget_usd=Usd(5.0))
    found = planned(replace(JOB, objective=limits), measured=())
    assert found.warnings == (
        "whether the deadline and the budget can be met is unknown: no earlier run measured the speed",
    )
    assert "budget" in refused(replace(JOB, objective=Objective(budget_usd=Usd(0.01))), measured=())


def test_a_limit_that_can_be_kept_is_kept() -> None:
    """Only the budget must change: the cheaper machines would meet the deadline, but not before `max_duration` stops them."""
    options = (LimitOption("slow", 9.0 * HOUR, 5.0), LimitOption("fast", 4.0 * HOUR, 12.0))
    job = replace(JOB, objective=Objective(Seconds(10 * HOUR), Usd(2.0)), max_duration_s=Seconds(6 * HOUR))
    assert nearest(job, options) == "a budget of 12.00 USD would do (fast, done in 4 h)"
