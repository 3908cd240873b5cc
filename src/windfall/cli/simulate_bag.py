"""`windfall simulate` of a bag: its cost and finish on each machine type, before anything is spent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.table import Table

from windfall import codec
from windfall.cli import client
from windfall.errors import Misuse
from windfall.jobs import Job
from windfall.market import Offer
from windfall.models import job_measurements, lifetime_pool
from windfall.policies.acquisition import exploring_fleet
from windfall.policies.layout import bag_rules, runtime_list
from windfall.policies.planning import bag_plan
from windfall.policies.planning.bag_plan import BagCourse
from windfall.policies.planning.estimates import Knowledge, PlanInputs
from windfall.report.console import console
from windfall.simulation import bag_odds
from windfall.simulation.bag_odds import BagOdds
from windfall.structs import Struct, plain, replace
from windfall.terms import Reliability, Unit
from windfall.units import duration_text, share_text

SPREAD_S = 1e-3
"""P50 and P90 that differ by less are the same [s]."""


class BagAnswer(Struct, frozen=True):
    """A bag on one offer.

    Attributes:
        measured: whether the time of an item was measured there; otherwise the user gave it.
    """

    offer: Offer
    course: BagCourse
    odds: BagOdds
    measured: bool


class BagNumbers(Struct, frozen=True):
    """Numbers that the user gives.

    Attributes:
        item_s: time of an item where it was not measured [s]; None: such offers are left out.
        mttp_s: mean time to preemption of all machines [s]; None for what is known of them.
        seed: of the lifetimes.
    """

    item_s: float | None
    mttp_s: float | None
    seed: int


def refuse_options(given: Iterable[tuple[str, object]]) -> None:
    """Refuse what applies to jobs that save.

    Raises:
        Misuse: one is given.
    """
    for name, value in given:
        if value:
            raise Misuse(
                f"{name}: applies to jobs that save their state; a bag has items, which run again after a loss"
            )


def simulate_bag(job: Job, folder: Path, given: BagNumbers) -> list[BagAnswer]:
    """Return the bag on each offer that the plan considers, the best one first, and last the best one on demand.

    Args:
        job: with a bag.
        folder: of the installation.
        given: by the user.

    Raises:
        Misuse: the time of an item is known nowhere.
        Infeasible: no offer fits.
    """
    asked = replace(job, objective=replace(job.objective, deadline_s=None, budget_usd=None), max_duration_s=None)
    with client.planner(folder) as controller:
        known, planned = controller.plan_inputs(job), controller.plan(asked)
    offers = [_offer(row["offer"]) for row in (planned["chosen"], *planned["alternatives"])]
    knowledge = _knowledge(known)
    found = [one for offer in offers if (one := _answer(job, offer, knowledge, given)) is not None]
    if not found:
        raise Misuse(
            "the simulation needs the time of an item (--step 90s): no earlier run of this bag measured it, and each finished "
            "bag does"
        )
    found.sort(key=lambda one: (one.odds.cost_usd[0], one.odds.finish_s[0]))
    return [*found, _on_demand(found[0], job, given.seed)]


def _offer(row: dict[str, Any]) -> Offer:
    offer: Offer = codec.decode({"type": Offer.__name__, **row}, Offer)
    return offer


def _knowledge(known: PlanInputs) -> Knowledge:
    pooled = lifetime_pool.pool(known.lifetimes, known.now)
    return Knowledge(tuple(row.rate for row in pooled), job_measurements.merge(known.measured), pooled, known.poll_s)


def _answer(job: Job, offer: Offer, knowledge: Knowledge, given: BagNumbers) -> BagAnswer | None:
    bag, scaling = bag_rules.bag_of(job.runtime.settings), runtime_list.scaling_of(job)
    kind = (offer.provider, offer.machine_type, Unit.ITEM)
    times = [row.item_s for row in knowledge.measured if (row.provider, row.machine_type, row.unit) == kind]
    item_s = next((time_s for time_s in times if time_s is not None), given.item_s)
    lost_s = exploring_fleet.mttp_of(knowledge.rates, offer)
    if given.mttp_s is not None and offer.reliability is Reliability.TRANSIENT:
        lost_s = given.mttp_s
    cost = exploring_fleet.item_cost(offer, bag, item_s, lost_s)
    if cost is None:
        return None
    most = bag_plan.machines_most(job, scaling)
    course = bag_plan.course_of(job, offer, cost, knowledge, most)
    if course is None:
        return None
    if offer.reliability is Reliability.TRANSIENT:
        course = replace(course, mttp_s=lost_s)
    return BagAnswer(offer, course, _odds(course, job, given.seed), measured=bool(times))


def _odds(course: BagCourse, job: Job, seed: int) -> BagOdds:
    return bag_odds.odds_of(course, job.objective.deadline_s, job.objective.budget_usd, seed=seed)


def _on_demand(best: BagAnswer, job: Job, seed: int) -> BagAnswer:
    usd = best.offer.on_demand_usd_per_hour
    offer = replace(best.offer, reliability=Reliability.RELIABLE, price_usd_per_hour=usd)
    course = replace(best.course, mttp_s=None, usd_per_hour=usd)
    return BagAnswer(offer, course, _odds(course, job, seed), best.measured)


def show(job: Job, answers: list[BagAnswer], *, json_: bool, seed: int) -> None:
    """Print the answers."""
    if json_:
        rows = [plain(one) for one in answers]
        print(json.dumps({"version": 1, "job": job.name, "seed": seed, "answers": rows}))
        return
    best = answers[0]
    screen = console()
    counted = f"{best.odds.trials:,} simulated bags each"
    screen.print(f"{job.name}: {best.course.items:,} items on up to {job.nodes} machines; {counted}")
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="")
    table.add_column("machines", no_wrap=True, max_width=30)
    for head in ("item", "USD P50", "P90", "finish P50", "P90", "lost"):
        table.add_column(head, justify="right", no_wrap=True)
    for one in answers:
        table.add_row(_name(one), *_cells(one))
    screen.print(table)
    if best.odds.finish_s[1] - best.odds.finish_s[0] < SPREAD_S:
        screen.print("P50 and P90 are the same where no machine is lost: all items take the mean time here")
    for name, share in (("done by the deadline", best.odds.in_time), ("within the budget", best.odds.in_budget)):
        if share is not None:
            screen.print(f"{name}: {share_text(share)} of bags on the best of these")
    saved = 1.0 - best.odds.cost_usd[0] / answers[-1].odds.cost_usd[0] if answers[-1].odds.cost_usd[0] else 0.0
    screen.print(f"the best costs {100.0 * saved:.0f} % less than the same machines on demand")


def _name(one: BagAnswer) -> str:
    demand = "" if one.offer.reliability is Reliability.TRANSIENT else " on demand"
    zone = f" in {one.offer.zone}" if one.offer.zone and not demand else ""
    return f"{one.course.machines} {one.offer.machine_type}{zone}{demand}"


def _cells(one: BagAnswer) -> list[str]:
    cost, finish = one.odds.cost_usd, one.odds.finish_s
    given = "" if one.measured else " given"
    return [
        f"{duration_text(one.course.item_s)}{given}",
        *(f"{usd:.3g}" if usd >= 0.001 else f"{usd:.6f}" for usd in cost),
        *(duration_text(time_s) for time_s in finish),
        f"{one.course.losses:.1f}",
    ]
