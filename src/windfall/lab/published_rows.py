"""A published number next to a computed one: the rows of a replication.

The parts of a paper that can be replicated, and how to select some of them.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from windfall.errors import Misuse
from windfall.models.lifetimes.observations import Lifetimes

NO_METHOD = "none"
"""The `method` of a row without a computed number."""


class RowVerdict(enum.StrEnum):
    """How the two numbers of a row compare."""

    MATCH = "match"
    DIFFERS = "differs"
    CANNOT = "cannot"
    """One of the two does not exist."""


class PaperFigure(enum.StrEnum):
    """A figure that can be drawn from rows; the value is its file name without suffix."""

    THESIS_6_1 = "thesis-figure-6.1"
    THESIS_6_2 = "thesis-figure-6.2"
    THESIS_6_3 = "thesis-figure-6.3"
    SCISPOT_FAILURE = "scispot-failure"
    SCISPOT_INCREASE = "scispot-increase"
    SCISPOT_FRONTIER = "scispot-frontier"
    SCISPOT_SAVINGS = "scispot-savings"
    SCISPOT_UNTUNED = "scispot-untuned"
    SCISPOT_COSTS = "scispot-figure-3"
    SCISPOT_ARMS = "scispot-arms"
    SCISPOT_PREEMPTIONS = "scispot-preemptions"
    PROTEUS_1 = "proteus-figure-1"
    PROTEUS_8 = "proteus-figure-8"
    PROTEUS_9 = "proteus-figure-9"
    PROTEUS_10 = "proteus-figure-10"
    PROTEUS_11 = "proteus-figure-11"
    PROTEUS_12 = "proteus-figure-12"
    PROTEUS_13 = "proteus-figure-13"
    PROTEUS_14 = "proteus-figure-14"
    PROTEUS_15 = "proteus-figure-15"
    PROTEUS_16 = "proteus-figure-16"
    DEADLINES_HOURS = "deadlines-table-3"
    DEADLINES_COST = "deadlines-cost"
    SPOTDNN_6 = "spotdnn-figure-6"
    SPOTDNN_7 = "spotdnn-figure-7"
    PARCAE_FORECASTS = "parcae-forecasts"
    PARCAE_SHAPES = "parcae-shapes"
    PARCAE_SAMPLES = "parcae-samples"


class FigureSeries(enum.StrEnum):
    """The series of a figure that a row belongs to."""

    OVERHEAD = "overhead"
    RECOMPUTE = "recompute"
    SAVE = "save"
    ALLOCATE = "alloc"
    PREPARE = "prep"
    CLOSED_FORM = "closed form"
    SIMULATION = "simulation"
    PUBLISHED_RULE = "published rule"
    EXACT = "exact"
    COST = "cost"
    RUN_TIME = "run time"
    ON_DEMAND = "on demand"
    SPOT = "spot"
    PAID = "spot, paid"
    FREE = "spot, free"
    AS_PUBLISHED = "lifetimes as published"
    CENSORED = "lifetimes, censored"
    TIMES_1_85 = "x1.85"
    TIMES_6_7 = "x6.7"
    CORES_8 = "8 cores"
    CORE_1 = "1 core"


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A published number and the computed one.

    Attributes:
        source: the paper and the table or section.
        item: the column, job or policy.
        quantity: what is counted.
        unit: of both numbers.
        published, ours: the published and the computed number; `ours` is None if nothing can be computed, `published`
            if none is printed.
        difference_pct: difference of the computed number, relative to the published one [%]; None if there is none.
        verdict: `match`, `differs` or `cannot`.
        reason: why they differ or cannot be compared; the arithmetic if the source is wrong.
        method: how the computed number was obtained.
        figure, series, x: the figure that shows the row, its series there, and its place on the horizontal axis.
    """

    source: str
    item: str
    quantity: str
    unit: str
    published: float | None
    ours: float | None
    difference_pct: float | None
    verdict: RowVerdict
    reason: str
    method: str
    figure: PaperFigure | None = None
    series: FigureSeries | None = None
    x: float | str | None = None

    def placed(
        self, figure: PaperFigure, series: FigureSeries | None = None, x: float | str | None = None
    ) -> PublishedRow:
        """Return the row with its place in a figure."""
        return dataclasses.replace(self, figure=figure, series=series, x=x)


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
) -> PublishedRow:
    """Return the row of two numbers; they match within the tolerance [%] or if both are 0."""
    difference = 0.0 if ours == published else 100.0 * (ours / published - 1.0) if published else math.inf
    match = abs(difference) <= tolerance_pct

    return PublishedRow(
        source,
        item,
        quantity,
        unit,
        published,
        ours,
        difference if math.isfinite(difference) else None,
        RowVerdict.MATCH if match else RowVerdict.DIFFERS,
        "" if match else reason,
        method,
    )


