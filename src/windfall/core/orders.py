"""Orders: the needs of a batch become one decision; the outcome of an order is its answer or what a listing shows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from windfall.core import job_end, machines, offer_changes
from windfall.core.fleet_state import CANCELLED_KEPT, FleetTurn, OrderEntry, TrackedMachine
from windfall.core.lifecycle import ORDER, MachineState, OrderState, transition
from windfall.events import ComparedValue, Decision
from windfall.fleet import (
    CancelOrder,
    ControllerStarted,
    ListingCompleted,
    OffersChanged,
    OffersObserved,
    OrderAnswered,
    OrderUnanswered,
    PlaceOrder,
    RequestListing,
    Slot,
)
from windfall.market import Offer, OfferKey, Order, Refusal
from windfall.policies.acquisition import fleet_policy, ranking
from windfall.policies.policy_registry import BAG, BUYING, SUCCESSION
from windfall.policies.replacement import successor
from windfall.policies.replacement.successor import ReplacementTime
from windfall.structs import Struct, replace
from windfall.terms import Instant

_VERSION = 1


# -------------------------------------------------------------------------------------------------------------- answers


def answered(turn: FleetTurn, fact: OrderAnswered) -> None:
    """Record a provider's answer: assign its machines; the remaining slots may order elsewhere."""
    entry = turn.orders.get(fact.token)
    if entry is None:
        return
    for machine_id in fact.machine_ids:
        machines.promised(turn, machine_id, fact.token)
    entry = turn.orders[fact.token]
    if entry.state is not OrderState.CANCELLED:
        transition(ORDER, entry.state, OrderState.ANSWERED)
        refusal = fact.refusal
        if refusal is None and len(fact.machine_ids) < entry.order.count_max:
            refusal = Refusal.NO_CAPACITY
        _update_block(turn, entry.order.offer, bool(fact.machine_ids), refusal, fact.message)
    _close_order(turn, fact.token)
    if entry.order.gang and len(fact.machine_ids) < entry.order.count_max:
        for machine_id in fact.machine_ids:
            if machine_id in turn.units:
                turn.release(turn.units[machine_id], "its gang is not complete")


def _update_block(turn: FleetTurn, offer: Offer, some: bool, refusal: Refusal | None, message: str) -> None:
    """Update the block of an offer from an answer: it has machines again, or it is not tried for a while."""
    before = turn.blocks.pop(offer.key, None)
    if refusal is not None and refusal is not Refusal.CANCELLED:
        turn.blocks[offer.key] = ranking.block_after(None if some else before, refusal, message, turn.now)
    elif before is not None and before.refusal is None:
        turn.blocks[offer.key] = before  # one more sale does not mean that its machines live longer


def _close_order(turn: FleetTurn, token: str) -> None:
    """Close an order; slots that still wait for it are open again."""
    waiting = turn.awaiting(token)
    while waiting:
        turn.set_slot(turn.slots[waiting.pop()], awaits=None)
    entry = turn.orders[token]
    if entry.state is OrderState.CANCELLED:
        turn.orders[token] = replace(entry, outcome_unknown=False)
    else:
        del turn.orders[token]


def unanswered(turn: FleetTurn, fact: OrderUnanswered) -> None:
    """Record an order of unknown outcome; nothing replaces it until a listing shows the outcome."""
    entry = turn.orders.get(fact.token)
    if entry is None:
        return
    if entry.state is OrderState.ASKED:
        state = transition(ORDER, entry.state, OrderState.UNKNOWN)
        turn.orders[fact.token] = replace(entry, state=state, tries=entry.tries + 1, resend_at=None)
    turn.emit(RequestListing(entry.order.offer.provider))


def listed_all(turn: FleetTurn, fact: ListingCompleted) -> None:
    """Record that a provider's complete listing was compared, so the outcome of its orders is known."""
    turn.change(listed=turn.state.listed | {fact.provider})
    for token, entry in list(turn.orders.items()):
        if entry.order.offer.provider != fact.provider:
            continue
        if entry.state is OrderState.UNKNOWN and entry.resend_at is None:
            pause_s = 0.0 if entry.tries == 0 else ranking.pause_s(entry.tries)
            turn.orders[token] = replace(entry, resend_at=Instant(turn.now + pause_s))
        elif entry.state is OrderState.CANCELLED and entry.outcome_unknown:
            turn.orders[token] = replace(entry, outcome_unknown=False)


