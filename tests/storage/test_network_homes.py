"""State on a network home: no write-ahead log there, and a file system without locks is refused before anything starts."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.simulated_store import ManualClock
from windfall.cli import client
from windfall.errors import Misuse
from windfall.storage import database_schema
from windfall.storage.database import open_database

KINDS = (("ext4", "wal"), ("", "wal"), ("nfs4", "delete"), ("lustre", "delete"), ("gpfs", "delete"), ("ceph", "delete"))


@pytest.mark.parametrize(("kind", "journal"), KINDS)
def test_a_network_file_system_has_no_write_ahead_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, journal: str
) -> None:
    """Its processes share no memory; the same tables work with a rollback journal, over several openings."""
    monkeypatch.setattr(database_schema, "file_system_of", lambda _: kind)
    path = tmp_path / "controller.db"
    for _ in range(2):
        with closing(open_database(str(path), ManualClock())) as database:
            assert list(database.lifetimes()) == []

    with closing(sqlite3.connect(path)) as found:
        assert found.execute("PRAGMA journal_mode").fetchone() == (journal,)
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Before a controller starts: it says where the state is, why not, and what to set instead."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.delenv("WINDFALL_CONTROLLER", raising=False)
    monkeypatch.setattr(fcntl, "flock", refuse)

    with pytest.raises(
        Misuse, match=r"files in .* cannot be locked \(.*\): set XDG_STATE_HOME, or --state, to a folder on"
    ):
        client.connect(tmp_path / "state", start=True, launch=("false",))

    assert not (tmp_path / "state" / "controller.db").exists()
