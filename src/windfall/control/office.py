"""The controller's work behind its API: jobs taken in, run, shown; machines claimed, heard, collected.

Implements `control.service.Service` over ports and conductors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windfall.control import auth
from windfall.control.alone import refuse_unsold
from windfall.control.conductor import Conductor, ConductorPorts
from windfall.control.likes import boot_data, likeness, pace_of
from windfall.control.means import Direct, Entry, Mailbox, Means, Opened, Spoilt
from windfall.control.notifying import Message, Notifier
from windfall.control.running import Hooks, RunningJob
from windfall.control.service import Claimed, GcView, JobView, Json, KnownView, OffersView, RowView, StatusView, Trouble
from windfall.control.standing import DELETED, shelved, view
from windfall.core import driver
from windfall.core.driver import JobSummary
from windfall.errors import (
    ControllerError,
    ControllerReplaced,
    ControllerUnreachable,
    Misuse,
    ProviderDenied,
    ProviderError,
    StoreError,
    WindfallError,
)
from windfall.fleet import TERMINAL, Direction, Directive, JobPhase, PreemptWanted, Report, ResumeWanted, StopWanted
from windfall.jobs import Job, Measured
from windfall.market import Boot, Life, Machine, Offer, Order, Quota, Refusal
from windfall.models import pool
from windfall.policies import planning
from windfall.terms import Seconds
from windfall.wire.boot import boot_to_json
from windfall.wire.environment import PEERS_TOKEN

_WATCH_S = 2.0
"""Between two looks after the jobs' threads [s]."""
_PUBLISH_S = 2.0
"""A summary of which nothing but numbers changed is written to the database at most so often [s]."""
ROWS_MAX = 5000


@dataclass(slots=True)
class _Ways:
    """How a running job is reached, kept while conductors come and go."""

    direct: Direct
    opened: Opened | None = None
    mailbox: Mailbox | None = None
    conductor: Conductor | None = None

    def alive(self) -> tuple[str, ...]:
        """Return the machines that run."""
        conductor = self.conductor
        return () if conductor is None else conductor.alive()

    def close(self) -> None:
        """Let go of the run's store and of what the conductor knows: the job has ended."""
        if self.mailbox is not None:
            self.mailbox.close()
        self.opened = self.mailbox = self.conductor = None


