"""Parcae's question on other traces: which forecast is best, and what looking ahead gains.

The traces are of other machine types and clouds: Bamboo's public ones, and SkyPilot's of several machines, read at steps of a
minute.  Where a count exceeds 32, the largest that the tables have, all counts of the trace are halved.  The forecast that is
best on these traces is the one that plans use; Parcae's own trace had no part in its choice.

The gain of a plan over the fastest shape is a mean over hours, which are drawn with replacement for its interval.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from windfall.errors import Misuse
from windfall.lab import parcae_published as paper
from windfall.models import count_forecasts as forecasts
from windfall.structs import Struct

SHARES: Final = (0.99, 0.98, 0.95)
"""Of missing machines that are still missing a minute later, tried beside 1, which is the last value."""
WINDOW: Final = 5
BLOCK, RESAMPLES = 60, 1_000
"""Intervals that are drawn together, and draws."""
STEP_S: Final = 60.0
SPARED: Final = 4
"""Fewer machines than this at most, and a trace says nothing of shapes."""


class OtherTrace(Struct, frozen=True):
    """Machines of another trace, minute by minute.

    Attributes:
        name: of the file.
        counts: in each minute.
    """

    name: str
    counts: tuple[int, ...]


def other_traces(folder: Path) -> tuple[OtherTrace, ...]:
    """Return what is there of Bamboo's and SkyPilot's traces; nothing if neither folder is.

    Raises:
        Misuse: a file is not as published.
    """
    bamboo, skypilot = folder / "data" / "bamboo_traces", folder / "data" / "skypilot_spot_traces"
    found = [
        *(
            _read(path, _columns, 3_600.0 if "hours" in path.name else 1.0)
            for path in sorted(bamboo.glob("*_count.csv"))
        ),
        *(_read(path, _dated, 1.0) for path in sorted(bamboo.glob("gcloud_*.txt"))),
        *(_read(path, _ticks, 1.0) for path in sorted(skypilot.rglob("*-node/*/*.json")) if "1-node" not in path.parts),
    ]
    return tuple(trace for trace in found if max(trace.counts) > SPARED)


def _read(path: Path, parse: Callable[[str], tuple[Sequence[float], Sequence[int]]], unit_s: float) -> OtherTrace:
    try:
        times, counts = parse(path.read_text("utf-8"))
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise Misuse(f"--data: cannot read {path} as a trace: {error}") from error
    if len(times) < 2:
        raise Misuse(f"--data: {path} has fewer than two counts: pass the published trace")
    seconds = (np.array(times) - times[0]) * unit_s
    grid = np.arange(0.0, seconds[-1] + 1.0, STEP_S)
    held = np.array(counts)[np.searchsorted(seconds, grid, "right") - 1]
    shrunk = held // 2 if held.max() > paper.MOST else held
    return OtherTrace(path.stem, tuple(map(int, shrunk)))


def _columns(text: str) -> tuple[list[float], list[int]]:
    rows = [line.split(",") for line in text.splitlines() if line.strip()]
    return [float(row[0]) for row in rows], [int(float(row[1])) for row in rows]


def _dated(text: str) -> tuple[list[float], list[int]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    moments = [dt.datetime.fromisoformat(f"{row[0]}T{row[1]}+00:00").timestamp() for row in rows]
    return moments, [int(row[2]) for row in rows]


def _ticks(text: str) -> tuple[list[float], list[int]]:
    found: dict[str, Any] = json.loads(text)
    step_s = float(found["metadata"]["gap_seconds"])
    return [number * step_s for number in range(len(found["data"]))], [int(count) for count in found["data"]]


def candidates(wanted: int) -> Mapping[str, Callable[[Sequence[int]], Sequence[int]]]:
    """Return the forecasts that are compared, by name.

    Args:
        wanted: how many machines are asked for.
    """

    def towards(share: float) -> Callable[[Sequence[int]], Sequence[int]]:
        return lambda history: forecasts.reverting(history, paper.AHEAD, wanted=wanted, share=share)

    def least(history: Sequence[int]) -> Sequence[int]:
        return forecasts.last_value((min(history[-WINDOW:]),), paper.AHEAD)

    def middle(history: Sequence[int]) -> Sequence[int]:
        return forecasts.last_value((int(np.median(history)),), paper.AHEAD)

    def guarded(history: Sequence[int]) -> Sequence[int]:
        return forecasts.guarded_arima(history, paper.AHEAD, forecasts.Damping(), least=0, most=wanted)[0]

    return {
        "last value": lambda history: forecasts.last_value(history, paper.AHEAD),
        "Parcae's ARIMA": guarded,
        **{f"{share:g} of what is missing stays missing": towards(share) for share in SHARES},
        f"least of the last {WINDOW}": least,
        "median of the window": middle,
    }


def error_share(counts: Sequence[int], forecast: Callable[[Sequence[int]], Sequence[int]]) -> float:
    """Return the sum of absolute errors over the sum of true counts, over windows that start every half look-ahead."""
    wrong = total = 0
    for start in range(paper.HISTORY, len(counts) - paper.AHEAD + 1, paper.AHEAD // 2):
        truth = counts[start : start + paper.AHEAD]
        guessed = forecast(counts[start - paper.HISTORY : start])
        wrong += sum(abs(guess - true) for guess, true in zip(guessed, truth, strict=True))
        total += sum(truth)
    return wrong / total


def gain_pct(ours: Sequence[float], others: Sequence[float], seed: int) -> tuple[float, float, float]:
    """Return how much more is trained, and its interval of 95 % over blocks of an hour [%]."""
    blocks = max(len(ours) // BLOCK, 1)
    kept = blocks * BLOCK if len(ours) >= BLOCK else len(ours)
    mine, theirs = (np.array(series[:kept]).reshape(blocks, -1).sum(axis=1) for series in (ours, others))
    drawn = np.random.default_rng(seed).integers(0, blocks, (RESAMPLES, blocks))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = 100.0 * (mine[drawn].sum(axis=1) / theirs[drawn].sum(axis=1) - 1.0)
    low, high = np.nanquantile(ratios, (0.025, 0.975))
    return 100.0 * float(mine.sum() / theirs.sum() - 1.0), float(low), float(high)
