"""The controller's database beside the journals: who controls, jobs, secrets, users, what was learnt."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.storage.databases import Postgres, no_postgres, postgres_server
from windfall.errors import ControllerReplaced, DatabaseUnreachable, Misuse, NewerFormat, OlderFormat
from windfall.fleet import JobPhase, Lifetime
from windfall.jobs import Job, Measurement, Resources, SecretRef
from windfall.linux.clock import SystemClock
from windfall.models import lifetime_pool
from windfall.storage import database_schema
from windfall.storage.database import Database, UserEntry, open_database
from windfall.terms import Seconds, Unit, WallTime

NAMES = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    if reason := no_postgres():
        pytest.skip(reason)
    with postgres_server() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'controller.db'}"
    return request.getfixturevalue("server").make(f"sql{next(NAMES)}")


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = open_database(url, SystemClock())
    yield opened
    opened.close()


def job(job_id: str = "gpt-1", user: str = "ada") -> Job:
    return Job(
        job_id,
        "gpt",
        user,
        "file:///runs/gpt",
        ("python", "train.py"),
        (Resources("local"),),
        secrets=(SecretRef("HF"),),
    )


def life(machine_id: str, ended: float | None, *, preempted: bool = False) -> Lifetime:
    until = None if ended is None else WallTime(ended)
    return Lifetime(machine_id, "local", "small", "a", WallTime(10.5), until, preempted, announced=False)


def measured(work_per_s: float, machine_type: str = "small") -> Measurement:
    return Measurement("local", machine_type, Unit.STEP, work_per_s, Seconds(3.0), Seconds(1.5), 1)


def test_each_taker_gets_a_higher_term_and_ends_the_one_before(database: Database) -> None:
    """Every kind of write of a replaced controller is refused; the newest one's goes on."""
    old, new = database.acquire("old"), database.acquire("new")

    assert new > old
    for write in (
        lambda term: database.add_job(term, job(), {}),
        lambda term: database.set_summary(term, "gpt-1", JobPhase.RUNNING, "{}"),
        lambda term: database.delete_secrets(term, "gpt-1"),
        lambda term: database.claim(term, "gpt-1-1", "m1", "boot"),
        lambda term: database.put_lifetimes(term, [life("m1", None)]),
        lambda term: database.add_measurement(term, "key", measured(1.0)),
        database.check,
    ):
        with pytest.raises(ControllerReplaced, match="new took over the installation"):
            write(old)
        write(new)


def test_a_job_is_kept_as_it_was_submitted(database: Database) -> None:
    """A job comes back equal, with its phase and summary; submitted twice it is there once; another of its id is refused."""
    term = database.acquire("a")
    database.add_job(term, job(), {"HF": "hf_secret"})
    database.add_job(term, job(), {"HF": "hf_secret"})
    database.set_summary(term, "gpt-1", JobPhase.RUNNING, json.dumps({"message": "trains"}))

    entry = database.job("gpt-1")
    assert entry is not None
    assert (entry.job, entry.phase, entry.summary) == (job(), JobPhase.RUNNING, '{"message": "trains"}')
    with pytest.raises(Misuse, match="gpt-1"):
        database.add_job(term, job(user="eve"), {})
    assert database.job("other") is None
    assert (database.owner_of("gpt-1"), database.owner_of("other")) == ("ada", None)


def test_a_users_jobs_are_listed_oldest_first(database: Database) -> None:
    """The list can be everybody's or one user's."""
    term = database.acquire("a")
    for job_id, user in (("z-1", "ada"), ("a-2", "eve"), ("m-3", "ada")):
        database.add_job(term, job(job_id, user), {})

    assert [entry.job.job_id for entry in database.jobs()] == ["z-1", "a-2", "m-3"]
    assert [entry.job.job_id for entry in database.jobs("ada")] == ["z-1", "m-3"]


