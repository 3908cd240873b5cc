"""Standing still after the last save before a machine's end: steps done then would only be done again elsewhere."""

from __future__ import annotations

from time import monotonic_ns, sleep

from windfall.wire import page

AGENT_SILENCE_NS = 2_000_000_000
"""An agent that has not looked at the page for so long is no reason to wait for it [ns]."""
OVERDUE_NS = 1_000_000_000
"""A machine that outlived its announced end by so much goes on working [ns]."""
POLL_S = 0.005

_EMERGENCY = page.KINDS.index("emergency")
_STOP = page.KINDS.index("stop")
_ANNOUNCED = page.LEVELS.index("announced")


def stand_still(words: memoryview) -> None:
    """Wait until the agent ends this process, as long as there is a reason to.

    Goes on when the end is called off, when the agent asks for another save, when it was silent for a while (dead or
    stalled), or when the machine outlived its deadline.  One of several ranks never waits (those of several machines do
    not come here): the others may need it to get on to where they are seen to have no part of the checkpoint.

    Args:
        words: the page of a rank that has just handed over the answer to the newest request.
    """
    request, kind = words[page.REQUEST], words[page.KIND]
    if words[page.LOCAL_WORLD] != 1:
        return
    while words[page.REQUEST] == request and monotonic_ns() - words[page.AGENT_NS] < AGENT_SILENCE_NS:
        announced = words[page.NOTICE] == _ANNOUNCED and monotonic_ns() < words[page.DEADLINE_NS] + OVERDUE_NS
        if kind != _STOP and not (kind == _EMERGENCY and announced):
            return
        sleep(POLL_S)
