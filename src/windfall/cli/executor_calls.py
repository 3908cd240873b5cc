"""The client's side of a bag of calls: sends calls to the run's store, follows the bag's log, and completes futures.

One thread does all of it.  What it sends is batched: while one batch is written, the next one gathers.  It also writes the
heartbeat without which the dispatcher closes the bag.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

import cloudpickle

from windfall.bags import AddedItems, Bag, ItemEnd, ItemOutcome, ItemRecord, ItemState, Value
from windfall.core.item_table import ItemTable
from windfall.errors import Misuse, RunFailed, WindfallError
from windfall.ports import Clock, ObjectStore
from windfall.sdk import remote_call
from windfall.storage import store_operations
from windfall.terms import Instant
from windfall.units import size_text
from windfall.wire import bag_layout

PARAMETERS = ("function", "calls", "offset", "size_bytes")
"""Parameters of an item that is a call: the keys of function and arguments, and which part of the latter."""
INPUTS = ("function", "calls")
CALL_BYTES_MAX = 64 << 20
"""The most that a function, or the arguments of a call, may take [B]."""
_BATCH_BYTES, _BATCH_CALLS = 8 << 20, 5000
"""An object with arguments has no more than this, but for a single call."""
_PAUSE_S, _PAUSE_S_MAX, _TIMES = 0.05, 1.0, 5.0
"""Between two looks at the log: at least, at most, and as a multiple of how long a look takes."""
_JOB_S = 2.0
"""Between two looks at the job [s]."""
_BEAT_S = 5.0
"""The longest time between two heartbeats; four fit into the silence that closes the bag [s]."""
_OPEN = (ItemState.QUEUED, ItemState.LEASED)


class RemoteTraceback(Exception):
    """The cause of an exception that a call raised: its traceback on the machine."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class _Call:
    __slots__ = ("arguments", "function", "future", "number")

    def __init__(self, future: Future[Any], function: bytes, arguments: bytes) -> None:
        self.future, self.function, self.arguments = future, function, arguments
        self.number: int | None = None


