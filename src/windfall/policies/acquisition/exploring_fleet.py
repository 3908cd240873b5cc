"""`fleet: explore`: the first items of a bag run on each candidate machine type, the others on the one of least cost per item.

While a candidate has no measured time, it gets one machine.  An item's expected cost on a type is

    E[C] = c E[T] / k            c: price of a machine, k: items that it runs at once, E[T]: `selection.expected`

with T as the machines report it, so it stays up to date while the bag runs.  Then the fleet is of the best type; a machine of
another one is replaced if the items that it would still run cost more there than its replacement: the wait for a new machine,
and what is lost of the items that it runs.

    types_max       candidates, those of least price per item at once first; no more than a share of the items explores
    margin          a type is given up only if its items cost more by this share than those of the best one
    machines_max    machines at once; without it `num_nodes`
    decide_every_s  time between two looks without news

With a deadline there are as many machines as finish by then (N E[T] / time left, section 4.4, with E[T] instead of T, so that
preemptions are expected), up to `machines_max`, and one until an item was measured; without one, as many as are allowed.  No
more machines than items are left; one that has nothing to run while others can run all that is left is released.

A replacement is ordered when the machine that it replaces is gone, so that there are never more than `machines_max`.  There
are two exceptions: a machine whose end is announced, and one that is retired by its age (`replacement.retirement`), because the
next item is expected to be done earlier on a new one.  Both run items until their successor is ready.

Source: SciSpot (draft 2019), sections 4.3 and 4.4; that a change must pay for itself is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from windfall.bags import Bag
from windfall.events import ComparedValue, Decision
from windfall.fleet import Slot
from windfall.jobs import Job, Minimize
from windfall.market import Offer, OfferKey
from windfall.models import lifetime_pool, preemption_rates
from windfall.policies.acquisition import fleet_settings, ranking
from windfall.policies.acquisition.fleet_policy import (
    FleetEstimates,
    FleetMachine,
    FleetPolicyRules,
    FleetTarget,
    FleetView,
    new_slot_ids,
)
from windfall.policies.layout import bag_rules, runtime_list
from windfall.policies.layout.runtime_list import Scaling
from windfall.policies.planning import selection
from windfall.policies.planning.selection import MachineChoice
from windfall.policies.policy_registry import EXPLORE
from windfall.policies.replacement import retirement
from windfall.structs import Struct, replace
from windfall.terms import Instant, Reliability, Unit

VERSION: Final = 1
TYPES_MAX: Final = 4
EXPLORED_SHARE: Final = 0.1
"""At most this share of the items runs on types that may turn out to be bad [1]."""
MARGIN: Final = 0.05
DECIDE_EVERY_S: Final = 60.0
TYPES_SHOWN: Final = 6
"""The most types in a decision."""
ITEM_S: Final = 60.0
"""Length of an item before one was measured [s]; only the order of types by hazard depends on it."""
_WHOLE: Final = ("machines_max", "types_max")
_NUMBERS: Final = ("margin", "decide_every_s")
_HOUR_S: Final = 3600.0


class ItemCost(Struct, frozen=True):
    """What an item costs on an offer.

    Attributes:
        at_once: items that a machine runs at once.
        run_s: of an item, as measured [s]; None before.
        expected_s: with what losses repeat [s].
        usd: expected cost [USD]; before it is measured, by a time that is the same for all types.
        fails: the probability that the machine is lost before an item ends [1].
        usd_per_hour: price of a machine.
        mttp_s: its mean time to preemption [s]; infinite if it cannot be preempted.
    """

    key: OfferKey
    at_once: int
    run_s: float | None
    expected_s: float
    usd: float
    fails: float
    usd_per_hour: float
    mttp_s: float


class _Market(Struct, frozen=True):
    """The offers that can be bought now, and those of machines that are held, by what an item costs.

    Attributes:
        costs: of every offer that the job can use, by key.
        open: those that can be ordered now, the cheapest first: measured ones by expected cost, then the others by price.
        times: measured time of an item by type [s].
    """

    costs: Mapping[OfferKey, ItemCost]
    open: tuple[ItemCost, ...]
    times: Mapping[str, float]


def fleet_of(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
    """Return one machine of each candidate without a measured time, or the fleet of the best type."""
    job, scaling = view.job, runtime_list.scaling_of(view.job)
    if scaling is None:
        raise ValueError(f"the runtime {job.runtime.name} needs a fixed number of machines")
    bag = bag_rules.bag_of(job.runtime.settings)
    machines = view.machines()
    times = _times(view, machines, estimates)
    memory = {f"{_RUN}{name}": run_s for name, run_s in times.items()}
    wake_at = Instant(view.now + job.fleet_settings.get("decide_every_s", DECIDE_EVERY_S))
    market = _market(view, estimates, bag, times)
    if not market.open:
        return FleetTarget(view.needs, wake_at=wake_at, memory=memory)
    own, left = _RunnerSlots.of(view, scaling, machines), _left(view)
    explored = _worth_measuring(market, _unmeasured(market, bag, job), machines, view.now)
    if explored:
        wanted = _exploring(own, market, explored, machines_most(job, scaling))
    else:
        change = _Change(left, estimates.replacement.total_s, job.fleet_settings.get("margin", MARGIN))
        count = _count(view, market, left, scaling)
        wanted = _exploiting(own, market, change, count, machines_most(job, scaling))
    slots = tuple(_slots(view, scaling, own, wanted))
    if {slot.id: slot for slot in slots} != {slot.id: slot for slot in view.needs}:
        return FleetTarget(slots, wake_at=wake_at, decision=_decision(market, explored, slots, view), memory=memory)
    retired = None if explored else retirement.retire_one(_worked(view, machines), view.now, EXPLORE)
    if retired is None:
        return FleetTarget(view.needs, wake_at=wake_at, memory=memory)
    return FleetTarget(view.needs, (retired[0],), wake_at, retired[1], memory)


def _worked(view: FleetView, machines: Sequence[FleetMachine]) -> tuple[FleetMachine, ...]:
    """Return the machines of the needs that run items: an idle one has no next item to be weighed by."""
    wanted = {slot.id for slot in view.needs}
    return tuple(one for one in machines if one.slot in wanted and (one.busy or one.ends_at is not None))


_RUN = "run_s "


def _times(view: FleetView, machines: Sequence[FleetMachine], estimates: FleetEstimates) -> dict[str, float]:
    """Return the measured time of an item by type [s]: of machines that there are, else as remembered, else of earlier runs."""
    found = {}
    for row in estimates.measured:
        if row.unit is Unit.ITEM and row.item_s is not None:
            found[_type(row.provider, row.machine_type)] = float(row.item_s)
    found |= {name.removeprefix(_RUN): run_s for name, run_s in view.memory.items() if name.startswith(_RUN)}
    reported: dict[str, list[float]] = {}
    for one in machines:
        if one.step_s is not None and one.step_s > 0.0:
            reported.setdefault(_type(*one.key[:2]), []).append(one.step_s)
    return found | {name: math.fsum(all_s) / len(all_s) for name, all_s in reported.items()}


def _type(provider: str, machine_type: str) -> str:
    return f"{provider}/{machine_type}"


# ----------------------------------------------------------------------------------------------------------- what it costs


def item_cost(
    offer: Offer, bag: Bag, run_s: float | None, mttp_s: float, *, guess_s: float = ITEM_S, restart_s: float = 0.0
) -> ItemCost | None:
    """Return what an item of a bag costs on an offer; None if not one fits a machine.

    Args:
        offer: of one machine.
        bag: says what an item needs.
        run_s: measured time of an item there [s]; None before.
        mttp_s: mean time to preemption [s]; infinite for none.
        guess_s: the time where it is not measured [s].
        restart_s: from a loss to the item's next start [s].
    """
    at_once = bag_rules.items_at_once(bag, offer.cpus, offer.memory_gib)
    if at_once < 1:
        return None
    share_usd = offer.price_usd_per_hour / at_once
    choice = MachineChoice(offer.machine_type, bag.cores, share_usd, mttp_s, run_s if run_s is not None else guess_s)
    fails, expected_s = selection.expected(choice, 1, restart_s)
    usd = share_usd * expected_s / _HOUR_S
    return ItemCost(offer.key, at_once, run_s, expected_s, usd, fails, offer.price_usd_per_hour, mttp_s)


def _market(view: FleetView, estimates: FleetEstimates, bag: Bag, times: Mapping[str, float]) -> _Market:
    job, refused = view.job, view.refused()
    held = {machine.key for machine in view.machines()}
    guess_s = max(times.values(), default=ITEM_S)
    costs: dict[OfferKey, ItemCost] = {}
    usable = []
    for offer in view.offers:
        barred = ranking.refusal(job, offer) is not None or ranking.quota_limit(view.quotas, offer) == 0
        if barred and offer.key not in held:
            continue
        mttp_s = mttp_of(estimates.rates, offer)
        found = item_cost(offer, bag, times.get(_type(offer.provider, offer.machine_type)), mttp_s, guess_s=guess_s)
        if found is not None:
            costs[offer.key] = found
            if not barred and offer.key not in refused:
                usable.append(found)
    return _Market(costs, tuple(sorted(usable, key=lambda one: (one.run_s is None, one.usd, one.key))), times)


def mttp_of(rates: tuple[lifetime_pool.Rate, ...], offer: Offer) -> float:
    """Return the mean time to preemption of an offer's machines [s]; infinite for those that cannot be preempted."""
    if offer.reliability is Reliability.RELIABLE:
        return math.inf
    mttp_s, _ = lifetime_pool.mttp_and_restart(rates, offer.provider, offer.machine_type, offer.zone, 1)
    return preemption_rates.PRIOR_MTTP_S if mttp_s is None else mttp_s


