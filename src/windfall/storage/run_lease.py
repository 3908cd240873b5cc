"""The lease of a run (`ports.RunLease`) over a store, with the term's state on the local disk.

The head of the log is protected by a lock.  State that must survive a restart of the agent (number of the newest record,
what was shipped, chunks already uploaded) is kept in one small file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Callable

from windfall import codec
from windfall.errors import Fenced, StoreError, StoreFull, TransferCancelled, WindfallError
from windfall.events import CommitCheckpoint, UploadShard
from windfall.ports import Clock, ObjectStore, Progress, Restored, Steps, StoreOp, T
from windfall.results import StoreResult
from windfall.storage import (
    checkpoint_store,
    restore,
    run_log,
    shard_transfer,
    spool_journal,
    store_operations,
    success_record,
)
from windfall.storage.run_state import attempted, dropped, released
from windfall.storage.spool_journal import SpoolJournal
from windfall.storage.success_record import FinishedRun
from windfall.structs import Struct
from windfall.terms import (
    Bytes,
    Cause,
    Checkpoint,
    CheckpointRef,
    Chunk,
    Outcome,
    Record,
    RecordKind,
    Result,
    RunState,
    SaveCosts,
    SaveKind,
    Seconds,
    Shard,
    Step,
)
from windfall.wire.run_layout import INBOX, output_key, shard_prefix

SEGMENT_BYTES_MAX = 4 << 20
"""Maximum length of an output segment [B]; longer output is stored as several objects."""
_MESSAGES_AT_ONCE = 64
"""Maximum number of messages read per heartbeat, so that a full inbox cannot delay the heartbeat."""


class LocalSession(Struct, frozen=True):
    """The local side of a lease: clock, nonces, and the session's files.

    Attributes:
        new_nonce: returns a new random name at each call.
        folder: folder of the journal's spool.
        state_file: file for state that must survive a restart of the agent.
        output: file to which the supervisor appends the script's output.
        finished: folder of records of finished runs, shared by sessions (`storage.success_record`); empty for none.
    """

    clock: Clock
    new_nonce: Callable[[], str]
    folder: str
    state_file: str
    output: str
    finished: str = ""


class StoreLease:
    """`ports.RunLease`; created by `storage.acquire_run`, or by `reopen` after a restart of the agent."""

    def __init__(self, store: ObjectStore, head: Record, local: LocalSession, nonce: str) -> None:
        self._store = store
        self._clock = local.clock
        self._head = head
        self._local = local
        self.journal = SpoolJournal(local.folder, head.state.term)
        self._new_nonce = local.new_nonce
        self._log_lock = threading.Lock()
        self._ship_lock = threading.Lock()
        self._attempts = head.state.attempts
        self._failures = head.state.failures
        self._costs: SaveCosts | None = None
        self._nonce = nonce
        self._counter = 0
        self._chunks: dict[str, str] = {}
        self._identities: dict[str, str] = {}
        self._output_shipped = (0, 0)
        self._read_messages: list[str] = []

    def resume(self, chunks: dict[str, str], identities: dict[str, str], output_shipped: tuple[int, int]) -> None:
        """Take over the state of an earlier agent of this session."""
        self._chunks, self._identities, self._output_shipped = chunks, identities, output_shipped
        # A counter that restarts at 1 could repeat a value and look like an unchanged heartbeat.
        self._counter = int(self._clock.now() * 1000)

    def save(self) -> None:
        """Write the state file; from now on a restarted agent continues with this lease."""
        self._save()

    @property
    def state(self) -> RunState:
        """The newest state that this machine knows."""
        return self._head.state

    # ------------------------------------------------------------------------------------------------- checkpoints

    def restore(self, folder: str) -> Restored:
        """Restore the newest intact checkpoint to `<folder>/<rank>/<name>`; see `storage.restore`."""
        clear_folder(folder)
        return describe_restored(self._run(restore.restore(tuple(reversed(self.state.checkpoints)), folder)), folder)

    def identify(self, path: str) -> str:
        """Return a fingerprint that changes when a handed-over file or folder is rewritten; empty if it cannot be read."""
        return identify(path)

    def upload(self, command: UploadShard, cancelled: Callable[[], bool]) -> Shard | None:
        """Upload one rank's shard; chunks uploaded by an earlier agent of this term are not uploaded again."""
        plan = shard_transfer.plan_shard(command.path)
        shard_transfer.check_unmodified(
            plan,
            self._identities.setdefault(f"{command.checkpoint_id}/{command.rank}", command.identity or plan.identity),
        )
        self._save()
        prefix = shard_prefix(self.state.term, self._nonce, command.checkpoint_id, command.rank)
        steps = shard_transfer.upload_shard(
            plan, prefix, command.rank, already=self._chunks, on_chunk=self._remember_chunk
        )
        try:
            return self._run(until_cancelled(steps, cancelled), cancelled)
        except TransferCancelled:
            return None

    def _remember_chunk(self, chunk: Chunk) -> None:
        self._chunks[chunk.key] = chunk.digest
        self._save()

    def commit(self, command: CommitCheckpoint) -> tuple[CheckpointRef, int]:
        """Write the manifest and the record; ship the journal first, so that it explains every commit."""
        with contextlib.suppress(StoreError):
            self.ship()
        check_ownership(command.checkpoint_id, command.shards, self.state.term, self._nonce)
        checkpoint = Checkpoint(
            command.checkpoint_id,
            command.step,
            command.kind,
            self.state.term,
            command.generation,
            command.shards,
            self._clock.wall_time(),
        )
        with self._log_lock:
            ref, self._head = self._run(
                checkpoint_store.commit(
                    self._head,
                    checkpoint,
                    nonce=self._new_nonce(),
                    wall_time=self._clock.wall_time(),
                    attempts=self._attempts,
                    failures=self._failures,
                    costs=self._costs,
                )
            )
            self._chunks, self._identities = {}, {}
            self._save()
            return ref, self._head.number

    def store_result(self, command: StoreResult) -> tuple[Result, int, tuple[CheckpointRef, ...]]:
        """Write a result's manifest and record; return the result, the record's number, and what it replaces."""
        check_ownership(command.checkpoint_id, (command.shard,), self.state.term, self._nonce)
        checkpoint = Checkpoint(
            command.checkpoint_id,
            command.step,
            SaveKind.RESULT,
            self.state.term,
            command.generation,
            (command.shard,),
            self._clock.wall_time(),
        )
        with self._log_lock:
            steps = checkpoint_store.store_result(
                self._head, command.name, checkpoint, nonce=self._new_nonce(), wall_time=self._clock.wall_time()
            )
            result, self._head, replaced = self._run(steps)
            self._save()
            return result, self._head.number, replaced

    def drop_checkpoints(self, refs: tuple[CheckpointRef, ...]) -> None:
        """Append the record after which no restart uses these checkpoints."""
        with self._log_lock:
            self._head = self._run(
                checkpoint_store.drop(self._head, refs, nonce=self._new_nonce(), wall_time=self._clock.wall_time())
            )
            self._save()

    def delete(self, refs: tuple[CheckpointRef, ...]) -> None:
        """Delete the bytes of dropped checkpoints."""
        self._run(checkpoint_store.delete(self._head, refs, grace_s=Seconds(0.0)))

    def abandon(self, checkpoint_id: str) -> None:
        """Delete what was uploaded of a checkpoint that will not be committed."""
        prefix = shard_prefix(self.state.term, self._nonce, checkpoint_id, 0).removesuffix("0/")
        self._run(checkpoint_store.abandon(prefix, checkpoint_id))

    def sweep(self) -> None:
        """Delete objects left behind by earlier terms, after a pause of one lease."""
        self._run(checkpoint_store.sweep(self._head, grace_s=self.state.lease_s))

    # --------------------------------------------------------------------------------------------------------- the log

    def count(self, *, attempts: int, failures: int, costs: SaveCosts | None) -> None:
        """Set the counts of the next record."""
        self._attempts, self._failures, self._costs = attempts, failures, costs

    def write_counts(self) -> None:
        """Append a record if the counts changed, so that they survive if the machine vanishes."""
        with self._log_lock:
            self._head = self._run(
                run_log.append(
                    self._head,
                    lambda state: attempted(state, attempts=self._attempts, failures=self._failures),
                    kind=RecordKind.ATTEMPT,
                    nonce=self._new_nonce(),
                    wall_time=self._clock.wall_time(),
                )
            )
            self._save()

    def release(
        self,
        outcome: Outcome,
        cause: Cause,
        notice_s: Seconds | None = None,
        *,
        drop: tuple[CheckpointRef, ...] = (),
    ) -> tuple[CheckpointRef, ...]:
        """Append the record that releases the run; success is recorded on the local disk until the store knows it."""
        wall_time, done = self._clock.wall_time(), outcome is Outcome.DONE
        if done:
            ended = FinishedRun(self.state.run_id, self.state.term, self._attempts, self._failures)
            success_record.save(self._local.finished, self._store.url, ended)

        ids = self._run(checkpoint_store.droppable_ids(self._head, drop)) if drop else frozenset()

        def advance(state: RunState) -> RunState:
            return released(
                state if state.holder is None else dropped(state, ids),
                outcome=outcome,
                cause=cause,
                wall_time=wall_time,
                attempts=self._attempts,
                failures=self._failures,
                costs=self._costs,
                notice_s=notice_s,
            )

        with self._log_lock:
            self._head = self._run(
                run_log.append(
                    self._head, advance, kind=RecordKind.RELEASE, nonce=self._new_nonce(), wall_time=wall_time
                )
            )
        if done:
            success_record.delete(self._local.finished, self._store.url)
        return tuple(ref for ref in drop if ref.checkpoint_id in ids)

    def heartbeat(self, progress: Progress) -> None:
        """Write the heartbeat, then check whether another machine acquired the run."""
        self._counter += 1
        head = self._head
        self._run(
            run_log.write_heartbeat(
                head.state.term, self._counter, self._clock.wall_time(), head.number, self._nonce, progress=progress
            )
        )
        taken_by = self._run(run_log.find_takeover(head))
        if taken_by is not None:
            raise run_log.fenced_by(taken_by)

    # --------------------------------------------------------------------------------------------------------- the rest

    def ship(self) -> None:
        """Append new journal rows and output to the run, in numbered segments."""
        with self._ship_lock:
            try:
                self._run(spool_journal.ship(self.journal))
                self._ship_output()
            except OSError as error:
                # Errors of the store itself are `StoreError`s.
                raise StoreFull(f"the journal cannot be shipped from this machine's disk ({error.strerror})") from error

    def _ship_output(self) -> None:
        segment, position = self._output_shipped
        while os.path.exists(self._local.output):
            with open(self._local.output, "rb") as file:
                file.seek(position)
                data = file.read(SEGMENT_BYTES_MAX)
            if not data:
                return
            self._store.put(output_key(self.state.term, segment + 1), data)
            segment, position = segment + 1, position + len(data)
            self._output_shipped = (segment, position)
            self._save()

    def messages(self) -> list[dict[str, object]]:
        """Return new messages in the inbox for this holder.

        A message is deleted at the next call, when its effects are in the journal; if the agent dies before that, its
        successor reads it again.  A message to an earlier holder is deleted unread: it was meant for another machine.
        """
        for key in self._read_messages:
            self._store.delete(key)
        self._read_messages = self._store.list(INBOX)[:_MESSAGES_AT_ONCE]
        found = (_message(self._store.get(key)) for key in self._read_messages)
        return [
            message
            for message in found
            if message is not None and message.get("term", self.state.term) == self.state.term
        ]

    def _run(self, steps: Steps[T], cancelled: Callable[[], bool] | None = None) -> T:
        return store_operations.run(steps, self._store, self._clock, cancelled=cancelled)

    def _save(self) -> None:
        """Write the state file for a restarted agent; it need not survive the machine.

        A full disk does not end the run; a restarted agent then repeats some work.
        """
        data = {
            "head": self._head.number,
            "term": self._head.state.term,
            "nonce": self._nonce,
            "chunks": self._chunks,
            "identities": self._identities,
            "output_shipped": self._output_shipped,
        }
        draft = f"{self._local.state_file}.{threading.get_ident()}"
        with contextlib.suppress(OSError):
            with open(draft, "w") as file:
                json.dump(data, file)
            os.replace(draft, self._local.state_file)


