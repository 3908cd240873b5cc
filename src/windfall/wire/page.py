"""The shared-memory page between a training script and the agent on its machine.

One page per rank: a 4096-byte file that both sides map, read and written as 64-bit words.  Nothing here blocks, makes a
system call on the hot path, or notices that the other side is dead; either side may vanish at any instant.  Strings
(paths, reports) do not fit in words: they are lines of the message file beside the page, and the page counts them.

The agent publishes a request by writing `KIND`, `EXACT` and `REQUEST` first and `TARGET` last; the script's hot path
reads `TARGET` alone.  To change a request the agent first sets `TARGET` to `NEVER`.

Agreement of ranks: the script publishes `STEP` before it reads `TARGET`; the agent publishes a target that lies beyond
every published step, waits `SETTLE_S`, and reads the steps again.  A rank whose step is still below the target is
certain to see it; if any rank's is not, the agent withdraws the request and proposes a later step.  (x86 may delay a
store past a later load by its store buffer, which drains within microseconds: the wait is the fence.)

Standard library only; imports nothing of ours, because `import windfall` in a training script ends here.
"""

from __future__ import annotations

import mmap
import os

SIZE_BYTES = 4096
MAGIC = 0x57494E4446414C4C
VERSION = 1
NEVER = 1 << 62
SETTLE_S = 0.001

# Written by the script.
W_MAGIC = 0
W_VERSION = 1
PID = 2
RANK = 3
STEP = 4
"""Complete steps since the run began (the restored point's step included)."""
STEP_END_NS = 5
"""Monotonic time at which the last step ended."""
STEP_BEGIN_NS = 6
"""Monotonic time of the last `enter_step`; larger than STEP_END_NS while inside a step.  Stays 0 with `step()`."""
PHASE = 7
"""Index into PHASES, of what is going on outside steps."""
PHASE_SINCE_NS = 8
ACK = 9
"""The last request to which `check_save` answered True."""
ACK_STEP = 10
ACK_NS = 11
MESSAGES = 12
"""How many lines the message file has."""
SIGTERM_NS = 13
"""Monotonic time at which the script's process received SIGTERM; 0 if it did not."""
LOCAL_WORLD = 14
"""How many ranks this machine has; the agent looks at none before all pages are there."""
SERVED = 15
"""The last request that this rank has handed over for, be it nothing."""

# Written by the agent.
TARGET = 64
"""Save once STEP has reached this (exactly this, if EXACT); NEVER without a request."""
REQUEST = 65
EXACT = 66
KIND = 67
"""Index into KINDS."""
NOTICE = 68
"""Index into LEVELS."""
DEADLINE_NS = 69
"""Monotonic time of the announced end; 0 if there is none."""
AGENT_NS = 70
"""Monotonic time of the agent's last look at the page."""

PHASES = ("start", "step", "between", "save", "evaluation", "compile", "data")
KINDS = ("none", "periodic", "insurance", "emergency", "stop")
LEVELS = ("none", "hint", "announced", "withdrawn", "gone")


def page_name(rank: int) -> str:
    """Return the file name of a rank's page inside the attempt's session folder."""
    return f"rank-{rank}.page"


def messages_name(rank: int) -> str:
    """Return the file name of a rank's message file: one JSON object a line, appended by the script only."""
    return f"rank-{rank}.messages"


def create(path: str, *, pid: int, rank: int, step: int, local_world: int = 1) -> memoryview:
    """Create a page and map it; the words are int64.

    The file appears under its name only when its script words are set, so that a reader never sees half a page.

    Raises:
        FileExistsError: another process already holds this rank's page.
        OSError: the folder is not writable.
    """
    draft = f"{path}.{pid}"
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(fd, 0, SIZE_BYTES)  # a hole would be SIGBUS, not an error, once the disk is full
        words = memoryview(mmap.mmap(fd, SIZE_BYTES)).cast("q")
        words[W_VERSION] = VERSION
        words[PID] = pid
        words[RANK] = rank
        words[STEP] = step
        words[LOCAL_WORLD] = local_world
        words[TARGET] = NEVER
        words[W_MAGIC] = MAGIC
        os.link(draft, path)
    finally:
        os.close(fd)
        os.unlink(draft)
    return words


def attach(path: str) -> memoryview:
    """Map an existing page; the words are int64.

    Raises:
        FileNotFoundError: there is no page of that name.
        ValueError: the file is not a page, or one of another version.
    """
    fd = os.open(path, os.O_RDWR)
    try:
        if os.fstat(fd).st_size != SIZE_BYTES:
            raise ValueError(f"{path} is not a Windfall page: it has {os.fstat(fd).st_size} bytes, not {SIZE_BYTES}")
        words = memoryview(mmap.mmap(fd, SIZE_BYTES)).cast("q")
    finally:
        os.close(fd)
    if words[W_MAGIC] != MAGIC:
        raise ValueError(f"{path} is not a Windfall page: its first word is wrong")
    if words[W_VERSION] != VERSION:
        raise ValueError(f"{path} is a page of version {words[W_VERSION]}; this Windfall speaks version {VERSION}")
    return words


def publish(words: memoryview, *, request: int, target: int, exact: bool, kind: int) -> None:
    """Publish a request to save (agent side); `target` is NEVER to withdraw."""
    words[TARGET] = NEVER
    words[KIND] = kind
    words[EXACT] = int(exact)
    words[REQUEST] = request
    words[TARGET] = target
