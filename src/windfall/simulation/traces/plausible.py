"""Are these times really in that unit?  Judged on the head of a trace, before anything of it is used.

Machines and prices of a market change every few minutes to hours; what would make them change every few milliseconds,
or every few weeks, is in another unit.  The bounds are wide, so that no real trace is refused by taste: of the public
traces that these were tried on the median step lies between 60 s and 1.5 h.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from windfall.errors import Misuse
from windfall.simulation.traces.files import fault
from windfall.units import duration_text

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LIKELY_UNITS = ("ms", "s", "h")
_Row = TypeVar("_Row")
HEAD_ROWS = 512
"""How many rows are judged."""
STEP_S = (0.9, 3 * 86_400.0)
_LIKELY_STEP_S = (1.0, 6 * 3600.0)
LIFE_S = (20.0, 45 * 86_400.0)
_STEPS_MIN = 5
"""With fewer numbers nothing is said."""


def unit_s(unit: str | None) -> float | None:
    """Return how long a named unit is [s].

    Raises:
        Misuse: there is none of this name.
    """
    if unit is None or unit in UNITS_S:
        return None if unit is None else UNITS_S[unit]
    raise Misuse(f"--unit: {unit!r} is no unit of time here; choose one of {', '.join(UNITS_S)}")


def concluded(times: list[float], path: Path) -> tuple[str, str]:
    """Return the unit of unlabelled times, from the median step between them, and a sentence that says so.

    Args:
        times: of the trace's head, in the unit in question.
        path: of the trace, for the message.

    Raises:
        Misuse: not exactly one unit would make sense.
    """
    middle = _median_step(times)
    fitting = [
        unit
        for unit in _LIKELY_UNITS
        if middle is not None and _LIKELY_STEP_S[0] <= middle * UNITS_S[unit] <= _LIKELY_STEP_S[1]
    ]
    if len(fitting) != 1 or middle is None:
        raise fault(path, None, "neither the file nor its name says the unit of its times; give --unit ms, s or h")
    step = duration_text(middle * UNITS_S[fitting[0]])
    return fitting[0], f"times taken as {fitting[0]}: the median step is then {step}"


def check_steps(times: list[float], unit: str, path: Path) -> None:
    """Refuse times whose median step is absurd in their unit.

    Raises:
        Misuse: it is; the sentence names the unit that would fit.
    """
    middle = _median_step(times)
    if middle is not None:
        _judge(middle, unit, STEP_S, "step between times", path)


def check_lives(lives: list[float], unit: str, path: Path) -> None:
    """Refuse lives whose median is absurd in their unit.

    Raises:
        Misuse: it is; the sentence names the unit that would fit.
    """
    if len(lives) >= _STEPS_MIN:
        _judge(statistics.median(lives), unit, LIFE_S, "life", path)


def _median_step(times: list[float]) -> float | None:
    steps = [later - earlier for earlier, later in itertools.pairwise(times) if later > earlier]
    return statistics.median(steps) if len(steps) >= _STEPS_MIN else None


def _judge(middle: float, unit: str, bounds_s: tuple[float, float], what: str, path: Path) -> None:
    least_s, most_s = bounds_s
    if least_s <= middle * UNITS_S[unit] <= most_s:
        return
    other = next((one for one in _LIKELY_UNITS if least_s <= middle * UNITS_S[one] <= most_s), None)
    advice = f"are they in {other}?  then give --unit {other}" if other else "check the unit"
    told = "years" if middle * UNITS_S[unit] > 1e8 else duration_text(middle * UNITS_S[unit])
    raise fault(path, None, f"the median {what} is {middle:g} {unit}, that is {told}: {advice}")


def after_head(rows: Iterable[_Row]) -> tuple[list[_Row], Iterator[_Row]]:
    """Return the first rows, and all of them again."""
    stream = iter(rows)
    first = list(itertools.islice(stream, HEAD_ROWS))
    return first, itertools.chain(first, stream)
