"""What `windfall exec` leaves on a machine's disk, and who may remove it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from windfall.agent import kernel
from windfall.cli.exec import LOCK, sweep


def session(folder: Path, pid: int, started: int) -> Path:
    """Make the folder of a session."""
    made = folder / f"{pid}-{started}"
    made.mkdir()
    (made / LOCK).touch()
    return made


def test_what_a_dead_session_left_is_removed(tmp_path: Path) -> None:
    """Its process is gone, or its number belongs to another one now, and nobody has its lock."""
    left = [session(tmp_path, 2**30, 1), session(tmp_path, os.getpid(), 1)]
    sweep(tmp_path)
    assert not any(folder.exists() for folder in left)


def test_a_live_session_stays(tmp_path: Path) -> None:
    """Its process has the number and the start time of the folder's name."""
    mine = session(tmp_path, os.getpid(), kernel.started_at(os.getpid()) or 0)
    sweep(tmp_path)
    assert mine.exists()


def test_a_session_of_another_container_or_host_stays(tmp_path: Path) -> None:
    """Containers may share /dev/shm and hosts a home folder: a process that is not to be seen here keeps its lock."""
    foreign = session(tmp_path, 2**30, 1)
    with open(foreign / LOCK, "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep(tmp_path)
        assert foreign.exists()
    sweep(tmp_path)
    assert not foreign.exists()


def test_a_session_that_is_just_being_made_stays(tmp_path: Path) -> None:
    """There is a moment between the making of its folder and its lock."""
    young = tmp_path / f"{2**30}-1"
    young.mkdir()
    sweep(tmp_path)
    assert young.exists()
