"""What the machines of the fast fleet loop cost: the rules of `market_meter`, for all machines of a market at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from windfall.market import BillingBasis
from windfall.simulation.market_meter import HOUR_S
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.structs import Struct

_INSTANT = 1e-9
Floats = NDArray[np.float64]


class FleetOutcome(Struct, frozen=True):
    """What a fleet did and cost.

    Attributes:
        usd: all bills, refunds subtracted [USD].
        machine_hours: billed time [h].
        machines: how many were bought.
        preemptions: how many the market took.
        finish_s: when the job ended [s]; None if it did not.
    """

    usd: float
    machine_hours: float
    machines: int
    preemptions: int
    finish_s: float | None = None


@dataclass(slots=True)
class MachineColumns:
    """The machines, one row each.

    Attributes:
        pool: place of the market.
        start, end: of the bill [s]; a machine that the market has not taken yet ends in the future, one that never
            started ended before all time.
        price: at the purchase [USD/h].
        taken: whether the market ends it.
        slot: which it was bought for.
        unit: which purchase it belongs to; the machines of a gang share one.
        order: which order bought it.
    """

    pool: list[int] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    price: list[float] = field(default_factory=list)
    taken: list[bool] = field(default_factory=list)
    slot: list[str] = field(default_factory=list)
    unit: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)

    def add(self, pool: int, times_s: tuple[float, float], price: float, slot: str, bought: tuple[int, int]) -> None:
        """Add a machine with its start and end [s], its unit and order; the market takes it if its end is finite."""
        self.pool.append(pool)
        self.start.append(times_s[0])
        self.end.append(times_s[1])
        self.price.append(price)
        self.taken.append(times_s[1] < math.inf)
        self.slot.append(slot)
        self.unit.append(bought[0])
        self.order.append(bought[1])

    def release(self, row: int, at_s: float) -> None:
        """End a machine by choice, unless it has ended; one that has not started costs nothing."""
        if at_s < self.end[row]:
            self.end[row], self.taken[row] = at_s if at_s >= self.start[row] else -math.inf, False


def outcome(rows: MachineColumns, pools: Sequence[SimulatedMarket], until_s: float) -> FleetOutcome:
    """Return what all machines have cost by a time [s]."""
    pool, start, end = np.array(rows.pool), np.array(rows.start), np.array(rows.end)
    taken = np.array(rows.taken, dtype=np.bool_) & (end < until_s)
    end, price = np.minimum(end, until_s), np.array(rows.price)
    usd = hours = 0.0
    for place, market in enumerate(pools):
        of = (pool == place) & (start <= end)
        usd += cost_usd(market, start[of], end[of], price[of], taken[of])
        hours += float(np.sum(end[of] - start[of])) / HOUR_S
    return FleetOutcome(usd, hours, len(rows.pool), int(taken.sum()))


def cost_usd(market: SimulatedMarket, start: Floats, end: Floats, price: Floats, taken: NDArray[np.bool_]) -> float:
    """Return the cost of machines of one market [USD].

    Args:
        market: of all of them.
        start: of each [s].
        end: of each [s].
        price: at its purchase [USD/h].
        taken: whether the market took it.
    """
    prices, billing, hour_s = market.prices, market.billing, market.billing.hour_s
    billed = np.maximum(end, start + billing.minimum_s)
    refunded = taken & market.refund
    since = start + np.floor((end - start) / hour_s + _INSTANT) * hour_s
    if billing.basis is BillingBasis.STARTED_HOUR:
        hours = np.ceil((billed - start) / hour_s - _INSTANT).astype(np.int64)
        which = np.arange(int(hours.sum())) - np.repeat(np.cumsum(hours) - hours, hours)
        usd = float(np.sum(_values(prices, np.repeat(start, hours) + hour_s * which)))
        begun = refunded & ((end - since) / hour_s > _INSTANT)
        return (usd - float(np.sum(_values(prices, since[begun])))) * hour_s / HOUR_S
    back = np.maximum(billed, since)[refunded]
    if billing.basis is BillingBasis.PURCHASE:
        usd = float(np.sum((billed - start) * price)) - float(np.sum((back - since[refunded]) * price[refunded]))
    else:
        usd = float(np.sum(_areas(prices, billed) - _areas(prices, start)))
        usd -= float(np.sum(_areas(prices, back) - _areas(prices, since[refunded])))
    return usd / HOUR_S


def _values(series: ValueSeries, times_s: Floats) -> Floats:
    return series.values[np.maximum(series.times_s.searchsorted(times_s, "right") - 1, 0)]


def _areas(series: ValueSeries, times_s: Floats) -> Floats:
    """Return the integral of a series up to times [value x s]."""
    place = np.maximum(series.times_s.searchsorted(times_s, "right") - 1, 0)
    ahead = np.concatenate(([0.0], np.cumsum(np.diff(series.times_s) * series.values[:-1])))
    return ahead[place] + (times_s - series.times_s[place]) * series.values[place]
