"""SkyPilot's spot traces: one JSON object with a value per tick, read in blocks, so that any size fits in memory.

    {"metadata": {"gap_seconds": 195}, "data": [1, 1, 0, ...], "prices": [0.918, ...]}

Events are changes, not ticks; `WatchedUntil` marks the end of the last tick.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from windfall.simulation.traces.trace_events import (
    ClockKind,
    Content,
    Count,
    LocatedEvent,
    Price,
    SamplingKind,
    Series,
    TraceHeader,
    WatchedUntil,
)
from windfall.simulation.traces.trace_files import HEAD_BYTES, blocks, fault, head, not_negative, price, whole

GAP_S = (1.0, 6 * 3600.0)
"""Ticks outside this range are in another unit [s]."""
_ARRAYS = {"data": Content.COUNTS, "prices": Content.PRICES}


def series_of(path: Path) -> Series:
    """Return zone and machine type from the file's name: ZONE_TYPE.json."""
    found = re.fullmatch(r"(?P<zone>[a-z0-9-]+)_(?P<type>.+)\.json(?:\.gz)?", path.name)
    return Series(found["type"], found["zone"]) if found else Series("", "")


def header_of(path: Path) -> TraceHeader:
    """Return the header, with the step from the file's metadata.

    Raises:
        Misuse: the step is missing or absurd.
    """
    found = re.search(r'"gap_seconds"\s*:\s*([^,}\s]+)', head(path))
    if found is None:
        raise fault(path, None, "metadata.gap_seconds, the time between ticks, is missing at the start of the file")
    step_s = not_negative(found.group(1), path, 1, "gap_seconds")
    if not GAP_S[0] <= step_s <= GAP_S[1]:
        raise fault(
            path,
            1,
            f"gap_seconds is {found.group(1)}, but ticks of a market are 1 s to 6 h apart: is it in another unit?",
        )
    return TraceHeader("skypilot", (Content.COUNTS, Content.PRICES), ClockKind.START, SamplingKind.SAMPLES, step_s)


def read(path: Path, step_s: float) -> Iterator[LocatedEvent]:
    """Yield counts, then prices if there are any; each with the number of its tick, from 1."""
    scan, ticks = _TickScanner(path), 0
    scan.expect("{")
    while True:
        name = scan.word()
        scan.expect(":")
        if name in _ARRAYS:
            before = ticks
            for ticks, event in _changes(scan, path, step_s, _ARRAYS[name]):
                yield ticks, event
            if before and ticks != before:
                raise fault(path, None, f"data has {before} ticks and prices has {ticks}: they must be equal")
        elif name == "metadata":
            scan.skip()
        else:
            raise fault(path, 1, f"unknown key {name!r}; known keys are metadata, data, prices")
        if scan.expect(",}") == "}":
            break
    scan.end()
    if not ticks:
        raise fault(path, None, "the file has no data")


def _changes(scan: _TickScanner, path: Path, step_s: float, content: Content) -> Iterator[LocatedEvent]:
    """Yield the changes from tick to tick, then the end of the last tick."""
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
    yield ticks, WatchedUntil(ticks * step_s, series, content)


class _TickScanner:
    """Scans a JSON text from the start, with one block in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._blocks = blocks(path)
        self._text = ""
        self._at = 0
        self._ticks = 0

    def expect(self, expected: str) -> str:
        """Skip one of these characters and return it."""
        found = self._peek()
        if found == "" or found not in expected:
            raise self._bad(f"expected {' or '.join(expected)}, not {found or 'the end: the file is truncated'}")
        self._at += 1
        return found

    def word(self) -> str:
        """Skip a string and return it."""
        self.expect('"')
        return self._until('"')

    def skip(self) -> None:
        """Skip a small object, number or string."""
        self._peek()
        self._fill(HEAD_BYTES)
        try:
            _, self._at = json.JSONDecoder().raw_decode(self._text, self._at)
        except (ValueError, RecursionError) as error:
            raise self._bad("this is not JSON") from error

    def array(self) -> Iterator[str]:
        """Yield the numbers of a list as text, one at a time."""
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
        """Check that nothing follows."""
        if self._peek():
            raise self._bad("there is text after the end")

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

    def _bad(self, message: str) -> Exception:
        where = f"after {self._ticks} ticks: " if self._ticks else ""
        return fault(self._path, 1, where + message)
