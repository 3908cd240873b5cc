"""A provider's block in a job file (`local: {uplink: 5MB/s}`): its keys as data, and the one check of a block.

The job file, its JSON Schema, the controller's admission and the provider itself read the same rows, so none of them
accepts what another refuses.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping

from windfall.spelling import nearest
from windfall.structs import Struct
from windfall.terms import BlockValue

TEXT_CHARACTERS_MAX = 1000
"""The longest text in a block."""


class BlockKind(enum.StrEnum):
    """The type of a key's value."""

    TEXT = "text"
    NUMBER = "a number"
    WHOLE = "a whole number"
    FLAG = "true or false"


class BlockKey(Struct, frozen=True):
    """One key of a provider's block.

    Attributes:
        help: one sentence for the JSON Schema and the pages.
        example: a valid value as written in a job file.
        pattern: of the whole text, if it is text.
        choices: the only valid texts; empty for any.
        least, most: bounds of a number, both included.
    """

    name: str
    kind: BlockKind
    help: str
    example: str
    pattern: str = ""
    choices: tuple[str, ...] = ()
    least: float = -math.inf
    most: float = math.inf


def problem_with(key: BlockKey, value: object) -> str | None:
    """Return what is wrong with a value, to follow the key's name in a message; None if it is valid."""
    if not _has_kind(key, value):
        return f"must be {key.kind.value} such as {key.example}, not {_shown(value)}"
    if isinstance(value, str):
        if key.choices and value not in key.choices:
            return f"must be {' or '.join(key.choices)}, not {_shown(value)}; {nearest(value, key.choices)}"
        if len(value) > TEXT_CHARACTERS_MAX or not re.fullmatch(key.pattern or ".*[^ ].*", value):
            return f"must be written like {key.example}, not {_shown(value)}"
    elif isinstance(value, (int, float)) and not key.least <= value <= key.most:
        return f"must be from {key.least:g} to {key.most:g}, not {_shown(value)}"
    return None


def _has_kind(key: BlockKey, value: object) -> bool:
    if key.kind is BlockKind.FLAG or isinstance(value, bool):
        return key.kind is BlockKind.FLAG and isinstance(value, bool)
    if key.kind is BlockKind.TEXT:
        return isinstance(value, str)
    return isinstance(value, int) or (key.kind is BlockKind.NUMBER and isinstance(value, float))


def _shown(value: object) -> str:
    kinds: tuple[tuple[type, Callable[[], str]], ...] = (
        (bool, lambda: str(value).lower()),
        (dict, lambda: "a map"),
        (list, lambda: "a list"),
    )
    text = next((words() for kind, words in kinds if isinstance(value, kind)), repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def block_problem(name: str, keys: tuple[BlockKey, ...], block: Mapping[str, BlockValue]) -> str | None:
    """Return what is wrong with a provider's block as one clause; None if it is valid.

    Args:
        name: the provider's, with which the message starts.
        keys: those that it has.
        block: names and values.
    """
    rows = {key.name: key for key in keys}
    for written, value in block.items():
        if written not in rows:
            return f"{name}.{written} is an unknown key; {nearest(written, rows)}"
        if problem := problem_with(rows[written], value):
            return f"{name}.{written} {problem}"
    return None
