"""`windfall exec`: check what was asked for, make the session folder, become the supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import shlex
import shutil
import signal
import stat
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windfall.agent import kernel
from windfall.agent.session import LOCK, SESSION, SIGNALS, ExecRequest, sweep
from windfall.cli.places import web_address
from windfall.errors import Misuse
from windfall.notices.detect import detect
from windfall.policies.saving.decide import parse_policy
from windfall.spelling import nearest
from windfall.storage.objects import check_url, folder_url
from windfall.units import duration_s, rate_bytes_per_s
from windfall.wire.peers import host_and_port
from windfall.wire.programs import our_environment, program
from windfall.wiring import new_nonce, patience_s

PROVIDERS = ("auto", "aws", "google", "azure", "slurm", "kubernetes", "local")
_SCHEMES = ("file", "s3", "gs", "az")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a memory file system: pages on a disk would be written back


def exec_(
    url: str,
    *command: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    policy: str = "adaptive",
    mttp: str | None = None,
    keep: int | None = None,
    max_failures: int = 3,
    retry_codes: str = "",
    grace: str | None = None,
    lease: str = "30s",
    patience: str | None = None,
    wait: bool = False,
    bundle: bool = False,
    new_code: bool = False,
    provider: str = "auto",
    metadata_url: str | None = None,
    uplink: str | None = None,
    isolation: str = "auto",
    state: Path | None = None,
    machine: Annotated[str, Parameter(show=False)] = "",
    status: Annotated[Path | None, Parameter(show=False)] = None,
    beliefs: Annotated[Path | None, Parameter(show=False)] = None,
    generation: int = 0,
    node_rank: int = 0,
    peers: str = "",
) -> int:
    """Run a command so that it survives this machine.

    Example: `windfall exec s3://lab/run42 -- python train.py`

    Takes the run at URL, restores its newest checkpoint, runs the command, saves, and starts it again if it fails by
    itself.  Start the same line again anywhere: it goes on where the last machine left off.

    Args:
        url: where everything of the run lives: a folder, file://, s3://, gs:// or az://.
        command: after `--`; left out, the run's own command.
        policy: adaptive, optimal, thesis, young-daly, never, "every 100 steps" or "every 10m".
        mttp: mean time to preemption, if you know it (3h); learnt from the run otherwise.
        keep: how many of your own periodic checkpoints to keep; all if not given.
        retry_codes: exit codes of the script that always get another start and are no failure ("75,137").
        max_failures: how often the script may fail by itself before the run is given up.
        grace: how long this machine lives on after SIGTERM (Slurm's --signal, Kubernetes' grace period); 30s if not said.
        lease: after how long without a heartbeat another machine may take the run.
        patience: how long to go on asking a store that does not answer, before exit code 75 (default: 2m).
        wait: wait while another machine holds the run, instead of exit code 75.
        bundle: take the code in this folder along, so that `windfall exec URL` is enough elsewhere.
        new_code: replace the run's bundle with this folder's code.
        provider: whose preemption notices to watch: auto, aws, google, azure, slurm, kubernetes, local.
        metadata_url: where the provider's metadata service answers, if not at its usual address.
        uplink: upload no faster than this (20MB/s).
        isolation: namespace, subreaper or auto: how every descendant is made to end with the run.
        state: folder for this machine's own files (default: $XDG_STATE_HOME/windfall).
        machine: what the machine is called in the run's log, instead of its host name.
        status: file that is kept up to date with where the run stands.
        beliefs: file in which a controller's beliefs of losses and its schedule of saves are found.
        generation: number of this set of machines, larger than that of every earlier one (with --peers).
        node_rank: this machine's number among --peers; 0 leads.
        peers: host:port of each machine that trains together, in the order of their numbers; the first one's port must
            be free. $WINDFALL_PEERS_TOKEN is the secret by which they know one another.
    """
    place = absolute_url(url)
    check_url(place)
    request = ExecRequest(
        url=place,
        argv=_checked_command(command, url),
        cwd=_current_folder(),
        session="",
        pages="",
        policy=parse_policy(policy),
        provider=provider_of(provider),
        metadata_url=None
        if metadata_url is None
        else web_address(metadata_url, "--metadata-url", "http://169.254.169.254"),
        mttp_s=None if mttp is None else _more_than_zero(mttp, "--mttp"),
        keep=_at_least(keep, 1, "--keep"),
        failures_max=_at_least(max_failures, 1, "--max-failures") or 1,
        retry_codes=_codes(retry_codes),
        grace_s=None if grace is None else duration_s(grace, "--grace"),
        lease_s=_lease(lease),
        patience_s=patience_s() if patience is None else duration_s(patience, "--patience"),
        wait=wait,
        bundle=bundle or new_code,
        new_code=new_code,
        isolation=one_of(isolation, ("auto", "namespace", "subreaper"), "--isolation"),
        uplink_bytes_per_s=None if uplink is None else rate_bytes_per_s(uplink, "--uplink"),
        machine=machine,
        status=None if status is None else os.path.abspath(status),
        beliefs=None if beliefs is None else os.path.abspath(beliefs),
        generation=generation,
        node_rank=node_rank,
        peers=_peers(peers, node_rank, generation),
    )
    become_supervisor(request, state or state_folder())
    raise AssertionError("unreachable: the process is the supervisor now")


def _peers(text: str, node_rank: int, generation: int) -> tuple[str, ...]:
    """Return the addresses of the machines that train together.

    Raises:
        Misuse: --peers, --node-rank and --generation do not belong together.
    """
    if not text:
        if node_rank or generation:
            raise Misuse("--node-rank and --generation say which of several machines this is: --peers must name them")
        return ()
    addresses = tuple(address.strip() for address in text.split(","))
    for address in addresses:
        try:
            host_and_port(address)
        except ValueError as error:
            raise Misuse(f"--peers: {error}; write one for each machine, with commas between") from error
    if len(addresses) < 2:
        raise Misuse(f"--peers: {text!r} names one machine; leave it out where one machine trains alone")
    if not 0 <= node_rank < len(addresses):
        raise Misuse(f"--node-rank: {node_rank} is none of the {len(addresses)} machines of --peers (0 is the first)")
    if generation < 1:
        raise Misuse("--generation: several machines need the number of their generation, from 1")
    return addresses


def become_supervisor(request: ExecRequest, state: Path) -> None:
    """Make the session's folders and replace this process by the supervisor; only an error returns."""
    name = f"{os.getpid()}-{kernel.started_at(os.getpid())}"
    session, pages = state / "sessions" / name, _pages_folder(state) / name
    for folder in (session, pages):
        try:
            folder.mkdir(parents=True, mode=0o700)
            _lock(folder)
            sweep(folder.parent, now=folder.stat().st_mtime)
        except OSError as error:
            raise Misuse(f"{folder} cannot be made ({error.strerror}): name another place with --state") from error
    try:
        named = dataclasses.replace(request, supervisor_pid=os.getpid(), nonce=new_nonce(), state=str(state))
        dataclasses.replace(named, session=str(session), pages=str(pages)).save()
        (pages / SESSION).write_text(str(session))
    except OSError as error:
        raise Misuse(f"{session} cannot be written ({error.strerror}): name another place with --state") from error
    sys.stdout.flush()
    argv = program("windfall.agent.supervisor", str(session), str(pages), request.isolation)
    # What comes from here on waits until the supervisor can hear it.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.execve(argv[0], argv, our_environment(os.environ))