def cannot(source: str, item: str, quantity: str, *, unit: str, published: float, reason: str) -> PublishedRow:
    """Return the row of a published number for which nothing can be computed."""
    return PublishedRow(source, item, quantity, unit, published, None, None, RowVerdict.CANNOT, reason, NO_METHOD)


def unprinted(
    source: str, item: str, quantity: str, *, unit: str, ours: float, reason: str, method: str
) -> PublishedRow:
    """Return the row of a number that the paper does not print, such as a point of a curve that is only drawn."""
    return PublishedRow(source, item, quantity, unit, None, ours, None, RowVerdict.CANNOT, reason, method)


_CLOSE = 0.75
"""How similar a misspelt item must be: a fifth of the letters may be wrong, so `reuse` does not match `us-west1-a`."""

Progress = Callable[[str], None]
"""Receives what is being computed, for a progress line."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a replication.

    Attributes:
        trials: of each simulated column; 0: no simulation.
        seed: of the simulation.
        lives: of machines, for what is fitted to data, with the keys `type` and `zone`; None: there are none.
        folder: with the data that the paper is replayed on: histories of prices, or of availability; None: there is none.
        held_out: play on the months that judge, in place of those that constants are chosen on.
    """

    trials: int
    seed: int = 0
    lifetimes: Lifetimes | None = None
    folder: str | None = None
    held_out: bool = False


@dataclass(frozen=True, slots=True)
class PaperPart:
    """A table, a figure or a claim of a paper.

    Attributes:
        rows: computes its rows.
        simulated: whether some of them need trials.
        by_name_only: whether it is left out unless its name is requested.
    """

    rows: Callable[[Options, Progress], tuple[PublishedRow, ...]]
    simulated: bool = False
    by_name_only: bool = False


def replicated(
    parts: Mapping[str, PaperPart], items: Sequence[str], options: Options, progress: Progress
) -> tuple[PublishedRow, ...]:
    """Return the requested rows, in the order of the paper.

    Args:
        parts: by name.
        items: prefixes of part names (`table` is every table) or of rows' `item` (`adaptive`); empty: everything.
        options: of the replication.
        progress: receives what is being computed.

    Raises:
        Misuse: an item is not a prefix of any part name or row item.
    """
    requested = tuple(_plain(item) for item in items)
    others = tuple(item for item in requested if not any(name.startswith(item) for name in parts))
    whole = tuple(item for item in requested if item not in others)
    made: dict[str, tuple[PublishedRow, ...]] = {}
    if others:
        # The rows are known without any simulation; only the requested parts are then computed in full.
        made = {name: part.rows(dataclasses.replace(options, trials=0), progress) for name, part in parts.items()}
        _check(others, parts, {name for rows in made.values() for row in rows for name in _names(row)})
    found: list[PublishedRow] = []
    for name, part in parts.items():
        asked = name.startswith(whole) if requested else not part.by_name_only
        known = made.get(name, ())
        if asked or any(_is_among(row, others) for row in known):
            rows = known if known and not part.simulated else part.rows(options, progress)
            found += [row for row in rows if asked or _is_among(row, others)]
    return tuple(found)


def _is_among(row: PublishedRow, others: tuple[str, ...]) -> bool:
    return any(name.startswith(others) for name in _names(row))


def _names(row: PublishedRow) -> tuple[str, ...]:
    """Return the names of a row: its item, and each part of the item between commas."""
    return (_plain(row.item), *(_plain(part) for part in row.item.split(",")))


def _check(others: Sequence[str], parts: Mapping[str, PaperPart], items: set[str]) -> None:
    names = (*parts, *sorted(items))
    for other in others:
        if not any(name.startswith(other) for name in items):
            prefixes = {name[: len(other)]: name for name in reversed(names)}
            close = difflib.get_close_matches(other, prefixes, n=1, cutoff=_CLOSE)
            hint = f"did you mean {prefixes[close[0]]}?" if close else f"choose one of {', '.join(parts)}"
            raise Misuse(f"--item: no part or item starts with {other!r}; {hint}")


def _plain(name: str) -> str:
    return "-".join(name.lower().split())
