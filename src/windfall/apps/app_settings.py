"""The settings of an application, as a job file has them: checked one by one, each with its default."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path

from windfall.errors import Misuse
from windfall.spelling import nearest, plain


class AppSettings:
    """Settings by name; an application reads those that it knows, then calls `end`.

    Args:
        given: as a job file has them.
    """

    def __init__(self, given: Mapping[str, object]) -> None:
        self._given = given
        self._known: list[str] = []

    def has(self, key: str) -> bool:
        """Return whether a setting is given."""
        return key in self._given

    def whole(self, key: str, default: int, *, least: int = 1, most: int = 2**31 - 1) -> int:
        """Return a whole number.

        Args:
            key: name of the setting.
            default: what is used where it is not given.
            least: of its range.
            most: of its range.

        Raises:
            Misuse: it is none, or out of range.
        """
        value = self._value(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise _wrong(key, f"a whole number from {least} to {most}", value, default)

    def whole_or(self, key: str, default: int, word: str) -> int | None:
        """Return a whole number of at least 1, or None where a word takes its place.

        Raises:
            Misuse: it is neither.
        """
        value = self._value(key, default)
        if value == word:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31:
            return value
        raise _wrong(key, f"a whole number from 1 to {2**31 - 1}, or {word}", value, default)

    def number(self, key: str, default: float, *, least: float = 0.0, most: float = math.inf) -> float:
        """Return a finite number.

        Args:
            key: name of the setting.
            default: what is used where it is not given.
            least: of its range.
            most: of its range.

        Raises:
            Misuse: it is none, or out of range.
        """
        value = self._value(key, default)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            # A whole number of hundreds of digits has no float.
            number = float(value) if abs(value) < 1e300 else math.inf
            if math.isfinite(number) and least <= number <= most:
                return number
        known = f"a number from {least:g} on" if most == math.inf else f"a number from {least:g} to {most:g}"
        raise _wrong(key, known, value, default)

    def choice(self, key: str, default: str, choices: Collection[str]) -> str:
        """Return one of some words.

        Raises:
            Misuse: it is another one.
        """
        value = self._value(key, default)
        if isinstance(value, str) and value in choices:
            return value
        raise Misuse(f"settings.{key} must be {' or '.join(choices)}, not {_shown(value)}")

    def text(self, key: str, example: str) -> str | None:
        """Return a text; None where it is not given.

        Raises:
            Misuse: it is none, or empty.
        """
        value = self._value(key, None)
        if value is None or (isinstance(value, str) and value):
            return value
        raise Misuse(f"settings.{key} must be text such as {example}, not {_shown(value)}")

    def file(self, example: str) -> Path | None:
        """Return the path that the setting `file` names; None where it is not given.

        Raises:
            Misuse: it is none, or no file is there.
        """
        text = self.text("file", example)
        if text is None:
            return None
        if not Path(text).is_file():
            raise Misuse(f"settings.file: there is no file {plain(text)}; write the path of one that all machines have")
        return Path(text)

    def source(self, example: str, choices: Collection[str]) -> Path | str:
        """Return where data comes from: the file that `file` names, or what `source` says, by default `generated`.

        Raises:
            Misuse: one of them is wrong, or both are given.
        """
        file, source = self.file(example), self.choice("source", "generated", choices)
        if file is None:
            return source
        if self.has("source"):
            raise Misuse("settings.file and settings.source are both given; keep one of them")
        return file

    def end(self) -> None:
        """Check that no other setting is given.

        Raises:
            Misuse: there is one.
        """
        for key in self._given:
            if key not in self._known:
                raise Misuse(
                    f"settings.{plain(str(key))} does not exist for this application and source of data; "
                    f"{nearest(str(key), self._known)}"
                )

    def _value(self, key: str, default: object) -> object:
        self._known.append(key)
        return self._given.get(key, default)


def _wrong(key: str, known: str, value: object, example: float) -> Misuse:
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            pass
        else:
            plainly = f"{number:.12f}".rstrip("0").rstrip(".")
            return Misuse(f"settings.{key} must be {known}, not the text {_shown(value)}; write {plainly}")
    return Misuse(f"settings.{key} must be {known}, such as {example}, not {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, (Mapping, list, tuple)):
        return "a map" if isinstance(value, Mapping) else "a list"
    text = plain(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
