"""What the core's loops need from the world; each implementation passes the port's contract suite in `tests/contracts`.

Two styles, on purpose.  *Operations* (`StoreOp`) are values that the synchronous step functions of `storage` yield; an
executor carries them out against an `ObjectStore` and sends the result back in.  The same step functions therefore run
against real stores and, one operation at a time, inside the storms.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from windfall.terms import Bytes, Instant, Notice, Seconds, WallTime

T = TypeVar("T")


class Clock(Protocol):
    """Time, injected.  No other module reads a clock."""

    def now(self) -> Instant:
        """Return this machine's monotonic time [s]."""
        ...

    def wall(self) -> WallTime:
        """Return UTC as this machine believes it [s since 1970]."""
        ...

    def sleep(self, duration_s: Seconds) -> None:
        """Block the calling thread."""
        ...


class ObjectStore(Protocol):
    """A place of objects under one URL.  Keys are relative POSIX paths; an object is visible whole or not at all.

    Every method may raise `StoreUnreachable` (after its own bounded retries), `StoreDenied` or `StoreFull`.
    A lost reply may make `create` report False although this very call created the object: callers tell by a nonce in
    the content.
    """

    url: str

    def create(self, key: str, data: bytes) -> bool:
        """Create an object; return False, changing nothing, if the key exists.  Durable when it returns True."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write or replace an object.  Durable when it returns."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return an object's content, None if there is none."""
        ...

    def size(self, key: str) -> Bytes | None:
        """Return an object's length, None if there is none."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object; no error if there is none."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`, sorted."""
        ...

    def put_range(self, key: str, path: str, offset: int, size_bytes: int) -> str:
        """Store a stretch of a local file under `key` (put semantics, durable when it returns).

        Returns:
            The digest (`xxh3-128:<hex>`) of the bytes that were stored.

        Raises:
            EOFError: the file is shorter than `offset + size_bytes`.
        """
        ...

    def get_range(self, key: str, path: str, offset: int, size_bytes: int) -> str | None:
        """Write an object into an existing local file at `offset`; return the digest of the bytes, None if there is none.

        An object of another length than `size_bytes` is written nowhere; the digest then is that of what was read.
        """
        ...


# ---------------------------------------------------------------------------------------------------- store operations


@dataclass(frozen=True, slots=True)
class Create:
    """`ObjectStore.create`; result bool."""

    key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """`ObjectStore.put`; result None."""

    key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Get:
    """`ObjectStore.get`; result bytes or None."""

    key: str


@dataclass(frozen=True, slots=True)
class Delete:
    """`ObjectStore.delete`; result None."""

    key: str


@dataclass(frozen=True, slots=True)
class List:
    """`ObjectStore.list`; result list of keys."""

    prefix: str


@dataclass(frozen=True, slots=True)
class PutRange:
    """`ObjectStore.put_range`; result digest."""

    key: str
    path: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GetRange:
    """`ObjectStore.get_range`; result digest or None."""

    key: str
    path: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait on the caller's own monotonic clock; result the `Instant` after it (`duration_s` 0 reads the clock)."""

    duration_s: Seconds


SimpleOp = Create | Put | Get | Delete | List | PutRange | GetRange | Pause
"""One operation."""


@dataclass(frozen=True, slots=True)
class Together:
    """Operations without order among them, for the executor to run side by side; result: their results as a list."""

    ops: tuple[SimpleOp, ...]


StoreOp = SimpleOp | Together
"""What a storage step function may yield."""

Steps = Generator[StoreOp, object, T]
"""A storage step function: yields operations, receives their results, returns T.  An executor raises store errors into it."""


class NoticeSource(Protocol):
    """Watches one notice path of this machine; its loop runs in a thread of its own until `stop` is set."""

    name: str

    def watch(self, deliver: Callable[[Notice], None], stopped: Callable[[], bool]) -> None:
        """Deliver each change of the machine's notice once; return soon after `stopped()` is true."""
        ...

    def acknowledge(self, notice: Notice) -> None:
        """Tell the source that the machine may go (only Azure listens)."""
        ...


class Journal(Protocol):
    """The append-only record of facts, decisions and commands of one epoch."""

    def append(self, line: str) -> None:
        """Append one row; it is on this machine's disk before the row's commands leave."""
        ...

    def rows(self) -> Iterator[str]:
        """Yield the rows so far, oldest first."""
        ...