def clear_folder(folder: str) -> None:
    """Remove the files of an agent that was killed between restore and start; no script has used them yet."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.dirname(folder), exist_ok=True)


def describe_restored(found: restore.RestoredCheckpoint, folder: str) -> Restored:
    """Return the result of a restore to a folder."""
    if found.checkpoint is None:
        return Restored(None, Step(0), Bytes(0), None, found.skipped)
    first = min(found.checkpoint.shards, key=lambda shard: shard.rank)
    restored_path = os.path.join(folder, str(first.rank), first.name)
    size = Bytes(found.checkpoint.size_bytes)
    return Restored(found.checkpoint.checkpoint_id, found.checkpoint.step, size, restored_path, found.skipped)


def identify(path: str) -> str:
    """Return a fingerprint that changes when a handed-over file or folder is rewritten; empty if it cannot be read."""
    try:
        return shard_transfer.plan_shard(path).identity
    except (OSError, WindfallError):
        return ""


def check_ownership(checkpoint_id: str, shards: tuple[Shard, ...], term: int, nonce: str) -> None:
    """Check that all shards were uploaded for this checkpoint under this lease.

    Shards also come from other machines, and one of an earlier generation may not know yet that it was replaced.

    Raises:
        StoreError: a shard was uploaded elsewhere.
    """
    for shard in shards:
        own = shard_prefix(term, nonce, checkpoint_id, shard.rank)
        others = [chunk.key for entry in shard.files for chunk in entry.chunks if not chunk.key.startswith(own)]
        if others:
            raise StoreError(f"the shard of rank {shard.rank} is at {others[0]}, not under {own}: it is not committed")


def reopen(store: ObjectStore, local: LocalSession) -> StoreLease | None:
    """Return the lease of an earlier agent of this session; None if it had none yet.

    The run may already be released; then only the shutdown remains.

    Raises:
        Fenced: another machine has acquired the run since.
    """
    if not os.path.exists(local.state_file):
        return None
    with open(local.state_file) as file:
        data = json.load(file)
    head = store_operations.run(run_log.read_head(data["head"]), store, local.clock)
    if head is None:
        raise Fenced("the run was deleted from the store")
    if head.state.term != data["term"]:
        raise run_log.fenced_by(head)
    lease = StoreLease(store, head, local, data["nonce"])
    segment, position = data["output_shipped"]
    lease.resume(data["chunks"], data["identities"], (segment, position))
    return lease


def _message(data: bytes | None) -> dict[str, object] | None:
    """Return a message of the inbox, None if it is gone; an invalid message is returned empty."""
    if data is None:
        return None
    try:
        message = codec.parse(data)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def until_cancelled(steps: Steps[T], cancelled: Callable[[], bool]) -> Steps[T | None]:
    """Run a step function until it ends or is cancelled; return None if it was cancelled."""
    try:
        operation: StoreOp = next(steps)
        while not cancelled():
            try:
                result = yield operation
            except Exception as error:
                operation = steps.throw(error)
            else:
                operation = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
    steps.close()
    return None
