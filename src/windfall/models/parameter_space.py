"""The points of a parameter space: all combinations of listed values, with samples of ranges.

Each combination of listed values is run with each sample, so that a sample of the ranges is the same for all of them and
differences between combinations are not those of the samples.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from windfall.structs import Struct

Value = str | int | float | bool
"""A parameter of a point."""
DIGITS = 12
"""Numbers between two bounds are rounded to this many digits, so that 0.1 x 3 is 0.3."""


class Sampling(enum.StrEnum):
    """How ranges are sampled."""

    LATIN_HYPERCUBE = "latin-hypercube"
    """Each of n equal parts of each range has one of n samples (McKay, Beckman and Conover, Technometrics 21, 1979)."""
    RANDOM = "random"
    """Each sample for itself."""


class RangeKind(enum.StrEnum):
    """How the values of a range are spread."""

    UNIFORM = "uniform"
    LOG_UNIFORM = "loguniform"
    """Evenly by magnitude: as many between 1 and 10 as between 10 and 100."""
    INTEGERS = "integers"
    """Whole numbers, both ends included."""


class ListedParameter(Struct, frozen=True):
    """A parameter with given values."""

    name: str
    values: tuple[Value, ...]


class RangedParameter(Struct, frozen=True):
    """A parameter that is sampled between two bounds."""

    name: str
    kind: RangeKind
    low: float
    high: float


def linspace(low: float, high: float, count: int) -> tuple[float, ...]:
    """Return `count` numbers from `low` to `high`, both included, at equal distances."""
    if count == 1:
        return (low,)
    return tuple(_rounded(low + (high - low) * place / (count - 1)) for place in range(count))


def logspace(low: float, high: float, count: int) -> tuple[float, ...]:
    """Return `count` numbers from `low` to `high`, both included and above zero, in equal ratios."""
    if count == 1:
        return (low,)
    return tuple(_rounded(low * (high / low) ** (place / (count - 1))) for place in range(count))


def steps(start: float, stop: float, step: float) -> tuple[float, ...]:
    """Return the numbers from `start` up to `stop`, which is left out as in Python's range.

    Args:
        start: the first one.
        stop: it is never reached.
        step: between two; negative to count down; not zero.
    """
    count = max(math.ceil(_rounded((stop - start) / step)), 0)
    return tuple(_rounded(start + place * step) for place in range(count))


def points(
    listed: Sequence[ListedParameter],
    ranged: Sequence[RangedParameter],
    *,
    samples: int,
    sampling: Sampling,
    seed: int,
) -> Iterator[tuple[Value, ...]]:
    """Yield the points, each with the listed parameters and then the ranged ones; the last listed one changes fastest.

    Args:
        listed: all their combinations.
        ranged: none if nothing is sampled.
        samples: how many samples of the ranges, if there are any.
        sampling: how they are drawn.
        seed: of the samples.
    """
    drawn = sample(ranged, samples, sampling, np.random.default_rng(seed)) if ranged else [()]
    for combination in itertools.product(*(one.values for one in listed)):
        for values in drawn:
            yield (*combination, *values)


def sample(
    ranged: Sequence[RangedParameter], samples: int, sampling: Sampling, rng: np.random.Generator
) -> list[tuple[float, ...]]:
    """Return samples of ranges.

    Args:
        ranged: the ranges; at least one.
        samples: how many.
        sampling: how they are drawn.
        rng: chance.
    """
    if sampling is Sampling.LATIN_HYPERCUBE:
        # Only this needs it, and it takes half a second to load.
        from scipy.stats import qmc  # noqa: PLC0415

        unit = qmc.LatinHypercube(len(ranged), rng=rng).random(samples)
    else:
        unit = rng.random((samples, len(ranged)))
    return [tuple(_within(one, float(share)) for one, share in zip(ranged, row, strict=True)) for row in unit]


def _within(one: RangedParameter, share: float) -> float:
    """The value at a share of a range."""
    match one.kind:
        case RangeKind.UNIFORM:
            return _rounded(one.low + (one.high - one.low) * share)
        case RangeKind.LOG_UNIFORM:
            return _rounded(one.low * (one.high / one.low) ** share)
        case RangeKind.INTEGERS:
            return min(int(one.low + math.floor((one.high - one.low + 1) * share)), int(one.high))


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
