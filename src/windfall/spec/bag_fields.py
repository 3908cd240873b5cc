"""The types of values in the block `bag`: how each is written, checked, and described in the JSON Schema."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from windfall.bags import ResultRule, Value
from windfall.core import item_commands
from windfall.models import parameter_space
from windfall.models.parameter_space import ListedParameter, RangedParameter, RangeKind
from windfall.spec.fields import Below, shown
from windfall.spelling import nearest

ITEMS_MAX = 10_000_000
NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_LISTS: Mapping[str, tuple[Callable[[float, float, Any], Sequence[float]], str]] = {
    "linspace": (parameter_space.linspace, "[0.8, 2.0, 7], for 7 numbers from 0.8 to 2.0"),
    "logspace": (parameter_space.logspace, "[0.001, 1, 4], for 4 numbers from 0.001 to 1 in equal ratios"),
    "range": (parameter_space.steps, "[0, 10, 2], for 0, 2, 4, 6, 8"),
}
_RANGES = {kind.value: kind for kind in RangeKind}
_FORMS = ("a value, a list of values, or one of", (*_LISTS, *_RANGES))
EXAMPLE = "T: [0.8, 1.2] or T: {linspace: [0.8, 2.0, 7]}"


_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
"""1e-3, which YAML 1.1 takes for a text."""


def _as_written(value: object) -> object:
    """Return a number for a text such as 1e-3; a whole one if it has no point and no negative exponent."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def _listed(values: object) -> str:
    """Return a wrong list for a message."""
    if isinstance(values, list) and len(values) <= 6:
        return f"[{', '.join(shown(value) for value in values)}]"
    return shown(values)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _parameters(value: object) -> tuple[ListedParameter | RangedParameter, ...]:
    if not isinstance(value, dict) or not value:
        wrong = "an empty map" if value == {} else shown(value)
        raise ValueError(f"must be a map of names and values such as {{T: [0.8, 1.2]}}, not {wrong}")
    found = []
    for name, written in value.items():
        if not isinstance(name, str) or not re.fullmatch(NAME, name):
            raise Below(name, f"must have a name of letters, digits and _, not {shown(name)}")
        if name in item_commands.OWN:
            raise Below(name, f"has a name that Windfall sets itself: {{{{{name}}}}} is known without it")
        try:
            found.append(_parameter(name, written))
        except ValueError as error:
            raise Below(name, str(error)) from error
    return tuple(found)


def _parameter(name: str, written: object) -> ListedParameter | RangedParameter:
    if isinstance(written, dict):
        return _spread(name, written)
    values: list[Any] = [_as_written(value) for value in (written if isinstance(written, list) else [written])]
    if not values:
        raise ValueError("is an empty list: no item would run")
    known: dict[str, object] = {}
    for value in values:
        if not isinstance(value, (str, int, float, bool)) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"must be numbers, texts or true and false, not {shown(value)}")
        if isinstance(value, int) and abs(value) > _WHOLE_MAX:
            raise ValueError(f"has a whole number that is too large to be exact: {value}; put it in quotes")
        text = item_commands.text_of(value)
        if "\0" in text:
            raise ValueError(f"has a character that no command can be given: {shown(value)}")
        if text in known:
            same = "twice" if shown(known[text]) == shown(value) else f"and {shown(known[text])}, which is the same"
            raise ValueError(f"has the value {shown(value)} {same}: an item would run twice")
        known[text] = value
    return ListedParameter(name, tuple(values))


