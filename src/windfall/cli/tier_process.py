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
from windfall.agent.exec_request import load
from windfall.errors import EXIT_FAILED, EXIT_RETRY, Misuse, WindfallError
from windfall.linux import processes
from windfall.wire.environment import PEERS_TOKEN
from windfall.wire.python_programs import program
from windfall.wire.ray_environment import ray_environment

RAY_MIN = (2, 50)
"""The oldest version of Ray with which this is tested."""
_PREFIX = "windfall-ray-"
_SIGNALLED = 128
"""Exit codes from here on: a process was killed."""


def main() -> int:
    """Run as the process that waits, or, with a descriptor and a folder, as the machine's program."""
    try:
        request = load(sys.argv[1])
        if len(sys.argv) > 2:
            _check_ray()
            machine = importlib.import_module("windfall.wiring_tiers")
            return int(machine.run_machine(request, int(sys.argv[2]), sys.argv[3]))
        secret = os.environ.pop(PEERS_TOKEN, "")
        if not secret:
            raise Misuse(f"{PEERS_TOKEN} is not set: only a controller can start a machine of a parameter server")
        os.environ.update(ray_environment(secret))
        _clean_up()
        # Ray's sockets are in it, and their paths must be short: the machine's own folder may have a long name.
        folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{processes.started_at(os.getpid())}-")
        try:
            argv = ("windfall.cli.tier_process", sys.argv[1])
            code = run_contained(lambda fd: program(*argv, str(fd), folder), request.cwd, request.isolation)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return EXIT_RETRY if code >= _SIGNALLED else code
    except WindfallError as error:
        sys.stderr.write(f"windfall: {error}\n")
        return error.exit_code
    except Exception as error:
        # The program's own: its type and words are what its author needs.
        sys.stderr.write(f"windfall: the program raised {type(error).__name__}: {error}\n")
        return EXIT_FAILED


def _check_ray() -> None:
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise Misuse(
            "runtime paramserver needs Ray, which this machine lacks: pip install 'windfall[paramserver]'"
        ) from None
    if tuple(int(part) for part in version.split(".")[:2]) < RAY_MIN:
        least = ".".join(map(str, RAY_MIN))
        raise Misuse(f"runtime paramserver needs Ray {least} or newer, and this machine has {version}")


def _clean_up() -> None:
    """Remove Ray's folders of processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*-*"):
        pid, started = path.name.removeprefix(_PREFIX).split("-")[:2]
        with contextlib.suppress(OSError, ValueError):
            if path.stat().st_uid == os.getuid() and str(processes.started_at(int(pid))) != started:
                shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
