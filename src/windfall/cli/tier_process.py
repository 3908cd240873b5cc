"""What a machine of a parameter server runs: `python -m windfall.cli.tier_process REQUEST`, which the node agent starts.

This process only waits and passes signals on; the machine's node of Ray and its actor are below it, and end with it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
from pathlib import Path

from windfall.agent.contained_program import run_contained
from windfall.agent.exec_request import ExecRequest, load
from windfall.errors import EXIT_DONE, EXIT_FAILED, EXIT_MISUSE, EXIT_RETRY, EXIT_STOPPED, Misuse, WindfallError
from windfall.extras import install
from windfall.linux import processes
from windfall.linux.crashes import crash_text, keep_crash
from windfall.policies.policy_registry import PARAMSERVER
from windfall.wire.environment import PEERS_TOKEN
from windfall.wire.python_programs import program
from windfall.wire.ray_environment import given_environment, ray_environment

RAY_MIN = (2, 50)
"""The oldest version of Ray with which this is tested."""
FAILED = "failed"
"""Empty file in Ray's folder: the program failed, where other ends with its exit code are Ray's."""
LOADED = "loaded"
"""Empty file in Ray's folder: the program has been imported."""
CRASH = "own-crash.txt"
"""File in Ray's folder: how a signal such as SIGSEGV ended the process that is not an actor of Ray."""
_PREFIX = "wf-ray-"
_OWNER = "owner"
"""File in Ray's folder: number and start of the process whose folder it is."""
_PATH_MAX = 24
"""Length of a temporary folder's path that leaves room for the names of Ray's sockets, 107 characters in all."""


def main() -> int:
    """Run as the process that waits, or, with a descriptor and a folder, as the machine's program."""
    try:
        request = load(sys.argv[1])
        if len(sys.argv) > 2:
            return _run(request, int(sys.argv[2]), sys.argv[3])
        secret = os.environ.pop(PEERS_TOKEN, "")
        if not secret:
            raise Misuse(
                f"{PEERS_TOKEN} is not set: a controller starts a parameter server's machines; use windfall run JOB"
            )
        given = request.settings.get("ray")
        os.environ.update(given_environment(os.environ) if given else ray_environment(secret))
        _clean_up()
        folder = _new_folder()
        try:
            argv = ("windfall.cli.tier_process", sys.argv[1])
            code = run_contained(lambda fd: program(*argv, str(fd), folder), request.cwd, request.isolation)
            # Ray ends its process with a code of its own when the cluster is lost.
            own = code == EXIT_FAILED and os.path.exists(os.path.join(folder, FAILED))
            if own or code in (EXIT_DONE, EXIT_MISUSE, EXIT_STOPPED):
                return code
            loaded = os.path.exists(os.path.join(folder, LOADED))
            crash = crash_text(os.path.join(folder, CRASH))
            if loaded and not crash:
                return EXIT_RETRY
            # What ends the process itself, while it is imported or evaluated, would do so for ever.
            machine = importlib.import_module("windfall.wiring_tiers")
            machine.write_failure(request, crash or machine.unloaded_text(code))
            return EXIT_FAILED
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except WindfallError as error:
        sys.stderr.write(f"windfall: {error}\n")
        return error.exit_code


def _run(request: ExecRequest, signals_fd: int, folder: str) -> int:
    check_ray()
    machine = importlib.import_module("windfall.wiring_tiers")
    try:
        job = machine.load_program(request)
        Path(folder, LOADED).touch()
        # On the first machine the program is here too: it evaluates.
        keep_crash(os.path.join(folder, CRASH))
        return int(machine.run_machine(request, job, signals_fd, folder))
    except Misuse:
        raise
    except (Exception, SystemExit) as error:
        sys.stderr.write(f"windfall: {machine.failure_text(error)}\n")
        Path(folder, FAILED).touch()
        return EXIT_FAILED


def check_ray() -> None:
    """Check that Ray is here.

    Raises:
        Misuse: it is not, or is too old.
    """
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise Misuse(f"runtime paramserver needs Ray, which this machine lacks: {install(PARAMSERVER)}") from None
    if tuple(int(part) for part in version.split(".")[:2]) < RAY_MIN:
        least = ".".join(map(str, RAY_MIN))
        raise Misuse(f"runtime paramserver needs Ray {least} or newer, and this machine has {version}")


def _base() -> Path:
    base = Path(tempfile.gettempdir())
    return base if len(str(base)) <= _PATH_MAX else Path("/tmp")  # noqa: S108 - the folder made in it is this user's alone


def _new_folder() -> str:
    """Make Ray's folder; its path is short, since sockets are in it, and the machine's own folder may have a long name."""
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=_base())
    Path(folder, _OWNER).write_text(f"{os.getpid()} {processes.started_at(os.getpid())}")
    return folder


def _clean_up() -> None:
    """Remove Ray's folders of processes that were killed."""
    for folder in _base().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            pid, started = (folder / _OWNER).read_text().split()
            if folder.stat().st_uid == os.getuid() and str(processes.started_at(int(pid))) != started:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