def test_secrets_are_apart_and_can_be_forgotten(database: Database) -> None:
    """A secret's value is in no job and no row, and is gone once the job needs it no more."""
    term = database.acquire("a")
    database.add_job(term, job(), {"HF": "hf_secret"})

    assert database.secrets("gpt-1") == {"HF": "hf_secret"}
    assert "hf_secret" not in repr(database.jobs())
    database.delete_secrets(term, "gpt-1")
    assert database.secrets("gpt-1") == {}


def test_an_orders_machine_claims_once(database: Database) -> None:
    """The first boot of a machine may claim, and again after a lost answer; another boot may not; another machine may."""
    term = database.acquire("a")

    assert database.claim(term, "gpt-1-1", "m1", "boot a")
    assert database.claim(term, "gpt-1-1", "m1", "boot a")
    assert not database.claim(term, "gpt-1-1", "m1", "boot b")
    assert database.claim(term, "gpt-1-1", "m2", "boot b")


def test_users_come_and_go(database: Database) -> None:
    """A user added again has the new token; one who was removed is nobody."""
    database.add_user(UserEntry("ada", "hash 1", admin=False))
    database.add_user(UserEntry("eve", "hash 2", admin=True))
    database.add_user(UserEntry("ada", "hash 3", admin=False))

    assert database.remove_user("eve")
    assert not database.remove_user("eve")
    assert database.users() == (UserEntry("ada", "hash 3", admin=False),)


def test_a_machines_life_is_one_entry_that_becomes_complete(database: Database) -> None:
    """The end of a machine replaces its life so far; others stay."""
    term = database.acquire("a")
    database.put_lifetimes(term, [life("m1", None), life("m2", None)])
    database.put_lifetimes(term, [life("m1", 95.25, preempted=True)])
    database.put_lifetimes(term, [])

    assert database.lifetimes() == (life("m1", 95.25, preempted=True), life("m2", None))


def test_measurements_keep_their_history(database: Database) -> None:
    """What each run of a job's like showed is there, oldest first; another job's is not among it."""
    term = database.acquire("a")
    for key, value in (("k", measured(1.0)), ("other", measured(9.0)), ("k", measured(2.0, "large"))):
        database.add_measurement(term, key, value)

    assert database.measured("k") == (measured(1.0), measured(2.0, "large"))


def test_the_installations_key_stays(url: str, database: Database) -> None:
    """Whoever opens the database later finds the same key of 256 bits, so that machines keep their tokens."""
    again = open_database(url, SystemClock())
    key = again.key()
    again.close()

    assert key == database.key()
    assert len(key) == 32


def test_a_newer_database_is_refused(url: str, database: Database) -> None:
    """Tables of a newer version are not touched."""
    newer = sa.update(database_schema.INSTALLATION).values(version=database_schema.VERSION + 1)
    with database_schema.writing(database._engine) as connection:
        connection.execute(newer)

    with pytest.raises(NewerFormat, match="upgrade Windfall"):
        open_database(url, SystemClock())


def test_sqlite_is_durable_against_a_power_cut(tmp_path: Path) -> None:
    """Every connection writes ahead and synchronises fully: what SQLite itself reads back, on all of a busy pool."""
    engine = database_schema.open_engine(str(tmp_path / "controller.db"))
    connections = [engine.connect() for _ in range(6)]
    found = {
        (
            connection.exec_driver_sql("PRAGMA synchronous").scalar_one(),
            connection.exec_driver_sql("PRAGMA journal_mode").scalar_one(),
        )
        for connection in connections
    }
    for connection in connections:
        connection.close()
    engine.dispose()

    assert found == {(2, "wal")}  # 2 is FULL


