"""The plan of a job that can use more or fewer machines: what it recommends, and what it says when nothing fits."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.policies.test_mixed_fleet import CLERK, LARGE, NOW, OFFERS, SMALL, offer, wanted
from tests.support import tickets
from windfall.errors import Infeasible
from windfall.jobs import BuyingLimits, Job, Measurement, Minimize, Objective, Use, Work
from windfall.market import Offer, Quota
from windfall.policies.layout.runtime_list import Scaling
from windfall.policies.planning import fleet_plan
from windfall.policies.planning.job_plan import JobPlan
from windfall.structs import replace
from windfall.terms import Reliability, Seconds, Unit, WallTime


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    """The toy runtime, whose jobs can use more or fewer machines."""
    with tickets.installed():
        yield


def planned(
    job: Job,
    offers: tuple[Offer, ...] = OFFERS,
    quotas: tuple[Quota, ...] = (),
    measured: tuple[Measurement, ...] = (),
) -> JobPlan:
    """Return the plan of a job of tickets."""
    scaling = tickets.RULES.scaling
    assert scaling is not None
    found: Scaling = scaling(job)
    return fleet_plan.plan(job, found, offers, measured, WallTime(NOW), quotas=quotas)


def hours(count: float, **objective: float) -> Job:
    """Return a job of so many core-hours."""
    return replace(wanted(**objective), work=Work(count * 60.0, Unit.STEP))


def test_it_names_the_best_fleet_the_next_one_and_what_it_costs_on_demand() -> None:
    """And why another is refused; the numbers of the chosen one add up."""
    found = planned(hours(100.0), quotas=(Quota("large", "a", 2, 0),))
    fleets = found.fleet
    assert fleets is not None
    assert [(key[1], count) for key, count in fleets.chosen.counts] == [("large", 2), ("small", 1)]
    assert fleets.runner_up is not None
    assert {key[1] for key, _ in fleets.runner_up.counts} == {"small"}
    assert fleets.on_demand is not None
    assert {key[3] for key, _ in fleets.on_demand.counts} == {Reliability.RELIABLE}
    expected = found.chosen.expected
    assert expected is not None
    assert sum(part.duration_s for part in expected.parts) == pytest.approx(expected.wall_s)
    assert sum(part.cost_usd for part in expected.parts) == pytest.approx(expected.cost_usd)
    assert [row.reason for row in found.refused] == ["on-demand; the job uses spot machines only"]
    assert found.savings_percent == pytest.approx(100.0 * (1.0 - expected.cost_usd / fleets.on_demand.cost_usd))  # type: ignore[operator]
    assert "3 of its 3" not in fleets.risk
    assert "2 of its 3 machines are large in a" in fleets.risk


def test_unknown_work_has_a_fleet_but_no_cost() -> None:
    """The best one is then the one whose work costs least."""
    found = planned(wanted())
    assert found.chosen.expected is None
    assert found.fleet is not None
    assert found.fleet.chosen.counts[0] == (LARGE.key, 3)
    assert any("the job file has no work" in words for words in found.unknown)


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ({"deadline_s": Seconds(60.0)}, "no fleet meets the deadline of 60 s: the cheapest fleet"),
        ({"budget_usd": 0.1}, "no fleet meets the budget of 0.1000 USD: the cheapest fleet, 3 large in a, takes"),
    ],
)
def test_limits_that_no_fleet_meets_are_refused_with_what_is_possible(objective: dict[str, float], words: str) -> None:
    """The cheapest fleet and the fastest one, with their cost and finish."""
    with pytest.raises(Infeasible) as caught:
        planned(hours(100.0, **objective))
    assert words in str(caught.value)
    assert "; the fastest fleet, 3 large in a, takes" in str(caught.value)


def test_the_limits_that_a_refusal_of_fleets_names_are_met() -> None:
    """A budget that is too small: the one that would do is told with its fleet, and a cent less would not do."""
    with pytest.raises(Infeasible) as caught:
        planned(hours(100.0, budget_usd=0.1))
    match = re.search(r"; a budget of ([0-9.]+) USD would do \(3 large in a, done in ", str(caught.value))
    assert match is not None, str(caught.value)
    least_usd = float(match[1])
    planned(hours(100.0, budget_usd=least_usd))
    with pytest.raises(Infeasible):
        planned(hours(100.0, budget_usd=least_usd - 0.01))


def test_a_fleet_that_only_the_reserve_makes_too_expensive_is_refused() -> None:
    """Its expected cost alone would fit the budget: the job would be stopped just before its end."""
    expected = planned(hours(100.0)).chosen.expected
    assert expected is not None
    with pytest.raises(Infeasible, match="no fleet meets the budget of"):
        planned(hours(100.0, budget_usd=expected.cost_usd * 1.001))


def test_a_deadline_before_any_machine_of_a_fleet_is_ready_is_refused() -> None:
    """Though the work is unknown; it takes a measured start of every offer, because an assumed one refuses nothing."""
    starts = tuple(
        Measurement("sim", kind, Unit.STEP, 1.0, Seconds(50.0), Seconds(40.0), runs=1) for kind in ("small", "large")
    )
    with pytest.raises(
        Infeasible, match="no offer has a machine ready before the deadline: of the fastest, small in sim/a"
    ):
        planned(wanted(deadline_s=Seconds(90.0)), measured=starts)
    planned(wanted(deadline_s=Seconds(90.0)), measured=starts[:1])
    planned(wanted(deadline_s=Seconds(91.0)), measured=starts)


def test_work_that_a_runtime_predicts_for_a_loss_is_called_so() -> None:
    """A plan does not say that the job file gave it."""
    job = replace(hours(1.0), objective=Objective(loss=0.4))
    work = next(one for one in planned(job).numbers if one.name == "work")
    assert (work.value, work.source) == (60.0, "derived: predicted by the runtime until a training loss of 0.4")


def test_fleets_keep_to_a_deadline_that_max_duration_brings_forward() -> None:
    """What is stopped before it is done meets no deadline."""
    late = replace(hours(100.0, deadline_s=Seconds(400 * 3600.0)), max_duration_s=Seconds(3600.0))
    with pytest.raises(
        Infeasible, match=r"and the last save of max_duration after 54 min: .* a max_duration of .* would do"
    ):
        planned(late)
    assert any(
        "only max_duration counts" in words for words in planned(replace(late, max_duration_s=Seconds(3.6e5))).warnings
    )


def test_the_fastest_fleet_for_a_job_that_minimizes_time() -> None:
    """Within its budget; the front shows the cheaper ones too."""
    fast = offer("fast", 16.0, 4.0)
    job = replace(hours(100.0), objective=Objective(minimize=Minimize.TIME))
    found = planned(job, (*OFFERS, fast)).fleet
    assert found is not None
    assert found.chosen.counts == ((fast.key, 3),)
    assert found.front[0].counts == ((LARGE.key, 3),)


@pytest.mark.parametrize(
    ("offers", "quotas", "words"),
    [
        ((), (), "no provider has an offer now"),
        ((CLERK,), (), "no matching offer is allowed"),
        ((SMALL, LARGE), (), "needs 1 machine that cannot be preempted"),
        (OFFERS, (Quota("small", None, 0, 0), Quota("large", None, 0, 0)), "leave room for 0 on the offers"),
    ],
)
def test_without_machines_there_is_no_plan(offers: tuple[Offer, ...], quotas: tuple[Quota, ...], words: str) -> None:
    """One sentence says what is missing."""
    with pytest.raises(Infeasible) as caught:
        planned(hours(1.0), offers, quotas)
    assert words in str(caught.value)


def test_the_limits_of_the_job_hold() -> None:
    """Excluded types, machines of one pool, and machines that cannot be preempted if the job takes only those."""
    limited = replace(hours(100.0), limits=BuyingLimits(machine_types_excluded=("small",)))
    with pytest.raises(Infeasible):
        planned(limited)  # the clerk's machine is small too
    pooled = planned(replace(hours(100.0), limits=BuyingLimits(pool_machines_max=1))).fleet
    assert pooled is not None
    assert sorted(count for _, count in pooled.chosen.counts) == [1, 1]
    reliable = planned(replace(hours(100.0), use=Use.ON_DEMAND)).fleet
    assert reliable is not None
    assert reliable.risk == "no machine of it can be preempted"


def test_a_fixed_fleet_is_planned_as_it_is_ordered() -> None:
    """As many as the job needs to start, of the offer that ranks best; what `fleet: mix` would have is said."""
    fixed = replace(hours(100.0), fleet="fixed")
    found = planned(fixed)
    assert found.fleet is not None
    assert found.fleet.chosen.counts == ((SMALL.key, 1),)
    assert found.chosen.expected is not None
    assert found.fleet.chosen.cost_usd == pytest.approx(found.chosen.expected.cost_usd)
    (words,) = found.warnings
    assert "`fleet: mix` would have 3 large in a: " in words
    assert found.fleet.front[0].counts == ((LARGE.key, 3),)


def test_a_fixed_fleet_takes_the_next_offer_where_a_quota_ends() -> None:
    """As orders do."""
    found = planned(replace(hours(100.0), fleet="fixed"), quotas=(Quota("small", "a", 0, 0),)).fleet
    assert found is not None
    assert found.chosen.counts == ((LARGE.key, 1),)


def test_a_fixed_fleet_that_misses_a_limit_is_refused_with_one_that_meets_it() -> None:
    """It would be bought, and be late."""
    soon = replace(hours(100.0, deadline_s=Seconds(30 * 3600.0)), fleet="fixed")
    with pytest.raises(Infeasible) as caught:
        planned(soon)
    assert re.match(
        r"`fleet: fixed` misses the objective: 1 small in a takes .*; set `fleet: mix`, whose fleet, 3 large in a, takes ",
        str(caught.value),
    )
    planned(replace(soon, fleet="mix"))


@pytest.mark.parametrize("fleet", ["bidbrain", "of-a-package"])
def test_a_policy_whose_fleet_is_not_known_beforehand_is_warned_of(fleet: str) -> None:
    """The plan's fleet is that of `fleet: mix`."""
    (words,) = planned(replace(hours(1.0), fleet=fleet)).warnings
    assert f"the job has `fleet: {fleet}`, which " in words
    assert "another fleet than this plan's" in words


def test_prices_that_are_old_are_said() -> None:
    """With their age."""
    assert planned(hours(1.0)).warnings == ()
    old = tuple(replace(one, quoted_at=WallTime(NOW - 7200.0)) for one in OFFERS)
    (words,) = planned(hours(1.0), old).warnings
    assert "was quoted 2 h ago" in words
