"""How a simulated market takes machines back: by age, by a fall of its capacity, by a trace; with true, short or no notice.

What is taken is a unit: one machine, or a gang, whose machines live and die together.  Eviction by price is the provider's,
because only it knows the bids.  All chances are addressed by (seed, market, number of the unit).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from windfall.simulation import random_draws, sampling
from windfall.simulation.scenario import LifetimeQuantiles, MemorylessLifetimes, RecordedLifetimes
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import Timeline
from windfall.structs import Struct
from windfall.terms import Seconds

FIRST: Final = -(10**6)
"""Priority of a fall of capacity: before anything else of its instant, so that capacity is never exceeded."""


class ByTheJob(Struct, frozen=True):
    """Each job draws its machines' delays and lifetimes itself, so that all its policies meet the same machines."""


class TracedEnds:
    """One unit of the market ends at each of these times; which one is chance.

    Attributes:
        times_s: rising [s].
    """

    def __init__(self, times_s: NDArray[np.float64]) -> None:
        """Take the times."""
        self.times_s = times_s


EvictionRule = MemorylessLifetimes | LifetimeQuantiles | RecordedLifetimes | TracedEnds | ByTheJob | None
"""How long machines live; None: until they are released, outbid, or the capacity falls."""


class NoticeShares(Struct, frozen=True):
    """Which evictions come without the notice that the market promises; the others come with it.

    Attributes:
        short: share whose notice is shorter than promised, by a uniform factor.
        missing: share without any notice.
    """

    short: float = 0.0
    missing: float = 0.0


KEPT = NoticeShares()


class EvictionUnit(Struct, frozen=True):
    """What is evicted as one.

    Attributes:
        number: in its market, from 0.
        running: it has started; otherwise it is still pending.
    """

    number: int
    machine_ids: tuple[str, ...]
    running: bool


class EvictablePool(Protocol):
    """What this module needs to know of one kind of machine."""

    @property
    def notice_s(self) -> Seconds:
        """The promised notice [s]."""

    @property
    def notices(self) -> NoticeShares:
        """How far the promise is kept."""

    @property
    def capacity(self) -> ValueSeries | None:
        """How many there are."""

    @property
    def eviction(self) -> EvictionRule:
        """How long they live."""


class EvictionCalls(Protocol):
    """What this module needs of the provider."""

    def units(self, place: int) -> Sequence[EvictionUnit]:
        """Return the pending and running units of a market, oldest first."""

    def evict(self, unit: EvictionUnit, notice_s: Seconds | None) -> None:
        """Evict a unit after a notice; None: now, without one."""


