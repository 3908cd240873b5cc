"""How many machines there will be: forecasts of a count from its last values, at equal intervals.

**Last value**: what there is stays.

**Guarded ARIMA** (Parcae): the history is cleaned of blips and of what came before its turning point; an ARIMA(1,1,0) with
drift is fitted by exact maximum likelihood; its forecast may differ by at most 3 from its first value and stays between bounds;
changes are damped by 0.75 or 0.5 once a cleaned history rose (or fell) by 5 or by 10 without turning.  The published program
never resets the damping: one steep rise damps every later forecast of the run.  `Damping` is handed back, so that a caller can
do the same, or start each forecast with none.

    d_t = N_t - N_{t-1},   d_t - m = f (d_{t-1} - m) + e_t,   |f| < 1

**Reverting**: a count returns to the number that is wanted, by a constant share of what is missing in each interval,
N_{t+1} = W - (W - N_t) s.  With s = 1 it is the last value.

Source: Parcae (NSDI 2024), its public program (commit efedee7e); it also adds losses drawn without seed where the forecast is
flat and the history is not, which is left out here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize_scalar

from windfall.errors import Misuse
from windfall.models.shapes import Floats
from windfall.structs import Struct

GUARD = 3
"""By how many machines a forecast may differ from its first value."""
BLIP = 3
"""The longest run of other values that is taken for a blip [intervals]."""
_PHI_MAX = 1.0 - 1e-6
_GRID = 401


class Damping(Struct, frozen=True):
    """Factors by which forecast changes are smaller than the fit's."""

    rising: float = 1.0
    falling: float = 1.0


class DriftingFit(Struct, frozen=True):
    """An ARIMA(1,1,0) with drift.

    Attributes:
        drift: m, mean change in an interval [machines].
        persistence: f, share of a change's excess that the next one keeps.
    """

    drift: float
    persistence: float


def last_value(history: Sequence[int], ahead: int) -> tuple[int, ...]:
    """Return the last count `ahead` times."""
    return (_checked(history, 1)[-1],) * ahead


def reverting(history: Sequence[int], ahead: int, *, wanted: int, share: float) -> tuple[int, ...]:
    """Return the counts on the way back to the wanted number.

    Args:
        history: counts, oldest first.
        ahead: how many intervals.
        wanted: W, the number that is asked for; a count above it stays.
        share: s, of what is missing, that still is an interval later, 0 to 1.
    """
    if not 0.0 <= share <= 1.0:
        raise Misuse(f"share of missing machines that stays missing is {share}: write a number from 0 to 1")
    missing = max(wanted - _checked(history, 1)[-1], 0)
    return tuple(history[-1] + round(missing * (1.0 - share**step)) for step in range(1, ahead + 1))


def guarded_arima(
    history: Sequence[int], ahead: int, damping: Damping, *, least: int, most: int
) -> tuple[tuple[int, ...], Damping]:
    """Return Parcae's forecast and the damping for the next one.

    Args:
        history: counts, oldest first; at least 5.
        ahead: how many intervals.
        damping: from the forecast before; `Damping()`: none.
        least: count that no forecast falls below.
        most: count that none exceeds.
    """
    counts = cleaned(history)
    damping = _damped(counts, damping)
    if min(counts) == max(counts):
        raw = [float(counts[-1])] * ahead
    else:
        raw = [float(np.rint(value)) for value in projected(counts, fit_drifting(counts), ahead)]
    first = raw[0]
    guarded = [min(max(min(max(value, first - GUARD), first + GUARD), least), most) for value in raw]
    found: list[int] = []
    before = float(counts[-1])
    count = counts[-1]
    for value in guarded:
        change = value - before
        count = round(count + change * (damping.rising if change > 0 else damping.falling))
        before = value
        found.append(count)
    return tuple(found), damping


