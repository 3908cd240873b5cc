"""A value over time, in two columns: prices, capacities.

Each value holds from its time until the next one; the first holds before it too, the last for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.simulation.traces import trace_slices
from windfall.simulation.traces.trace_events import Content, Count, MachineEnded, MachineStarted, Price


class ValueSeries:
    """A step function of virtual time; a question costs a bisection.

    Attributes:
        times_s: rising [s].
        values: as many.
    """

    __slots__ = ("_areas", "_falls_s", "times_s", "values")

    def __init__(self, times_s: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        """Take the columns.

        Raises:
            Misuse: they are empty, of different lengths, not rising, or have a value that is not a number of 0 or more.
        """
        if not len(times_s) or len(times_s) != len(values) or bool(np.any(np.diff(times_s) <= 0.0)):
            raise Misuse("a series needs at least one value, and as many times in rising order")
        if not bool(np.all(np.isfinite(values) & (values >= 0.0))):
            raise Misuse("a series has a value that is not a number of 0 or more")
        self.times_s = times_s
        self.values = values
        self._falls_s = times_s[1:][np.diff(values) < 0.0]
        self._areas = np.concatenate(([0.0], np.cumsum(np.diff(times_s) * values[:-1])))

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]]) -> ValueSeries:
        """Return the series of (from this time on [s], value), oldest first; at equal times the last one counts."""
        columns = dict(points)
        return cls(np.array(list(columns), dtype=np.float64), np.array(list(columns.values()), dtype=np.float64))

    @classmethod
    def constant(cls, value: float) -> ValueSeries:
        """Return a value that never changes."""
        return cls.of(((0.0, value),))

    @property
    def changes(self) -> bool:
        """Whether it has more than one value."""
        return len(self.times_s) > 1

    def at(self, time_s: float) -> float:
        """Return the value at a time [s]."""
        return float(self.values[max(int(self.times_s.searchsorted(time_s, "right")) - 1, 0)])

    def next_change_s(self, time_s: float) -> float:
        """Return the time of the first value after a time [s]; infinite if there is none."""
        place = int(self.times_s.searchsorted(time_s, "right"))
        return float(self.times_s[place]) if place < len(self.times_s) else math.inf

    def next_fall_s(self, time_s: float) -> float:
        """Return when, after a time [s], a value follows that is below the one before it; infinite if none does."""
        place = int(self._falls_s.searchsorted(time_s, "right"))
        return float(self._falls_s[place]) if place < len(self._falls_s) else math.inf

    def moves(self, since_s: float, until_s: float) -> list[tuple[float, float]]:
        """Return the (time [s], value) of each value that starts after `since_s` and not after `until_s`."""
        first, last = self.times_s.searchsorted((since_s, until_s), "right")
        return list(zip(self.times_s[first:last].tolist(), self.values[first:last].tolist(), strict=True))

    def integral(self, since_s: float, until_s: float) -> float:
        """Return the integral over time from `since_s` to `until_s` [value x s]."""
        return self._area(until_s) - self._area(since_s)

    def _area(self, time_s: float) -> float:
        place = max(int(self.times_s.searchsorted(time_s, "right")) - 1, 0)
        return float(self._areas[place] + (time_s - self.times_s[place]) * self.values[place])


def prices_of_trace(text: str, *, unit: str | None = None) -> ValueSeries:
    """Return the prices of a slice of a trace [USD/h]; where the source has none, the last known one holds.

    Args:
        text: FILE[:[TYPE@]ZONE][:FROM..TO] with one series of prices.
        unit: of the file's times, if the file does not name it.

    Raises:
        Misuse: the trace is bad, has no price, or several series of prices.
    """
    events = _one_series(text, unit, (Content.PRICES,))
    points = [
        (event.at_s, event.usd_per_hour)
        for event in events.events()
        if isinstance(event, Price) and event.usd_per_hour is not None
    ]
    if not points:
        raise Misuse(f"{text} has no price: name a trace of prices, or a time range that has some")
    return ValueSeries.of(points)


def capacity_of_trace(text: str, *, unit: str | None = None) -> ValueSeries:
    """Return how many machines a slice of a trace has at each time: its counts, or its named machines that are up.

    Args:
        text: FILE[:[TYPE@]ZONE][:FROM..TO] with one series.
        unit: of the file's times, if the file does not name it.

    Raises:
        Misuse: the trace is bad, has no counts and no machines, or several series of them.
    """
    points: list[tuple[float, float]] = []
    up = 0
    for event in _one_series(text, unit, (Content.COUNTS, Content.MACHINES)).events():
        if isinstance(event, Count):
            points.append((event.at_s, float(event.count)))
        elif isinstance(event, MachineStarted | MachineEnded):
            up += 1 if isinstance(event, MachineStarted) else -1
            points.append((event.at_s, float(max(up, 0))))
    return ValueSeries.of(points)


def ends_of_trace(text: str, *, unit: str | None = None) -> NDArray[np.float64]:
    """Return when the named machines of a slice of a trace were preempted [s], oldest first; arguments as above.

    Raises:
        Misuse: the trace is bad, or has no named machines.
    """
    found = _one_series(text, unit, (Content.MACHINES,))
    return np.array([event.at_s for event in found.events() if isinstance(event, MachineEnded)], dtype=np.float64)


def _one_series(text: str, unit: str | None, contents: tuple[Content, ...]) -> trace_slices.ResolvedSlice:
    cut = trace_slices.cut(trace_slices.parse_slice(text, unit=unit))
    found = [key for key in cut.keys if key[0] in contents]
    wanted = " or ".join(content.value for content in contents)
    if not found:
        raise Misuse(f"{text} has no {wanted}: name a trace that has")
    if len(found) > 1:
        raise Misuse(f"{text} has {len(found)} series of {wanted}: choose one as FILE:TYPE@ZONE")
    return trace_slices.ResolvedSlice(cut.trace, tuple(found), cut.since_s, cut.until_s)
