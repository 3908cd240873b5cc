"""The controller's database: who controls, jobs and their journals, users, secrets, what was learnt from machines.

Calls are short transactions and may come from any thread.  Those that take a term raise `ControllerReplaced` once
another controller took the installation, looked up in the transaction that writes.  Every call may raise
`DatabaseUnreachable`; the next one connects again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from windfall import codec
from windfall.errors import ControllerReplaced, Misuse
from windfall.fleet import JobPhase, Lifetime
from windfall.jobs import Job, Measured
from windfall.ports import Clock
from windfall.storage.sql_journal import SqlJournal, read_rows
from windfall.storage.sql_schema import (
    CLAIMS,
    CONTROLLERS,
    INSTALLATION,
    JOBS,
    LIFETIMES,
    MEASURED,
    ONLY_ROW,
    SECRETS,
    USERS,
    open_engine,
    reading,
    writing,
)
from windfall.terms import Term, WallTime

W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job as the table has it; its journal is the truth, phase and summary are what was last made of it.

    Attributes:
        summary: JSON; "{}" before anything is known.
    """

    job: Job
    phase: JobPhase
    summary: str
    created: WallTime


@dataclass(frozen=True, slots=True)
class SpoiltEntry:
    """A row of the table of jobs that cannot be read: it is set aside, and the others go on.

    Attributes:
        sentence: what is wrong with it.
    """

    job_id: str
    user: str
    name: str
    created: WallTime
    sentence: str


@dataclass(frozen=True, slots=True)
class UserEntry:
    """Somebody who may use the controller; the token itself is nowhere."""

    name: str
    token_hash: str
    admin: bool


def open_database(url: str, clock: Clock) -> Database:
    """Open a controller's database, making what is missing (see `sql_schema.open_engine`)."""
    return Database(open_engine(url), clock)


