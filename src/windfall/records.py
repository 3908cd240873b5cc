"""Newer selves of immutable records, cheaply: a turn changes its state many times, and states have many fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

R = TypeVar("R")


def renewed(record: R, **changes: object) -> R:
    """Return a record with some fields changed, as `dataclasses.replace` does, some ten to forty times as fast.

    All fields are copied at once and `__init__` does not run: for frozen dataclasses without slots, without
    `__post_init__`, and without cached properties, which would be copied with the fields.

    Args:
        record: is not changed.
        changes: by the names of fields.
    """
    before = record.__dict__
    fields = before | changes
    assert len(fields) == len(before), "only fields that are there are changed"
    newer = object.__new__(type(record))
    object.__setattr__(newer, "__dict__", fields)
    return newer


def rewrite(record: object, changes: Mapping[str, object]) -> None:
    """Change fields of a record that `renewed` has just made and nobody else knows yet.

    Args:
        record: as `renewed` takes it.
        changes: by the names of fields.
    """
    fields = record.__dict__
    count = len(fields)
    fields.update(changes)
    assert len(fields) == count, "only fields that are there are changed"
