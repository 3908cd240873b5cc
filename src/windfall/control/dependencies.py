"""The controller's dependencies as ports: database, runs, providers, channels; `wiring_control` binds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from windfall.control import boot_specs
from windfall.control.controller_views import Json
from windfall.control.job_loop import AgeScale, Scheduler
from windfall.fleet import Directive, JobPhase, Lifetime, LifetimeSum, Report
from windfall.jobs import Job, Measurement
from windfall.ports import Channel, Clock, Journal, Provider, Runtime, Snapshots
from windfall.structs import Struct
from windfall.terms import Term, WallTime


class Entry(Protocol):
    """A job's row in the database."""

    @property
    def job(self) -> Job:
        """Return the job that was submitted."""
        ...

    @property
    def phase(self) -> JobPhase:
        """Return its last written phase."""
        ...

    @property
    def summary(self) -> str:
        """Return its last written summary, as JSON."""
        ...

    @property
    def created(self) -> WallTime:
        """Return when it was submitted."""
        ...


class UnreadableJob(Protocol):
    """A row of the table of jobs that cannot be read."""

    @property
    def job_id(self) -> str:
        """Return the job's id."""
        ...

    @property
    def user(self) -> str:
        """Return the user who submitted it."""
        ...

    @property
    def name(self) -> str:
        """Return the job's name."""
        ...

    @property
    def created(self) -> WallTime:
        """Return when it was submitted."""
        ...

    @property
    def message(self) -> str:
        """Return why it cannot be read."""
        ...


class Records(Protocol):
    """The controller's use of the database; see `storage.database.Database`."""

    @property
    def place(self) -> str:
        """Return its URL, without the password."""
        ...

    def key(self) -> bytes:
        """Return the installation's key."""
        ...

    def add_job(self, term: Term, job: Job, secrets: Mapping[str, str], summary: str = "{}") -> None:
        """Add a job, with what is known of it before its first row."""
        ...

    def set_summary(self, term: Term, job_id: str, phase: JobPhase, summary: str) -> None:
        """Store a job's phase and summary."""
        ...

    def ended(self, user: str, limit: int) -> Sequence[tuple[JobPhase, str]]:
        """Return phase and summary of a user's newest jobs that have ended, newest first."""
        ...

    def owner_of(self, job_id: str) -> str | None:
        """Return a job's user, also of one that cannot be read; None if there is no such job."""
        ...

    def job(self, job_id: str) -> Entry | None:
        """Return one job."""
        ...

    def jobs(self, user: str | None = None) -> Sequence[Entry]:
        """Return all jobs that can be read, or one user's."""
        ...

    def unreadable(self, user: str | None = None) -> Sequence[UnreadableJob]:
        """Return the rows of jobs that cannot be read, or one user's."""
        ...

    def check(self, term: Term) -> None:
        """Raise `ControllerReplaced` if a newer controller took over the installation."""
        ...

    def journal(self, job_id: str, term: Term) -> Journal:
        """Return a job's journal."""
        ...

    def snapshots(self, job_id: str, term: Term) -> Snapshots:
        """Return the snapshots of a job's state."""
        ...

    def rows(self, job_id: str, *, after: int = 0, limit: int | None = None) -> Iterable[tuple[int, str]]:
        """Yield a job's rows."""
        ...

    def secrets(self, job_id: str) -> dict[str, str]:
        """Return the values of a job's secrets."""
        ...

    def delete_secrets(self, term: Term, job_id: str) -> None:
        """Delete the values of a job's secrets."""
        ...

    def claim(self, term: Term, token: str, machine_id: str, boot_id: str) -> bool:
        """Record a boot's claim of a machine; False if another boot has claimed it."""
        ...

    def put_lifetimes(self, term: Term, lifetimes: Iterable[Lifetime]) -> None:
        """Store the lifetimes of machines."""
        ...

    def lifetimes(self) -> Sequence[Lifetime]:
        """Return the lifetimes of all machines."""
        ...

    def lifetime_sums(self, now: WallTime) -> Sequence[LifetimeSum]:
        """Return the lifetimes of all machines, summed for each kind."""
        ...

    def add_measurement(self, term: Term, key: str, measured: Measurement) -> None:
        """Add the measurements of one run."""
        ...

    def measured(self, key: str) -> Sequence[Measurement]:
        """Return the measurements of all runs with this job fingerprint."""
        ...


class Mailbox(Channel, Protocol):
    """The channel through the run's store."""

    def close(self) -> None:
        """Stop reading and writing."""
        ...


class RunAccess(Struct, frozen=True):
    """The controller's access to a job's run.

    Attributes:
        runtime: how the job's state survives.
        mailbox: makes the channel through the run's store: (controller's term, function that returns live machines).
        write_boot: puts `job.json` into the store.
        measure: returns the finished run's measurements from its journals; one row for each kind of machine.
        deleted: returns whether the run was deleted: `job.json`, present since the submission, is gone.
    """

    runtime: Runtime
    mailbox: Callable[[Term, Callable[[], Iterable[str]]], Mailbox]
    write_boot: Callable[[Json], None]
    measure: Callable[[Iterable[str]], tuple[Measurement, ...]]
    deleted: Callable[[], bool]


class ReportChannel(Channel, Protocol):
    """The channel through the API."""

    def deliver(self, report: Report) -> Directive | None:
        """Receive a machine's report; return its directive."""
        ...


def _admit_all(_: Job) -> None:
    """Admit a job wherever its run is stored."""


class Dependencies(Struct, frozen=True):
    """The controller's dependencies; `wiring_control` builds them.

    Attributes:
        open_run: opens a job's run.
        new_direct: makes a direct channel: (function that wakes the job loop).
        boot_argv: the command that runs the node agent on this host.
        equip: adds to what a machine starts with what its provider's machines need.
        store_env: environment with which a provider's machines reach the run's store before they claim their secrets.
        merge: merges the measurements of several runs into one row for each kind of machine.
        leave: ends this process with a message.
        log: writes a message to the controller's log.
        store: where runs that name no store are kept.
        admit: refuses a job whose run may not be stored where it asks for.
        inside: returns whether a user's webhook may lead to this machine or its link.
        schedule: makes a machine's save schedule; None if no job has one.
        weigh: weighs a machine's age for its next item; None if no machine is retired by its age.
    """

    term: Term
    owner: str
    url: str
    version: str
    clock: Clock
    records: Records
    providers: Mapping[str, Provider]
    open_run: Callable[[Job], RunAccess]
    new_direct: Callable[[Callable[[], None]], ReportChannel]
    boot_argv: tuple[str, ...]
    store_env: Callable[[str], tuple[tuple[str, str], ...]]
    merge: Callable[[Sequence[Measurement]], tuple[Measurement, ...]]
    leave: Callable[[str], None]
    log: Callable[[str], None]
    admit: Callable[[Job], None] = _admit_all
    inside: Callable[[str], bool] = bool
    schedule: Scheduler | None = None
    weigh: AgeScale | None = None
    store: str = ""
    equip: boot_specs.Equip = boot_specs.on_this_host