class Office:
    """`control.service.Service`."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._records = means.records
        self._key = means.records.key()
        self._lock = threading.Lock()
        self._running: dict[str, RunningJob] = {}
        self._ways: dict[str, _Ways] = {}
        self._latest: dict[str, JobSummary] = {}
        self._written: dict[str, tuple[JobPhase, float]] = {}
        self._steps: dict[str, int] = {}
        self._learnt: set[str] = set()
        self._aside: dict[str, str] = {}
        self._deleted: set[str] = set()
        self._leaving = threading.Event()
        self._notifier = Notifier(means.clock, means.say, lambda job: means.inside(job.user))

    def begin(self) -> None:
        """Take up all unfinished jobs, in threads of their own; what cannot be read is set aside, and the others go on."""
        for spoilt in self._records.spoilt():
            self._set_aside(spoilt.job_id, spoilt.sentence)
        for entry in self._records.jobs():
            if not is_over(entry):
                self._run(entry.job)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def _watch(self) -> None:
        """Take up again what has died, and leave when another controller took the installation, also without a job."""
        while not self._leaving.wait(_WATCH_S):
            try:
                for job_id, running in list(self._running.items()):
                    if running.revive():
                        self._means.say(f"{job_id}: its thread had died; the job is taken up again from its journal")
                self._records.check(self._means.term)
            except ControllerReplaced as error:
                self._means.leave(str(error))
                return
            except Exception as error:
                self._means.say(f"the controller could not look after its jobs: {type(error).__name__}: {error}")

    def _set_aside(self, job_id: str, sentence: str) -> None:
        self._aside[job_id] = (
            f"set aside: {sentence}; its machines save and stop when they hear of no controller for so long as the job "
            "says, and `windfall gc` releases them now"
        )
        self._means.say(f"{job_id} is {self._aside[job_id]}")

    def end(self) -> None:
        """Let go of all jobs, soon."""
        self._leaving.set()
        for running in list(self._running.values()):
            running.leave()

    # ------------------------------------------------------------------------------------------------------------- jobs

    def submit(self, job: Job, secrets: Mapping[str, str]) -> str:
        """Take a job in, durably, and return its id."""
        missing = sorted({secret.name for secret in job.secrets} - set(secrets))
        if missing:
            raise Misuse(f"the value of secret {missing[0]} is missing: export {missing[0]} where you start the job")
        there = self._records.job(job.job_id)
        if there is not None:
            return self._submitted_again(there, job)
        self._means.admit(job)
        self.plan(job)
        self._means.open_run(job).write_boot(boot_to_json(boot_data(job)))
        self._records.add_job(self._means.term, job, secrets)
        self._run(job)
        return job.job_id

    def _submitted_again(self, there: Entry, job: Job) -> str:
        if there.job != job:
            raise Misuse(f"there is a job {job.job_id} already")
        if not is_over(there):
            self._run(job)
        return job.job_id

    def owner_of(self, job_id: str) -> str | None:
        """Return the user who submitted a job; None if there is no such job."""
        entry = self._records.job(job_id)
        if entry is not None:
            return entry.job.user
        return next((spoilt.user for spoilt in self._records.spoilt() if spoilt.job_id == job_id), None)

    def jobs(self, user: str | None) -> Sequence[JobView]:
        """Return a user's jobs, None for everybody's, oldest first."""
        views = [self._view(entry, whole=False) for entry in self._records.jobs(user)]
        views += [self._view_of_spoilt(spoilt) for spoilt in self._records.spoilt(user)]
        return sorted(views, key=lambda view: view.created)

    def job(self, job_id: str) -> JobView:
        """Return one job with its details."""
        entry = self._records.job(job_id)
        if entry is not None:
            return self._view(entry, whole=True)
        for spoilt in self._records.spoilt():
            if spoilt.job_id == job_id:
                return self._view_of_spoilt(spoilt)
        raise Misuse(f"there is no job {job_id}: `windfall ps` lists them")

    def rows(self, job_id: str, after: int, limit: int) -> Sequence[RowView]:
        """Return up to `limit` rows of a job's journal behind row `after`."""
        found = self._records.rows(job_id, after=after, limit=min(limit, ROWS_MAX))
        return [RowView(sequence, line) for sequence, line in found]

    def stop(self, job_id: str, user: str, *, now: bool) -> None:
        """Stop a job after a save, or `now`."""
        entry = self._records.job(job_id)
        if entry is not None and not is_over(entry):
            self._wish(entry.job, StopWanted(now, user))

    def resume(self, job_id: str, user: str) -> None:
        """Let a stopped or failed job go on."""
        entry = self._records.job(job_id)
        if entry is None:
            raise Misuse(f"there is no job {job_id}: `windfall ps` lists them")
        if entry.phase is JobPhase.DONE:
            raise Misuse(f"{job_id} is done; there is nothing left to go on with")
        if self.job(job_id).run_deleted:
            raise Misuse(
                f"{job_id} cannot go on: its run was deleted, with all that was stored; `windfall run` starts a new one"
            )
        refuse_unsold(self.offers())
        self._wish(entry.job, ResumeWanted(user))

    def preempt(self, job_id: str, machine_id: str, user: str, *, notice_s: Seconds | None) -> None:
        """Let a machine's provider take it: a rehearsal."""
        entry, latest = self._records.job(job_id), self._latest.get(job_id)
        machines = () if latest is None else (one for slot in latest.slots for one in slot.machines)
        if entry is None or not any(one.machine_id == machine_id for one in machines):
            raise Misuse(f"{job_id} has no machine {machine_id} now: `windfall ps {job_id}` lists them")
        self._wish(entry.job, PreemptWanted(machine_id, notice_s, user))

    def _wish(self, job: Job, fact: StopWanted | ResumeWanted | PreemptWanted) -> None:
        if job.job_id in self._aside:
            raise ControllerError(f"{job.job_id} is {self._aside[job.job_id]}")
        if not self._known(job).wish(fact):
            raise ControllerError(
                f"the controller could not note the wish for {job.job_id} yet: see `windfall ps {job.job_id}`, and ask again"
            )

    # ------------------------------------------------------------------------------------------------ plans and markets

    def plan(self, job: Job) -> Json:
        """Return what a job would cost and when it would finish; nothing is bought."""
        offered = self.offers()
        refuse_unsold(offered)
        wall = self._means.clock.wall()
        pooled = pool.pool(self._records.lifetimes(), wall)
        measured = self._means.merge(self._records.measured(likeness(job)))
        look_s = pace_of(job, self._means.providers).list_s
        found = planning.plan(job, offered.offers, (), measured, wall, pooled=pooled, look_s=look_s)
        return {**dataclasses.asdict(found), "troubles": [dataclasses.asdict(row) for row in offered.troubles]}

    def known(self, job: Job) -> KnownView:
        """Return what a plan of a job rests on."""
        look_s = pace_of(job, self._means.providers).list_s
        measured = tuple(self._records.measured(likeness(job)))
        return KnownView(self._means.clock.wall(), look_s, measured, tuple(self._records.lifetimes()))

    def learn(self, job: Job, measured: Measured) -> None:
        """Keep what a drill of a job showed, for the plans of its like."""
        self._records.add_measured(self._means.term, likeness(job), measured)

    def offers(self) -> OffersView:
        """Ask all providers what they sell now."""
        offers: list[Offer] = []
        quotas: list[Quota] = []
        troubles: list[Trouble] = []
        for name, provider in self._means.providers.items():
            try:
                offers += provider.offers()
                quotas += provider.quota(self._means.owner)
            except ProviderDenied as error:
                troubles.append(Trouble(name, Refusal.CREDENTIALS, str(error)))
            except ProviderError as error:
                troubles.append(Trouble(name, "unreachable", str(error)))
        return OffersView(tuple(offers), tuple(quotas), tuple(troubles))

    def status(self) -> StatusView:
        """Return how the controller stands; answers at once."""
        open_ids = [job_id for job_id, running in list(self._running.items()) if running.runs]
        limits = [entry.job.dead_man_s for job_id in open_ids if (entry := self._records.job(job_id)) is not None]
        return StatusView(
            version=self._means.version,
            host=socket.gethostname(),
            pid=os.getpid(),
            term=self._means.term,
            unfinished=len(open_ids),
            database=self._records.place,
            store=self._means.store,
            dead_man_s=min(limits, default=None),
        )

    def unneeded(self) -> GcView:
        """Ask all providers for machines of this installation that no job needs."""
        found: list[Machine] = []
        troubles: list[Trouble] = []
        for name, provider in self._means.providers.items():
            try:
                listing = provider.list(self._means.owner)
            except ProviderError as error:
                troubles.append(Trouble(name, "unreachable", str(error)))
                continue
            found += [
                machine
                for machine in listing
                # The owner's tag again, though the provider was asked for it: what is not ours is never touched.
                if machine.owner == self._means.owner and machine.life is not Life.GONE
            ]
        # Asked after the listings: a job that began meanwhile needs what they show of it.
        needed = {entry.job.job_id for entry in self._records.jobs() if not is_over(entry)} - self._aside.keys()
        needed |= {job_id for job_id, running in list(self._running.items()) if running.runs}
        return GcView(tuple(machine for machine in found if machine.job_id not in needed), tuple(troubles))

    def collect(self, machine_ids: Sequence[str]) -> GcView:
        """Release those of these machines that `unneeded` still names; return the machines that were released."""
        still = self.unneeded()
        released: list[Machine] = []
        troubles = list(still.troubles)
        for machine in still.machines:
            if machine.machine_id not in machine_ids:
                continue
            try:
                self._means.providers[machine.provider].release(machine.machine_id)
                released.append(machine)
            except ProviderError as error:
                troubles.append(Trouble(machine.provider, "unreachable", str(error)))
        return GcView(tuple(released), tuple(troubles))

    # --------------------------------------------------------------------------------------------------------- machines

    def claim(self, job_id: str, order_token: str, machine_id: str, boot_id: str) -> Claimed | None:
        """Give a machine of an order its token and what it needs, once; again for the same boot."""
        entry = self._records.job(job_id)
        if entry is None or not self._came_of(job_id, order_token, machine_id):
            return None
        if not self._records.claim(self._means.term, order_token, machine_id, boot_id):
            return None
        token = auth.machine_token(self._key, job_id, machine_id)
        secrets = self._records.secrets(job_id)
        if entry.job.nodes > 1:
            secrets[PEERS_TOKEN] = auth.peers_token(self._key, job_id)
        return Claimed(token, boot_to_json(boot_data(entry.job)), secrets)

    def _came_of(self, job_id: str, order_token: str, machine_id: str) -> bool:
        """Say whether a machine came of an order: as the conductor knows, else as the providers list it now."""
        conductor = self._ways[job_id].conductor if job_id in self._ways else None
        known = {} if conductor is None else driver.known_machines(conductor.state)
        if machine_id in known:
            return known[machine_id].token == order_token
        for provider in self._means.providers.values():
            with contextlib.suppress(ProviderError):
                for machine in provider.list(self._means.owner):
                    if machine.machine_id == machine_id:
                        return (machine.job_id, machine.token) == (job_id, order_token)
        return False

    def report(self, job_id: str, report: Report) -> Directive | None:
        """Take a machine's report; return what it is to do, None if nothing was decided for it yet."""
        if job_id in self._aside:
            # As if nobody answered: the machine saves, and stops, when its job says so.
            raise ControllerError(f"{job_id} is {self._aside[job_id]}")
        if report.step is not None:
            # Steps are no facts: only those who look want to know.  The last ones come when the job is over already.
            self._steps[job_id] = max(report.step, self._steps.get(job_id, 0))
        running = self._running.get(job_id)
        if running is None or not running.runs:
            entry = self._records.job(job_id)
            over = entry is None or is_over(entry)
            # A machine that came too late for its job: nobody looks at its provider for it any more.
            return Directive(self._means.term, Direction.LEAVE) if over else None
        return running.report(report)

    # ------------------------------------------------------------------------------------------------------ running jobs

    def _run(self, job: Job) -> None:
        self._known(job).begin()

    def _known(self, job: Job) -> RunningJob:
        with self._lock:
            running = self._running.get(job.job_id)
            if running is None:
                running = self._running[job.job_id] = self._new(job)
        return running

    def _new(self, job: Job) -> RunningJob:
        wake = threading.Event()
        direct = self._means.new_direct(wake.set)
        ways = self._ways[job.job_id] = _Ways(direct)
        hooks = Hooks(
            make=lambda: self._conductor(job, ways),
            deliver=direct.deliver,
            publish=lambda summary: self._publish(job, summary),
            ended=lambda: self._ended(job),
            replaced=self._means.leave,
            say=self._means.say,
            aside=lambda sentence: self._set_aside(job.job_id, sentence),
        )
        return RunningJob(job.job_id, self._means.clock, hooks, wake)

    def _conductor(self, job: Job, ways: _Ways) -> Conductor:
        means = self._means
        if ways.opened is None or ways.mailbox is None:
            ways.opened = means.open_run(job)
            ways.mailbox = ways.opened.mailbox(means.term, ways.alive)
        ports = ConductorPorts(
            controller=means.term,
            owner=means.owner,
            clock=means.clock,
            journal=self._records.journal(job.job_id, means.term),
            providers=means.providers,
            channels=(ways.direct, ways.mailbox),
            run=ways.opened.watch,
            boot=lambda order: self._boot(job, order),
            notify=lambda event, sentence: self._notifier.tell(Message(job, event, sentence)),
            rates=self._rates,
            measured=lambda: means.merge(self._records.measured(likeness(job))),
            record_lives=lambda lives: self._records.put_lifetimes(means.term, lives),
            say=lambda sentence: means.say(f"{job.job_id}: {sentence}"),
            pace=pace_of(job, means.providers),
            schedule=means.schedule,
        )
        ways.conductor = Conductor(job, ports)
        return ways.conductor

    def _boot(self, job: Job, order: Order) -> Boot:
        return Boot(
            self._means.boot_argv,
            (
                ("WINDFALL_RUN_URL", job.run_url),
                ("WINDFALL_CONTROLLER", self._means.url),
                ("WINDFALL_CREDENTIAL", auth.credential(self._key, job.job_id, order.token)),
                *self._means.store_env(order.offer.provider),
            ),
        )

    def _rates(self) -> tuple[tuple[str, str, str, Seconds, Seconds | None], ...]:
        # Running lives grow with every second: without rounding each look would be news.
        rates = [row.rate for row in pool.pool(self._records.lifetimes(), self._means.clock.wall())]
        return tuple((*rate[:3], Seconds(float(f"{rate[3]:.2g}")), rate[4]) for rate in rates)

    def _publish(self, job: Job, summary: JobSummary) -> None:
        self._latest[job.job_id] = summary
        phase, at = self._written.get(job.job_id, (None, float("-inf")))
        now = self._means.clock.now()
        if phase is summary.phase and now - at < _PUBLISH_S:
            return
        self._written[job.job_id] = (summary.phase, now)
        text = json.dumps(self._told(summary))
        self._records.set_summary(self._means.term, job.job_id, summary.phase, text)

    def _told(self, summary: JobSummary) -> dict[str, Any]:
        """Return a summary as it is kept, with the newest step that any machine told of."""
        return dataclasses.asdict(summary) | {"step": max(summary.step, self._steps.get(summary.job_id, 0))}

    def _ended(self, job: Job) -> None:
        """Keep what the run showed, for the plans of its like; let go of everything else."""
        summary = self._latest[job.job_id]
        text = json.dumps(self._told(summary) | {"settled": True})
        if summary.phase is JobPhase.DONE:
            self._learn(job)
            self._records.forget_secrets(self._means.term, job.job_id)
        self._records.set_summary(self._means.term, job.job_id, summary.phase, text)
        self._ways[job.job_id].close()

    def _learn(self, job: Job) -> None:
        if job.job_id in self._learnt:
            return  # somebody wished something of it after its end
        try:
            lines = (line for _, line in self._records.rows(job.job_id))
            for row in self._means.open_run(job).measure(lines):
                self._records.add_measured(self._means.term, likeness(job), row)
            self._learnt.add(job.job_id)
        except ControllerUnreachable:
            raise
        except WindfallError as error:
            self._means.say(f"{job.job_id}: what this run showed could not be kept for later plans: {error}")

    def _view_of_spoilt(self, spoilt: Spoilt) -> JobView:
        told = self._aside.get(spoilt.job_id, f"set aside: {spoilt.sentence}")
        return shelved((spoilt.job_id, spoilt.name, spoilt.user), spoilt.created, told)

    def _view(self, entry: Entry, *, whole: bool) -> JobView:
        job = entry.job
        if job.job_id in self._aside:
            return shelved((job.job_id, job.name, job.user), entry.created, self._aside[job.job_id], job.run_url)
        latest = self._latest.get(job.job_id)
        stands = json.loads(entry.summary if latest is None else json.dumps(self._told(latest)))
        if job.job_id in self._deleted or (whole and self._is_deleted(entry, stands)):
            stands[DELETED] = True
        return view(entry, stands, self._means.clock.wall(), whole=whole)

    def _is_deleted(self, entry: Entry, stands: dict[str, Any]) -> bool:
        """Say whether an ended job's run was deleted; what was seen once is kept, for the list of jobs."""
        job_id = entry.job.job_id
        if entry.phase not in TERMINAL or stands.get(DELETED):
            return bool(stands.get(DELETED))
        try:
            deleted = self._means.open_run(entry.job).deleted()
        except StoreError:
            return False  # nobody can say
        if deleted and is_over(entry):
            self._deleted.add(job_id)
            self._records.set_summary(self._means.term, job_id, entry.phase, json.dumps({**stands, DELETED: True}))
        return deleted


def is_over(entry: Entry) -> bool:
    """Say whether nothing is left to be done for a job: it has ended, and its bill is complete."""
    return entry.phase in TERMINAL and bool(json.loads(entry.summary).get("settled"))