class Database:
    """One installation's tables."""

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

    # ------------------------------------------------------------------------------------------------ who controls

    def take(self, holder: str) -> Term:
        """Take the installation: from now on every write of an earlier taker is refused.

        Args:
            holder: for people: host and process.
        """
        with writing(self._engine) as connection:
            taken = (
                sa.update(INSTALLATION)
                .where(INSTALLATION.c.id == ONLY_ROW)
                .values(term=INSTALLATION.c.term + 1)
                .returning(INSTALLATION.c.term)
            )
            term = Term(connection.execute(taken).scalar_one())
            values = {"term": term, "holder": holder, "taken": self._clock.wall()}
            connection.execute(sa.insert(CONTROLLERS).values(values))
        return term

    def check(self, term: Term) -> None:
        """Do nothing if this term still controls.

        Raises:
            ControllerReplaced: it does not.
        """
        with reading(self._engine) as connection:
            _check(connection, term)

    @contextlib.contextmanager
    def _fenced(self, term: Term) -> Iterator[Connection]:
        """One transaction that writes as this term; a newer one cannot be taken before it has ended."""
        with writing(self._engine) as connection:
            _check(connection, term)
            yield connection

    def key(self) -> bytes:
        """Return the installation's key, from which `control.auth` derives the machines' tokens."""
        with reading(self._engine) as connection:
            return bytes(connection.execute(sa.select(INSTALLATION.c.key)).scalar_one())

    # -------------------------------------------------------------------------------------------------------- jobs

    def add_job(self, term: Term, job: Job, secrets: Mapping[str, str]) -> None:
        """Add a job with the values of its secrets; the same job again changes nothing.

        Raises:
            Misuse: another job has its id.
        """
        text = json.dumps(codec.encode(job))
        with self._fenced(term) as connection:
            there = connection.execute(sa.select(JOBS.c.job).where(JOBS.c.job_id == job.job_id)).scalar_one_or_none()
            if there is not None and there != text:
                raise Misuse(f"there is a job {job.job_id} already")
            if there is not None:
                return
            values = {"job_id": job.job_id, "user": job.user, "name": job.name, "job": text, "summary": "{}"}
            row = {**values, "phase": JobPhase.BUYING.value, "created": self._clock.wall()}
            connection.execute(sa.insert(JOBS).values(row))
            hidden = [{"job_id": job.job_id, "name": name, "value": value} for name, value in secrets.items()]
            if hidden:
                connection.execute(sa.insert(SECRETS), hidden)

    def set_summary(self, term: Term, job_id: str, phase: JobPhase, summary: str) -> None:
        """Keep how a job stands, for lists of jobs.

        Args:
            term: the controller's.
            job_id: which job.
            phase: where it is.
            summary: JSON.
        """
        change = sa.update(JOBS).where(JOBS.c.job_id == job_id).values(phase=phase.value, summary=summary)
        with self._fenced(term) as connection:
            connection.execute(change)

    def job(self, job_id: str) -> JobEntry | None:
        """Return one job, None if there is none of this id that can be read."""
        with reading(self._engine) as connection:
            row = connection.execute(sa.select(JOBS).where(JOBS.c.job_id == job_id)).one_or_none()
        found = None if row is None else _job_entry(row)
        return found if isinstance(found, JobEntry) else None

    def jobs(self, user: str | None = None) -> tuple[JobEntry, ...]:
        """Return all jobs that can be read, or one user's, oldest first."""
        return tuple(entry for entry in self._jobs(user) if isinstance(entry, JobEntry))

    def spoilt(self, user: str | None = None) -> tuple[SpoiltEntry, ...]:
        """Return all rows of jobs that cannot be read, or one user's, oldest first."""
        return tuple(entry for entry in self._jobs(user) if isinstance(entry, SpoiltEntry))

    def _jobs(self, user: str | None) -> Iterator[JobEntry | SpoiltEntry]:
        query = sa.select(JOBS).order_by(JOBS.c.created, JOBS.c.job_id)
        with reading(self._engine) as connection:
            rows = connection.execute(query if user is None else query.where(JOBS.c.user == user)).all()
        return (_job_entry(row) for row in rows)

    def journal(self, job_id: str, term: Term) -> SqlJournal:
        """Return a job's journal, to be written as this term."""
        return SqlJournal(self._engine, lambda: self._fenced(term), job_id)

    def rows(self, job_id: str, *, after: int = 0, limit: int | None = None) -> Iterator[tuple[int, str]]:
        """Yield the numbers and lines of a job's journal behind row `after`, oldest first."""
        return read_rows(self._engine, job_id, after=after, limit=limit)

    def secrets(self, job_id: str) -> dict[str, str]:
        """Return the values of a job's secrets by name; they go to its machines and nowhere else."""
        query = sa.select(SECRETS.c.name, SECRETS.c.value).where(SECRETS.c.job_id == job_id)
        with reading(self._engine) as connection:
            return {row.name: row.value for row in connection.execute(query)}

    def forget_secrets(self, term: Term, job_id: str) -> None:
        """Delete the values of a job's secrets: it is done and will not go on."""
        with self._fenced(term) as connection:
            connection.execute(sa.delete(SECRETS).where(SECRETS.c.job_id == job_id))

    def claim(self, term: Term, token: str, machine_id: str, boot_id: str) -> bool:
        """Use up what a machine of an order may claim once.

        Args:
            term: the controller's.
            token: of the order.
            machine_id: who claims.
            boot_id: names the claimer's boot, so that a claim whose answer was lost can be repeated.

        Returns:
            False if another boot has claimed it before.
        """
        mine = (CLAIMS.c.token == token, CLAIMS.c.machine_id == machine_id)
        with self._fenced(term) as connection:
            # The fence is shared among the threads of one controller: whoever inserts first has it.
            values = {"token": token, "machine_id": machine_id, "boot_id": boot_id, "claimed": self._clock.wall()}
            connection.execute(_insert(connection, CLAIMS).values(values).on_conflict_do_nothing())
            holder = connection.execute(sa.select(CLAIMS.c.boot_id).where(*mine)).scalar_one()
        return bool(holder == boot_id)

    # ------------------------------------------------------------------------------------------------------- users

    def add_user(self, user: UserEntry) -> None:
        """Add somebody, or give them another token; needs no term, since no controller need run."""
        values = dataclasses.asdict(user)
        with writing(self._engine) as connection:
            change = _insert(connection, USERS).values(values)
            connection.execute(change.on_conflict_do_update(index_elements=["name"], set_=values))

    def remove_user(self, name: str) -> bool:
        """Take somebody's access away; return whether they had any."""
        with writing(self._engine) as connection:
            return connection.execute(sa.delete(USERS).where(USERS.c.name == name)).rowcount > 0

    def users(self) -> tuple[UserEntry, ...]:
        """Return everybody, by name."""
        with reading(self._engine) as connection:
            rows = connection.execute(sa.select(USERS).order_by(USERS.c.name)).all()
        return tuple(UserEntry(row.name, row.token_hash, bool(row.admin)) for row in rows)

    # ---------------------------------------------------------------------------------------------- what was learnt

    def put_lifetimes(self, term: Term, lifetimes: Iterable[Lifetime]) -> None:
        """Keep the lives of machines; the same machine again replaces what was known of it."""
        values = [dataclasses.asdict(life) for life in lifetimes]
        if not values:
            return
        with self._fenced(term) as connection:
            change = _insert(connection, LIFETIMES)
            new = {name: change.excluded[name] for name in values[0] if name != "machine_id"}
            connection.execute(change.on_conflict_do_update(index_elements=["machine_id"], set_=new), values)

    def lifetimes(self) -> tuple[Lifetime, ...]:
        """Return the lives of all machines of this installation, by their beginning."""
        query = sa.select(LIFETIMES).order_by(LIFETIMES.c.began, LIFETIMES.c.machine_id)
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
        # The names of columns are a kind of text of their own, which no word has for a key.
        lives = ({str(name): value for name, value in row._mapping.items()} for row in rows)
        return tuple(_readable(lives, Lifetime))

    def add_measured(self, term: Term, key: str, measured: Measured) -> None:
        """Add what one run showed; what earlier ones showed stays.

        Args:
            term: the controller's.
            key: names the job among its like: digest of command and code.
            measured: of one run on one kind of machine.
        """
        values = {"key": key, "measured_at": self._clock.wall(), "measured": json.dumps(codec.encode(measured))}
        with self._fenced(term) as connection:
            connection.execute(sa.insert(MEASURED).values(values))

    def measured(self, key: str) -> tuple[Measured, ...]:
        """Return what the runs of a job's like showed, oldest first; of several kinds of machines, mixed."""
        query = sa.select(MEASURED.c.measured).where(MEASURED.c.key == key).order_by(MEASURED.c.id)
        with reading(self._engine) as connection:
            lines = connection.execute(query).scalars().all()
        return tuple(_readable(lines, Measured))


