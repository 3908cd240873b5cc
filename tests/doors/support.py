"""Hostile input for a door, by seed: valid messages mutated by their grammar, and raw bytes.

A door is any place where somebody else's bytes come in.  What holds of each is told by its own tests; here are the inputs.
The n-th input of a seed depends on nothing else, so a failure names (door, seed, number) and is made again by

    DOORS_SEED=<seed> DOORS_ONLY=<number> python -m pytest tests/doors/test_x.py
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

SEED = int(os.environ.get("DOORS_SEED", "1"))
ONLY = os.environ.get("DOORS_ONLY")
FEW, MANY = 100, 10_000
"""Inputs a door in `make test`, and in `make verify AREA=doors`."""

_RAW = {
    "\x01over\x01": "1e999",
    "\x01nan\x01": "NaN",
    "\x01deep\x01": "[" * 4000 + "]" * 4000,
    "\x01deeper\x01": '{"a":' * 100_000,
    "\x01digits\x01": "9" * 5000,
    "\x01half\x01": '"\\ud800"',
}
"""What JSON text may say though no value does: stands in a value as its key here, and is put in as text."""
_SCALARS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**400,
    0.0, -0.0, 0.5, -1.5, 1e-320, 1e308, -1e308,
    "", " ", "x", "0", "1", "true", "NaN", "a" * 5000, "\0", "\n", "\x1b[31m\x1b]0;t\x07", "[/x]", "[red]", "../../etc/passwd",
    "/", "..", "%2e", "#", "?", "\u202e", "\U0001f600", "é" * 300, "file:///", "http://127.0.0.1:1/", "gopher://x", "{}", "[]",
    *_RAW,
)  # fmt: skip
_COLLECTIONS: tuple[Any, ...] = (
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"type": "Work"},
    {"type": None},
    {"type": ["Job"]},
    [0] * 300,
)


@dataclass(frozen=True)
class Input:
    """One thing that somebody says at a door."""

    seed: int
    number: int
    data: bytes

    def __repr__(self) -> str:
        return f"input {self.number} of seed {self.seed}: {self.data[:300]!r}{'...' if len(self.data) > 300 else ''}"


def inputs(valid: Sequence[object], count: int, *, seed: int = SEED) -> Iterator[Input]:
    """Yield `count` inputs: three of four are mutated messages, the others mutated bytes.

    Args:
        valid: messages as `json.dumps` takes them, or bytes of any other kind.
        count: how many.
        seed: the same seed gives the same inputs.
    """
    numbers = range(count) if ONLY is None else (int(ONLY),)
    for number in numbers:
        chance = random.Random(f"{seed} {number}")
        one = chance.choice(valid)
        if isinstance(one, bytes):
            yield Input(seed, number, mutated_bytes(one, chance))
            continue
        text = to_text(mutated(one, chance, valid)) if chance.random() < 0.75 else mutated_bytes(to_text(one), chance)
        yield Input(seed, number, text)


def to_text(message: object) -> bytes:
    """Write a message as JSON, also what no JSON writer would write."""
    text = json.dumps(message)
    for name, raw in _RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text.encode()


def mutated(message: object, chance: random.Random, others: Sequence[object] = ()) -> object:
    """Return a message with one to three changes: values, keys, words and whole branches are replaced, lost, doubled, moved."""
    changed = copy.deepcopy(message)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        places = list(_places(changed))
        if not places:
            return _anything(chance, changed, others)
        holder, key = chance.choice(places)
        _change(holder, key, chance, changed, others)
    return changed


def _places(message: object) -> Iterator[tuple[Any, Any]]:
    if isinstance(message, dict):
        for key in list(message):
            yield message, key
            yield from _places(message[key])
    elif isinstance(message, list):
        for index, item in enumerate(message):
            yield message, index
            yield from _places(item)


def _change(holder: Any, key: Any, chance: random.Random, whole: object, others: Sequence[object]) -> None:
    what = chance.random()
    if what < 0.6:
        holder[key] = _anything(chance, holder[key], others)
    elif what < 0.75:
        del holder[key]
    elif what < 0.85 and isinstance(holder, dict):
        holder[chance.choice(("is", "version", "extra", "", "__class__", f"{key}_", "\x1b[2J"))] = _anything(
            chance, holder[key], others
        )
    elif isinstance(holder, list):
        holder.extend([holder[key]] * chance.choice((1, 2, 50)))
    else:
        branches = [where[name] for where, name in _places(whole)]
        holder[key] = copy.deepcopy(chance.choice(branches))


def _anything(chance: random.Random, old: object, others: Sequence[object]) -> Any:
    what = chance.random()
    if what < 0.55:
        return chance.choice(_SCALARS)
    if what < 0.65:
        return copy.deepcopy(chance.choice(_COLLECTIONS))
    if what < 0.75 and isinstance(old, (int, float)) and not isinstance(old, bool):
        return chance.choice((-old, old + 1, old * 1000, str(old), [old]))
    if what < 0.85 and isinstance(old, str):
        at = chance.randrange(len(old) + 1)
        return old[:at] + str(chance.choice(("\n", "\0", "[/x]", "\x1b[31m", "/", "'", '"', "é"))) + old[at:]
    if others:
        other = chance.choice(others)
        found = [where[name] for where, name in _places(other)]
        return copy.deepcopy(chance.choice(found)) if found else other if not isinstance(other, bytes) else None
    return [old]


def mutated_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with one to four changes: flipped, lost, cut, doubled, put in; or nothing of them at all."""
    if chance.random() < 0.1:
        return chance.randbytes(chance.choice((0, 1, 4, 64, 4096)))
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(changed) + 1)
        what = chance.randrange(5)
        if what == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            del changed[at : at + chance.choice((1, 2, 16))]
        elif what == 2:
            del changed[at:]
        elif what == 3:
            changed[at:at] = changed[at : at + chance.choice((1, 16, 256))]
        else:
            changed[at:at] = chance.choice(
                (b"\0", b"\xff", b"\xed\xa0\x80", b"\n", b"[" * 3000, b'"', b"{", b"\xef\xbb\xbf")
            )
    return bytes(changed)


def swallows(
    door: Callable[[bytes], object],
    valid: Sequence[object],
    count: int,
    *,
    refusals: type[Exception] | tuple[type[Exception], ...],
) -> int:
    """Hand a door `count` inputs: each is taken, or refused by one of `refusals`; return how many were taken.

    Raises:
        AssertionError: anything else came out, with the input that did it.
    """
    taken = 0
    for one in inputs(valid, count):
        try:
            door(one.data)
        except refusals:
            continue
        except BaseException as error:
            raise AssertionError(f"{type(error).__name__} at {one!r}") from error
        taken += 1
    return taken
