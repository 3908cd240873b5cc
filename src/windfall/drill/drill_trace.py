"""The traces of a drill's processes, and when two of their values are the same."""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Record = Mapping[str, Any]
Items = Mapping[str, Record]

SCALAR_TOLERANCE = 1e-6
"""Relative tolerance: a learning rate may be computed step by step before a restart and in closed form after it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between a restored run and the continuation.

    Attributes:
        code: its kind: model, optimizer, scheduler, lr, data, torch-rng, ... (`docs/howto/drill.md` lists them).
        subject: what differs: `optimizer state not restored`.
        detail: how it differs, with the numbers.
        rank: the rank that has it; the lowest if several have it.
        step: first step at which it shows, in the script's own count.
        forgotten: whether the script fails to resume because of it; otherwise it is a note.
    """

    code: str
    subject: str
    detail: str
    rank: int
    step: int
    forgotten: bool = True

    @property
    def message(self) -> str:
        """Subject and detail as one sentence."""
        return f"{self.subject}: {self.detail}"


@dataclass(slots=True)
class ScriptTrace:
    """The trace of one rank of one process group.

    Attributes:
        begins: the state at the start of a step, by how many steps had ended in this process before it.
        updates, ends: what was seen at updates and at the end of a step, by the same number.
        afters: the state at the end of a step, by how many steps had ended with it; for steps at which a save was due.
        asked: the path that the script got for its checkpoint; None if it got none.
        has_asked: whether it asked for its checkpoint.
        saved: number of ended steps, and path of the shard (None: this rank has none); None if nothing was handed over.
        stall_s: of the hand-over [s].
        loads: messages about states that did not fit.
        wrote: files outside the drill's folder that were opened for writing.
        steps_s: durations of the steps without the first [s].
        first_end_at_s: monotonic time at which the first step ended.
        numbers: the SDK's step number at the end of each step.
        left: whether the process ran to the end of the drill.
    """

    rank: int
    begins: dict[int, Items] = field(default_factory=dict)
    updates: dict[int, Items] = field(default_factory=dict)
    ends: dict[int, Items] = field(default_factory=dict)
    afters: dict[int, Items] = field(default_factory=dict)
    asked: str | None = None
    has_asked: bool = False
    saved: tuple[int, str | None] | None = None
    stall_s: float | None = None
    loads: list[str] = field(default_factory=list)
    wrote: list[str] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    first_end_at_s: float | None = None
    numbers: dict[int, int] = field(default_factory=dict)
    left: bool = False

    @property
    def step(self) -> int:
        """How many steps have ended."""
        return max(self.ends, default=-1) + 1

    def data(self, number: int) -> Items:
        """Return what is known about the data of the step that follows `number` others."""
        both = {**self.begins.get(number, {}), **self.ends.get(number, {})}
        return {name: record for name, record in both.items() if name.startswith("data:")}

    def history(self, key: str) -> list[tuple[int, Record]]:
        """Return the values of an item at the starts of steps; at their ends if no start was seen."""
        moments = self.begins or self.ends
        return [(number, items[key]) for number, items in sorted(moments.items()) if key in items]

    def changes(self, key: str) -> int:
        """Return how often an item changed from one moment to the next."""
        values = [record for _, record in self.history(key)]
        return sum(not same(before, after) for before, after in itertools.pairwise(values))


def parse(rank: int, lines: Iterable[str]) -> ScriptTrace:
    """Read a rank's trace; an incomplete last line is ignored."""
    trace = ScriptTrace(rank)
    whole: dict[str, Record] = {}
    for text in lines:
        if not text.endswith("\n"):
            break
        line = json.loads(text)
        if "items" in line:
            whole |= line["items"]
            line["items"] = line["items"] | {name: whole[name] for name in line["same"]}
        _take(trace, line)
    return trace


