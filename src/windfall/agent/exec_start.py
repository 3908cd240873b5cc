"""Starts `windfall exec`: creates the session and becomes its supervisor.

Run as `python -m windfall.agent.exec_start FILE` by the node agent, with the request in a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import stat
import sys
from pathlib import Path
from typing import NoReturn

from windfall.agent.exec_request import ExecRequest, load, save
from windfall.agent.session_folder import LOCK, REQUEST, SESSION, SIGNALS, sweep
from windfall.errors import Misuse, WindfallError
from windfall.linux import processes
from windfall.linux.random_names import new_nonce
from windfall.structs import replace
from windfall.wire.python_programs import program, program_environment

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a memory file system: pages on a disk would be written back


def become_supervisor(request: ExecRequest) -> NoReturn:
    """Create the session's folders and replace this process with the supervisor; returns only by an error.

    Raises:
        Misuse: the folders cannot be created.
    """
    state = Path(request.state)
    name = f"{os.getpid()}-{processes.started_at(os.getpid())}"
    session, pages = state / "sessions" / name, _pages_folder(state) / name
    for folder in (session, pages):
        try:
            folder.mkdir(parents=True, mode=0o700)
            _lock(folder)
            sweep(folder.parent, now=folder.stat().st_mtime)
        except OSError as error:
            raise Misuse(f"cannot create {folder} ({error.strerror}): choose another folder with --state") from error
    try:
        begun = replace(request, session=str(session), pages=str(pages), nonce=new_nonce(), supervisor_pid=os.getpid())
        save(begun, begun.path(REQUEST))
        (pages / SESSION).write_text(str(session))
    except OSError as error:
        raise Misuse(f"cannot write to {session} ({error.strerror}): choose another folder with --state") from error
    sys.stdout.flush()
    argv = program("windfall.agent.supervisor", str(session), str(pages), request.isolation)
    # Signals from here on stay pending until the supervisor can receive them.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.execve(argv[0], argv, program_environment(os.environ))


def checked_command(command: tuple[str, ...], url: str) -> tuple[str, ...]:
    """Return a command that can be started in the current folder.

    Raises:
        Misuse: it cannot, or it has a word that cannot be stored with the run.
    """
    for word in command:
        if not word.isascii() and any("\ud800" <= character <= "\udfff" for character in word):
            raise Misuse(
                f"{os.fsencode(word)!r} in the command is not valid UTF-8: rename the file, or pass it otherwise"
            )
    if not command or shutil.which(command[0]) is not None:
        return command
    if "/" not in url and shutil.which(url) is not None:
        line = shlex.join((url, *command))
        raise Misuse(f"the URL of the run is missing: `windfall exec URL -- {line}`; URL can be a folder")
    name = command[0]
    if "/" in name and os.path.isdir(name):
        raise Misuse(f"{name} is a folder, not a command: give the program to run")
    if "/" in name and os.path.exists(name):
        raise Misuse(f"{name} is not executable: `chmod +x {name}`, or give its interpreter (python {name})")
    raise Misuse(f"{name}: no such command; give one on PATH, or a path relative to {os.getcwd()}")


def _pages_folder(state: Path) -> Path:
    """Return the folder for pages: in shared memory if this user can own a folder there, else in `state`.

    Its name can be guessed: another user (or this user id in another user namespace) may have created it.
    """
    folder = _SHARED_MEMORY / f"windfall-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and os.access(folder, os.W_OK):
            return folder
    return state / "pages"


def _lock(folder: Path) -> None:
    """Lock a session's folder for the lifetime of this process, also as the supervisor that it becomes."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks: then no process gets this one, and none sweeps
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.set_inheritable(handle, True)


def main() -> None:
    """Start the request in the file that the command line names; it ends with the node agent that started it."""
    # The node agent's end is the machine's, also where no namespace and no cgroup ends what is left.
    processes.die_with_parent(os.getppid())
    try:
        request = load(sys.argv[1])
        checked_command(request.argv, request.url)
        become_supervisor(request)
    except WindfallError as error:
        sys.stderr.write(f"windfall: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
