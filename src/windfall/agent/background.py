"""The agent's background threads: uploads, the run's log, and the heartbeat.

Each thread for slow work has a queue, and delivers its results to the agent's inbox as facts.  Uploads have their own, so
that a commit, a deletion or a heartbeat never waits for one.  One other thread does everything that appends to the log,
in the order of the commands.

With each heartbeat go the journal and the output; the run's inbox is read beside it.  Its messages are untrusted: anyone
who can write to the store can leave one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from windfall import codec
from windfall.errors import EXIT_RETRY, Fenced, Misuse, ShardChanged, StoreError, StoreFull, WindfallError
from windfall.events import (
    CheckpointCommitted,
    CommitCheckpoint,
    CommitFailed,
    EstimatesChanged,
    Fact,
    FenceLost,
    RunStopRequested,
    ShardFailed,
    ShardUploaded,
    UploadShard,
)
from windfall.ports import Clock, Progress, RunLease
from windfall.results import ResultStored, StoreResult
from windfall.structs import Struct
from windfall.terms import Bytes, CheckpointRef, Failure, Instant, Seconds, Shard

Deliver = Callable[[Fact], None]


class TaskThread:
    """A thread that runs actions one after the other.  It dies with the process and is never joined."""

    def __init__(self, name: str) -> None:
        self._actions: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, action: Callable[[], object]) -> None:
        """Queue an action; it reports its own errors."""
        self._actions.put(action)

    def _work(self) -> None:
        while True:
            self._actions.get()()


class ShardUploader(Protocol):
    """The part of `ports.RunLease` that uploads need."""

    def upload(self, command: UploadShard, cancelled: Callable[[], bool]) -> Shard | None:
        """Move one rank's shard to the store; return None if the upload was cancelled."""
        ...


class UploadQueue:
    """Uploads shards one after the other; shards of abandoned checkpoints are dropped."""

    def __init__(self, lease: ShardUploader, clock: Clock, deliver: Deliver) -> None:
        self._lease = lease
        self._clock = clock
        self._deliver = deliver
        self._abandoned: set[str] = set()
        self._worker = TaskThread("upload")

    def start(self, command: UploadShard) -> None:
        """Upload a shard and deliver `ShardUploaded` or `ShardFailed`; nothing if it is abandoned meanwhile."""
        self._worker.submit(lambda: self._upload(command))

    def abandon(self, checkpoint_id: str) -> None:
        """Stop uploading a checkpoint's shards at the next chunk."""
        self._abandoned.add(checkpoint_id)

    def _upload(self, command: UploadShard) -> None:
        started = self._clock.now()
        try:
            shard = self._lease.upload(command, lambda: command.checkpoint_id in self._abandoned)
        except Exception as error:
            self._deliver(ShardFailed(command.checkpoint_id, command.rank, _reason(error), failure_of(error)))
            return
        if shard is None:
            return
        size = Bytes(sum(entry.size_bytes for entry in shard.files))
        took = Seconds(self._clock.now() - started)
        self._deliver(ShardUploaded(command.checkpoint_id, command.rank, shard, size, took))


def commit(lease: RunLease, clock: Clock, deliver: Deliver, command: CommitCheckpoint) -> None:
    """Commit a checkpoint and deliver the outcome."""
    started = clock.now()
    try:
        checkpoint, number = lease.commit(command)
    except Fenced as error:
        deliver(FenceLost(error.record, error.holder))
    except WindfallError as error:
        deliver(CommitFailed(command.checkpoint_id, _reason(error), failure_of(error)))
    else:
        deliver(CheckpointCommitted(checkpoint, number, Seconds(clock.now() - started)))


def store_result(lease: RunLease, clock: Clock, deliver: Deliver, command: StoreResult) -> tuple[CheckpointRef, ...]:
    """Store a result and deliver the outcome; return the checkpoints that it replaces."""
    started = clock.now()
    try:
        result, number, replaced = lease.store_result(command)
    except Fenced as error:
        deliver(FenceLost(error.record, error.holder))
    except WindfallError as error:
        deliver(CommitFailed(command.checkpoint_id, _reason(error), failure_of(error)))
    else:
        deliver(ResultStored(result, number, Seconds(clock.now() - started)))
        return replaced
    return ()


def best_effort(action: Callable[[], object], deliver: Deliver, log: Callable[[str], None], failure: str) -> bool:
    """Run an optional action; if the store refuses, log a warning and let the run continue.

    Args:
        action: what to do.
        deliver: takes the fact that the run was lost.
        log: takes a message for the user.
        failure: the start of that message, such as "cannot delete old checkpoints".

    Returns:
        Whether the action succeeded.
    """
    try:
        action()
    except Fenced as error:
        deliver(FenceLost(error.record, error.holder))
    except WindfallError as error:
        log(f"{failure}: {error}")
    else:
        return True
    return False


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, WindfallError) else f"{type(error).__name__}: {error}"


def failure_of(error: Exception) -> Failure:
    """Classify an error of the store or of the handed-over files by what it means for a retry."""
    if isinstance(error, StoreError) and error.exit_code == EXIT_RETRY:
        return Failure.UNREACHABLE
    kinds = ((ShardChanged, Failure.OVERWRITTEN), (Misuse, Failure.REFUSED), (StoreFull, Failure.FULL))
    return next((failure for kind, failure in kinds if isinstance(error, kind)), Failure.OTHER)


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