def controller_started(turn: FleetTurn, fact: ControllerStarted) -> None:
    """Mark everything in progress as unknown, because a new controller started."""
    del fact
    providers = {offer.provider for offer in turn.state.offers}
    for token, entry in list(turn.orders.items()):
        providers.add(entry.order.offer.provider)
        state = entry.state
        if state is OrderState.ASKED:
            state = transition(ORDER, state, OrderState.UNKNOWN)
        if state is OrderState.CANCELLED and entry.outcome_unknown:
            turn.emit(CancelOrder(token, entry.order.offer.provider))
        turn.orders[token] = replace(entry, state=state, resend_at=None)
    for unit in list(turn.units.values()):
        providers.add(unit.machine.provider)
        # Contact times restart: no controller was listening meanwhile.
        changes: dict[str, object] = {
            "silent_since": None,
            "injected": unit.injected and unit.state is MachineState.PREEMPTING,
        }
        if unit.last_contact_at is not None:
            changes["last_contact_at"] = turn.now
        if unit.state is MachineState.RELEASING:
            changes["released_at"] = Instant(-math.inf)
        turn.set_unit(unit, **changes)
    turn.change(listed=frozenset(), timer_at=None)
    for provider in sorted(providers):
        turn.emit(RequestListing(provider))


def offers_seen(turn: FleetTurn, fact: OffersObserved) -> None:
    """Record new offers, and unblock offers whose credentials, quota or listing have changed."""
    turn.change(offers_at=turn.now, offers=fact.offers, quotas=fact.quotas, provider_errors=fact.provider_errors)
    troubled = {provider for provider, _, _ in fact.provider_errors}
    answering = {offer.provider for offer in fact.offers} - troubled
    known = {offer.key for offer in fact.offers}
    for key, block in list(turn.blocks.items()):
        accepted = block.refusal is Refusal.CREDENTIALS and key[0] in answering
        forgotten = key not in known and turn.now >= block.until
        raised = block.refusal is Refusal.QUOTA and _has_room(fact, key)
        if accepted or forgotten or raised:
            del turn.blocks[key]


def offers_changed(turn: FleetTurn, fact: OffersChanged) -> None:
    """Record what changed of the offers; everything follows from it as from all offers."""
    offers_seen(turn, offer_changes.applied(turn.state, fact, turn.now))


def _has_room(fact: OffersObserved, key: tuple[object, ...]) -> bool:
    rooms = [
        quota.limit - quota.used
        for quota in fact.quotas
        if quota.machine_type == key[1] and quota.zone in {None, key[2]}
    ]
    return min(rooms, default=0) > 0


# --------------------------------------------------------------------------------------------------------------- buying


class _Needs(Struct, frozen=True):
    """Slots that need a machine now, of one kind: those without one, and those whose machine will leave.

    Attributes:
        left_s: time until the first of them leaves [s].
        kind: what is ordered for all of them; of a slot in a gang, the whole gang.
    """

    kind: Slot
    open: tuple[str, ...]
    announced: tuple[str, ...]
    left_s: float

    @property
    def slots(self) -> tuple[str, ...]:
        """All of them; those without a machine come first."""
        return (*self.open, *self.announced)


def settle(turn: FleetTurn) -> None:
    """Close and resend orders, then buy missing machines; runs after all facts of a batch."""
    _close_orders(turn)
    if turn.active:
        _resend(turn)
        if turn.now < turn.state.buying_paused_until and not any(slot.incumbent for slot in turn.slots.values()):
            turn.later.append(turn.state.buying_paused_until)
        else:
            _buy(turn)


def _close_orders(turn: FleetTurn) -> None:
    """Close orders whose machines have all come, and drop the oldest cancelled ones."""
    for token, entry in list(turn.orders.items()):
        if entry.waiting == 0 and entry.state is OrderState.UNKNOWN:
            transition(ORDER, entry.state, OrderState.ANSWERED)
            turn.blocks.pop(entry.order.offer.key, None)
            del turn.orders[token]
    cancelled = [
        token
        for token, entry in turn.orders.items()
        if entry.state is OrderState.CANCELLED and not entry.outcome_unknown
    ]
    for token in cancelled[:-CANCELLED_KEPT]:
        del turn.orders[token]


def _resend(turn: FleetTurn) -> None:
    """Resend an order of unknown outcome with the same token, so that it never buys twice.

    If it was never accepted, it buys only what is still needed: a notice may have been withdrawn meanwhile.
    """
    for token, entry in list(turn.orders.items()):
        if entry.state is not OrderState.UNKNOWN or entry.resend_at is None:
            continue
        if turn.now < entry.resend_at:
            turn.later.append(entry.resend_at)
        elif entry.order.offer.provider in turn.state.listed:
            accepted = any(unit.machine.token == token for unit in turn.units.values())
            order = entry.order if accepted or entry.order.gang else replace(entry.order, count_max=entry.waiting)
            asked = transition(ORDER, entry.state, OrderState.ASKED)
            turn.orders[token] = replace(entry, order=order, state=asked, resend_at=None)
            turn.emit(PlaceOrder(order))