def _unmeasured(market: _Market, bag: Bag, job: Job) -> tuple[ItemCost, ...]:
    """Return the best offer of each candidate type that is not measured yet.

    Candidates are the types of least price per item at once, as many as `types_max` and the share of items that may explore
    allow; types that are measured count among them.
    """
    most = job.fleet_settings.get("types_max", TYPES_MAX)
    by_price = sorted(market.open, key=lambda one: (one.usd / one.expected_s, one.key))
    best: dict[str, ItemCost] = {}
    for one in by_price:
        best.setdefault(_type(*one.key[:2]), one)
    room = EXPLORED_SHARE * bag.items
    candidates: list[ItemCost] = []
    for one in best.values():
        if len(candidates) < most and (not candidates or one.at_once <= room):
            candidates.append(one)
            room -= one.at_once
    if len(candidates) < 2:
        return ()
    return tuple(one for one in candidates if one.run_s is None)


def _worth_measuring(
    market: _Market, candidates: Sequence[ItemCost], machines: Sequence[FleetMachine], now: Instant
) -> tuple[ItemCost, ...]:
    """Return the candidates without those whose first items have already cost more than an item of the best type."""
    best = market.open[0]
    if best.run_s is None:
        return tuple(candidates)
    since = {_type(*one.key[:2]): one.started for one in machines if one.busy and one.started is not None}

    def spent_usd(one: ItemCost) -> float:
        started = since.get(_type(*one.key[:2]))
        return 0.0 if started is None else one.usd / one.expected_s * (now - started)

    return tuple(one for one in candidates if spent_usd(one) <= best.usd)


