"""A machine's folder: the only thing that the market and a machine's init share, so that each survives the other.

boot.json   what to run; written by the market, removed by the init once it has read it
began.json  created once, by whoever comes first: the init that begins, or the market that withdraws a promise
life.json   how the init lives: metadata service, processes, announced end; replaced as it changes
beat        seconds since the beginning, written several times a second
wish.json   what the market wants: release or preemption
end.json    when and why it ended, written by the init once nothing of the machine runs any more
lock        held by the init while it lives
output.log  what the machine's process printed
disk/       the machine's own disk, which goes when the machine goes
tmp.json    where its folder for temporary files is: on the host's own, because a socket's path has at most 107 characters
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windfall.market import Ended
from windfall.providers.local import process
from windfall.terms import Seconds, WallTime

MACHINE_ID = "WINDFALL_MACHINE_ID"
"""The environment variable by which a machine knows its name, and by which stray processes of it are found."""
OUTPUT = "output.log"
TMP_BASES = ("/tmp", "/var/tmp")  # noqa: S108 - the folder is made anew, for this user alone
"""Where machines' folders for temporary files may be; the host's TMPDIR may be as long as the machine's own path."""
_TMP_TRIES = 8
_BEAT = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class Fate:
    """How a machine ended.

    Attributes:
        began: None if it never did.
        taken_at: when it was to be taken, if that was announced.
    """

    began: WallTime | None
    ended: WallTime
    cause: Ended
    taken_at: WallTime | None = None


def prepare(folder: Path, boot: dict[str, Any]) -> None:
    """Make the folder of a machine that is about to be promised; what an order that never became durable left goes."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("disk/home", "disk/state"):
        os.makedirs(folder / name, mode=0o700)
    os.chmod(folder, 0o700)
    _replace(folder / "boot.json", boot, durable=True)


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the content of one of the JSON files, None if there is none."""
    try:
        found = json.loads((folder / name).read_bytes())
    except OSError:
        return None
    except RecursionError:
        raise ValueError(f"{name} is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name} is no object")
    return found


def write(folder: Path, name: str, content: dict[str, Any]) -> None:
    """Replace one of the JSON files; readers see it whole or not."""
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


def begin(folder: Path, content: dict[str, Any]) -> bool:
    """Decide whether the machine begins; only the first caller's word counts, the others are told False.

    Args:
        folder: the machine's.
        content: `{"began": wall}` by an init, `{"withdrawn": cause, "at": wall}` by the market.
    """
    temporary = folder / f"began.json.{os.getpid()}"
    write(folder, temporary.name, content)
    try:
        os.link(temporary, folder / "began.json")
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    return True


def hold(folder: Path) -> int | None:
    """Take the machine's lock for as long as this process lives; None if another init has it."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def beat(fd: int, elapsed_s: Seconds) -> None:
    """Write how long the machine has run."""
    os.pwrite(fd, _BEAT.pack(elapsed_s), 0)


def open_beat(folder: Path) -> int:
    """Open the file that `beat` writes to."""
    return os.open(folder / "beat", os.O_WRONLY | os.O_CREAT, 0o600)


def _last_beat_s(folder: Path) -> Seconds:
    try:
        return Seconds(_BEAT.unpack((folder / "beat").read_bytes())[0])
    except (OSError, struct.error):
        return Seconds(0.0)


def fate(folder: Path) -> Fate | None:
    """Return how a machine ended; None if it has not, or has not begun.

    An init that was killed could not write down when: then the machine's last beat counts, which is at most a quarter
    of a second before the truth and never after it, whoever looks and however late.
    """
    start = read(folder, "began.json")
    if start is None:
        return None
    if "withdrawn" in start:
        return Fate(None, WallTime(start["at"]), Ended(start["withdrawn"]))
    began = WallTime(start["began"])
    if (end := read(folder, "end.json")) is None and _is_dead(folder):
        end = read(folder, "end.json") or {
            "ended": began + _last_beat_s(folder),
            "cause": _suspected_cause(folder),
        }
    if end is None:
        return None
    return Fate(began, WallTime(end["ended"]), Ended(end["cause"]), announced_end(folder))


def announced_end(folder: Path) -> WallTime | None:
    """Return when a machine is to be taken; None if that was not announced, or its file cannot be read."""
    try:
        return WallTime(float((read(folder, "life.json") or {})["taken_at"]))
    except (ValueError, KeyError, TypeError):
        return None


def _is_dead(folder: Path) -> bool:
    """Whether the init is gone and everything below it: what it held together is swept up here if nothing else does."""
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
        # PID 1 lets go of the lock a moment before the kernel has killed the rest, and is gone only after that.
        return process.started_at(int(life["first_pid"])) != int(life["first_started_at"])
    process.kill_marked(MACHINE_ID, folder.name)
    return True


def _suspected_cause(folder: Path) -> Ended:
    wish = read(folder, "wish.json") or {}
    if wish.get("release"):
        return Ended.RELEASED
    return Ended.PREEMPTED if "preempt" in wish else Ended.FAILED


def make_tmp(folder: Path) -> str:
    """Make the machine's folder for temporary files, for this user alone, with a path short enough for sockets in it.

    Its name is written down before it exists, so that whoever clears up after a machine that was killed finds it.
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
    """Remove a machine's folder for temporary files, as `make_tmp` named it; one that another user made stays."""
    path = made or (read(folder, "tmp.json") or {}).get("path")
    if path is None:
        return
    with contextlib.suppress(OSError):
        if os.lstat(path).st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
    (folder / "tmp.json").unlink(missing_ok=True)


def wipe_disk(folder: Path) -> None:
    """Remove what a machine that is gone kept on its disk, and what it was to run."""
    shutil.rmtree(folder / "disk", ignore_errors=True)
    wipe_tmp(folder)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder / "boot.json")


def kill_init(folder: Path) -> None:
    """Kill a machine's init that does not obey, if it is still the same process."""
    life = read(folder, "life.json")
    if life is not None and process.started_at(life["pid"]) == life["started_at"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(life["pid"], signal.SIGKILL)
