"""Which workers to buy for asynchronous training: Algorithm 1, the exact optimum, the nearest goal, the take-over."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.policies.provisioning_problems import PRICES, brute_force, drawn, reached, resnet
from windfall.errors import Misuse
from windfall.models import asp
from windfall.policies.planning.exact_provisioning import cheapest_plan, search
from windfall.policies.planning.provisioning import ProvisioningProblem, plan_of
from windfall.policies.planning.provisioning_answers import (
    TAKEOVER_S,
    FeasibilityAnswer,
    feasibility,
    least_loss,
    least_time,
    takeover,
)
from windfall.policies.planning.sliding_window import circular_window, sliding_window
from windfall.structs import replace

SAME = 1e-9
"""The compiled search adds in another order than numpy."""
TABLE_V = ((0.9, 1900.0), (0.8, 2400.0), (0.7, 3700.0))
QUOTAS = (2, 5, 5, 8, 5)


def problem(loss: float = 0.8, time_s: float = 2400.0, **changes: object) -> ProvisioningProblem:
    return ProvisioningProblem(resnet(), QUOTAS, PRICES, loss, time_s, **changes)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- the exact optimum


@pytest.mark.parametrize(
    "bounded",
    [pytest.param(False, marks=[pytest.mark.slow, pytest.mark.timeout(600)]), True],
    ids=["all plans", "within n_lower and n_upper"],
)
def test_the_exact_plan_costs_what_brute_force_finds(bounded: bool) -> None:
    """On 500 random problems of every kind with and 500 without the bounds, the least cost is that of all plans."""
    without = 0
    for seed in range(500):
        case = drawn(np.random.default_rng(seed), bounded=bounded)
        least_usd = brute_force(case)
        # Few open nodes make the search depth first.
        found = cheapest_plan(case, open_nodes=8 if seed % 3 == 0 else 4096)

        assert found.proven
        if math.isinf(least_usd):
            without += 1
            assert found.plan is None
            assert math.isinf(found.bound_usd)
        else:
            assert found.plan is not None
            assert found.plan.cost_usd == pytest.approx(least_usd, rel=SAME), f"seed {seed}"
            assert found.plan == plan_of(case, found.plan.counts)
            assert found.plan.time_s <= case.time_s
            assert found.gap == 0.0

    assert 20 < without < 250, "most problems can be solved, some cannot"


@pytest.mark.parametrize("power", [0.0, 0.8])
def test_the_exact_plan_costs_what_brute_force_finds_for_any_power_of_the_workers(power: float) -> None:
    """On 100 random problems, the least cost is that of all plans where the loss has another power than sqrt(n)."""
    solved = 0
    for seed in range(100):
        case = drawn(np.random.default_rng(seed), bounded=True)
        model = replace(case.model, workload=replace(case.model.workload, workers_power=power))
        case = replace(case, model=model)
        least_usd, found = brute_force(case), cheapest_plan(case)

        assert found.proven
        assert (found.plan is None) == math.isinf(least_usd)
        if found.plan is not None:
            assert found.plan.cost_usd == pytest.approx(least_usd, rel=SAME), f"seed {seed}"
            solved += 1

    assert solved > 20


def test_the_window_alone_misses_optima_that_the_exact_search_finds() -> None:
    """Over the same problems the window is never cheaper than the optimum, and dearer in some."""
    dearer = 0
    for seed in range(300):
        case = drawn(np.random.default_rng(seed), bounded=False)
        window, exact = sliding_window(case), cheapest_plan(case).plan
        if window is None:
            continue
        assert exact is not None
        assert window.cost_usd >= exact.cost_usd * (1.0 - SAME)
        dearer += window.cost_usd > exact.cost_usd * (1.0 + 1e-6)

    assert dearer >= 5


def test_a_search_that_is_cut_off_says_how_far_from_the_optimum_it_can_be() -> None:
    """With any number of nodes the proven bound is below the optimum, and the plan above it; the bound rises with the nodes."""
    checked = 0
    for seed in range(300):
        case = drawn(np.random.default_rng(seed), bounded=False)
        optimum = cheapest_plan(case)
        if optimum.plan is None or optimum.nodes < 40:
            continue
        bounds = []
        for nodes_max in (1, optimum.nodes // 4, optimum.nodes // 2, optimum.nodes):
            found = search(case, None, nodes_max=nodes_max, open_nodes=4096)
            bounds.append(found.bound_usd)
            assert found.bound_usd <= optimum.plan.cost_usd * (1.0 + SAME)
            if found.plan is not None:
                assert found.plan.cost_usd >= optimum.plan.cost_usd * (1.0 - SAME)
                assert found.plan.cost_usd * (1.0 - found.gap) == pytest.approx(found.bound_usd, rel=1e-6)
            else:
                assert found.gap in (0.0, 1.0)
        assert bounds == sorted(bounds)
        checked += 1

    assert checked > 10


def test_the_servers_price_is_part_of_the_cost() -> None:
    """With dear servers a faster cluster is cheaper: they are paid for as long as it trains."""
    free, dear = (cheapest_plan(problem(time_s=9000.0, server_usd_per_hour=usd)).plan for usd in (0.0, 5.0))

    assert free is not None
    assert dear is not None
    assert dear.time_s < free.time_s
    assert dear.cost_usd == pytest.approx(brute_force(problem(time_s=9000.0, server_usd_per_hour=5.0)), rel=SAME)


def test_the_same_problem_has_the_same_answer() -> None:
    """Two searches agree to the last digit, nodes included."""
    case = drawn(np.random.default_rng(4), bounded=False)

    assert cheapest_plan(case) == cheapest_plan(case)


# ---------------------------------------------------------------------------------------------------------- the window


def test_the_windows_of_table_v() -> None:
    """ResNet-110: both windows give [2,0,2,0,0], [2,0,4,0,0] and, as its own figure says, [2,0,4,0,0]; 13 workers at most."""
    published = [(2, 0, 2, 0, 0), (2, 0, 4, 0, 0), (2, 0, 4, 0, 0)]

    assert problem().workers_range == (2, 13)
    for goal, plan in zip(TABLE_V, published, strict=True):
        window, circular = sliding_window(problem(*goal)), circular_window(problem(*goal, lower=False, upper=False))
        assert window is not None
        assert circular is not None
        assert (window.counts, circular.counts) == (plan, plan)


def test_the_exact_plans_of_table_v() -> None:
    """Srifty+, the exhaustive search: [2,0,2,0,0], [2,0,4,0,0], [2,1,3,0,0], as printed."""
    plans = [cheapest_plan(problem(*goal)).plan for goal in TABLE_V]

    assert [plan and plan.counts for plan in plans] == [(2, 0, 2, 0, 0), (2, 0, 4, 0, 0), (2, 1, 3, 0, 0)]
    assert plans[2] is not None
    assert plans[2].time_s == pytest.approx(3694.59, abs=0.01)


def test_a_circular_window_wraps_around_the_end_of_the_list() -> None:
    """The fastest and the slowest workers together are a window of the prototype and none of the paper's."""
    model = resnet()
    fast, slow = replace(model, types=(model.types[0], model.types[2], model.types[3])), (1, 20, 1)
    time_s = float(asp.time_for_s(fast, (1, 0, 1), 0.9))
    case = ProvisioningProblem(fast, slow, (0.01, 50.0, 0.01), 0.9, time_s, lower=False, upper=False)

    wrapped, plain = circular_window(case), sliding_window(case)

    assert wrapped is not None
    assert plain is not None
    assert wrapped.counts == (1, 0, 1)
    assert plain.counts != wrapped.counts


