"""What must hold at each event of the whole storm, judged from the bytes in the store and not from what anybody says."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.storms import whole_scene
from tests.support.checks import demand
from tests.support.silence import Looks
from tests.support.simulated_store import CrashingStore, ManualClock, digest
from windfall.core.replay import replay
from windfall.errors import CheckpointDamaged
from windfall.ports import Create, Delete, Get, Put, PutRange, SimpleOp
from windfall.storage import manifest, restore, run_state
from windfall.storage.file_store import FileStore
from windfall.storage.spool_journal import MergedJournal, read_journal
from windfall.terms import Checkpoint, CheckpointRef, Outcome, Record, RecordKind
from windfall.wire.run_layout import LOG, heartbeat_key, record_key

if TYPE_CHECKING:
    from tests.storms.whole import Process, Whole
    from tests.storms.whole_machine import Machine

ROOT = "/disk/run"
"""Where the run lies on the store's disk."""


def files_below(folder: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every file below a folder."""
    for above, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(above, name), "rb") as file:
                yield name, file.read()


class RunChecks:
    """The checkers of one run."""

    def __init__(self, world: Whole) -> None:
        self.world = world
        self.records: list[Record] = []
        self.sure = 0
        self.writers: dict[int, Machine] = {}
        self.committed_step: dict[int, int] = {}
        self.damaged: set[str] = set()
        self.manifests: dict[str, Checkpoint] = {}
        self.looks = Looks()
        self.rng = random.Random(f"decay {world.scene.seed}")

    @property
    def done(self) -> bool:
        return bool(self.records) and self.records[-1].state.outcome is Outcome.DONE

    @property
    def live(self) -> tuple[CheckpointRef, ...]:
        return self.records[-1].state.checkpoints if self.records else ()

    def peek(self, key: str) -> bytes | None:
        """Return what is stored, past all faults."""
        disk = self.world.disk
        return self.world.store.get(key) if disk is None else disk.peek(f"{ROOT}/{key}")

    # ------------------------------------------------------------------------------------------------------ the events

    def observe(self, process: Process, op: SimpleOp, result: object) -> None:
        """An operation reached the store, as a whole or (if its process died amid it) in part."""
        if isinstance(op, Get):
            # A question that the store did not answer (its client asks again) is no look: it saw no change.
            if op.key.startswith("heartbeats/") and not isinstance(result, Exception):
                self.looks.look(process, op.key, self.world.time, result)
            return
        if not isinstance(op, Create | Delete | Put | PutRange):
            return
        if op.key.startswith(LOG):
            self.scan(process.machine)
            if isinstance(result, bool):
                self.sure = len(self.records)
        elif op.key.startswith(("shards/", "checkpoints/")):
            for ref in self.live:
                if ref.checkpoint_id in op.key:
                    self.check_whole(ref)

    def scan(self, writer: Machine | None) -> None:
        """Look for records that are new."""
        while (data := self.peek(record_key(len(self.records) + 1))) is not None:
            assert writer is not None
            self.recorded(writer, run_state.from_bytes(data, record_key(len(self.records) + 1)))

    def after_cut(self) -> bool:
        """The store's host was away: what was acknowledged is there.  Return whether all that was seen is."""
        all_there = len(self.records) == self.sure
        while self.records and self.peek(record_key(len(self.records))) is None:
            demand(len(self.records) > self.sure, f"record {len(self.records)} was acknowledged and is lost")
            self.records.pop()
        for number in range(max(1, len(self.records) - 3), len(self.records) + 1):
            data = self.peek(record_key(number))
            demand(data is not None, f"record {number} was acknowledged and is lost")
            demand(run_state.to_bytes(self.records[number - 1]) == data, f"record {number} is whole after a power cut")
        for ref in self.live:
            self.check_whole(ref)
        return all_there

    # --------------------------------------------------------------------------------------------------------- the log

    def recorded(self, writer: Machine, record: Record) -> None:
        before = self.records[-1] if self.records else None
        number = len(self.records) + 1
        demand(record.number == number, f"records have no gap: {record.number} comes as {number}")
        if record.kind is RecordKind.ACQUIRE:
            self.took(writer, before, record)
        else:
            assert before is not None
            demand(record.state.term == before.state.term, f"no stale term writes: record {number} of {writer.number}")
            demand(self.writers[record.state.term] is writer, "a term's records are written by its holder alone")
        self.records.append(record)
        if record.kind is RecordKind.COMMIT:
            self.committed(writer, record)
        if record.kind is RecordKind.DROP:
            self.dropped(writer, record)
        elif before is not None:
            lost = {ref.checkpoint_id for ref in before.state.checkpoints} - {
                ref.checkpoint_id for ref in record.state.checkpoints
            }
            demand(not lost, f"no point is forgotten but by a record that drops it: {lost}")
        if record.state.outcome is Outcome.DONE:
            self.finished(writer)

    def took(self, writer: Machine, before: Record | None, record: Record) -> None:
        demand(record.state.term == record.number, "the number of the acquire record is the term")
        assert record.state.holder is not None
        demand(record.state.holder.nonce == writer.nonce, "a holder takes the run for itself")
        self.writers[record.state.term] = writer
        if before is None or before.state.holder is None:
            return
        last = before.state.holder
        if last.host == writer.host and not self.world.machines[last.pid].alive:
            return
        if self.world.machines[last.pid].alive:
            self.world.count("taken from a living machine")
        silent_s, looks = self.looks.silence(writer.process, heartbeat_key(before.state.term))
        demand(
            silent_s >= whole_scene.LEASE_S * 0.98,
            f"no holder loses the run before a lease of silence: {silent_s:.1f} s",
        )
        demand(looks >= 5, f"and a single look after a long absence is no silence: {looks}")

    def committed(self, writer: Machine, record: Record) -> None:
        ref = record.state.checkpoints[-1]
        self.world.count(f"committed {ref.kind}")
        self.check_whole(ref)
        newest = self.committed_step.get(record.state.term, 0)
        demand(writer.skipped or ref.step >= newest, f"a term commits no older step: {ref.step} after {newest}")
        demand(
            ref.step > writer.restored_step or ref.step == newest, "what is committed is newer than what was restored"
        )
        self.committed_step[record.state.term] = ref.step

    def dropped(self, writer: Machine, record: Record) -> None:
        self.world.count("dropped")
        known = [ref for ref in record.state.checkpoints if ref.checkpoint_id not in writer.state.damaged]
        demand(len(known) >= 2, f"two points that are whole as far as its holder knows always stay: {len(known)}")

    def finished(self, writer: Machine) -> None:
        script, scene = writer.script, self.world.scene
        assert script is not None
        demand(all(rank.step >= scene.steps for rank in script.ranks), "done means all steps")
        for rank in script.ranks:
            demand(
                writer.trained(rank.number, rank.step) == whole_scene.chain(rank.step), "and the final state is right"
            )

    # ------------------------------------------------------------------------------------------------------ the points

    def check_whole(self, ref: CheckpointRef) -> None:
        """A live point has every rank's part of its step, byte for byte."""
        if ref.checkpoint_id in self.damaged:
            return
        data = self.peek(ref.manifest_key)
        demand(data is not None, f"the live point {ref.checkpoint_id} has its manifest")
        assert data is not None
        demand(manifest.digest_of(data) == ref.manifest_digest, f"and the one that was committed: {ref.checkpoint_id}")
        checkpoint = self.manifests.get(ref.manifest_digest)
        if checkpoint is None:
            checkpoint = self.manifests[ref.manifest_digest] = manifest.from_bytes(data, ref.manifest_key)
        found: dict[str, bytes] = {}
        for shard in checkpoint.shards:
            for entry in shard.files:
                stretches = [self.peek(chunk.key) for chunk in entry.chunks]
                demand(None not in stretches, f"a live point has all its bytes: {ref.checkpoint_id}")
                for chunk, stretch in zip(entry.chunks, stretches, strict=True):
                    demand(digest(stretch or b"") == chunk.digest, f"and the ones that were saved: {chunk.key}")
                if not entry.path.endswith("/"):
                    name = shard.name if entry.path == "." else os.path.basename(entry.path)
                    found[name] = b"".join(stretch or b"" for stretch in stretches)
        wanted = whole_scene.expected(self.world.scene, ref.step)
        demand(found.keys() == wanted.keys(), f"a point has every rank's part: {sorted(found)}")
        demand(found == wanted, f"and each is the state of an uninterrupted run after {ref.step} steps")

    def decay(self) -> None:
        """Let bytes of a point rot; two points are kept, so that one may be lost at a time without anybody's knowing."""
        whole = [ref for ref in self.live if ref.checkpoint_id not in self.damaged]
        if self.world.calm or len(whole) < 2 or len(whole) < len(self.live):
            return
        ref = whole[-1] if self.rng.random() < 0.8 else self.rng.choice(whole)
        data = self.peek(ref.manifest_key)
        assert data is not None
        checkpoint = manifest.from_bytes(data, ref.manifest_key)
        keys = [chunk.key for shard in checkpoint.shards for entry in shard.files for chunk in entry.chunks]
        key = self.rng.choice([*keys, ref.manifest_key])
        content = self.peek(key)
        assert content is not None
        at = self.rng.randrange(len(content))
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        unreadable = self.rng.choice([None, flipped, content[:at]])
        self.damaged.add(ref.checkpoint_id)
        self.world.count("decayed")
        if self.world.disk is not None:
            self.world.disk.spoil(f"{ROOT}/{key}", unreadable)
        elif unreadable is None:
            self.world.store.delete(key)
        else:
            self.world.store.put(key, unreadable)

    def restored(self, machine: Machine, view: tuple[CheckpointRef, ...], found: restore.RestoredCheckpoint) -> None:
        """A machine restored: nothing older than the newest whole point it knows of."""
        if found.skipped:
            self.world.count("skipped a damaged point")
        if self.records[-1].state.term != machine.term:
            return
        ids = [ref.checkpoint_id for ref in view]
        whole = [at for at, name in enumerate(ids) if name not in self.damaged]
        at = -1 if found.ref is None else ids.index(found.ref.checkpoint_id)
        demand(at >= max(whole, default=-1), "a restart restores the newest whole point")

    # --------------------------------------------------------------------------------------------------------- the end

    def at_the_end(self) -> None:
        """The newest whole point can be restored by anybody, and the shipped journal decides the same again."""
        world = self.world
        if world.disk is not None:
            world.disk.restart()
            self.after_cut()
        store = world.store if world.disk is None else FileStore(ROOT, world.disk)
        anybody = CrashingStore(store, ManualClock())  # type: ignore[arg-type]
        folder = os.path.join(world.folder, "end")
        newest_first = tuple(reversed(self.live))
        whole = [ref for ref in newest_first if ref.checkpoint_id not in self.damaged]
        demand(bool(whole) or not self.live, "a run that has points has a whole one")
        try:
            found = anybody.drive(restore.restore(newest_first, folder))
        except CheckpointDamaged as error:
            demand(False, f"the newest whole point can be restored: {error}")
        assert isinstance(found, restore.RestoredCheckpoint)
        # A delayed repetition of an upload may have brought back what had decayed.
        newest = len(newest_first) if found.ref is None else newest_first.index(found.ref)
        demand(newest <= (newest_first.index(whole[0]) if whole else newest), "and it is the newest whole one")
        if found.ref is not None:
            wanted = whole_scene.expected(world.scene, found.ref.step)
            demand(dict(files_below(folder)) == wanted, "and it is the state of an uninterrupted run")
        merged = anybody.drive(read_journal())
        assert isinstance(merged, MergedJournal)
        differences = [one for one in replay(merged.rows) if one.what != "gap"]
        demand(not differences, f"the shipped journal decides the same again: {differences[:1]}")
