"""The channel between a machine of a parameter server and a script on it: short messages, with values in shared memory.

A message is a few 64-bit numbers in one packet of a Unix socket, so that it arrives whole or not at all.  Rows and values are
in shared buffers (`memfd_create`).  Each side has buffers of its own, writes what it sends straight into one of them, and
writes there again only once the last array that the other side made of it is gone: so a value is copied once on its way, and
an array that is still in use never changes.

Either side may vanish at any time: the other one sees the end of the socket.
"""

from __future__ import annotations

import array
import enum
import fcntl
import mmap
import os
import socket
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PACKET_BYTES = 8192
NUMBERS_MAX = 400
"""Buffers that one message names as released, and as dropped; more are named in the next one."""
BUFFER_MIN_BYTES = 1 << 16
COPIED_BYTES = 1 << 18
"""Up to this size what is received is copied at once: that takes little time, and memory and open files are free again."""
MAPPED_MAX = 128
"""Buffers of the other side that may be in use; each is an open file here, so with more, all that is received is copied."""
ALIGNED_BYTES = 64
CHUNK_BYTES = 1 << 20
"""What is copied at once: less than the cache, so that the copy is still there, and shared memory is written faster."""
DTYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.float32), np.dtype(np.float64))
"""What a table may hold, by the number that messages have for it."""


class ChannelEnded(Exception):
    """The other side is gone."""


class MessageKind(enum.IntEnum):
    """What a message is; the names are those of what the sender does or gives."""

    WELCOME = 1
    """Machine: how many data partitions there are, the seed, and the script's process group."""
    TABLE = 2
    """Script: rows, width and dtype of the table."""
    FIRST = 3
    """Machine: which rows' first values it needs.  Script: these values."""
    TURN = 4
    """Machine: data partition and clock to compute."""
    PULL = 5
    """Script: which rows it needs."""
    VALUES = 6
    """Machine: their values."""
    GIVEN_UP = 7
    """Machine: there are no values, because the turn counts nowhere."""
    PUSH = 8
    """Script: rows and changes."""
    TAKEN = 9
    """Machine: it has a push."""
    DONE = 10
    """Script: the turn is over; whether it gives a loss, and its bits as a 64-bit number."""
    OVER = 11
    """Machine: training is over."""


class Message(NamedTuple):
    """A message that was received.

    Attributes:
        kind: what it is.
        numbers: three, by kind.
        rows: numbers of rows, shape (rows,); empty if the message has none.
        values: shape (rows, width); with no line if it has none.
    """

    kind: MessageKind
    numbers: tuple[int, int, int]
    rows: NDArray[np.int64]
    values: NDArray[Any]


class MessageDraft(NamedTuple):
    """What will be sent, to be written into shared memory in place.

    Attributes:
        buffer: its number.
        rows: numbers of rows, shape (rows,).
        values: shape (rows, width), or with no line.
    """

    buffer: int
    rows: NDArray[np.int64]
    values: NDArray[Any]