def test_types_that_take_equally_long_are_neighbours_alike_in_both_orders() -> None:
    """With two types of one iteration time, a fast type is next to the same one in the ascending and the descending list."""
    model = resnet()
    first = model.types[0]
    tied = replace(model, types=(first, replace(model.types[2], name="one"), replace(model.types[2], name="other")))
    case = ProvisioningProblem(tied, (2, 4, 4), (0.918, 0.684, 0.684), 0.8, 2400.0, lower=False, upper=False)

    plain, circular = sliding_window(case), circular_window(case)

    assert plain is not None
    assert circular is not None
    assert plain.counts == circular.counts == (2, 4, 0)


def test_the_prototype_refuses_what_it_does_not_know() -> None:
    """Bounds, existing workers and a take-over are refused with what to leave out."""
    for changes in ({}, {"lower": False, "upper": False, "takeover_s": 30.0},
                    {"lower": False, "upper": False, "existing": (1, 0, 0, 0, 0)}):  # fmt: skip
        with pytest.raises(Misuse, match="circular window knows no existing workers"):
            circular_window(problem(**changes))


# ---------------------------------------------------------------------------------------------------- bounds and goals


def test_the_bounds_hold_for_all_workers_existing_ones_included() -> None:
    """With 12 of at most 13 workers in place one more can be bought, by the window and by the exact search."""
    case = problem(0.9, 3000.0, existing=(0, 0, 4, 8, 0), server_usd_per_hour=100.0)

    window, exact = sliding_window(case), cheapest_plan(case).plan

    assert case.workers_range == (12, 13)
    assert window is not None
    assert exact is not None
    assert (sum(window.added), sum(exact.added)) == (1, 1)
    assert sum(cheapest_plan(replace(case, upper=False)).plan.added) > 1  # type: ignore[union-attr]
    assert all(count >= held for count, held in zip(exact.counts, case.held, strict=True))


