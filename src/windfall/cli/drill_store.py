"""A drill's checkpoint through the real store: what upload, commit and restore cost."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from windfall import wiring
from windfall.agent import kernel
from windfall.errors import Misuse
from windfall.events import CommitCheckpoint, UploadShard
from windfall.ports import Restored
from windfall.storage import taking
from windfall.storage.clocks import SystemClock
from windfall.storage.hold import Hold, Local
from windfall.storage.objects import folder_of
from windfall.terms import Cause, Holder, Outcome, SaveKind, Seconds, Step

_LEASE_S = Seconds(60.0)


@dataclass(frozen=True, slots=True)
class Stored:
    """A committed point and what it took.

    Attributes:
        size_bytes: of all parts.
        upload_s: of all parts, one after the other.
    """

    hold: Hold
    size_bytes: int
    upload_s: float
    commit_s: float

    def restore(self, folder: Path) -> tuple[Restored, float]:
        """Bring the point to a folder; return it, and how long that took [s]."""
        began = kernel_now()
        restored = self.hold.restore(str(folder))
        return restored, kernel_now() - began


def kernel_now() -> float:
    """Return the monotonic time [s]."""
    return SystemClock().now()


@contextmanager
def stored(url: str, folder: Path, step: int, parts: dict[int, str]) -> Iterator[Stored]:
    """Upload and commit the parts of all ranks to a run at `url`, and remove that run in the end.

    Args:
        url: of a run that is not there yet.
        folder: for this machine's bookkeeping.
        step: at which the parts were saved.
        parts: path of each rank's part.

    Raises:
        Misuse: something is there already.
        StoreError: the store refused.
    """
    reader = wiring.open_reader(url)
    if reader.store.list(""):
        raise Misuse(f"{url} is not empty: a drill writes to a place of its own")
    folder.mkdir(parents=True, exist_ok=True)
    local = Local(reader.clock, wiring.new_nonce, str(folder), str(folder / "hold.json"), str(folder / "output.log"))
    wish = taking.Wish(
        _holder(), _LEASE_S, ("windfall", "drill"), str(folder), bundle=False, new_code=False, wait=False
    )
    try:
        taken = taking.take(reader.store, local, wish, holder_is_dead=lambda _: False, tell=lambda _: None)
        assert taken.hold is not None, "a run that was not there is not done"
        yield _upload(taken.hold, step, parts)
        taken.hold.release(Outcome.DONE, Cause.DONE)
    finally:
        _remove(url, reader)


def _remove(url: str, reader: wiring.Reader) -> None:
    if (folder := folder_of(url)) is not None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for key in reader.store.list(""):
        reader.store.delete(key)


def _upload(hold: Hold, step: int, parts: dict[int, str]) -> Stored:
    checkpoint_id = f"{step:08d}-1-drill"
    began = kernel_now()
    commands = [UploadShard(checkpoint_id, rank, path, SaveKind.PERIODIC) for rank, path in sorted(parts.items())]
    shards = tuple(shard for one in commands if (shard := hold.upload(one, lambda: False)) is not None)
    uploaded = kernel_now()
    hold.commit(CommitCheckpoint(checkpoint_id, Step(step), SaveKind.PERIODIC, 0, shards))
    size_bytes = sum(entry.size_bytes for shard in shards for entry in shard.files)
    return Stored(hold, size_bytes, uploaded - began, kernel_now() - uploaded)


def _holder() -> Holder:
    pid = os.getpid()
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return Holder(socket.gethostname(), boot_id, namespace, pid, kernel.started_at(pid) or 0, wiring.new_nonce())
