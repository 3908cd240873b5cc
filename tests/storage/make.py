"""Small things that the tests of the store's step functions are made of."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.simulated_store import ManualClock, MemoryStore
from windfall.ports import Steps, T
from windfall.storage import checkpoint_store, restore, run_log, shard_transfer, store_operations
from windfall.storage.run_state import Claim
from windfall.terms import Checkpoint, CheckpointRef, Holder, Record, SaveKind, Seconds, Step
from windfall.wire.run_layout import shard_prefix

LEASE_S = Seconds(10.0)


def holder(nonce: str, host: str = "one", pid: int = 7) -> Holder:
    return Holder(host, f"boot-of-{host}", 1, pid, 100, nonce)


def claim(nonce: str, host: str = "one", **named: object) -> Claim:
    return Claim(holder(nonce, host), "run", LEASE_S, **{"command": ("train",), **named})


@dataclass
class Bench:
    """A store, a clock, and the shortest words for what tests do with them."""

    folder: Path
    store: MemoryStore = field(default_factory=MemoryStore)
    clock: ManualClock = field(default_factory=ManualClock)
    count: int = 0

    def run(self, steps: Steps[T]) -> T:
        return store_operations.run(steps, self.store, self.clock, parallel=2)

    def nonce(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def acquire(self, nonce: str, host: str = "one", *, dead: bool = True, wait: bool = False) -> run_log.AcquiredTerm:
        return self.run(
            run_log.acquire(
                claim(nonce, host), holder_is_dead=lambda _: dead, wall_time=self.clock.wall_time, wait=wait
            )
        )

    def part(self, content: bytes) -> Path:
        """Make a checkpoint folder with a file in it and one below."""
        self.count += 1
        root = self.folder / f"checkpoint-{self.count}"
        (root / "below").mkdir(parents=True)
        (root / "model.pt").write_bytes(content)
        (root / "below" / "optimizer.pt").write_bytes(content[::-1])
        return root

    def save_steps(self, head: Record, step: int, path: Path) -> Steps[tuple[CheckpointRef, Record]]:
        """Upload and commit one point, as a step function."""
        nonce, term = self.nonce(), head.state.term
        assert head.state.holder is not None
        checkpoint_id = f"{step}-{term}-{nonce}"
        prefix = shard_prefix(term, head.state.holder.nonce, checkpoint_id, 0)
        shard = yield from shard_transfer.upload_shard(shard_transfer.plan_shard(str(path)), prefix, 0)
        checkpoint = Checkpoint(
            checkpoint_id, Step(step), SaveKind.INSURANCE, term, 1, (shard,), self.clock.wall_time()
        )
        return (yield from checkpoint_store.commit(head, checkpoint, nonce=nonce, wall_time=self.clock.wall_time()))

    def save(self, head: Record, step: int, content: bytes) -> tuple[CheckpointRef, Record]:
        return self.run(self.save_steps(head, step, self.part(content)))

    def restore(self, head: Record, name: str = "restored") -> tuple[restore.RestoredCheckpoint, Path]:
        folder = self.folder / name
        newest_first = tuple(reversed(head.state.checkpoints))
        return self.run(restore.restore(newest_first, str(folder))), folder


def model(folder: Path) -> bytes:
    """Return the content of the one restored model, having checked its companion."""
    (found,) = folder.glob("0/*/model.pt")
    assert found.with_name("below").joinpath("optimizer.pt").read_bytes() == found.read_bytes()[::-1]
    return found.read_bytes()


def tree(root: Path) -> dict[str, tuple[int, bytes | None]]:
    """Return path -> (mode, content) of everything below a folder; None for a folder's content."""
    found: dict[str, tuple[int, bytes | None]] = {}
    for path in sorted(root.rglob("*")):
        mode = os.stat(path).st_mode & 0o777
        found[str(path.relative_to(root))] = (
            mode if path.is_file() else 0,
            path.read_bytes() if path.is_file() else None,
        )
    return found
