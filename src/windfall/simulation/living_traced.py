"""What a slice of a trace says of machines: when they can be had, how long they live, what they cost.

Counts become windows in which all of the job's machines can be had; lives, and machines that came and went, a table by
Kaplan and Meier; prices their mean over time.  A trace that is shorter than the job begins again after its end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windfall.errors import Misuse
from windfall.market import Ended
from windfall.models.lifetimes.lives import lives_of
from windfall.simulation.living import Living, Priced, by_lives
from windfall.simulation.scenario import Memoryless, Windows
from windfall.simulation.traces import slices
from windfall.simulation.traces.events import Came, Content, Count, Event, Life, Price, Series, Until, Went
from windfall.units import duration_text

HOLE = 100.0
"""A gap in counts that is so many times as long as usual is told, where they come often."""
LIVES_MAX = 1_000_000
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Traced:
    """What a slice says; what it does not say is None."""

    living: Living | None
    priced: Priced | None


def by_trace(text: str, *, machines: int, unit: str | None = None, mttp_s: float | None = None) -> Traced:
    """Read a slice of a trace (`simulation.traces.slices`).

    Args:
        text: FILE[:[TYPE@]ZONE][:FROM..TO].
        machines: how many are needed at once.
        unit: of the file's times, where it does not say it.
        mttp_s: stretch lives to this mean [s]; not with counts.

    Raises:
        Misuse: the trace is bad, mixes several zones where one is needed, or has nothing that a simulation can use.
    """
    part = slices.parse_slice(text, unit=unit)
    cut = slices.cut(part)
    text = str(dataclasses.replace(part, path=Path(part.path.name)))
    contents = {content for content, _ in cut.keys}
    living: Living | None = None
    if Content.COUNTS in contents:
        _one(cut, Content.COUNTS, text)
        if mttp_s is not None:
            raise Misuse("--mttp says how long machines live, and so does the trace of counts: leave one out")
        living = _windows(cut, machines, text)
    elif contents & {Content.LIVES, Content.MACHINES}:
        living = by_lives(lives_of(*_columns(cut.events(), cut.length_s, text)), text, mttp_s)
    priced = _priced(cut, text) if Content.PRICES in contents else None
    return Traced(living, priced)


def _one(cut: slices.Cut, content: Content, text: str) -> Series:
    found = [series for kind, series in cut.keys if kind is content]
    if len(found) > 1:
        names = [f"{one.machine_type}@{one.zone}" if one.machine_type else one.zone for one in found]
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise Misuse(
            f"--trace: {text} has {len(found)} series of {content.value}: name one, FILE:TYPE@ZONE, of {shown}"
        )
    return found[0]


def _windows(cut: slices.Cut, machines: int, text: str) -> Living:
    up: list[tuple[float, float]] = []
    since_s: float | None = None
    times_s: list[float] = []
    for event in cut.events():
        if not isinstance(event, Count):
            continue
        times_s.append(event.at_s)
        there = event.count >= machines
        if there and since_s is None:
            since_s = event.at_s
        elif not there and since_s is not None:
            if event.at_s > since_s:
                up.append((since_s, event.at_s))
            since_s = None
    if since_s is not None and cut.length_s > since_s:
        up.append((since_s, cut.length_s))
    steps_s = np.diff(np.array(times_s)) if len(times_s) > 1 else np.zeros(1)
    hole_s, usual_s = float(np.max(steps_s)), float(np.median(steps_s))
    if not up:
        raise Misuse(f"--trace: {text} never has {machines} machines at once: the job would never begin")
    up_s, up = sum(end - begin for begin, end in up), _round(up, cut.length_s)
    wanted = "a machine" if machines == 1 else f"{machines} machines"
    source = (
        f"measured: {text}, {wanted} to be had in {len(up)} windows, {up_s / cut.length_s:.0%} of {_span(cut.length_s)}"
    )
    notes = [f"the job begins anywhere in the trace; after its {_span(cut.length_s)} the trace begins again"]
    if hole_s > HOLE * usual_s:
        notes.append(
            f"the counts have a hole of {_span(hole_s)}, where they usually come every {_span(usual_s)}: the last count "
            "before it is taken to hold"
        )
    if up == [(0.0, cut.length_s)]:
        return Living(Memoryless((math.inf,)), math.inf, source, notes=(*notes, "no machine was ever lost in it"))
    return Living(Windows(tuple(up), cut.length_s), up_s / len(up), source, notes=tuple(notes))


def _round(up: list[tuple[float, float]], length_s: float) -> list[tuple[float, float]]:
    """Return the windows of a trace that goes round: machines that are there at its end and its begin are not lost.

    The trace is turned so that it begins with the end of its first window.
    """
    if len(up) < 2 or up[0][0] > 0.0 or up[-1][1] < length_s:
        return up
    turn_s = up[0][1]
    return [*((begin - turn_s, end - turn_s) for begin, end in up[1:-1]), (up[-1][0] - turn_s, length_s)]


def _span(length_s: float) -> str:
    return duration_text(length_s) if length_s < 3 * 86_400.0 else f"{length_s / 86_400.0:.1f} days"


def _columns(events: Iterable[Event], length_s: float, text: str) -> tuple[list[float], list[bool]]:
    """Return lengths of lives [s], and whether they were lost."""
    durations_s, lost = [], []
    for life_s, taken in _lives(events, length_s):
        if life_s > 0.0:
            durations_s.append(life_s)
            lost.append(taken)
        if len(lost) > LIVES_MAX:
            raise Misuse(f"--trace: {text} has more than {LIVES_MAX} lives: take a part of it, FILE:ZONE:FROM..TO")
    return durations_s, lost


def _lives(events: Iterable[Event], length_s: float) -> Iterator[tuple[float, bool]]:
    """Yield each machine's life, and whether it was lost; machines that are still there are censored."""
    began: dict[tuple[Series, str], float] = {}
    ended_s: dict[Series, float] = {}
    for event in events:
        if isinstance(event, Life):
            yield event.life_s, event.end is Ended.PREEMPTED
        elif isinstance(event, Came):
            began[event.series, event.machine] = event.at_s
        elif isinstance(event, Went):
            yield event.at_s - began.pop((event.series, event.machine), 0.0), True
        elif isinstance(event, Until):
            ended_s[event.series] = event.at_s
    for (series, _), at_s in began.items():
        yield ended_s.get(series, length_s) - at_s, False


def _priced(cut: slices.Cut, text: str) -> Priced:
    _one(cut, Content.PRICES, text)
    known = [event for event in cut.events() if isinstance(event, Price)]
    times_s = np.array([*(event.at_s for event in known), cut.length_s])
    prices = np.array([np.nan if event.usd_per_hour is None else event.usd_per_hour for event in known])
    there = ~np.isnan(prices)
    if not np.any(there):
        raise Misuse(f"--trace: {text} has no price")
    weights = np.maximum(np.diff(times_s), 0.0)[there]
    mean = float(np.average(prices[there], weights=weights)) if np.any(weights > 0.0) else float(prices[there][-1])
    span = f"{float(np.min(prices[there])):.4g} .. {float(np.max(prices[there])):.4g} USD/h"
    return Priced(mean, f"measured: mean over time of {text}, which goes {span}")
