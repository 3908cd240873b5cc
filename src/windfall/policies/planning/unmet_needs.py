"""Needs of a job that no offer can meet, found before anything is bought."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from windfall.fleet import Slot
from windfall.jobs import Job
from windfall.market import Offer, Quota
from windfall.policies.acquisition.ranking import job_for, quota_limit, refusal
from windfall.policies.layout import runtime_list
from windfall.structs import replace
from windfall.terms import Reliability


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
        most = max((_limit(quotas, offer) for offer in found), default=math.inf)
        if most < len(members):
            return (
                f"the runtime {name} needs {len(members)} machines at once (gang {gang}), and no quota is that large: the "
                f"largest that fits the job is {most:g}; raise a quota, or ask for fewer machines"
            )
    return None


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
