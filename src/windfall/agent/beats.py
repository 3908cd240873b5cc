"""The heartbeat: shows that this machine lives and how far it is; beside it, journal and output leave, messages come in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from windfall.agent import inbox
from windfall.errors import Fenced, StoreError
from windfall.events import Fact, FenceLost
from windfall.ports import Clock, Progress, RunHold
from windfall.terms import Instant, Seconds

_BEATS_PER_LEASE = 4
_BEAT_S_MAX = 10.0
_NEAR_BEAT_S = 1.0
"""On a disk of this machine a heartbeat costs nothing: what a machine did since its last one is all that is not known."""
_SHIP_FIRST_S = 0.5
_LATE = 1.3
_LATE_S = 0.2
"""A heartbeat comes at most so much later than the pause says, unless the store is slow."""


@dataclass(frozen=True, slots=True)
class Doors:
    """Where a heartbeat's findings go.

    Attributes:
        deliver: takes facts.
        inject: called with the notice [s] (None: without one) when somebody asks for a preemption.
        tell: takes sentences for the user.
        progress: says which start of the script runs, from which step it began and which is complete.
    """

    deliver: Callable[[Fact], None]
    inject: Callable[[float | None], None]
    tell: Callable[[str], None]
    progress: Callable[[], tuple[int, int, int]]


def start(hold: RunHold, clock: Clock, lease_s: float, doors: Doors, *, near: bool) -> None:
    """Beat and ship for ever, each in a thread of its own; a store that does not answer is told once, and tried again.

    Args:
        hold: the run.
        clock: for the pauses.
        lease_s: how long this machine's heartbeat may stand still.
        doors: where facts, messages and sentences go.
        near: whether the store is a disk of this machine.
    """
    ship_s = min(lease_s / _BEATS_PER_LEASE, _BEAT_S_MAX)
    store = _Store(doors.tell)
    beat_s = min(ship_s, _NEAR_BEAT_S) if near else ship_s

    def beat() -> None:
        before, within_s = clock.now(), beat_s
        while True:
            try:
                hold.beat(Progress(*doors.progress(), _LATE * max(beat_s, within_s) + _LATE_S))
                store.answered("beat")
            except Fenced as error:
                doors.deliver(FenceLost(error.record, error.holder))
                return
            except StoreError as error:
                store.failed("beat", error)
            clock.sleep(Seconds(beat_s))
            before, within_s = _since(clock, before)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    threading.Thread(target=_ship, args=(hold, clock, ship_s, doors, store), name="shipping", daemon=True).start()


def _ship(hold: RunHold, clock: Clock, ship_s: float, doors: Doors, store: _Store) -> None:
    began, warned = clock.now(), False
    while True:
        try:
            hold.ship()
            heard = [inbox.understand(message, doors.deliver, doors.inject) for message in hold.messages()]
            if not all(heard) and not warned:
                warned = True
                doors.tell("the run's inbox has a message that cannot be understood: it is removed, the run goes on")
        except Fenced:
            return
        except StoreError as error:
            store.failed("ship", error)
        else:
            store.answered("ship")
        # A short life's rows leave at once; those of a long one in few pieces.
        clock.sleep(Seconds(min(ship_s, _SHIP_FIRST_S + (clock.now() - began) / _BEATS_PER_LEASE)))


def _since(clock: Clock, before: Instant) -> tuple[Instant, float]:
    now = clock.now()
    return now, now - before


class _Store:
    """What the user is told of a store that does not answer: once when it begins, once when all is well again."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._failing: set[str] = set()

    def answered(self, what: str) -> None:
        with self._lock:
            over = self._failing == {what}
            self._failing.discard(what)
        if over:
            self._tell("the store answers again")

    def failed(self, what: str, error: StoreError) -> None:
        with self._lock:
            first = not self._failing
            self._failing.add(what)
        if first:
            self._tell(f"the store cannot be used now, the script goes on: {error}")
