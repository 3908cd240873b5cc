"""Published numbers beside ours, for a terminal of 80 columns."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from windfall.models.exact.rows import Row

_LARGE, _ENORMOUS_PCT = 100_000.0, 1_000.0


def as_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows as data: `source, item, quantity, unit, published, ours, difference_pct, verdict, reason, method`."""
    return [dataclasses.asdict(row) for row in rows]


def whole(rows: Sequence[Row]) -> RenderableType:
    """Return a table for each source and method, reasons numbered below it, and how many numbers match."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.source, row.method), []).append(row)
    parts: list[RenderableType] = []
    for (source, method), found in grouped.items():
        parts += [Text(source, style="bold"), Text(f"ours: {method}" if method != "none" else "ours: nothing"), ""]
        parts += [*_table(found), ""]
    return Group(*parts, Text(summary(rows)))


def summary(rows: Sequence[Row]) -> str:
    """Return in words how many numbers there are of each verdict."""
    count = Counter(row.verdict for row in rows)
    noun = "number" if len(rows) == 1 else "numbers"
    return (
        f"{len(rows)} {noun}: {count['match']} match, {count['differs']} differ, {count['cannot']} cannot be compared"
    )


def _table(rows: Sequence[Row]) -> list[RenderableType]:
    """The rows of one source and method, and the reasons that they refer to."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("item", overflow="fold", max_width=31)
    table.add_column("quantity", overflow="fold")
    for name in ("published", "ours", "%"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    reasons: dict[str, int] = {}
    above = ""
    for row in rows:
        note = f" {reasons.setdefault(row.reason, len(reasons) + 1)}" if row.reason else ""
        quantity = f"{row.quantity} [{row.unit}]" if row.unit else row.quantity
        table.add_row(
            "" if row.item == above else Text(row.item),
            Text(quantity),
            number(row.published),
            number(row.ours),
            _difference(row.difference_pct),
            f"{row.verdict}{note}",
        )
        above = row.item
    notes = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    notes.add_column(justify="right", no_wrap=True)
    notes.add_column(overflow="fold")
    for reason, place in reasons.items():
        notes.add_row(f"{place}", Text(reason))
    return [table, *([Padding(notes, (0, 0, 0, 2))] if reasons else [])]


def number(value: float | None) -> str:
    """Return a number with as many digits as people compare.

    Example:
        473488.0: `473,488`; 249.6420063: `249.642`; None: `-`.
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= _LARGE else f"{value:,.6g}" if abs(value) >= 1.0 else f"{value:.4g}"


def _difference(value: float | None) -> str:
    if value is None:
        return "-"
    if round(value, 2) == 0.0:
        return "0.00"
    return f"{value:+,.0f}" if abs(value) >= _ENORMOUS_PCT else f"{value:+.2f}"
