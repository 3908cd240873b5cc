"""The controller's database: terms of controllers, jobs and their journals, users, secrets, and measurements.

Calls are short transactions and may come from any thread.  Calls with a term raise `ControllerReplaced` after another
controller took over the installation; this is checked in the transaction that writes.  Every call may raise
`DatabaseUnreachable`; the next one reconnects.

A job's journal in the controller's database: rows numbered without gaps, written by one controller at a time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from windfall import codec
from windfall.errors import ControllerReplaced, LogDamaged, Misuse
from windfall.fleet import TERMINAL, JobPhase, Lifetime, LifetimeSum
from windfall.jobs import Job, Measurement
from windfall.ports import Clock
from windfall.storage.database_schema import (
    CLAIMS,
    CONTROLLERS,
    INSTALLATION,
    JOBS,
    LIFETIMES,
    MEASUREMENTS,
    ONLY_ROW,
    ROWS,
    SECRETS,
    USERS,
    open_engine,
    reading,
    writing,
)
from windfall.storage.snapshot_table import SqlSnapshots
from windfall.structs import Struct
from windfall.terms import Term, WallTime

_PAGE = 500
"""Number of rows read at once, because the journal of a long job does not fit into memory."""


class SqlJournal:
    """`ports.Journal` of one job for one controller's term; used by one thread.

    After `DatabaseUnreachable` the row may or may not be stored; appending the same line again is correct in both cases.
    A caller that cannot repeat it creates another journal and reads the stored rows.
    """

    def __init__(self, engine: Engine, fenced: Callable[[], AbstractContextManager[Connection]], job_id: str) -> None:
        self._engine = engine
        self._fenced = fenced
        self._job_id = job_id
        self._next: int | None = None

    def append(self, line: str) -> None:
        """Append one row; it is on the database's disk when this returns.

        Raises:
            ControllerReplaced: another controller took over the installation; nothing was written.
            DatabaseUnreachable: it is unknown whether the row was written.
            LogDamaged: its number belongs to another row, or the rows before it are missing.
        """
        with self._fenced() as connection:
            number = self._next or self._count(connection) + 1
            found = connection.execute(
                sa.select(ROWS.c.sequence, ROWS.c.line)
                .where(ROWS.c.job_id == self._job_id, ROWS.c.sequence >= number - 1)
                .order_by(ROWS.c.sequence)
                .limit(3)
            ).all()
            before = [row.sequence for row in found if row.sequence < number]
            here = [row for row in found if row.sequence >= number]
            if (not before and number > 1) or len(here) > 1 or (here and here[0].line != line):
                raise LogDamaged(
                    f"row {number} of the journal of {self._job_id} was changed by another process: restart the controller"
                )
            if not here:
                connection.execute(sa.insert(ROWS).values(job_id=self._job_id, sequence=number, line=line))
            self._next = number  # if an answer is lost from here on, the same line keeps its number
        self._next = number + 1

    def rows(self, after: int = 0) -> Iterator[str]:
        """Yield the rows so far after row `after`, oldest first, including rows appended during the iteration."""
        for _, line in read_rows(self._engine, self._job_id, after=after):
            yield line

    def _count(self, connection: Connection) -> int:
        last = sa.select(sa.func.max(ROWS.c.sequence)).where(ROWS.c.job_id == self._job_id)
        return connection.execute(last).scalar_one() or 0


def read_rows(engine: Engine, job_id: str, *, after: int, limit: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield a job's rows after row `after` with their numbers, read in pages.

    Raises:
        LogDamaged: a row is missing.
    """
    while limit is None or limit > 0:
        size = _PAGE if limit is None else min(limit, _PAGE)
        with reading(engine) as connection:
            page = connection.execute(
                sa.select(ROWS.c.sequence, ROWS.c.line)
                .where(ROWS.c.job_id == job_id, ROWS.c.sequence > after)
                .order_by(ROWS.c.sequence)
                .limit(size)
            ).all()
        for number, line in page:
            if number != after + 1:
                raise LogDamaged(f"row {after + 1} of the journal of {job_id} is missing")
            after = number
            yield number, line
        if len(page) < size:
            return
        limit = None if limit is None else limit - len(page)


W = TypeVar("W")


class JobEntry(Struct, frozen=True):
    """A row of the jobs table; the journal is authoritative, phase and summary are derived from it.

    Attributes:
        summary: JSON; "{}" before anything is known.
    """

    job: Job
    phase: JobPhase
    summary: str
    created: WallTime


class UnreadableEntry(Struct, frozen=True):
    """A row of the jobs table that cannot be read; it is skipped.

    Attributes:
        message: what is wrong with it.
    """

    job_id: str
    user: str
    name: str
    created: WallTime
    message: str


