"""A machine's folder: the only thing that the market and a machine's init share, so that each survives the other.

boot.json     what to run; written by the market, removed by the init once it has read it
started.json  created once, by the first: the init that starts the machine, or the market that withdraws it
life.json     the running init: metadata service, processes, announced end; replaced as it changes
beat          seconds since the start, written several times a second
request.json  the market's request: release or preemption
end.json      when and why the machine ended, written by the init once nothing of it runs any more
lock          held by the init while it runs
output.log    the output of the machine's process
disk/         the machine's own disk, deleted with the machine
tmp.json      where its temporary folder is: on the host's disk, since a socket's path has at most 107 characters
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import struct
from pathlib import Path
from typing import Any

from windfall.linux import processes
from windfall.market import MachineEndCause
from windfall.structs import Struct
from windfall.terms import Seconds, WallTime

MACHINE_ID = "WINDFALL_MACHINE_ID"
"""The environment variable with a machine's name, by which its stray processes are also found."""
OUTPUT = "output.log"
TMP_BASES = ("/tmp", "/var/tmp")  # noqa: S108 - a new folder is made there, for this user alone
"""Where machines' temporary folders may be; the host's TMPDIR may be as long as the machine's own path."""
_TMP_TRIES = 8
_BEAT = struct.Struct("<d")


class MachineEnd(Struct, frozen=True):
    """How a machine ended.

    Attributes:
        started: None if it never started.
        preemption_at: when it was to be preempted, if that was announced.
    """

    started: WallTime | None
    ended: WallTime
    cause: MachineEndCause
    preemption_at: WallTime | None = None


def prepare(folder: Path, boot: dict[str, Any]) -> None:
    """Make the folder of a machine about to be sold; remove what an order that never became durable left there."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("disk/home", "disk/state"):
        os.makedirs(folder / name, mode=0o700)
    os.chmod(folder, 0o700)
    _replace(folder / "boot.json", boot, durable=True)


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the content of one of the JSON files, None if it does not exist."""
    try:
        found = json.loads((folder / name).read_bytes())
    except OSError:
        return None
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name} is not a JSON object")
    return found


def write(folder: Path, name: str, content: dict[str, Any]) -> None:
    """Replace one of the JSON files atomically."""
    _replace(folder / name, content, durable=False)


def _replace(path: Path, content: dict[str, Any], *, durable: bool) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        json.dump(content, file)
        if durable:
            file.flush()
            os.fsync(fd)
    os.replace(temporary, path)


def decide_start(folder: Path, content: dict[str, Any]) -> bool:
    """Decide whether the machine starts: True for the first caller, whose content counts, False for all others.

    Args:
        folder: the machine's.
        content: `{"started": wall}` from an init, `{"withdrawn": cause, "at": wall}` from the market.
    """
    temporary = folder / f"started.json.{os.getpid()}"
    write(folder, temporary.name, content)
    try:
        os.link(temporary, folder / "started.json")
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    return True


def acquire_lock(folder: Path) -> int | None:
    """Lock the machine until this process ends; None if another init holds the lock."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def beat(fd: int, elapsed_s: Seconds) -> None:
    """Write how long the machine has run [s]."""
    os.pwrite(fd, _BEAT.pack(elapsed_s), 0)


def open_beat(folder: Path) -> int:
    """Open the file that `beat` writes to."""
    return os.open(folder / "beat", os.O_WRONLY | os.O_CREAT, 0o600)


def _last_beat_s(folder: Path) -> Seconds:
    try:
        return Seconds(_BEAT.unpack((folder / "beat").read_bytes())[0])
    except (OSError, struct.error):
        return Seconds(0.0)


def machine_end(folder: Path) -> MachineEnd | None:
    """Return how a machine ended; None if it has not ended, or has not started.

    An init that was killed could not record its end.  Then the machine's last beat counts, which is at most a quarter
    of a second before the true end and never after it, however late this is called.
    """
    start = read(folder, "started.json")
    if start is None:
        return None
    if "withdrawn" in start:
        return MachineEnd(None, WallTime(start["at"]), MachineEndCause(start["withdrawn"]))
    started = WallTime(start["started"])
    if (end := read(folder, "end.json")) is None and _is_dead(folder):
        end = read(folder, "end.json") or {
            "ended": started + _last_beat_s(folder),
            "cause": _suspected_cause(folder),
        }
    if end is None:
        return None
    return MachineEnd(started, WallTime(end["ended"]), MachineEndCause(end["cause"]), announced_end(folder))


def announced_end(folder: Path) -> WallTime | None:
    """Return when a machine is to be preempted; None if that was not announced, or its file cannot be read."""
    try:
        return WallTime(float((read(folder, "life.json") or {})["preemption_at"]))
    except (ValueError, KeyError, TypeError):
        return None


def _is_dead(folder: Path) -> bool:
    """Return whether the init and all its processes are gone; without a PID namespace, kill what is left of them."""
    try:
        fd = os.open(folder / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    life = read(folder, "life.json")
    if life is None:
        return True
    if life["namespace"]:
        # PID 1 releases the lock just before the kernel kills the rest, and is gone only after that.
        return processes.started_at(int(life["first_pid"])) != int(life["first_started_at"])
    processes.kill_marked(MACHINE_ID, folder.name)
    return True


def _suspected_cause(folder: Path) -> MachineEndCause:
    request = read(folder, "request.json") or {}
    if request.get("release"):
        return MachineEndCause.RELEASED
    return MachineEndCause.PREEMPTED if "preempt" in request else MachineEndCause.FAILED


def make_tmp(folder: Path) -> str:
    """Make the machine's temporary folder, for this user alone, with a path short enough for sockets in it.

    Its name is recorded before it exists, so that a cleanup after a killed machine finds it.
    """
    for base in TMP_BASES:
        for number in range(_TMP_TRIES):
            path = f"{base}/wf-{hashlib.sha256(f'{folder}/{number}'.encode()).hexdigest()[:8]}"
            write(folder, "tmp.json", {"path": path})
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                continue
            except OSError:
                break
            return path
    (folder / "tmp.json").unlink(missing_ok=True)
    longest = folder / "disk" / "tmp"
    longest.mkdir(mode=0o700, exist_ok=True)
    return str(longest)


def wipe_tmp(folder: Path, made: str | None = None) -> None:
    """Remove a machine's temporary folder, as `make_tmp` named it; a folder of another user is kept."""
    path = made or (read(folder, "tmp.json") or {}).get("path")
    if path is None:
        return
    with contextlib.suppress(OSError):
        if os.lstat(path).st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
    (folder / "tmp.json").unlink(missing_ok=True)


def wipe_disk(folder: Path) -> None:
    """Remove the disk and boot data of a machine that is gone."""
    shutil.rmtree(folder / "disk", ignore_errors=True)
    wipe_tmp(folder)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder / "boot.json")


def kill_init(folder: Path) -> None:
    """Kill a machine's init that ignored a request, if it is still the same process."""
    life = read(folder, "life.json")
    if life is not None and processes.started_at(life["pid"]) == life["started_at"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(life["pid"], signal.SIGKILL)
