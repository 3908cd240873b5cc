"""An item's folder: what is in it when the item starts, what is read from it when the item has ended.

Each try of an item has a folder of its own.  At its start it has a link to each entry of the folder with the code, so that a
command finds its script, and whatever it writes is its own.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from windfall.bags import ResultRule, Value
from windfall.wire import hand_over

OUTPUT = ".output"
"""What the item prints, in its folder."""
TABLE, COLLECTED = "results.csv", "collected"
"""What the reduce step finds in its folder: the results of all items that are done, and a folder with their files."""
_OWN = (OUTPUT, hand_over.HANDED, hand_over.ANSWER, f"{hand_over.HANDED}.lock")
PRINTED = "-"
"""How a rule names what the item printed."""
KEPT_BYTES_MAX = 256 << 10
"""How much of the end of what an item printed is kept [B]."""
READ_BYTES_MAX = 64 << 20
"""Results are looked for in the last part of a file, of this length [B]."""
_HIDDEN = ".windfall"


def make(folder: Path, work: Path) -> None:
    """Create an item's folder with links to the code; what an earlier try left there goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for entry in os.scandir(work):
        if entry.name != _HIDDEN:
            os.symlink(entry.path, folder / entry.name)


def printed(folder: Path) -> bytes:
    """Return the end of what an item printed."""
    return _tail(folder / OUTPUT, KEPT_BYTES_MAX)


def read_results(rules: Sequence[ResultRule], folder: Path) -> tuple[dict[str, Value], str]:
    """Return an item's results, and one sentence on the first that is missing; empty if none is."""
    texts: dict[str, str | None] = {}
    found: dict[str, Value] = {}
    for rule in rules:
        if rule.file not in texts:
            texts[rule.file] = _text(folder, rule.file)
        value = value_of(rule, texts[rule.file])
        if isinstance(value, _Missing):
            return found, f"result {rule.name}: {value}"
        found[rule.name] = value
    return found, ""


class _Missing(str):
    """Why there is no result."""


def _text(folder: Path, name: str) -> str | None:
    path = folder / (OUTPUT if name == PRINTED else name)
    if not path.is_file():
        return None
    return _tail(path, READ_BYTES_MAX).decode(errors="replace")


def _tail(path: Path, size_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(length - size_bytes, 0))
            return file.read(size_bytes)
    except OSError:
        return b""


def value_of(rule: ResultRule, text: str | None) -> Value | _Missing:
    """Return a result in the text of its file, which is None if there is none; or why it is missing."""
    where = "what it printed" if rule.file == PRINTED else rule.file
    if text is None:
        return _Missing(f"the command left no file {rule.file}")
    return _matched(rule.regex, text, where) if rule.regex is not None else _in_json(rule.key or rule.name, text, where)


def _matched(regex: str, text: str, where: str) -> Value | _Missing:
    *_, last = (None, *re.finditer(regex, text, re.MULTILINE))
    return (
        _Missing(f"nothing in {where} matches {regex}") if last is None else parsed(last[min(last.re.groups, 1)] or "")
    )


def _in_json(keys: str, text: str, where: str) -> Value | _Missing:
    try:
        value = json.loads(text)
    except ValueError as error:
        return _Missing(f"{where} is not JSON ({error})")
    for key in keys.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return _Missing(f"{where} has no key {keys}")
        value = value[key]
    if not isinstance(value, (str, int, float, bool)):
        return _Missing(f"{keys} in {where} is neither a number nor text")
    return value


def parsed(text: str) -> Value:
    """Return a number where a text is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def collected(patterns: Sequence[str], folder: Path) -> Iterator[Path]:
    """Yield the files of an item that match a pattern, by path; links to the code, pipes and sockets are none of them."""
    names = sorted(
        os.path.relpath(os.path.join(root, name), folder)
        for root, _, files in os.walk(folder)
        for name in files
        if stat.S_ISREG(os.lstat(os.path.join(root, name)).st_mode)
    )
    for name in names:
        if name not in _OWN and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            yield Path(name)
