"""Store operations as typed steps, the loop that executes them against a real store, and their retries.

A step function receives results as plain objects; only the steps here define the result type of each operation.

There is one retry policy for all callers.  Failures that may be temporary (`StoreUnreachable`: connection refused, reset
or closed, truncated reply, 5xx, timeout) are retried with growing pauses until they succeed or the time budget is used up;
the user is informed of the wait.  Permanent failures (`StoreMissing`, `StoreDenied`, `StoreFull`) are raised at once.

The client below (obstore) retries only operations that it considers idempotent, and only briefly: not the conditional
creations on which the log depends, nor deletions, truncated replies, or outages of several seconds.

A creation whose reply was lost is retried like the rest and then finds its own object; as described in
`ports.ObjectStore`, callers detect this by a nonce in the content.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack

from windfall.errors import StoreMissing, StoreUnreachable, TransferCancelled
from windfall.ports import (
    Clock,
    Create,
    Delete,
    Get,
    GetRange,
    List,
    ObjectStore,
    Pause,
    Put,
    PutRange,
    SimpleOp,
    Steps,
    StoreOp,
    T,
    Together,
)
from windfall.terms import PATIENCE_S, Bytes, Instant, Seconds


def create(key: str, data: bytes) -> Steps[bool]:
    """Create an object; return False if the key exists."""
    made = yield Create(key, data)
    assert isinstance(made, bool)
    return made


def put(key: str, data: bytes) -> Steps[None]:
    """Write or replace an object."""
    yield Put(key, data)


def get(key: str) -> Steps[bytes | None]:
    """Return an object's content, None if it does not exist."""
    return _content((yield Get(key)))


def get_all(keys: Iterable[str]) -> Steps[list[bytes | None]]:
    """Return the contents of several objects, in the order of `keys`."""
    found = yield from together(tuple(Get(key) for key in keys))
    return [_content(data) for data in found]


def keys_under(prefix: str) -> Steps[list[str]]:
    """Return the keys that start with `prefix`."""
    found = yield List(prefix)
    assert isinstance(found, list)
    return found


def delete_all(keys: Iterable[str], *, at_once: int = 64) -> Steps[None]:
    """Delete objects, `at_once` of them in parallel."""
    waiting = tuple(Delete(key) for key in keys)
    for first in range(0, len(waiting), at_once):
        yield Together(waiting[first : first + at_once])


def pause(duration_s: float) -> Steps[Instant]:
    """Wait; return the instant after the wait (0 reads the clock)."""
    after = yield Pause(Seconds(duration_s))
    assert isinstance(after, float)
    return Instant(after)


def ranges(ops: tuple[PutRange, ...] | tuple[GetRange, ...]) -> Steps[list[str | None]]:
    """Transfer file ranges in parallel; return their digests, None for an object that does not exist."""
    found = yield from together(ops)
    digests: list[str | None] = []
    for digest in found:
        assert digest is None or isinstance(digest, str)
        digests.append(digest)
    return digests


def together(ops: tuple[SimpleOp, ...]) -> Steps[list[object]]:
    """Execute operations in parallel; return their results in the same order."""
    if not ops:
        return []
    found = yield Together(ops)
    assert isinstance(found, list)
    assert len(found) == len(ops), "an executor returns a result for each operation"
    return found


def _content(data: object) -> bytes | None:
    assert data is None or isinstance(data, bytes)
    return data


def run(
    steps: Steps[T],
    store: ObjectStore,
    clock: Clock,
    *,
    parallel: int = 8,
    cancelled: Callable[[], bool] | None = None,
) -> T:
    """Run a step function to its end and return its result.

    Errors of operations are raised in the step function at the failed operation; uncaught errors are raised here.
    Operations in a `Together` run in up to `parallel` threads; if some fail, all are awaited and the first error (in the
    order given) is raised.

    Args:
        steps: the step function, not started yet.
        store: executes the operations.
        clock: for pauses.
        parallel: number of threads for a `Together`, at least 1.
        cancelled: cancels running uploads of file ranges once it returns True; `TransferCancelled` is raised.
    """
    with ExitStack() as stack:
        pool: ThreadPoolExecutor | None = None
        try:
            operation = next(steps)
            while True:
                if pool is None and isinstance(operation, Together) and len(operation.ops) > 1:
                    pool = stack.enter_context(ThreadPoolExecutor(parallel, thread_name_prefix="windfall-store"))
                try:
                    result = _carry_out(operation, store, clock, pool, cancelled)
                except Exception as error:
                    operation = steps.throw(error)
                else:
                    operation = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            steps.close()


def _carry_out(
    operation: StoreOp,
    store: ObjectStore,
    clock: Clock,
    pool: ThreadPoolExecutor | None,
    cancelled: Callable[[], bool] | None,
) -> object:
    if not isinstance(operation, Together):
        return perform(operation, store, clock, cancelled)
    if pool is None:
        return [perform(op, store, clock, cancelled) for op in operation.ops]
    futures = [pool.submit(perform, op, store, clock, cancelled) for op in operation.ops]
    wait(futures)
    return [future.result() for future in futures]


def perform(
    operation: SimpleOp, store: ObjectStore, clock: Clock, cancelled: Callable[[], bool] | None = None
) -> object:
    """Execute one operation and return its result as described in `ports`."""
    result: object = None
    match operation:
        case Get(key):
            result = store.get(key)
        case Put(key, data):
            store.put(key, data)
        case Create(key, data):
            result = store.create(key, data)
        case Delete(key):
            store.delete(key)
        case List(prefix):
            result = store.list(prefix)
        case PutRange(key, path, offset, size_bytes):
            result = store.put_range(key, path, offset, size_bytes, cancelled)
        case GetRange(key, path, offset, size_bytes):
            result = store.get_range(key, path, offset, size_bytes)
        case Pause(duration_s):
            result = _pause(clock, duration_s)
    return result


def _pause(clock: Clock, duration_s: Seconds) -> Instant:
    if duration_s > 0:
        clock.sleep(duration_s)
    return clock.now()


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