class ScriptChannel:
    """One side of a channel; calls come from one thread at a time.

    Args:
        connection: a socket of packets (`SOCK_SEQPACKET`).

    Attributes:
        width: numbers in a row of the table; 0 until it is known.
        dtype: of the table.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.width, self.dtype = 0, DTYPES[0]
        self._socket = connection
        self._buffers: dict[int, mmap.mmap] = {}
        self._unsent: dict[int, int] = {}
        self._free: set[int] = set()
        self._dropped: deque[int] = deque()
        self._theirs: dict[int, mmap.mmap] = {}
        # Arrays end in any thread, at any time.
        self._released: deque[int] = deque()
        self._number = 0

    def fileno(self) -> int:
        """Return the number of the socket's file."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket; arrays stay as they are."""
        self._socket.close()
        for unsent in self._unsent.values():
            os.close(unsent)
        self._unsent.clear()

    def draft(self, rows: int, *, values: bool) -> MessageDraft:
        """Return room for rows, and for their values if wanted."""
        number = self._room(_offset(rows) + (rows * self.width * self.dtype.itemsize if values else 0))
        return MessageDraft(number, *self._arrays(self._buffers[number], rows, rows if values else 0)[1:])

    def discard(self, draft: MessageDraft) -> None:
        """Take back a draft that will not be sent."""
        self._free.add(draft.buffer)

    def send(
        self, kind: MessageKind, numbers: tuple[int, int, int] = (0, 0, 0), draft: MessageDraft | None = None
    ) -> None:
        """Send a message.

        Raises:
            ChannelEnded: the other side is gone.
        """
        released, dropped = _some(self._released), _some(self._dropped)
        buffer, rows, lines, size, unsent = 0, 0, 0, 0, -1
        if draft is not None:
            buffer, rows, lines = draft.buffer, len(draft.rows), len(draft.values)
            size, unsent = len(self._buffers[buffer]), self._unsent.pop(buffer, -1)
        head = (kind, *numbers, buffer, rows, lines, size, len(released))
        packet = array.array("q", (*head, *released, *dropped)).tobytes()
        try:
            if unsent >= 0:
                socket.send_fds(self._socket, [packet], [unsent])
            else:
                self._socket.send(packet)
        except OSError as error:
            raise ChannelEnded(str(error)) from None
        finally:
            if unsent >= 0:
                os.close(unsent)

    def receive(self) -> Message:
        """Wait for a message and return it.

        Raises:
            ChannelEnded: the other side is gone.
        """
        try:
            packet, files, _, _ = socket.recv_fds(self._socket, PACKET_BYTES, 1)
        except OSError as error:
            raise ChannelEnded(str(error)) from None
        if not packet:
            raise ChannelEnded("the other side has closed the channel")
        kind, first, second, third, buffer, rows, lines, size, released, *numbers = array.array("q", packet)
        self._free.update(numbers[:released])
        for number in numbers[released:]:
            del self._theirs[number]
        for file in files:
            self._theirs[buffer] = _mapped(file, size)
            os.close(file)
        if not buffer:
            empty = np.empty((0, self.width), self.dtype)
            return Message(MessageKind(kind), (first, second, third), np.empty(0, np.int64), empty)
        whole, found, values = self._arrays(self._theirs[buffer], rows, lines)
        if found.nbytes + values.nbytes <= COPIED_BYTES or len(self._theirs) > MAPPED_MAX:
            found, values = found.copy(), values.copy()
            self._released.append(buffer)
        else:
            weakref.finalize(whole, self._released.append, buffer).atexit = False
        return Message(MessageKind(kind), (first, second, third), found, values)

    def _room(self, size: int) -> int:
        """Return a buffer of this side that is not in use, the smallest that is large enough."""
        fitting = [number for number in self._free if len(self._buffers[number]) >= size]
        if fitting:
            number = min(fitting, key=lambda one: len(self._buffers[one]))
            self._free.discard(number)
            return number
        # What is too small now will be too small again: it would only take memory.
        for number in self._free:
            del self._buffers[number]
            if number in self._unsent:
                os.close(self._unsent.pop(number))
            else:
                self._dropped.append(number)
        self._free.clear()
        self._number += 1
        # At most an eighth more than wanted, so that what grows a little finds room where it was.
        step = 1 << max(0, (size - 1).bit_length() - 4)
        size = max(BUFFER_MIN_BYTES, -(-size // step) * step)
        file = os.memfd_create("windfall-values", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(file, size)
        # A file that shrank would kill its readers.
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._buffers[self._number], self._unsent[self._number] = _mapped(file, size), file
        return self._number

    def _arrays(
        self, buffer: mmap.mmap, rows: int, lines: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[Any]]:
        """Return a buffer as an array of bytes, and views of it: rows, and lines of values."""
        whole = np.frombuffer(buffer, np.uint8)
        start, size = _offset(rows), lines * self.width * self.dtype.itemsize
        values = whole[start : start + size].view(self.dtype).reshape(lines, self.width)
        return whole, whole[: rows * 8].view(np.int64), values


def chunks(lines: int, line_bytes: int) -> Iterator[slice]:
    """Return the slices in which lines are copied."""
    step = max(1, CHUNK_BYTES // max(1, line_bytes))
    return (slice(start, start + step) for start in range(0, lines, step))


def _mapped(file: int, size: int) -> mmap.mmap:
    """Map a file with all of its memory at once: page by page takes longer, and what it leaves is slower to write."""
    return mmap.mmap(file, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


def _offset(rows: int) -> int:
    """Return where values begin that follow rows."""
    return -(-rows * 8 // ALIGNED_BYTES) * ALIGNED_BYTES


def _some(numbers: deque[int]) -> Sequence[int]:
    """Take numbers out, as many as a message may have."""
    return [numbers.popleft() for _ in range(min(len(numbers), NUMBERS_MAX))]
