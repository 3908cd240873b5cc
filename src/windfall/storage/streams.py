"""Moving long stretches of bytes: touched, aligned buffers, and a hash that costs no time of its own.

The medium bounds everything (performance notes: disk 3.3 GB/s, xxh3-128 32 GB/s on one core, first touch of fresh
memory about 1 GB/s), so buffers are kept and used again, and the next block is read and hashed while one is written.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import xxhash

BLOCK_BYTES = 8 << 20
"""Length of a block [B]: long enough that the cost of a call does not show, short enough for many streams at once."""
ALIGNMENT_BYTES = 4096
"""What direct transfers need of addresses, offsets and lengths on all common media [B]."""

Fill = Callable[[memoryview, int], int]
"""Fill a view from an offset of the source; return how many bytes came (short at the end only)."""
Drain = Callable[[memoryview, int], None]
"""Write a view at an offset of the target."""


class Digest:
    """The running digest of a stream, as manifests name it."""

    def __init__(self) -> None:
        self._hasher = xxhash.xxh3_128()

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes (without the interpreter's lock where they are many)."""
        self._hasher.update(data)

    def text(self) -> str:
        """Return `xxh3-128:<hex>` of the bytes so far."""
        return f"xxh3-128:{self._hasher.hexdigest()}"


class Buffers:
    """Page-aligned buffers of one length that keep their pages between uses; any thread may borrow.

    Args:
        size_bytes: length of each [B].
    """

    def __init__(self, size_bytes: int = BLOCK_BYTES) -> None:
        self.size_bytes = size_bytes
        self._free: list[mmap.mmap] = []
        self._lock = threading.Lock()

    def take(self) -> mmap.mmap:
        """Return a buffer that is nobody else's."""
        with self._lock:
            return self._free.pop() if self._free else mmap.mmap(-1, self.size_bytes)

    def give(self, memory: mmap.mmap) -> None:
        """Hand a buffer back; only its taker may, and only when no transfer can still read or write it."""
        with self._lock:
            self._free.append(memory)

    @contextlib.contextmanager
    def borrow(self) -> Iterator[memoryview]:
        """Lend a buffer for the block; one whose block failed is forgotten, for a transfer may still be under way."""
        memory = self.take()
        yield memoryview(memory)
        self.give(memory)


def rounded_up(size_bytes: int) -> int:
    """Return the least aligned length that holds `size_bytes`."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def pump(size_bytes: int, fill: Fill, drain: Drain, buffers: Buffers, middle: Callable[[], None]) -> tuple[str, int]:
    """Move bytes from `fill` to `drain` through two buffers, hashing on the way.

    At least two blocks are made of anything longer than a page, so that `middle` (called once, before the first block
    that begins in the second half) is in the midst of the transfer.

    Args:
        size_bytes: how many bytes to move [B].
        fill: the source; it is given views of aligned length, which may reach past the end.
        drain: the target; it is given exactly the bytes, from another thread but never from two at once.
        buffers: of at least `BLOCK_BYTES`.
        middle: a failpoint.

    Returns:
        The digest of the bytes that came, and their number: less than `size_bytes` if the source ended early.
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
