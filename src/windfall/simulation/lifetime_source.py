"""How long machines live, from a model or a trace: tables of quantiles, and windows of availability.

A table holds the ages by which i / 1024 of the machines are lost; its last age makes the mean lifetime of the oldest cell
that of the law.  Machines that outlive all data are lost, in the simulation, at the mean rate of all before (losses /
lifetime); a note tells the user their share.

What a slice of a trace says about machines: their availability, lifetimes and prices.

Counts become windows in which all of the job's machines are available; lifetimes, and machines that started and ended, a
table by Kaplan-Meier; prices their mean over time.  A trace that is shorter than the job starts over after its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from windfall.errors import Misuse
from windfall.extras import install
from windfall.fleet import Lifetime
from windfall.market import MachineEndCause
from windfall.models.lifetimes.families import Bathtub, Blended, Exponential, GompertzMakeham, Piecewise, Weibull
from windfall.models.lifetimes.lifetime_law import Curve
from windfall.models.lifetimes.observations import KaplanMeier, kaplan_meier, lifetimes_of, observed_lifetimes
from windfall.models.lifetimes.observations import Lifetimes as Observed
from windfall.policies.checkpointing.schedule_table import LOSSES_MIN
from windfall.simulation.scenario import AvailabilityWindows, LifetimeModel, LifetimeQuantiles, MemorylessLifetimes
from windfall.simulation.traces import trace_slices
from windfall.simulation.traces.trace_events import (
    Content,
    Count,
    Event,
    MachineEnded,
    MachineStarted,
    Price,
    Series,
    TracedLifetime,
    WatchedUntil,
)
from windfall.spelling import nearest
from windfall.structs import Struct, replace
from windfall.terms import WallTime
from windfall.units import duration_text

CELLS = 1024
KAPLAN = KaplanMeier.name
_OLDEST_S = 89_398.235
_PUBLISHED = "published: fitted to 960 lifetimes of Google's preemptible machines of 2019"
_NEVER_S = 1e9
PUBLIC: tuple[Curve, ...] = (
    Exponential(1.657e-5, observed_s=_OLDEST_S),
    Weibull(60_563.0, 0.7976, observed_s=_OLDEST_S),
    GompertzMakeham(8.601e-6, 2.536e-44, 940.2, observed_s=_OLDEST_S),
    Blended(88_416.0, 13_263.0, 2_140.5, end_at_s=_OLDEST_S, observed_s=_OLDEST_S),
    Bathtub(6.708e-5, 4_059.7, 2.6425e-6, 86_400.0, 1_146.5, 1.2201, observed_s=_OLDEST_S),
    Piecewise(
        (0.0, 539.044, 3420.727, 14_614.7, 86_462.32, 89_251.421),
        (1.3233e-4, 3.1639e-5, 1.3643e-5, 2.5332e-6, 9.3877e-4, 1.6001e-2),
        observed_s=_OLDEST_S,
    ),
)
"""Each law as `windfall lab fit` fits it to the public lifetimes (501 preempted, 459 censored): the default without own data.

