"""What the office works with: the database, the runs, the providers, as ports; `wiring_control` fills them in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from windfall.control.scheduling import Scheduler
from windfall.control.service import Json
from windfall.fleet import Directive, JobPhase, Lifetime, Report
from windfall.jobs import Job, Measured
from windfall.ports import Channel, Clock, Journal, Provider, RunWatch
from windfall.terms import Term, WallTime


class Entry(Protocol):
    """A job as the database has it."""

    @property
    def job(self) -> Job:
        """Return what was submitted."""
        ...

    @property
    def phase(self) -> JobPhase:
        """Return where it was when last written."""
        ...

    @property
    def summary(self) -> str:
        """Return how it stood when last written, as JSON."""
        ...

    @property
    def created(self) -> WallTime:
        """Return when it was submitted."""
        ...


class Spoilt(Protocol):
    """A row of the table of jobs that cannot be read."""

    @property
    def job_id(self) -> str:
        """Return whose row it is."""
        ...

    @property
    def user(self) -> str:
        """Return who submitted it."""
        ...

    @property
    def name(self) -> str:
        """Return what the job is called."""
        ...

    @property
    def created(self) -> WallTime:
        """Return when it was submitted."""
        ...

    @property
    def sentence(self) -> str:
        """Return what is wrong with it."""
        ...


class Records(Protocol):
    """What the office needs of the database; see `storage.sql.Database`."""

    @property
    def place(self) -> str:
        """Return its URL, without the password."""
        ...

    def key(self) -> bytes:
        """Return the installation's key."""
        ...

    def add_job(self, term: Term, job: Job, secrets: Mapping[str, str]) -> None:
        """Add a job."""
        ...

    def set_summary(self, term: Term, job_id: str, phase: JobPhase, summary: str) -> None:
        """Keep how a job stands."""
        ...

    def job(self, job_id: str) -> Entry | None:
        """Return one job."""
        ...

    def jobs(self, user: str | None = None) -> Sequence[Entry]:
        """Return all jobs that can be read, or one user's."""
        ...

    def spoilt(self, user: str | None = None) -> Sequence[Spoilt]:
        """Return the rows of jobs that cannot be read, or one user's."""
        ...

    def check(self, term: Term) -> None:
        """Raise `ControllerReplaced` if this term controls no more."""
        ...

    def journal(self, job_id: str, term: Term) -> Journal:
        """Return a job's journal."""
        ...

    def rows(self, job_id: str, *, after: int = 0, limit: int | None = None) -> Iterable[tuple[int, str]]:
        """Yield a job's rows."""
        ...

    def secrets(self, job_id: str) -> dict[str, str]:
        """Return the values of a job's secrets."""
        ...

    def forget_secrets(self, term: Term, job_id: str) -> None:
        """Delete them."""
        ...

    def claim(self, term: Term, token: str, machine_id: str, boot_id: str) -> bool:
        """Use up a machine's claim."""
        ...

    def put_lifetimes(self, term: Term, lifetimes: Iterable[Lifetime]) -> None:
        """Keep the lives of machines."""
        ...

    def lifetimes(self) -> Sequence[Lifetime]:
        """Return the lives of all machines."""
        ...

    def add_measured(self, term: Term, key: str, measured: Measured) -> None:
        """Add what one run showed."""
        ...

    def measured(self, key: str) -> Sequence[Measured]:
        """Return what the runs of a job's like showed."""
        ...


class Mailbox(Channel, Protocol):
    """The channel through the run's store."""

    def close(self) -> None:
        """Neither read nor write any more."""
        ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A job's run as the office reaches it.

    Attributes:
        watch: the run's log.
        mailbox: makes the channel through the run's store: (controller, who lives).
        direct: makes the channel of the API: (wake).
        write_boot: puts `job.json` into the store.
        measure: what the finished run showed, by its journals; one row for each kind of machine.
        deleted: whether the run was deleted: `job.json`, which is there from the submission on, is no more.
    """

    watch: RunWatch
    mailbox: Callable[[Term, Callable[[], Iterable[str]]], Mailbox]
    write_boot: Callable[[Json], None]
    measure: Callable[[Iterable[str]], tuple[Measured, ...]]
    deleted: Callable[[], bool]


class Direct(Channel, Protocol):
    """The channel of the API."""

    def deliver(self, report: Report) -> Directive | None:
        """Take a machine's report; return what it is to do."""
        ...


def _anything(_: Job) -> None:
    """Any place will do."""


@dataclass(frozen=True, slots=True)
class Means:
    """Everything the office works with; `wiring_control` puts it together.

    Attributes:
        open_run: opens a job's run.
        new_direct: makes a direct channel: (wake).
        boot_argv: what a machine runs from its start on.
        store_env: by what a provider's machines reach the run's store before they have claimed their secrets.
        merge: folds what several runs showed into one row for each kind of machine.
        leave: ends this process with a sentence.
        store: where runs lie that name no store.
        admit: refuses a job whose run would lie where none may.
        inside: says whether a user's webhook may lead to this machine itself, or to its link.
        schedule: makes a machine's schedule of saves; None where no job has one.
    """

    term: Term
    owner: str
    url: str
    version: str
    clock: Clock
    records: Records
    providers: Mapping[str, Provider]
    open_run: Callable[[Job], Opened]
    new_direct: Callable[[Callable[[], None]], Direct]
    boot_argv: tuple[str, ...]
    store_env: Callable[[str], tuple[tuple[str, str], ...]]
    merge: Callable[[Sequence[Measured]], tuple[Measured, ...]]
    leave: Callable[[str], None]
    say: Callable[[str], None]
    admit: Callable[[Job], None] = _anything
    inside: Callable[[str], bool] = bool
    schedule: Scheduler | None = None
    store: str = ""
