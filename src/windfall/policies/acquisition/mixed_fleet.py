"""`fleet: mix`: the fleet that `fleet_search` finds best for the work that is left, changed only where a change pays.

A slot names the offer of its machine.  A lost machine is replaced by one of its offer as long as that is sold; where an
order was refused, the offer counts as sold out at what there is of it, and the best fleet without more of it is bought instead.
A better fleet is bought before the machines that it does without leave, so for that time there are more than the job uses.

It is for markets that bill by the second at moving prices; hours that are paid ahead, refunds and bids are `bidbrain`'s.

Source: the cost of a fleet is Proteus' (EuroSys 2017, section 4), see `policies.planning.fleet_course`; that a change must
gain more than it costs is ours.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from windfall.events import ComparedValue, Decision
from windfall.fleet import Slot
from windfall.jobs import Job
from windfall.policies.acquisition import fleet_settings, offer_slots
from windfall.policies.acquisition.fleet_policy import (
    FleetEstimates,
    FleetPolicyRules,
    FleetTarget,
    FleetView,
    new_slot_ids,
)
from windfall.policies.layout import runtime_list
from windfall.policies.layout.runtime_list import Scaling
from windfall.policies.planning import fleet_course, fleet_inputs, fleet_search, offer_notes
from windfall.policies.planning.estimates import Knowledge
from windfall.policies.planning.fleet_course import Counts, FleetCourse, FleetGoal, Pools
from windfall.policies.policy_registry import MIX
from windfall.terms import Instant

VERSION = 1
MARGIN: Final = 0.05
"""A change must gain this share of what is left [1]."""
DECIDE_EVERY_S: Final = 120.0
_WHOLE: Final = ("machines_max",)
_NUMBERS: Final = ("margin", "decide_every_s")


def check(settings: Mapping[str, Any]) -> str | None:
    """Return what is wrong with settings; None if they are valid."""
    return fleet_settings.problem(settings, whole=_WHOLE, numbers=_NUMBERS)


def mix_of(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
    """Return the fleet that is best for the work that is left, or the present one if a change does not pay."""
    job, scaling = view.job, runtime_list.scaling_of(view.job)
    if scaling is None:
        raise ValueError(f"the runtime {job.runtime.name} needs a fixed number of machines")
    wake_at = Instant(view.now + job.fleet_settings.get("decide_every_s", DECIDE_EVERY_S))
    current = offer_slots.current(view, scaling)
    if offer_slots.is_unlisted(view, scaling, current):
        return FleetTarget(view.needs, wake_at=wake_at)
    goal = _goal(view, scaling)
    held = {slot.wants[0] for slot in current}
    pools = fleet_inputs.pools_of(job, view.offers, Knowledge(estimates.rates, estimates.measured), view.quotas, held)
    counts = offer_slots.counts_of(pools, current)
    pools = offer_slots.as_sold(pools, view, counts)
    chosen = fleet_search.best(pools, goal)
    if chosen is None:
        return FleetTarget(offer_slots.joined(view, scaling, current), wake_at=wake_at)
    before = fleet_course.course(pools, counts, goal)
    target = fleet_course.counts_of(pools, chosen)
    if not _pays(pools, (counts, before), (target, chosen), goal, job):
        return FleetTarget(offer_slots.joined(view, scaling, current), wake_at=wake_at)
    workers = _changed(view, scaling, pools, current, target - counts)
    needs = offer_slots.joined(view, scaling, workers)
    decision = None if needs is view.needs else _decision(before, chosen)
    return FleetTarget(needs, wake_at=wake_at, decision=decision)


def _goal(view: FleetView, scaling: Scaling) -> FleetGoal:
    done = 0.0 if view.progress is None else view.progress.done.amount
    return fleet_inputs.goal_of(
        view.job,
        scaling,
        view.offers,
        done=done,
        elapsed_s=view.now - view.submitted,
        spent_usd=view.spent_usd(),
    )


def _pays(
    pools: Pools, now: tuple[Counts, FleetCourse], then: tuple[Counts, FleetCourse], goal: FleetGoal, job: Job
) -> bool:
    """Whether to have another fleet: where there are too few or too many machines, and where a change pays."""
    counts, before = now
    target, chosen = then
    if not goal.machines_min <= counts.sum() <= goal.machines_max or not counts.any():
        return True
    margin = job.fleet_settings.get("margin", MARGIN)
    change = fleet_course.change_between(pools, counts, target, goal, margin)
    return fleet_course.change_pays(before, chosen, goal, change)


def _changed(
    view: FleetView, scaling: Scaling, pools: Pools, current: tuple[Slot, ...], change: Counts
) -> tuple[Slot, ...]:
    """Return the slots of workers after the next step of a change: first the new ones, then without the old ones."""
    names = new_slot_ids(scaling.role, view.now, view.needs)
    if (change > 0).any():
        new = [
            offer_slots.slot(name, scaling, key)
            for key, name in zip(offer_slots.each(pools, change), names, strict=False)
        ]
        return (*current, *new)
    working = {machine.slot for machine in view.machines() if machine.ready and machine.ends_at is None}
    if not all(slot.id in working for slot in current):
        return current
    leaving = collections.Counter(dict(zip(pools.keys, (-change).tolist(), strict=True)))
    kept = []
    for slot in current:
        if leaving[slot.wants[0]] > 0:
            leaving[slot.wants[0]] -= 1
        else:
            kept.append(slot)
    return tuple(kept)


def _decision(before: FleetCourse, chosen: FleetCourse) -> Decision:
    unit = "USD per core-hour of work"
    values = [("cost before", before.usd_per_work_core_hour, unit), ("cost after", chosen.usd_per_work_core_hour, unit)]
    values += [("cores before", before.cores, ""), ("cores after", chosen.cores, "")]
    values += [
        (name, value, "s" if "finish" in name else "USD")
        for name, value in (("expected finish", chosen.finish_s), ("expected cost", chosen.cost_usd))
        if value is not None
    ]
    finite = tuple(ComparedValue(*row) for row in values if np.isfinite(row[1]))
    return Decision(
        MIX,
        VERSION,
        offer_notes.fleet_text(chosen.counts),
        finite,
        (offer_notes.fleet_text(before.counts),) if before.counts else (),
    )


RULES = FleetPolicyRules(mix_of, check, fleet_settings.needs_scaling)
