"""The contract of a job's journal at the controller, on every database it can lie in."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.storage.databases import Postgres, no_postgres, postgres_server
from windfall.errors import ControllerReplaced, DatabaseUnreachable, LogDamaged
from windfall.linux.clock import SystemClock
from windfall.ports import Journal
from windfall.storage.database import Database, open_database
from windfall.storage.database_schema import ROWS

JOB = "gpt-1"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    if reason := no_postgres():
        pytest.skip(reason)
    with postgres_server() as running:
        yield running


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    if reason := no_postgres():
        pytest.skip(reason)
    with postgres_server() as running:
        yield running


NAMES = itertools.count()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'controller.db'}"
    return request.getfixturevalue("server").make(f"journal{next(NAMES)}")


@pytest.fixture
def opened(url: str) -> Iterator[Callable[[], Database]]:
    """Opens the same database again, as another process would."""
    made: list[Database] = []

    def again() -> Database:
        made.append(open_database(url, SystemClock()))
        return made[-1]

    yield again
    for one in made:
        one.close()


def test_rows_come_back_in_order_from_any_process(opened: Callable[[], Database]) -> None:
    """What was appended is read back, oldest first, by whoever opens the database next."""
    database = opened()
    journal = database.journal(JOB, database.acquire("a"))
    lines = [f"row {number} with ünïcode and \n a break" for number in range(520)]
    for line in lines[:300]:
        journal.append(line)
    other = opened().journal(JOB, database.acquire("b"))
    for line in lines[300:]:
        other.append(line)

    assert list(opened().journal(JOB, database.acquire("c")).rows()) == lines


def test_jobs_do_not_see_each_others_rows(opened: Callable[[], Database]) -> None:
    """Each job's journal begins at one and holds its own rows alone."""
    database = opened()
    term = database.acquire("a")
    database.journal("a-1", term).append("of a")
    database.journal("b-1", term).append("of b")

    assert list(database.rows("b-1")) == [(1, "of b")]


def test_a_row_that_somebody_took_out_is_named(opened: Callable[[], Database]) -> None:
    """What follows it is not read as if nothing were missing."""
    database = opened()
    journal = database.journal(JOB, database.acquire("c"))
    for line in ("one", "two", "three"):
        journal.append(line)
    with database._engine.begin() as connection:
        connection.execute(sa.delete(ROWS).where(ROWS.c.sequence == 2))
    with pytest.raises(LogDamaged, match=f"row 2 of the journal of {JOB} is missing"):
        list(database.rows(JOB))


def test_a_replaced_controller_writes_nothing_more(opened: Callable[[], Database]) -> None:
    """Once another took over the installation, the old controller's append is refused and changes nothing."""
    old, new = opened(), opened()
    journal = old.journal(JOB, old.acquire("old host"))
    journal.append("before")
    new.acquire("new host")

    with pytest.raises(ControllerReplaced, match="new host"):
        journal.append("after")
    assert list(journal.rows()) == ["before"]


def test_no_write_of_an_old_term_slips_in_behind_a_take(opened: Callable[[], Database]) -> None:
    """While a controller writes as fast as it can, nothing of it appears after another's take has returned."""
    old, new = opened(), opened()
    journal, written = old.journal(JOB, old.acquire("old")), []

    def write() -> None:
        for number in itertools.count(1):
            try:
                journal.append(f"row {number}")
            except ControllerReplaced:
                return
            written.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    _until(lambda: len(written) >= 20)
    new.acquire("new")
    seen = list(new.rows(JOB))
    writer.join(timeout=60)

    assert list(new.rows(JOB)) == seen
    assert [number for number, _ in seen] == written


def test_a_take_waits_for_a_write_that_has_passed_the_fence(opened: Callable[[], Database]) -> None:
    """A write that found its term valid is committed before the next controller has the installation."""
    old, new, acquired = opened(), opened(), threading.Event()
    term = old.acquire("old")

    def acquire() -> None:
        new.acquire("new")
        acquired.set()

    taker = threading.Thread(target=acquire)
    with old._fenced(term):
        taker.start()
        assert not acquired.wait(0.5)
    assert acquired.wait(30)
    taker.join()


