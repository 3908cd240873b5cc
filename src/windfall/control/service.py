"""What the controller can be asked, apart from how: the interface between the API and the conductors behind it.

Views are plain dataclasses, sent as JSON objects; a client of another version ignores fields that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from windfall.fleet import Directive, JobPhase, Lifetime, Report
from windfall.jobs import Job, Measured
from windfall.market import Machine, Offer, Quota
from windfall.terms import Seconds, Term, WallTime

Json = dict[str, Any]
"""A JSON object that the API hands through."""


@dataclass(frozen=True, slots=True)
class JobView:
    """How a job stands.

    Attributes:
        sentence: why it is where it is, for people.
        exit_code: None while it has none.
        created: when it was submitted.
        finish_at: when it is expected to be done; None if that is not known.
        dead_man_s: how long its machines go on without the controller.
        run_deleted: its run was deleted (`windfall rm`): what it cost is known, what it stored is gone.
        details: machines, slots, sums of the ledger: as the driver's summary has them.
    """

    job_id: str
    name: str
    user: str
    phase: JobPhase
    sentence: str
    run_url: str
    created: WallTime
    exit_code: int | None = None
    finish_at: WallTime | None = None
    dead_man_s: Seconds | None = None
    run_deleted: bool = False
    details: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowView:
    """A row of a job's journal: its number and its line."""

    sequence: int
    line: str


@dataclass(frozen=True, slots=True)
class KnownView:
    """What a plan of a job rests on, so that others can calculate with it too.

    Attributes:
        now: on the controller's wall clock; lives that have not ended count until then.
        look_s: between two looks at the machines' listing.
        measured: what each earlier run of the job's like showed.
        lifetimes: of all machines of the installation.
    """

    now: WallTime
    look_s: Seconds
    measured: tuple[Measured, ...] = ()
    lifetimes: tuple[Lifetime, ...] = ()


@dataclass(frozen=True, slots=True)
class Trouble:
    """A provider that did not answer as it should."""

    provider: str
    refusal: str
    sentence: str


@dataclass(frozen=True, slots=True)
class OffersView:
    """What can be bought now, and who did not say."""

    offers: tuple[Offer, ...]
    quotas: tuple[Quota, ...] = ()
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True, slots=True)
class StatusView:
    """How the controller stands.

    Attributes:
        host: the machine that must stay on while jobs are unfinished.
        unfinished: how many jobs are not done, failed or stopped with their bill complete.
        finish_at: when the last of them is expected to be done; None if that is not known of all.
        dead_man_s: the shortest limit after which a machine that hears nothing saves and stops; None without jobs.
        database: URL without password.
        store: where runs lie that name no store.
    """

    version: str
    host: str
    pid: int
    term: Term
    unfinished: int
    database: str
    finish_at: WallTime | None = None
    dead_man_s: Seconds | None = None
    sentence: str = ""
    store: str = ""


@dataclass(frozen=True, slots=True)
class GcView:
    """Machines that carry this installation's tag and that no unfinished job needs."""

    machines: tuple[Machine, ...]
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a machine gets for its credential.

    Attributes:
        token: with which it reports.
        boot: what the job needs to begin, as `wire.boot` has it.
        secrets: their values by name; they are written to no log.
    """

    token: str
    boot: Json
    secrets: dict[str, str] = field(default_factory=dict, repr=False)


class Service(Protocol):
    """The controller's work.  Calls come from several threads and may block for seconds; each may raise a `WindfallError`.

    Who may ask what is the API's business: it has looked at the owner of a job before it asks for anything of it.
    """

    def begin(self) -> None:
        """Take up all unfinished jobs, in threads of its own."""
        ...

    def end(self) -> None:
        """Let go of all jobs, soon; nothing is lost by not being called."""
        ...

    def submit(self, job: Job, secrets: Mapping[str, str]) -> str:
        """Take a job in, durably, and return its id; the same job again is the same submission.

        Raises:
            Misuse: it is not a job that can be run.
            Infeasible: nothing that can be bought would do.
        """
        ...

    def owner_of(self, job_id: str) -> str | None:
        """Return the user who submitted a job; None if there is no such job."""
        ...

    def jobs(self, user: str | None) -> Sequence[JobView]:
        """Return a user's jobs, None for everybody's, oldest first."""
        ...

    def job(self, job_id: str) -> JobView:
        """Return one job that `owner_of` knows, with its details."""
        ...

    def rows(self, job_id: str, after: int, limit: int) -> Sequence[RowView]:
        """Return up to `limit` rows of a job's journal behind row `after`."""
        ...

    def stop(self, job_id: str, user: str, *, now: bool) -> None:
        """Stop a job after a save, or `now`; no error if it has stopped."""
        ...

    def resume(self, job_id: str, user: str) -> None:
        """Let a stopped or failed job go on."""
        ...

    def preempt(self, job_id: str, machine_id: str, user: str, *, notice_s: Seconds | None) -> None:
        """Let a machine's provider take it, with so much notice, None for none: a rehearsal.

        Raises:
            Misuse: the job has no such machine.
        """
        ...

    def learn(self, job: Job, measured: Measured) -> None:
        """Keep what a drill of a job showed."""
        ...

    def plan(self, job: Job) -> Json:
        """Return what a job would cost and when it would finish; nothing is bought.

        Raises:
            Infeasible: nothing that can be bought would do; with the arithmetic.
        """
        ...

    def known(self, job: Job) -> KnownView:
        """Return what earlier runs and machines showed, which is what a plan rests on."""
        ...

    def offers(self) -> OffersView:
        """Ask all providers what they sell now."""
        ...

    def status(self) -> StatusView:
        """Return how the controller stands; answers at once."""
        ...

    def unneeded(self) -> GcView:
        """Ask all providers for machines of this installation that no job needs."""
        ...

    def collect(self, machine_ids: Sequence[str]) -> GcView:
        """Release those of these machines that `unneeded` still names; return the machines that were released."""
        ...

    def claim(self, job_id: str, order_token: str, machine_id: str, boot_id: str) -> Claimed | None:
        """Give a machine of an order its token and what it needs, once; again for the same boot.

        Returns:
            None if another boot has claimed for this machine, or the order has no such machine.
        """
        ...

    def report(self, job_id: str, report: Report) -> Directive | None:
        """Take a machine's report; return what it is to do, None if nothing was decided for it yet.  Answers at once."""
        ...