def test_a_limit_on_all_workers_is_kept() -> None:
    """The best plan has six; where fewer are allowed, the best of those is found, at a higher cost."""
    costs_usd = []
    for most, counts in ((6, (2, 0, 4, 0, 0)), (5, (2, 0, 1, 2, 0))):
        case = problem(workers_max=most)
        found, windowed = cheapest_plan(case).plan, sliding_window(case)
        assert found is not None
        assert found.counts == counts
        assert windowed is None or sum(windowed.counts) <= most
        costs_usd.append(found.cost_usd)
    assert costs_usd == sorted(costs_usd)


def test_no_number_of_workers_may_be_allowed() -> None:
    """Where n_lower exceeds n_upper or what can be had, there is no plan, and that is proven without a search."""
    found = cheapest_plan(problem(0.51, 60.0))

    assert (found.plan, found.nodes, found.proven) == (None, 0, True)
    assert math.isinf(found.bound_usd)
    assert sliding_window(problem(0.51, 60.0)) is None


def test_a_goal_that_cannot_be_met_comes_with_the_nearest_that_can() -> None:
    """The least time at that loss and the least loss in that time: each is met by its plan, and nothing better is."""
    case = problem(0.7, 1500.0, upper=False, lower=False)

    answer = feasibility(case)

    assert answer.plan is None
    assert answer.fastest is not None
    assert feasibility(replace(case, time_s=answer.fastest.time_s)).plan is not None
    assert feasibility(replace(case, time_s=answer.fastest.time_s * 0.9999)).plan is None
    assert answer.lowest_loss is not None
    assert answer.lowest_loss_plan is not None
    assert 0.7 < answer.lowest_loss < 1.0
    assert answer.lowest_loss_plan.time_s <= 1500.0
    assert feasibility(replace(case, loss=answer.lowest_loss * 0.999)).plan is None


def test_a_goal_that_can_be_met_is_answered_with_the_cheapest_plan() -> None:
    """Nothing nearer is computed."""
    answer = feasibility(problem())

    assert answer.plan is not None
    assert answer.plan.counts == (2, 0, 4, 0, 0)
    assert (answer.fastest, answer.lowest_loss) == (None, None)


def test_the_least_loss_of_a_time_that_is_enough_for_all_is_near_the_floor() -> None:
    """With a month to train, ResNet-110 gets within a thousandth of its floor of 0.5; in a second it does not move."""
    assert least_loss(problem(time_s=30.0 * 86_400.0)) == pytest.approx(0.5, abs=1e-2)
    assert (least_loss(problem(time_s=1.0)) or 0.0) > 2.0


# ------------------------------------------------------------------------------------------------------- the take-over


def taken_over(
    case: ProvisioningProblem, left: tuple[int, ...], *, loss_now: float, time_left_s: float
) -> FeasibilityAnswer:
    """Return the answer to a loss of machines, in whose take-over nothing is trained."""
    asked = takeover(case, left, loss_now=loss_now, time_left_s=time_left_s)
    assert asked is not None
    return feasibility(asked)


def test_a_takeover_adds_the_cheapest_workers_that_finish_what_is_left() -> None:
    """Three g3.16xl remain, 810 s, loss 0.9 to 0.8: one p3.2xl is enough, in 762 s, and two are cheaper, in 624 s."""
    for quota, training_s in ((1, 762.0), (2, 624.0)):
        case = replace(problem(0.8, 2600.0), quotas=(quota, 5, 0, 0, 0))

        plan = taken_over(case, (0, 0, 0, 3, 0), loss_now=0.9, time_left_s=810.0).plan

        assert plan is not None
        assert plan.added == (quota, 0, 0, 0, 0)
        assert plan.counts == (quota, 0, 0, 3, 0)
        assert plan.time_s == pytest.approx(training_s + TAKEOVER_S, abs=1.0)


