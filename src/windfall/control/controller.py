"""The controller service behind the API: submits, runs and shows jobs; answers machines; releases unneeded ones.

Implements `control.controller_views.Service` over ports and job loops.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windfall import fleet
from windfall.control import auth, boot_specs
from windfall.control import controller_views as views
from windfall.control.dependencies import Dependencies, Entry, Mailbox, ReportChannel, RunAccess, UnreadableJob
from windfall.control.job_loop import JobLoop, JobLoopPorts
from windfall.control.job_runner import REQUEST_WAIT_S, JobHooks, RunningJob
from windfall.control.job_view import DELETED, set_aside_view, view
from windfall.control.notifier import Notification, Notifier
from windfall.control.planner import Planner, boot_data, fingerprint, pace_of
from windfall.control.single_user import refuse_unsold
from windfall.core import driver
from windfall.core.driver import JobSummary
from windfall.errors import (
    ControllerError,
    ControllerReplaced,
    ControllerUnreachable,
    Misuse,
    ProviderError,
    StoreError,
    WindfallError,
)
from windfall.jobs import Forecast, Job, Measurement
from windfall.market import BootSpec, Machine, MachineLifecycle, Order
from windfall.models import lifetime_pool
from windfall.policies.layout import runtime_list
from windfall.policies.planning import forecasts
from windfall.policies.planning.estimates import PlanInputs
from windfall.structs import plain
from windfall.terms import Seconds
from windfall.wire.boot_data import boot_to_json
from windfall.wire.environment import PEERS_TOKEN

_WATCH_S = 2.0
"""Between two checks of the jobs' threads [s]."""
_PUBLISH_S = 2.0
"""Between two writes of a summary to the database if only its numbers changed [s]."""
ROWS_MAX = 5000


@dataclass(slots=True)
class _JobHandles:
    """A running job's channels, run and job loop; kept when the job loop is replaced after an error."""

    direct: ReportChannel
    run: RunAccess | None = None
    mailbox: Mailbox | None = None
    job_loop: JobLoop | None = None

    def alive(self) -> tuple[str, ...]:
        """Return the machines that run."""
        job_loop = self.job_loop
        return () if job_loop is None else job_loop.alive()

    def close(self) -> None:
        """Close the run's store and drop the job loop: the job has ended."""
        if self.mailbox is not None:
            self.mailbox.close()
        self.run = self.mailbox = self.job_loop = None