Source: lifetimes published with SciSpot (arXiv 1911.05160)."""
NAMES = (*(law.name for law in PUBLIC), KAPLAN)


class LifetimeSource(Struct, frozen=True):
    """How long machines live.

    Attributes:
        lifetimes: the model to draw from.
        mttp_s: mean lifetime [s], which the workers assume; of censored lifetimes, lifetime / losses.
        source: text for people.
        known_until_s: the oldest age in the data [s]; infinite if nothing was fitted.
        notes: sentences for the user.
    """

    lifetimes: LifetimeModel
    mttp_s: float
    source: str
    known_until_s: float = math.inf
    notes: tuple[str, ...] = ()


class PriceSource(Struct, frozen=True):
    """The price of a machine, from a trace or an offer.

    Attributes:
        usd_per_hour: mean price over time.
        source: text for people.
    """

    usd_per_hour: float
    source: str


def by_model(
    name: str, rows: Iterable[Lifetime], *, provider: str, now: WallTime, mttp_s: float | None = None
) -> LifetimeSource:
    """Return the lifetimes of a law.

    The parameters are fitted to the installation's own machines of the provider, of all types and zones, if at least
    `LOSSES_MIN` of them were lost; otherwise to the public lifetimes.

    Args:
        name: of the law.
        rows: all machines of the installation.
        provider: whose machines count.
        now: machines that still run have lived until then.
        mttp_s: stretch the law's ages to this mean lifetime [s]; None: leave them.

    Raises:
        Misuse: the law is unknown, or there are no lifetimes to estimate it from.
    """
    if name not in NAMES:
        raise Misuse(f"--model: {name!r} is not a law of lifetimes; {nearest(name, NAMES)}")
    mine = [row for row in rows if row.provider == provider]
    losses = sum(row.preempted and row.ended is not None for row in mine)
    if losses < LOSSES_MIN:
        if name == KAPLAN:
            raise Misuse(
                f"--model {KAPLAN} needs {LOSSES_MIN} lost machines of {provider}, and this installation lost {losses}: "
                "name another model, or give lifetimes with --trace"
            )
        curve = next(law for law in PUBLIC if law.name == name)
        source = f"{_PUBLISHED} (this installation lost {losses} of {provider}, fewer than {LOSSES_MIN})"
    else:
        observed = observed_lifetimes(mine, now, provider=provider)
        if name == KAPLAN:
            return by_lifetimes(observed, f"this installation's machines of {provider}", mttp_s)
        curve = _fitted(name, observed)
        source = f"measured: {name} fitted to {len(observed)} machines of {provider}, {observed.losses} preempted"
    return _stretched(curve, source, mttp_s)


def by_lifetimes(observed: Observed, what: str, mttp_s: float | None = None) -> LifetimeSource:
    """Return the observed lifetimes, by Kaplan-Meier: machines that were stopped are censored.

    Args:
        observed: with at least one loss.
        what: where they come from.
        mttp_s: as in `by_model`.

    Raises:
        Misuse: no machine was lost.
    """
    if not observed.losses:
        raise Misuse(
            f"{what}: none of its {len(observed)} machines was preempted, so there is nothing to estimate losses from"
        )
    source = f"measured: {what}, {len(observed)} machines, {observed.losses} preempted"
    rate = observed.losses / float(np.sum(observed.duration_s))
    return _stretched(kaplan_meier(observed), source, mttp_s, tail_per_s=rate)


def _fitted(name: str, observed: Observed) -> Curve:
    """Fit one law.

    Raises:
        Misuse: scipy is not installed.
    """
    try:
        from windfall.models.lifetimes import model_selection  # noqa: PLC0415 - needs scipy, an extra
        from windfall.models.lifetimes.maximum_likelihood import Bounds  # noqa: PLC0415
    except ImportError as error:
        raise Misuse(f"--model: a fit needs scipy: {install('lab')}") from error
    return dict(model_selection.FAMILIES)[name](observed, Bounds())


def _stretched(curve: Curve, source: str, mttp_s: float | None, *, tail_per_s: float = 0.0) -> LifetimeSource:
    ages_s, beyond = _quantiles(curve, tail_per_s)
    mean_s = _mean_s(ages_s)
    stretch = 1.0 if mttp_s is None else mttp_s / mean_s
    known_s = curve.observed_s * stretch
    notes = []
    if mttp_s is not None:
        source = f"{source}; stretched to the mean lifetime that you gave"
    if beyond > 0.0:
        notes.append(
            f"{100.0 * beyond:.0f} % of the machines outlived the data ({duration_text(curve.observed_s)}): beyond that, the "
            "simulation loses them at the mean rate"
        )
    table = LifetimeQuantiles(tuple(float(age) * stretch for age in ages_s), known_s, curve.name)
    return LifetimeSource(table, mean_s * stretch, source, known_s, tuple(notes))


def _quantiles(curve: Curve, tail_per_s: float) -> tuple[Sequence[float], float]:
    """Return the ages of a table, and the share of machines that outlives the data of a curve that does not extrapolate."""
    shares = np.arange(CELLS) / CELLS
    ages_s = np.atleast_1d(curve.quantile(shares))
    unknown = ~np.isfinite(ages_s)
    beyond = 0.0
    if np.any(unknown) or not curve.extrapolates:
        beyond = float(np.mean(unknown)) if tail_per_s else 0.0
        first = int(np.argmax(unknown)) if np.any(unknown) else CELLS
        if tail_per_s and first < CELLS:
            # S(t) = S(oldest) e^(-rate (t - oldest)) beyond the oldest age.
            left = 1.0 - shares[first - 1] if first else 1.0
            ages_s[first:] = curve.observed_s - np.log((1.0 - shares[first:]) / left) / tail_per_s
    last_s = float(ages_s[-1])
    if not math.isfinite(last_s):
        return [*map(float, ages_s), math.inf], beyond
    rest_s = 1.0 / tail_per_s if beyond else _rest_s(curve, last_s)
    return [*map(float, ages_s), last_s + 2.0 * rest_s], beyond


def _rest_s(curve: Curve, age_s: float) -> float:
    """Return the mean remaining lifetime of the oldest cell [s]."""
    if age_s >= curve.end_s:
        return 0.0
    return min(curve.remaining(age_s, until_s=max(curve.end_s, age_s)).mean_s, _NEVER_S)


def _mean_s(ages_s: Sequence[float]) -> float:
    """Return the mean of a table's lifetimes [s]; machines that are never lost count as `_NEVER_S`."""
    known = np.minimum(np.asarray(ages_s), _NEVER_S)
    return float(np.mean((known[:-1] + known[1:]) / 2.0))


