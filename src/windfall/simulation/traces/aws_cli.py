"""Read the output of `aws ec2 describe-spot-price-history`: JSON, text with tabs, or a table of lines and bars.

The newest price comes first there, so a file is read whole and sorted by time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from windfall.errors import Misuse
from windfall.simulation.traces.trace_events import (
    ClockKind,
    Content,
    ParsedLine,
    Price,
    SamplingKind,
    Series,
    TraceHeader,
)
from windfall.simulation.traces.trace_files import fault, lines, moment, price

HEADER = TraceHeader(
    "aws-cli-prices", (Content.PRICES,), ClockKind.UTC, SamplingKind.CHANGES, silence_s=1.05 * 86_400.0
)
_KEYS = ("AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice", "Timestamp")
_LIST, _WORD = "SpotPriceHistory", "SPOTPRICEHISTORY"
_ROWS_MAX = 5_000_000
_Fields = dict[str, str]


def is_json(start: str) -> bool:
    """Return whether a file with this start is the tool's JSON."""
    return f'"{_LIST}"' in start and '"SpotPrice"' in start


def is_text(start: str) -> bool:
    """Return whether a file with this start is the tool's text or table."""
    return start.lstrip().startswith(f"{_WORD}\t") or "DescribeSpotPriceHistory" in start


def read(path: Path) -> Iterator[ParsedLine]:
    """Yield the errors of unreadable rows, then the prices, oldest first.

    Raises:
        Misuse: the file has none of the three forms, or is too long.
    """
    seen: dict[tuple[str, str, str], Series] = {}
    good: list[tuple[int, Price]] = []
    for line, fields in _rows(path):
        if len(good) >= _ROWS_MAX:
            raise fault(path, line, f"more than {_ROWS_MAX} prices: request fewer at a time from the AWS CLI")
        try:
            good.append((line, _price(fields, seen, path, line)))
        except Misuse as error:
            yield line, error
    good.sort(key=lambda one: one[1].at_s)
    yield from good


def _price(fields: _Fields, seen: dict[tuple[str, str, str], Series], path: Path, line: int) -> Price:
    if missing := [name for name in _KEYS if not fields.get(name)]:
        raise fault(path, line, f"{missing[0]} is missing")
    key = fields["InstanceType"], fields["AvailabilityZone"], fields["ProductDescription"]
    series = seen.get(key) or seen.setdefault(key, Series(*key))
    at_s = moment(fields["Timestamp"], path, line, "Timestamp")
    return Price(at_s, series, price(fields["SpotPrice"], path, line, "SpotPrice"))


def _rows(path: Path) -> Iterator[tuple[int, _Fields]]:
    first = next(lines(path), "")
    if first.startswith("{"):
        yield from _of_json(path)
    elif first.startswith(_WORD):
        yield from _of_text(path)
    else:
        yield from _of_table(path)


def _of_json(path: Path) -> Iterator[tuple[int, _Fields]]:
    """Yield number and fields of each entry; the number counts entries, not lines."""
    try:
        found = json.loads("".join(lines(path)))[_LIST]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise fault(path, 1, f"this JSON is not a {_LIST} of the AWS CLI: is it truncated?") from error
    for number, entry in enumerate(found if isinstance(found, list) else (), 1):
        pairs = entry if isinstance(entry, dict) else {}
        yield number, {name: value for name, value in pairs.items() if isinstance(value, str)}


def _of_text(path: Path) -> Iterator[tuple[int, _Fields]]:
    for number, text in enumerate(lines(path), 1):
        word, *fields = text.rstrip("\n").split("\t")
        if word == _WORD:
            yield number, dict(zip(_KEYS, fields, strict=False))


def _of_table(path: Path) -> Iterator[tuple[int, _Fields]]:
    names: list[str] = []
    for number, text in enumerate(lines(path), 1):
        cells = [cell.strip() for cell in re.split(r"\|", text.strip().strip("|"))]
        if set(cells) == set(_KEYS):
            names = cells
        elif names and len(cells) == len(names):
            yield number, dict(zip(names, cells, strict=True))
