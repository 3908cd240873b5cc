"""The heartbeat thread: shows that this machine lives, ships journal and output, reads the run's inbox."""

from __future__ import annotations

import threading
from collections.abc import Callable

from windfall.errors import Fenced, StoreError
from windfall.events import BeliefsChanged, Fact, FenceLost, StopAsked
from windfall.ports import Clock, RunHold
from windfall.terms import Seconds

_BEATS_PER_LEASE = 4
_BEAT_S_MAX = 10.0


def start(
    hold: RunHold,
    clock: Clock,
    lease_s: float,
    *,
    deliver: Callable[[Fact], None],
    inject: Callable[[float | None], None],
    tell: Callable[[str], None],
) -> None:
    """Beat for ever in a thread of its own; a store that does not answer is told once, and tried again.

    Args:
        hold: the run.
        clock: for the pauses.
        lease_s: how long this machine's heartbeat may stand still.
        deliver: takes facts.
        inject: called with the notice [s] (None: without one) when somebody asks for a preemption.
        tell: takes sentences for the user.
    """
    pause_s = Seconds(min(lease_s / _BEATS_PER_LEASE, _BEAT_S_MAX))

    def beat() -> None:
        silent = False
        while True:
            try:
                hold.beat()
                hold.ship()
                for message in hold.messages():
                    _understand(message, deliver, inject)
                if silent:
                    tell("the store answers again")
                silent = False
            except Fenced as error:
                deliver(FenceLost(error.record, error.holder))
                return
            except StoreError as error:
                if not silent:
                    tell(f"the store cannot be used now, the script goes on: {error}")
                silent = True
            clock.sleep(pause_s)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()


def _understand(
    message: dict[str, object], deliver: Callable[[Fact], None], inject: Callable[[float | None], None]
) -> None:
    if message["do"] == "stop":
        deliver(StopAsked(bool(message["now"]), str(message.get("reason", "windfall stop"))))
    elif message["do"] == "inject":
        notice_s = message["notice_s"]
        inject(None if notice_s is None else float(str(notice_s)))
    elif message["do"] == "believe":
        mttp_s, share = message.get("mttp_s"), message.get("unannounced_share")
        deliver(
            BeliefsChanged(
                mttp_s=None if mttp_s is None else Seconds(float(str(mttp_s))),
                unannounced_share=None if share is None else float(str(share)),
            )
        )
