"""A service without job loops: jobs that never run, in memory or, for a controller's process, in its database.

As a program it is the embedded controller with this service behind its API.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from windfall.cli import controller_process
from windfall.control import auth
from windfall.control.controller_views import (
    ClaimView,
    GcView,
    JobView,
    Json,
    OffersView,
    ProviderErrorView,
    RowView,
    StatusView,
)
from windfall.errors import Infeasible, Misuse
from windfall.fleet import DesiredState, Directive, JobPhase, Report
from windfall.jobs import Forecast, Job, Measurement, Resources, SecretRef
from windfall.market import Machine, MachineLifecycle, Offer
from windfall.policies.planning.estimates import PlanInputs
from windfall.ports import Clock
from windfall.storage.database import Database
from windfall.structs import replace
from windfall.terms import Reliability, Seconds, Term, WallTime

KEY = b"k" * 32
ENDED = {JobPhase.DONE, JobPhase.FAILED, JobPhase.STOPPED}


def job(job_id: str = "gpt-1", user: str = "", *, secrets: tuple[str, ...] = ()) -> Job:
    refs = tuple(SecretRef(name) for name in secrets)
    return Job(job_id, "gpt", user, "file:///runs/gpt", ("python", "train.py"), (Resources("local"),), secrets=refs)


def machine(machine_id: str) -> Machine:
    return Machine(
        machine_id,
        "owner",
        "gpt-0",
        "gpt-0-1",
        "local",
        "small",
        "a",
        Reliability.TRANSIENT,
        0.25,
        MachineLifecycle.RUNNING,
    )


@dataclass
class FakeService:
    """Records its calls; `hold` keeps a plan from answering, `broken` makes it fail."""

    views: dict[str, JobView] = field(default_factory=dict)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    journal: dict[str, list[str]] = field(default_factory=dict)
    requests: list[tuple[str, ...]] = field(default_factory=list)
    reports: list[tuple[str, Report]] = field(default_factory=list)
    claims: dict[str, str] = field(default_factory=dict)
    strays: list[str] = field(default_factory=lambda: ["stray-1", "stray-2"])
    forecasts: list[Forecast | None] = field(default_factory=list)
    hold: threading.Event | None = None
    broken: Exception | None = None
    planning: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self.requests.append(("start",))

    def end(self) -> None:
        self.requests.append(("end",))

    def submit(self, job: Job, secrets: Mapping[str, str], forecast: Forecast | None = None) -> str:
        self.forecasts.append(forecast)
        there = self.views.get(job.job_id)
        if there is not None and there.user != job.user:
            raise Misuse(f"job {job.job_id} already exists")
        self.views[job.job_id] = JobView(
            job.job_id,
            job.name,
            job.user,
            JobPhase.BUYING,
            "buying",
            job.run_url,
            WallTime(1.5),
            details={"slots": [1]},
        )
        self.secrets[job.job_id] = dict(secrets)
        return job.job_id

    def owner_of(self, job_id: str) -> str | None:
        view = self.views.get(job_id)
        return None if view is None else view.user

    def jobs(self, user: str | None) -> Sequence[JobView]:
        return [view for view in self.views.values() if user in (None, view.user)]

    def job(self, job_id: str) -> JobView:
        return self.views[job_id]

    def rows(self, job_id: str, after: int, limit: int) -> Sequence[RowView]:
        lines = self.journal.get(job_id, [])
        return [RowView(after + 1 + index, line) for index, line in enumerate(lines[after : after + limit])]

    def stop(self, job_id: str, user: str, *, now: bool) -> None:
        self.requests.append(("stop", job_id, user, "now" if now else "saved"))
        self.views[job_id] = replace(self.views[job_id], phase=JobPhase.STOPPED, exit_code=0)

    def resume(self, job_id: str, user: str, *, more: bool = False) -> None:
        self.requests.append(("resume", job_id, user))

    def preempt(self, job_id: str, machine_id: str, user: str, *, notice_s: Seconds | None) -> None:
        self.requests.append(("preempt", job_id, machine_id, user, "none" if notice_s is None else f"{notice_s:g}"))

    def plan(self, job: Job) -> Json:
        self.planning.set()
        if self.hold is not None:
            assert self.hold.wait(30)
        if self.broken is not None:
            raise self.broken
        if job.nodes > 1:
            raise Infeasible("a spot machine lives 60 s and a restart takes 90 s: use on-demand")
        return {"cost_usd": 1.25, "user": job.user}

    def add_measurement(self, job: Job, measured: Measurement) -> None:
        self.requests.append(("add_measurement", job.job_id, measured.provider))

    def plan_inputs(self, job: Job) -> PlanInputs:
        return PlanInputs(WallTime(0.0), Seconds(5.0))

    def offers(self) -> OffersView:
        offer = Offer("local", "small", "a", 0.25, 1.0, Reliability.TRANSIENT, Seconds(30.0), WallTime(2.0))
        return OffersView((offer,), provider_errors=(ProviderErrorView("aws", "credentials", "no key"),))

    def status(self) -> StatusView:
        unfinished = sum(view.phase not in ENDED for view in self.views.values())
        return StatusView("1", socket.gethostname(), os.getpid(), Term(3), unfinished, "sqlite:///x")

    def unneeded(self) -> GcView:
        return GcView(tuple(machine(name) for name in self.strays))

    def collect(self, machine_ids: Sequence[str]) -> GcView:
        gone = [name for name in self.strays if name in machine_ids]
        self.strays = [name for name in self.strays if name not in gone]
        return GcView(tuple(machine(name) for name in gone))

    def claim(self, job_id: str, order_token: str, machine_id: str, boot_id: str) -> ClaimView | None:
        if self.claims.setdefault(machine_id, boot_id) != boot_id:
            return None
        return ClaimView(
            auth.machine_token(KEY, job_id, machine_id), {"order": order_token, "secrets": self.secrets.get(job_id, {})}
        )

    def report(self, job_id: str, report: Report) -> Directive | None:
        self.reports.append((job_id, report))
        return None if report.sequence == 1 else Directive(Term(3), DesiredState.RUN)


class StoredService(FakeService):
    """The same with jobs in the controller's database, so that they outlive its process."""

    def __init__(self, database: Database, term: Term, leave: Callable[[str], None]) -> None:
        super().__init__()
        self._database, self._term, self._leave = database, term, leave
        for entry in database.jobs():
            super().submit(entry.job, {})

    def submit(self, job: Job, secrets: Mapping[str, str], forecast: Forecast | None = None) -> str:
        self._database.add_job(self._term, job, secrets)
        return super().submit(job, secrets, forecast)

    def plan(self, job: Job) -> Json:
        if job.name == "replaced":
            self._leave("another controller took over the installation")
        return super().plan(job)

    def status(self) -> StatusView:
        return replace(super().status(), term=self._term, database=self._database.place)


def build_service(
    state: Path,
    database: Database,
    term: Term,
    clock: Clock,
    *,
    url: str,
    leave: Callable[[str], None],
    webhooks_inside: bool = False,
    store: str | None = None,
) -> StoredService:
    if (state / "refuse").exists():
        raise Misuse((state / "refuse").read_text())
    return StoredService(database, term, leave)


if __name__ == "__main__":
    sys.exit(controller_process.main([sys.argv[2], sys.argv[1]], lambda: build_service))