def _check(connection: Connection, term: Term) -> None:
    # FOR SHARE (which SQLite has no need of): a taker waits until this transaction has ended.
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
        f"the controller {holder or 'with a newer term'} took the installation (term {present}, this one has {term}); "
        "this one stops and decides nothing more"
    )


def _insert(connection: Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """Return the dialect's INSERT, which knows ON CONFLICT."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def _job_entry(row: sa.Row[tuple[Any, ...]]) -> JobEntry | SpoiltEntry:
    try:
        job: Job = codec.decode(codec.parse(row.job), Job)
        if (job.job_id, job.user) != (row.job_id, row.user):
            raise ValueError("it is another job's")
        phase, summary = JobPhase(row.phase), codec.parse(row.summary)
        if not isinstance(summary, dict):
            raise ValueError("its summary is no object")
    except ValueError as error:
        sentence = f"its row in the controller's database cannot be read ({error})"
        return SpoiltEntry(row.job_id, row.user, row.name, WallTime(row.created), sentence)
    return JobEntry(job, phase, row.summary, WallTime(row.created))


def _readable(rows: Iterable[Any], kind: type[W]) -> Iterator[W]:
    """Yield what can be read of what was learnt: a row less makes a plan less sure, and nothing else."""
    for row in rows:
        with contextlib.suppress(ValueError):
            yield codec.decode(codec.parse(row) if isinstance(row, str) else row, kind)
