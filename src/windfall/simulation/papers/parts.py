"""The parts of a paper that are replicated, and how one asks for some of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from windfall.errors import Misuse
from windfall.models.exact.rows import Row
from windfall.models.lifetimes.lives import Lives

_CLOSE = 0.75
"""How alike a misspelt item must be: a fifth of the letters may be wrong, so that `reuse` is not taken for `us-west1-a`."""

Tell = Callable[[str], None]
"""Hears what is computed now, for people who wait."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a replication is made with.

    Attributes:
        trials: of each simulated column; 0: nothing is simulated.
        seed: of the simulation.
        lives: of machines, for what is fitted to data, with the keys `type` and `zone`; None: there are none.
    """

    trials: int
    seed: int = 0
    lives: Lives | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A table, a figure or a claim of a paper.

    Attributes:
        rows: makes its rows.
        simulated: whether some of them take trials.
    """

    rows: Callable[[Options, Tell], tuple[Row, ...]]
    simulated: bool = False


def replicated(parts: Mapping[str, Part], items: Sequence[str], options: Options, tell: Tell) -> tuple[Row, ...]:
    """Return the rows of what is asked for, in the order of the paper.

    Args:
        parts: by name.
        items: beginnings of names of parts (`table` is every table), or of rows' `item` (`adaptive`); none: everything.
        options: what they are made with.
        tell: hears what is made.

    Raises:
        Misuse: one of the items begins neither the name of a part nor an item.
    """
    wanted = tuple(_plain(item) for item in items)
    others = tuple(item for item in wanted if not any(name.startswith(item) for name in parts))
    whole = tuple(item for item in wanted if item not in others)
    made: dict[str, tuple[Row, ...]] = {}
    if others:
        # What rows there are is known without drawing anything; only what was asked for is then made in full.
        made = {name: part.rows(Options(0, options.seed, options.lives), tell) for name, part in parts.items()}
        _check(others, parts, {name for rows in made.values() for row in rows for name in _names(row)})
    found: list[Row] = []
    for name, part in parts.items():
        asked = not wanted or name.startswith(whole)
        known = made.get(name, ())
        if asked or any(_is_among(row, others) for row in known):
            rows = known if known and not part.simulated else part.rows(options, tell)
            found += [row for row in rows if asked or _is_among(row, others)]
    return tuple(found)


def _is_among(row: Row, others: tuple[str, ...]) -> bool:
    return any(name.startswith(others) for name in _names(row))


def _names(row: Row) -> tuple[str, ...]:
    """What a row may be called by: its item, and each part of it between commas."""
    return (_plain(row.item), *(_plain(part) for part in row.item.split(",")))


def _check(others: Sequence[str], parts: Mapping[str, Part], items: set[str]) -> None:
    names = (*parts, *sorted(items))
    for other in others:
        if not any(name.startswith(other) for name in items):
            begins = {name[: len(other)]: name for name in reversed(names)}
            close = difflib.get_close_matches(other, begins, n=1, cutoff=_CLOSE)
            hint = f"did you mean {begins[close[0]]}?" if close else f"choose one of {', '.join(parts)}"
            raise Misuse(f"--item: nothing is called {other!r}; {hint}")


def _plain(name: str) -> str:
    return "-".join(name.lower().split())
