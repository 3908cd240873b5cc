"""What `windfall exec` was asked for, and the folder on the local disk in which one such call keeps its things.

<session>/exec.json       the request (no secret is in it: credentials stay in the environment)
<session>/journal.jsonl   the term's journal, before it is shipped
<session>/hold.json       which term this machine holds, so that an agent that restarts goes on with it
<session>/output.log      what the script printed, before it is shipped
<session>/points/<n>/     the checkpoint restored for attempt n
<session>/held/<n>/       links to what attempt n handed over, until it is committed
<pages>/<n>/              pages and message files of attempt n (on a memory file system where there is one)
<pages>/session           where the session's folder is

A session that ends in order takes its folders along.  What one leaves behind that was killed tells the next machine on
this host how far it had come (`storage.remains`); what is heavy in it is removed at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from windfall.agent import kernel
from windfall.terms import Seconds

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What the supervisor hears, and `windfall exec` keeps for it while it becomes one."""
LOCK = "lock"
"""In each of a session's folders: locked for as long as it lives."""
HOLD = "hold.json"
SESSION = "session"
_LEFT_S_MAX = 7 * 86_400.0
"""How long the little that a killed session leaves behind waits for a machine that takes its run up here [s]."""
_LIGHT = ("journal-", HOLD, "exec.json", "output.log", LOCK)

GRACE_S = Seconds(30.0)
"""How long after SIGTERM a machine lives on where nobody says it [s]."""
CRASHES = "agent-crashes.log"
"""What is known of crashes of the agent; a session with this file is not removed at its end."""


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One `windfall exec`, with all defaults filled in.

    Attributes:
        argv: the script's command; empty to take the run's own.
        cwd: where it runs (and where a bundle is unpacked).
        session, pages: the folders described above.
        state: this machine's folder for what outlives a session.
        policy: text understood by `policies.saving`.
        provider: `local`, `aws`, `google`, `azure`, `slurm`, `kubernetes`: whose notices to watch.
        metadata_url: where the provider's metadata service is, if not at its documented address.
        retry_codes: exit codes of the script after which it is always started again.
        grace_s: how long after SIGTERM the machine lives on, as the user says; None: nobody said it (`GRACE_S`).
        lease_s: how long a heartbeat may stand still before another machine may take the run.
        patience_s: how long the store is asked again where it does not answer.
        nonce: random name of this call; what the run's log knows its holder by.
        bundle: take the folder's code along.
        new_code: replace the run's bundle with the folder's code.
        machine: what this machine is called where machines are bought; empty: by its host name.
        status: file that says where the run stands, for whoever started this (`agent.standing`); None for none.
        beliefs: file in which whoever started this leaves what the controller believes (`agent.beliefs`); None for none.
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
    beliefs: str | None = None
    generation: int = 0
    node_rank: int = 0
    peers: tuple[str, ...] = ()

    def save(self) -> None:
        """Write the request into its session folder."""
        with open(os.path.join(self.session, "exec.json"), "w") as file:
            json.dump(dataclasses.asdict(self), file)

    @property
    def kept(self) -> bool:
        """Whether a controller's keeper started this: nobody sits there to start a line again."""
        return self.status is not None

    @property
    def after_sigterm_s(self) -> Seconds:
        """How long after SIGTERM the machine lives on [s]."""
        return GRACE_S if self.grace_s is None else Seconds(self.grace_s)

    @property
    def finished(self) -> str:
        """The folder of what is known of finished runs (`storage.finished`)."""
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
    """Remove what dead sessions left behind, but for the little that the next machine of their run wants to know.

    Args:
        folder: of sessions, or of their pages.
        now: this host's wall clock, as its files have it.
    """
    for left in folder.glob("*-*"):
        if is_dead(str(left)):
            pages = left / SESSION
            with contextlib.suppress(OSError):
                session = Path(pages.read_text()) if pages.exists() else left
                if now - (session / HOLD).stat().st_mtime < _LEFT_S_MAX:
                    if session == left:
                        _lighten(left)
                    continue
            shutil.rmtree(left, ignore_errors=True)


def _lighten(session: Path) -> None:
    for entry in session.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif not entry.name.startswith(_LIGHT):
            entry.unlink(missing_ok=True)


def is_dead(folder: str) -> bool:
    """Say whether a session is over, by one of its folders: its first process is gone, and nobody has its lock.

    A process that is not to be seen here may live in another container or on another host.
    """
    pid, _, started = os.path.basename(folder).partition("-")
    if not pid.isdigit() or str(kernel.started_at(int(pid))) == started:
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
