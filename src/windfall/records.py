"""Newer selves of immutable records, cheaply: a turn changes its state many times, and states have many fields."""

from __future__ import annotations

from typing import TypeVar

R = TypeVar("R")


def renewed(record: R, **changes: object) -> R:
    """Return a record with some fields changed, as `dataclasses.replace` does, some four to forty times as fast.

    All fields are copied at once and `__init__` does not run: for frozen dataclasses without slots, without
    `__post_init__`, and without cached properties, which would be copied with the fields.

    Args:
        record: is not changed.
        changes: by the names of fields.
    """
    newer = renewed_with(record, changes)
    assert len(newer.__dict__) == len(record.__dict__), "only fields that are there are changed"
    return newer


def renewed_with(record: R, changes: dict[str, object]) -> R:
    """The same, of changes that are in a table already; the caller sees to it that they are changes of fields."""
    newer = object.__new__(type(record))
    object.__setattr__(newer, "__dict__", record.__dict__ | changes)
    return newer