def cleaned(history: Sequence[int]) -> tuple[int, ...]:
    """Return a history without blips, and flat until its turning point.

    Example:
        23 19 19 ... 19 22 28 29 becomes 19 19 ... 19 22 28 29: the lowest value is inside, and what came before it no trend.
    """
    counts = list(_checked(history, BLIP + 2))
    for size in range(BLIP, 0, -1):
        for start in range(len(counts) - 1 - size):
            inside = counts[start + 1 : start + 1 + size]
            if counts[start] == counts[start + 1 + size] and counts[start] not in inside:
                counts[start + 1 : start + 1 + size] = [counts[start]] * size
    ends = (counts[0], counts[-1])
    turn = min(counts) if min(counts) < min(ends) else max(counts) if max(counts) > max(ends) else None
    if turn is not None:
        place = max(index for index, count in enumerate(counts) if count == turn)
        counts[:place] = [turn] * place
    return tuple(counts)


def fit_drifting(counts: Sequence[int]) -> DriftingFit:
    """Return the exact maximum-likelihood fit to the changes of a history.

    The drift that is best for a persistence is known, and so is the variance; what remains is one number to search.
    """
    changes = np.diff(np.array(_checked(counts, 3), np.float64))
    if np.ptp(changes) == 0.0:
        return DriftingFit(float(changes[0]), 0.0)

    places = np.linspace(-_PHI_MAX, _PHI_MAX, _GRID)
    best = int(np.argmin(_profile(changes, places)[0]))
    found = minimize_scalar(
        lambda persistence: float(_profile(changes, np.array((persistence,)))[0][0]),
        bounds=(places[max(best - 1, 0)], places[min(best + 1, _GRID - 1)]),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return DriftingFit(float(_profile(changes, np.array((found.x,)))[1][0]), float(found.x))


def projected(counts: Sequence[int], fit: DriftingFit, ahead: int) -> tuple[float, ...]:
    """Return the expected counts, not rounded."""
    level, excess = float(counts[-1]), counts[-1] - counts[-2] - fit.drift
    found = []
    for _ in range(ahead):
        excess *= fit.persistence
        level += fit.drift + excess
        found.append(level)
    return tuple(found)


def l1_share(forecast: Sequence[int], truth: Sequence[int]) -> float:
    """Return the sum of absolute errors over the sum of what was true [1]; infinite if there was nothing."""
    errors = sum(abs(guess - true) for guess, true in zip(forecast, truth, strict=True))
    return errors / sum(truth) if any(truth) else math.inf


def _profile(changes: Floats, persistences: Floats) -> tuple[Floats, Floats]:
    """Return -2 log likelihood (but for a constant) and the best drift, for each persistence."""
    starts = np.sqrt(1.0 - persistences * persistences)
    values = np.empty((len(persistences), len(changes)))
    values[:, 0] = starts * changes[0]
    values[:, 1:] = changes[1:] - persistences[:, None] * changes[:-1]
    weights = np.repeat(1.0 - persistences[:, None], len(changes), axis=1)
    weights[:, 0] = starts
    drifts = (weights * values).sum(axis=1) / (weights * weights).sum(axis=1)
    errors = values - drifts[:, None] * weights
    return len(changes) * np.log((errors * errors).sum(axis=1)) - 2.0 * np.log(starts), drifts


def _damped(counts: Sequence[int], damping: Damping) -> Damping:
    steps = [right - left for left, right in itertools.pairwise(counts)]
    rising, falling = damping.rising, damping.falling
    if all(step >= 0 for step in steps):
        rising = _factor(counts[-1] - min(counts), rising)
    if all(step <= 0 for step in steps):
        falling = _factor(max(counts) - counts[-1], falling)
    return Damping(rising, falling)


def _factor(change: int, before: float) -> float:
    return 0.5 if change >= 10 else 0.75 if change >= 5 else before


def _checked(history: Sequence[int], least: int) -> Sequence[int]:
    if len(history) < least:
        raise Misuse(f"a history of {len(history)} counts: this forecast needs at least {least}")
    if any(count < 0 for count in history):
        raise Misuse(f"a history with a count of {min(history)} machines: counts are 0 or more")
    return history
