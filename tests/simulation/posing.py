"""Jobs, offers and runs with numbers that can be checked by hand, and a controller that knows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windfall.errors import Infeasible
from windfall.fleet import Lifetime
from windfall.jobs import Job, Measurement, Resources, Work
from windfall.market import Offer
from windfall.models import lifetime_pool
from windfall.models.job_measurements import merge
from windfall.policies.planning import job_plan
from windfall.policies.planning.estimates import Knowledge, OfferEstimate, PlanInputs, offer_estimate
from windfall.simulation.scenario_from_job import BuiltScenario, Overrides, build_scenario, with_work
from windfall.structs import plain, replace
from windfall.terms import Reliability, Seconds, Unit, WallTime

NOW = WallTime(1_000_000.0)
OFFER = Offer("local", "small", "zone-a", 3.6, 7.2, Reliability.TRANSIENT, Seconds(30.0), NOW)
NO_NOTICE = replace(OFFER, notice_s=Seconds(0.0))
RUN = Measurement(
    "local",
    "small",
    Unit.STEP,
    0.5,
    prepare_s=Seconds(22.0),
    allocate_s=Seconds(10.0),
    runs=1,
    stall_s=Seconds(0.5),
    size_bytes=1_500_000,
    upload_s=Seconds(3.0),
    commit_s=Seconds(1.0),
)
"""Steps of 2 s; 20 s of preparation before the first of them."""
NOTHING = Overrides()


def job(**changes: object) -> Job:
    made: dict[str, object] = {"work": Work(5000.0, Unit.STEP), **changes}
    return Job("gpt-1", "gpt", "ada", "file:///runs/gpt-1", ("python", "train.py"), (Resources("local"),), **made)  # type: ignore[arg-type]


def estimate_of(
    wanted: Job, offer: Offer = OFFER, *measured: Measurement, lifetimes: Sequence[Lifetime] = ()
) -> OfferEstimate:
    return offer_estimate(wanted, offer, Knowledge((), merge(measured), lifetime_pool.pool(lifetimes, NOW)))


def built(
    wanted: Job | None = None, *measured: Measurement, overrides: Overrides = NOTHING, offer: Offer = OFFER
) -> BuiltScenario:
    made = with_work(wanted or job(), overrides)
    return build_scenario(made, estimate_of(made, offer, *measured), measured, overrides)


def lifetime(number: int, hours: float, *, preempted: bool = True, provider: str = "local") -> Lifetime:
    started = WallTime(NOW - 1e5 - 60.0 * number)
    ended = WallTime(started + 3600.0 * hours)
    return Lifetime(f"m-{number}", provider, "small", "zone-a", started, ended, preempted, announced=False)


@dataclass
class Controller:
    """Plans as the real one does, with given offers, runs and lifetimes."""

    offers: tuple[Offer, ...] = (OFFER,)
    measured: tuple[Measurement, ...] = (RUN,)
    lifetimes: tuple[Lifetime, ...] = ()

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def plan(self, wanted: Job) -> dict[str, Any]:
        pooled = lifetime_pool.pool(self.lifetimes, NOW)
        if not self.offers:
            raise Infeasible("nothing is for sale")
        found = job_plan.plan(wanted, self.offers, (), merge(self.measured), NOW, pooled=pooled)
        output: dict[str, Any] = json.loads(json.dumps({**plain(found), "provider_errors": []}))
        return output

    def plan_inputs(self, _: Job) -> PlanInputs:
        return PlanInputs(NOW, Seconds(5.0), self.measured, self.lifetimes)
