"""A run, as seen by a member of a generation that is not its leader: it reads checkpoints and uploads its shards.

It writes only the bytes of shards, under the term and nonce of the leader; only the leader writes to the log.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from windfall.errors import Fenced, TransferCancelled
from windfall.events import UploadShard
from windfall.ports import Clock, ObjectStore, Restored
from windfall.storage import restore, run_lease, run_log, shard_transfer, store_operations
from windfall.storage.run_lease import SEGMENT_BYTES_MAX
from windfall.terms import Chunk, RunState, Shard
from windfall.wire.run_layout import output_key, shard_prefix


class MemberLease:
    """A member's access to the run of its leader; any call may raise a `StoreError`."""

    def __init__(self, store: ObjectStore, clock: Clock, generation: int, *, node: int, output: str) -> None:
        """Initialize; nothing is read yet.

        Args:
            store: the run's store.
            clock: this machine's clock.
            generation: the generation of this machine.
            node: this machine's number in it.
            output: file to which the supervisor appends the script's output.
        """
        self._store = store
        self._clock = clock
        self._generation = generation
        self._node = node
        self._output = output
        self._shipped = (0, 0)
        self._ship_lock = threading.Lock()
        self._state: RunState | None = None
        self._nonce = ""
        self._identities: dict[str, str] = {}
        self._chunks: dict[str, str] = {}

    @property
    def state(self) -> RunState:
        """The state read by `follow`."""
        assert self._state is not None, "a member follows its leader before it does anything"
        return self._state

    def follow(self, term: int, nonce: str) -> RunState:
        """Follow the leader's term in the log; return the run's state.

        Raises:
            Fenced: the run has another newest term, or it is not of this generation.
        """
        head = store_operations.run(run_log.read_head(term), self._store, self._clock)
        if head is None or (head.state.term, head.state.generation) != (term, self._generation):
            raise Fenced(
                f"generation {self._generation} does not hold the run: this machine leaves the generation",
                record=0 if head is None else head.number,
            )
        if (term, nonce) != (self._state.term if self._state else 0, self._nonce):
            self._identities, self._chunks = {}, {}
        self._state, self._nonce = head.state, nonce
        return head.state

    def restore(self, folder: str, checkpoint_id: str | None) -> Restored:
        """Restore the newest intact checkpoint, or the given one, to a folder; see `storage.restore`."""
        run_lease.clear_folder(folder)
        refs = [ref for ref in reversed(self.state.checkpoints) if checkpoint_id in (None, ref.checkpoint_id)]
        return run_lease.describe_restored(
            store_operations.run(restore.restore(refs, folder), self._store, self._clock), folder
        )

    def identify(self, path: str) -> str:
        """Return a fingerprint that changes when a handed-over file or folder is rewritten; empty if it cannot be read."""
        return run_lease.identify(path)

    def upload(self, command: UploadShard, cancelled: Callable[[], bool]) -> Shard | None:
        """Upload one rank's shard; return None if it was cancelled.

        Raises:
            ShardChanged: the script changed the files during the upload.
        """
        plan = shard_transfer.plan_shard(command.path)
        known = self._identities.setdefault(
            f"{command.checkpoint_id}/{command.rank}", command.identity or plan.identity
        )
        shard_transfer.check_unmodified(plan, known)
        prefix = shard_prefix(self.state.term, self._nonce, command.checkpoint_id, command.rank)
        steps = shard_transfer.upload_shard(plan, prefix, command.rank, already=self._chunks, on_chunk=self._remember)
        try:
            return store_operations.run(
                run_lease.until_cancelled(steps, cancelled), self._store, self._clock, cancelled=cancelled
            )
        except TransferCancelled:
            return None

    def forget(self) -> None:
        """Forget all earlier uploads, after a checkpoint was committed or abandoned."""
        self._identities, self._chunks = {}, {}

    def _remember(self, chunk: Chunk) -> None:
        self._chunks[chunk.key] = chunk.digest

    def ship(self) -> None:
        """Append the script's new output on this machine to the run, in numbered segments of its own."""
        with self._ship_lock:
            segment, position = self._shipped
            while self._state is not None and os.path.exists(self._output):
                with open(self._output, "rb") as file:
                    file.seek(position)
                    data = file.read(SEGMENT_BYTES_MAX)
                if not data:
                    return
                self._store.put(output_key(self._state.term, segment + 1, self._node), data)
                segment, position = segment + 1, position + len(data)
                self._shipped = (segment, position)
