"""What an elastic training comes to beside other ways to train, as a table and as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from windfall.simulation.elastic_odds import ElasticArm, ElasticTerms
from windfall.units import time_text

NAMED_MAX = 12
"""Longest list of fixed shapes that is printed [characters]; JSON has all."""


def table(played: Sequence[tuple[ElasticArm, ...]], terms: ElasticTerms) -> Table:
    """Return a row for each arm, with means over series."""
    found = Table(box=None, pad_edge=False)
    found.add_column("way to train", no_wrap=True)
    priced = terms.usd_per_hour > 0.0
    names = ["samples", *(["ends after"] if terms.samples else []), *(["USD", "per 1e6"] if priced else [])]
    for name in (*names, "changes", "idle"):
        found.add_column(name, justify="right", no_wrap=True)
    for arm in zip(*played, strict=True):
        mean = means(arm)
        shapes_text = ", ".join(sorted({str(one.shape) for one in arm if one.shape.machines}))
        cells = [
            f"{arm[0].name}{f' {shapes_text}' if shapes_text and len(shapes_text) <= NAMED_MAX else ''}",
            f"{mean['samples']:,.0f}",
        ]
        if terms.samples:
            cells.append(_rounded(mean["time_s"]) if mean["finished_share"] == 1.0 else "unfinished")
        if priced:
            each = mean["usd_per_million"]
            cells += [f"{mean['cost_usd']:.2f}", f"{each:.4g}" if math.isfinite(each) else "-"]
        found.add_row(*cells, f"{mean['changes']:.1f}", _rounded(mean["idle_s"]))
    return found


def _rounded(seconds: float) -> str:
    """Write a time in whole minutes, or a short one as it is."""
    return time_text(round(seconds / 60.0) * 60.0 if seconds >= 60.0 else seconds)


def means(arm: Sequence[ElasticArm]) -> dict[str, float]:
    """Return the means over series; of the cost of a sample the cost of all over all samples."""
    names = ("samples", "time_s", "machine_hours", "cost_usd", "changes", "idle_s")
    found = {name: statistics.fmean(getattr(one, name) for one in arm) for name in names}
    found["finished_share"] = sum(one.finished for one in arm) / len(arm)
    found["usd_per_million"] = 1e6 * found["cost_usd"] / found["samples"] if found["samples"] else math.inf
    return found


def as_json(played: Sequence[tuple[ElasticArm, ...]]) -> list[dict[str, Any]]:
    """Return the means of each arm over series; None for what is infinite."""
    rows = []
    for arm in zip(*played, strict=True):
        numbers = {name: value if math.isfinite(value) else None for name, value in means(arm).items()}
        fixed = sorted({str(one.shape) for one in arm if one.shape.machines})
        rows.append({"name": arm[0].name, "shapes": fixed, **numbers})
    return rows
