"""How a process of the script claims its page, and how it writes to the message file next to it.

Standard library only, like everything that `import windfall` loads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import monotonic_ns

from windfall.wire import environment, script_page
from windfall.wire.script_page import (
    LOCAL_WORLD,
    PHASE,
    PHASE_SINCE_NS,
    PID,
    SIGTERM_NS,
    STEP,
    STEP_END_NS,
    STEP_START_NS,
    TARGET,
)

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Variables in which launchers pass the rank of a process (torchrun, Open MPI, MPICH).  Slurm's is not used: a script
that `windfall exec` starts inside `srun` inherits the task number of `windfall` itself."""
LOCAL_WORLD_VARIABLES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Variables in which the same launchers pass the number of ranks on this machine."""


def rank_of(environ: Mapping[str, str]) -> int:
    """Return the rank that the launcher gave this process; 0 without a launcher."""
    return _first_number(environ, RANK_VARIABLES, 0)


def private_page() -> memoryview:
    """Return a page that only this process sees and that never holds a request."""
    words = memoryview(bytearray(script_page.SIZE_BYTES)).cast("q")
    words[TARGET] = script_page.NEVER
    words[PHASE] = script_page.PHASES.index("between")
    return words


def claim(environ: Mapping[str, str], rank: int) -> memoryview | None:
    """Map the page of this rank; None without a session, if a live process has the page, or if it is unusable."""
    folder = environ.get(environment.SESSION)
    if not folder:
        return None
    pid, path = os.getpid(), os.path.join(folder, script_page.page_name(rank))
    local_world = _first_number(environ, LOCAL_WORLD_VARIABLES, 1)
    try:
        words = script_page.create(path, pid=pid, rank=rank, step=0, local_world=local_world)
    except FileExistsError:
        return _take_over(path, pid, local_world)
    except OSError:
        return None
    words[PHASE_SINCE_NS] = monotonic_ns()
    return words


def append(folder: str, rank: int, line: bytes) -> None:
    """Append one line to a rank's message file in a single write.

    Raises:
        OSError: the folder does not exist or the disk is full; no part of the line remains in the file.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    fd = os.open(os.path.join(folder, script_page.messages_name(rank)), flags, 0o600)
    try:
        size_bytes = os.fstat(fd).st_size
        if os.write(fd, line) != len(line):
            os.ftruncate(fd, size_bytes)
            raise OSError("the message was written only in part and has been removed")
    finally:
        os.close(fd)


def _take_over(path: str, pid: int, local_world: int) -> memoryview | None:
    """Claim the page that a dead process of the same rank left; its messages and acknowledgements still count."""
    try:
        words = script_page.attach(path)
    except (OSError, ValueError):
        return None
    if words[PID] != pid and _is_alive(words[PID]):
        return None
    for word in (STEP, STEP_END_NS, STEP_START_NS, PHASE, SIGTERM_NS):
        words[word] = 0
    words[PHASE_SINCE_NS] = monotonic_ns()
    words[LOCAL_WORLD] = local_world
    words[PID] = pid
    return words


def _is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _first_number(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), default)