class MarketEvictions:
    """The evictions of all markets of a provider."""

    def __init__(self, timeline: Timeline, pools: Sequence[EvictablePool], seed: int, calls: EvictionCalls) -> None:
        """Schedule what does not depend on machines.

        Args:
            timeline: the provider's.
            pools: its markets.
            seed: of their chances.
            calls: the provider.
        """
        self._timeline = timeline
        self._pools = pools
        self._calls = calls
        self._keys = [_unsigned(random_draws.key(seed, place)) for place in range(len(pools))]
        self._choices = [random.Random(f"{seed} {place}") for place in range(len(pools))]  # noqa: S311 - a simulation
        self._lifetimes = [_packed(pool.eviction) for pool in pools]
        self._leaving: dict[str, float] = {}
        for place, pool in enumerate(pools):
            if isinstance(pool.eviction, TracedEnds):
                self._await_end(place, pool.eviction.times_s, 0)
            if pool.capacity is not None:
                self._await_fall(place, pool.capacity, timeline.time)

    def started(self, place: int, unit: EvictionUnit) -> None:
        """Schedule the end of a unit that has started, if its market has a law of lifetimes."""
        packed = self._lifetimes[place]
        if packed is None:
            return
        lasts_s = float(sampling.lifetime_s(packed.kind, packed.values, self._keys[place], 0, unit.number))
        if lasts_s < math.inf:
            notice_s = self.notice_of(place, unit.number)
            given_s = min(notice_s or 0.0, lasts_s)
            evict = partial(self._evict, unit, None if notice_s is None else Seconds(given_s))
            self._timeline.at(lasts_s - given_s, evict)

    def notice_of(self, place: int, number: int) -> Seconds | None:
        """Return the notice that a unit gets [s]; None for none."""
        pool, key = self._pools[place], self._keys[place]
        shares = pool.notices
        if pool.notice_s <= 0.0:
            return None
        drawn = random_draws.uniform(key, random_draws.ANNOUNCED, number) if shares.missing or shares.short else 1.0
        if drawn < shares.missing:
            return None
        if drawn < shares.missing + shares.short:
            return Seconds(pool.notice_s * random_draws.uniform(key, random_draws.STALL, number))
        return pool.notice_s

    def forget(self, machine_id: str) -> None:
        """Forget a machine that has ended."""
        self._leaving.pop(machine_id, None)

    def _evict(self, unit: EvictionUnit, notice_s: Seconds | None) -> None:
        for machine_id in unit.machine_ids:
            self._leaving[machine_id] = self._timeline.time + (notice_s or 0.0)
        self._calls.evict(unit, notice_s)

    # ------------------------------------------------------------------------------------------------ a trace of ends

    def _await_end(self, place: int, times_s: NDArray[np.float64], which: int) -> None:
        if which < len(times_s):
            ahead_s = max(float(times_s[which]) - self._pools[place].notice_s, self._timeline.time)
            self._timeline.when(ahead_s, partial(self._traced_end, place, times_s, which))

    def _traced_end(self, place: int, times_s: NDArray[np.float64], which: int) -> None:
        ends_s = float(times_s[which])
        running = [unit for unit in self._calls.units(place) if unit.running]
        staying = [unit for unit in running if not self._leaving.keys() & set(unit.machine_ids)]
        if staying:
            self._schedule(place, self._choices[place].choice(staying), ends_s)
        self._await_end(place, times_s, which + 1)

    def _schedule(self, place: int, unit: EvictionUnit, ends_s: float) -> None:
        """Evict a unit at a time, with the notice that it gets."""
        left_s = max(ends_s - self._timeline.time, 0.0)
        notice_s = self.notice_of(place, unit.number)
        given_s = min(notice_s or 0.0, left_s)
        for machine_id in unit.machine_ids:
            self._leaving[machine_id] = ends_s
        evict = partial(self._evict, unit, None if notice_s is None else Seconds(given_s))
        self._timeline.when(max(ends_s - given_s, self._timeline.time), evict, FIRST)

    # --------------------------------------------------------------------------------------------- a fall of capacity

    def _await_fall(self, place: int, capacity: ValueSeries, after_s: float) -> None:
        falls_s = capacity.next_fall_s(after_s)
        if falls_s < math.inf:
            ahead_s = max(falls_s - self._pools[place].notice_s, self._timeline.time)
            self._timeline.when(ahead_s, partial(self._fall_ahead, place, capacity, falls_s), FIRST)

    def _fall_ahead(self, place: int, capacity: ValueSeries, falls_s: float) -> None:
        """Choose by chance who goes when the capacity falls."""
        staying = [unit for unit in self._calls.units(place) if unit.running and not self._leaves(unit, falls_s)]
        excess = _size(staying) - capacity.at(falls_s)
        self._choices[place].shuffle(staying)
        while excess > 0 and staying:
            unit = staying.pop()
            excess -= len(unit.machine_ids)
            self._schedule(place, unit, falls_s)
        self._timeline.when(falls_s, partial(self._fall, place, capacity), FIRST + 1)
        self._await_fall(place, capacity, falls_s)

    def _fall(self, place: int, capacity: ValueSeries) -> None:
        """End what is over the new capacity: the chosen units, then what was sold since the choice, the newest first."""
        now_s, units = self._timeline.time, self._calls.units(place)
        chosen = [unit for unit in units if self._leaves(unit, now_s + sampling.INSTANT_S)]
        others = [unit for unit in reversed(units) if unit not in chosen]
        for unit in (*chosen, *others):
            if _size(self._calls.units(place)) <= capacity.at(now_s):
                return
            self._evict(unit, None)

    def _leaves(self, unit: EvictionUnit, by_s: float) -> bool:
        """Return whether a unit is known to be gone by a time [s]."""
        return any(self._leaving.get(machine_id, math.inf) <= by_s for machine_id in unit.machine_ids)


def _size(units: Sequence[EvictionUnit]) -> int:
    return sum(len(unit.machine_ids) for unit in units)


def _packed(eviction: EvictionRule) -> sampling.PackedLifetimes | None:
    if isinstance(eviction, MemorylessLifetimes | LifetimeQuantiles | RecordedLifetimes):
        return sampling.pack(eviction)
    return None


def _unsigned(key: Any) -> Any:
    """Return a key for compiled code: half of all keys do not fit a signed word."""
    return np.uint64(key)
