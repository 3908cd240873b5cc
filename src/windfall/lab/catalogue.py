"""A dated catalogue of machine types and list prices: the package's own, or a user's file of the same columns.

Prices move; each row says when its numbers were read.  The package's file is built by `docs/build_catalogue.py`, and names its
sources and their licences in its header.
"""

from __future__ import annotations

import csv
import datetime as dt
import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from windfall.errors import InvalidFile, Misuse
from windfall.structs import Struct
from windfall.terms import Seconds

REQUIRED = ("provider", "zone", "machine_type", "cpus", "on_demand_usd_per_hour", "priced")
OPTIONAL = (
    "memory_gib",
    "accelerator",
    "accelerators",
    "spot_usd_per_hour",
    "spot_basis",
    "lost_per_month",
    "spot_as_of",
    "losses_as_of",
)
_PRICES = ("on_demand_usd_per_hour", "spot_usd_per_hour")


class CloudRules(Struct, frozen=True):
    """How a cloud bills its spot machines.

    Attributes:
        minimum_s: what a machine is billed for at least [s].
        price: which price a spot machine costs, in words.
    """

    minimum_s: Seconds
    price: str


CLOUDS: Mapping[str, CloudRules] = MappingProxyType(
    {
        "aws": CloudRules(Seconds(60.0), "the price in effect, by the second"),
        "google": CloudRules(Seconds(60.0), "the price in effect, by the second"),
        "azure": CloudRules(Seconds(0.0), "the price in effect, by the second"),
    }
)


class CataloguedType(Struct, frozen=True):
    """A machine type in a region, as a price list has it.

    Attributes:
        spot_usd_per_hour: None if it is not sold as spot.
        spot_basis: `listed`, or `derived` from a published saving.
        lost_per_month: lowest and highest share of machines that were interrupted in a month; None if not published.
        priced, spot_as_of, losses_as_of: when the on-demand price, the spot price and the losses were read; empty if unknown.
    """

    provider: str
    zone: str
    machine_type: str
    cpus: float
    memory_gib: float
    accelerator: str
    accelerators: int
    on_demand_usd_per_hour: float
    spot_usd_per_hour: float | None
    spot_basis: str
    lost_per_month: tuple[float, float] | None
    priced: str
    spot_as_of: str
    losses_as_of: str


def own() -> tuple[CataloguedType, ...]:
    """Return the package's catalogue."""
    place = resources.files("windfall.lab") / "catalogue.csv"
    return _parse("catalogue.csv", place.read_text())


def read(path: Path) -> tuple[CataloguedType, ...]:
    """Return a user's catalogue.

    Raises:
        Misuse: the file cannot be read.
        InvalidFile: a row or the header is wrong; the message has file, line and column's name.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"cannot read the catalogue {path}: {getattr(error, 'strerror', None) or error}") from error
    return _parse(str(path), text)


def _parse(name: str, text: str) -> tuple[CataloguedType, ...]:
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    if not lines:
        raise InvalidFile(f"{name}:1:1: the catalogue is empty; its first line names the columns: {','.join(REQUIRED)}")
    columns = _columns(name, lines[0][0], next(csv.reader([lines[0][1]])))
    if len(lines) == 1:
        raise InvalidFile(f"{name}:{lines[0][0]}:1: the catalogue has no row below its header")
    return tuple(_row(f"{name}:{number}", columns, next(csv.reader([line]))) for number, line in lines[1:])


def _columns(name: str, line: int, found: list[str]) -> list[str]:
    for column in found:
        if column in (*REQUIRED, *OPTIONAL):
            continue
        if column.startswith(("on_demand_", "spot_")):
            known = next(price for price in _PRICES if price.startswith(column.split("_", 1)[0]))
            raise InvalidFile(
                f"{name}:{line}:1: {column} is not a price in USD per hour: convert it, and name it {known}"
            )
        raise InvalidFile(
            f"{name}:{line}:1: {column!r} is an unknown column; known: {', '.join((*REQUIRED, *OPTIONAL))}"
        )
    if missing := [column for column in REQUIRED if column not in found]:
        raise InvalidFile(f"{name}:{line}:1: the header lacks {', '.join(missing)}")
    return found


def _row(where: str, columns: list[str], cells: list[str]) -> CataloguedType:
    if len(cells) != len(columns):
        raise InvalidFile(f"{where}:1: the row has {len(cells)} values, and the header {len(columns)} columns")
    row = dict(zip(columns, (cell.strip() for cell in cells), strict=True))
    for column in ("provider", "zone", "machine_type"):
        if not row[column]:
            raise InvalidFile(f"{where}:1: {column} is empty")
    for column in ("priced", "spot_as_of", "losses_as_of"):
        _check_date(where, column, row.get(column, ""))
    spot = row.get("spot_usd_per_hour", "")
    return CataloguedType(
        row["provider"],
        row["zone"],
        row["machine_type"],
        _number(where, "cpus", row["cpus"]),
        _number(where, "memory_gib", row.get("memory_gib") or "0"),
        row.get("accelerator", ""),
        int(_number(where, "accelerators", row.get("accelerators") or "0")),
        _number(where, "on_demand_usd_per_hour", row["on_demand_usd_per_hour"]),
        _number(where, "spot_usd_per_hour", spot) if spot else None,
        row.get("spot_basis", ""),
        _band(where, row.get("lost_per_month", "")),
        row["priced"],
        row.get("spot_as_of", ""),
        row.get("losses_as_of", ""),
    )


def _number(where: str, column: str, text: str) -> float:
    """Return a number from zero on: what is paid for anyway costs 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < math.inf:
        raise InvalidFile(f"{where}:1: {column} must be a number from 0, not {text!r}")
    return value


def _band(where: str, text: str) -> tuple[float, float] | None:
    if not text:
        return None
    low, _, high = text.partition("-")
    band = _number(where, "lost_per_month", low), _number(where, "lost_per_month", high or low)
    if not band[0] <= band[1] <= 1.0:
        raise InvalidFile(f"{where}:1: lost_per_month must be shares as 0.05-0.1, not {text!r}")
    return band


def _check_date(where: str, column: str, text: str) -> None:
    if not text:
        return
    try:
        dt.date.fromisoformat(text if len(text) > 7 else f"{text}-01")
    except ValueError as error:
        raise InvalidFile(f"{where}:1: {column} must be a date as 2026-07-30, not {text!r}") from error
