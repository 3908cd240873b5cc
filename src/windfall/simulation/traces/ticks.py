"""SkyPilot's spot traces: one JSON object with a value a tick, read in blocks so that its size does not matter.

    {"metadata": {"gap_seconds": 195}, "data": [1, 1, 0, ...], "prices": [0.918, ...]}

Changes are told, not ticks; `Until` says where the last tick ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from windfall.simulation.traces.events import Clock, Content, Count, Header, Placed, Price, Sampling, Series, Until
from windfall.simulation.traces.files import HEAD_BYTES, blocks, fault, head, not_negative, price, whole

GAP_S = (1.0, 6 * 3600.0)
"""Ticks outside of this are in another unit [s]."""
_ARRAYS = {"data": Content.COUNTS, "prices": Content.PRICES}


def series_of(path: Path) -> Series:
    """Return zone and machine type as the file's name gives them: ZONE_TYPE.json."""
    found = re.fullmatch(r"(?P<zone>[a-z0-9-]+)_(?P<type>.+)\.json(?:\.gz)?", path.name)
    return Series(found["type"], found["zone"]) if found else Series("", "")


def header_of(path: Path) -> Header:
    """Return the header: the step comes from the file's metadata.

    Raises:
        Misuse: the step is missing or absurd.
    """
    found = re.search(r'"gap_seconds"\s*:\s*([^,}\s]+)', head(path))
    if found is None:
        raise fault(path, None, "metadata.gap_seconds, the time between ticks, is missing at the file's beginning")
    step_s = not_negative(found.group(1), path, 1, "gap_seconds")
    if not GAP_S[0] <= step_s <= GAP_S[1]:
        raise fault(path, 1, f"gap_seconds is {found.group(1)}: ticks of a market are 1 s to 6 h apart; wrong unit?")
    return Header("skypilot", (Content.COUNTS, Content.PRICES), Clock.START, Sampling.SAMPLES, step_s)


def read(path: Path, step_s: float) -> Iterator[Placed]:
    """Yield counts, then prices if there are any; a place is the number of the tick, from 1."""
    scan, ticks = _Scan(path), 0
    scan.expect("{")
    while True:
        name = scan.word()
        scan.expect(":")
        if name in _ARRAYS:
            before = ticks
            for ticks, event in _changes(scan, path, step_s, _ARRAYS[name]):
                yield ticks, event
            if before and ticks != before:
                told = f"data and prices have {before} and {ticks} ticks"
                raise fault(path, None, f"{told}: they must have equally many")
        elif name == "metadata":
            scan.skip()
        else:
            raise fault(path, 1, f"unknown key {name!r}; known are metadata, data, prices")
        if scan.expect(",}") == "}":
            break
    scan.end()
    if not ticks:
        raise fault(path, None, "there is no data in it")


def _changes(scan: _Scan, path: Path, step_s: float, content: Content) -> Iterator[Placed]:
    """Yield what changed from tick to tick, then how far the ticks go."""
    series, ticks, last = series_of(path), 0, None
    for ticks, text in enumerate(scan.array(), 1):
        if text == last:
            continue
        last, at_s = text, (ticks - 1) * step_s
        if content is Content.COUNTS:
            yield ticks, Count(at_s, series, whole(text, path, ticks, f"tick {ticks} of data"))
        else:
            yield ticks, Price(at_s, series, price(text, path, ticks, f"tick {ticks} of prices"))
    if not ticks:
        raise fault(path, None, f"the list of {content.value} is empty")
    yield ticks, Until(ticks * step_s, series, content)


class _Scan:
    """A JSON text, read from the front; only the block at hand is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._blocks = blocks(path)
        self._text = ""
        self._at = 0
        self._ticks = 0

    def expect(self, wanted: str) -> str:
        """Step over one of these characters and return it."""
        found = self._peek()
        if found == "" or found not in wanted:
            raise self._bad(f"{' or '.join(wanted)} was expected, not {found or 'the end: the file is truncated'}")
        self._at += 1
        return found

    def word(self) -> str:
        """Step over a string."""
        self.expect('"')
        return self._until('"')

    def skip(self) -> None:
        """Step over a small object, number or string."""
        self._peek()
        self._fill(HEAD_BYTES)
        try:
            _, self._at = json.JSONDecoder().raw_decode(self._text, self._at)
        except (ValueError, RecursionError) as error:
            raise self._bad("this is not JSON") from error

    def array(self) -> Iterator[str]:
        """Step over a list of numbers, one at a time, as they are written."""
        self.expect("[")
        if self._peek() == "]":
            self._at += 1
            return
        while True:
            close = self._text.find("]", self._at)
            end = close if close >= 0 else self._text.rfind(",", self._at)
            if end >= 0:
                for text in self._text[self._at : end].split(","):
                    self._ticks += 1
                    yield text.strip()
                self._at = end + 1
                if close >= 0:
                    return
            if not self._more():
                raise self._bad("the list does not end: the file is truncated")

    def end(self) -> None:
        """Make sure that nothing follows."""
        if self._peek():
            raise self._bad("something follows after the end")

    def _until(self, mark: str) -> str:
        while (end := self._text.find(mark, self._at)) < 0:
            if len(self._text) - self._at > HEAD_BYTES or not self._more():
                raise self._bad("the file is truncated")
        found, self._at = self._text[self._at : end], end + 1
        return found

    def _peek(self) -> str:
        while True:
            while self._at < len(self._text) and self._text[self._at].isspace():
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _fill(self, size: int) -> None:
        while len(self._text) - self._at < size and self._more():
            pass

    def _more(self) -> bool:
        block = next(self._blocks, "")
        self._text, self._at = self._text[self._at :] + block, 0
        if len(self._text) > 4 * HEAD_BYTES:
            raise self._bad("this is not a list of ticks")
        return block != ""

    def _bad(self, sentence: str) -> Exception:
        where = f"after {self._ticks} ticks: " if self._ticks else ""
        return fault(self._path, 1, where + sentence)
