"""A session: one `windfall exec`, its request, and its folders on the local disk.

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
import json
import os
import shutil
import signal
from pathlib import Path

from windfall.linux import processes
from windfall.structs import Struct, plain
from windfall.terms import Seconds

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""The signals that the supervisor handles; `windfall exec` blocks them until it has become the supervisor."""
LOCK = "lock"
"""A file in each of a session's folders, locked while the session is alive."""
LEASE = "lease.json"
SESSION = "session"
_LEFTOVERS_S_MAX = 7 * 86_400.0
"""How long the leftovers of a killed session are kept for a machine that resumes its run on this host [s]."""
_KEPT_NAMES = ("journal-", LEASE, "exec.json", "output.log", LOCK)

GRACE_S = Seconds(30.0)
"""Default time that a machine keeps running after SIGTERM [s]."""
CRASHES = "agent-crashes.log"
"""The agent's crash log; a session with this file is not removed at its end."""


class ExecRequest(Struct, frozen=True):
    """One `windfall exec`, with all defaults filled in.

    Attributes:
        argv: the script's command; empty to take the run's own.
        cwd: where it runs (and where a bundle is unpacked).
        session, pages: the folders described above.
        state: this machine's folder for what outlives a session.
        policy: text as `policies.checkpointing` parses it.
        provider: `local`, `aws`, `google`, `azure`, `slurm`, `kubernetes`: whose notices to watch.
        metadata_url: where the provider's metadata service is, if not at its documented address.
        retry_codes: exit codes of the script after which it is always restarted.
        grace_s: how long the machine keeps running after SIGTERM; None for the default (`GRACE_S`).
        lease_s: without a heartbeat for this long, another machine may take the run.
        patience_s: how long to retry a store that does not answer.
        nonce: random name of this session; identifies the holder in the run's log.
        bundle: store the folder's code with the run.
        new_code: replace the run's bundle with the folder's code.
        machine: this machine's name at its provider; empty for its host name.
        status: file with the run's status for the node agent (`agent.status_files`); None without a node agent.
        estimates: file with the controller's estimates (`agent.status_files`); None without a node agent.
        generation: of the machines that train together; 0 for a machine that trains alone.
        node_rank: this machine's number among them; 0 leads.
        peers: host:port of each of them, in the order of their numbers; empty for a machine that trains alone.
    """

    url: str
    argv: tuple[str, ...]
    cwd: str
    session: str
    pages: str
    policy: str = "adaptive"
    provider: str = "local"
    metadata_url: str | None = None
    mttp_s: float | None = None
    keep: int | None = None
    failures_max: int = 3
    retry_codes: tuple[int, ...] = ()
    grace_s: float | None = None
    lease_s: float = 30.0
    patience_s: float = 120.0
    wait: bool = False
    bundle: bool = False
    new_code: bool = False
    isolation: str = "auto"
    uplink_bytes_per_s: float | None = None
    supervisor_pid: int = 0
    nonce: str = ""
    state: str = ""
    machine: str = ""
    status: str | None = None
    estimates: str | None = None
    generation: int = 0
    node_rank: int = 0
    peers: tuple[str, ...] = ()

    def save(self) -> None:
        """Write the request into its session folder."""
        with open(os.path.join(self.session, "exec.json"), "w") as file:
            json.dump(plain(self), file)

    @property
    def managed(self) -> bool:
        """Whether a node agent started this: no user is at the terminal to run a command again."""
        return self.status is not None

    @property
    def after_sigterm_s(self) -> Seconds:
        """How long the machine keeps running after SIGTERM [s]."""
        return GRACE_S if self.grace_s is None else Seconds(self.grace_s)

    @property
    def finished(self) -> str:
        """The folder of this machine's records of finished runs (`storage.success_record`)."""
        return os.path.join(self.state, "finished")

    def path(self, *names: str) -> str:
        """Return a path inside the session folder."""
        return os.path.join(self.session, *names)


def load(session: str) -> ExecRequest:
    """Read the request of a session folder."""
    with open(os.path.join(session, "exec.json")) as file:
        data = json.load(file)
    for name in ("argv", "peers", "retry_codes"):
        data[name] = tuple(data.get(name, ()))
    return ExecRequest(**data)


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
