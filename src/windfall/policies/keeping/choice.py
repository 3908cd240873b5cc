"""Keep-alive: which offer is asked next, and, where none is left, why, in words a user understands.

The best-ranked offer that is not left alone is asked for all machines that lack; so a refusal leads to the next zone,
type, or (with `use: auto`) on-demand machine at once, while the first one's back-off runs (thesis, section 5.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from windfall.market import Offer, Quota, Refusal
from windfall.policies.buying import Ranked, Ranking
from windfall.policies.keeping.backoff import Block
from windfall.terms import Instant, Reliability

_Key = tuple[str, str, str, Reliability]
REASONS_MAX = 8
"""So many reasons are kept; the best-ranked offers' come first."""


@dataclass(frozen=True, slots=True)
class Market:
    """What is known of the market now.

    Attributes:
        ranking: of all offers for this job.
        blocks: offers that are left alone.
        quotas: the account's limits.
        troubles: (provider, refusal, sentence) of providers that did not answer with offers.
        usable: whether something may be bought from a provider now (its listing is known).
    """

    ranking: Ranking
    blocks: Mapping[_Key, Block]
    quotas: tuple[Quota, ...]
    troubles: tuple[tuple[str, Refusal, str], ...]
    usable: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Choice:
    """What to ask for.

    Attributes:
        orders: (offer, count), the best first.
        lacking: machines for which nothing can be asked now.
        reasons: why not, the best-ranked offer's first.
        retry_at: when one of the refused may be asked again; None if none ever.
    """

    orders: tuple[tuple[Ranked, int], ...]
    lacking: int
    reasons: tuple[str, ...]
    retry_at: Instant | None


def choose(market: Market, needed: int, now: Instant) -> Choice:
    """Choose what to ask for.

    Args:
        market: as it is known.
        needed: how many machines lack.
        now: the present.
    """
    orders: list[tuple[Ranked, int]] = []
    reasons: list[str] = []
    retry_at, pending = math.inf, False
    refused_by = {provider: sentence for provider, why, sentence in market.troubles if why is Refusal.CREDENTIALS}
    for ranked in market.ranking.ranked:
        if needed == 0:
            break
        offer = ranked.offer
        if not market.usable(offer.provider):
            pending = True
            continue
        limit = quota_limit(market.quotas, offer)
        why, until = _left_alone(market, refused_by, offer, now)
        if limit == 0:
            why, until = f"quota 0 for {offer.machine_type} in {offer.zone}", math.inf
        if why is not None:
            reasons.append(why)
            retry_at = min(retry_at, until)
            continue
        count = needed if limit is None else min(needed, limit)
        orders.append((ranked, count))
        needed -= count
    if needed and not pending:
        reasons += _elsewhere(market)
    kept = tuple(dict.fromkeys(reasons))[:REASONS_MAX]
    return Choice(tuple(orders), needed, kept, Instant(retry_at) if retry_at < math.inf else None)


def quota_limit(quotas: tuple[Quota, ...], offer: Offer) -> int | None:
    """Return how many machines of an offer's type the account may have in its zone; None if nobody says.

    What is used already is not subtracted: it may be a machine that is just being taken, and a refusal costs nothing.
    """
    limits = [
        quota.limit for quota in quotas if quota.machine_type == offer.machine_type and quota.zone in {None, offer.zone}
    ]
    return min(limits, default=None)


def _left_alone(market: Market, refused_by: Mapping[str, str], offer: Offer, now: Instant) -> tuple[str | None, float]:
    """Return why an offer is not asked now, and until when; None if it may be."""
    if offer.provider in refused_by:
        return f"{offer.provider} does not accept the credentials: {refused_by[offer.provider]}", math.inf
    for key, block in market.blocks.items():
        if key[0] == offer.provider and block.refusal is Refusal.CREDENTIALS and now < block.until:
            return f"{offer.provider} does not accept the credentials: {block.sentence}", block.until
    found = market.blocks.get(offer.key)
    if found is None or now >= found.until:
        return None, math.inf
    return words(offer, found, quota_limit(market.quotas, offer)), found.until


def words(offer: Offer, block: Block, limit: int | None) -> str:
    """Return in words why an offer is left alone.

    Args:
        offer: which.
        block: its newest refusal.
        limit: the account's quota; None if it is not known.
    """
    place = f"{offer.machine_type} in {offer.zone}"
    if offer.reliability is Reliability.RELIABLE:
        place = f"on-demand {place}"
    said = f" ({block.sentence})" if block.sentence else ""
    if block.refusal is Refusal.QUOTA:
        return f"no quota left for {place}{said}" if limit is None else f"quota {limit} for {place} is used up{said}"
    if block.refusal is Refusal.PRICE:
        return f"the price of {place} is above the limit{said}"
    if block.refusal is Refusal.NO_CAPACITY:
        return f"no capacity for {place}{said}"
    if block.refusal is Refusal.INVALID:
        return f"{offer.provider} cannot sell {place}{said}"
    return f"{place} is left alone for a while{said}"


def _elsewhere(market: Market) -> list[str]:
    """Return why the rest of what is for sale will not do."""
    reasons = [f"{provider}: {sentence}" for provider, why, sentence in market.troubles if why is Refusal.NO_CAPACITY]
    reasons += [
        f"{provider} does not accept the credentials: {sentence}"
        for provider, why, sentence in market.troubles
        if why is Refusal.CREDENTIALS
    ]
    reasons += [f"{offer.machine_type} in {offer.zone}: {why}" for offer, why in market.ranking.refused]
    if not reasons and not market.ranking.ranked:
        reasons.append("nothing is for sale")
    return reasons