def test_a_commit_that_fails_leaves_the_place_free(opened: Callable[[], Database]) -> None:
    """The same line again after an append that came to nothing lies where it belongs, without a gap."""
    database = opened()
    journal, broken = database.journal(JOB, database.acquire("a")), [True]

    @sa.event.listens_for(database._engine, "commit")
    def _(_: object) -> None:
        if broken.pop():
            broken.append(False)
            raise sa.exc.OperationalError("COMMIT", None, OSError("the server went away"))
        broken.append(False)

    with pytest.raises(DatabaseUnreachable, match="went away"):
        journal.append("one")
    journal.append("one")
    journal.append("two")

    assert list(database.rows(JOB)) == [(1, "one"), (2, "two")]


def test_a_row_whose_answer_was_lost_is_not_written_twice(opened: Callable[[], Database]) -> None:
    """The same line again, at the place where it already lies, is success; the next one follows it."""
    database = opened()
    term = database.acquire("a")
    journal, baseline = database.journal(JOB, term), database.journal(JOB, term)
    journal.append("one")
    baseline.append("two")  # stands for the journal's own append whose answer never came

    with pytest.raises(LogDamaged, match="row 2"):
        journal.append("another two")
    journal.append("two")
    journal.append("three")

    assert list(journal.rows()) == ["one", "two", "three"]


@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_no_row_is_lost_when_the_writer_is_killed(url: str, opened: Callable[[], Database], kills: int) -> None:
    """Killed at random instants, a writer leaves every row it called durable, at most one more, and no gap."""
    database = opened()
    term = database.acquire("a")
    chance = random.Random(20260 + kills)
    for _ in range(kills):
        durable = _written_until_killed(url, term, chance.uniform(0.0, 0.15))
        rows = [line for _, line in database.rows(JOB)]
        assert rows == [f"row {number + 1}" for number in range(len(rows))]
        assert durable <= len(rows) <= durable + 1


def _written_until_killed(url: str, term: int, after_s: float) -> int:
    """The last row that a writer called durable before it was killed, so long after it began to write."""
    command = [sys.executable, "-m", "tests.contracts.journal_writer", url, JOB, str(term)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        first = writer.stdout.readline()
        # The instant of the kill is the experiment: nothing is waited for.
        threading.Event().wait(after_s)
        writer.kill()
        said = [first, *writer.stdout.readlines()]
    return int([line for line in said if line.endswith("\n")][-1])


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_rows_survive_the_death_of_the_database_server(own_server: Postgres, kills: int) -> None:
    """The server killed in mid-write raises; once it is back the same journal goes on, every row there once, in order."""
    database = open_database(own_server.make("outage"), SystemClock())
    journal, written = database.journal(JOB, database.acquire("a")), 0
    chance, outages = random.Random(5), 0
    for _ in range(kills):
        killer = threading.Timer(chance.uniform(0.05, 0.3), own_server.kill)
        killer.start()
        written = _append_until_trouble(journal, written)
        outages += 1
        killer.join()
        with pytest.raises(DatabaseUnreachable):
            journal.append(f"row {written + 1}")
        own_server.start()
        journal.append(f"row {written + 1}")
        written += 1
    rows = list(journal.rows())
    database.close()

    assert rows == [f"row {number + 1}" for number in range(written)]
    assert written > outages


def _append_until_trouble(journal: Journal, written: int) -> int:
    """Append one row after the other; how many rows are certain when the database no longer answers."""
    for number in itertools.count(written + 1):
        try:
            journal.append(f"row {number}")
        except DatabaseUnreachable as error:
            assert "failed: " in str(error)  # noqa: PT017
            return number - 1
    raise AssertionError


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)
