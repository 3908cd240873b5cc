"""What is bought: the needs of a batch become one decision; an order's outcome is an answer, or what a listing shows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from windfall.core import closing, machines
from windfall.core.fleet_state import CANCELLED_KEPT, FleetTurn, OrderEntry
from windfall.core.lifecycle import ORDER, MachineState, OrderState, move
from windfall.events import Because, Decision
from windfall.fleet import (
    AskListing,
    CancelOrder,
    ControllerBegan,
    ListedAll,
    OffersSeen,
    OrderAnswered,
    OrderUnanswered,
    PlaceOrder,
)
from windfall.market import Offer, Order, Refusal
from windfall.policies import buying, replacement
from windfall.policies.keeping import backoff, choice
from windfall.policies.replacement import Expected
from windfall.records import renewed
from windfall.terms import Instant

_VERSION = 1


# -------------------------------------------------------------------------------------------------------------- answers


def answered(turn: FleetTurn, fact: OrderAnswered) -> None:
    """The provider answered: its machines are assigned, the rest of the slots may ask elsewhere."""
    entry = turn.orders.get(fact.token)
    if entry is None:
        return
    for machine_id in fact.machine_ids:
        machines.promised(turn, machine_id, fact.token)
    entry = turn.orders[fact.token]
    if entry.state is not OrderState.CANCELLED:
        move(ORDER, entry.state, OrderState.ANSWERED)
        refusal = fact.refusal
        if refusal is None and len(fact.machine_ids) < entry.order.count_max:
            refusal = Refusal.NO_CAPACITY
        _learn(turn, entry.order.offer, bool(fact.machine_ids), refusal, fact.sentence)
    _close(turn, fact.token)


def _learn(turn: FleetTurn, offer: Offer, some: bool, refusal: Refusal | None, sentence: str) -> None:
    """Remember what an answer says of an offer: it has machines again, or it is left alone for a while."""
    before = turn.blocks.pop(offer.key, None)
    if refusal is not None and refusal is not Refusal.CANCELLED:
        turn.blocks[offer.key] = backoff.blocked(None if some else before, refusal, sentence, turn.now)
    elif before is not None and before.refusal is None:
        turn.blocks[offer.key] = before  # that its machines die early is not mended by selling one more


def _close(turn: FleetTurn, token: str) -> None:
    """Nothing more comes of an order: slots that still await it are open again."""
    waiting = turn.awaiting(token)
    while waiting:
        turn.set_slot(turn.slots[waiting.pop()], awaits=None)
    entry = turn.orders[token]
    if entry.state is OrderState.CANCELLED:
        turn.orders[token] = renewed(entry, unsure=False)
    else:
        del turn.orders[token]


def unanswered(turn: FleetTurn, fact: OrderUnanswered) -> None:
    """Nobody knows whether an order was taken: until a listing tells, nothing is asked in its place."""
    entry = turn.orders.get(fact.token)
    if entry is None:
        return
    if entry.state is OrderState.ASKED:
        state = move(ORDER, entry.state, OrderState.UNKNOWN)
        turn.orders[fact.token] = renewed(entry, state=state, tries=entry.tries + 1, ask_at=None)
    turn.order(AskListing(entry.order.offer.provider))


def listed_all(turn: FleetTurn, fact: ListedAll) -> None:
    """A provider's whole listing was compared: what it has of our orders is known."""
    turn.change(listed=turn.state.listed | {fact.provider})
    for token, entry in list(turn.orders.items()):
        if entry.order.offer.provider != fact.provider:
            continue
        if entry.state is OrderState.UNKNOWN and entry.ask_at is None:
            pause_s = 0.0 if entry.tries == 0 else backoff.pause_s(entry.tries)
            turn.orders[token] = renewed(entry, ask_at=Instant(turn.now + pause_s))
        elif entry.state is OrderState.CANCELLED and entry.unsure:
            turn.orders[token] = renewed(entry, unsure=False)