GAP_FACTOR = 100.0
"""A note names a gap in the counts that is this many times longer than usual."""
LIFETIMES_MAX = 1_000_000
_SHOWN = 4


class TraceInputs(Struct, frozen=True):
    """Inputs of a simulation from a slice; None for what the slice does not hold."""

    lifetime_source: LifetimeSource | None
    price_source: PriceSource | None


def by_trace(text: str, *, machines: int, unit: str | None = None, mttp_s: float | None = None) -> TraceInputs:
    """Read a slice of a trace (`simulation.traces.trace_slices`).

    Args:
        text: FILE[:[TYPE@]ZONE][:FROM..TO].
        machines: how many are needed at once.
        unit: of the file's times, if the file does not name it.
        mttp_s: stretch the lifetimes to this mean [s]; not with counts.

    Raises:
        Misuse: the trace is bad, has several series where one is needed, or has nothing that a simulation can use.
    """
    part = trace_slices.parse_slice(text, unit=unit)
    cut = trace_slices.cut(part)
    text = str(replace(part, path=Path(part.path.name)))
    contents = {content for content, _ in cut.keys}
    lifetime_source: LifetimeSource | None = None
    if Content.COUNTS in contents:
        _one(cut, Content.COUNTS, text)
        if mttp_s is not None:
            raise Misuse("--mttp and the trace of counts both set how long machines live: leave one out")
        lifetime_source = _windows(cut, machines, text)
    elif contents & {Content.LIFETIMES, Content.MACHINES}:
        lifetime_source = by_lifetimes(lifetimes_of(*_columns(cut.events(), cut.length_s, text)), text, mttp_s)
    price_source = _price_source(cut, text) if Content.PRICES in contents else None
    return TraceInputs(lifetime_source, price_source)


def _one(cut: trace_slices.ResolvedSlice, content: Content, text: str) -> Series:
    found = [series for kind, series in cut.keys if kind is content]
    if len(found) > 1:
        names = [f"{one.machine_type}@{one.zone}" if one.machine_type else one.zone for one in found]
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise Misuse(
            f"--trace: {text} has {len(found)} series of {content.value}: choose one as FILE:TYPE@ZONE, from {shown}"
        )
    return found[0]