def _take(trace: ScriptTrace, line: dict[str, Any]) -> None:
    kind, number = line["m"], line["n"]
    if kind == "begin":
        trace.begins[number] = line["items"]
    elif kind == "update":
        trace.updates.setdefault(number, line["items"])
    elif kind == "end":
        trace.ends[number - 1] = line["items"]
        trace.numbers[number - 1] = line["step"]
        if trace.first_end_at_s is not None and "duration_s" in line:
            trace.steps_s.append(line["duration_s"])
        trace.first_end_at_s = trace.first_end_at_s or line["at_s"]
    elif kind == "after":
        trace.afters[number] = line["items"]
    elif kind == "again":
        trace.begins.pop(number, None)
        trace.updates.pop(number, None)
    else:
        _note(trace, line)


def _note(trace: ScriptTrace, line: dict[str, Any]) -> None:
    """Record what belongs to no step."""
    kind = line["m"]
    if kind == "last":
        trace.has_asked, trace.asked = True, line["path"]
    elif kind == "backup" and trace.saved is None:
        trace.saved, trace.stall_s = (line["n"], line["path"]), line["stall_s"]
    elif kind == "load":
        trace.loads.append(line["message"])
    elif kind == "wrote":
        trace.wrote.append(line["path"])
    elif kind == "left":
        trace.left = True


def same(one: Record | None, other: Record | None) -> bool:
    """Return whether two values are the same: arrays bit by bit, numbers within rounding."""
    if one is None or other is None:
        return one is other
    if "d" in one or "d" in other:
        return one.get("d") == other.get("d")
    return _close(one["v"], other["v"])


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_close(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=SCALAR_TOLERANCE, abs_tol=1e-12)
    return bool(one == other)


def distance(one: Record, other: Record) -> float:
    """Return the difference of two values relative to their size, as far as the trace shows; 0 if they are equal."""
    if same(one, other):
        return 0.0
    a, b = _values(one), _values(other)
    if not a or len(a) != len(b):
        return math.inf
    size = math.fsum(abs(x) + abs(y) for x, y in zip(a, b, strict=True)) / 2.0
    return math.fsum(abs(x - y) for x, y in zip(a, b, strict=True)) / size if size else math.inf


def _values(record: Record) -> Sequence[float]:
    found = [*record["x"], record["n"]] if "x" in record else record.get("v")
    values = found if isinstance(found, list) else [found]
    return [value for value in values if isinstance(value, (int, float))]


def is_zero(record: Record | None) -> bool:
    """Return whether a value exists and consists of zeros."""
    return record is not None and (record.get("n") == 0.0 if "n" in record else record.get("v") in (0, 0.0))


def rounded(expected: Record, found: Record) -> str | None:
    """Return the number type to which `expected` was rounded to give `found`; None if it was not rounded."""
    if "x" not in expected or "x" not in found or expected.get("s") != found.get("s") or expected["d"] == found["d"]:
        return None
    before, after = _values(expected), _values(found)
    if found["t"] != expected["t"] and all(
        math.isclose(a, b, rel_tol=0.01, abs_tol=1e-6) for a, b in zip(before, after, strict=True)
    ):
        return str(found["t"])
    for kind, rounding in (("bfloat16", _bfloat16), ("float16", _float16), ("float32", _float32)):
        if [rounding(value) for value in expected["x"]] == list(found["x"]) and expected["t"] != kind:
            return kind
    return None


def _bfloat16(value: float) -> float:
    """Round to the nearest, ties to even, as torch does."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits += 0x7FFF + ((bits >> 16) & 1)
    (result,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))
    return float(result)


def _float16(value: float) -> float:
    try:
        return float(struct.unpack("<e", struct.pack("<e", value))[0])
    except OverflowError:
        return math.inf


def _float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def by_owner(keys: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """Group keys `channel:owner|detail` by channel and owner."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key in keys:
        channel, _, rest = key.partition(":")
        groups[channel, rest.partition("|")[0]].append(key)
    return dict(groups)


def shown(record: Record | None) -> str:
    """Return a value as text for people, with four digits."""
    if record is None:
        return "nothing"
    if "v" in record:
        value = record["v"]
        return ", ".join(map(_short, value)) if isinstance(value, list) else _short(value)
    return f"norm {_short(record['n'])}" if "n" in record else f"#{record['d'][:6]}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
