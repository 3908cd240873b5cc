"""Typed store operations: each step yields one operation and returns its result with the right type.

A step function receives results as plain objects; only the steps here define the result type of each operation.

Executes storage step functions against a real store, with threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack

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
from windfall.terms import Instant, Seconds


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
