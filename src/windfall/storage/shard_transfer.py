"""Uploads shards, which is what ranks hand over, from the local disk to the store in chunks.

A shard is one file or a folder.  It is planned (names, sizes, identities), uploaded, and examined again: if anything
changed in between, the upload may be inconsistent and is not used.

Fast transfers of long byte ranges: reused aligned buffers, and hashing in parallel with writing.

The medium is the bottleneck (performance notes: disk 3.3 GB/s, xxh3-128 32 GB/s on one core, first touch of fresh memory
about 1 GB/s), so buffers are reused, and the next block is read and hashed while one is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import xxhash

from windfall.errors import Misuse, ShardChanged
from windfall.ports import PutRange, Steps
from windfall.storage.store_operations import ranges
from windfall.structs import Struct
from windfall.terms import Bytes, Chunk, FileEntry, Shard

CHUNK_BYTES = 64 * 1024 * 1024
"""Length of a chunk [B]: long enough for full throughput, short enough to be sent again after an error."""
CHUNKS_AT_ONCE = 16
"""Number of chunks uploaded in parallel; also the most that is lost at an error."""
SINGLE = "."
"""Path of the file of a shard that is a single file."""


class PlannedFile(Struct, frozen=True):
    """A file or an empty folder of a shard, as planned.

    Attributes:
        path: relative POSIX path; `.` for a shard that is one file; ends in `/` for an empty folder.
        source: its path on the local disk.
        identity: changes when the file is written or replaced: device, inode, length, mtime.
        changed_ns: its ctime, which also changes when a link to it is created or removed.
        links: number of its hard links.
    """

    path: str
    source: str
    mode: int
    size_bytes: int
    identity: tuple[int, ...]
    changed_ns: int
    links: int


class ShardPlan(Struct, frozen=True):
    """A shard to be uploaded; `fingerprint` changes when any of its files does."""

    name: str
    root: str
    files: tuple[PlannedFile, ...]
    fingerprint: str

    @property
    def size_bytes(self) -> Bytes:
        """The shard's length [B]."""
        return Bytes(sum(file.size_bytes for file in self.files))

    @property
    def identity(self) -> str:
        """Changes when a file of the shard is written or replaced, but not when a hard link is created or removed."""
        described = repr([(file.path, file.identity) for file in self.files])
        return hashlib.sha256(described.encode(errors="surrogateescape")).hexdigest()[:16]


def plan_shard(path: str) -> ShardPlan:
    """Examine a file or folder and plan its upload.

    Symbolic links inside the folder are followed; the upload contains the bytes, not the link.

    Raises:
        Misuse: it does not exist, contains something other than files and folders, or a link leads outside.
    """
    root = os.path.realpath(path)
    name = os.path.basename(os.path.abspath(path))
    if not os.path.exists(root):
        raise Misuse(f"{path} was handed over as a checkpoint but does not exist")
    if not name:
        raise Misuse(f"{path} was handed over as a checkpoint: hand over a file or a folder below it")
    folder = os.path.isdir(root)
    files = tuple(_walk(root, "", (root,))) if folder else (_planned(SINGLE, root, os.stat(root)),)
    described = repr([(file.path, file.mode, file.identity, file.changed_ns) for file in files])
    return ShardPlan(name, root, files, hashlib.sha256(described.encode(errors="surrogateescape")).hexdigest()[:16])


def _walk(root: str, inside: str, above: tuple[str, ...]) -> Iterator[PlannedFile]:
    """Yield the content of the folder `root/inside`, sorted; `above` are the real folders on the path."""
    folder = os.path.join(root, inside)
    names = sorted(os.listdir(folder))
    if not names and inside:
        yield _planned(f"{inside}/", folder, os.stat(folder))
    for name in names:
        relative = f"{inside}/{name}" if inside else name
        source = os.path.join(root, relative)
        real = os.path.realpath(source)
        if os.path.islink(source):
            _check_link(source, real, root=root, above=above)
        if os.path.isdir(real):
            yield from _walk(root, relative, (*above, real))
        else:
            yield _planned(relative, source, os.stat(source))


