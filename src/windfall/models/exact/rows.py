"""A published number beside ours: the row that replications are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One published number and ours.

    Attributes:
        source: the paper and the table or section.
        item: the column, job or policy.
        quantity: what is counted.
        unit: of both numbers.
        published, ours: the numbers; `ours` is None where nothing can be computed, `published` where none is printed.
        difference_pct: of ours, relative to the published one; None where there is none.
        verdict: `match`, `differs` or `cannot`.
        reason: why it differs or cannot; the arithmetic where the source is at fault.
        method: how ours came about.
    """

    source: str
    item: str
    quantity: str
    unit: str
    published: float | None
    ours: float | None
    difference_pct: float | None
    verdict: str
    reason: str
    method: str


def compared(
    source: str,
    item: str,
    quantity: str,
    *,
    unit: str,
    published: float,
    ours: float,
    tolerance_pct: float,
    method: str,
    reason: str = "",
) -> Row:
    """Return the row of two numbers; they match within the tolerance [%], or if both are 0."""
    difference = 0.0 if ours == published else 100.0 * (ours / published - 1.0) if published else math.inf
    match = abs(difference) <= tolerance_pct
    said = difference if math.isfinite(difference) else None
    return Row(
        source,
        item,
        quantity,
        unit,
        published,
        ours,
        said,
        "match" if match else "differs",
        "" if match else reason,
        method,
    )


def cannot(source: str, item: str, quantity: str, *, unit: str, published: float, reason: str) -> Row:
    """Return the row of a number that nothing can be set beside."""
    return Row(source, item, quantity, unit, published, None, None, "cannot", reason, "none")


def unprinted(source: str, item: str, quantity: str, *, unit: str, ours: float, reason: str, method: str) -> Row:
    """Return the row of a number that the paper does not print: a curve that is only drawn."""
    return Row(source, item, quantity, unit, None, ours, None, "cannot", reason, method)
