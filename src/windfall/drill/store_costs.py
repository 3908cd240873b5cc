"""A drill's checkpoint through the real store: what upload, commit and restore cost."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from windfall.errors import Misuse
from windfall.events import CommitCheckpoint, UploadShard
from windfall.linux import processes
from windfall.linux.clock import SystemClock
from windfall.linux.random_names import new_nonce
from windfall.ports import Restored
from windfall.storage import acquire_run, object_stores
from windfall.storage.object_stores import folder_of
from windfall.storage.run_lease import LocalSession, StoreLease
from windfall.terms import Cause, Holder, Outcome, SaveKind, Seconds, Step

_LEASE_S = Seconds(60.0)


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A committed checkpoint, and what it cost.

    Attributes:
        size_bytes: of all shards.
        upload_s: of all shards, one after the other [s].
        commit_s: of the commit [s].
    """

    lease: StoreLease
    size_bytes: int
    upload_s: float
    commit_s: float

    def restore(self, folder: Path) -> tuple[Restored, float]:
        """Download the checkpoint to a folder; return it, and how long that took [s]."""
        started = monotonic_s()
        restored = self.lease.restore(str(folder))
        return restored, monotonic_s() - started


def monotonic_s() -> float:
    """Return the monotonic time [s]."""
    return SystemClock().now()


@contextmanager
def stored(url: str, folder: Path, step: int, shards: dict[int, str]) -> Iterator[StoredCheckpoint]:
    """Upload and commit the shards of all ranks to a new run at `url`; remove that run at the end.

    Args:
        url: of a run that does not exist yet.
        folder: for the lease's files on this machine.
        step: at which the shards were saved.
        shards: path of each rank's shard.

    Raises:
        Misuse: the URL is not empty.
        StoreError: the store failed.
    """
    reader = object_stores.open_reader(url)
    if reader.store.list(""):
        raise Misuse(f"{url} is not empty: a drill needs an empty location")
    folder.mkdir(parents=True, exist_ok=True)
    local = LocalSession(reader.clock, new_nonce, str(folder), str(folder / "lease.json"), str(folder / "output.log"))
    request = acquire_run.AcquireRequest(
        _holder(), _LEASE_S, ("windfall", "drill"), str(folder), bundle=False, new_code=False, wait=False
    )
    try:
        taken = acquire_run.acquire(reader.store, local, request, holder_is_dead=lambda _: False, log=lambda _: None)
        assert taken.lease is not None, "a new run is not done"
        yield _upload(taken.lease, step, shards)
        taken.lease.release(Outcome.DONE, Cause.DONE)
    finally:
        _remove(url, reader)


def _remove(url: str, reader: object_stores.Reader) -> None:
    if (folder := folder_of(url)) is not None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for key in reader.store.list(""):
        reader.store.delete(key)


def _upload(lease: StoreLease, step: int, paths: dict[int, str]) -> StoredCheckpoint:
    checkpoint_id = f"{step:08d}-1-drill"
    started = monotonic_s()
    commands = [UploadShard(checkpoint_id, rank, path, SaveKind.PERIODIC) for rank, path in sorted(paths.items())]
    shards = tuple(shard for one in commands if (shard := lease.upload(one, lambda: False)) is not None)
    uploaded = monotonic_s()
    lease.commit(CommitCheckpoint(checkpoint_id, Step(step), SaveKind.PERIODIC, 0, shards))
    size_bytes = sum(entry.size_bytes for shard in shards for entry in shard.files)
    return StoredCheckpoint(lease, size_bytes, uploaded - started, monotonic_s() - uploaded)


def _holder() -> Holder:
    pid = os.getpid()
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return Holder(socket.gethostname(), boot_id, namespace, pid, processes.started_at(pid) or 0, new_nonce())
