"""A run as a machine sees it that takes part in a generation without leading it: it reads points and uploads its parts.

It writes nothing but the bytes of parts, under the term and the nonce of the machine that leads; the log is the leader's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from windfall.errors import Abandoned, Fenced
from windfall.events import UploadShard
from windfall.ports import Clock, ObjectStore, Restored
from windfall.storage import executor, hold, log, parts, restore
from windfall.storage.hold import SEGMENT_BYTES_MAX
from windfall.terms import Chunk, RunState, Shard
from windfall.wire.layout import output_key, shard_prefix


class MemberHold:
    """What a member may do with the run of its leader; any call may raise a `StoreError`."""

    def __init__(self, store: ObjectStore, clock: Clock, generation: int, *, node: int, output: str) -> None:
        """Prepare; nothing is read yet.

        Args:
            store: of the run.
            clock: of this machine.
            generation: which this machine belongs to.
            node: this machine's number in it.
            output: file that the supervisor appends the script's output to.
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
        self._begun: dict[str, str] = {}
        self._chunks: dict[str, str] = {}

    @property
    def state(self) -> RunState:
        """The state as `follow` found it."""
        assert self._state is not None, "a member follows its leader before it does anything"
        return self._state

    def follow(self, term: int, nonce: str) -> RunState:
        """Take up the leader's term, as the log has it; return the run's state.

        Raises:
            Fenced: the newest term of the run is another one, or not this generation's.
        """
        head = executor.run(log.read_head(term), self._store, self._clock)
        if head is None or (head.state.term, head.state.generation) != (term, self._generation):
            raise Fenced(
                f"generation {self._generation} does not have the run (any more): this machine leaves it",
                record=0 if head is None else head.number,
            )
        if (term, nonce) != (self._state.term if self._state else 0, self._nonce):
            self._begun, self._chunks = {}, {}
        self._state, self._nonce = head.state, nonce
        return head.state

    def restore(self, folder: str, checkpoint_id: str | None) -> Restored:
        """Bring the newest whole point to a folder, or the one that is named; see `storage.restore`."""
        hold.make_way(folder)
        refs = [ref for ref in reversed(self.state.checkpoints) if checkpoint_id in (None, ref.checkpoint_id)]
        return hold.restored(executor.run(restore.restore(refs, folder), self._store, self._clock), folder)

    def identify(self, path: str) -> str:
        """Return what changes when a handed-over file or folder is written again; empty if it cannot be read."""
        return hold.identify(path)

    def upload(self, command: UploadShard, cancelled: Callable[[], bool]) -> Shard | None:
        """Move one rank's part to the store; None if it was cancelled.

        Raises:
            Overwritten: the script changed the files meanwhile.
        """
        plan = parts.plan_part(command.path)
        known = self._begun.setdefault(f"{command.checkpoint_id}/{command.rank}", command.identity or plan.identity)
        parts.check_untouched(plan, known)
        prefix = shard_prefix(self.state.term, self._nonce, command.checkpoint_id, command.rank)
        steps = parts.upload_part(plan, prefix, command.rank, already=self._chunks, on_chunk=self._remember)
        try:
            return executor.run(hold.unless(steps, cancelled), self._store, self._clock, unwanted=cancelled)
        except Abandoned:
            return None

    def forget(self) -> None:
        """A point is committed or given up: what was uploaded before is nobody's business any more."""
        self._begun, self._chunks = {}, {}

    def _remember(self, chunk: Chunk) -> None:
        self._chunks[chunk.key] = chunk.digest

    def ship(self) -> None:
        """Append what the script has printed on this machine to the run, in numbered segments of its own."""
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