def _pages_folder(state: Path) -> Path:
    """Return the folder for pages: in shared memory if a folder of this very user can be had there, else in `state`.

    Its name can be guessed, so that somebody else (or this user number in another user namespace) may have made it.
    """
    folder = _SHARED_MEMORY / f"windfall-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and os.access(folder, os.W_OK):
            return folder
    return state / "pages"


def _lock(folder: Path) -> None:
    """Lock a session's folder for the life of this process, also as the supervisor that it becomes."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks: then nobody gets this one and nobody sweeps
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.set_inheritable(handle, True)


def state_folder() -> Path:
    """Return the folder for this machine's own files."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "windfall"


def absolute_url(url: str) -> str:
    """Return the URL of a run; a path becomes a file:// URL.

    Raises:
        Misuse: it is empty, or the scheme of a store is not followed by two slashes.
    """
    if not url.strip():
        check_url("")
    scheme, colon, rest = url.partition(":")
    if colon and scheme in _SCHEMES and not rest.startswith("//"):
        raise Misuse(f"{url} is no URL: write {scheme}://{'/' if scheme == 'file' else ''}{rest.lstrip('/')}")
    return url if re.match("[a-z0-9]+://", url) else folder_url(url)


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise Misuse("the current folder was removed: go to one that exists, the command runs in it") from error


def _checked_command(command: tuple[str, ...], url: str) -> tuple[str, ...]:
    if not command or shutil.which(command[0]) is not None:
        return command
    if "/" not in url and shutil.which(url) is not None:
        line = shlex.join((url, *command))
        raise Misuse(f"the run's URL is missing: `windfall exec URL -- {line}`, where URL may be a folder")
    name = command[0]
    if "/" in name and os.path.isdir(name):
        raise Misuse(f"{name} is a folder, not a command: give the program that shall run")
    if "/" in name and os.path.exists(name):
        raise Misuse(f"{name} may not be executed: `chmod +x {name}`, or name what runs it (python {name})")
    raise Misuse(f"{name}: no such command; give one that is on PATH, or its path from {os.getcwd()}")


def _more_than_zero(text: str, option: str) -> float:
    length_s = duration_s(text, option)
    if length_s <= 0:
        raise Misuse(f"{option}: {text!r} is no time at all; write more than 0, for example 3h")
    return length_s


def provider_of(name: str) -> str:
    """Return whose notices to watch: the named provider's, or with `auto` those of the one that owns this machine.

    Raises:
        Misuse: there is no such provider.
    """
    chosen = one_of(name, PROVIDERS, "--provider")
    return detect(os.environ) if chosen == "auto" else chosen


def _codes(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and 1 <= int(word) <= 255 for word in words):
        raise Misuse(f"--retry-codes: {text!r} is no list of exit codes; write for example 75,137")
    return tuple(int(word) for word in words)


def _lease(text: str) -> float:
    lease_s = duration_s(text, "--lease")
    if lease_s < 1:
        raise Misuse(f"--lease: {text!r} is too short; a second is the least, and a store needs time to answer")
    return lease_s


def one_of(value: str, allowed: tuple[str, ...], option: str) -> str:
    """Return the value of an option that knows only some.

    Raises:
        Misuse: another one; says which is nearest.
    """
    if value not in allowed:
        raise Misuse(f"{option}: {value!r} is not known; {nearest(value, allowed)}")
    return value


def _at_least(value: int | None, least: int, option: str) -> int | None:
    if value is not None and value < least:
        raise Misuse(f"{option}: {value} is too small; {least} is the least")
    return value
