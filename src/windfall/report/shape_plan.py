"""The shapes of an elastic training's plan, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windfall.units import duration_text

SHOWN = 6
"""Numbers of machines that a plan shows unless it shows all."""


def rows(shapes: Mapping[str, Any] | None, *, whole: bool) -> Iterator[tuple[str, str]]:
    """Yield label and text of each number of machines; nothing for a plan without shapes.

    Args:
        shapes: of the plan; None for a job of another runtime.
        whole: show every number.
    """
    if shapes is None:
        return
    known = shapes["rows"]
    shown = known if whole else _some(known)
    for number, row in enumerate(shown):
        yield "" if number else "shapes", _text(row)
    if shown:
        more = "" if len(shown) == len(known) else f"; {len(known)} numbers of machines in `windfall plan --all`"
        yield "", f"({shapes['says']}{more})"


def _some(known: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the first, the last and the planned row, and between them about as many more as are shown, evenly."""
    if len(known) <= SHOWN:
        return known
    last = len(known) - 1
    places = {round(last * part / (SHOWN - 2)) for part in range(SHOWN - 1)}
    places |= {number for number, row in enumerate(known) if row["planned"]}
    return [known[place] for place in sorted(places)]


def _text(row: Mapping[str, Any]) -> str:
    machines = row["machines"]
    count = f"{machines} machine{'' if machines == 1 else 's'}{' (planned)' if row['planned'] else ''}"
    if row["shape"] is None:
        return f"{count}: too few for any shape"
    spare = f" and {row['spares']} spare" if row["spares"] else ""
    text = f"{count}: {row['shape']}{spare}, {row['samples_per_s']:.4g} samples/s, {row['steps_per_s']:.3g} steps/s"
    if row["finish_s"] is not None:
        text += f"; done in {duration_text(row['finish_s'])}"
        text += f" for {row['cost_usd']:.3g} USD" if row["cost_usd"] else ""
    return text
