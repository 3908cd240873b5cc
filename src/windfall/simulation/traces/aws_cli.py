"""What `aws ec2 describe-spot-price-history` prints: JSON, text with tabs, or a table of lines and bars.

The newest price comes first there, so that a file is read whole and sorted by time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from windfall.errors import Misuse
from windfall.simulation.traces.events import Clock, Content, Header, Price, Read, Sampling, Series
from windfall.simulation.traces.files import fault, lines, moment, price

HEADER = Header("aws-cli-prices", (Content.PRICES,), Clock.UTC, Sampling.CHANGES, silence_s=1.05 * 86_400.0)
_KEYS = ("AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice", "Timestamp")
_LIST, _WORD = "SpotPriceHistory", "SPOTPRICEHISTORY"
_ROWS_MAX = 5_000_000
_Fields = dict[str, str]


def is_json(start: str) -> bool:
    """Whether a file that begins so is the tool's JSON."""
    return f'"{_LIST}"' in start and '"SpotPrice"' in start


def is_text(start: str) -> bool:
    """Whether a file that begins so is the tool's text or table."""
    return start.lstrip().startswith(f"{_WORD}\t") or "DescribeSpotPriceHistory" in start


def read(path: Path) -> Iterator[Read]:
    """Yield the prices, oldest first; a row that cannot be read first of all, as what is wrong with it.

    Raises:
        Misuse: it is none of the three forms, or too long.
    """
    seen: dict[tuple[str, str, str], Series] = {}
    good: list[tuple[int, Price]] = []
    for line, fields in _rows(path):
        if len(good) >= _ROWS_MAX:
            raise fault(path, line, f"more than {_ROWS_MAX} prices: ask the AWS CLI for fewer at a time")
        try:
            good.append((line, _price(fields, seen, path, line)))
        except Misuse as error:
            yield line, error
    good.sort(key=lambda one: one[1].at_s)
    yield from good


def _price(fields: _Fields, seen: dict[tuple[str, str, str], Series], path: Path, line: int) -> Price:
    if lacking := [name for name in _KEYS if not fields.get(name)]:
        raise fault(path, line, f"{lacking[0]} is missing")
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
    """Yield number and fields of each entry; a number counts entries here."""
    try:
        found = json.loads("".join(lines(path)))[_LIST]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise fault(path, 1, f"this JSON is no {_LIST} of the AWS CLI: was it cut off?") from error
    for number, entry in enumerate(found if isinstance(found, list) else (), 1):
        said = entry if isinstance(entry, dict) else {}
        yield number, {name: value for name, value in said.items() if isinstance(value, str)}


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
