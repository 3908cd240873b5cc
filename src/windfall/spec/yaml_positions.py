"""YAML with positions: the values of a file, and the line and column of each.

PyYAML composes the nodes (and their marks); this module turns them into plain values under stricter rules than YAML
1.1: no duplicate keys, only plain values (no dates, base-60 numbers or tags), one document per file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from windfall.errors import InvalidFile, Misuse
from windfall.spelling import closest
from windfall.structs import Struct

SIZE_BYTES_MAX = 256 * 1024
"""The longest file that is read [B]: more than this is data, not a job."""
VALUES_MAX = 20_000
"""The most values in a file, including what its aliases repeat."""
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]{0,30}|0x[0-9a-fA-F]{1,16})")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.[0-9]*([eE][-+][0-9]+)?|\.[0-9]+|\.(inf|Inf|INF|nan|NaN|NAN))")
_PLAIN = "tag:yaml.org,2002:"
_SUGGEST = {
    "cannot start any token": "a character that YAML reserves: put the value in quotes",
    "mapping values are not allowed here": "a second colon, or a line indented too far: put the value in quotes, or "
    "align the line with its neighbours",
    "could not find expected ':'": "a key without a colon: write `key: value`",
    "expected <block end>": "this line is not aligned with its neighbours",
    "expected a single document": "a second document: a file holds one job, so put the others into their own files",
    "found undefined alias": "an alias that is not defined",
    "found unexpected end of stream": "the file ends inside a quoted text",
}

YamlPath = tuple[str | int, ...]
"""A position in the tree: keys and list indices from the top."""


class YamlPosition(Struct, frozen=True, order=True):
    """A position in a file, counted from 1; line 0: not in a file but in the option `name`."""

    line: int
    column: int
    name: str

    def __str__(self) -> str:
        return f"{self.name}:{self.line}:{self.column}" if self.line else self.name


class YamlDocument(Struct, frozen=True):
    """The values of a file, with their positions.

    Attributes:
        name: the file as the user named it.
        value: maps, lists and plain values.
        keys, values: positions by path, of the key and of its value.
        raw: the text of each plain value as written, by path.
    """

    name: str
    value: Any
    keys: Mapping[YamlPath, YamlPosition]
    values: Mapping[YamlPath, YamlPosition]
    raw: Mapping[YamlPath, str]

    def position(self, path: YamlPath, *, key: bool = False) -> YamlPosition:
        """Return the position of a value (or its key); if it does not exist, the position of the map around it."""
        if key and path in self.keys:
            return self.keys[path]
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path, YamlPosition(1, 1, self.name))


@dataclass(slots=True)
class _Walk:
    """Builds a document from nodes.  `open` holds the nodes above the present one, because an alias can be circular."""

    name: str
    keys: dict[YamlPath, YamlPosition] = field(default_factory=dict)
    values: dict[YamlPath, YamlPosition] = field(default_factory=dict)
    raw: dict[YamlPath, str] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def position(self, mark: yaml.Mark) -> YamlPosition:
        return YamlPosition(mark.line + 1, mark.column + 1, self.name)

    def of(self, node: yaml.Node, path: YamlPath) -> Any:
        here = self.position(node.start_mark)
        self.values[path] = here
        if len(self.values) > VALUES_MAX:
            raise InvalidFile(f"{here}: the file has more than {VALUES_MAX} values, aliases counted: not a job file")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, here)
        if node.tag not in (f"{_PLAIN}map", f"{_PLAIN}seq"):
            raise InvalidFile(f"{here}: the tag {_tag(node)} is not supported; use plain maps, lists and values")
        if id(node) in self.open:
            raise InvalidFile(f"{here}: the alias is circular: it refers to a value that contains it")
        self.open.add(id(node))
        made = self._map(node, path) if isinstance(node, yaml.MappingNode) else self._list(node, path)
        self.open.remove(id(node))
        return made

    def _list(self, node: yaml.Node, path: YamlPath) -> list[Any]:
        return [self.of(item, (*path, number)) for number, item in enumerate(node.value)]

    def _map(self, node: yaml.MappingNode, path: YamlPath) -> dict[str, Any]:
        seen: dict[str, YamlPosition] = {}
        for key, _ in node.value:
            here = self.position(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                raise InvalidFile(f"{here}: a key must be text, not a list or a map")
            if key.value in seen:
                name = dotted((*path, key.value))
                raise InvalidFile(f"{here}: {name} is a duplicate key; the first is in line {seen[key.value].line}")
            seen[key.value] = here
        try:
            yaml.SafeLoader("").flatten_mapping(node)
        except yaml.constructor.ConstructorError as error:
            where = self.position(error.problem_mark or node.start_mark)
            raise InvalidFile(f"{where}: `<<` can only merge a map by its alias (`<<: *name`)") from error
        # A map's own key overrides a merged one; without the overridden key, an alias of this map has no duplicates.
        node.value = list({key.value: (key, item) for key, item in node.value}.values())
        made = {}
        for key, item in node.value:
            below = (*path, str(key.value))
            self.keys[below] = self.position(key.start_mark)
            made[str(key.value)] = self.of(item, below)
        return made

    def _scalar(self, node: yaml.ScalarNode, path: YamlPath, here: YamlPosition) -> Any:
        text: str = node.value
        self.raw[path] = text
        if "\0" in text:
            raise InvalidFile(f"{here}: a null character is not allowed in text")
        kind = node.tag.removeprefix(_PLAIN)
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() in ("yes", "true", "on")
        if kind == "int" and _INTEGER.fullmatch(text):
            return int(text.replace("_", ""), 0)
        if kind == "float" and _FLOAT.fullmatch(text):
            number = text.replace("_", "").lower()
            return float(number.replace(".inf", "inf").replace(".nan", "nan"))
        if kind in ("str", "int", "float", "timestamp", "merge", "value"):
            return text
        raise InvalidFile(f"{here}: the tag {_tag(node)} is not supported; write the plain value")


def _tag(node: yaml.Node) -> str:
    return node.tag.replace(_PLAIN, "!!")[:60]


def dotted(path: YamlPath) -> str:
    """Return a path in dotted form: `resources.any_of[1].infra`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def read(path: str) -> str:
    """Return the text of a file.

    Raises:
        Misuse: it does not exist, or cannot be read.
        InvalidFile: it is not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(SIZE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise Misuse(f"{path} does not exist{_beside(path)}") from error
    except IsADirectoryError as error:
        raise Misuse(f"{path} is a folder; give a file, for example {path.rstrip('/')}/job.yaml") from error
    except (OSError, ValueError) as error:
        raise Misuse(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > SIZE_BYTES_MAX:
        raise Misuse(f"{path} is larger than {SIZE_BYTES_MAX // 1024} KiB: not a job file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        raise InvalidFile(
            f"{_after(before, path)}: byte 0x{data[error.start]:02x} is not UTF-8; save as UTF-8"
        ) from error


def _beside(path: str) -> str:
    folder, name = os.path.split(path)
    try:
        there = sorted(other for other in os.listdir(folder or ".") if other.endswith((".yaml", ".yml")))
    except OSError:
        return f"; the folder {folder} does not exist either"
    if not there:
        return "; that folder has no .yaml file"
    close = closest(name, there)
    return "" if close is None else f"; did you mean {close}?"


def _after(text: str, name: str) -> YamlPosition:
    return YamlPosition(text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1, name)


def parse(text: str, name: str) -> YamlDocument:
    """Return the values of a text, with positions.

    Args:
        text: YAML.
        name: the name in positions, usually the file's path.

    Raises:
        InvalidFile: it is not YAML, or not allowed in a job file; `value` is None if it is empty.
    """
    walk = _Walk(name)
    try:
        node = yaml.SafeLoader(text).get_single_node()
        value = None if node is None else walk.of(node, ())
    except yaml.reader.ReaderError as error:
        where = _after(text[: error.position], name)
        raise InvalidFile(f"{where}: a control character (0x{ord(text[error.position]):02x}) is not allowed") from error
    except yaml.MarkedYAMLError as error:
        raise InvalidFile(_not_yaml(error, text, walk)) from error
    except RecursionError as error:
        raise InvalidFile(f"{YamlPosition(1, 1, name)}: lists or maps are nested too deep") from error
    return YamlDocument(name, value, walk.keys, walk.values, walk.raw)


def _not_yaml(error: yaml.MarkedYAMLError, text: str, walk: _Walk) -> str:
    mark = error.problem_mark or error.context_mark
    assert mark is not None, "a scanner's, parser's or composer's error has a mark"
    problem = f"{error.context or ''} {error.problem or ''}"
    line = (text.splitlines() or [""])[min(mark.line, max(0, len(text.splitlines()) - 1))]
    if "\t" in line[: len(line) - len(line.lstrip())] or r"'\t'" in problem:
        return f"{walk.position(mark)}: a tab: indent YAML with spaces"
    hint = next((words for part, words in _SUGGEST.items() if part in problem), f"not YAML: {problem.strip()}")
    return f"{walk.position(mark)}: {hint}"


def override(document: YamlDocument, key: str, text: str, option: str | None = None) -> YamlDocument:
    """Return the document with one value set from the command line.

    Args:
        document: the file.
        key: dotted, through maps only: `resources.use_spot`.
        text: the value as YAML.
        option: the option that gave it, for messages; None for `--set`.

    Raises:
        Misuse: the key is empty, or leads through a value that is not a map.
        InvalidFile: the value is not YAML.
    """
    label = option or f"--set {key}"
    path: YamlPath = tuple(key.split("."))
    if not all(path):
        raise Misuse(f"{label}: a key is names separated by dots, for example resources.use_spot=false")
    given = parse(text, label)
    value = top = dict(document.value) if isinstance(document.value, dict) else {}
    made = []
    for number, part in enumerate(path[:-1], 1):
        if part not in value:
            made.append(path[:number])
        below = value.get(part, {})
        if not isinstance(below, dict):
            raise Misuse(f"{label}: {dotted(path[:number])} in {document.name} is not a map: set the whole key")
        value[part] = below = dict(below)
        value = below
    value[path[-1]] = given.value
    written = [path + below for below in given.values] or [path]
    places = dict.fromkeys((*made, *written), YamlPosition(0, 0, label))
    raw = {path + below: text for below, text in given.raw.items()}
    return YamlDocument(
        document.name, top, {**document.keys, **places}, {**document.values, **places}, {**document.raw, **raw}
    )
