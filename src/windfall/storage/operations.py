"""The store operations as typed steps: each yields one operation and returns its result with its type.

A step function receives the results of what it yields as plain objects; these small steps are the one place that says
which type belongs to which operation.
"""

from __future__ import annotations

from collections.abc import Iterable

from windfall.ports import Create, Delete, Get, GetRange, List, Pause, Put, PutRange, SimpleOp, Steps, Together
from windfall.terms import Instant, Seconds


def create(key: str, data: bytes) -> Steps[bool]:
    """Create an object; return False if the key exists."""
    made = yield Create(key, data)
    assert isinstance(made, bool)
    return made


def put(key: str, data: bytes) -> Steps[None]:
    """Write or replace an object."""
    yield Put(key, data)


def get(key: str) -> Steps[bytes | None]:
    """Return an object's content, None if there is none."""
    return _content((yield Get(key)))


def get_all(keys: Iterable[str]) -> Steps[list[bytes | None]]:
    """Return the contents of several objects, in the order of `keys`."""
    found = yield from together(tuple(Get(key) for key in keys))
    return [_content(data) for data in found]


def keys_under(prefix: str) -> Steps[list[str]]:
    """Return the keys that begin with `prefix`."""
    found = yield List(prefix)
    assert isinstance(found, list)
    return found


def delete_all(keys: Iterable[str], *, at_once: int = 64) -> Steps[None]:
    """Delete objects, `at_once` of them side by side."""
    waiting = tuple(Delete(key) for key in keys)
    for first in range(0, len(waiting), at_once):
        yield Together(waiting[first : first + at_once])


def pause(duration_s: float) -> Steps[Instant]:
    """Wait; return the instant after it (0 reads the clock)."""
    after = yield Pause(Seconds(duration_s))
    assert isinstance(after, float)
    return Instant(after)


def ranges(ops: tuple[PutRange, ...] | tuple[GetRange, ...]) -> Steps[list[str | None]]:
    """Move stretches of files side by side; return their digests, None for an object that does not exist."""
    found = yield from together(ops)
    digests: list[str | None] = []
    for digest in found:
        assert digest is None or isinstance(digest, str)
        digests.append(digest)
    return digests


def together(ops: tuple[SimpleOp, ...]) -> Steps[list[object]]:
    """Carry out operations side by side; return their results in the same order."""
    if not ops:
        return []
    found = yield Together(ops)
    assert isinstance(found, list)
    assert len(found) == len(ops), "an executor answers every operation"
    return found


def _content(data: object) -> bytes | None:
    assert data is None or isinstance(data, bytes)
    return data