def test_sqlite_files_are_for_their_user_alone(tmp_path: Path) -> None:
    """Nobody else may read the database or the files beside it, whatever the umask and whoever made the file before."""
    path = tmp_path / "controller.db"
    path.touch(mode=0o644)
    before = os.umask(0)
    try:
        database = open_database(str(path), SystemClock())
        database.acquire("a")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    database.close()

    assert modes == dict.fromkeys(("controller.db", "controller.db-wal", "controller.db-shm"), 0o600)


def test_a_server_that_does_not_flush_is_refused(server: Postgres) -> None:
    """A database whose commits may be lost gets no journal."""
    url = server.make(f"sql{next(NAMES)}")

    with pytest.raises(Misuse, match="synchronous_commit = on"):
        open_database(f"{url}&options=-csynchronous_commit%3Doff", SystemClock())


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("mysql://host/name", "mysql is not a supported database"),
        ("sqlite://", "not a supported database"),
        ("sqlite:////no/such/folder/controller.db", "/no/such/folder/controller.db"),
        ("://", "not a valid database URL"),
    ],
)
def test_a_url_that_leads_nowhere_is_named(url: str, word: str) -> None:
    """What cannot be a controller's database is refused in a sentence."""
    with pytest.raises(Misuse, match=word):
        open_database(url, SystemClock())


def test_a_silent_server_is_told_without_its_password(tmp_path: Path) -> None:
    """Nothing that answers: one sentence, in which the password is not."""
    with pytest.raises(DatabaseUnreachable) as told:
        open_database(f"postgresql://windfall:pa55word@/controller?host={tmp_path}", SystemClock())

    assert "pa55word" not in str(told.value)


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    """A damaged file is one sentence, not a traceback."""
    (tmp_path / "controller.db").write_bytes(b"not a database" * 1000)

    with pytest.raises(DatabaseUnreachable, match="not a database"):
        open_database(str(tmp_path / "controller.db"), SystemClock())


def test_what_sqlite_deletes_is_overwritten(tmp_path: Path) -> None:
    """A forgotten secret is not left in the file's free pages."""
    path = tmp_path / "controller.db"
    database = open_database(str(path), SystemClock())
    term = database.acquire("a")
    database.add_job(term, job(), {"HF": "hf_very_secret_value"})
    database.delete_secrets(term, "gpt-1")
    database.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()

    assert b"hf_very_secret_value" not in path.read_bytes()


def test_a_database_of_before_the_first_release_is_refused(tmp_path: Path) -> None:
    """Its tables stay as they are, and the sentence says what to do."""
    old = tmp_path / "old.db"
    with contextlib.closing(sqlite3.connect(old)) as connection, connection:
        connection.execute("CREATE TABLE installation (id INTEGER, version INTEGER, epoch INTEGER)")
        connection.execute("INSERT INTO installation VALUES (1, 1, 7)")
    with pytest.raises(OlderFormat, match=r"version 1.*use another"):
        open_database(f"sqlite:///{old}", SystemClock())
    with contextlib.closing(sqlite3.connect(old)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("installation",)]


def test_lifetimes_are_summed_as_the_pool_would(database: Database) -> None:
    """Each kind of machine: how many, how many were preempted and told so, and how long they lived, running ones until now."""
    lives = [
        Lifetime(f"m{number}", "p", "large", "ab"[number % 2], 100.0 + number, ended, preempted, announced)
        for number, (ended, preempted, announced) in enumerate(
            [(150.0, True, True), (170.0, True, False), (180.0, False, False), (None, False, False), (90.0, True, True)]
        )
    ]
    database.put_lifetimes(database.acquire("a"), lives)
    sums = database.lifetime_sums(200.0)

    assert [(one.zone, one.lifetimes, one.preemptions, one.announced) for one in sums] == [
        ("a", 3, 2, 2),
        ("b", 2, 1, 0),
    ]
    assert [one.lifetime_s for one in sums] == pytest.approx([50.0 + 78.0 + 0.0, 69.0 + 97.0])
    assert lifetime_pool.pool_sums(sums) == lifetime_pool.pool(lives, 200.0)
