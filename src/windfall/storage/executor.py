"""Carries out storage step functions against a real store, with the standard library's threads."""

from __future__ import annotations

from collections.abc import Callable
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


def run(
    steps: Steps[T],
    store: ObjectStore,
    clock: Clock,
    *,
    parallel: int = 8,
    unwanted: Callable[[], bool] | None = None,
) -> T:
    """Drive a step function to its end and return what it returns.

    Errors of operations are thrown into the step function at the operation that failed; what it does not catch comes
    out here.  Operations given together run in up to `parallel` threads; if some fail, all are awaited and the first
    error (in the order given) is thrown.

    Args:
        steps: the step function, not yet begun.
        store: where to carry out the operations.
        clock: for pauses.
        parallel: threads for operations given together, from 1.
        unwanted: says when nobody wants the stretches of files any more that are on their way; `Abandoned` is thrown.
    """
    with ExitStack() as stack:
        pool: ThreadPoolExecutor | None = None
        try:
            operation = next(steps)
            while True:
                if pool is None and isinstance(operation, Together) and len(operation.ops) > 1:
                    pool = stack.enter_context(ThreadPoolExecutor(parallel, thread_name_prefix="windfall-store"))
                try:
                    result = _carry_out(operation, store, clock, pool, unwanted)
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
    unwanted: Callable[[], bool] | None,
) -> object:
    if not isinstance(operation, Together):
        return perform(operation, store, clock, unwanted)
    if pool is None:
        return [perform(op, store, clock, unwanted) for op in operation.ops]
    futures = [pool.submit(perform, op, store, clock, unwanted) for op in operation.ops]
    wait(futures)
    return [future.result() for future in futures]


def perform(
    operation: SimpleOp, store: ObjectStore, clock: Clock, unwanted: Callable[[], bool] | None = None
) -> object:
    """Carry out one operation and return its result as `ports` describes it."""
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
            result = store.put_range(key, path, offset, size_bytes, unwanted)
        case GetRange(key, path, offset, size_bytes):
            result = store.get_range(key, path, offset, size_bytes)
        case Pause(duration_s):
            result = _pause(clock, duration_s)
    return result


def _pause(clock: Clock, duration_s: Seconds) -> Instant:
    if duration_s > 0:
        clock.sleep(duration_s)
    return clock.now()