def controller_began(turn: FleetTurn, fact: ControllerBegan) -> None:
    """What was under way when the last controller ended is not known any more."""
    del fact
    providers = {offer.provider for offer in turn.state.offers}
    for token, entry in list(turn.orders.items()):
        providers.add(entry.order.offer.provider)
        state = entry.state
        if state is OrderState.ASKED:
            state = move(ORDER, state, OrderState.UNKNOWN)
        if state is OrderState.CANCELLED and entry.unsure:
            turn.order(CancelOrder(token, entry.order.offer.provider))
        turn.orders[token] = renewed(entry, state=state, ask_at=None)
    for unit in list(turn.units.values()):
        providers.add(unit.machine.provider)
        # Everybody gets the benefit of the doubt: nobody listened meanwhile.
        changes: dict[str, object] = {
            "silent_since": None,
            "injected": unit.injected and unit.state is MachineState.DOOMED,
        }
        if unit.heard_at is not None:
            changes["heard_at"] = turn.now
        if unit.state is MachineState.RELEASING:
            changes["released_at"] = Instant(-math.inf)
        turn.set_unit(unit, **changes)
    turn.change(listed=frozenset(), wake_at=None)
    for provider in sorted(providers):
        turn.order(AskListing(provider))


def offers_seen(turn: FleetTurn, fact: OffersSeen) -> None:
    """The market has changed: providers that answer again with offers are asked again."""
    turn.change(offers_at=turn.now, offers=fact.offers, quotas=fact.quotas, troubles=fact.troubles)
    troubled = {provider for provider, _, _ in fact.troubles}
    answering = {offer.provider for offer in fact.offers} - troubled
    known = {offer.key for offer in fact.offers}
    for key, block in list(turn.blocks.items()):
        again = block.refusal is Refusal.CREDENTIALS and key[0] in answering
        forgotten = key not in known and turn.now >= block.until
        raised = block.refusal is Refusal.QUOTA and _has_room(fact, key)
        if again or forgotten or raised:
            del turn.blocks[key]


def _has_room(fact: OffersSeen, key: tuple[object, ...]) -> bool:
    rooms = [
        quota.limit - quota.used
        for quota in fact.quotas
        if quota.machine_type == key[1] and quota.zone in {None, key[2]}
    ]
    return min(rooms, default=0) > 0


# --------------------------------------------------------------------------------------------------------------- buying


@dataclass(frozen=True, slots=True)
class _Needs:
    """Slots that want a machine now: those that have none, and those whose machine's end is announced."""

    open: tuple[int, ...]
    announced: tuple[int, ...]
    left_s: float

    @property
    def slots(self) -> tuple[int, ...]:
        """All of them; those without a machine come first."""
        return (*self.open, *self.announced)


def settle(turn: FleetTurn) -> None:
    """After all facts: close and repeat orders, then buy what lacks."""
    _tidy(turn)
    if turn.active:
        _ask_again(turn)
        if turn.now < turn.state.calm_until and not any(slot.incumbent for slot in turn.slots):
            turn.later.append(turn.state.calm_until)
        else:
            _buy(turn)


def _tidy(turn: FleetTurn) -> None:
    """Close orders of which every machine has come, and forget the oldest cancelled ones."""
    for token, entry in list(turn.orders.items()):
        if entry.waiting == 0 and entry.state is OrderState.UNKNOWN:
            move(ORDER, entry.state, OrderState.ANSWERED)
            turn.blocks.pop(entry.order.offer.key, None)
            del turn.orders[token]
    cancelled = [
        token for token, entry in turn.orders.items() if entry.state is OrderState.CANCELLED and not entry.unsure
    ]
    for token in cancelled[:-CANCELLED_KEPT]:
        del turn.orders[token]


def _ask_again(turn: FleetTurn) -> None:
    """Ask an order of unknown outcome again, with the same token: it buys nothing twice.

    If it was never taken it buys what is still awaited: a slot may have withdrawn its notice meanwhile.
    """
    for token, entry in list(turn.orders.items()):
        if entry.state is not OrderState.UNKNOWN or entry.ask_at is None:
            continue
        if turn.now < entry.ask_at:
            turn.later.append(entry.ask_at)
        elif entry.order.offer.provider in turn.state.listed:
            taken = any(unit.machine.token == token for unit in turn.units.values())
            order = entry.order if taken else replace(entry.order, count_max=entry.waiting)
            asked = move(ORDER, entry.state, OrderState.ASKED)
            turn.orders[token] = renewed(entry, order=order, state=asked, ask_at=None)
            turn.order(PlaceOrder(order))