def _buy(turn: FleetTurn) -> None:
    expected = expect(turn)
    found = _needs(turn, expected)
    turn.change(refused=(), retry_at=None)
    if turn.state.offers_at is None:
        return
    pooled = _machines_held(turn)
    chosen = [(needs, _choose(turn, needs, pooled)) for needs in found]
    orders = [order for _, choice in chosen for order in choice.orders]
    if orders and job_end.over_budget(turn, [(ranked.offer, count) for ranked, count in orders]):
        return
    for needs, choice in chosen:
        _place_orders(turn, choice, needs, expected)


def _machines_held(turn: FleetTurn) -> Counter[OfferKey]:
    """Return the machines that the job has or has ordered, by offer; those that are about to leave do not count.

    It is empty where nothing limits how many of one offer there may be.
    """
    pooled: Counter[OfferKey] = Counter()
    if turn.job.limits.pool_machines_max is None:
        return pooled
    for unit in turn.units.values():
        if unit.slot is not None and unit.ends_at is None and unit.drain_at is None:
            pooled[unit.key] += unit.state is not MachineState.RELEASING
    for entry in turn.orders.values():
        if entry.state is not OrderState.CANCELLED:
            pooled[entry.order.offer.key] += entry.waiting
    return pooled


def _choose(turn: FleetTurn, needs: _Needs, pooled: Counter[OfferKey]) -> ranking.OfferChoice:
    """Return what to order for slots of one kind; record why not all of them can be served.

    Args:
        turn: the turn.
        needs: the slots.
        pooled: the job's machines by offer; gets what is to be ordered.
    """
    market = _market(turn, needs.kind, pooled)
    chosen = ranking.choose(market, len(needs.slots), turn.now, whole=bool(needs.kind.gang))
    for ranked, count in chosen.orders:
        pooled[ranked.offer.key] += count
    if chosen.unmet:
        state = turn.state
        retries = [at for at in (state.retry_at, chosen.retry_at) if at is not None]
        refused = tuple(dict.fromkeys((*state.refused, *chosen.reasons)))
        turn.change(refused=refused, retry_at=min(retries, default=None))
        if chosen.retry_at is not None:
            turn.later.append(chosen.retry_at)
    return chosen


def _market(turn: FleetTurn, kind: Slot, pooled: Mapping[OfferKey, int]) -> ranking.OfferMarket:
    """Return the market for slots of one kind: the offers that it wants."""
    state = turn.state
    ranked = ranking.rank_for(turn.job, kind, state.offers, state.rates, state.measured)
    listed = state.listed
    return ranking.OfferMarket(
        ranked,
        turn.blocks,
        state.quotas,
        state.provider_errors,
        lambda provider: provider in listed,
        turn.job.limits,
        pooled,
    )


def expect(turn: FleetTurn) -> ReplacementTime:
    """Return the expected time of a replacement, from the job's own machines or from the offers."""
    state = turn.state
    startups_s = [offer.startup_s for offer in state.offers if offer.startup_s is not None]
    return successor.expect(max(startups_s, default=None), state.allocations.mean, state.boots.mean)


def _needs(turn: FleetTurn, expected: ReplacementTime) -> tuple[_Needs, ...]:
    """Return which slots need a machine now, by kind."""
    opened, announced = _open_and_leaving(turn, expected)
    if not opened and not announced:
        return ()
    kinds: dict[tuple[object, ...], list[str]] = {}
    for slot_id in (*opened, *announced):
        need = turn.slots[slot_id].need
        kinds.setdefault((need.reliability, need.wants, need.gang, need.bid_usd_per_hour), []).append(slot_id)
    found = []
    for slot_ids in kinds.values():
        kind = turn.slots[slot_ids[0]].need
        if kind.gang and not _whole_gang(turn, kind.gang, slot_ids):
            continue
        leaving = tuple(name for name in slot_ids if name in announced)
        left_s = min((announced[name] for name in leaving), default=math.inf)
        found.append(_Needs(kind, tuple(name for name in slot_ids if name not in announced), leaving, left_s))
    return tuple(found)


