"""Immutable values: frozen msgspec structs, which are created, copied, and read from JSON without Python code per field.

A frozen struct class takes some 15 us to create, a frozen dataclass some 500 us; `windfall exec` loads a few hundred.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    # Type checkers check the fields of this one, and for structs too.
    from dataclasses import replace
else:
    from msgspec.structs import replace

__all__ = ["SameObject", "Struct", "Tagged", "plain", "replace"]


class Tagged(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A value of the journal, the store or the API: its JSON object names its class under `type`."""


T = TypeVar("T")


class SameObject(Generic[T]):
    """A value as an argument of a cached function: equal to itself alone, so that neither its size nor its type matters."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        """Whether it is the same object."""
        return isinstance(other, SameObject) and self.value is other.value

    def __hash__(self) -> int:
        """Return a hash of its identity, which holds as long as the cache holds it."""
        return id(self.value)


def plain(value: object) -> Any:
    """Return a value as dictionaries, lists and scalars, without class names: what reports print as JSON."""
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value
