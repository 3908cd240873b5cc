"""How long, and how often, a store that does not answer is asked again: one rule for everything that talks to a store.

What may pass by itself (`StoreUnreachable`: a connection refused, reset or cut, a reply that broke off, 5xx, silence) is
tried again with growing pauses until it is answered or the budget of time is used up; whoever waits is told what for.
What waiting does not mend (`StoreMissing`, `StoreDenied`, `StoreFull`) is said at once.

The client below (obstore) asks again only what it holds for idempotent, and only for a moment: not the conditional
creations on which the log rests, no deletions, no reply whose body broke off, no service that is away for seconds.

A creation whose reply was lost is tried again like the rest, and then finds its own object: as `ports.ObjectStore` says,
callers tell by a nonce in the content.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from windfall.errors import Abandoned, StoreMissing, StoreUnreachable
from windfall.ports import Clock, ObjectStore
from windfall.terms import Bytes, Instant, Seconds

T = TypeVar("T")

BUDGET_S = Seconds(120.0)
"""For how long after its first failure an operation is tried again [s]."""
HURRIED_S = Seconds(3.0)
"""What is left of every budget once somebody asked to end without delay [s]."""
FIRST_S, LONGEST_S = 0.1, 2.0
"""The first pause between two tries, which doubles up to the longest [s]."""
TOLD_AFTER_S, TOLD_AGAIN_S = 2.0, 30.0
"""Who waits is told after so long, and again after so much longer [s]."""


class Patience:
    """The patience of one process with one store; safe between threads.

    Args:
        clock: for the pauses.
        budget_s: how long an operation is tried again; 0 for not at all [s].
        tell: takes a sentence for whoever waits.
        alone: nobody is there who could start the same line again.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        budget_s: float = BUDGET_S,
        tell: Callable[[str], None] = lambda _: None,
        alone: bool = False,
    ) -> None:
        self._advice = "" if alone else ": start the same line again when it answers"
        self._clock = clock
        self._budget_s = budget_s
        self._tell = tell
        self._lock = threading.Lock()
        self._told_at = Instant(float("-inf"))
        self._last = Instant(float("inf"))

    def hurry(self) -> None:
        """Somebody asked to end without delay: from now on nothing waits long for a store."""
        self._last = Instant(self._clock.now() + HURRIED_S)

    def bear(self, action: Callable[[], T], unwanted: Callable[[], bool] | None = None) -> T:
        """Do something with the store, again and again while the store does not answer.

        Raises:
            StoreUnreachable: the budget is used up.
            Abandoned: `unwanted` said that nobody wants it any more.
        """
        first: Instant | None = None
        pause_s, told = FIRST_S, False
        while True:
            try:
                result = action()
            except StoreMissing:
                raise
            except StoreUnreachable as error:
                now = self._clock.now()
                first = now if first is None else first
                left_s = min(first + self._budget_s, self._last) - now
                if left_s <= 0:
                    raise self._given_up(error, now - first) from error
                told = self._say(error, now - first, left_s, now) or told
            else:
                if told and first is not None:
                    self._tell(f"the store answers again, after {self._clock.now() - first:.0f} s")
                return result
            self._wait(min(pause_s, left_s), unwanted)
            pause_s = min(2 * pause_s, LONGEST_S)

    def _say(self, error: StoreUnreachable, waited_s: float, left_s: float, now: Instant) -> bool:
        """Tell that the store is waited for, if nobody was told of late; several threads wait for one store."""
        if waited_s < TOLD_AFTER_S:
            return False
        with self._lock:
            if now - self._told_at < TOLD_AGAIN_S:
                return False
            self._told_at = now
        self._tell(f"waiting for the store, for another {left_s:.0f} s at most: {error}")
        return True

    def _given_up(self, error: StoreUnreachable, waited_s: float) -> StoreUnreachable:
        if not waited_s:
            return error
        return StoreUnreachable(f"{error} (waited {waited_s:.0f} s){self._advice}")

    def _wait(self, pause_s: float, unwanted: Callable[[], bool] | None) -> None:
        if unwanted is not None and unwanted():
            raise Abandoned("a transfer is not tried again: nobody wants it any more")
        self._clock.sleep(Seconds(pause_s))


class PatientStore:
    """An `ObjectStore` each of whose operations is borne with patience."""

    def __init__(self, inner: ObjectStore, patience: Patience) -> None:
        self._inner = inner
        self._bear = patience.bear
        self.url = inner.url

    def create(self, key: str, data: bytes) -> bool:
        """Create; False may mean that an earlier try of this very call did."""
        return self._bear(lambda: self._inner.create(key, data))

    def put(self, key: str, data: bytes) -> None:
        """Write or replace."""
        self._bear(lambda: self._inner.put(key, data))

    def get(self, key: str) -> bytes | None:
        """Return an object's content."""
        return self._bear(lambda: self._inner.get(key))

    def size(self, key: str) -> Bytes | None:
        """Return an object's length [B]."""
        return self._bear(lambda: self._inner.size(key))

    def delete(self, key: str) -> None:
        """Delete."""
        self._bear(lambda: self._inner.delete(key))

    def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`."""
        return self._bear(lambda: self._inner.list(prefix))

    def put_range(
        self, key: str, path: str, offset: int, size_bytes: int, unwanted: Callable[[], bool] | None = None
    ) -> str:
        """Store a stretch of a local file; a try begins at the stretch's beginning."""
        return self._bear(lambda: self._inner.put_range(key, path, offset, size_bytes, unwanted), unwanted)

    def get_range(self, key: str, path: str, offset: int, size_bytes: int) -> str | None:
        """Write an object into a local file; a try writes over what an earlier one left."""
        return self._bear(lambda: self._inner.get_range(key, path, offset, size_bytes))