class RemoteCalls:
    """The calls of an executor.

    Args:
        store: of the run.
        clock: time.
        bag: it grows by these calls.
        why_ended: returns why the job has ended; None if it has not.
    """

    def __init__(self, store: ObjectStore, clock: Clock, bag: Bag, why_ended: Callable[[], str | None]) -> None:
        self._store, self._clock, self._why_ended = store, clock, why_ended
        self._table = ItemTable(bag, ())
        self._lock, self._wake, self._ended = threading.Lock(), threading.Event(), threading.Event()
        self._new: list[_Call] = []
        self._open: dict[int, _Call] = {}
        self._cancelled: list[int] = []
        self._numbered = 0
        self._sent: set[str] = set()
        self._objects = self._batches = self._beats = 0
        self._sealing = self._stopping = self._sealed = False
        self._over: str | None = None
        self._beat_at = self._job_at = Instant(float("-inf"))
        self._thread = threading.Thread(target=self._run, name="windfall-executor", daemon=True)

    # -------------------------------------------------------------------------------------------------- for the executor

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Future[Any]:
        """Add a call; errors are those of `Executor.submit`."""
        name = getattr(function, "__qualname__", repr(function))
        pickled = remote_call.python_version() + b"\n" + _pickled(function, f"the function {name}")
        call = _Call(Future(), pickled, _pickled((args, dict(kwargs)), f"the arguments of {name}"))
        with self._lock:
            if self._sealing:
                raise RuntimeError("cannot submit a call after the executor was shut down")
            if self._over is not None:
                raise RunFailed(self._over)
            self._new.append(call)
        call.future.add_done_callback(lambda _: self._withdraw(call))
        self._wake.set()
        return call.future

    def _withdraw(self, call: _Call) -> None:
        """Ask for a cancelled call's item to be given up, if it has one."""
        if call.future.cancelled():
            with self._lock:
                if call.number is not None:
                    self._cancelled.append(call.number)
            self._wake.set()

    def cancel_waiting(self) -> None:
        """Cancel the calls that have not started."""
        for call in self._unfinished():
            call.future.cancel()

    def seal(self) -> None:
        """Take no more calls."""
        with self._lock:
            self._sealing = True
        self._wake.set()

    def stop(self) -> None:
        """Give up all calls, those that run too."""
        self.seal()
        self.cancel_waiting()
        with self._lock:
            self._stopping = True
        self._wake.set()

    def join(self, limit_s: float | None) -> None:
        """Wait until all calls have ended."""
        # Thread.join, interrupted by Ctrl-C, takes a running thread for one that has ended (CPython issue 90882).
        self._ended.wait(limit_s)

    def _unfinished(self) -> list[_Call]:
        with self._lock:
            return [*self._open.values(), *self._new]

    # -------------------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        reason = "the executor's thread has ended"
        try:
            while True:
                before = self._clock.now()
                if (over := self._turn()) is not None:
                    reason = over
                    break
                took_s = self._clock.now() - before
                self._wake.wait(min(max(_PAUSE_S, _TIMES * took_s), _PAUSE_S_MAX))
                self._wake.clear()
        except WindfallError as error:
            reason = str(error)
        except Exception as error:
            reason = f"unexpected error in the executor: {type(error).__name__}: {error}"
            raise
        finally:
            with self._lock:
                self._over = reason
            for call in self._unfinished():
                _complete(call.future, error=RunFailed(reason))
            self._ended.set()

    def _turn(self) -> str | None:
        """Do what is due; return why nothing more is, None if something may be."""
        self.beat()
        self._send()
        self._follow()
        if self._table.closed:
            return f"the bag of calls is over: {self._table.reason}"
        if self._clock.now() - self._job_at < _JOB_S:
            return None
        self._job_at = self._clock.now()
        if (ended := self._why_ended()) is not None:
            self._follow()
        return ended

    def beat(self) -> None:
        """Write the heartbeat, if it is due."""
        now = self._clock.now()
        if now - self._beat_at >= min(_BEAT_S, self._table.bag.client_silent_s / 4.0):
            self._beat_at = now
            self._beats += 1
            self._store.put(bag_layout.CLIENT, b'{"beat":%d}' % self._beats)

    def _send(self) -> None:
        with self._lock:
            new, self._new = [one for one in self._new if not one.future.cancelled()], []
            for number, call in enumerate(new, self._numbered):
                call.number = number
                self._open[number] = call
            self._numbered += len(new)
            cancelled, self._cancelled = self._cancelled, []
            seals = self._sealing and not self._sealed
            if self._stopping:
                cancelled, self._stopping = list(self._open), False
        for batch in _batches(new):
            self._ask(AddedItems(self._stored(batch)))
            self.beat()
        if cancelled or seals:
            self._ask(AddedItems((), tuple(cancelled), seals))
            self._sealed = self._sealed or seals

    def _stored(self, batch: Sequence[_Call]) -> tuple[tuple[Value, ...], ...]:
        """Store functions and arguments of calls; return their rows."""
        self._batches += 1
        calls_key = bag_layout.calls_key(self._batches)
        rows: list[tuple[Value, ...]] = []
        offset = 0
        for call in batch:
            key = bag_layout.function_key(hashlib.blake2b(call.function, digest_size=16).hexdigest())
            if key not in self._sent:
                self._store.put(key, call.function)
                self._sent.add(key)
            rows.append((key, calls_key, offset, len(call.arguments)))
            offset += len(call.arguments)
        self._store.put(calls_key, b"".join(call.arguments for call in batch))
        for call in batch:
            call.function = call.arguments = b""
        return tuple(rows)

    def _ask(self, asked: AddedItems) -> None:
        self._objects += 1
        key, data = bag_layout.added_items_key(self._objects), bag_layout.added_to_bytes(asked)
        # If it is there, a call whose answer was lost has created it.
        if not self._store.create(key, data) and self._store.get(key) != data:
            raise RunFailed(f"{key} is there already: another process adds calls to this bag")

    # ------------------------------------------------------------------------------------------------------------ the log

    def _follow(self) -> None:
        """Read the log's new records, and complete the futures whose calls have ended."""
        outcomes: list[ItemOutcome] = []
        while (data := self._store.get(bag_layout.item_record_key(self._table.number + 1))) is not None:
            record = bag_layout.record_from_bytes(data)
            self._table.apply(record)
            self._note(record)
            outcomes += [one for _, one in record.outcomes if self._table.state(one.lease.item) not in _OPEN]
        keys = [one.files[0].key for one in outcomes if one.files]
        results = dict(zip(keys, self._read(keys), strict=True))
        for outcome in outcomes:
            call = self._open.get(outcome.lease.item)
            if call is not None:
                _finish(call.future, outcome, results.get(outcome.files[0].key) if outcome.files else None)
        self._forget(outcome.lease.item for outcome in outcomes)

    def _note(self, record: ItemRecord) -> None:
        for leased in record.leased:
            for item in leased.items:
                call = self._open.get(item)
                if call is not None and not call.future.running() and not call.future.done():
                    call.future.set_running_or_notify_cancel()
        ended = [one.lease.item for one in record.ended if one.end is ItemEnd.DISCARDED]
        for item in (*record.cancelled, *ended):
            if (call := self._open.get(item)) is not None:
                _complete(call.future, error=CancelledError("the call was given up"))
        self._forget((*record.cancelled, *ended))

    def _forget(self, items: Iterable[int]) -> None:
        with self._lock:
            for item in items:
                self._open.pop(item, None)

    def _read(self, keys: Sequence[str]) -> list[bytes | None]:
        try:
            return store_operations.run(store_operations.get_all(keys), self._store, self._clock)
        except RuntimeError:
            # A process that ends starts no more threads.
            return [self._store.get(key) for key in keys]


