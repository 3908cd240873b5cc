"""Scores of forecasts: pinball loss of a quantile, how often outcomes were inside, and what to compare that with.

A forecast's quantile q of level p should exceed a share p of the outcomes (coverage), and be no farther from them than needed:
the pinball loss of an outcome y is

    p (y - q)        if y >= q
    (1 - p) (q - y)  otherwise

and its mean is least for the true quantile.  It is read beside that of climatology: the quantile of past outcomes, which
knows nothing of the day.  Outcomes whose spans overlap saw the same prices and losses, so their number says little: the
number of blocks that do not overlap is counted too.

Sources: R. Koenker, G. Bassett, "Regression quantiles", Econometrica 46 (1978); T. Gneiting, A. Raftery, "Strictly proper
scoring rules, prediction, and estimation", JASA 102 (2007), section 6.1; E. Wilson, "Probable inference, the law of
succession, and statistical inference", JASA 22 (1927).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

from windfall.structs import Struct


class Coverage(Struct, frozen=True):
    """How often outcomes were inside a quantile.

    Attributes:
        inside, count: outcomes no higher than their quantile, and all.
        low, high: interval of the share (`wilson`), for as many independent outcomes as were stated.
    """

    inside: int
    count: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """The share inside [1]; NaN without outcomes."""
        return self.inside / self.count if self.count else math.nan


def pinball(outcome: float, quantile: float, level: float) -> float:
    """Return the pinball loss of an outcome, in its unit; an infinite outcome costs infinitely much.

    Args:
        outcome: what happened.
        quantile: what the forecast stated.
        level: of the quantile [1].
    """
    if outcome >= quantile:
        return level * (outcome - quantile) if outcome > quantile else 0.0
    return (1.0 - level) * (quantile - outcome)


def pinball_mean(outcomes: Sequence[float], quantiles: Sequence[float], level: float) -> float:
    """Return the mean pinball loss, in the unit of the outcomes; NaN without any."""
    losses = [pinball(outcome, promised, level) for outcome, promised in zip(outcomes, quantiles, strict=True)]
    return math.fsum(losses) / len(losses) if losses else math.nan


def coverage(
    outcomes: Sequence[float], quantiles: Sequence[float], *, independent: int | None = None, confidence: float = 0.95
) -> Coverage:
    """Return how often outcomes were inside their quantiles.

    Args:
        outcomes: what happened.
        quantiles: what the forecasts stated, one for each outcome.
        independent: how many independent outcomes the interval is for; None: all.
        confidence: of the interval [1].
    """
    count = len(outcomes)
    inside = sum(outcome <= promised for outcome, promised in zip(outcomes, quantiles, strict=True))
    low, high = wilson(inside / count if count else 0.0, count if independent is None else independent, confidence)
    return Coverage(inside, count, low, high)


def wilson(share: float, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval of a share seen in `count` independent outcomes; all of [0, 1] without any."""
    if count <= 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    middle = share + z * z / (2.0 * count)
    half = z * math.sqrt(share * (1.0 - share) / count + z * z / (4.0 * count * count))
    scale = 1.0 + z * z / count
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


def independent_blocks(spans: Iterable[tuple[float, float]]) -> int:
    """Return the most spans (start, end) of which no two overlap: the earliest end first, then what starts after it."""
    count, free_from = 0, -math.inf
    for start, end in sorted(spans, key=lambda span: (span[1], span[0])):
        if start >= free_from:
            count, free_from = count + 1, end
    return count


def quantile(outcomes: Sequence[float], level: float) -> float:
    """Return the smallest past outcome that covers a share `level` of them; climatology's forecast.

    Raises:
        ValueError: there are no outcomes.
    """
    if not outcomes:
        raise ValueError("a quantile needs outcomes")
    place = math.ceil(level * len(outcomes) - 1e-9) - 1
    return sorted(outcomes)[min(max(place, 0), len(outcomes) - 1)]
