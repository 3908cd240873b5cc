"""Jobs, offers and runs with numbers that can be checked by hand, and a controller that knows them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windfall.control.service import KnownView
from windfall.errors import Infeasible
from windfall.fleet import Lifetime
from windfall.jobs import Job, Measured, Want, Work
from windfall.market import Offer
from windfall.models import pool
from windfall.policies import planning
from windfall.policies.prospects import Knowledge, Prospect, prospect
from windfall.report.measured import merge
from windfall.simulation.from_job import Given, Posed, pose, with_work
from windfall.terms import Reliability, Seconds, Unit, WallTime

NOW = WallTime(1_000_000.0)
OFFER = Offer("local", "small", "zone-a", 3.6, 7.2, Reliability.TRANSIENT, Seconds(30.0), NOW)
NO_NOTICE = dataclasses.replace(OFFER, notice_s=Seconds(0.0))
RUN = Measured(
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
NOTHING = Given()


def job(**changes: object) -> Job:
    made: dict[str, object] = {"work": Work(5000.0, Unit.STEP), **changes}
    return Job("gpt-1", "gpt", "ada", "file:///runs/gpt-1", ("python", "train.py"), (Want("local"),), **made)  # type: ignore[arg-type]


def believed(wanted: Job, offer: Offer = OFFER, *measured: Measured, lives: Sequence[Lifetime] = ()) -> Prospect:
    return prospect(wanted, offer, Knowledge((), merge(measured), pool.pool(lives, NOW)))


def posed(wanted: Job | None = None, *measured: Measured, given: Given = NOTHING, offer: Offer = OFFER) -> Posed:
    made = with_work(wanted or job(), given)
    return pose(made, believed(made, offer, *measured), measured, given)


def life(number: int, hours: float, *, preempted: bool = True, provider: str = "local") -> Lifetime:
    began = WallTime(NOW - 1e5 - 60.0 * number)
    ended = WallTime(began + 3600.0 * hours)
    return Lifetime(f"m-{number}", provider, "small", "zone-a", began, ended, preempted, announced=False)


@dataclass
class Controller:
    """Plans as the real one does, over offers, runs and lives that it was given."""

    offers: tuple[Offer, ...] = (OFFER,)
    measured: tuple[Measured, ...] = (RUN,)
    lifetimes: tuple[Lifetime, ...] = ()

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def plan(self, wanted: Job) -> dict[str, Any]:
        pooled = pool.pool(self.lifetimes, NOW)
        if not self.offers:
            raise Infeasible("nothing is for sale")
        found = planning.plan(wanted, self.offers, (), merge(self.measured), NOW, pooled=pooled)
        told: dict[str, Any] = json.loads(json.dumps({**dataclasses.asdict(found), "troubles": []}))
        return told

    def known(self, _: Job) -> KnownView:
        return KnownView(NOW, Seconds(5.0), self.measured, self.lifetimes)