class UserEntry(Struct, frozen=True):
    """A user of the controller; the token itself is not stored."""

    name: str
    token_hash: str
    admin: bool


def open_database(url: str, clock: Clock) -> Database:
    """Open a controller's database and create missing tables (see `database_schema.open_engine`)."""
    return Database(open_engine(url), clock)


class Database:
    """The tables of one installation."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    @property
    def place(self) -> str:
        """Return its URL, without the password."""
        return self._engine.url.render_as_string()

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    # ------------------------------------------------------------------------------------------------ terms

    def acquire(self, holder: str) -> Term:
        """Take over the installation; from now on writes of earlier controllers are rejected.

        Args:
            holder: host and process, for display.
        """
        with writing(self._engine) as connection:
            update = (
                sa.update(INSTALLATION)
                .where(INSTALLATION.c.id == ONLY_ROW)
                .values(term=INSTALLATION.c.term + 1)
                .returning(INSTALLATION.c.term)
            )
            term = Term(connection.execute(update).scalar_one())
            values = {"term": term, "holder": holder, "acquired": self._clock.wall_time()}
            connection.execute(sa.insert(CONTROLLERS).values(values))
        return term

    def check(self, term: Term) -> None:
        """Check that this is the newest term.

        Raises:
            ControllerReplaced: it is not.
        """
        with reading(self._engine) as connection:
            _check(connection, term)

    @contextlib.contextmanager
    def _fenced(self, term: Term) -> Iterator[Connection]:
        """Open a transaction that writes for this term; a newer term cannot start before it ends."""
        with writing(self._engine) as connection:
            _check(connection, term)
            yield connection

    def key(self) -> bytes:
        """Return the installation's key, from which `control.auth` derives the machines' tokens."""
        with reading(self._engine) as connection:
            return bytes(connection.execute(sa.select(INSTALLATION.c.key)).scalar_one())

    # -------------------------------------------------------------------------------------------------------- jobs

    def add_job(self, term: Term, job: Job, secrets: Mapping[str, str], summary: str = "{}") -> None:
        """Add a job with the values of its secrets; adding the same job again changes nothing.

        Args:
            term: the controller's term.
            job: what was submitted.
            secrets: their values by name.
            summary: JSON; what is known before the job's first row is in its journal.

        Raises:
            Misuse: another job has its id.
        """
        text = json.dumps(codec.encode(job))
        with self._fenced(term) as connection:
            there = connection.execute(sa.select(JOBS.c.job).where(JOBS.c.job_id == job.job_id)).scalar_one_or_none()
            if there is not None and there != text:
                raise Misuse(f"the job {job.job_id} already exists")
            if there is not None:
                return
            values = {"job_id": job.job_id, "user": job.user, "name": job.name, "job": text, "summary": summary}
            row = {**values, "phase": JobPhase.BUYING.value, "created": self._clock.wall_time()}
            connection.execute(sa.insert(JOBS).values(row))
            hidden = [{"job_id": job.job_id, "name": name, "value": value} for name, value in secrets.items()]
            if hidden:
                connection.execute(sa.insert(SECRETS), hidden)

    def set_summary(self, term: Term, job_id: str, phase: JobPhase, summary: str) -> None:
        """Store a job's status, for lists of jobs.

        Args:
            term: the controller's term.
            job_id: id of the job.
            phase: its phase.
            summary: JSON.
        """
        change = sa.update(JOBS).where(JOBS.c.job_id == job_id).values(phase=phase.value, summary=summary)
        with self._fenced(term) as connection:
            connection.execute(change)

    def ended(self, user: str, limit: int) -> tuple[tuple[JobPhase, str], ...]:
        """Return phase and summary of a user's newest jobs that have ended, newest first."""
        query = (
            sa.select(JOBS.c.phase, JOBS.c.summary)
            .where(JOBS.c.user == user, JOBS.c.phase.in_([phase.value for phase in TERMINAL]))
            .order_by(JOBS.c.created.desc(), JOBS.c.job_id)
            .limit(limit)
        )
        with reading(self._engine) as connection:
            return tuple((JobPhase(row.phase), row.summary) for row in connection.execute(query))

    def owner_of(self, job_id: str) -> str | None:
        """Return a job's user, also of one that cannot be read; None if there is no such job."""
        with reading(self._engine) as connection:
            owner: str | None = connection.execute(
                sa.select(JOBS.c.user).where(JOBS.c.job_id == job_id)
            ).scalar_one_or_none()
        return owner

    def job(self, job_id: str) -> JobEntry | None:
        """Return one job, None if it does not exist or cannot be read."""
        with reading(self._engine) as connection:
            row = connection.execute(sa.select(JOBS).where(JOBS.c.job_id == job_id)).one_or_none()
        found = None if row is None else _job_entry(row)
        return found if isinstance(found, JobEntry) else None

    def jobs(self, user: str | None = None) -> tuple[JobEntry, ...]:
        """Return all jobs that can be read, or one user's, oldest first."""
        return tuple(entry for entry in self._jobs(user) if isinstance(entry, JobEntry))

    def unreadable(self, user: str | None = None) -> tuple[UnreadableEntry, ...]:
        """Return all rows of jobs that cannot be read, or one user's, oldest first."""
        return tuple(entry for entry in self._jobs(user) if isinstance(entry, UnreadableEntry))

    def _jobs(self, user: str | None) -> Iterator[JobEntry | UnreadableEntry]:
        query = sa.select(JOBS).order_by(JOBS.c.created, JOBS.c.job_id)
        with reading(self._engine) as connection:
            rows = connection.execute(query if user is None else query.where(JOBS.c.user == user)).all()
        return (_job_entry(row) for row in rows)

    def journal(self, job_id: str, term: Term) -> SqlJournal:
        """Return a job's journal, for writing with this term."""
        return SqlJournal(self._engine, lambda: self._fenced(term), job_id)

    def snapshots(self, job_id: str, term: Term) -> SqlSnapshots:
        """Return the snapshots of a job's state, for writing with this term."""
        return SqlSnapshots(self._engine, lambda: self._fenced(term), job_id)

    def rows(self, job_id: str, *, after: int = 0, limit: int | None = None) -> Iterator[tuple[int, str]]:
        """Yield the numbers and lines of a job's journal after row `after`, oldest first."""
        return read_rows(self._engine, job_id, after=after, limit=limit)

    def secrets(self, job_id: str) -> dict[str, str]:
        """Return the values of a job's secrets by name; they are sent only to its machines."""
        query = sa.select(SECRETS.c.name, SECRETS.c.value).where(SECRETS.c.job_id == job_id)
        with reading(self._engine) as connection:
            return {row.name: row.value for row in connection.execute(query)}

    def delete_secrets(self, term: Term, job_id: str) -> None:
        """Delete the values of a job's secrets, when the job is done."""
        with self._fenced(term) as connection:
            connection.execute(sa.delete(SECRETS).where(SECRETS.c.job_id == job_id))

    def claim(self, term: Term, token: str, machine_id: str, boot_id: str) -> bool:
        """Record the one-time claim of a machine of an order.

        Args:
            term: the controller's term.
            token: token of the order.
            machine_id: the machine that claims.
            boot_id: id of its boot, so that a claim whose answer was lost can be repeated.

        Returns:
            False if another boot has claimed it before.
        """
        mine = (CLAIMS.c.token == token, CLAIMS.c.machine_id == machine_id)
        with self._fenced(term) as connection:
            # The threads of one controller share the fence: the first insert wins.
            values = {"token": token, "machine_id": machine_id, "boot_id": boot_id, "claimed": self._clock.wall_time()}
            connection.execute(_insert(connection, CLAIMS).values(values).on_conflict_do_nothing())
            holder = connection.execute(sa.select(CLAIMS.c.boot_id).where(*mine)).scalar_one()
        return bool(holder == boot_id)

    # ------------------------------------------------------------------------------------------------------- users

    def add_user(self, user: UserEntry) -> None:
        """Add a user, or replace their token; needs no term, because no controller has to run."""
        values = msgspec.structs.asdict(user)
        with writing(self._engine) as connection:
            change = _insert(connection, USERS).values(values)
            connection.execute(change.on_conflict_do_update(index_elements=["name"], set_=values))

    def remove_user(self, name: str) -> bool:
        """Remove a user's access; return whether they had any."""
        with writing(self._engine) as connection:
            return connection.execute(sa.delete(USERS).where(USERS.c.name == name)).rowcount > 0

    def users(self) -> tuple[UserEntry, ...]:
        """Return all users, by name."""
        with reading(self._engine) as connection:
            rows = connection.execute(sa.select(USERS).order_by(USERS.c.name)).all()
        return tuple(UserEntry(row.name, row.token_hash, bool(row.admin)) for row in rows)

    # ---------------------------------------------------------------------------------------------- measurements

    def put_lifetimes(self, term: Term, lifetimes: Iterable[Lifetime]) -> None:
        """Store the lifetimes of machines; a machine's new entry replaces the old one."""
        values = [msgspec.structs.asdict(lifetime) for lifetime in lifetimes]
        if not values:
            return
        with self._fenced(term) as connection:
            change = _insert(connection, LIFETIMES)
            new = {name: change.excluded[name] for name in values[0] if name != "machine_id"}
            connection.execute(change.on_conflict_do_update(index_elements=["machine_id"], set_=new), values)

    def lifetimes(self) -> tuple[Lifetime, ...]:
        """Return the lifetimes of all machines of this installation, by their start."""
        query = sa.select(LIFETIMES).order_by(LIFETIMES.c.started, LIFETIMES.c.machine_id)
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
        # SQLAlchemy's column names are a subclass of `str`, which is not accepted as a key.
        rows_by_name = ({str(name): value for name, value in row._mapping.items()} for row in rows)
        return tuple(_readable(rows_by_name, Lifetime))

    def lifetime_sums(self, now: WallTime) -> tuple[LifetimeSum, ...]:
        """Return the lifetimes of all machines, summed for each kind by the database; a long job has had many.

        Args:
            now: the time up to which running machines count.
        """
        kind = (LIFETIMES.c.provider, LIFETIMES.c.machine_type, LIFETIMES.c.zone)
        lived_s = sa.func.coalesce(LIFETIMES.c.ended, now) - LIFETIMES.c.started
        ended, one = LIFETIMES.c.ended.is_not(None), sa.literal(1)
        query = sa.select(
            *kind,
            sa.func.count().label("lifetimes"),
            sa.func.sum(sa.case((LIFETIMES.c.preempted & ended, one), else_=0)).label("preemptions"),
            sa.func.sum(sa.case((LIFETIMES.c.preempted & LIFETIMES.c.announced & ended, one), else_=0)).label(
                "announced"
            ),
            sa.func.sum(sa.case((lived_s > 0.0, lived_s), else_=0.0)).label("lifetime_s"),
        )
        with reading(self._engine) as connection:
            rows = connection.execute(query.group_by(*kind).order_by(*kind)).all()
        return tuple(
            _readable(({str(name): value for name, value in row._mapping.items()} for row in rows), LifetimeSum)
        )

    def add_measurement(self, term: Term, key: str, measured: Measurement) -> None:
        """Add the measurements of one run, keeping earlier ones.

        Args:
            term: the controller's term.
            key: the job's fingerprint: digest of command and code.
            measured: of one run on one kind of machine.
        """
        values = {"key": key, "measured_at": self._clock.wall_time(), "measurement": json.dumps(codec.encode(measured))}
        with self._fenced(term) as connection:
            connection.execute(sa.insert(MEASUREMENTS).values(values))

    def measured(self, key: str) -> tuple[Measurement, ...]:
        """Return the measurements of runs with the same fingerprint, oldest first, for all kinds of machines."""
        query = sa.select(MEASUREMENTS.c.measurement).where(MEASUREMENTS.c.key == key).order_by(MEASUREMENTS.c.id)
        with reading(self._engine) as connection:
            lines = connection.execute(query).scalars().all()
        return tuple(_readable(lines, Measurement))


