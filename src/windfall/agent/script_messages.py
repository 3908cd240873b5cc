"""Parses the lines of a rank's message file.  They are untrusted input: an invalid line is refused with a reason."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from windfall.structs import Struct
from windfall.terms import Metric, Phase

NUMBER_MAX = 1 << 62
"""Limit on steps, requests and durations [ns]: larger numbers would not fit the page."""
NAME_BYTES_MAX = 255
"""Limit on a result's name [B]: it must be a valid file name wherever the result is downloaded."""
SHOWN_MAX = 80
_PHASES = frozenset({"evaluation", "compile", "data", "save"})


class HandOver(Struct, frozen=True):
    """`backup(path)` or, with the name of a result, `save_result(path)`; `path` None: this rank has no shard.

    Attributes:
        at_ns: when it was called (monotonic); 0 if unknown.
        own: Windfall did not request it.
        counted: it counts as the end of a step, in a script that ends none itself.
    """

    step: int
    request: int
    number: int
    stall_ns: int
    path: str | None
    result: str = ""
    at_ns: int = 0
    own: bool = False
    counted: bool = False


class PhaseEnded(Struct, frozen=True):
    """The end of a phase other than a step."""

    step: int
    phase: Phase
    duration_ns: int


class Metrics(Struct, frozen=True):
    """`report(...)`: the numbers, and the reasons for values that were refused."""

    step: int
    numbers: tuple[tuple[str, Metric], ...]
    refused: tuple[str, ...]


class RefusedLine(Struct, frozen=True):
    """An invalid line.

    Attributes:
        request, step: of a hand-over that answered a request, which stays unserved; 0 otherwise.
    """

    reason: str
    request: int = 0
    step: int = 0


Message = HandOver | PhaseEnded | Metrics | RefusedLine


def parse_line(line: bytes, step: int) -> Message:
    """Parse a line.

    Args:
        line: without its newline.
        step: the rank's, for messages without one.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return RefusedLine(f"{shown(line.decode(errors='replace'))} is not a message")
    kind = fields.get("type") if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        return RefusedLine(f"{shown(fields)} is not a message")
    try:
        return _KINDS[kind](fields, _number(fields, "step") if "step" in fields else step)
    except ValueError as error:
        return RefusedLine(f"{kind}: {error}")


def _hand_over(fields: Mapping[str, Any], step: int) -> HandOver | RefusedLine:
    request, number, stall_ns = _number(fields, "request"), _number(fields, "seq"), _number(fields, "stall_ns")
    path, result = fields.get("path"), fields.get("name", "")
    if fields["type"] == "result":
        if not is_name(result):
            return RefusedLine(
                f"{shown(result)} is not a valid name for a result; use a valid file name without a slash"
            )
        if path is None:
            return RefusedLine(f"the result {shown(result)} has no path")
    if path is not None and (reason := _unusable(path)):
        return RefusedLine(f"cannot save {shown(path)} at step {step}: {reason}", request, step)
    at_ns = _number(fields, "at_ns") if "at_ns" in fields else 0
    own = request == 0 or fields.get("own") is True
    called, counted = (result if fields["type"] == "result" else ""), fields.get("counted") is True
    return HandOver(step, request, number, stall_ns, path, called, at_ns, own, counted)


def is_name(name: object) -> bool:
    """Say whether a result may have this name: it must be a valid file name on any system."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or not name.isprintable():
        return False
    return len(name.encode(errors="surrogateescape")) <= NAME_BYTES_MAX


def _unusable(path: object) -> str:
    """Return why a path is not valid; empty if it is."""
    if not isinstance(path, str) or not path:
        return "not a path"
    if "\0" in path:
        return "a path cannot contain NUL"
    try:
        os.fsencode(path)
    except UnicodeError:
        return "not a valid file name"
    return "" if path.startswith("/") else "not an absolute path"


def _phase(fields: Mapping[str, Any], step: int) -> PhaseEnded:
    name = fields.get("name")
    if not isinstance(name, str) or name not in _PHASES:
        raise ValueError(f"unknown phase {shown(name)}")
    return PhaseEnded(step, Phase(name), _number(fields, "duration_ns"))


def _metrics(fields: Mapping[str, Any], step: int) -> Metrics:
    metrics = fields.get("metrics")
    if not isinstance(metrics, dict):
        raise ValueError(f"{shown(metrics)} is not a dictionary of numbers")
    numbers: list[tuple[str, Metric]] = []
    refused: list[str] = []
    for name, value in sorted(metrics.items()):
        if not isinstance(value, (int, float)):
            continue
        try:
            numbers.append((name, Metric(float(value))))
        except OverflowError:
            refused.append(f"the value of {shown(name)} at step {step} is too large")
    return Metrics(step, tuple(numbers), tuple(refused))


def _number(fields: Mapping[str, Any], name: str) -> int:
    """Return a field that must be a whole number from 0 to `NUMBER_MAX`."""
    value = fields.get(name)
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{shown(value)} is not a valid {name}")
    return value


def shown(value: object) -> str:
    """Return a value for a message: one line, printable, at most `SHOWN_MAX` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."


def _unencodable(fields: Mapping[str, Any], _step: int) -> RefusedLine:
    return RefusedLine(f"cannot encode {shown(fields.get('what'))} ({shown(fields.get('reason'))})")


_KINDS: Mapping[str, Callable[[Mapping[str, Any], int], Message]] = {
    "backup": _hand_over,
    "result": _hand_over,
    "phase": _phase,
    "report": _metrics,
    "unencodable": _unencodable,
}
