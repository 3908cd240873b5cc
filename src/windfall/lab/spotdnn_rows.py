"""Rows of spotDNN's replication: times, costs, plans, and claims about drawn bars, each with its tolerance."""

from __future__ import annotations

import dataclasses
from typing import Final

from windfall.lab import spotdnn_published as paper
from windfall.lab.published_rows import PublishedRow, cannot, compared
from windfall.lab.spotdnn_published import Plan

CLOSE_S, CLOSE_PCT = 0.1, 0.1
"""Times match within a tenth of a second or a tenth of a percent."""
TABLE_USD, FIGURE_USD = 0.01, 0.1
"""Costs match within this: of Table I, and of figures, which are cut or rounded to 0.1 USD."""
DRAWN_PCT, DIGIT_PCT = 1.0, 0.05
"""A claim and the bars that it is about match within this, relative, or within half of its last digit."""
DIGITS: Final = "the digits of a plan are its workers of " + ", ".join(paper.TYPES)
RESNET: Final = "published constants of ResNet-110"
FITTED: Final = "FITTED constants of Inception-v3, not published"
ON_THEIRS: Final = "measured on the authors' cluster"
NO_IDEAL: Final = "needs the speeds of single GPUs alone, which are published for no GPU with Inception-v3"


def goal_item(arm: str, goal: tuple[float, float]) -> str:
    """Return the item of a strategy and its goal of loss and time [s]."""
    return f"{arm}, {goal[0]:g} in {goal[1]:g} s"


def time_row(source: str, item: str, *, published: float, ours: float, method: str, reason: str = "") -> PublishedRow:
    """Return the row of two times [s], which match within `CLOSE_S` or `CLOSE_PCT`."""
    return compared(
        source,
        item,
        "time",
        unit="s",
        published=published,
        ours=ours,
        tolerance_pct=max(CLOSE_PCT, 100.0 * CLOSE_S / published),
        method=f"{method}; matches within {CLOSE_S:g} s or {CLOSE_PCT:g} %",
        reason=reason,
    )


def cost_row(
    source: str, item: str, *, published: float, ours: float, within_usd: float, method: str, reason: str = ""
) -> PublishedRow:
    """Return the row of two costs [USD], which match within so much."""
    return compared(
        source,
        item,
        "cost",
        unit="USD",
        published=published,
        ours=ours,
        tolerance_pct=100.0 * within_usd / published,
        method=f"{method}; matches within {within_usd:g} USD",
        reason=reason,
    )


def plan_row(
    source: str, item: str, *, published: Plan, ours: Plan | None, method: str = "", reason: str = ""
) -> PublishedRow:
    """Return the row of two plans, which match if they are equal; `ours` is None if no plan can be computed."""
    if ours is None:
        return cannot(source, item, "plan", unit="", published=_digits(published), reason=reason)
    row = compared(
        source,
        item,
        "plan",
        unit="",
        published=_digits(published),
        ours=_digits(ours),
        tolerance_pct=0.0,
        method=f"{method}; {DIGITS}",
        reason=reason,
    )
    return dataclasses.replace(row, difference_pct=None)


def claim_row(
    source: str, item: str, quantity: str, *, published: float, ours: float, reason: str = ""
) -> PublishedRow:
    """Return the row of a percentage in the text and the one that the drawn bars give."""
    return compared(
        source,
        item,
        quantity,
        unit="%",
        published=published,
        ours=ours,
        tolerance_pct=max(DRAWN_PCT, 100.0 * DIGIT_PCT / published),
        method=f"from the drawn bars; matches within {DRAWN_PCT:g} % or {DIGIT_PCT:g} points",
        reason=reason,
    )


def _digits(plan: Plan) -> float:
    return float("".join(map(str, plan)))