def _spread(name: str, written: Mapping[Any, object]) -> ListedParameter | RangedParameter:
    kind, numbers = next(iter(written.items()), ("", None))
    if len(written) != 1 or kind not in (*_LISTS, *_RANGES):
        wrong = "nothing" if not written else ", ".join(map(str, written))
        raise ValueError(f"must be {_FORMS[0]} {', '.join(_FORMS[1])}, not {wrong}; for example {EXAMPLE}")
    count = 3 if kind in _LISTS else 2
    example = _LISTS[kind][1] if kind in _LISTS else "[0.1, 0.9]"
    if isinstance(numbers, list):
        numbers = [_as_written(number) for number in numbers]
    if not isinstance(numbers, list) or len(numbers) != count or not all(map(_is_number, numbers)):
        raise ValueError(f"must be {kind}: {example}, not {_listed(numbers)}")
    low, high = float(numbers[0]), float(numbers[1])
    if kind in ("logspace", "loguniform") and min(low, high) <= 0.0:
        raise ValueError(f"must be above zero at both ends of its {kind}, not {shown(min(low, high))}")
    if kind in _RANGES:
        if not low < high:
            raise ValueError(f"must have its lower end first: {kind}: [{numbers[1]}, {numbers[0]}]")
        if kind == "integers" and not (low.is_integer() and high.is_integer()):
            raise ValueError(f"must have whole numbers at both ends, such as integers: [1, 8], not {_listed(numbers)}")
        return RangedParameter(name, _RANGES[kind], low, high)
    return ListedParameter(name, _numbers(kind, numbers))


def _numbers(kind: str, numbers: Sequence[Any]) -> tuple[Value, ...]:
    function, example = _LISTS[kind]
    low, high, third = numbers
    if kind == "range":
        if third == 0 or not (high - low) / third > 0:
            raise ValueError(f"has no numbers: range: [{low}, {high}, {third}]; write for example range: {example}")
    elif not (isinstance(third, int) and third >= 1):
        raise ValueError(f"must have how many numbers last, for example {kind}: {example}, not {shown(third)}")
    if (high - low) / third > ITEMS_MAX if kind == "range" else third > ITEMS_MAX:
        raise ValueError(f"has more than {ITEMS_MAX:,} values")
    found = function(low, high, third)
    if len(set(found)) < len(found):
        raise ValueError(f"has the value {found[0]:g} twice: an item would run twice; write other ends, or one value")
    whole = all(isinstance(one, int) for one in numbers) and all(one.is_integer() for one in map(float, found))
    return tuple(int(one) for one in found) if whole else tuple(found)


def _results(value: object) -> tuple[ResultRule, ...]:
    if not isinstance(value, dict) or not value:
        wrong = "an empty map" if value == {} else shown(value)
        raise ValueError(f"must be a map of names and where each is found, not {wrong}")
    found = []
    for name, written in value.items():
        if not isinstance(name, str) or not re.fullmatch(NAME, name):
            raise Below(name, f"must have a name of letters, digits and _, not {shown(name)}")
        try:
            found.append(_result(name, written))
        except ValueError as error:
            raise Below(name, str(error)) from error
    return tuple(found)


def _result(name: str, written: object) -> ResultRule:
    example = "{file: log.txt, regex: 'energy = (.*)'} or {json: out.json, key: energy}"
    if not isinstance(written, dict):
        raise ValueError(f"must be {example}, not {shown(written)}")
    for key in written:
        if key not in ("file", "regex", "json", "key"):
            raise ValueError(f"has the unknown key {key}; {nearest(str(key), ('file', 'regex', 'json', 'key'))}")
        if not isinstance(written[key], str) or not written[key].strip():
            raise ValueError(f"must have text for {key}, not {shown(written[key])}")
    if "json" in written:
        if "regex" in written or "file" in written:
            raise ValueError("has json beside file or regex; keep one")
        return ResultRule(name, _inside(written["json"]), None, written.get("key", ""))
    if "regex" not in written or "key" in written:
        raise ValueError(f"must be {example}")
    try:
        groups = re.compile(written["regex"]).groups
    except re.error as error:
        raise ValueError(f"has a regex that is none ({error}): {written['regex']}") from error
    if groups > 1:
        raise ValueError(f"has a regex with {groups} groups; write (?:...) for all but the one with the value")
    return ResultRule(name, _inside(written.get("file", "-")), written["regex"])


