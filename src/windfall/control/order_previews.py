"""Previews of a job's orders before anything is bought: asks the providers that can say what would become of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windfall.control import controller_views as views
from windfall.errors import Infeasible, ProviderDenied, ProviderError
from windfall.jobs import Job, settings_for
from windfall.market import Offer, OrderPreview, Refusal
from windfall.policies.planning import offer_previews
from windfall.policies.planning.estimates import Knowledge, offer_estimate
from windfall.policies.planning.job_plan import JobPlan, RefusedOffer
from windfall.policies.planning.offer_previews import PreviewedOffer, PreviewedOffers
from windfall.policies.planning.preemption_costs import preemption_costs
from windfall.ports import Provider
from windfall.structs import Struct, plain, replace
from windfall.terms import WallTime


class OrderPreviews(Struct, frozen=True):
    """The results of the previews.

    Attributes:
        previewed: the offers of which a provider said something.
        found: all offers after that.
        provider_errors: of providers that did not answer.
    """

    previewed: tuple[PreviewedOffer, ...]
    found: PreviewedOffers
    provider_errors: tuple[views.ProviderErrorView, ...]


def preview_orders(
    job: Job,
    providers: Mapping[str, Provider],
    offers: Sequence[Offer],
    *,
    owner: str,
    knowledge: Knowledge,
    now: WallTime,
) -> OrderPreviews:
    """Preview what a job might order; nothing is bought.

    Args:
        job: as submitted.
        providers: by name.
        offers: of all of them.
        owner: tag of the installation's machines.
        knowledge: what was measured.
        now: the current time.

    Raises:
        Infeasible: every order that fits the job would be refused.
    """
    asked = {name for name, provider in providers.items() if provider.capabilities().previews}
    previewed: list[PreviewedOffer] = []
    errors: dict[str, views.ProviderErrorView] = {}
    for order in offer_previews.orders_to_preview(job, [one for one in offers if one.provider in asked], owner):
        name = order.offer.provider
        if name in errors:
            continue
        try:
            previewed.append(PreviewedOffer(order.offer, providers[name].preview(order, settings_for(job, name))))
        except ProviderDenied as error:
            errors[name] = views.ProviderErrorView(name, Refusal.CREDENTIALS, str(error))
        except ProviderError as error:
            errors[name] = views.ProviderErrorView(name, "unreachable", str(error))
    found = offer_previews.after_previews(job, offers, previewed, knowledge, now)
    if problem := offer_previews.all_refused(job, found):
        raise Infeasible(problem)
    return OrderPreviews(tuple(previewed), found, tuple(errors.values()))


def with_previews(job: Job, plan: JobPlan, previews: OrderPreviews, knowledge: Knowledge) -> views.Json:
    """Return a plan as JSON, with what the previews and the losses add to it.

    Args:
        job: as submitted.
        plan: made from the offers that the previews left.
        previews: of its orders.
        knowledge: what was measured.
    """
    estimate = offer_estimate(job, plan.chosen.offer, knowledge)
    key = plan.chosen.offer.key
    preview = next((one.preview for one in previews.previewed if one.offer.key == key), OrderPreview())
    limit_s = dict(previews.found.limits).get(key)
    message = (preview.message,) if preview.message else ()
    plan = replace(
        plan,
        warnings=(*plan.warnings, *message, *offer_previews.limit_notes(estimate, limit_s)),
        refused=(*plan.refused, *(RefusedOffer(offer, reason) for offer, reason in previews.found.refused)),
    )
    known = [one for one in previews.previewed if one.preview.starts_at is not None and one.preview.refusal is None]
    starts = [
        {"offer": plain(one.offer), "starts_at": one.preview.starts_at, "estimate": one.preview.estimate}
        for one in sorted(known, key=lambda one: (one.offer.key != key, one.preview.starts_at or 0.0))
    ]
    costs = preemption_costs(estimate) if plan.fleet is None else None
    return {
        **plain(plan),
        "starts": starts,
        "units": None
        if not preview.units_per_hour
        else {"per_machine_hour": preview.units_per_hour, "name": preview.unit},
        "preemption": None if costs is None else {**plain(costs), "share": costs.share},
    }
