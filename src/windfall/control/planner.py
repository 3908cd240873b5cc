"""What follows from a job before anything is bought: boot data, fingerprint, polling intervals, and its plan.

A plan uses the offers of the providers and what the installation has learned.  The controller answers with it, and so do
`windfall plan` and `windfall simulate` where no controller runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from windfall.control import controller_views as views
from windfall.control.order_previews import preview_orders, with_previews
from windfall.control.provider_calls import NEARBY_PACE, PollingPace, offers_of, quotas_of
from windfall.control.single_user import refuse_unsold
from windfall.errors import Infeasible, Misuse, ProviderAbsent, ProviderDenied, ProviderError
from windfall.fleet import JobPhase, Lifetime
from windfall.jobs import Job, Measurement, settings_for
from windfall.market import Offer, Quota, Refusal
from windfall.models import lifetime_pool
from windfall.policies.acquisition import fleet_policy_list
from windfall.policies.layout import runtime_list
from windfall.policies.planning import fleet_planners, job_plan
from windfall.policies.planning.estimates import Knowledge, PlanInputs
from windfall.policies.planning.forecasts import ENDED_MAX, track_record
from windfall.policies.planning.unmet_needs import unmet_need
from windfall.ports import Clock, Provider
from windfall.structs import plain, replace
from windfall.terms import GRACE_S, Seconds
from windfall.wire.boot_data import BootData

_DISK_LEASE_S = Seconds(5.0)
"""A local disk is never slow, so a short lease makes takeovers quick [s]."""


def boot_data(job: Job) -> BootData:
    """Return what a job's machines need to start."""
    options = replace(job.options, grace_s=GRACE_S)
    if job.run_url.startswith("file://"):
        options = replace(options, lease_s=_DISK_LEASE_S)
    return BootData(
        job_id=job.job_id,
        command=job.command,
        setup=job.setup,
        envs=job.envs,
        secrets=tuple(secret.name for secret in job.secrets),
        options=options,
        dead_man_s=job.dead_man_s,
        save_timeout_s=job.checkpointing.save_timeout_s,
        nodes=job.nodes,
        bundle=job.bundle,
        runtime=job.runtime,
        addressed=runtime_list.rules(job.runtime.name).assign is not None,
    )


def fingerprint(job: Job) -> str:
    """Return what makes two jobs similar: user, name, command and number of machines, but not the code.

    Measurements of a slightly changed script still predict its next run better than none.
    """
    return json.dumps([job.user, job.name, list(job.command), job.nodes])


def pace_of(job: Job, providers: Mapping[str, Provider]) -> PollingPace:
    """Return the polling intervals: short ones if only providers on this host can serve the job."""
    wanted = {want.provider for want in job.resources}
    names = set(providers) if None in wanted else {name for name in wanted if name is not None}
    nearby = all(name in providers and providers[name].capabilities().nearby for name in names)
    return NEARBY_PACE if nearby else PollingPace()


def named(job: Job) -> frozenset[str]:
    """Return the providers that a job asks for by name."""
    return frozenset(want.provider for want in job.resources if want.provider is not None)


class PlanRecords(Protocol):
    """What a plan reads of the database."""

    def lifetimes(self) -> Sequence[Lifetime]:
        """Return the lifetimes of all machines."""
        ...

    def measured(self, key: str) -> Sequence[Measurement]:
        """Return the measurements of all runs with this job fingerprint."""
        ...

    def ended(self, user: str, limit: int) -> Sequence[tuple[JobPhase, str]]:
        """Return phase and summary of a user's newest jobs that have ended, newest first."""
        ...


class NoRecords:
    """`PlanRecords` of an installation that has not run anything yet."""

    def lifetimes(self) -> Sequence[Lifetime]:
        """Return none."""
        return ()

    def measured(self, key: str) -> Sequence[Measurement]:  # noqa: ARG002 - nothing is known of any job
        """Return none."""
        return ()

    def ended(self, user: str, limit: int) -> Sequence[tuple[JobPhase, str]]:  # noqa: ARG002 - nothing has run
        """Return none."""
        return ()


class Planner:
    """Plans jobs; nothing is bought or stored.

    Args:
        records: what was learned.
        providers: by name.
        clock: time.
        merge: averages the measurements of several runs.
        owner: tag of the installation's machines, by which its quotas count.
    """

    def __init__(
        self,
        records: PlanRecords,
        providers: Mapping[str, Provider],
        clock: Clock,
        merge: Callable[[Sequence[Measurement]], tuple[Measurement, ...]],
        owner: str,
    ) -> None:
        self._records, self._providers, self._clock = records, providers, clock
        self._merge, self._owner = merge, owner

    def plan(self, job: Job) -> views.Json:
        """Return what a job would cost and when it would finish.

        Raises:
            Misuse: the job cannot have its fleet policy.
            Infeasible: no offer meets the job, or a need of its runtime.
        """
        if problem := fleet_policy_list.job_problem(job):
            raise Misuse(f"fleet.{job.fleet} {problem}")
        offered = self.offers(job)
        refuse_unsold(offered, job)
        if problem := unmet_need(job, offered.offers, offered.quotas):
            raise Infeasible(problem)
        wall_time = self._clock.wall_time()
        pooled = lifetime_pool.pool(self._records.lifetimes(), wall_time)
        measured = self._merge(self._records.measured(fingerprint(job)))
        poll_s = pace_of(job, self._providers).list_s
        knowledge = Knowledge(tuple(row.rate for row in pooled), measured, pooled, poll_s)
        previews = preview_orders(
            job, self._providers, offered.offers, owner=self._owner, knowledge=knowledge, now=wall_time
        )
        offers = previews.found.offers
        scaling = runtime_list.scaling_of(job)
        plan_of = fleet_planners.planner_of(job)
        if plan_of is not None:
            found = plan_of(job, scaling, offers, measured, wall_time, quotas=offered.quotas, pooled=pooled)
        else:
            found = job_plan.plan(
                job, offers, (), measured, wall_time, pooled=pooled, poll_s=poll_s, quotas=offered.quotas
            )
        return {
            **with_previews(job, found, previews, knowledge),
            "provider_errors": [plain(row) for row in (*offered.provider_errors, *previews.provider_errors)],
            "track_record": plain(track_record(self._records.ended(job.user, ENDED_MAX))),
        }

    def plan_inputs(self, job: Job) -> PlanInputs:
        """Return what a job's plan is calculated from."""
        poll_s = pace_of(job, self._providers).list_s
        measured = tuple(self._records.measured(fingerprint(job)))
        return PlanInputs(self._clock.wall_time(), poll_s, measured, tuple(self._records.lifetimes()))

    def offers(self, job: Job | None = None) -> views.OffersView:
        """Ask all providers what they sell now, to anybody or to a job.

        One that is not installed here counts only if the job asks for it by name.
        """
        asked_for = frozenset[str]() if job is None else named(job)
        offers: list[Offer] = []
        quotas: list[Quota] = []
        provider_errors: list[views.ProviderErrorView] = []
        for name, provider in self._providers.items():
            block = () if job is None else settings_for(job, name)
            try:
                offers += offers_of(provider, block)
                quotas += quotas_of(provider, self._owner, block)
            except ProviderDenied as error:
                if isinstance(error, ProviderAbsent) and name not in asked_for:
                    continue
                provider_errors.append(views.ProviderErrorView(name, Refusal.CREDENTIALS, str(error)))
            except ProviderError as error:
                provider_errors.append(views.ProviderErrorView(name, "unreachable", str(error)))
        return views.OffersView(tuple(offers), tuple(quotas), tuple(provider_errors))
