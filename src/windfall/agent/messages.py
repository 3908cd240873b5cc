"""The lines of a rank's message file, understood.  What a script says is input: what makes no sense is refused by name."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from windfall.terms import Metric, Phase

NUMBER_MAX = 1 << 62
"""No step, request or duration [ns] is larger: it would not fit the page."""
NAME_BYTES_MAX = 255
"""Length of a result's name [B]: it must be the name of a file wherever it is brought back."""
SHOWN_MAX = 80
_PHASES = frozenset({"evaluation", "compile", "data", "save"})


@dataclass(frozen=True, slots=True)
class HandOver:
    """`backup(path)` or, with the name of a result, `save_result(path)`; `path` None: this rank has no part.

    Attributes:
        at_ns: when it was called (monotonic), 0 if it does not say.
        own: the script was not asked for it.
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


@dataclass(frozen=True, slots=True)
class PhaseEnded:
    """A phase other than a step has ended."""

    step: int
    phase: Phase
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """`report(...)`: numbers, and the names of those that are none."""

    step: int
    numbers: tuple[tuple[str, Metric], ...]
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A line that cannot be understood, or not be followed.

    Attributes:
        request, step: of a hand-over that answered a request, which is served by nothing; 0 otherwise.
    """

    reason: str
    request: int = 0
    step: int = 0


Message = HandOver | PhaseEnded | Metrics | Refused


def read(line: bytes, step: int) -> Message:
    """Return what a line says.

    Args:
        line: without its end.
        step: the rank's, for messages that do not name theirs.
    """
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return Refused(f"{shown(line.decode(errors='replace'))} is no message")
    kind = said.get("it") if isinstance(said, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        return Refused(f"{shown(said)} is no message")
    try:
        return _KINDS[kind](said, _number(said, "step") if "step" in said else step)
    except ValueError as error:
        return Refused(f"{kind}: {error}")


def _hand_over(said: Mapping[str, Any], step: int) -> HandOver | Refused:
    request, number, stall_ns = _number(said, "request"), _number(said, "seq"), _number(said, "stall_ns")
    path, result = said.get("path"), said.get("name", "")
    if said["it"] == "result":
        if not is_name(result):
            return Refused(f"{shown(result)} is no name for a result: name it as a file could be named")
        if path is None:
            return Refused(f"the result {shown(result)} has no path")
    if path is not None and (why := _unusable(path)):
        return Refused(f"{shown(path)} was handed over at step {step}: {why}", request, step)
    at_ns = _number(said, "at_ns") if "at_ns" in said else 0
    own = request == 0 or said.get("own") is True
    called, counted = (result if said["it"] == "result" else ""), said.get("counted") is True
    return HandOver(step, request, number, stall_ns, path, called, at_ns, own, counted)


def is_name(name: object) -> bool:
    """Say whether this may be the name of a result: one that a file could have anywhere."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or not name.isprintable():
        return False
    return len(name.encode(errors="surrogateescape")) <= NAME_BYTES_MAX


def _unusable(path: object) -> str:
    """Return why a path cannot be one; empty if it can."""
    if not isinstance(path, str) or not path:
        return "that is no path"
    if "\0" in path:
        return "no path has a NUL in it"
    try:
        os.fsencode(path)
    except UnicodeError:
        return "no file can have that name"
    return "" if path.startswith("/") else "the path is not absolute"


def _phase(said: Mapping[str, Any], step: int) -> PhaseEnded:
    name = said.get("name")
    if not isinstance(name, str) or name not in _PHASES:
        raise ValueError(f"there is no phase {shown(name)}")
    return PhaseEnded(step, Phase(name), _number(said, "duration_ns"))


def _metrics(said: Mapping[str, Any], step: int) -> Metrics:
    metrics = said.get("metrics")
    if not isinstance(metrics, dict):
        raise ValueError(f"{shown(metrics)} is no table of numbers")
    numbers: list[tuple[str, Metric]] = []
    refused: list[str] = []
    for name, value in sorted(metrics.items()):
        if not isinstance(value, (int, float)):
            continue
        try:
            numbers.append((name, Metric(float(value))))
        except OverflowError:
            refused.append(f"{shown(name)} of step {step} is too large for a number")
    return Metrics(step, tuple(numbers), tuple(refused))


def _number(said: Mapping[str, Any], name: str) -> int:
    """Return a whole number that is there, and not beyond all bounds."""
    value = said.get(name)
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{shown(value)} is no {name}")
    return value


def shown(value: object) -> str:
    """Return a value as a sentence may show it: on one line, printable, and not endless."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."


def _unsaid(said: Mapping[str, Any], _step: int) -> Refused:
    return Refused(f"{shown(said.get('what'))} cannot be written down ({shown(said.get('why'))})")


_KINDS: Mapping[str, Callable[[Mapping[str, Any], int], Message]] = {
    "backup": _hand_over,
    "result": _hand_over,
    "phase": _phase,
    "report": _metrics,
    "unsaid": _unsaid,
}