# --------------------------------------------------------------------------------------------------------- what is wanted


class _RunnerSlots(Struct, frozen=True):
    """The slots of runners that there are.

    Attributes:
        held: those with a machine, or with an open order, whose outcome is not known yet.
        keys: the offer of each slot's machine, or of the one that is ordered; None if neither is known.
        ordered: slots with an open order and no machine.
        busy: slots whose machine runs items.
        idle: slots whose machine is ready and runs nothing.
        announced: slots whose machine is about to end.
        leaving: machines that the job still has and that fill none of its slots.
    """

    held: tuple[Slot, ...]
    keys: Mapping[str, OfferKey | None]
    ordered: frozenset[str]
    busy: frozenset[str]
    idle: frozenset[str]
    announced: frozenset[str]
    leaving: int

    @classmethod
    def of(cls, view: FleetView, scaling: Scaling, machines: Sequence[FleetMachine]) -> _RunnerSlots:
        filled = {one.slot: one.key for one in machines}
        held = tuple(slot for slot in view.needs if slot.id in filled or slot.id in view.awaited)
        held = tuple(slot for slot in held if slot.role == scaling.role)
        keys: dict[str, OfferKey | None] = {slot.id: (slot.wants[0] if slot.wants else None) for slot in held}
        keys |= {slot: key for slot, key in filled.items() if slot in keys}
        busy = frozenset(one.slot for one in machines if one.busy)
        return cls(
            held,
            keys,
            frozenset(keys.keys() - filled.keys()),
            busy,
            frozenset(one.slot for one in machines if one.ready) - busy,
            frozenset(one.slot for one in machines if one.ends_at is not None),
            view.leaving,
        )


