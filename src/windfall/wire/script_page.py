"""The shared-memory page between a training script and the agent on its machine.

One page per rank: a 4096-byte file that both sides map and access as 64-bit words.  Nothing here blocks, makes a system
call on the hot path, or detects that the other side is dead; either side may vanish at any time.  Strings (paths,
reports) do not fit into words: they are lines of the message file next to the page, and the page counts them.

The agent publishes a request by writing `KIND`, `EXACT` and `REQUEST` first and `TARGET` last; the script's hot path
reads only `TARGET`.  To change a request the agent first sets `TARGET` to `NEVER`.

Agreement of ranks: the script publishes `STEP` before it reads `TARGET`; the agent publishes a target beyond every
published step, waits `SETTLE_S`, and reads the steps again.  A rank whose step is still below the target is certain to
see it; if any rank's step is not, the agent withdraws the request and proposes a later step.  (x86 may delay a store past
a later load by its store buffer, which drains within microseconds: the wait is the fence.)

Uses only the standard library, and no other module of Windfall, because `import windfall` in a training script loads it.
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
"""Completed steps since the start of the run, including those before the restored checkpoint."""
STEP_END_NS = 5
"""Monotonic time at which the last step ended."""
STEP_START_NS = 6
"""Monotonic time of the last `enter_step`; greater than STEP_END_NS during a step; always 0 with `step()`."""
PHASE = 7
"""Index into PHASES of the phase outside steps."""
PHASE_SINCE_NS = 8
ACK = 9
"""The last request for which `check_save` returned True."""
ACK_STEP = 10
ACK_NS = 11
MESSAGES = 12
"""Number of lines in the message file."""
SIGTERM_NS = 13
"""Monotonic time when the script received SIGTERM; 0 if it did not."""
LOCAL_WORLD = 14
"""Number of ranks on this machine; the agent reads no page before all of them exist."""
SERVED = 15
"""The last request that this rank has answered with a hand-over, even without a shard."""

# Written by the agent.
TARGET = 64
"""Save once STEP reaches this value (exactly this value if EXACT); NEVER without a request."""
REQUEST = 65
EXACT = 66
KIND = 67
"""Index into KINDS."""
NOTICE = 68
"""Index into LEVELS."""
DEADLINE_NS = 69
"""Monotonic time of the announced preemption; 0 for none."""
AGENT_NS = 70
"""Monotonic time when the agent last read the page."""

PHASES = ("start", "step", "between", "save", "evaluation", "compile", "data")
KINDS = ("none", "periodic", "insurance", "emergency", "stop")
LEVELS = ("none", "hint", "announced", "withdrawn", "gone")


def page_name(rank: int) -> str:
    """Return the file name of a rank's page inside the attempt's session folder."""
    return f"rank-{rank}.page"


def messages_name(rank: int) -> str:
    """Return the file name of a rank's message file: one JSON object per line, appended only by the script."""
    return f"rank-{rank}.messages"


def create(path: str, *, pid: int, rank: int, step: int, local_world: int = 1) -> memoryview:
    """Create a page and map it; the words are int64.

    The file appears under its name only after the script's words are set, so a reader never sees an incomplete page.

    Raises:
        FileExistsError: another process already has this rank's page.
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
        ValueError: the file is not a page, or has another version.
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
        raise ValueError(f"{path} is a page of version {words[W_VERSION]}, this Windfall supports version {VERSION}")
    return words


def publish(words: memoryview, *, request: int, target: int, exact: bool, kind: int) -> None:
    """Publish a request to save (agent side); `target` is NEVER to withdraw."""
    words[TARGET] = NEVER
    words[KIND] = kind
    words[EXACT] = int(exact)
    words[REQUEST] = request
    words[TARGET] = target
