"""The controller's service interface, apart from HTTP, and the views it returns.

Views are sent as JSON objects; a client of another version ignores their unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from windfall.fleet import Directive, JobPhase, Report
from windfall.jobs import Forecast, Job, Measurement
from windfall.market import Machine, Offer, Quota
from windfall.policies.planning.estimates import PlanInputs
from windfall.structs import Struct
from windfall.terms import Seconds, Term, WallTime

Json = dict[str, Any]
"""A JSON object that the API passes on unchanged."""


class JobView(Struct, frozen=True):
    """A job's status.

    Attributes:
        message: the reason for its phase, for display.
        exit_code: None while it has none.
        created: when it was submitted.
        finish_at: when it is expected to be done; None if unknown.
        dead_man_s: how long its machines keep running without the controller.
        run_deleted: its run was deleted (`windfall rm`): its cost is known, its checkpoints are gone.
        details: machines, slots and sums of the ledger, as in the driver's summary.
    """

    job_id: str
    name: str
    user: str
    phase: JobPhase
    message: str
    run_url: str
    created: WallTime
    exit_code: int | None = None
    finish_at: WallTime | None = None
    dead_man_s: Seconds | None = None
    run_deleted: bool = False
    details: Json = msgspec.field(default_factory=dict)


class RowView(Struct, frozen=True):
    """A row of a job's journal: its number and its line."""

    sequence: int
    line: str


class ProviderErrorView(Struct, frozen=True):
    """A provider's error: what it refused, or that it could not be reached."""

    provider: str
    refusal: str
    message: str


class OffersView(Struct, frozen=True):
    """What can be bought now, and the providers that did not answer."""

    offers: tuple[Offer, ...]
    quotas: tuple[Quota, ...] = ()
    provider_errors: tuple[ProviderErrorView, ...] = ()


class StatusView(Struct, frozen=True):
    """The controller's status.

    Attributes:
        host: the machine that must stay on while jobs are unfinished.
        unfinished: how many jobs have not ended, or have ended with an incomplete bill.
        finish_at: when the last of them is expected to be done; None if unknown for any of them.
        dead_man_s: the shortest dead-man limit of the unfinished jobs; None without jobs.
        database: URL without password.
        store: where runs that name no store are kept.
    """

    version: str
    host: str
    pid: int
    term: Term
    unfinished: int
    database: str
    finish_at: WallTime | None = None
    dead_man_s: Seconds | None = None
    message: str = ""
    store: str = ""


class GcView(Struct, frozen=True):
    """Machines that carry this installation's tag and that no unfinished job needs."""

    machines: tuple[Machine, ...]
    provider_errors: tuple[ProviderErrorView, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimView:
    """What a machine gets in exchange for its credential; a dataclass, because its `repr` leaves out the secrets.

    Attributes:
        token: authenticates its reports.
        boot: the job's boot data, as `wire.boot_data` writes it.
        secrets: values by name; never logged.
    """

    token: str
    boot: Json
    secrets: dict[str, str] = field(default_factory=dict, repr=False)


class Service(Protocol):
    """The controller's work.  Calls come from several threads and may block for seconds; each may raise a `WindfallError`.

    The API checks permissions: it has checked a job's owner before it calls a method for the job.
    """

    def start(self) -> None:
        """Run all unfinished jobs, each in its own thread."""
        ...

    def end(self) -> None:
        """Stop running all jobs soon; nothing is lost if this is not called."""
        ...

    def submit(self, job: Job, secrets: Mapping[str, str], forecast: Forecast | None = None) -> str:
        """Store a job durably, start it and return its id; submitting the same job again changes nothing.

        Args:
            job: what to run.
            secrets: their values by name.
            forecast: what the user's plan promised; None: the controller stores what its own plan expects.

        Raises:
            Misuse: the job cannot be run.
            Infeasible: nothing for sale can do the job.
        """
        ...

    def owner_of(self, job_id: str) -> str | None:
        """Return the user who submitted a job; None if there is no such job."""
        ...

    def jobs(self, user: str | None) -> Sequence[JobView]:
        """Return a user's jobs, None for all users', oldest first."""
        ...

    def job(self, job_id: str) -> JobView:
        """Return one job that `owner_of` knows, with its details."""
        ...

    def rows(self, job_id: str, after: int, limit: int) -> Sequence[RowView]:
        """Return up to `limit` rows of a job's journal after row `after`."""
        ...

    def stop(self, job_id: str, user: str, *, now: bool) -> None:
        """Stop a job after a save, or `now`; no error if it has already stopped."""
        ...

    def resume(self, job_id: str, user: str, *, more: bool = False) -> None:
        """Resume a stopped or failed job; with `more`, its run was given more to do, so one that is done resumes too."""
        ...

    def preempt(self, job_id: str, machine_id: str, user: str, *, notice_s: Seconds | None) -> None:
        """Ask a machine's provider to preempt it with this notice, None for none, as a rehearsal.

        Raises:
            Misuse: the job has no such machine.
        """
        ...

    def add_measurement(self, job: Job, measured: Measurement) -> None:
        """Store the measurements of a job's drill."""
        ...

    def plan(self, job: Job) -> Json:
        """Return what a job would cost and when it would finish; nothing is bought.

        Raises:
            Infeasible: nothing for sale can do the job; with the arithmetic.
        """
        ...

    def plan_inputs(self, job: Job) -> PlanInputs:
        """Return measurements and lifetimes, from which a plan is calculated."""
        ...

    def offers(self) -> OffersView:
        """Ask all providers for their current offers."""
        ...

    def status(self) -> StatusView:
        """Return the controller's status; answers at once."""
        ...

    def unneeded(self) -> GcView:
        """Ask all providers for machines of this installation that no job needs."""
        ...

    def collect(self, machine_ids: Sequence[str]) -> GcView:
        """Release those of the given machines that are still unneeded, and return them."""
        ...

    def claim(self, job_id: str, order_token: str, machine_id: str, boot_id: str) -> ClaimView | None:
        """Give a machine its token, boot data and secrets; once, or again for the same boot.

        Returns:
            None if another boot has already claimed this machine, or the order has no such machine.
        """
        ...

    def report(self, job_id: str, report: Report) -> Directive | None:
        """Receive a machine's report; return its directive, None if nothing was decided for it yet.  Answers at once."""
        ...
