"""The heartbeat, and beside it the shipping of journal and output and the reading of the run's inbox.

Messages in a run's inbox for the machine that holds the run.

They are untrusted: anyone who can write to the store can leave one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from windfall import codec
from windfall.errors import Fenced, StoreError
from windfall.events import EstimatesChanged, Fact, FenceLost, RunStopRequested
from windfall.ports import Clock, Progress, RunLease
from windfall.structs import Struct
from windfall.terms import Instant, Seconds

_NOTICE_S_MAX = 1e9
_REASON = "windfall stop"
_REASON_CHARACTERS_MAX = 200


def handle(
    message: Mapping[str, object], deliver: Callable[[Fact], None], inject: Callable[[float | None], None]
) -> bool:
    """Act on a message; return False if it is not valid.

    Args:
        message: as found in the inbox.
        deliver: takes facts.
        inject: called with the notice [s] (None: without one) when a user injects a preemption.
    """
    try:
        match message.get("type"):
            case "stop":
                deliver(_stop(message))
            case "inject":
                inject(_duration_s(message["notice_s"]))
            case "estimates":
                mttp_s, share = _duration_s(message.get("mttp_s")), _share(message.get("unannounced_share"))
                deliver(EstimatesChanged(mttp_s=mttp_s, unannounced_share=share))
            case _:
                return False
    except (ValueError, KeyError):
        return False
    return True


def _stop(message: Mapping[str, object]) -> RunStopRequested:
    now: bool = codec.decode(message["now"], bool)
    reason: str = codec.decode(message.get("reason", _REASON), str)
    shown = reason if reason.isprintable() and len(reason) <= _REASON_CHARACTERS_MAX else _REASON
    return RunStopRequested(now, shown)


def _duration_s(value: object) -> Seconds | None:
    length_s: Seconds | None = codec.decode(value, float | None)
    if length_s is not None and not 0.0 <= length_s <= _NOTICE_S_MAX:
        raise ValueError(f"{length_s} is not a valid duration")
    return length_s


def _share(value: object) -> float | None:
    share: float | None = codec.decode(value, float | None)
    if share is not None and not 0.0 <= share <= 1.0:
        raise ValueError(f"{share} is not a share between 0 and 1")
    return share


_BEATS_PER_LEASE = 4
_BEAT_S_MAX = 10.0
_NEAR_BEAT_S = 1.0
"""On a local disk a heartbeat is free, and only the progress since the last one is unknown after a crash [s]."""
_SHIP_FIRST_S = 0.5
_LATE = 1.3
_LATE_S = 0.2
"""A heartbeat is at most this factor and this time [s] later than the pause, unless the store is slow."""


class HeartbeatCallbacks(Struct, frozen=True):
    """Receivers of what the heartbeat and the shipping find, and the source of the progress.

    Attributes:
        deliver: takes facts.
        inject: called with the notice [s] (None: without one) when a user injects a preemption.
        log: takes messages for the user.
        progress: returns the current attempt, the step it started from and its last complete step.
    """

    deliver: Callable[[Fact], None]
    inject: Callable[[float | None], None]
    log: Callable[[str], None]
    progress: Callable[[], tuple[int, int, int]]


def start(lease: RunLease, clock: Clock, lease_s: float, callbacks: HeartbeatCallbacks, *, near: bool) -> None:
    """Start the heartbeat and the shipping, each in its own thread; both log a store failure once and retry.

    Args:
        lease: of the run.
        clock: for the pauses.
        lease_s: without a heartbeat for this long, another machine may take the run [s].
        callbacks: receivers of facts and messages.
        near: whether the store is a disk of this machine.
    """
    ship_s = min(lease_s / _BEATS_PER_LEASE, _BEAT_S_MAX)
    store = _StoreHealth(callbacks.log)
    beat_s = min(ship_s, _NEAR_BEAT_S) if near else ship_s

    def beat() -> None:
        before, max_gap_s = clock.now(), beat_s
        while True:
            try:
                lease.heartbeat(Progress(*callbacks.progress(), _LATE * max(beat_s, max_gap_s) + _LATE_S))
                store.succeeded("beat")
            except Fenced as error:
                callbacks.deliver(FenceLost(error.record, error.holder))
                return
            except StoreError as error:
                store.failed("beat", error)
            clock.sleep(Seconds(beat_s))
            before, max_gap_s = _since(clock, before)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    threading.Thread(
        target=_ship_loop, args=(lease, clock, ship_s, callbacks, store), name="shipping", daemon=True
    ).start()


def _ship_loop(
    lease: RunLease, clock: Clock, ship_s: float, callbacks: HeartbeatCallbacks, store: _StoreHealth
) -> None:
    started, warned = clock.now(), False
    while True:
        try:
            lease.ship()
            valid = [handle(message, callbacks.deliver, callbacks.inject) for message in lease.messages()]
            if not all(valid) and not warned:
                warned = True
                callbacks.log("ignored and removed an invalid message in the run's inbox")
        except Fenced:
            return
        except StoreError as error:
            store.failed("ship", error)
        else:
            store.succeeded("ship")
        # A new machine ships its rows at once; an old one in few objects.
        clock.sleep(Seconds(min(ship_s, _SHIP_FIRST_S + (clock.now() - started) / _BEATS_PER_LEASE)))


def _since(clock: Clock, before: Instant) -> tuple[Instant, float]:
    now = clock.now()
    return now, now - before


class _StoreHealth:
    """Logs once when the store starts to fail, and once when it has recovered."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._failing: set[str] = set()

    def succeeded(self, what: str) -> None:
        with self._lock:
            over = self._failing == {what}
            self._failing.discard(what)
        if over:
            self._log("the store answers again")

    def failed(self, what: str, error: StoreError) -> None:
        with self._lock:
            first = not self._failing
            self._failing.add(what)
        if first:
            self._log(f"the store is unavailable; the script continues, and the store is retried: {error}")
