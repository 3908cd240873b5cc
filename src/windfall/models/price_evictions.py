"""How soon a bid is outbid: the odds of an eviction by the price, from a market's history of prices.

Where a machine is lost when the market price rises above its bid, the history of prices says how often that happens.  For
moments spread over a history, a bid of the price at that moment plus a *bid delta* is followed until the price rises above it.
The share of moments after which that happens within a time is the odds of an eviction within it; the median of the
times at which it happens is the median time to eviction.

Source: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic resource markets", EuroSys
2017, section 4.1 ("Estimating Evictions").  The paper takes the odds of the whole billing hour, whatever is left of it;
`EvictionOdds` knows those of each minute, which are lower for a machine whose hour is nearly over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windfall.errors import Misuse
from windfall.market import OfferKey
from windfall.structs import Struct
from windfall.terms import Instant

Floats = NDArray[np.float64]
HORIZON_S: Final = 3600.0
"""How far a bid is followed: a billing hour [s]."""
STEP_S: Final = 60.0
"""The odds are known at each of these steps of the horizon [s]."""


class EvictionOdds(Struct, frozen=True):
    """The odds of an eviction by bid delta (rows) and time ahead (columns, each `STEP_S` up to the horizon).

    Attributes:
        deltas_usd: of the rows, rising [USD/h].
        evicted: share of moments after which the price exceeded the bid within the time; shape (deltas, steps + 1).
        median_s: median of the times at which it did [s]; the time ahead where it never did; same shape.
        moments: how many moments of the history were followed to the horizon.
    """

    deltas_usd: Floats
    evicted: Floats
    median_s: Floats
    moments: int

    def within(self, deltas_usd: ArrayLike, ahead_s: ArrayLike) -> tuple[Floats, Floats]:
        """Return the odds of an eviction and the median time to it [s], for pairs of bid delta and time ahead.

        A delta between two of the table takes the lower one's odds, one below all of them is evicted at once, a time between
        two steps takes the later one's; so all are at least as high as the history's.

        Args:
            deltas_usd: bid minus price now [USD/h].
            ahead_s: up to the horizon [s]; beyond it, the horizon's odds.
        """
        deltas, ahead = np.broadcast_arrays(np.asarray(deltas_usd, np.float64), np.asarray(ahead_s, np.float64))
        row = np.searchsorted(self.deltas_usd, deltas, "right") - 1
        column = _columns(ahead, self.evicted.shape[1])
        lost, known = row < 0, np.maximum(row, 0)
        return np.where(lost, 1.0, self.evicted[known, column]), np.where(lost, 0.0, self.median_s[known, column])


class EvictionTable(Struct, frozen=True):
    """The odds of an eviction for several markets with the same bid deltas, for questions about many bids at once.

    Attributes:
        rows: of each market, by its offer.
        deltas_usd: rising [USD/h].
        evicted: as in `EvictionOdds`; shape (markets, deltas, steps + 1).
        median_s: same shape [s].
    """

    rows: Mapping[OfferKey, int]
    deltas_usd: Floats
    evicted: Floats
    median_s: Floats

    def at(self, now: Instant) -> EvictionTable:
        """Return the odds for bids at a moment: history does not know it, so all moments are alike."""
        del now
        return self


def odds_at(
    deltas_usd: Floats, evicted: Floats, median_s: Floats, delta_usd: float, ahead_s: float
) -> tuple[float, float]:
    """Return the odds of an eviction and the median time to it [s] of one bid, as `EvictionOdds.within` has them.

    Of plain numbers, and columns of one market: numba compiles it.
    """
    place = np.searchsorted(deltas_usd, delta_usd, side="right") - 1
    if place < 0:
        return 1.0, 0.0
    column = int(min(max(math.ceil(ahead_s / STEP_S), 0), evicted.shape[1] - 1))
    return evicted[place, column], median_s[place, column]


def _columns(ahead_s: Floats, columns: int) -> NDArray[np.intp]:
    """Return the column of each time ahead: the first that is not before it."""
    # Not np.clip, which takes ten times as long for the few values of a decision.
    found: NDArray[np.intp] = np.minimum(np.maximum(np.ceil(ahead_s / STEP_S), 0.0), columns - 1).astype(np.intp)
    return found


class EvictionForecast(Protocol):
    """Knows the odds of an eviction at any moment."""

    def at(self, now: Instant) -> EvictionTable:
        """Return the odds for bids at a moment."""


def table(odds: Mapping[OfferKey, EvictionOdds]) -> EvictionTable:
    """Return the odds of several markets as one table.

    Raises:
        Misuse: there is none, or their bid deltas differ.
    """
    found = list(odds.values())
    if not found or any(not np.array_equal(one.deltas_usd, found[0].deltas_usd) for one in found):
        raise Misuse("a table of eviction odds needs a market, and the same bid deltas for all of them")
    evicted, median_s = np.stack([one.evicted for one in found]), np.stack([one.median_s for one in found])
    return EvictionTable({key: row for row, key in enumerate(odds)}, found[0].deltas_usd, evicted, median_s)


class KnownPrices(Struct, frozen=True):
    """What only a simulation can know: the fate of each bid, from the prices to come.

    Attributes:
        prices: of each market: times of the changes, rising [s after `origin`], and prices [USD/h].
        deltas_usd: rising [USD/h].
        origin: of the times.
    """

    prices: Mapping[OfferKey, tuple[Floats, Floats]]
    deltas_usd: Floats
    origin: Instant

    def at(self, now: Instant) -> EvictionTable:
        """Return for each bid at a moment whether and when it will be exceeded: odds of 0 or 1."""
        steps_s = np.arange(0.0, HORIZON_S + STEP_S, STEP_S)
        waits_s = np.stack([self._waits_s(times_s, usd, now - self.origin) for times_s, usd in self.prices.values()])
        evicted = (waits_s[:, :, None] <= steps_s).astype(np.float64)
        median_s = np.where(evicted > 0.0, np.where(np.isfinite(waits_s), waits_s, 0.0)[:, :, None], steps_s)
        return EvictionTable({key: row for row, key in enumerate(self.prices)}, self.deltas_usd, evicted, median_s)

    def _waits_s(self, times_s: Floats, usd: Floats, moment_s: float) -> Floats:
        """Return when each bid is exceeded [s after the moment]; infinite if not within the horizon."""
        place = int(times_s.searchsorted(moment_s, "right")) - 1
        until = int(times_s.searchsorted(moment_s + HORIZON_S, "right"))
        highest = np.maximum.accumulate(usd[place + 1 : until])
        change = highest.searchsorted(usd[place] + self.deltas_usd, "right")
        waits_s: Floats = np.append(times_s[place + 1 : until] - moment_s, np.inf)
        return np.asarray(waits_s[change])


def learn(times_s: Floats, usd_per_hour: Floats, moments_s: Floats, deltas_usd: Floats) -> EvictionOdds:
    """Return the odds of an eviction over a history of prices.

    Args:
        times_s: of the price changes, rising [s]; a price holds until the next one.
        usd_per_hour: the prices, as many.
        moments_s: at which bids are imagined [s]; those outside the history, or less than the horizon before its end, are
            left out: what followed them is not known.
        deltas_usd: bid minus price at the moment, rising and not negative [USD/h].

    Raises:
        Misuse: no moment is left, or the deltas do not rise from 0 or more.
    """
    if not len(deltas_usd) or deltas_usd[0] < 0.0 or bool(np.any(np.diff(deltas_usd) <= 0.0)):
        raise Misuse("bid deltas rise, from 0 USD/h or more")
    moments = moments_s[(moments_s >= times_s[0]) & (moments_s <= times_s[-1] - HORIZON_S)] if len(times_s) else times_s
    if not len(moments):
        raise Misuse("the history of prices is shorter than the hour over which a bid is followed: take a longer one")
    evicted_s = _evicted_s(times_s, usd_per_hour, moments, deltas_usd)
    steps_s = np.arange(0.0, HORIZON_S + STEP_S, STEP_S)
    evicted, median_s = (np.empty((len(deltas_usd), len(steps_s))) for _ in range(2))
    for row, waits_s in enumerate(np.sort(evicted_s, axis=0).T):
        counts = np.searchsorted(waits_s, steps_s, "right")
        evicted[row] = counts / len(moments)
        middle = np.minimum((counts - 1) // 2, len(waits_s) - 1), np.minimum(counts // 2, len(waits_s) - 1)
        median_s[row] = np.where(counts > 0, (waits_s[np.maximum(middle[0], 0)] + waits_s[middle[1]]) / 2.0, steps_s)
    return EvictionOdds(deltas_usd, evicted, median_s, len(moments))


def _evicted_s(times_s: Floats, usd_per_hour: Floats, moments_s: Floats, deltas_usd: Floats) -> Floats:
    """Return when each bid is exceeded [s after its moment]; infinite if not within the horizon; shape (moments, deltas)."""
    place = np.searchsorted(times_s, moments_s, "right") - 1
    bids = usd_per_hour[place][:, None] + deltas_usd
    found = np.full(bids.shape, np.inf)
    following = np.arange(len(moments_s))  # moments whose next price change is still within the horizon
    ahead = 1
    while len(following):
        change = place[following] + ahead
        known = change < len(times_s)
        following, change = following[known], change[known]
        waits_s = times_s[change] - moments_s[following]
        near = waits_s <= HORIZON_S
        following, change, waits_s = following[near], change[near], waits_s[near]
        above = (usd_per_hour[change][:, None] > bids[following]) & np.isinf(found[following])
        found[following] = np.where(above, waits_s[:, None], found[following])
        following = following[np.isinf(found[following, -1])]  # the highest bid is the last to be exceeded
        ahead += 1
    return found
