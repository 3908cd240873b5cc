"""What a plan says of its offers beside their ranking: old prices, several pools, excluded names that are not for sale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from windfall.jobs import Job
from windfall.market import Offer, Quota
from windfall.policies.acquisition.ranking import OfferMarket, Ranked, Ranking, choose
from windfall.terms import Instant, Reliability, WallTime
from windfall.units import duration_text

PRICE_S_MAX = 3600.0
"""A price that was quoted longer ago than this is called old [s]."""


def notes(
    job: Job, ranked: Sequence[Ranked], offers: Sequence[Offer], quotas: tuple[Quota, ...], now: WallTime
) -> Iterator[str]:
    """Yield what a user should know of a plan's offers before approving it.

    Args:
        job: as submitted.
        ranked: the offers that meet its limits, best first; at least one.
        offers: of all providers.
        quotas: the account's limits.
        now: the current time.
    """
    yield from old_prices([row.offer for row in ranked], now)
    yield from _pools(job, ranked, quotas)
    yield from unknown_exclusions(job, offers)


def fleet_text(counts: Iterable[tuple[Sequence[str], int]]) -> str:
    """Return a fleet's machines in words, from how many there are of each offer."""
    parts = [
        f"{count} {kind} in {zone}{'' if reliability == Reliability.TRANSIENT else ' on demand'}"
        for (_, kind, zone, reliability), count in counts
    ]
    return " + ".join(parts) or "no machine"


def old_prices(offers: Sequence[Offer], now: WallTime) -> Iterator[str]:
    """Say how old the prices are: of the first offer, or else of how many others."""
    chosen, ages = offers[0], [now - offer.quoted_at for offer in offers]
    old = [age_s for age_s in ages if age_s > PRICE_S_MAX]
    if ages[0] > PRICE_S_MAX:
        yield (
            f"the price of {_place(chosen)} was quoted {duration_text(ages[0])} ago and may have changed: the bill follows "
            "the price at the purchase, not this one"
        )
    elif old:
        count = f"{len(old)} other offer{'' if len(old) == 1 else 's'}"
        yield f"the price of {count} was quoted {duration_text(max(old))} ago at the longest and may have changed"


def _pools(job: Job, ranked: Sequence[Ranked], quotas: tuple[Quota, ...]) -> Iterator[str]:
    """Say where machines would be bought that do not fit in one pool, by the function that orders them."""
    market = OfferMarket(Ranking(tuple(ranked), ()), {}, quotas, (), lambda _: True, job.limits)
    chosen = choose(market, job.nodes, Instant(0.0))
    if len(chosen.orders) < 2:
        return
    rows = [(row.offer, count) for row, count in chosen.orders]
    text = ", ".join(f"{count} {_place(offer)} at {offer.price_usd_per_hour:g} USD/h" for offer, count in rows)
    first = rows[0][0]
    more = sum(count * (offer.price_usd_per_hour - first.price_usd_per_hour) for offer, count in rows)
    unmet = f", and {chosen.unmet} more have no room" if chosen.unmet else ""
    yield (
        f"the machines stand in {len(rows)} pools: {text}{unmet}; time and cost are those of {job.nodes} {_place(first)}, and "
        f"together they cost {abs(more):g} USD/h {'less' if more < 0.0 else 'more'}"
    )


def unknown_exclusions(job: Job, offers: Sequence[Offer]) -> Iterator[str]:
    """Name what is excluded and not for sale: it may be misspelt, and then the real one is not excluded."""
    for what, names, known in (
        ("zone", job.limits.zones_excluded, {offer.zone for offer in offers}),
        ("machine type", job.limits.machine_types_excluded, {offer.machine_type for offer in offers}),
    ):
        if missing := [name for name in names if name not in known]:
            yield f"resources.exclude names the {what} {', '.join(missing)}, which no provider offers now: check the spelling"


def _place(offer: Offer) -> str:
    return f"{offer.machine_type} in {offer.zone}"
