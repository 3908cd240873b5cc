"""A run in the hand of this machine: `ports.RunHold` over a store, with the term's bookkeeping on the local disk.

The head of the log is touched by one lock's holder at a time.  What must survive a restart of the agent (the newest
record's number, the heartbeat's counter, what was shipped, chunks already uploaded) is kept in one small file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass

from windfall import codec
from windfall.errors import Abandoned, Fenced, StoreError, StoreFull, WindfallError
from windfall.events import CommitCheckpoint, UploadShard
from windfall.ports import Clock, ObjectStore, Progress, Restored, Steps, StoreOp, T
from windfall.results import StoreResult
from windfall.storage import executor, finished, journal, log, parts, points, restore
from windfall.storage.finished import Finished
from windfall.storage.journal import SpoolJournal
from windfall.storage.state import attempted, dropped, released
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
from windfall.wire.layout import INBOX, output_key, shard_prefix

SEGMENT_BYTES_MAX = 4 << 20
"""A longer stretch of output is stored as several objects."""

_MESSAGES_AT_ONCE = 64
"""How many messages are read at a heartbeat: whoever fills the inbox must not hold the heartbeat up."""


@dataclass(frozen=True, slots=True)
class Local:
    """This machine's side of a hold: clock, randomness, and the session's files.

    Attributes:
        new_nonce: gives a fresh random name at each call.
        folder: of the journal's spool.
        bookkeeping: file for what must survive a restart of the agent.
        output: file that the supervisor appends the script's output to.
        finished: folder of what is known of finished runs, over sessions (`storage.finished`); empty for none.
    """

    clock: Clock
    new_nonce: Callable[[], str]
    folder: str
    bookkeeping: str
    output: str
    finished: str = ""


class Hold:
    """`ports.RunHold`; made by `storage.taking`, or by `reopen` after a restart of the agent."""

    def __init__(self, store: ObjectStore, head: Record, local: Local, nonce: str) -> None:
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
        self._begun: dict[str, str] = {}
        self._output_shipped = (0, 0)
        self._heard: list[str] = []

    def remember(self, chunks: dict[str, str], begun: dict[str, str], output_shipped: tuple[int, int]) -> None:
        """Take over the bookkeeping of an earlier agent of this session."""
        self._chunks, self._begun, self._output_shipped = chunks, begun, output_shipped
        # A counter that starts again at 1 would look like a heartbeat that stands still.
        self._counter = int(self._clock.now() * 1000)

    def keep(self) -> None:
        """Write the bookkeeping: from now on an agent that is started again goes on with this hold."""
        self._save()

    @property
    def state(self) -> RunState:
        """The newest state that this machine knows."""
        return self._head.state

    # ------------------------------------------------------------------------------------------------- checkpoints

    def restore(self, folder: str) -> Restored:
        """Bring the newest whole point to `<folder>/<rank>/<name>`; see `storage.restore`."""
        make_way(folder)
        return restored(self._run(restore.restore(tuple(reversed(self.state.checkpoints)), folder)), folder)

    def identify(self, path: str) -> str:
        """Return what changes when a handed-over file or folder is written again; empty if it cannot be read."""
        return identify(path)

    def upload(self, command: UploadShard, cancelled: Callable[[], bool]) -> Shard | None:
        """Move one rank's part to the store; chunks that an earlier agent of this term moved are not moved again."""
        plan = parts.plan_part(command.path)
        parts.check_untouched(
            plan, self._begun.setdefault(f"{command.checkpoint_id}/{command.rank}", command.identity or plan.identity)
        )
        self._save()
        prefix = shard_prefix(self.state.term, self._nonce, command.checkpoint_id, command.rank)
        steps = parts.upload_part(plan, prefix, command.rank, already=self._chunks, on_chunk=self._remember_chunk)
        try:
            return self._run(unless(steps, cancelled), cancelled)
        except Abandoned:
            return None

    def _remember_chunk(self, chunk: Chunk) -> None:
        self._chunks[chunk.key] = chunk.digest
        self._save()

    def commit(self, command: CommitCheckpoint) -> tuple[CheckpointRef, int]:
        """Write manifest and record; the journal so far is shipped first, so that no commit is without its reasons."""
        with contextlib.suppress(StoreError):
            self.ship()
        check_own(command.checkpoint_id, command.shards, self.state.term, self._nonce)
        point = Checkpoint(
            command.checkpoint_id,
            command.step,
            command.kind,
            self.state.term,
            command.generation,
            command.shards,
            self._clock.wall(),
        )
        with self._log_lock:
            ref, self._head = self._run(
                points.commit(
                    self._head,
                    point,
                    nonce=self._new_nonce(),
                    wall=self._clock.wall(),
                    attempts=self._attempts,
                    failures=self._failures,
                    costs=self._costs,
                )
            )
            self._chunks, self._begun = {}, {}
            self._save()
            return ref, self._head.number

    def store_result(self, command: StoreResult) -> tuple[Result, int, tuple[CheckpointRef, ...]]:
        """Write a result's manifest and record; return it, the record's number, and what it replaces."""
        check_own(command.checkpoint_id, (command.shard,), self.state.term, self._nonce)
        point = Checkpoint(
            command.checkpoint_id,
            command.step,
            SaveKind.RESULT,
            self.state.term,
            command.generation,
            (command.shard,),
            self._clock.wall(),
        )
        with self._log_lock:
            steps = points.store_result(
                self._head, command.name, point, nonce=self._new_nonce(), wall=self._clock.wall()
            )
            result, self._head, replaced = self._run(steps)
            self._save()
            return result, self._head.number, replaced

    def give_up(self, refs: tuple[CheckpointRef, ...]) -> None:
        """Append the record after which no restart wants these points."""
        with self._log_lock:
            self._head = self._run(points.drop(self._head, refs, nonce=self._new_nonce(), wall=self._clock.wall()))
            self._save()

    def delete(self, refs: tuple[CheckpointRef, ...]) -> None:
        """Delete the bytes of points that were given up."""
        self._run(points.delete(self._head, refs, grace_s=Seconds(0.0)))

    def abandon(self, checkpoint_id: str) -> None:
        """Delete what was uploaded of a point that will not be committed."""
        prefix = shard_prefix(self.state.term, self._nonce, checkpoint_id, 0).removesuffix("0/")
        self._run(points.abandon(prefix, checkpoint_id))

    def sweep(self) -> None:
        """Delete what dead terms left behind, after a lease of grace."""
        self._run(points.sweep(self._head, grace_s=self.state.lease_s))

    # --------------------------------------------------------------------------------------------------------- the log

    def count(self, *, attempts: int, failures: int, costs: SaveCosts | None) -> None:
        """Remember what the next record shall say."""
        self._attempts, self._failures, self._costs = attempts, failures, costs

    def write_counts(self) -> None:
        """Append a record if the counts have changed, so that a machine that vanishes does not forget its failures."""
        with self._log_lock:
            self._head = self._run(
                log.append(
                    self._head,
                    lambda state: attempted(state, attempts=self._attempts, failures=self._failures),
                    kind=RecordKind.ATTEMPT,
                    nonce=self._new_nonce(),
                    wall=self._clock.wall(),
                )
            )
            self._save()

    def release(
        self,
        outcome: Outcome,
        cause: Cause,
        notice_s: Seconds | None = None,
        *,
        going: tuple[CheckpointRef, ...] = (),
    ) -> tuple[CheckpointRef, ...]:
        """Append the record that lets the run go; that a run is done is known on this disk until the store knows it."""
        wall, done = self._clock.wall(), outcome is Outcome.DONE
        if done:
            ended = Finished(self.state.run_id, self.state.term, self._attempts, self._failures)
            finished.remember(self._local.finished, self._store.url, ended)

        ids = self._run(points.droppable(self._head, going)) if going else frozenset()

        def advance(state: RunState) -> RunState:
            return released(
                state if state.holder is None else dropped(state, ids),
                outcome=outcome,
                cause=cause,
                wall=wall,
                attempts=self._attempts,
                failures=self._failures,
                costs=self._costs,
                notice_s=notice_s,
            )

        with self._log_lock:
            self._head = self._run(
                log.append(self._head, advance, kind=RecordKind.RELEASE, nonce=self._new_nonce(), wall=wall)
            )
        if done:
            finished.forget(self._local.finished, self._store.url)
        return tuple(ref for ref in going if ref.checkpoint_id in ids)

    def beat(self, progress: Progress) -> None:
        """Write the heartbeat, then look whether another machine took the run."""
        self._counter += 1
        head = self._head
        self._run(
            log.beat(head.state.term, self._counter, self._clock.wall(), head.number, self._nonce, progress=progress)
        )
        taken_by = self._run(log.still_mine(head))
        if taken_by is not None:
            raise log.fenced_by(taken_by)

    # --------------------------------------------------------------------------------------------------------- the rest

    def ship(self) -> None:
        """Append what journal and output have gained to the run, in numbered segments."""
        with self._ship_lock:
            try:
                self._run(journal.ship(self.journal))
                self._ship_output()
            except OSError as error:
                # The store's own refusals are `StoreError`s.
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
        """Return what others newly wrote into the inbox for this holder.

        A message is deleted at the next call, when what it led to is in the journal: an agent that dies in between
        leaves it to its heir.  One that was meant for an earlier holder is deleted unread: its sender wanted to stop, or
        to take away, another machine.
        """
        for key in self._heard:
            self._store.delete(key)
        self._heard = self._store.list(INBOX)[:_MESSAGES_AT_ONCE]
        found = (_message(self._store.get(key)) for key in self._heard)
        return [
            message
            for message in found
            if message is not None and message.get("term", self.state.term) == self.state.term
        ]

    def _run(self, steps: Steps[T], unwanted: Callable[[], bool] | None = None) -> T:
        return executor.run(steps, self._store, self._clock, unwanted=unwanted)

    def _save(self) -> None:
        """Keep the bookkeeping for an agent that is started again; it need not survive the machine.

        A disk that is full does not end a run: an agent that is started again then does more than it would have to.
        """
        data = {
            "head": self._head.number,
            "term": self._head.state.term,
            "nonce": self._nonce,
            "chunks": self._chunks,
            "begun": self._begun,
            "output_shipped": self._output_shipped,
        }
        draft = f"{self._local.bookkeeping}.{threading.get_ident()}"
        with contextlib.suppress(OSError):
            with open(draft, "w") as file:
                json.dump(data, file)
            os.replace(draft, self._local.bookkeeping)