def _whole_gang(turn: FleetTurn, gang: str, slot_ids: list[str]) -> bool:
    """Return whether all slots of a gang need a machine: it is ordered as one."""
    return len(slot_ids) == sum(slot.need.gang == gang and not slot.retiring for slot in turn.slots.values())


def _open_and_leaving(turn: FleetTurn, expected: ReplacementTime) -> tuple[list[str], dict[str, float]]:
    """Return the slots without a machine, and those whose machine leaves, with the time until then [s]."""
    opened: list[str] = []
    announced: dict[str, float] = {}
    gangs = _leaving_gangs(turn)
    # A successor with an announced end gets no successor before the machine that it replaced is gone.
    leaving = {unit.superseded_in for unit in turn.units.values() if unit.superseded_in is not None}
    for slot in turn.slots.values():
        if slot.awaits is not None or slot.retiring:
            continue
        if slot.incumbent is None:
            opened.append(slot.id)
        elif slot.successor is None and slot.id not in leaving:
            leaves_at, order_at = _leaves_at(turn.units[slot.incumbent], expected, gangs.get(slot.need.gang))
            if leaves_at is None:
                continue
            if turn.now < order_at:
                turn.later.append(order_at)
                continue
            announced[slot.id] = leaves_at - turn.now
    return opened, announced


def _leaves_at(
    unit: TrackedMachine, expected: ReplacementTime, with_gang: Instant | None
) -> tuple[Instant | None, Instant]:
    """Return when a machine leaves, None if it stays, and when to order its successor."""
    if unit.state is MachineState.PREEMPTING and unit.ends_at is not None:
        return unit.ends_at, successor.order_at(unit.ends_at, expected)
    if unit.drain_at is not None and unit.state is not MachineState.RELEASING:
        return unit.drain_at, Instant(-math.inf)
    if with_gang is not None and unit.state is not MachineState.RELEASING:
        return with_gang, successor.order_at(with_gang, expected)
    return None, Instant(-math.inf)


def _leaving_gangs(turn: FleetTurn) -> dict[str, Instant]:
    """Return the gangs of which a machine's end is announced, with the earliest end: the others end with it."""
    ends: dict[str, Instant] = {}
    for unit in turn.units.values():
        if unit.state is MachineState.PREEMPTING and unit.ends_at is not None and unit.slot is not None:
            gang = turn.slots[unit.slot].need.gang
            if gang:
                ends[gang] = min(ends.get(gang, unit.ends_at), unit.ends_at)
    return ends


def _place_orders(turn: FleetTurn, chosen: ranking.OfferChoice, needs: _Needs, expected: ReplacementTime) -> None:
    """Make one decision for all needs, with one order per offer."""
    slots = list(reversed(needs.slots))
    choices: list[str] = []
    for ranked, count in chosen.orders:
        sequence = turn.state.sequence + 1
        turn.change(sequence=sequence)
        order = _order(turn, ranked.offer, count, sequence, needs.kind)
        turn.orders[order.token] = OrderEntry(order, OrderState.ASKED, turn.now, count)
        _set_awaits(turn, order.token, [slots.pop() for _ in range(count)])
        turn.emit(PlaceOrder(order))
        offer = ranked.offer
        choices.append(f"order {count} {offer.machine_type} in {offer.zone} at {offer.price_usd_per_hour:g} USD/h")
    if not choices:
        return
    rationale = [ComparedValue("machines missing", len(needs.open), "")]
    if needs.announced:
        rationale += successor.rationale(len(needs.announced), needs.left_s, expected)
    best = chosen.orders[0][0]
    rationale += best.rationale_of_start if turn.job.runtime.name == BAG else best.rationale
    if chosen.reasons:
        turn.log(f"better offers are unavailable now: {'; '.join(chosen.reasons)}")
    policy = SUCCESSION if needs.announced and not needs.open else BUYING
    turn.decisions.append(Decision(policy, _VERSION, "; ".join(choices), tuple(rationale), chosen.reasons or ("wait",)))


def _order(turn: FleetTurn, offer: Offer, count: int, sequence: int, kind: Slot) -> Order:
    job, gang = turn.job, bool(kind.gang)
    token = f"{job.job_id}-{sequence}"
    bid = fleet_policy.price_limit_usd(job, kind.bid_usd_per_hour) if offer.bid else None
    return Order(token, turn.state.owner, job.job_id, offer, count if gang else 1, count, bid, gang)


def _set_awaits(turn: FleetTurn, token: str, slot_ids: Iterable[str]) -> None:
    for slot_id in slot_ids:
        turn.set_slot(turn.slots[slot_id], awaits=token)
