"""Needs of a job that no offer can meet, found before anything is bought."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from windfall.fleet import Slot
from windfall.jobs import BuyingLimits, Job
from windfall.market import Offer, Quota
from windfall.policies.acquisition.ranking import job_for, pool_room, quota_limit, refusal
from windfall.policies.layout import runtime_list
from windfall.structs import replace
from windfall.terms import Reliability

PLACES_MAX = 5
"""How many places a message names."""


def unmet_need(job: Job, offers: Sequence[Offer], quotas: tuple[Quota, ...]) -> str | None:
    """Return why a need of a job's runtime can never be met by these offers; None if each can.

    A need that any of the job's machines meets is none of this function's business: `job_plan` says what it lacks.

    Args:
        job: as submitted.
        offers: of all providers.
        quotas: the account's limits.
    """
    name = job.runtime.name
    reliable_roles = runtime_list.rules(name).reliable_roles
    slots = [_as_ruled(slot, reliable_roles) for slot in runtime_list.rules(name).slots(job)]
    for slot in slots:
        if (slot.reliability is not None or slot.wants) and not _fitting(job, slot, offers):
            return _no_offer(name, slot)
    for gang in dict.fromkeys(slot.gang for slot in slots if slot.gang):
        members = [slot for slot in slots if slot.gang == gang]
        found = _fitting(job, members[0], offers)
        pool_max = job.limits.pool_machines_max
        if pool_max is not None and pool_max < len(members):
            return (
                f"the runtime {name} needs {len(members)} machines of one offer at once (gang {gang}), and pool_max allows "
                f"{pool_max}: raise pool_max, or ask for fewer machines"
            )
        most = max((_limit(quotas, offer) for offer in found), default=math.inf)
        if most < len(members):
            return (
                f"the runtime {name} needs {len(members)} machines at once (gang {gang}), and no quota is that large: the "
                f"largest that fits the job is {most:g}; raise a quota, or ask for fewer machines"
            )
    return _too_few(job, slots, offers, quotas)


def _too_few(job: Job, slots: Sequence[Slot], offers: Sequence[Offer], quotas: tuple[Quota, ...]) -> str | None:
    """Return which slots of one kind are more than pools and quotas ever allow; None if none are."""
    any_price = replace(job, max_price_usd_per_hour=None)  # a price may fall
    for slot, count in Counter(replace(slot, id="", role="", gang="") for slot in slots).items():
        found = _fitting(any_price, slot, offers)
        most = machines_max(job.limits, found, quotas)
        if found and most == 0:
            places = ", ".join(dict.fromkeys(f"{offer.machine_type} in {offer.zone}" for offer in found[:PLACES_MAX]))
            more = f" and {len(found) - PLACES_MAX} more" if len(found) > PLACES_MAX else ""
            return f"quota 0 for every offer that fits the job ({places}{more}): raise a quota, or widen the job's resources"
        if found and most < count:
            pool_max = job.limits.pool_machines_max
            limit = "the quotas leave" if pool_max is None else f"pool_max {pool_max} and the quotas leave"
            return (
                f"the job needs {count} machines, and {limit} room for {most:g} on the offers that fit it: "
                f"{'raise a quota' if pool_max is None else 'raise them'}, widen the job's resources, or ask for fewer machines"
            )
    return None


def machines_max(limits: BuyingLimits, offers: Iterable[Offer], quotas: tuple[Quota, ...]) -> float:
    """Return how many machines of these offers a job may have at once, by its pools and the quotas; infinite for no limit.

    Spot and on-demand machines of a type in a zone are two pools and share one quota, as all zones share a quota that
    names none.
    """
    by_zone: dict[tuple[str, str], list[Offer]] = {}
    for offer in offers:
        by_zone.setdefault((offer.machine_type, offer.zone), []).append(offer)
    by_type: dict[str, float] = {}
    for (kind, zone), pools in by_zone.items():
        in_pools = math.fsum(pool_room(limits, {}, offer.key) for offer in pools)
        room = min(in_pools, _lowest(quotas, kind, zone))
        by_type[kind] = by_type.get(kind, 0.0) + room
    return math.fsum(min(room, _lowest(quotas, kind, None)) for kind, room in by_type.items())


def _lowest(quotas: tuple[Quota, ...], machine_type: str, zone: str | None) -> float:
    """Return the lowest quota for a type in exactly this zone, or in all together; infinite for none."""
    limits = [quota.limit for quota in quotas if (quota.machine_type, quota.zone) == (machine_type, zone)]
    return min(limits, default=math.inf)


def _as_ruled(slot: Slot, reliable_roles: Iterable[str]) -> Slot:
    return replace(slot, reliability=Reliability.RELIABLE) if slot.role in reliable_roles else slot


def _fitting(job: Job, slot: Slot, offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers that can fill a slot."""
    job = job_for(job, slot)
    wanted = [offer for offer in offers if not slot.wants or offer.key in slot.wants]
    return [offer for offer in wanted if refusal(job, offer) is None]


def _limit(quotas: tuple[Quota, ...], offer: Offer) -> float:
    limit = quota_limit(quotas, offer)
    return math.inf if limit is None else limit


def _no_offer(name: str, slot: Slot) -> str:
    kinds = {
        Reliability.RELIABLE: "a machine that cannot be preempted",
        Reliability.TRANSIENT: "a spot machine",
        None: f"one of {len(slot.wants)} offers",
    }
    return (
        f"the runtime {name} needs {kinds[slot.reliability]} for {slot.id} (role {slot.role}), and no provider offers one that "
        "fits the job's resources: widen them, or add a provider that does"
    )