def _batches(calls: Sequence[_Call]) -> Iterable[list[_Call]]:
    batch: list[_Call] = []
    size_bytes = 0
    for call in calls:
        if batch and (len(batch) >= _BATCH_CALLS or size_bytes + len(call.arguments) > _BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(call)
        size_bytes += len(call.arguments)
    if batch:
        yield batch


def _pickled(value: object, what: str) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise Misuse(
            f"{what} cannot be pickled ({error}): pass plain data, and open files and connections in it"
        ) from error
    if len(data) > CALL_BYTES_MAX:
        raise Misuse(
            f"pickled, {what} would be {size_text(len(data))}, more than {size_text(CALL_BYTES_MAX)}: store the data, and pass "
            "its path or URL"
        )
    return data


def _finish(future: Future[Any], outcome: ItemOutcome, data: bytes | None) -> None:
    """Complete a future by how its call ended."""
    if data is None:
        lost = TimeoutError if outcome.end is ItemEnd.TIMED_OUT else RunFailed
        _complete(future, error=lost(outcome.problem or "the result of the call is not in the store"))
        return
    try:
        kind, *content = pickle.loads(data)  # noqa: S301 - what the user's own call returned
    except Exception as error:
        _complete(
            future, error=RunFailed(f"the result of the call cannot be read here: {type(error).__name__}: {error}")
        )
        return
    if kind == remote_call.VALUE:
        _complete(future, content[0])
    elif kind == remote_call.REFUSED:
        _complete(future, error=RunFailed(content[0]))
    else:
        raised: BaseException = content[0] if kind == remote_call.ERROR else RunFailed(content[0])
        raised.__cause__ = RemoteTraceback(content[1])
        _complete(future, error=raised)


def _complete(future: Future[Any], value: object = None, *, error: BaseException | None = None) -> None:
    # One that its user has cancelled stays so.
    if future.done() or (not future.running() and not future.set_running_or_notify_cancel()):
        return
    with contextlib.suppress(Exception):
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