def _inside(path: str) -> str:
    if os.path.isabs(path) or ".." in path.split("/"):
        raise ValueError(f"must name a file in the item's folder, not {path}")
    return path


def _share(value: object) -> float:
    text = str(value).strip()
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(%)?", text)
    share = 0.0 if match is None or isinstance(value, bool) else float(match[1]) / (100.0 if match[2] else 1.0)
    if not 0.0 < share <= 1.0:
        raise ValueError(f"must be a share of the items above 0 and up to 1, such as 0.9 or 90%, not {shown(value)}")
    return share


def _patterns(value: object) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(
                f"must be a pattern of file names, or a list of them, such as ['*.log'], not {shown(name)}"
            )
        _inside(name)
    return tuple(names)


def _sizes(value: object) -> tuple[float, ...]:
    found = tuple(map(_cpus, value)) if isinstance(value, list) else (_cpus(value),)
    if not found or any(after >= before for before, after in itertools.pairwise(found)):
        raise ValueError(
            f"must be a number, or the wanted number and then smaller ones, such as [4, 2, 1], not {_listed(value)}"
        )
    return found


def _cpus(value: object) -> float:
    if not _is_number(value) or not 0.0 < float(str(value)) <= _CPUS_MAX:
        raise ValueError(f"must be a number above zero and at most {_CPUS_MAX:,}, such as 2 or 0.5, not {shown(value)}")
    return float(str(value))


def _memory(value: object) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(MB|MiB|GB|GiB)?", str(value).strip())
    size_gib = 0.0 if match is None or isinstance(value, bool) else float(match[1])
    if match is not None and (match[2] or "").startswith("M"):
        size_gib /= 1024.0
    if not 0.0 < size_gib <= _MEMORY_GIB_MAX:
        raise ValueError(f"must be an amount of memory above zero, such as 2GB or 500MB, not {shown(value)}")
    return size_gib


_WHOLE_MAX = 2**63 - 1
_CPUS_MAX, _MEMORY_GIB_MAX = 10_000, 1e6
_VALUE: dict[str, Any] = {"type": ["string", "number", "boolean"]}
_SPREAD = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "propertyNames": {"enum": [*_LISTS, *_RANGES]},
    "additionalProperties": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3},
}
NAMED: dict[str, Any] = {"type": "object", "minProperties": 1, "propertyNames": {"pattern": f"^{NAME}$"}}
Parameters = Annotated[
    tuple[ListedParameter | RangedParameter, ...],
    PlainValidator(_parameters),
    WithJsonSchema(
        {
            **NAMED,
            "additionalProperties": {"anyOf": [_VALUE, {"type": "array", "items": _VALUE, "minItems": 1}, _SPREAD]},
        }
    ),
]
"""A parameter space."""
Results = Annotated[
    tuple[ResultRule, ...],
    PlainValidator(_results),
    WithJsonSchema({**NAMED, "additionalProperties": {"type": "object", "additionalProperties": {"type": "string"}}}),
]
"""What is read from the files of an item."""
Share = Annotated[
    float,
    PlainValidator(_share),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1}, {"type": "string"}]}),
]
"""A share above 0 and up to 1."""
Patterns = Annotated[
    tuple[str, ...],
    PlainValidator(_patterns),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
"""Patterns of file names."""
_ONE_SIZE: dict[str, Any] = {"type": "number", "exclusiveMinimum": 0, "maximum": _CPUS_MAX}
ItemCpus = Annotated[
    tuple[float, ...],
    PlainValidator(_sizes),
    WithJsonSchema({"anyOf": [_ONE_SIZE, {"type": "array", "items": _ONE_SIZE, "minItems": 1}]}),
]
"""How many processors an item needs, and with which smaller numbers it can run too."""
ItemMemory = Annotated[
    float,
    PlainValidator(_memory),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}),
]
"""How much memory an item needs [GiB]."""