def _buy(turn: FleetTurn) -> None:
    expected = expect(turn)
    needs = _needs(turn, expected)
    if not needs.slots or turn.state.offers_at is None:
        turn.change(refused=(), retry_at=None)
        return
    state = turn.state
    ranking = buying.rank(turn.job, state.offers, state.rates, state.measured)
    listed = state.listed
    market = choice.Market(ranking, turn.blocks, state.quotas, state.troubles, lambda provider: provider in listed)
    chosen = choice.choose(market, len(needs.slots), turn.now)
    turn.change(refused=chosen.reasons if chosen.lacking else (), retry_at=chosen.retry_at if chosen.lacking else None)
    if chosen.lacking and chosen.retry_at is not None:
        turn.later.append(chosen.retry_at)
    if chosen.orders and not _affordable(turn, chosen):
        return
    _place(turn, chosen, needs, expected)


def expect(turn: FleetTurn) -> Expected:
    """Return what a replacement is expected to take: as the job has seen, or as the offers say."""
    state = turn.state
    said = [offer.startup_s for offer in state.offers if offer.startup_s is not None]
    return replacement.expect(max(said, default=None), state.allocations.mean, state.boots.mean)


def _needs(turn: FleetTurn, expected: Expected) -> _Needs:
    opened: list[int] = []
    announced: list[int] = []
    left_s = math.inf
    # A successor that is announced itself has to wait until the machine that it superseded is really gone.
    leaving = {unit.superseded_in for unit in turn.units.values() if unit.superseded_in is not None}
    for slot in turn.slots:
        if slot.awaits is not None:
            continue
        if slot.incumbent is None:
            opened.append(slot.index)
        elif slot.successor is None:
            unit = turn.units[slot.incumbent]
            if unit.state is not MachineState.DOOMED or unit.ends_at is None or slot.index in leaving:
                continue
            order_at = replacement.order_at(unit.ends_at, expected)
            if turn.now < order_at:
                turn.later.append(order_at)
                continue
            announced.append(slot.index)
            left_s = min(left_s, unit.ends_at - turn.now)
    return _Needs(tuple(opened), tuple(announced), left_s)


def _affordable(turn: FleetTurn, chosen: choice.Choice) -> bool:
    """Say whether the budget bears what would be bought; if not, the job ends."""
    more = sum(ranked.offer.price_usd_per_hour * count for ranked, count in chosen.orders)
    return not closing.over_budget(turn, more)


def _place(turn: FleetTurn, chosen: choice.Choice, needs: _Needs, expected: Expected) -> None:
    """Take one decision for all needs; one order an offer."""
    slots = list(reversed(needs.slots))
    choices: list[str] = []
    for ranked, count in chosen.orders:
        sequence = turn.state.sequence + 1
        turn.change(sequence=sequence)
        order = _order(turn, ranked.offer, count, sequence)
        turn.orders[order.token] = OrderEntry(order, OrderState.ASKED, turn.now, count)
        _await(turn, order.token, [slots.pop() for _ in range(count)])
        turn.order(PlaceOrder(order))
        offer = ranked.offer
        choices.append(f"order {count} {offer.machine_type} in {offer.zone} at {offer.price_usd_per_hour:g} USD/h")
    if not choices:
        return
    because = [Because("machines lacking", len(needs.open), "")]
    if needs.announced:
        because += replacement.because(len(needs.announced), needs.left_s, expected)
    because += chosen.orders[0][0].because
    if chosen.reasons:
        turn.tell(f"better offers cannot be had now: {'; '.join(chosen.reasons)}")
    policy = "replacement" if needs.announced and not needs.open else "keeping"
    turn.decisions.append(Decision(policy, _VERSION, "; ".join(choices), tuple(because), chosen.reasons or ("wait",)))


def _order(turn: FleetTurn, offer: Offer, count: int, sequence: int) -> Order:
    job = turn.job
    token = f"{job.job_id}-{sequence}"
    bid = job.max_price_usd_per_hour if offer.bid else None
    return Order(token, turn.state.owner, job.job_id, offer, 1, count, bid)


def _await(turn: FleetTurn, token: str, indexes: Iterable[int]) -> None:
    for index in indexes:
        turn.set_slot(turn.slots[index], awaits=token)
