"""Standing still after the last save before a machine's end: steps done then would only be done again elsewhere."""

from __future__ import annotations

import os
from time import monotonic_ns, sleep

from windfall.wire import page

AGENT_SILENCE_NS = 2_000_000_000
"""An agent that has not looked at the page for so long is no reason to wait for it [ns]."""
OVERDUE_NS = 1_000_000_000
"""A machine that outlived its announced end by so much goes on working [ns]."""
PATIENCE_NS = 200_000_000
PATIENCE_NS_MAX = 2_000_000_000
"""A rank waits for the others to hand over as long as its own save took, from the first to the second [ns]."""
POLL_S = 0.005

_EMERGENCY = page.KINDS.index("emergency")
_STOP = page.KINDS.index("stop")
_ANNOUNCED = page.LEVELS.index("announced")


def is_last(words: memoryview) -> bool:
    """Say whether the request on the page is for the last save of this machine."""
    return words[page.KIND] in (_EMERGENCY, _STOP)


def stand_still(words: memoryview, request: int) -> None:
    """Wait until the agent ends this process, as long as there is a reason to.

    Goes on when the end is called off, when the agent asks for another save or takes this one back, when it was silent
    for a while (dead or stalled), or when the machine outlived its deadline.

    Args:
        words: the page of a rank that has done with a request for the last save.
        request: which one.
    """
    while _has_reason(words, request):
        sleep(POLL_S)


def _has_reason(words: memoryview, request: int) -> bool:
    if words[page.REQUEST] != request or words[page.TARGET] == page.NEVER:
        return False
    now_ns, kind = monotonic_ns(), words[page.KIND]
    if now_ns - words[page.AGENT_NS] >= AGENT_SILENCE_NS:
        return False
    announced = words[page.NOTICE] == _ANNOUNCED and now_ns < words[page.DEADLINE_NS] + OVERDUE_NS
    return kind == _STOP or (kind == _EMERGENCY and announced)


def all_served(folder: str, words: memoryview, stall_ns: int) -> bool:
    """Wait for the other ranks of this machine; return whether all have handed over for the same request.

    Otherwise one of them may have no part, and need this rank to get on to where that is seen.

    Args:
        folder: of the pages.
        words: this rank's.
        stall_ns: how long its own save took.
    """
    request = words[page.SERVED]
    end_ns = monotonic_ns() + min(max(stall_ns, PATIENCE_NS), PATIENCE_NS_MAX)
    others = _pages(folder)
    while _has_reason(words, request) and monotonic_ns() < end_ns:
        if len(others) >= words[page.LOCAL_WORLD] and all(other[page.SERVED] == request for other in others):
            return True
        sleep(POLL_S)
    return False


def _pages(folder: str) -> list[memoryview]:
    try:
        names = [name for name in os.listdir(folder) if name.startswith("rank-") and name.endswith(".page")]
        return [page.attach(os.path.join(folder, name)) for name in names]
    except (OSError, ValueError):
        return []
