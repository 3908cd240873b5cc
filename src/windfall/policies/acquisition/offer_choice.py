"""Keep-alive: choose the next offer to order from, and explain to the user when none is left.

The best-ranked offer that is not blocked gets the order for all missing machines.  A refusal therefore moves on at once
to the next zone, type, or (with `use: auto`) on-demand machine, while the first one backs off (thesis, section 5.1).

Keep-alive: how long a refused offer is blocked (thesis, section 5.1: allocate until it works).

A lack of capacity and a price above the bid pass with time, so these back off exponentially.  A quota and rejected
credentials need a person: they are shown to the user and retried slowly.  An invalid request is never repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from windfall.market import Offer, Quota, Refusal
from windfall.policies.acquisition.ranking import Ranked, Ranking
from windfall.structs import Struct
from windfall.terms import Instant, Reliability, Seconds

FIRST_S, FACTOR, LONGEST_S = 1.0, 2.0, 300.0
"""Pause after the first refusal [s], the factor for each further one, the upper bound [s]."""
MANUAL_RETRY_S = 300.0
"""Pause before an automatic retry after a quota or credentials refusal, which a person has to fix [s]."""


class OfferBlock(Struct, frozen=True):
    """Why an offer cannot be ordered now.

    Attributes:
        refusal: None if machines of this offer failed to start.
        message: the provider's message.
        refusals: how many in a row.
        until: when it can be tried again; infinity for never.
    """

    refusal: Refusal | None
    message: str
    refusals: int
    until: Instant


def pause_s(refusals: int) -> Seconds:
    """Return the pause after a number of refusals in a row: min(FIRST_S x FACTOR^(tries - 1), LONGEST_S) [s].

    Args:
        refusals: from 1.
    """
    assert refusals >= 1, "there is no pause before the first refusal"
    return Seconds(min(FIRST_S * FACTOR ** min(refusals - 1, 32), LONGEST_S))


def block_after(before: OfferBlock | None, refusal: Refusal | None, message: str, now: Instant) -> OfferBlock:
    """Return the block after one more refusal.

    Args:
        before: the offer's previous block; None if the offer has sold a machine since.
        refusal: None for a machine that failed to start.
        message: the provider's message.
        now: when it was refused.
    """
    refusals = 1 if before is None or before.refusal is not refusal else before.refusals + 1
    if refusal is Refusal.INVALID:
        until = Instant(math.inf)
    elif refusal in {Refusal.QUOTA, Refusal.CREDENTIALS}:
        until = Instant(now + MANUAL_RETRY_S)
    else:
        until = Instant(now + pause_s(refusals))
    return OfferBlock(refusal, message, refusals, until)


_Key = tuple[str, str, str, Reliability]
REASONS_MAX = 8
"""How many reasons are kept, those of the best-ranked offers first."""


class OfferMarket(Struct, frozen=True):
    """The state of the market.

    Attributes:
        ranking: of all offers for this job.
        blocks: offers that cannot be ordered now.
        quotas: the account's limits.
        provider_errors: (provider, refusal, message) of providers that returned no offers.
        usable: whether a provider can take orders now (its listing is known).
    """

    ranking: Ranking
    blocks: Mapping[_Key, OfferBlock]
    quotas: tuple[Quota, ...]
    provider_errors: tuple[tuple[str, Refusal, str], ...]
    usable: Callable[[str], bool]


class OfferChoice(Struct, frozen=True):
    """What to order.

    Attributes:
        orders: (offer, count), best first.
        unmet: how many machines cannot be ordered now.
        reasons: why not, the best-ranked offer's first.
        retry_at: when one of the blocked offers can be tried again; None if never.
    """

    orders: tuple[tuple[Ranked, int], ...]
    unmet: int
    reasons: tuple[str, ...]
    retry_at: Instant | None


def choose(market: OfferMarket, needed: int, now: Instant) -> OfferChoice:
    """Choose what to order.

    Args:
        market: its state.
        needed: how many machines are missing.
        now: the current time.
    """
    orders: list[tuple[Ranked, int]] = []
    reasons: list[str] = []
    retry_at, pending = math.inf, False
    refused_by = {
        provider: message for provider, reason, message in market.provider_errors if reason is Refusal.CREDENTIALS
    }
    for ranked in market.ranking.ranked:
        if needed == 0:
            break
        offer = ranked.offer
        if not market.usable(offer.provider):
            pending = True
            continue
        limit = quota_limit(market.quotas, offer)
        reason, until = _hold_reason(market, refused_by, offer, now)
        if limit == 0:
            reason, until = f"quota 0 for {offer.machine_type} in {offer.zone}", math.inf
        if reason is not None:
            reasons.append(reason)
            retry_at = min(retry_at, until)
            continue
        count = needed if limit is None else min(needed, limit)
        orders.append((ranked, count))
        needed -= count
    if needed and not pending:
        reasons += _other_reasons(market)
    kept = tuple(dict.fromkeys(reasons))[:REASONS_MAX]
    return OfferChoice(tuple(orders), needed, kept, Instant(retry_at) if retry_at < math.inf else None)


def quota_limit(quotas: tuple[Quota, ...], offer: Offer) -> int | None:
    """Return how many machines of an offer's type the account may have in its zone; None if unknown.

    Machines in use are not subtracted: one of them may just be being preempted, and a refusal costs nothing.
    """
    limits = [
        quota.limit for quota in quotas if quota.machine_type == offer.machine_type and quota.zone in {None, offer.zone}
    ]
    return min(limits, default=None)


def _hold_reason(
    market: OfferMarket, refused_by: Mapping[str, str], offer: Offer, now: Instant
) -> tuple[str | None, float]:
    """Return why an offer cannot be ordered now, and until when; None if it can."""
    if offer.provider in refused_by:
        return f"{offer.provider} does not accept the credentials: {refused_by[offer.provider]}", math.inf
    for key, block in market.blocks.items():
        if key[0] == offer.provider and block.refusal is Refusal.CREDENTIALS and now < block.until:
            return f"{offer.provider} does not accept the credentials: {block.message}", block.until
    found = market.blocks.get(offer.key)
    if found is None or now >= found.until:
        return None, math.inf
    return block_reason(offer, found, quota_limit(market.quotas, offer)), found.until


def block_reason(offer: Offer, block: OfferBlock, limit: int | None) -> str:
    """Return the reason why an offer is blocked, for the user.

    Args:
        offer: the blocked offer.
        block: its newest refusal.
        limit: the account's quota; None if unknown.
    """
    place = f"{offer.machine_type} in {offer.zone}"
    if offer.reliability is Reliability.RELIABLE:
        place = f"on-demand {place}"
    detail = f" ({block.message})" if block.message else ""
    if block.refusal is Refusal.QUOTA:
        return (
            f"no quota left for {place}{detail}" if limit is None else f"quota {limit} for {place} is used up{detail}"
        )
    if block.refusal is Refusal.PRICE:
        return f"the price of {place} is above the limit{detail}"
    if block.refusal is Refusal.NO_CAPACITY:
        return f"no capacity for {place}{detail}"
    if block.refusal is Refusal.INVALID:
        return f"{offer.provider} does not offer {place}{detail}"
    return f"waiting before trying {place} again{detail}"


def _other_reasons(market: OfferMarket) -> list[str]:
    """Return why the remaining offers cannot be used."""
    reasons = [
        f"{provider}: {message}"
        for provider, reason, message in market.provider_errors
        if reason is Refusal.NO_CAPACITY
    ]
    reasons += [
        f"{provider} does not accept the credentials: {message}"
        for provider, reason, message in market.provider_errors
        if reason is Refusal.CREDENTIALS
    ]
    reasons += [f"{offer.machine_type} in {offer.zone}: {reason}" for offer, reason in market.ranking.refused]
    if not reasons and not market.ranking.ranked:
        reasons.append("no provider has an offer")
    return reasons