def _check(connection: Connection, term: Term) -> None:
    # FOR SHARE (not needed by SQLite): a controller that takes over waits until this transaction has ended.
    query = sa.select(INSTALLATION.c.term).where(INSTALLATION.c.id == ONLY_ROW)
    if connection.get_execution_options().get("windfall_writes", False):
        query = query.with_for_update(read=True)
    present = connection.execute(query).scalar_one()
    if present == term:
        return
    holder = connection.execute(
        sa.select(CONTROLLERS.c.holder).where(CONTROLLERS.c.term == present)
    ).scalar_one_or_none()
    raise ControllerReplaced(
        f"the controller {holder or 'with a newer term'} took over the installation (term {present}, this one has {term}): "
        "this controller stops"
    )


def _insert(connection: Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """Return the dialect's INSERT, which supports ON CONFLICT."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def _job_entry(row: sa.Row[tuple[Any, ...]]) -> JobEntry | UnreadableEntry:
    try:
        job: Job = codec.decode(codec.parse(row.job), Job)
        if (job.job_id, job.user) != (row.job_id, row.user):
            raise ValueError("it is another job's")
        phase, summary = JobPhase(row.phase), codec.parse(row.summary)
        if not isinstance(summary, dict):
            raise ValueError("its summary is not an object")
    except ValueError as error:
        message = f"its row in the controller's database cannot be read ({error})"
        return UnreadableEntry(row.job_id, row.user, row.name, WallTime(row.created), message)
    return JobEntry(job, phase, row.summary, WallTime(row.created))


def _readable(rows: Iterable[Any], kind: type[W]) -> Iterator[W]:
    """Yield the rows that can be read: a missing row only makes estimates less precise."""
    for row in rows:
        with contextlib.suppress(ValueError):
            yield codec.decode(codec.parse(row) if isinstance(row, str) else row, kind)
