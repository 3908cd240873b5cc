"""Fleets that keep a deadline: all of a job's machines are spot, all are on demand, or there are none.

`fleet: optimal-deadline`, `uniform-progress` and `greedy-deadline` differ in the rule (`policies.deadlines`); this is what
they have in common: what is seen of machines and offers becomes the state of the rule, its answer becomes slots.

A single machine is changed without a gap: the next one is bought beside it, and takes over once it is ready.  Several machines
of one run cannot overlap, so they are drained and the others are bought at once; a loss of one that cannot be bought
again is a loss of all.  Work that is not saved counts as not done where the safety net is concerned.

What is not known: until the time of a step is measured, here or in earlier runs, or stated, the job is on demand.  Spot
counts as available if an offer is listed, not refused, and below the price on demand.

Source: Z. Wu et al., "Can't Be Late: Optimizing Spot Instance Savings under Deadlines", NSDI 2024; overlap, unsaved work and
unknown speeds are ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from windfall.events import ComparedValue, Decision
from windfall.fleet import Slot
from windfall.jobs import Job, Use
from windfall.market import Offer
from windfall.models import availability
from windfall.models.availability import AvailabilityHazards
from windfall.policies import policy_registry
from windfall.policies.acquisition import fleet_settings, ranking
from windfall.policies.acquisition.fleet_policy import (
    FleetEstimates,
    FleetPolicyRules,
    FleetTarget,
    FleetView,
    new_slot_ids,
)
from windfall.policies.deadlines import deadline_choice, public_hazards
from windfall.policies.deadlines.deadline_choice import WORDS, DeadlineRule, DeadlineState
from windfall.policies.deadlines.deadline_rules import IDLE, ON_DEMAND, SPOT
from windfall.policies.layout import runtime_list
from windfall.structs import Struct
from windfall.terms import Instant, Reliability, Unit

VERSION: Final = 1
DECIDE_EVERY_S: Final = 60.0
CHANGEOVER_FACTOR: Final = 2.0
"""Without a stated bound a changeover takes at most this many times what is expected."""
RESTORE_S: Final = 60.0
"""From a ready machine to its first step before any measurement [s]."""
MARGIN: Final = 0.05
"""By how much saves and slower machines may lengthen the work."""
_SAME: Final = 0.02
"""A measured step that differs by less is not remembered again."""
_NUMBERS: Final = ("changeover_s", "step_s", "available_s", "unavailable_s", "decide_every_s")
_KINDS: Final = {SPOT: Reliability.TRANSIENT, ON_DEMAND: Reliability.RELIABLE}
_SPOT_UP, _SPOT_SINCE, _STEP_S, _TO = "spot", "spot_since", "step_s", "to"
"""What is remembered: whether spot is available and since when, the measured step, what a change leads to."""


class _KindsSeen(Struct, frozen=True):
    """What is seen of the job's machines and offers.

    Attributes:
        spot, on_demand: slots of either kind.
        spot_filled, on_demand_filled: whether each has a machine that stays, or waits for one.
        spot_ready, on_demand_ready: whether each has a machine that is ready.
        offered: the cheapest offers, spot first; None: none is to be had.
        listed: whether on-demand machines for the job are listed at all.
    """

    spot: tuple[Slot, ...]
    on_demand: tuple[Slot, ...]
    spot_filled: bool
    on_demand_filled: bool
    spot_ready: bool
    on_demand_ready: bool
    offered: tuple[Offer | None, Offer | None]
    listed: Offer | None


def decide(name: str, rule: DeadlineRule, view: FleetView, estimates: FleetEstimates) -> FleetTarget:
    """Return the fleet that a rule wants.

    Args:
        name: of the policy, for its decisions.
        rule: who decides.
        view: of the driver.
        estimates: what is believed.
    """
    job = view.job
    seen = _seen(view)
    if job.fleet_settings.get("may_idle") and rule is DeadlineRule.UNIFORM_PROGRESS:
        rule = DeadlineRule.UNIFORM_MAY_IDLE
    wake_at = Instant(view.now + _tick_s(job))
    if seen.listed is None:  # the provider is silent, or sells nothing on demand: there is nothing to choose from
        return FleetTarget(view.needs, wake_at=wake_at)
    memory = _remembered(view, seen)
    state = _state(view, estimates, seen, memory)
    rationale: tuple[ComparedValue, ...] = ()
    if seen.spot and seen.on_demand:
        chosen = _arrived(seen, memory)
    elif seen.on_demand_filled and not seen.on_demand_ready:
        chosen = ON_DEMAND  # a changeover is carried through
    elif state is None:
        chosen, rationale = (SPOT if _on(seen) == SPOT else ON_DEMAND), (ComparedValue("measured steps", 0.0, ""),)
    else:
        chosen, rationale = deadline_choice.choose(rule, state)
        chosen = _guarded(view, seen, state, chosen)
    needs, to = _needs(view, seen, chosen)
    memory = {**memory, _TO: float(to)}
    if needs == view.needs:
        return FleetTarget(view.needs, wake_at=wake_at, memory=memory)
    others = tuple(words for number, words in enumerate(WORDS) if number != chosen)
    return FleetTarget(
        needs, wake_at=wake_at, decision=Decision(name, VERSION, WORDS[chosen], rationale, others), memory=memory
    )


# ---------------------------------------------------------------------------------------------------------- what is seen


def _seen(view: FleetView) -> _KindsSeen:
    machines = view.machines()
    staying = {one.slot for one in machines if one.ends_at is None}
    ready = {one.slot for one in machines if one.ends_at is None and one.ready}
    spot, on_demand = (
        tuple(slot for slot in view.needs if slot.reliability is _KINDS[kind]) for kind in (SPOT, ON_DEMAND)
    )

    def all_in(slots: tuple[Slot, ...], found: frozenset[str] | set[str]) -> bool:
        return bool(slots) and all(slot.id in found for slot in slots)

    held = staying | view.awaited
    listed = _cheapest(view, Use.ON_DEMAND, refused=True)
    cheap = _cheapest(view, Use.SPOT, refused=False)
    if cheap is not None and listed is not None and cheap.price_usd_per_hour >= listed.price_usd_per_hour:
        cheap = None
    return _KindsSeen(
        spot,
        on_demand,
        all_in(spot, held),
        all_in(on_demand, held),
        all_in(spot, ready),
        all_in(on_demand, ready),
        (cheap, _cheapest(view, Use.ON_DEMAND, refused=False)),
        listed,
    )


def _cheapest(view: FleetView, use: Use, *, refused: bool) -> Offer | None:
    """Return the cheapest offer of a kind that fits the job; with `refused` also those that are not ordered now."""
    job = ranking.with_use(view.job, use)
    without = frozenset() if refused else view.refused()
    found = (one for one in view.offers if one.key not in without and ranking.refusal(job, one) is None)
    return min(found, key=lambda one: (one.price_usd_per_hour, one.key), default=None)


def _on(seen: _KindsSeen) -> int:
    """Return what the machines are: spot machines that cannot be had again are lost."""
    if seen.on_demand:
        return ON_DEMAND
    return SPOT if seen.spot_filled else IDLE


def _remembered(view: FleetView, seen: _KindsSeen) -> Mapping[str, float]:
    """Return the memory: since when spot is available, or is not, and how long a step takes."""
    before, up = view.memory, float(seen.offered[0] is not None or _on(seen) == SPOT)
    memory = dict(before)
    if before.get(_SPOT_UP) != up:
        memory |= {_SPOT_UP: up, _SPOT_SINCE: float(view.now)}
    steps_s = [one.step_s for one in view.machines() if one.step_s]
    if steps_s and abs(max(steps_s) - before.get(_STEP_S, 0.0)) > _SAME * max(steps_s):
        memory[_STEP_S] = float(max(steps_s))
    return memory


def _state(
    view: FleetView, estimates: FleetEstimates, seen: _KindsSeen, memory: Mapping[str, float]
) -> DeadlineState | None:
    """Return the state of the rule; None before the speed is known."""
    job, listed = view.job, seen.listed
    work = _work_s(view, estimates, memory)
    deadline_s = job.objective.deadline_s
    if work is None or deadline_s is None or listed is None:
        return None
    whole_s, done_s = work
    left_s = max(whole_s - done_s, memory.get(_STEP_S, 1.0))  # a job that runs has at least a step to do
    price = seen.offered[0].price_usd_per_hour if seen.offered[0] else listed.price_usd_per_hour / 3.0
    return DeadlineState(
        on=_on(seen),
        spot=seen.offered[0] is not None,
        age_s=view.now - memory[_SPOT_SINCE],
        compute_left_s=left_s,
        time_left_s=view.submitted + deadline_s - view.now,
        compute_s=whole_s,
        window_s=deadline_s,
        changeover_s=_changeover_s(job, estimates),
        tick_s=_tick_s(job),
        price_ratio=max(listed.price_usd_per_hour / price, 1.0),
        hazards=_hazards(job),
    )


def _work_s(view: FleetView, estimates: FleetEstimates, memory: Mapping[str, float]) -> tuple[float, float] | None:
    """Return how long all of the work takes, and what is safe of it, margin included [s]; None if no speed is known."""
    work = view.job.work
    assert work is not None, "the job was checked"
    speeds = [row.work_per_s for row in estimates.measured if row.unit is work.unit]
    measured = min(speeds) if speeds else None
    safe = 0.0 if view.progress is None else view.progress.safe.amount
    unit = Unit.STEP if view.progress is None else view.progress.safe.unit
    step_s = memory.get(_STEP_S, view.job.fleet_settings.get("step_s") if measured is None else None)
    if work.unit is Unit.STEP and step_s is not None:
        measured = 1.0 / step_s
    if measured is None:
        return None
    whole_s = (1.0 + MARGIN) * work.amount / measured
    if unit is work.unit:
        return whole_s, whole_s * safe / work.amount
    return whole_s, (1.0 + MARGIN) * safe * (step_s or 0.0)


def _changeover_s(job: Job, estimates: FleetEstimates) -> float:
    """Return the bound on a changeover: as stated, or twice what order, boot and restore take in the mean [s]."""
    stated = job.fleet_settings.get("changeover_s")
    if stated is not None:
        return float(stated)
    restores_s = [row.prepare_s - (row.boot_s or 0.0) for row in estimates.measured]
    return CHANGEOVER_FACTOR * (estimates.replacement.total_s + max(restores_s, default=RESTORE_S))


def _hazards(job: Job) -> AvailabilityHazards:
    """Return how spot comes and goes: by the means of the settings, or as in the public series."""
    given = job.fleet_settings
    if "available_s" not in given:
        return public_hazards.hazards()
    return availability.constant(given["available_s"], given["unavailable_s"])


def _tick_s(job: Job) -> float:
    return float(job.fleet_settings.get("decide_every_s", DECIDE_EVERY_S))


# -------------------------------------------------------------------------------------------------------- what is wanted


def _guarded(view: FleetView, seen: _KindsSeen, state: DeadlineState, chosen: int) -> int:
    """Return the choice, but leave spot while a loss would still not make the job late, if on-demand is to be had."""
    if chosen == SPOT and state.on == SPOT and seen.offered[1] is not None:
        short = state.slack_s < state.changeover_s + state.tick_s
        useful = (
            state.compute_left_s > state.changeover_s if view.job.nodes == 1 else state.slack_s >= state.changeover_s
        )
        return ON_DEMAND if short and useful else SPOT
    if chosen == ON_DEMAND and not seen.on_demand_filled and seen.offered[1] is None and state.spot:
        return SPOT  # nothing is sold on demand now, and spot is better than nothing
    return chosen


def _arrived(seen: _KindsSeen, memory: Mapping[str, float]) -> int:
    """Return what remains of a change in which both kinds are there: the new kind once it is ready, the old one if it fails."""
    if memory.get(_TO) == SPOT:
        return SPOT if seen.spot_filled else ON_DEMAND
    return ON_DEMAND if seen.on_demand_filled or not seen.spot_filled else SPOT


def _needs(view: FleetView, seen: _KindsSeen, chosen: int) -> tuple[tuple[Slot, ...], int]:
    """Return the slots, and what a change leads to."""
    have = {SPOT: seen.spot, ON_DEMAND: seen.on_demand}
    ready = {SPOT: seen.spot_ready, ON_DEMAND: seen.on_demand_ready}
    if chosen == IDLE:
        return (), IDLE
    other = ON_DEMAND if chosen == SPOT else SPOT
    new = have[chosen] or _new(view, seen, chosen)
    works = have[other] and (seen.on_demand_filled if other == ON_DEMAND else seen.spot_filled)
    if view.job.nodes == 1 and works and not (have[chosen] and ready[chosen]):
        return tuple(slot for slot in (*have[other], *new)), chosen
    return new, chosen


def _new(view: FleetView, seen: _KindsSeen, kind: int) -> tuple[Slot, ...]:
    """Return new slots of a kind; spot machines bid the price on demand."""
    job, listed = view.job, seen.listed
    (role,) = runtime_list.rules(job.runtime.name).roles
    ids = tuple(itertools.islice(new_slot_ids(role, view.now, view.needs), job.nodes))
    gang = ids[0] if job.nodes > 1 and job.fleet_settings.get("gang") else ""
    bid = listed.price_usd_per_hour if listed is not None and kind == SPOT else None
    return tuple(Slot(name, role, _KINDS[kind], (), gang, bid) for name in ids)


# ------------------------------------------------------------------------------------------------------------ the policies


def check(settings: Mapping[str, Any]) -> str | None:
    """Return what is wrong with settings; None if they are valid."""
    problem = fleet_settings.problem(settings, whole=(), numbers=_NUMBERS, flags=("gang", "may_idle"))
    if problem is None and ("available_s" in settings) != ("unavailable_s" in settings):
        return "needs both available_s and unavailable_s, or neither"
    return problem


def job_check(job: Job) -> str | None:
    """Return why a job cannot have a fleet for its deadline; None if it can."""
    if job.objective.deadline_s is None:
        return "needs a deadline to keep; write `objective: {deadline: 12h}`"
    if job.work is None:
        return "needs to know how much work there is; write `work: {steps: 100000}`"
    if job.use is not Use.AUTO:
        return f"chooses between spot and on-demand machines; write `spot_policy: auto`, not {job.use.value}"
    rules = runtime_list.rules(job.runtime.name)
    if len(rules.roles) != 1 or rules.scaling is not None:
        return f"needs a runtime with a fixed number of equal machines; {job.runtime.name} has another fleet"
    return None


def _rules(name: str, rule: DeadlineRule) -> FleetPolicyRules:
    return FleetPolicyRules(partial(decide, name, rule), check, job_check)


GREEDY_DEADLINE = _rules(policy_registry.GREEDY_DEADLINE, DeadlineRule.GREEDY)
UNIFORM_PROGRESS = _rules(policy_registry.UNIFORM_PROGRESS, DeadlineRule.UNIFORM_PROGRESS)
OPTIMAL_DEADLINE = _rules(policy_registry.OPTIMAL_DEADLINE, DeadlineRule.CHEAPEST)
