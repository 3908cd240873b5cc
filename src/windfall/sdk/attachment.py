"""How a process of the script comes by its page, and how it writes to the message file beside it.

Standard library only, like all that `import windfall` can lead to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import monotonic_ns

from windfall.wire import environment, page
from windfall.wire.page import (
    LOCAL_WORLD,
    PHASE,
    PHASE_SINCE_NS,
    PID,
    SIGTERM_NS,
    STEP,
    STEP_BEGIN_NS,
    STEP_END_NS,
    TARGET,
)

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Where launchers say which rank a process is (torchrun, Open MPI, MPICH).  Not Slurm's: a script that `windfall exec`
started inside `srun` inherits the number of the task that is `windfall` itself."""
LOCAL_WORLD_VARIABLES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Where the same launchers say how many ranks this machine has."""


def rank_of(environ: Mapping[str, str]) -> int:
    """Return the rank that the launcher gave this process, 0 if there is none."""
    return _first_number(environ, RANK_VARIABLES, 0)


def private_page() -> memoryview:
    """Return a page of this process alone, on which there is never a request."""
    words = memoryview(bytearray(page.SIZE_BYTES)).cast("q")
    words[TARGET] = page.NEVER
    words[PHASE] = page.PHASES.index("between")
    return words


def claim(environ: Mapping[str, str], rank: int) -> memoryview | None:
    """Map the page of this rank; None if there is no session, if a living process has the page, or if it is unusable."""
    folder = environ.get(environment.SESSION)
    if not folder:
        return None
    pid, path = os.getpid(), os.path.join(folder, page.page_name(rank))
    local_world = _first_number(environ, LOCAL_WORLD_VARIABLES, 1)
    try:
        words = page.create(path, pid=pid, rank=rank, step=0, local_world=local_world)
    except FileExistsError:
        return _take_over(path, pid, local_world)
    except OSError:
        return None
    words[PHASE_SINCE_NS] = monotonic_ns()
    return words


def append(folder: str, rank: int, line: bytes) -> None:
    """Append one line to a rank's message file in a single write.

    Raises:
        OSError: the folder is gone or the disk is full; nothing of the line is left in the file.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    fd = os.open(os.path.join(folder, page.messages_name(rank)), flags, 0o600)
    try:
        size_bytes = os.fstat(fd).st_size
        if os.write(fd, line) != len(line):
            os.ftruncate(fd, size_bytes)
            raise OSError("the line was not written whole")
    finally:
        os.close(fd)


def _take_over(path: str, pid: int, local_world: int) -> memoryview | None:
    """Claim the page that a dead process of the same rank left; its messages and answers still count."""
    try:
        words = page.attach(path)
    except (OSError, ValueError):
        return None
    if words[PID] != pid and _is_alive(words[PID]):
        return None
    for word in (STEP, STEP_END_NS, STEP_BEGIN_NS, PHASE, SIGTERM_NS):
        words[word] = 0
    words[PHASE_SINCE_NS] = monotonic_ns()
    words[LOCAL_WORLD] = local_world
    words[PID] = pid
    return words


def _is_alive(pid: int) -> bool:
    """Say whether a process runs; one that is dead but not yet waited for does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _first_number(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), default)
