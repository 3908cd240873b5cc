"""What `windfall exec` leaves on a machine's disk, and who may remove it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from windfall.agent.session_folder import LOCK, sweep
from windfall.linux import processes

NOW = 1_700_000_000.0


def session(folder: Path, pid: int, started: int) -> Path:
    """Make the folder of a session."""
    made = folder / f"{pid}-{started}"
    made.mkdir(parents=True)
    (made / LOCK).touch()
    return made


def test_what_a_dead_session_left_is_removed(tmp_path: Path) -> None:
    """Its process is gone, or its number belongs to another one now, and nobody has its lock."""
    left = [session(tmp_path, 2**30, 1), session(tmp_path, os.getpid(), 1)]
    sweep(tmp_path, now=NOW)
    assert not any(folder.exists() for folder in left)


@pytest.mark.trial("D1")
def test_what_a_killed_session_knows_of_its_run_stays_for_the_next_machine(tmp_path: Path) -> None:
    """Journal, pages and what it held are light and wait a week; checkpoints that it brought go at once."""
    left, pages = session(tmp_path, 2**30, 1), session(tmp_path / "pages", 2**30, 1)
    (pages / "session").write_text(str(left))
    for name in ("lease.json", "journal-00000001.jsonl"):
        (left / name).touch()
        os.utime(left / name, (NOW, NOW))
    (left / "checkpoints" / "1").mkdir(parents=True)

    for folder in (tmp_path, tmp_path / "pages"):
        sweep(folder, now=NOW + 60.0)
    assert sorted(entry.name for entry in left.iterdir()) == ["journal-00000001.jsonl", "lease.json", LOCK]
    assert pages.exists()

    for folder in (tmp_path / "pages", tmp_path):
        sweep(folder, now=NOW + 8 * 86_400.0)
    assert not left.exists()
    assert not pages.exists()


def test_a_live_session_stays(tmp_path: Path) -> None:
    """Its process has the number and the start time of the folder's name."""
    mine = session(tmp_path, os.getpid(), processes.started_at(os.getpid()) or 0)
    sweep(tmp_path, now=NOW)
    assert mine.exists()


def test_a_session_of_another_container_or_host_stays(tmp_path: Path) -> None:
    """Containers may share /dev/shm and hosts a home folder: a process that is not to be seen here keeps its lock."""
    foreign = session(tmp_path, 2**30, 1)
    with open(foreign / LOCK, "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep(tmp_path, now=NOW)
        assert foreign.exists()
    sweep(tmp_path, now=NOW)
    assert not foreign.exists()


def test_a_session_that_is_just_being_made_stays(tmp_path: Path) -> None:
    """There is a moment between the making of its folder and its lock."""
    young = tmp_path / f"{2**30}-1"
    young.mkdir()
    sweep(tmp_path, now=NOW)
    assert young.exists()