def _check_link(source: str, real: str, *, root: str, above: tuple[str, ...]) -> None:
    if os.path.commonpath((root, real)) != root:
        raise Misuse(
            f"{source} is a link to {real}, outside the checkpoint: copy what it points to into the checkpoint's folder"
        )
    if not os.path.exists(real):
        raise Misuse(f"{source} is a broken link: remove it from the checkpoint's folder")
    if real in above:
        raise Misuse(f"{source} is a link to a folder that contains it: remove it from the checkpoint's folder")


def _planned(relative: str, source: str, status: os.stat_result) -> PlannedFile:
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise Misuse(f"{source} is neither a file nor a folder: a checkpoint cannot contain anything else")
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    return PlannedFile(relative, source, mode, size, identity, status.st_ctime_ns, status.st_nlink)


def check_unmodified(plan: ShardPlan, first: str) -> None:
    """Check that a shard has not changed since its first upload attempt: a retry would store a mixed state.

    Args:
        plan: the shard as it is now.
        first: its `identity` at the first attempt.

    Raises:
        ShardChanged: it has changed since.
    """
    if plan.identity != first:
        raise _overwritten(plan)


def upload_shard(
    plan: ShardPlan,
    prefix: str,
    rank: int,
    *,
    already: Mapping[str, str] | None = None,
    on_chunk: Callable[[Chunk], None] | None = None,
) -> Steps[Shard]:
    """Upload a shard to the store; return its manifest entry.

    The chunks' keys contain the plan's fingerprint: chunks of an earlier attempt are used only if the shard is unchanged.

    Args:
        plan: the planned shard.
        prefix: the folder of this rank's bytes (`run_layout.shard_prefix`).
        rank: the shard's rank.
        already: key -> digest of chunks already uploaded in the same term.
        on_chunk: called for each chunk once it is durable.

    Raises:
        ShardChanged: the shard was changed or removed during the upload.
    """
    done = dict(already or {})
    waiting = [op for op in _chunk_ops(plan, prefix) if op.key not in done]
    for first in range(0, len(waiting), CHUNKS_AT_ONCE):
        batch = tuple(waiting[first : first + CHUNKS_AT_ONCE])
        try:
            digests = yield from ranges(batch)
        except (EOFError, FileNotFoundError) as error:
            raise _overwritten(plan) from error
        for op, digest in zip(batch, digests, strict=True):
            assert digest is not None, "an uploaded range has a digest"
            done[op.key] = digest
            if on_chunk is not None:
                on_chunk(Chunk(op.key, op.size_bytes, digest))
    _check_unchanged(plan)
    entries = tuple(
        FileEntry(
            file.path,
            file.mode,
            tuple(Chunk(op.key, op.size_bytes, done[op.key]) for op in _file_ops(plan, index, prefix)),
        )
        for index, file in enumerate(plan.files)
    )
    return Shard(rank, plan.name, entries)


def _chunk_ops(plan: ShardPlan, prefix: str) -> Iterator[PutRange]:
    for index in range(len(plan.files)):
        yield from _file_ops(plan, index, prefix)


def _file_ops(plan: ShardPlan, index: int, prefix: str) -> Iterator[PutRange]:
    file = plan.files[index]
    for number, offset in enumerate(range(0, file.size_bytes, CHUNK_BYTES)):
        key = f"{prefix}{plan.fingerprint}/{index:06d}.{number:06d}"
        yield PutRange(key, file.source, offset, min(CHUNK_BYTES, file.size_bytes - offset))


def _check_unchanged(plan: ShardPlan) -> None:
    try:
        now = plan_shard(plan.root)
    except (OSError, Misuse) as error:
        raise _overwritten(plan) from error
    if len(now.files) != len(plan.files) or not all(map(_same, plan.files, now.files)):
        raise _overwritten(plan)


def _same(before: PlannedFile, now: PlannedFile) -> bool:
    if (before.path, before.identity) != (now.path, now.identity):
        return False
    # A script that deletes its old checkpoints removes its own link to a file that Windfall still holds by another one:
    # that changes the ctime, but not the content.
    return before.changed_ns == now.changed_ns or before.links != now.links


def _overwritten(plan: ShardPlan) -> ShardChanged:
    return ShardChanged(
        f"{plan.root} changed during its upload, so this checkpoint is abandoned: "
        "write each checkpoint under its own name"
    )


