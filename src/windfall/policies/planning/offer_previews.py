"""What providers say of a job's orders before any is made, and what follows for its plan.

An order that would be refused is no offer; a start that the provider expects is the offer's allocation time; and a machine
that ends at a limit must live long enough to get ready and to save, or the job stands still for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from windfall.jobs import Job
from windfall.market import Offer, OfferKey, Order, OrderPreview
from windfall.policies.acquisition.ranking import job_for, refusal
from windfall.policies.layout import runtime_list
from windfall.policies.planning.estimates import Knowledge, OfferEstimate, offer_estimate
from windfall.policies.planning.offer_objections import offer_name
from windfall.structs import Struct, replace
from windfall.terms import Seconds, WallTime
from windfall.units import count_text, time_text

PREVIEWS_MAX = 8
"""How many orders are previewed for one plan: each is a call to the provider."""
TOKEN = "preview"
"""In place of an order's token: no order has it."""


class PreviewedOffer(Struct, frozen=True):
    """An offer, and what its provider says of an order."""

    offer: Offer
    preview: OrderPreview


class PreviewedOffers(Struct, frozen=True):
    """Offers after the previews.

    Attributes:
        offers: those that remain, with the start that their provider expects.
        refused: (offer, reason) of the others.
        limits: of each remaining machine that ends at a limit, when that is after its start [s].
    """

    offers: tuple[Offer, ...]
    refused: tuple[tuple[Offer, str], ...]
    limits: tuple[tuple[OfferKey, float], ...] = ()


def orders_to_preview(job: Job, offers: Iterable[Offer], owner: str) -> tuple[Order, ...]:
    """Return the orders that the job might make first, one for each offer that fits one of its slots; the cheapest first.

    Each is for all machines that the job needs of it at once: its gang, or where the runtime needs all its machines, all of
    them.

    Args:
        job: as submitted.
        offers: of providers that preview orders.
        owner: tag of the installation's machines.
    """
    slots = runtime_list.rules(job.runtime.name).slots(job)
    needs_all = runtime_list.scaling_of(job) is None
    found: dict[OfferKey, Order] = {}
    for offer in offers:
        fitting = [slot for slot in slots if refusal(job_for(job, slot), offer) is None]
        if not fitting:
            continue
        first = fitting[0]
        gang = sum(one.gang == first.gang for one in slots) if first.gang else 0
        members = gang or (len(fitting) if needs_all else 1)
        found[offer.key] = Order(TOKEN, owner, job.job_id, offer, members, members, gang=bool(gang))
    cheapest = sorted(found.values(), key=lambda order: (order.offer.price_usd_per_hour, order.offer.key))
    return tuple(cheapest[:PREVIEWS_MAX])


def after_previews(
    job: Job, offers: Sequence[Offer], previewed: Iterable[PreviewedOffer], knowledge: Knowledge, now: WallTime
) -> PreviewedOffers:
    """Return what remains of offers once their providers have answered what would become of an order.

    Args:
        job: as submitted.
        offers: of all providers.
        previewed: those of which a provider has answered something.
        knowledge: what was measured: only what was measured refuses a machine that ends too early.
        now: the current time.
    """
    known = {one.offer.key: one.preview for one in previewed}
    kept, refused, limits = [], [], []
    for offer in offers:
        preview = known.get(offer.key, OrderPreview())
        reason: str | None = preview.message if preview.refusal is not None else None
        if reason is None and preview.ends_after_s is not None:
            found = offer_estimate(job, offer, knowledge)
            reason = never_progresses(found, preview.ends_after_s)
            limits += [(offer.key, float(preview.ends_after_s))] if reason is None else []
        if reason is not None:
            refused.append((offer, reason))
        elif preview.starts_at is not None:
            kept.append(replace(offer, startup_s=Seconds(max(preview.starts_at - now, 0.0))))
        else:
            kept.append(offer)
    return PreviewedOffers(tuple(kept), tuple(refused), tuple(limits))


def all_refused(job: Job, found: PreviewedOffers) -> str | None:
    """Return why nothing is left for a job after the previews, in the words of the cheapest offer; None if something is."""
    fitting = [reason for offer, reason in found.refused if refusal(job, offer) is None]
    if not fitting or any(refusal(job, offer) is None for offer in found.offers):
        return None
    return "; ".join(dict.fromkeys(fitting))


def ready_and_saved_s(found: OfferEstimate) -> float | None:
    """Return how long a machine takes from its start until it has saved a first step [s]; None if no run has shown it."""
    return None if found.fit.needs_s is None else found.restart.prepare_s + found.fit.needs_s


def never_progresses(found: OfferEstimate, ends_after_s: float) -> str | None:
    """Return why a machine can never keep any work: it ends before it has saved a step.  None if it can, or if it is unknown.

    Args:
        found: the estimate for the offer.
        ends_after_s: from the machine's start to its end [s].
    """
    needs_s = ready_and_saved_s(found)
    if needs_s is None or needs_s < ends_after_s:
        return None
    return (
        f"{offer_name(found.offer)} ends after {time_text(ends_after_s)}, and it takes {time_text(found.restart.prepare_s)} to "
        f"get ready and {time_text(found.fit.needs_s or 0.0)} for a step and its save: no work would ever be kept; ask for a "
        "longer time limit"
    )


def limit_notes(found: OfferEstimate, ends_after_s: float | None) -> tuple[str, ...]:
    """Return what the user should know of machines that end at a limit.

    Args:
        found: the estimate for the offer that is chosen.
        ends_after_s: from a machine's start to its end [s]; None for no limit.
    """
    if ends_after_s is None:
        return ()
    needs_s = ready_and_saved_s(found)
    least_s = found.restart.prepare_s if needs_s is None else needs_s
    if least_s >= ends_after_s:
        return (
            (
                f"each machine ends after {time_text(ends_after_s)}, and getting ready is assumed to take "
                f"{time_text(found.restart.prepare_s)}: it may never keep any work; ask for a longer time limit, or measure it "
                "with `windfall drill`"
            ),
        )
    if found.work_s is None or needs_s is None or found.work_s + found.restart.prepare_s < ends_after_s:
        return ()
    machines = math.ceil(found.work_s / (ends_after_s - needs_s)) * found.machines
    return (
        (
            f"each machine ends after {time_text(ends_after_s)} and saves before: the work takes "
            f"{count_text(machines, 'machine', 'machines')} one after the other, whose starts are not in the expected time"
        ),
    )
