"""Published numbers next to computed ones, for a terminal of 80 columns."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from windfall.lab.published_rows import NO_METHOD, PublishedRow, RowVerdict

_LARGE, _ENORMOUS_PCT = 100_000.0, 1_000.0
_PLOT_FIELDS = frozenset({"figure", "series", "x"})


def as_json(rows: Iterable[PublishedRow]) -> list[dict[str, Any]]:
    """Return rows as data: `source, item, quantity, unit, published, ours, difference_pct, verdict, reason, method`."""
    return [
        {name: value for name, value in dataclasses.asdict(row).items() if name not in _PLOT_FIELDS} for row in rows
    ]


def render(rows: Sequence[PublishedRow]) -> RenderableType:
    """Return a table for each source and method, with numbered reasons below it, and how many numbers match."""
    grouped: dict[tuple[str, str], list[PublishedRow]] = {}
    for row in rows:
        grouped.setdefault((row.source, row.method), []).append(row)
    parts: list[RenderableType] = []
    for (source, method), found in grouped.items():
        parts += [
            Text(source, style="bold"),
            Text(f"ours: {method}" if method != NO_METHOD else "ours: not computed"),
            "",
        ]
        parts += [*_table(found), ""]
    return Group(*parts, Text(summary(rows)))


def summary(rows: Sequence[PublishedRow]) -> str:
    """Return one line with how many numbers have each verdict."""
    count = Counter(row.verdict for row in rows)
    noun = "number" if len(rows) == 1 else "numbers"
    return (
        f"{len(rows)} {noun}: {count[RowVerdict.MATCH]} match, {count[RowVerdict.DIFFERS]} differ, "
        f"{count[RowVerdict.CANNOT]} cannot be compared"
    )


def _table(rows: Sequence[PublishedRow]) -> list[RenderableType]:
    """Return the rows of one source and method, and the reasons that they refer to."""
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
    """Write a number with the digits that matter for a comparison.

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