def make_way(folder: str) -> None:
    """Remove what an agent that was killed between restore and start left: nobody has used it yet."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.dirname(folder), exist_ok=True)


def restored(found: restore.Restored, folder: str) -> Restored:
    """Say what a restore brought to a folder."""
    if found.point is None:
        return Restored(None, Step(0), Bytes(0), None, found.skipped)
    first = min(found.point.shards, key=lambda shard: shard.rank)
    checkpoint = os.path.join(folder, str(first.rank), first.name)
    size = Bytes(found.point.size_bytes)
    return Restored(found.point.checkpoint_id, found.point.step, size, checkpoint, found.skipped)


def identify(path: str) -> str:
    """Return what changes when a handed-over file or folder is written again; empty if it cannot be read."""
    try:
        return parts.plan_part(path).identity
    except (OSError, WindfallError):
        return ""


def check_own(checkpoint_id: str, shards: tuple[Shard, ...], term: int, nonce: str) -> None:
    """Refuse to commit a part that was not uploaded for this point under this very holding of the run.

    Parts come from other machines too, and one of an earlier generation may not know yet that it is replaced.

    Raises:
        StoreError: such a part.
    """
    for shard in shards:
        own = shard_prefix(term, nonce, checkpoint_id, shard.rank)
        foreign = [chunk.key for entry in shard.files for chunk in entry.chunks if not chunk.key.startswith(own)]
        if foreign:
            raise StoreError(f"rank {shard.rank}'s part lies at {foreign[0]}, not under {own}: it is not committed")


def reopen(store: ObjectStore, local: Local) -> Hold | None:
    """Return the hold that an earlier agent of this session had; None if it had none yet.

    The run may already be released: then only the last words are left to be said.

    Raises:
        Fenced: another machine took the run meanwhile.
    """
    if not os.path.exists(local.bookkeeping):
        return None
    with open(local.bookkeeping) as file:
        data = json.load(file)
    head = executor.run(log.read_head(data["head"]), store, local.clock)
    if head is None:
        raise Fenced("this machine's run is gone from the store")
    if head.state.term != data["term"]:
        raise log.fenced_by(head)
    hold = Hold(store, head, local, data["nonce"])
    segment, position = data["output_shipped"]
    hold.remember(data["chunks"], data["begun"], (segment, position))
    return hold


def _message(data: bytes | None) -> dict[str, object] | None:
    """Return a message of the inbox, None if it is gone; what is none of ours is a message that says nothing."""
    if data is None:
        return None
    try:
        message = codec.parse(data)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def unless(steps: Steps[T], cancelled: Callable[[], bool]) -> Steps[T | None]:
    """Carry on with a step function until somebody no longer wants it; None then."""
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
