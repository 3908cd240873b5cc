"""Retries of store operations: one policy for all callers.

Failures that may be temporary (`StoreUnreachable`: connection refused, reset or closed, truncated reply, 5xx, timeout) are
retried with growing pauses until they succeed or the time budget is used up; the user is informed of the wait.  Permanent
failures (`StoreMissing`, `StoreDenied`, `StoreFull`) are raised at once.

The client below (obstore) retries only operations that it considers idempotent, and only briefly: not the conditional
creations on which the log depends, nor deletions, truncated replies, or outages of several seconds.

A creation whose reply was lost is retried like the rest and then finds its own object; as described in
`ports.ObjectStore`, callers detect this by a nonce in the content.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from windfall.errors import StoreMissing, StoreUnreachable, TransferCancelled
from windfall.ports import Clock, ObjectStore
from windfall.terms import PATIENCE_S, Bytes, Instant, Seconds

T = TypeVar("T")

SHORTENED_S = Seconds(3.0)
"""The remaining budget of all operations once the process must end quickly [s]."""
BACKOFF_FIRST_S, BACKOFF_S_MAX = 0.1, 2.0
"""The first pause between two attempts, doubled up to the maximum [s]."""
LOG_AFTER_S, LOG_EVERY_S = 2.0, 30.0
"""When the wait is logged first, and the interval between later messages [s]."""


class RetryPolicy:
    """Retry policy of one process for one store; thread-safe.

    Args:
        clock: for the pauses.
        budget_s: how long an operation is retried; 0 for no retries [s].
        log: receives messages for the user.
        managed: no user is present to rerun the command.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        budget_s: float = PATIENCE_S,
        log: Callable[[str], None] = lambda _: None,
        managed: bool = False,
    ) -> None:
        self._advice = "" if managed else ": run the same command again when the store answers"
        self._clock = clock
        self._budget_s = budget_s
        self._log = log
        self._lock = threading.Lock()
        self._logged_at = Instant(float("-inf"))
        self._deadline = Instant(float("inf"))

    def shorten(self) -> None:
        """Shorten the budget of all operations, because the process must end quickly."""
        self._deadline = Instant(self._clock.now() + SHORTENED_S)

    def call(self, action: Callable[[], T], cancelled: Callable[[], bool] | None = None) -> T:
        """Execute a store operation, with retries while the store does not answer.

        Raises:
            StoreUnreachable: the budget is used up.
            TransferCancelled: `cancelled` returned True.
        """
        first: Instant | None = None
        pause_s, logged = BACKOFF_FIRST_S, False
        while True:
            try:
                result = action()
            except StoreMissing:
                raise
            except StoreUnreachable as error:
                now = self._clock.now()
                first = now if first is None else first
                left_s = min(first + self._budget_s, self._deadline) - now
                if left_s <= 0:
                    raise self._exhausted(error, now - first) from error
                logged = self._log_wait(error, now - first, left_s, now) or logged
            else:
                if logged and first is not None:
                    self._log(f"the store answers again, after {self._clock.now() - first:.0f} s")
                return result
            self._wait(min(pause_s, left_s), cancelled)
            pause_s = min(2 * pause_s, BACKOFF_S_MAX)

    def _log_wait(self, error: StoreUnreachable, waited_s: float, left_s: float, now: Instant) -> bool:
        """Log the wait, unless another thread did so recently; return whether it was logged."""
        if waited_s < LOG_AFTER_S:
            return False
        with self._lock:
            if now - self._logged_at < LOG_EVERY_S:
                return False
            self._logged_at = now
        self._log(f"the store does not answer, retrying for up to {left_s:.0f} s: {error}")
        return True

    def _exhausted(self, error: StoreUnreachable, waited_s: float) -> StoreUnreachable:
        if not waited_s:
            return error
        return StoreUnreachable(f"{error} (waited {waited_s:.0f} s){self._advice}")

    def _wait(self, pause_s: float, cancelled: Callable[[], bool] | None) -> None:
        if cancelled is not None and cancelled():
            raise TransferCancelled("a transfer was cancelled and is not retried")
        self._clock.sleep(Seconds(pause_s))


class RetryingStore:
    """An `ObjectStore` that retries every operation."""

    def __init__(self, inner: ObjectStore, retry: RetryPolicy) -> None:
        self._inner = inner
        self._call = retry.call
        self.url = inner.url

    def create(self, key: str, data: bytes) -> bool:
        """Create; False may mean that an earlier attempt of this call created the object."""
        return self._call(lambda: self._inner.create(key, data))

    def put(self, key: str, data: bytes) -> None:
        """Write or replace."""
        self._call(lambda: self._inner.put(key, data))

    def get(self, key: str) -> bytes | None:
        """Return an object's content."""
        return self._call(lambda: self._inner.get(key))

    def size(self, key: str) -> Bytes | None:
        """Return an object's length [B]."""
        return self._call(lambda: self._inner.size(key))

    def delete(self, key: str) -> None:
        """Delete."""
        self._call(lambda: self._inner.delete(key))

    def list(self, prefix: str) -> list[str]:
        """Return the keys that start with `prefix`."""
        return self._call(lambda: self._inner.list(prefix))

    def put_range(
        self, key: str, path: str, offset: int, size_bytes: int, cancelled: Callable[[], bool] | None = None
    ) -> str:
        """Store a range of a local file; each attempt starts at the beginning of the range."""
        return self._call(lambda: self._inner.put_range(key, path, offset, size_bytes, cancelled), cancelled)

    def get_range(self, key: str, path: str, offset: int, size_bytes: int) -> str | None:
        """Write an object into a local file; each attempt overwrites the bytes of earlier ones."""
        return self._call(lambda: self._inner.get_range(key, path, offset, size_bytes))
