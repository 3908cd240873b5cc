"""YAML with the place of everything: what a file says, and the line and column where it says it.

PyYAML composes the nodes (and their marks); this module turns them into plain values under stricter rules than YAML
1.1 has: a key stands once, only plain values exist (no dates, no base-60 numbers, no tags), one document a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from windfall.errors import Misspelt, Misuse
from windfall.spelling import nearest

SIZE_BYTES_MAX = 256 * 1024
"""The longest file that is read [B]: more than this is data, not a job."""
VALUES_MAX = 20_000
"""The most values a file may hold, with what its aliases repeat."""
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]{0,30}|0x[0-9a-fA-F]{1,16})")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.[0-9]*([eE][-+][0-9]+)?|\.[0-9]+|\.(inf|Inf|INF|nan|NaN|NAN))")
_PLAIN = "tag:yaml.org,2002:"
_SUGGEST = {
    "cannot start any token": "a character that YAML keeps for itself: put the value in quotes",
    "mapping values are not allowed here": "a second colon, or a line indented too far: put the value in quotes, or "
    "align the line with its neighbours",
    "could not find expected ':'": "a key without a colon: write `key: value`",
    "expected <block end>": "this line is not aligned with its neighbours",
    "expected a single document": "a second document begins: one file holds one job, write the others to files of "
    "their own",
    "found undefined alias": "an alias of something that stands nowhere",
    "found unexpected end of stream": "the file ends inside a quoted text",
}

Path = tuple[str | int, ...]
"""Where in the tree: keys and numbers of list items from the top."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where in a file, counted from 1; line 0: not in a file but in what `name` says."""

    line: int
    column: int
    name: str

    def __str__(self) -> str:
        return f"{self.name}:{self.line}:{self.column}" if self.line else self.name


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says and where.

    Attributes:
        name: the file as the user named it.
        value: maps, lists and plain values.
        keys, values: places by path; of the key, and of what stands after it.
        raw: each plain value's text as it is written, by path.
    """

    name: str
    value: Any
    keys: Mapping[Path, Place]
    values: Mapping[Path, Place]
    raw: Mapping[Path, str]

    def place(self, path: Path, *, key: bool = False) -> Place:
        """Return where a value (or its key) stands; of what is not there, where its surroundings begin."""
        if key and path in self.keys:
            return self.keys[path]
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path, Place(1, 1, self.name))


@dataclass(slots=True)
class _Walk:
    """Builds a document from nodes.  `open` holds the nodes above the present one, because an alias may lead back."""

    name: str
    keys: dict[Path, Place] = field(default_factory=dict)
    values: dict[Path, Place] = field(default_factory=dict)
    raw: dict[Path, str] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def place(self, mark: yaml.Mark) -> Place:
        return Place(mark.line + 1, mark.column + 1, self.name)

    def of(self, node: yaml.Node, path: Path) -> Any:
        here = self.place(node.start_mark)
        self.values[path] = here
        if len(self.values) > VALUES_MAX:
            raise Misspelt(f"{here}: the file holds more than {VALUES_MAX} values, aliases counted: it is no job file")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, here)
        if node.tag not in (f"{_PLAIN}map", f"{_PLAIN}seq"):
            raise Misspelt(f"{here}: the tag {_tag(node)} is not read here; write plain maps, lists and values")
        if id(node) in self.open:
            raise Misspelt(f"{here}: an alias leads back to something it stands in")
        self.open.add(id(node))
        made = self._map(node, path) if isinstance(node, yaml.MappingNode) else self._list(node, path)
        self.open.remove(id(node))
        return made

    def _list(self, node: yaml.Node, path: Path) -> list[Any]:
        return [self.of(item, (*path, number)) for number, item in enumerate(node.value)]

    def _map(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        seen: dict[str, Place] = {}
        for key, _ in node.value:
            here = self.place(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                raise Misspelt(f"{here}: a key must be text, not a list or a map")
            if key.value in seen:
                name = dotted((*path, key.value))
                raise Misspelt(f"{here}: {name} stands twice; the first is in line {seen[key.value].line}")
            seen[key.value] = here
        try:
            yaml.SafeLoader("").flatten_mapping(node)
        except yaml.constructor.ConstructorError as error:
            where = self.place(error.problem_mark or node.start_mark)
            raise Misspelt(f"{where}: `<<` takes in a map by its alias (`<<: *name`), nothing else") from error
        # An own key wins over one taken in; without the loser, a map met again by its alias has each key once.
        node.value = list({key.value: (key, item) for key, item in node.value}.values())
        made = {}
        for key, item in node.value:
            below = (*path, str(key.value))
            self.keys[below] = self.place(key.start_mark)
            made[str(key.value)] = self.of(item, below)
        return made

    def _scalar(self, node: yaml.ScalarNode, path: Path, here: Place) -> Any:
        text: str = node.value
        self.raw[path] = text
        if "\0" in text:
            raise Misspelt(f"{here}: a null character is no text")
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
        raise Misspelt(f"{here}: the tag {_tag(node)} is not read here; write the plain value")


def _tag(node: yaml.Node) -> str:
    return node.tag.replace(_PLAIN, "!!")[:60]


def dotted(path: Path) -> str:
    """Return a path as people write it: `resources.any_of[1].infra`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def read(path: str) -> str:
    """Return the text of a file.

    Raises:
        Misuse: there is none, or it cannot be read.
        Misspelt: it is not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(SIZE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise Misuse(f"{path} does not exist; {_beside(path)}") from error
    except IsADirectoryError as error:
        raise Misuse(f"{path} is a folder; give the job file in it, for example {path.rstrip('/')}/job.yaml") from error
    except (OSError, ValueError) as error:
        raise Misuse(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > SIZE_BYTES_MAX:
        raise Misuse(f"{path} is longer than {SIZE_BYTES_MAX // 1024} KiB: it is no job file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        raise Misspelt(f"{_after(before, path)}: byte 0x{data[error.start]:02x} is not UTF-8; save as UTF-8") from error


def _beside(path: str) -> str:
    folder, name = os.path.split(path)
    try:
        there = sorted(other for other in os.listdir(folder or ".") if other.endswith((".yaml", ".yml")))
    except OSError:
        return f"there is no folder {folder} either"
    return nearest(name, there[:5]) if there else "no file there ends in .yaml"


def _after(text: str, name: str) -> Place:
    return Place(text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1, name)


def parse(text: str, name: str) -> Document:
    """Return what a text says, with places.

    Args:
        text: YAML.
        name: what places are called by, usually the file's path.

    Raises:
        Misspelt: it is not YAML, or says what a job file may not say; `value` is None if it says nothing.
    """
    walk = _Walk(name)
    try:
        node = yaml.SafeLoader(text).get_single_node()
        value = None if node is None else walk.of(node, ())
    except yaml.reader.ReaderError as error:
        where = _after(text[: error.position], name)
        raise Misspelt(f"{where}: a control character (0x{ord(text[error.position]):02x}) is no text") from error
    except yaml.MarkedYAMLError as error:
        raise Misspelt(_not_yaml(error, text, walk)) from error
    except RecursionError as error:
        raise Misspelt(f"{Place(1, 1, name)}: lists or maps stand in one another too deep to be read") from error
    return Document(name, value, walk.keys, walk.values, walk.raw)


def _not_yaml(error: yaml.MarkedYAMLError, text: str, walk: _Walk) -> str:
    mark = error.problem_mark or error.context_mark
    assert mark is not None, "a scanner's, parser's or composer's error has a mark"
    problem = f"{error.context or ''} {error.problem or ''}"
    line = (text.splitlines() or [""])[min(mark.line, max(0, len(text.splitlines()) - 1))]
    if "\t" in line[: len(line) - len(line.lstrip())] or r"'\t'" in problem:
        return f"{walk.place(mark)}: a tab: YAML is indented with spaces"
    said = next((words for part, words in _SUGGEST.items() if part in problem), f"not YAML: {problem.strip()}")
    return f"{walk.place(mark)}: {said}"


def override(document: Document, key: str, text: str) -> Document:
    """Return the document with one value set from the command line.

    Args:
        document: what the file says.
        key: dotted, through maps only: `resources.use_spot`.
        text: the value as YAML.

    Raises:
        Misuse: the key is empty, or leads through something that is no map.
        Misspelt: the value is not YAML.
    """
    label = f"--set {key}"
    path: Path = tuple(key.split("."))
    if not all(path):
        raise Misuse(f"{label}: a key is words with dots between them, for example resources.use_spot=false")
    said = parse(text, label)
    value = top = dict(document.value) if isinstance(document.value, dict) else {}
    for number, part in enumerate(path[:-1], 1):
        below = value.get(part, {})
        if not isinstance(below, dict):
            raise Misuse(f"{label}: {dotted(path[:number])} in {document.name} is no map: set it whole")
        value[part] = below = dict(below)
        value = below
    value[path[-1]] = said.value
    places = {path + below: Place(0, 0, label) for below in said.values} or {path: Place(0, 0, label)}
    raw = {path + below: written for below, written in said.raw.items()}
    return Document(
        document.name, top, {**document.keys, **places}, {**document.values, **places}, {**document.raw, **raw}
    )
