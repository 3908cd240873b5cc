"""Data of applications that is there already: files of the user's, and the text of Python's standard library."""

from __future__ import annotations

import csv
import hashlib
import json
import keyword
import platform
import re
import sysconfig
from collections import Counter
from pathlib import Path

from windfall.errors import Misuse
from windfall.spelling import plain
from windfall.structs import Struct

STORED_DIGESTS = {"3.11.7": "813828f981c5c27a4f6e503d7e7e60ed7019b47477d437b8a1390dab10dac04b"}
"""Of the standard library's text, by the version of Python: with these files the published curves were made."""
_LEFT_OUT = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "__phello__"})
_COMMON = frozenset((*(word.lower() for word in keyword.kwlist), "self"))


class SourceTexts(Struct, frozen=True, eq=False):
    """The modules of Python's standard library as texts, without its tests and what an installation writes itself.

    Attributes:
        names: of the modules' files, relative to the library's folder.
        words: of each module, in order: of at least three letters, no keyword, in two modules at least, in half of all at most.
        python: version of Python.
        digest: SHA-256 of names and contents.
    """

    names: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    python: str
    digest: str

    def origin(self) -> dict[str, object]:
        """Return where the texts are from, and whether they are the ones of which a digest is stored."""
        stored = STORED_DIGESTS.get(self.python)
        return {
            "source": "standard-library",
            "python": self.python,
            "digest": self.digest,
            "stored digest": stored,
            "same files": self.digest == stored,
        }


def words_of(text: str) -> list[str]:
    """Return the words of a text, of at least three letters, in lower case."""
    return [word.lower() for word in re.findall("[A-Za-z]{3,}", text)]


def standard_library(digest: str | None = None) -> SourceTexts:
    """Return the text of the standard library of the Python that runs.

    Args:
        digest: that the files must have; None for any.

    Raises:
        Misuse: they have another one, or are not there.
    """
    folder, sha256 = Path(sysconfig.get_path("stdlib")), hashlib.sha256()
    names, texts = [], []
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if any(
            part in _LEFT_OUT or part.startswith(("config-", "_sysconfigdata", "sitecustom")) for part in name.parts
        ):
            continue
        content = path.read_bytes()
        sha256.update(f"{name.as_posix()}\0{len(content)}\0".encode() + content)
        names.append(name.as_posix())
        texts.append(words_of(content.decode("utf-8", "replace")))
    found = sha256.hexdigest()
    if not names:
        raise Misuse(f"settings.source: no module of Python's standard library is in {folder}; write another source")
    if digest is not None and digest != found:
        raise Misuse(
            f"settings.digest: the text of Python's standard library ({platform.python_version()}) has the digest {found}, "
            f"not {plain(digest)}; use the Python that the digest is of, or leave digest out"
        )
    modules = Counter(word for text in texts for word in set(text))
    kept = {word for word, count in modules.items() if 2 <= count <= len(texts) / 2} - _COMMON
    words = tuple(tuple(word for word in text if word in kept) for text in texts)
    return SourceTexts(tuple(names), words, platform.python_version(), found)


def csv_rows(path: Path, columns: str, least: int, most: int) -> list[list[str]]:
    """Return the rows of a file of comma-separated values, without the first one, which has the columns' names.

    Args:
        path: of the file.
        columns: what they must be, for messages.
        least: columns.
        most: columns.

    Raises:
        Misuse: it cannot be read, has no rows, or a row has another number of columns than the first.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Misuse(f"settings.file: cannot read {path}: {error}; it must be comma-separated text in UTF-8") from error
    if len(rows) < 2 or not least <= len(rows[0]) <= most:
        raise Misuse(f"settings.file: {path} must have a first line with the names of columns, {columns}, then rows")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(rows[0]):
            raise Misuse(f"settings.file: {path}:{number}: {len(row)} columns, but the first line has {len(rows[0])}")
    return rows[1:]


def text_lines(path: Path) -> list[list[str]]:
    """Return the words of each line of a text file.

    Raises:
        Misuse: it cannot be read.
    """
    try:
        return [words_of(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"settings.file: cannot read {path}: {error}; it must be text in UTF-8") from error


def write_origin(origin: dict[str, object], folder: Path) -> None:
    """Write where data is from, as `data.json`."""
    (folder / "data.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
