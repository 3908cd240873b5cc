"""The controller's database: its tables, its connections, and the conversion of its errors.

SQLite for one machine (write-ahead log, on a network file system a rollback journal; synchronous FULL: a committed row
survives a power failure), PostgreSQL by URL.
The single row of `installation` is the fence: a controller takes over the installation by incrementing its term, and
every write reads that row, locked, in its own transaction.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.pool import ConnectionPoolEntry

from windfall import stored_forms
from windfall.errors import WRITTEN_BEFORE_RELEASE, DatabaseUnreachable, Misuse, NewerFormat, OlderFormat
from windfall.extras import install
from windfall.storage.failpoints import around, hit
from windfall.storage.object_stores import file_system_of, is_shared

BUSY_S = 30.0
"""How long a write to SQLite waits for other processes before it fails [s]."""
CONNECT_S = 5
"""How long to wait for a PostgreSQL server to accept a connection [s]."""
LOCK_S = 30
"""How long a statement on PostgreSQL waits for a lock [s]."""
KEY_BYTES = 32
"""Length of the installation's key [B]."""
ONLY_ROW = 1

METADATA = sa.MetaData()
INSTALLATION = sa.Table(
    "installation",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("term", sa.BigInteger, nullable=False),
    sa.Column("key", sa.LargeBinary, nullable=False),
)
CONTROLLERS = sa.Table(
    "controllers",
    METADATA,
    sa.Column("term", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("acquired", sa.Double, nullable=False),
)
JOBS = sa.Table(
    "jobs",
    METADATA,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
)
ROWS = sa.Table(
    "journal_rows",
    METADATA,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("line", sa.Text, nullable=False),
)
USERS = sa.Table(
    "users",
    METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("token_hash", sa.Text, nullable=False),
    sa.Column("admin", sa.Boolean, nullable=False),
)
SECRETS = sa.Table(
    "secrets",
    METADATA,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
CLAIMS = sa.Table(
    "claims",
    METADATA,
    sa.Column("token", sa.Text, primary_key=True),
    sa.Column("machine_id", sa.Text, primary_key=True),
    sa.Column("boot_id", sa.Text, nullable=False),
    sa.Column("claimed", sa.Double, nullable=False),
)
LIFETIMES = sa.Table(
    "lifetimes",
    METADATA,
    sa.Column("machine_id", sa.Text, primary_key=True),
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("machine_type", sa.Text, nullable=False),
    sa.Column("zone", sa.Text, nullable=False),
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("ended", sa.Double, nullable=True),
    sa.Column("preempted", sa.Boolean, nullable=False),
    sa.Column("announced", sa.Boolean, nullable=False),
)
MEASUREMENTS = sa.Table(
    "measurements",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("key", sa.Text, nullable=False, index=True),
    sa.Column("measured_at", sa.Double, nullable=False),
    sa.Column("measurement", sa.Text, nullable=False),
)

SNAPSHOTS = sa.Table(
    "snapshots",
    METADATA,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)


def _upgrade_4_to_5(connection: Connection) -> None:
    """Add the snapshots of drivers' states; journals may hold rows of version 5 from now on."""
    sa.Table(
        "snapshots",
        sa.MetaData(),
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    ).create(connection)


UPGRADES: tuple[Callable[[Connection], None], ...] = (_upgrade_4_to_5,)
"""From each version of the tables to the next, the oldest first, as in `stored_forms`.

All that are missing run in one transaction when a database is opened.  A function describes its tables itself: those above
may have changed since.  Rows of journals are not rewritten, see `stored_forms.ROW`.
"""
VERSION = stored_forms.OLDEST + len(UPGRADES)
"""Version of the tables; a database with a higher version is rejected."""


def open_engine(url: str) -> Engine:
    """Connect to a database, create or upgrade its tables, and check that its commits are durable.

    Args:
        url: a path or `sqlite:///path`; `postgresql://user@host/name`.

    Raises:
        Misuse: an invalid URL, a driver that is not installed, or a server whose commits are not durable.
        NewerFormat, OlderFormat: the tables were created by another version of Windfall.
        DatabaseUnreachable: the database does not answer.
    """
    parsed = _parsed(url)
    engine = _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _postgresql(parsed)
    try:
        _prepare(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextlib.contextmanager
def _translate_errors(engine: Engine) -> Iterator[None]:
    """Convert errors of the driver to `DatabaseUnreachable`, without passwords and parameters."""
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError) as error:
        raise DatabaseUnreachable(_sentence(engine, error)) from error
    except exc.DBAPIError as error:
        if not (error.connection_invalidated or isinstance(error.orig, sqlite3.DatabaseError)):
            raise
        raise DatabaseUnreachable(_sentence(engine, error)) from error


@contextlib.contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that only reads."""
    with _translate_errors(engine), engine.begin() as connection:
        yield connection


@contextlib.contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that may write; durable at the end of the block, or of unknown outcome if this raises."""
    with _translate_errors(engine), engine.execution_options(windfall_writes=True).begin() as connection:
        yield connection


def _sentence(engine: Engine, error: exc.SQLAlchemyError) -> str:
    original = getattr(error, "orig", None) or error
    detail = " ".join(str(original).split())[:300]
    return f"the controller's database {engine.url.render_as_string()} failed: {detail}"


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url) if "://" in url else sa.URL.create("sqlite", database=str(Path(url).absolute()))
        backend = parsed.get_backend_name()
    except exc.ArgumentError as error:
        raise Misuse(
            "--database is not a valid database URL: use sqlite:///PATH or postgresql://USER@HOST/NAME"
        ) from error
    if backend == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return parsed.set(drivername="sqlite+pysqlite")
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    raise Misuse(f"{backend} is not a supported database: use sqlite:///PATH or postgresql://USER@HOST/NAME")


def _sqlite(url: URL) -> Engine:
    path = Path(str(url.database))
    try:
        # The log and the shared-memory file next to it get the permissions of this one: all of them contain secrets.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise Misuse(f"the database {path} cannot be opened: {error.strerror}") from error
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_S})
    # A write-ahead log needs memory that all processes share, which a network file system has not.
    journal = "DELETE" if is_shared(file_system_of(str(path.absolute().parent))) else "WAL"

    @event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # transactions are started explicitly, below
        for pragma in (f"journal_mode={journal}", "synchronous=FULL", "secure_delete=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and then writes would fail, not wait, if another process wrote in between.
        writes = connection.get_execution_options().get("windfall_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql(url: URL) -> Engine:
    theirs = url.query.get("options", "")
    settings = {
        "connect_timeout": CONNECT_S,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": LOCK_S * 1000,
        "application_name": "windfall",
        "options": f"{theirs} -c lock_timeout={LOCK_S}s -c statement_timeout={2 * LOCK_S}s",
    }
    try:
        return sa.create_engine(url, pool_pre_ping=True, pool_timeout=LOCK_S, connect_args=settings)
    except ImportError as error:
        raise Misuse(f"PostgreSQL needs its driver: {install('postgres')}") from error


def _prepare(engine: Engine) -> None:
    if engine.dialect.name == "postgresql":
        _check_flushes(engine)
    with writing(engine) as connection:
        if engine.dialect.name == "postgresql":
            # Two controllers that start at the same time on an empty database must not both create the tables.
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(7031995)"))
        if sa.inspect(connection).has_table(INSTALLATION.name):
            _upgrade(engine, connection)
        METADATA.create_all(connection)
        if connection.execute(sa.select(INSTALLATION.c.version)).scalar_one_or_none() is None:
            first = {"id": ONLY_ROW, "version": VERSION, "term": 0, "key": secrets.token_bytes(KEY_BYTES)}
            connection.execute(sa.insert(INSTALLATION).values(first))


def _upgrade(engine: Engine, connection: Connection) -> None:
    """Upgrade the tables of an older version, within the caller's transaction."""
    found = connection.execute(sa.select(INSTALLATION.c.version)).scalar_one_or_none()
    if found is None or found == VERSION:
        return
    if found > VERSION:
        raise NewerFormat(
            f"the database {engine.url.render_as_string()} has version {found}, this Windfall reads up to {VERSION}: "
            "upgrade Windfall"
        )
    if found < stored_forms.OLDEST:
        raise OlderFormat(
            f"the database {engine.url.render_as_string()} has version {found}, {WRITTEN_BEFORE_RELEASE}: "
            "use another --state or database"
        )
    with around("database.upgrade"):
        for upgrade in UPGRADES[found - stored_forms.OLDEST :]:
            upgrade(connection)
            hit("database.upgrade:middle")
        connection.execute(sa.update(INSTALLATION).values(version=VERSION))


def _check_flushes(engine: Engine) -> None:
    with reading(engine) as connection:
        for setting in ("fsync", "synchronous_commit"):
            if connection.execute(sa.text(f"SHOW {setting}")).scalar_one() == "off":
                raise Misuse(
                    f"the database server at {engine.url.render_as_string()} runs with {setting} = off: it may lose commits, "
                    f"so that machines are bought twice; set {setting} = on"
                )
