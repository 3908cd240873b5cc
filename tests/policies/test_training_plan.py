"""The plan of a job with `fleet: spotdnn`: the workers that the policy buys, their time and cost, or the nearest goal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.policies.test_training_fleet import CLERK, GIVEN, LARGE, NOW, OFFERS, View, ask, offer, time_s, wanted
from tests.support import tickets
from windfall.errors import Infeasible
from windfall.jobs import Job
from windfall.market import Quota
from windfall.policies.planning import training_plan
from windfall.policies.planning.job_plan import JobPlan
from windfall.structs import replace
from windfall.terms import Reliability, Seconds, Usd, WallTime


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    with tickets.installed():
        yield


def planned(job: Job, quotas: tuple[Quota, ...] = ()) -> JobPlan:
    """Return the plan."""
    scaling = tickets.RULES.scaling
    assert scaling is not None
    return training_plan.plan(job, scaling(job), OFFERS, (), WallTime(NOW), quotas=quotas)


def test_the_plan_has_the_workers_that_the_policy_buys() -> None:
    """At every deadline and with every quota of the faster machines."""
    for deadline_s in (200.0, 230.0, 300.0, 600.0):
        for most in (1, 2, 8):
            job, quotas = wanted(deadline_s, takeover_s=10.0), (Quota("large", "a", most, 0),)
            fleet = planned(job, quotas).fleet
            assert fleet is not None
            bought = Counter(slot.wants[0] for slot in ask(View(job=job, quotas=quotas)).needs if slot.wants)
            assert Counter(dict(fleet.chosen.counts)) == bought


def test_time_and_cost_are_those_by_hand() -> None:
    """Three large workers and the clerk for as long as they take, from their preparation on."""
    found = planned(wanted(takeover_s=10.0))
    expected = found.chosen.expected

    assert expected is not None
    prepare_s = next(part.duration_s for part in expected.parts if part.name == "prepare")
    assert prepare_s > 0.0
    assert expected.wall_s == pytest.approx(10.0 + time_s({"large": 3}), rel=1e-4)
    usd_per_s = (3 * LARGE.price_usd_per_hour + CLERK.price_usd_per_hour) / 3600.0
    assert expected.cost_usd == pytest.approx(usd_per_s * (time_s({"large": 3}) + prepare_s), rel=1e-4)
    work = next(number for number in found.numbers if number.name == "work")
    assert work.value == pytest.approx(GIVEN.loss_scale * 3**0.5 * 2.0, rel=1e-4)


def test_a_goal_that_cannot_be_met_names_the_nearest_which_then_can() -> None:
    """The deadline that it names is enough, and so is the loss."""
    hurried = wanted(70.0, takeover_s=10.0)
    with pytest.raises(Infeasible) as raised:
        planned(hurried)
    text = str(raised.value)
    assert text.startswith(
        "no workers reach a training loss of 0.5 by the deadline of 70 s; the fastest, 8 large in a, cost "
    )

    minutes = re.search(r"need a deadline of (\d+) min", text)
    assert minutes is not None
    assert planned(wanted(60.0 * float(minutes[1]), takeover_s=10.0)).fleet is not None
    loss = re.search(r"a training loss of ([0-9.]+) can be met in time", text)
    assert loss is not None
    assert planned(replace(hurried, objective=replace(hurried.objective, loss=float(loss[1])))).fleet is not None


def test_a_budget_below_the_cheapest_workers_in_time_is_refused_with_one_that_would_do() -> None:
    """Reserve included."""
    job = wanted(takeover_s=10.0)
    poor = replace(job, objective=replace(job.objective, budget_usd=Usd(0.01)))
    with pytest.raises(
        Infeasible, match=r"3 large in a, cost 0\.\d+ USD.* a budget of (\d\.\d+) USD would do"
    ) as raised:
        planned(poor)
    enough = re.search(r"a budget of (\d\.\d+) USD would do", str(raised.value))
    assert enough is not None
    assert planned(replace(poor, objective=replace(poor.objective, budget_usd=Usd(float(enough[1]))))).fleet is not None


@pytest.mark.parametrize(
    ("job", "quotas", "message"),
    [
        (lambda: wanted(20.0), (), "is over before a machine trains"),
        (wanted, (Quota("large", "a", 0, 0), Quota("small", "a", 0, 0)), "or its quota is 0"),
    ],
)
def test_what_no_machine_can_do_is_said_in_a_sentence(job: object, quotas: tuple[Quota, ...], message: str) -> None:
    """A deadline before any machine trains, and quotas of 0."""
    with pytest.raises(Infeasible, match=message):
        planned(job(), quotas)  # type: ignore[operator]


def test_max_duration_counts_as_a_deadline() -> None:
    """The last save of a shorter one leaves less time, so more workers are planned, and bought."""
    job = replace(wanted(250.0, takeover_s=10.0), max_duration_s=Seconds(150.0))
    fleet, free = planned(job).fleet, planned(wanted(250.0, takeover_s=10.0)).fleet
    assert fleet is not None
    assert free is not None
    assert sum(count for _, count in fleet.chosen.counts) > sum(count for _, count in free.chosen.counts)
    bought = Counter(slot.wants[0] for slot in ask(View(job=job)).needs if slot.wants)
    assert Counter(dict(fleet.chosen.counts)) == bought


def test_the_bound_on_machines_of_a_pool_is_kept() -> None:
    """Two large ones at most, and small ones for the rest."""
    job = replace(wanted(160.0, takeover_s=10.0), limits=replace(wanted().limits, pool_machines_max=2))
    fleet = planned(job).fleet
    assert fleet is not None
    assert Counter({key[1]: count for key, count in fleet.chosen.counts})["large"] == 2


def test_it_shows_what_else_there_is() -> None:
    """The next best offer, the same on demand, and what other deadlines would cost: none both cheaper and faster."""
    dearer = offer("large", 0.31, zone="b")
    firm = offer("large", 0.90, Reliability.RELIABLE)
    scaling = tickets.RULES.scaling
    job = wanted(takeover_s=10.0)
    assert scaling is not None
    fleet = training_plan.plan(job, scaling(job), (dearer, firm, *OFFERS), (), WallTime(NOW)).fleet

    assert fleet is not None
    assert fleet.runner_up is not None
    assert fleet.on_demand is not None
    assert Counter(dict(fleet.runner_up.counts)) == {dearer.key: 3}
    assert Counter(dict(fleet.on_demand.counts)) == {firm.key: 3}
    costs, finishes = [one.cost_usd for one in fleet.front], [one.finish_s for one in fleet.front]
    assert len(costs) >= 4
    assert costs == sorted(costs)
    assert finishes == sorted(finishes, reverse=True)
    assert fleet.searched == 3