def test_a_takeover_reaches_the_loss_by_its_own_prediction() -> None:
    """Iterations from the loss that was reached, on the new cluster, for the predicted time lead to the objective."""
    case = replace(problem(0.8, 2600.0), model=replace(resnet(), as_prototype=False))
    answer = taken_over(case, (0, 0, 0, 3, 0), loss_now=0.9, time_left_s=810.0)
    plan = answer.plan
    assert plan is not None
    before_s = float(asp.time_for_s(case.model, plan.counts, 0.9))

    assert reached(case, plan.counts, before_s + plan.time_s - TAKEOVER_S) == pytest.approx(0.8, abs=1e-9)


def test_a_takeover_adds_nothing_where_what_is_left_is_enough() -> None:
    """With an hour left and dear machines on offer the three that remain do it alone, and the plan is to buy none."""
    dear = replace(problem(), prices_usd_per_hour=(50.0, 50.0, 50.0, 1.5676, 50.0))
    answer = taken_over(dear, (0, 0, 0, 3, 0), loss_now=0.9, time_left_s=3600.0)

    assert answer.plan is not None
    assert answer.plan.added == (0, 0, 0, 0, 0)


def test_a_takeover_without_any_machine_left_starts_from_the_loss_reached() -> None:
    """All were revoked: the new set trains from 0.9, in a fraction of the time from the start."""
    answer = taken_over(problem(), (0, 0, 0, 0, 0), loss_now=0.9, time_left_s=1500.0)

    plan = answer.plan
    assert plan is not None
    assert sum(plan.added) >= 1
    assert plan.time_s - TAKEOVER_S < float(asp.time_for_s(resnet(), plan.counts, 0.8)) / 2.0


def test_a_takeover_that_comes_too_late_says_what_could_still_be() -> None:
    """With 100 s left no set reaches 0.8; it says which loss can be reached, and when 0.8 would be."""
    answer = taken_over(problem(), (0, 0, 0, 3, 0), loss_now=0.9, time_left_s=100.0)

    assert answer.plan is None
    assert answer.fastest is not None
    assert answer.fastest.time_s > 100.0
    assert answer.lowest_loss is not None
    assert 0.8 < answer.lowest_loss < 0.9


# --------------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quotas": (0, 0, 0, 0, 0)}, "no worker can be bought: every quota is 0"),
        ({"quotas": (1, 1)}, "there are 5 types of workers and 2 values for the quota"),
        ({"quotas": (-1, 1, 1, 1, 1)}, "the quota of a type of worker is -1"),
        ({"prices_usd_per_hour": (1.0, 1.0, 1.0, 1.0, math.inf)}, "the price of a type of worker is inf"),
        ({"existing": (1, 2)}, "2 values for the number of existing workers"),
        ({"time_s": 0.0}, "there are 0 s until the deadline"),
        ({"time_s": -5.0}, "there are -5 s until the deadline"),
        ({"time_s": 20.0, "takeover_s": 30.0}, "a take-over alone takes 30 s"),
        ({"takeover_s": -1.0}, "a take-over takes -1"),
        ({"server_usd_per_hour": -1.0}, "the parameter servers cost -1"),
        ({"loss": 0.5}, "cannot reach a loss of 0.5"),
        ({"loss_now": 0.8}, "the training is at a loss of 0.8 already"),
    ],
)
def test_an_impossible_problem_is_refused_in_a_sentence(changes: dict[str, object], message: str) -> None:
    """Zero quotas, a deadline that is over, a loss below the floor or reached already: each with what to write instead."""
    with pytest.raises(Misuse, match=message):
        replace(problem(), **changes)  # type: ignore[arg-type]


def test_a_search_of_no_nodes_is_refused() -> None:
    """It could find nothing."""
    with pytest.raises(Misuse, match="at least 1"):
        cheapest_plan(problem(), nodes_max=0)


def test_a_loss_that_is_met_before_the_first_iteration_has_no_plan() -> None:
    """Its plans are left out rather than offered for nothing: the fitted loss says nothing about them."""
    case = problem(50.0, 100.0, lower=False, upper=False)

    assert cheapest_plan(case).plan is None
    assert least_time(case) is None
    assert sliding_window(case) is None