def _windows(cut: trace_slices.ResolvedSlice, machines: int, text: str) -> LifetimeSource:
    up: list[tuple[float, float]] = []
    since_s: float | None = None
    times_s: list[float] = []
    for event in cut.events():
        if not isinstance(event, Count):
            continue
        times_s.append(event.at_s)
        enough = event.count >= machines
        if enough and since_s is None:
            since_s = event.at_s
        elif not enough and since_s is not None:
            if event.at_s > since_s:
                up.append((since_s, event.at_s))
            since_s = None
    if since_s is not None and cut.length_s > since_s:
        up.append((since_s, cut.length_s))
    steps_s = np.diff(np.array(times_s)) if len(times_s) > 1 else np.zeros(1)
    gap_s, usual_s = float(np.max(steps_s)), float(np.median(steps_s))
    if not up:
        raise Misuse(f"--trace: {text} never has {machines} machines at once: the job would never start")
    up_s, up = sum(end - start for start, end in up), _wrapped(up, cut.length_s)
    wanted = "a machine" if machines == 1 else f"{machines} machines"
    source = (
        f"measured: {text}, {wanted} available in {len(up)} windows, {100.0 * up_s / cut.length_s:.0f} % of "
        f"{_span(cut.length_s)}"
    )
    notes = [f"each trial starts at a random point of the trace; after {_span(cut.length_s)} the trace starts over"]
    if gap_s > GAP_FACTOR * usual_s:
        notes.append(
            f"the counts have a gap of {_span(gap_s)}, where they usually come every {_span(usual_s)}: the simulation keeps "
            "the last count before it"
        )
    if up == [(0.0, cut.length_s)]:
        return LifetimeSource(
            MemorylessLifetimes((math.inf,)), math.inf, source, notes=(*notes, "the trace lost no machine")
        )
    return LifetimeSource(AvailabilityWindows(tuple(up), cut.length_s), up_s / len(up), source, notes=tuple(notes))


def _wrapped(up: list[tuple[float, float]], length_s: float) -> list[tuple[float, float]]:
    """Join the last window of a trace with its first: machines that are up at its end and at its start are not lost.

    The result starts at the end of the first window.
    """
    if len(up) < 2 or up[0][0] > 0.0 or up[-1][1] < length_s:
        return up
    turn_s = up[0][1]
    return [*((start - turn_s, end - turn_s) for start, end in up[1:-1]), (up[-1][0] - turn_s, length_s)]


def _span(length_s: float) -> str:
    return duration_text(length_s) if length_s < 3 * 86_400.0 else f"{length_s / 86_400.0:.1f} days"


def _columns(events: Iterable[Event], length_s: float, text: str) -> tuple[list[float], list[bool]]:
    """Return lifetimes [s], and whether each machine was lost."""
    durations_s, lost = [], []
    for lifetime_s, preempted in _lifetimes(events, length_s):
        if lifetime_s > 0.0:
            durations_s.append(lifetime_s)
            lost.append(preempted)
        if len(lost) > LIFETIMES_MAX:
            raise Misuse(
                f"--trace: {text} has more than {LIFETIMES_MAX} lifetimes: take a part of it as FILE:ZONE:FROM..TO"
            )
    return durations_s, lost


def _lifetimes(events: Iterable[Event], length_s: float) -> Iterator[tuple[float, bool]]:
    """Yield each machine's lifetime, and whether it was lost; machines that still run are censored."""
    started: dict[tuple[Series, str], float] = {}
    ended_s: dict[Series, float] = {}
    for event in events:
        if isinstance(event, TracedLifetime):
            yield event.lifetime_s, event.end is MachineEndCause.PREEMPTED
        elif isinstance(event, MachineStarted):
            started[event.series, event.machine] = event.at_s
        elif isinstance(event, MachineEnded):
            yield event.at_s - started.pop((event.series, event.machine), 0.0), True
        elif isinstance(event, WatchedUntil):
            ended_s[event.series] = event.at_s
    for (series, _), at_s in started.items():
        yield ended_s.get(series, length_s) - at_s, False


def _price_source(cut: trace_slices.ResolvedSlice, text: str) -> PriceSource:
    _one(cut, Content.PRICES, text)
    known = [event for event in cut.events() if isinstance(event, Price)]
    times_s = np.array([*(event.at_s for event in known), cut.length_s])
    prices = np.array([np.nan if event.usd_per_hour is None else event.usd_per_hour for event in known])
    known_mask = ~np.isnan(prices)
    if not np.any(known_mask):
        raise Misuse(f"--trace: {text} has no price")
    weights = np.maximum(np.diff(times_s), 0.0)[known_mask]
    mean = (
        float(np.average(prices[known_mask], weights=weights))
        if np.any(weights > 0.0)
        else float(prices[known_mask][-1])
    )
    span = f"{float(np.min(prices[known_mask])):.4g} .. {float(np.max(prices[known_mask])):.4g} USD/h"
    return PriceSource(mean, f"measured: mean over time of {text} ({span})")