BLOCK_BYTES = 8 << 20
"""Length of a block [B]: long enough to hide the cost of a call, short enough for many parallel streams."""
ALIGNMENT_BYTES = 4096
"""Alignment of addresses, offsets and lengths for direct I/O on all common media [B]."""

Fill = Callable[[memoryview, int], int]
"""Fill a view from an offset of the source; return the number of bytes (short only at the end)."""
Drain = Callable[[memoryview, int], None]
"""Write a view at an offset of the target."""


class Digest:
    """The incremental digest of a stream, in the format of manifests."""

    def __init__(self) -> None:
        self._hasher = xxhash.xxh3_128()

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes (long ones without the interpreter lock)."""
        self._hasher.update(data)

    def text(self) -> str:
        """Return `xxh3-128:<hex>` of the bytes so far."""
        return f"xxh3-128:{self._hasher.hexdigest()}"


class Buffers:
    """A pool of page-aligned buffers of one length that keep their pages between uses; thread-safe.

    Args:
        size_bytes: length of a buffer [B].
    """

    def __init__(self, size_bytes: int = BLOCK_BYTES) -> None:
        self.size_bytes = size_bytes
        self._free: list[mmap.mmap] = []
        self._lock = threading.Lock()

    def take(self) -> mmap.mmap:
        """Return a buffer for exclusive use."""
        with self._lock:
            return self._free.pop() if self._free else mmap.mmap(-1, self.size_bytes)

    def give(self, memory: mmap.mmap) -> None:
        """Return a buffer to the pool; only by its user, and only when no transfer can still access it."""
        with self._lock:
            self._free.append(memory)

    @contextlib.contextmanager
    def borrow(self) -> Iterator[memoryview]:
        """Use a buffer for the block; if the block fails, the buffer is dropped, because a transfer may still be running."""
        memory = self.take()
        yield memoryview(memory)
        self.give(memory)


def rounded_up(size_bytes: int) -> int:
    """Return `size_bytes` rounded up to the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def pump(size_bytes: int, fill: Fill, drain: Drain, buffers: Buffers, middle: Callable[[], None]) -> tuple[str, int]:
    """Move bytes from `fill` to `drain` through two buffers, and hash them.

    Anything longer than a page is split into at least two blocks, so that `middle` (called once, before the first block
    of the second half) is called during the transfer.

    Args:
        size_bytes: number of bytes to move [B].
        fill: the source; receives views of aligned length, which may reach past the end.
        drain: the target; receives exactly the bytes, from another thread, but never from two at once.
        buffers: of at least `BLOCK_BYTES`.
        middle: a failpoint.

    Returns:
        The digest and number of the bytes, less than `size_bytes` if the source ended early.
    """
    block = min(BLOCK_BYTES, rounded_up(-(-size_bytes // 2)))
    digest = Digest()
    done = 0
    middle_at = size_bytes / 2 if size_bytes > block else 0
    with contextlib.ExitStack() as stack:
        views = [stack.enter_context(buffers.borrow()) for _ in range(2 if size_bytes > block else 1)]
        writer = stack.enter_context(ThreadPoolExecutor(max_workers=1)) if len(views) > 1 else None
        pending: deque[Future[None]] = deque()
        turn = 0
        while done < size_bytes:
            if len(pending) == len(views):
                pending.popleft().result()
            wanted = min(block, size_bytes - done)
            got = min(wanted, fill(views[turn][: rounded_up(wanted)], done))
            data = views[turn][:got]
            digest.update(data)
            if done >= middle_at:
                middle()
                middle_at = size_bytes
            if writer is None:
                drain(data, done)
            else:
                pending.append(writer.submit(drain, data, done))
            done += got
            turn = (turn + 1) % len(views)
            if got < wanted:
                break
        for future in pending:
            future.result()
    return digest.text(), done


def read_fully(handle: int, into: memoryview, offset: int) -> int:
    """Fill `into` from a local file, short only at its end; return the number of bytes."""
    done = 0
    while done < len(into):
        count = os.preadv(handle, [into[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def write_fully(handle: int, data: memoryview | bytes, offset: int) -> None:
    """Write all of `data` into a local file at `offset`."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(handle, rest, offset)
        rest = rest[written:]
        offset += written
