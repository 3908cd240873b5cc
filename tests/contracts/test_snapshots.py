"""The contract of a job's snapshots at the controller, on every database they can lie in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contracts.test_job_journal import JOB, opened, server, url
from windfall.errors import ControllerReplaced
from windfall.storage.database import Database

__all__ = ["opened", "server", "url"]


def test_the_newest_two_are_kept_newest_first(opened: Callable[[], Database]) -> None:
    """Also for whoever opens the database next; those of another job are not touched."""
    database = opened()
    term = database.acquire("a")
    database.snapshots("other-1", term).write(7, b"of another")
    mine = database.snapshots(JOB, term)
    assert list(mine.newest()) == []
    for sequence in (1000, 2000, 3000, 4000):
        mine.write(sequence, f"{sequence}\0\xff".encode("latin-1"))

    again = opened().snapshots(JOB, term)
    assert list(again.newest()) == [(4000, b"4000\0\xff"), (3000, b"3000\0\xff")]
    assert list(database.snapshots("other-1", term).newest()) == [(7, b"of another")]


def test_a_snapshot_drops_those_of_rows_that_are_not_there(opened: Callable[[], Database]) -> None:
    """One of the same row is replaced; later ones belong to a journal that was longer."""
    database = opened()
    mine = database.snapshots(JOB, database.acquire("a"))
    for sequence, data in ((1000, b"a"), (9000, b"of a longer journal"), (2000, b"b"), (2000, b"c")):
        mine.write(sequence, data)

    assert list(mine.newest()) == [(2000, b"c"), (1000, b"a")]


def test_a_replaced_controller_writes_none(opened: Callable[[], Database]) -> None:
    """Its state is not the newest controller's."""
    database = opened()
    mine = database.snapshots(JOB, database.acquire("old host"))
    mine.write(1000, b"a")
    opened().acquire("new host")
    with pytest.raises(ControllerReplaced, match="new host"):
        mine.write(2000, b"b")

    assert list(mine.newest()) == [(1000, b"a")]
