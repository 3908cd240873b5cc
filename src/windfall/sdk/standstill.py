"""The pause after the last save before a machine's end: further steps would only be computed again elsewhere."""

from __future__ import annotations

import os
from time import monotonic_ns, sleep

from windfall.wire import script_page

AGENT_SILENCE_NS = 2_000_000_000
"""Stop waiting for an agent that has not touched the page for this long [ns]."""
OVERDUE_NS = 1_000_000_000
"""A machine that outlives its announced end by this much resumes training [ns]."""
PATIENCE_NS = 200_000_000
PATIENCE_NS_MAX = 2_000_000_000
"""A rank waits for the other ranks' shards for as long as its own save took, within these bounds [ns]."""
POLL_S = 0.005

_EMERGENCY = script_page.KINDS.index("emergency")
_STOP = script_page.KINDS.index("stop")
_ANNOUNCED = script_page.LEVELS.index("announced")


def is_last(words: memoryview) -> bool:
    """Return whether the request on the page is for the last save of this machine."""
    return words[script_page.KIND] in (_EMERGENCY, _STOP)


def stand_still(words: memoryview, request: int) -> None:
    """Wait until the agent ends this process, or until there is no reason to wait.

    Returns when the notice is withdrawn, when the agent requests another save or withdraws this one, when the agent
    has been silent for 2 s (dead or stalled), or when the machine outlives its deadline.

    Args:
        words: the page of a rank that has served a request for the last save.
        request: number of that request.
    """
    while _has_reason(words, request):
        sleep(POLL_S)


def _has_reason(words: memoryview, request: int) -> bool:
    if words[script_page.REQUEST] != request or words[script_page.TARGET] == script_page.NEVER:
        return False
    now_ns, kind = monotonic_ns(), words[script_page.KIND]
    if now_ns - words[script_page.AGENT_NS] >= AGENT_SILENCE_NS:
        return False
    announced = words[script_page.NOTICE] == _ANNOUNCED and now_ns < words[script_page.DEADLINE_NS] + OVERDUE_NS
    return kind == _STOP or (kind == _EMERGENCY and announced)


def all_served(folder: str, words: memoryview, stall_ns: int) -> bool:
    """Wait for the other ranks of this machine; return whether all have handed over a shard for the same request.

    If not, one of them may have no shard, and the agent sees that only when this rank reaches its next step.

    Args:
        folder: of the pages.
        words: this rank's page.
        stall_ns: how long this rank's save took [ns].
    """
    request = words[script_page.SERVED]
    end_ns = monotonic_ns() + min(max(stall_ns, PATIENCE_NS), PATIENCE_NS_MAX)
    others = _pages(folder)
    while _has_reason(words, request) and monotonic_ns() < end_ns:
        if len(others) >= words[script_page.LOCAL_WORLD] and all(
            other[script_page.SERVED] == request for other in others
        ):
            return True
        sleep(POLL_S)
    return False


def _pages(folder: str) -> list[memoryview]:
    try:
        names = [name for name in os.listdir(folder) if name.startswith("rank-") and name.endswith(".page")]
        return [script_page.attach(os.path.join(folder, name)) for name in names]
    except (OSError, ValueError):
        return []