class _Wanted(Struct, frozen=True):
    """What a fleet is made of: slots that stay, and the offers of each other one, best first."""

    stay: tuple[Slot, ...]
    new: tuple[tuple[OfferKey, ...], ...]


def _left(view: FleetView) -> float:
    """Return how many items must still be done."""
    return bag_rules.items_left(view.job, 0.0 if view.progress is None else view.progress.done.amount)


def machines_most(job: Job, scaling: Scaling) -> int:
    """Return the most machines that a bag has at once."""
    most = min(job.fleet_settings.get("machines_max", job.nodes), scaling.machines_max or math.inf)
    return max(int(most), 1)


def machines_for(job: Job, best: ItemCost, left: float, left_s: float | None, most: int) -> int:
    """Return how many machines of a type are to run what is left of a bag.

    Args:
        job: with its objective.
        best: what an item costs on the type.
        left: items.
        left_s: until the deadline [s]; None without one.
        most: the most machines at once.
    """
    enough = max(math.ceil(left / best.at_once), 1)
    if left_s is None or job.objective.minimize is Minimize.TIME:
        return min(most, enough)
    if best.run_s is None:
        return 1
    rounds = max(math.floor(left_s / best.expected_s), 1) if math.isfinite(best.expected_s) and left_s > 0.0 else 1
    return max(min(most, enough, math.ceil(left / (best.at_once * rounds))), 1)


def _count(view: FleetView, market: _Market, left: float, scaling: Scaling) -> int:
    """Return how many machines of the best type there are to be."""
    deadline_s = view.job.objective.deadline_s
    left_s = None if deadline_s is None else view.submitted + deadline_s - view.now
    return machines_for(view.job, market.open[0], left, left_s, machines_most(view.job, scaling))


def _exploring(own: _RunnerSlots, market: _Market, explored: Sequence[ItemCost], most: int) -> _Wanted:
    """Return a slot for each candidate that has none; without room for one, a measured type makes place for it."""
    keys = [key for slot, key in own.keys.items() if key is not None and slot not in own.announced]
    kinds = {_type(*key[:2]) for key in keys}
    missing = [one for one in explored if _type(*one.key[:2]) not in kinds]
    room = most - len(own.held) - own.leaving
    if missing and room < 1 and not own.leaving:
        done = [slot for slot in own.held if slot.id not in own.ordered and _is_measured(market, own.keys[slot.id])]
        return _Wanted(tuple(slot for slot in own.held if slot not in done[-1:]), ())
    return _Wanted(own.held, tuple((one.key,) for one in missing[: max(room, 0)]))


def _is_measured(market: _Market, key: OfferKey | None) -> bool:
    return key is not None and _type(*key[:2]) in market.times


class _Change(Struct, frozen=True):
    """What a change of the fleet is weighed by.

    Attributes:
        left: items that must still be done.
        wait_s: until a new machine runs items [s].
        margin: by which items must cost more for a machine to be given up [1].
    """

    left: float
    wait_s: float
    margin: float


def _exploiting(own: _RunnerSlots, market: _Market, change: _Change, count: int, most: int) -> _Wanted:
    """Return slots of the best type; machines of others stay if their replacement does not pay.

    Args:
        own: the slots that there are.
        market: what items cost.
        change: what a change is weighed by.
        count: machines that are to be there, if all are of the best type.
        most: machines that there may be; one that is dropped counts until it is gone.
    """
    stay = [slot for slot in own.held if _stays(own, market, change, slot)]
    left = max(change.left, 1.0)  # a bag that grows may have none for a while
    if left <= _at_once(own, market, (slot.id for slot in stay if slot.id in own.busy)):
        stay = [slot for slot in stay if slot.id not in own.idle]
    keys = tuple(one.key for one in market.open if one.run_s is not None) or tuple(one.key for one in market.open)
    lacking = left - _at_once(own, market, (slot.id for slot in stay))
    new = min(count - len(stay), math.ceil(lacking / market.open[0].at_once), most - len(own.held) - own.leaving)
    return _Wanted(tuple(stay), tuple(keys for _ in range(new)))


