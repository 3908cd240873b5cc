"""The folders of a session: one `windfall exec` on this machine.  Standard library only, for the supervisor.

<session>/exec.json       the request (no secret is in it: credentials stay in the environment)
<session>/journal.jsonl   the term's journal, before it is shipped
<session>/lease.json      which term this machine holds, so that a restarted agent continues it
<session>/output.log      the script's output, before it is shipped
<session>/checkpoints/<n>/  the checkpoint restored for attempt n
<session>/held/<n>/       links to the files that attempt n handed over, until they are committed
<pages>/<n>/              pages and message files of attempt n (on a memory file system where there is one)
<pages>/session           the path of the session's folder

A session that exits normally removes its folders.  What a killed session leaves behind tells the next machine on this
host how far it got (`storage.local_leftovers`); large files are removed at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
from pathlib import Path

from windfall.linux import processes

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""The signals that the supervisor handles; `windfall exec` blocks them until it has become the supervisor."""
LOCK = "lock"
"""A file in each of a session's folders, locked while the session is alive."""
LEASE = "lease.json"
SESSION = "session"
_LEFTOVERS_S_MAX = 7 * 86_400.0
"""How long the leftovers of a killed session are kept for a machine that resumes its run on this host [s]."""
REQUEST = "exec.json"
_KEPT_NAMES = ("journal-", LEASE, REQUEST, "output.log", LOCK)

CRASHES = "agent-crashes.log"
"""The agent's crash log; a session with this file is not removed at its end."""


def sweep(folder: Path, *, now: float) -> None:
    """Remove what dead sessions left behind, except the small files that the next machine of their run reads.

    Args:
        folder: of sessions, or of their pages.
        now: this host's wall-clock time, as in the files' modification times [s since 1970].
    """
    for left in folder.glob("*-*"):
        if is_dead(str(left)):
            pages = left / SESSION
            with contextlib.suppress(OSError):
                session = Path(pages.read_text()) if pages.exists() else left
                if now - (session / LEASE).stat().st_mtime < _LEFTOVERS_S_MAX:
                    if session == left:
                        _remove_large_files(left)
                    continue
            shutil.rmtree(left, ignore_errors=True)


def _remove_large_files(session: Path) -> None:
    for entry in session.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif not entry.name.startswith(_KEPT_NAMES):
            entry.unlink(missing_ok=True)


def is_dead(folder: str) -> bool:
    """Say whether a session is over, given one of its folders: its first process is gone and its lock is free.

    A process that is not visible here may run in another container or on another host, so the lock decides.
    """
    pid, _, started = os.path.basename(folder).partition("-")
    if not pid.isdigit() or str(processes.started_at(int(pid))) == started:
        return False
    try:
        handle = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