class Controller:
    """`control.controller_views.Service`."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._records = dependencies.records
        self._key = dependencies.records.key()
        self._planner = Planner(
            dependencies.records, dependencies.providers, dependencies.clock, dependencies.merge, dependencies.owner
        )
        self._lock = threading.Lock()
        self._running: dict[str, RunningJob] = {}
        self._handles: dict[str, _JobHandles] = {}
        self._summaries: dict[str, JobSummary] = {}
        self._published: dict[str, tuple[fleet.JobPhase, float]] = {}
        self._steps: dict[str, int] = {}
        self._measured_jobs: set[str] = set()
        self._aside: dict[str, str] = {}
        self._deleted: set[str] = set()
        self._leaving = threading.Event()
        self._notifier = Notifier(dependencies.clock, dependencies.log, lambda job: dependencies.inside(job.user))

    def start(self) -> None:
        """Run all unfinished jobs, each in its own thread; a job that cannot be read is set aside."""
        for unreadable in self._records.unreadable():
            self._set_aside(unreadable.job_id, unreadable.message)
        for entry in self._records.jobs():
            if not is_over(entry):
                self._run(entry.job)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def _watch(self) -> None:
        """Restart job threads that died; end when another controller took over the installation, also without jobs."""
        while not self._leaving.wait(_WATCH_S):
            try:
                for job_id, running in list(self._running.items()):
                    if running.revive():
                        self._dependencies.log(f"{job_id}: the job's thread died; restarting the job from its journal")
                self._records.check(self._dependencies.term)
            except ControllerReplaced as error:
                self._dependencies.leave(str(error))
                return
            except Exception as error:
                self._dependencies.log(f"cannot check the jobs' threads: {type(error).__name__}: {error}")

    def _set_aside(self, job_id: str, message: str) -> None:
        self._aside[job_id] = (
            f"set aside: {message}; its machines save and stop at their dead-man limit; to release them now, run "
            "`windfall gc`"
        )
        self._dependencies.log(f"{job_id} is {self._aside[job_id]}")

    def end(self) -> None:
        """Stop running all jobs soon; the jobs themselves are not stopped."""
        self._leaving.set()
        for running in list(self._running.values()):
            running.leave()

    # ------------------------------------------------------------------------------------------------------------- jobs

    def submit(self, job: Job, secrets: Mapping[str, str], forecast: Forecast | None = None) -> str:
        """Store a job durably with its forecast, start it and return its id."""
        missing = sorted({secret.name for secret in job.secrets} - set(secrets))
        if missing:
            raise Misuse(f"the value of secret {missing[0]} is missing: export {missing[0]} where you start the job")
        existing = self._records.job(job.job_id)
        if existing is not None:
            return self._submitted_again(existing, job)
        self._dependencies.admit(job)
        planned = self.plan(job)
        forecast = forecast or forecasts.of_plan(job, planned, self._dependencies.clock.wall_time())
        self._dependencies.open_run(job).write_boot(boot_to_json(boot_data(job)))
        known = json.dumps({forecasts.KEY: plain(forecast)})
        self._records.add_job(self._dependencies.term, job, secrets, known)
        self._run(job)
        return job.job_id

    def _submitted_again(self, existing: Entry, job: Job) -> str:
        if existing.job != job:
            raise Misuse(f"job {job.job_id} already exists")
        if not is_over(existing):
            self._run(job)
        return job.job_id

    def owner_of(self, job_id: str) -> str | None:
        """Return the user who submitted a job; None if there is no such job."""
        return self._records.owner_of(job_id)

    def jobs(self, user: str | None) -> Sequence[views.JobView]:
        """Return a user's jobs, None for all users', oldest first."""
        shown = [self._view(entry, whole=False) for entry in self._records.jobs(user)]
        shown += [self._view_of_unreadable(unreadable) for unreadable in self._records.unreadable(user)]
        return sorted(shown, key=lambda view: view.created)

    def job(self, job_id: str) -> views.JobView:
        """Return one job with its details."""
        entry = self._records.job(job_id)
        if entry is not None:
            return self._view(entry, whole=True)
        for unreadable in self._records.unreadable():
            if unreadable.job_id == job_id:
                return self._view_of_unreadable(unreadable)
        raise Misuse(f"there is no job {job_id}: `windfall ps` lists them")

    def rows(self, job_id: str, after: int, limit: int) -> Sequence[views.RowView]:
        """Return up to `limit` rows of a job's journal after row `after`."""
        found = self._records.rows(job_id, after=after, limit=min(limit, ROWS_MAX))
        return [views.RowView(sequence, line) for sequence, line in found]

    def stop(self, job_id: str, user: str, *, now: bool) -> None:
        """Stop a job after a save, or `now`."""
        entry = self._records.job(job_id)
        if entry is not None and not is_over(entry):
            self._request(entry.job, fleet.JobStopRequested(now, user))

    def resume(self, job_id: str, user: str, *, more: bool = False) -> None:
        """Resume a stopped or failed job; with `more`, one that is done too."""
        entry = self._records.job(job_id)
        if entry is None:
            raise Misuse(f"there is no job {job_id}: `windfall ps` lists them")
        if entry.phase is fleet.JobPhase.DONE and not more:
            raise Misuse(f"{job_id} is done: there is nothing to resume")
        if entry.phase is fleet.JobPhase.DONE and entry.job.secrets:
            raise Misuse(
                f"{job_id} cannot be resumed: its secrets were deleted when it was done; run its job file again, and only what "
                "is not done runs"
            )
        if self.job(job_id).run_deleted:
            raise Misuse(
                f"{job_id} cannot be resumed: its run was deleted with everything in it; `windfall run` starts a new one"
            )
        refuse_unsold(self._planner.offers(entry.job), entry.job)
        self._request(entry.job, fleet.JobResumeRequested(user, more))

    def preempt(self, job_id: str, machine_id: str, user: str, *, notice_s: Seconds | None) -> None:
        """Ask a machine's provider to preempt it, as a rehearsal."""
        entry, latest = self._records.job(job_id), self._summaries.get(job_id)
        machines = () if latest is None else (one for slot in latest.slots for one in slot.machines)
        if entry is None or not any(one.machine_id == machine_id for one in machines):
            raise Misuse(f"{job_id} has no machine {machine_id} now: `windfall ps {job_id}` lists them")
        self._request(entry.job, fleet.PreemptionRequested(machine_id, notice_s, user))

    def _request(
        self, job: Job, fact: fleet.JobStopRequested | fleet.JobResumeRequested | fleet.PreemptionRequested
    ) -> None:
        if job.job_id in self._aside:
            raise ControllerError(f"{job.job_id} is {self._aside[job.job_id]}")
        if not self._running_job(job).request(fact):
            raise ControllerError(
                f"the request for {job.job_id} was not recorded within {REQUEST_WAIT_S:g} s: check "
                f"`windfall ps {job.job_id}`, then try again"
            )

    # ------------------------------------------------------------------------------------------------ plans and markets

    def plan(self, job: Job) -> views.Json:
        """Return what a job would cost and when it would finish; nothing is bought."""
        return self._planner.plan(job)

    def plan_inputs(self, job: Job) -> PlanInputs:
        """Return what a job's plan is calculated from."""
        return self._planner.plan_inputs(job)

    def add_measurement(self, job: Job, measured: Measurement) -> None:
        """Store the measurements of a job's drill, for the plans of similar jobs."""
        self._records.add_measurement(self._dependencies.term, fingerprint(job), measured)

    def offers(self) -> views.OffersView:
        """Ask all providers what they sell now."""
        return self._planner.offers()

    def status(self) -> views.StatusView:
        """Return the controller's status; answers at once."""
        open_ids = [job_id for job_id, running in list(self._running.items()) if running.runs]
        limits = [entry.job.dead_man_s for job_id in open_ids if (entry := self._records.job(job_id)) is not None]
        return views.StatusView(
            version=self._dependencies.version,
            host=socket.gethostname(),
            pid=os.getpid(),
            term=self._dependencies.term,
            unfinished=len(open_ids),
            database=self._records.place,
            store=self._dependencies.store,
            dead_man_s=min(limits, default=None),
        )

    def unneeded(self) -> views.GcView:
        """Ask all providers for machines of this installation that no job needs."""
        found: list[Machine] = []
        provider_errors: list[views.ProviderErrorView] = []
        for name, provider in self._dependencies.providers.items():
            try:
                listing = provider.list(self._dependencies.owner)
            except ProviderError as error:
                provider_errors.append(views.ProviderErrorView(name, "unreachable", str(error)))
                continue
            found += [
                machine
                for machine in listing
                # Checks the tag again although the provider filtered by it: other owners' machines are never released.
                if machine.owner == self._dependencies.owner and machine.lifecycle is not MachineLifecycle.GONE
            ]
        # Read after the listings: a job started meanwhile needs its machines in them.
        needed = {entry.job.job_id for entry in self._records.jobs() if not is_over(entry)} - self._aside.keys()
        needed |= {job_id for job_id, running in list(self._running.items()) if running.runs}
        return views.GcView(tuple(machine for machine in found if machine.job_id not in needed), tuple(provider_errors))

    def collect(self, machine_ids: Sequence[str]) -> views.GcView:
        """Release those of the given machines that are still unneeded, and return them."""
        still = self.unneeded()
        released: list[Machine] = []
        provider_errors = list(still.provider_errors)
        for machine in still.machines:
            if machine.machine_id not in machine_ids:
                continue
            try:
                self._dependencies.providers[machine.provider].release(machine.machine_id)
                released.append(machine)
            except ProviderError as error:
                provider_errors.append(views.ProviderErrorView(machine.provider, "unreachable", str(error)))
        return views.GcView(tuple(released), tuple(provider_errors))

    # --------------------------------------------------------------------------------------------------------- machines

    def claim(self, job_id: str, order_token: str, machine_id: str, boot_id: str) -> views.ClaimView | None:
        """Give a machine its token, boot data and secrets; once, or again for the same boot."""
        entry = self._records.job(job_id)
        if entry is None or not self._is_from_order(job_id, order_token, machine_id):
            return None
        if not self._records.claim(self._dependencies.term, order_token, machine_id, boot_id):
            return None
        token = auth.machine_token(self._key, job_id, machine_id)
        secrets = self._records.secrets(job_id)
        if entry.job.nodes > 1 or runtime_list.rules(entry.job.runtime.name).assign is not None:
            secrets[PEERS_TOKEN] = auth.peers_token(self._key, job_id)
        return views.ClaimView(token, boot_to_json(boot_data(entry.job)), secrets)

    def _is_from_order(self, job_id: str, order_token: str, machine_id: str) -> bool:
        """Return whether a machine belongs to an order: by the job loop's state, else by the providers' listings."""
        job_loop = self._handles[job_id].job_loop if job_id in self._handles else None
        known = {} if job_loop is None else driver.known_machines(job_loop.state)
        if machine_id in known:
            return known[machine_id].token == order_token
        for provider in self._dependencies.providers.values():
            with contextlib.suppress(ProviderError):
                for machine in provider.list(self._dependencies.owner):
                    if machine.machine_id == machine_id:
                        return (machine.job_id, machine.token) == (job_id, order_token)
        return False

    def report(self, job_id: str, report: fleet.Report) -> fleet.Directive | None:
        """Receive a machine's report; return its directive, None if nothing was decided for it yet."""
        if job_id in self._aside:
            # An error counts as no answer: the machine saves and stops at its dead-man limit.
            raise ControllerError(f"{job_id} is {self._aside[job_id]}")
        if report.step is not None:
            # Steps are for display, not facts; the last ones arrive when the job is already over.
            self._steps[job_id] = max(report.step, self._steps.get(job_id, 0))
        running = self._running.get(job_id)
        if running is None or not running.runs:
            entry = self._records.job(job_id)
            over = entry is None or is_over(entry)
            # A machine that came too late for its job: its provider's listing is no longer polled.
            return fleet.Directive(self._dependencies.term, fleet.DesiredState.STOP) if over else None
        return running.report(report)

    # ------------------------------------------------------------------------------------------------------ running jobs

    def _run(self, job: Job) -> None:
        self._running_job(job).start()

    def _running_job(self, job: Job) -> RunningJob:
        with self._lock:
            running = self._running.get(job.job_id)
            if running is None:
                running = self._running[job.job_id] = self._new_running_job(job)
        return running

    def _new_running_job(self, job: Job) -> RunningJob:
        wake = threading.Event()
        direct = self._dependencies.new_direct(wake.set)
        handles = self._handles[job.job_id] = _JobHandles(direct)
        hooks = JobHooks(
            make=lambda: self._new_job_loop(job, handles),
            deliver=direct.deliver,
            publish=lambda summary: self._publish(job, summary),
            ended=lambda: self._ended(job),
            replaced=self._dependencies.leave,
            log=self._dependencies.log,
            set_aside=lambda message: self._set_aside(job.job_id, message),
        )
        return RunningJob(job.job_id, self._dependencies.clock, hooks, wake)

    def _new_job_loop(self, job: Job, handles: _JobHandles) -> JobLoop:
        dependencies = self._dependencies
        if handles.run is None or handles.mailbox is None:
            handles.run = dependencies.open_run(job)
            handles.mailbox = handles.run.mailbox(dependencies.term, handles.alive)
        ports = JobLoopPorts(
            controller=dependencies.term,
            owner=dependencies.owner,
            clock=dependencies.clock,
            journal=self._records.journal(job.job_id, dependencies.term),
            providers=dependencies.providers,
            channels=(handles.direct, handles.mailbox),
            runtime=handles.run.runtime,
            boot=lambda order: self._boot(job, order),
            notify=lambda event, message: self._notifier.send(Notification(job, event, message)),
            rates=self._rates,
            measured=lambda: dependencies.merge(self._records.measured(fingerprint(job))),
            forecast=lambda: self._forecast(job.job_id),
            record_lifetimes=lambda lifetimes: self._records.put_lifetimes(dependencies.term, lifetimes),
            log=lambda message: dependencies.log(f"{job.job_id}: {message}"),
            pace=pace_of(job, dependencies.providers),
            schedule=dependencies.schedule,
            weigh=dependencies.weigh,
            snapshots=self._records.snapshots(job.job_id, dependencies.term),
        )
        handles.job_loop = JobLoop(job, ports)
        return handles.job_loop

    def _forecast(self, job_id: str) -> Forecast | None:
        """Return the forecast that was stored with a job's submission."""
        entry = self._records.job(job_id)
        return None if entry is None else forecasts.of_summary(json.loads(entry.summary))

    def _boot(self, job: Job, order: Order) -> BootSpec:
        provider = order.offer.provider
        return boot_specs.make_boot(
            job,
            order.offer,
            argv=self._dependencies.boot_argv,
            controller=self._dependencies.url,
            credential=auth.credential(self._key, job.job_id, order.token),
            lent=self._dependencies.store_env(provider),
            equip=self._dependencies.equip,
        )

    def _rates(self) -> tuple[tuple[str, str, str, Seconds, Seconds | None], ...]:
        # Running lifetimes grow every second: without rounding every poll would be a change.
        pooled = lifetime_pool.pool_sums(self._records.lifetime_sums(self._dependencies.clock.wall_time()))
        return tuple((*row.rate[:3], Seconds(float(f"{row.rate[3]:.2g}")), row.rate[4]) for row in pooled)

    def _publish(self, job: Job, summary: JobSummary) -> None:
        self._summaries[job.job_id] = summary
        phase, at = self._published.get(job.job_id, (None, float("-inf")))
        now = self._dependencies.clock.now()
        if phase is summary.phase and now - at < _PUBLISH_S:
            return
        self._published[job.job_id] = (summary.phase, now)
        text = json.dumps(self._with_last_step(summary))
        self._records.set_summary(self._dependencies.term, job.job_id, summary.phase, text)

    def _with_last_step(self, summary: JobSummary) -> dict[str, Any]:
        """Return a summary as it is stored, with the newest step that a machine reported."""
        return {**plain(summary), "step": max(summary.step, self._steps.get(summary.job_id, 0))}

    def _ended(self, job: Job) -> None:
        """Store the run's measurements for similar jobs, and release everything else."""
        summary = self._summaries[job.job_id]
        text = json.dumps(self._with_last_step(summary) | {"settled": True})
        if summary.phase is fleet.JobPhase.DONE:
            self._store_measurements(job)
            self._records.delete_secrets(self._dependencies.term, job.job_id)
        self._records.set_summary(self._dependencies.term, job.job_id, summary.phase, text)
        self._handles[job.job_id].close()

    def _store_measurements(self, job: Job) -> None:
        if job.job_id in self._measured_jobs:
            return  # a user's request restarted its thread after the job had ended
        try:
            lines = (line for _, line in self._records.rows(job.job_id))
            for row in self._dependencies.open_run(job).measure(lines):
                self._records.add_measurement(self._dependencies.term, fingerprint(job), row)
            self._measured_jobs.add(job.job_id)
        except ControllerUnreachable:
            raise
        except WindfallError as error:
            self._dependencies.log(f"{job.job_id}: this run's measurements were not stored for later plans: {error}")

    def _view_of_unreadable(self, unreadable: UnreadableJob) -> views.JobView:
        message = self._aside.get(unreadable.job_id, f"set aside: {unreadable.message}")
        return set_aside_view((unreadable.job_id, unreadable.name, unreadable.user), unreadable.created, message)

    def _view(self, entry: Entry, *, whole: bool) -> views.JobView:
        job = entry.job
        if job.job_id in self._aside:
            return set_aside_view((job.job_id, job.name, job.user), entry.created, self._aside[job.job_id], job.run_url)
        latest = self._summaries.get(job.job_id)
        summary = json.loads(entry.summary if latest is None else json.dumps(self._with_last_step(latest)))
        if job.job_id in self._deleted or (whole and self._is_deleted(entry, summary)):
            summary[DELETED] = True
        return view(entry, summary, self._dependencies.clock.wall_time(), whole=whole)

    def _is_deleted(self, entry: Entry, summary: dict[str, Any]) -> bool:
        """Return whether an ended job's run was deleted; a deletion is stored, for the list of jobs."""
        job_id = entry.job.job_id
        if entry.phase not in fleet.TERMINAL or summary.get(DELETED):
            return bool(summary.get(DELETED))
        try:
            deleted = self._dependencies.open_run(entry.job).deleted()
        except StoreError:
            return False  # unknown while the store does not answer
        if deleted and is_over(entry):
            self._deleted.add(job_id)
            self._records.set_summary(
                self._dependencies.term, job_id, entry.phase, json.dumps({**summary, DELETED: True})
            )
        return deleted


def is_over(entry: Entry) -> bool:
    """Return whether a job has ended and its bill is complete."""
    return entry.phase in fleet.TERMINAL and bool(json.loads(entry.summary).get("settled"))