def _at_once(own: _RunnerSlots, market: _Market, slots: Iterable[str]) -> int:
    """Return how many items machines run at once, or will once they are there."""
    keys = [key for slot in slots if (key := own.keys[slot]) is not None]
    return sum(market.costs[key].at_once for key in keys if key in market.costs)


def _stays(own: _RunnerSlots, market: _Market, change: _Change, slot: Slot) -> bool:
    """Whether a slot stays: its items cost about as little as on the best type, or a replacement would cost more.

    An order stays until it is answered: one that is withdrawn may have bought a machine all the same.
    """
    key, best = own.keys[slot.id], market.open[0]
    if slot.id in own.ordered or key is None or key not in market.costs:
        return True
    mine = market.costs[key]
    if best.run_s is None or mine.run_s is None or mine.usd <= best.usd * (1.0 + change.margin):
        return True
    saved_usd = (mine.usd - best.usd) * change.left / max(len(own.held), 1)
    wait_usd = best.usd * best.at_once / best.expected_s * change.wait_s
    lost_usd = mine.usd * mine.at_once if slot.id in own.busy | own.idle else 0.0
    return saved_usd <= wait_usd + lost_usd


def _slots(view: FleetView, scaling: Scaling, own: _RunnerSlots, wanted: _Wanted) -> Iterator[Slot]:
    """Yield the slots that stay, and the new ones; a slot without machine and order is filled first."""
    yield from wanted.stay
    empty = iter([slot for slot in view.needs if slot.role == scaling.role and slot not in own.held])
    names = new_slot_ids(scaling.role, view.now, view.needs)
    for keys in wanted.new:
        slot = next(empty, None)
        yield Slot(next(names), scaling.role, None, keys) if slot is None else replace(slot, wants=keys)


def _decision(market: _Market, explored: Sequence[ItemCost], slots: Sequence[Slot], view: FleetView) -> Decision:
    """Return what was compared: what an item costs on each type that is measured, and from what that follows."""
    shown = list({_type(*one.key[:2]): one for one in reversed(market.open) if one.run_s is not None}.values())[::-1]
    rationale = [number for one in shown[:TYPES_SHOWN] for number in _rationale(one)]
    before = {slot.id: slot for slot in view.needs}
    new = [slot.wants[0] for slot in slots if before.get(slot.id) != slot and slot.wants]
    best = market.open[0]
    if explored and new:
        places = ", ".join(f"{key[1]} in {key[2]}" for key in new)
        choice = f"try {places}: the time of an item is not measured there"
    else:
        why = "an item costs least there" if best.run_s is not None else "the least price by items at once"
        choice = f"{len(slots)} machine{'s' * (len(slots) != 1)}, new ones of {best.key[1]}: {why}"
    others = tuple(one.key[1] for one in shown if one.key[1] != best.key[1])
    return Decision(EXPLORE, VERSION, choice, tuple(rationale), others)


def _rationale(one: ItemCost) -> Iterator[ComparedValue]:
    name = one.key[1]
    yield ComparedValue(f"{name}: cost of an item", one.usd, "USD")
    yield ComparedValue(f"{name}: time of an item", one.run_s or 0.0, "s")
    yield ComparedValue(f"{name}: items at once", one.at_once, "")
    yield ComparedValue(f"{name}: price", one.usd_per_hour, "USD/h")
    if math.isfinite(one.mttp_s):
        yield ComparedValue(f"{name}: mean time to preemption", one.mttp_s, "s")
    yield ComparedValue(f"{name}: lost before it ends", one.fails, "")


# ------------------------------------------------------------------------------------------------------------- the policy


def check(settings: Mapping[str, Any]) -> str | None:
    """Return what is wrong with settings; None if they are valid."""
    return fleet_settings.problem(settings, whole=_WHOLE, numbers=_NUMBERS)


def job_check(job: Job) -> str | None:
    """Return why a job cannot have this policy: it is for bags."""
    if bag_rules.settings_problem(job.runtime.settings) is not None:
        return "is for bags of items; write a block bag, or another fleet"
    return None


RULES = FleetPolicyRules(fleet_of, check, job_check, step_times=True, ages=True)
