"""Which shape to train in now, and why: one function for the live coordinator, for plans and for simulations.

It is asked at each change of the machines.  Announced ends and orders in flight are known, not forecast; beyond them the count
stays what it is, the best of seven forecasts on traces of other places (`lab replicate parcae --item elsewhere`).
The plan is `liveput`'s; beside it stands the shape that counts alone would give (`shape_choices.adapted`), so that the reason
says what planning gains.

**How far it looks** was chosen on traces of other places, though with the figures of Parcae's own beside them: there 12
intervals, as Parcae looks, train up to 2.7 % less than the fastest shape of now, and a look that follows how long counts last
trains no less on any; on Parcae's trace it keeps what 12 intervals gain (`lab replicate parcae --item look-ahead`).
"""

from __future__ import annotations

import itertools
from typing import Final

from windfall.errors import Misuse
from windfall.models.shape_costs import BoundedCosts
from windfall.models.shapes import IDLE, Shape, ShapeSpeeds, speeds_of
from windfall.policies.shapes.liveput import LiveputView, Programme, plan_and_worth
from windfall.policies.shapes.shape_choices import adapted
from windfall.structs import Struct
from windfall.units import time_text

INTERVAL_S: Final = 60.0
LOOK_AHEAD_LEAST, LOOK_AHEAD_MOST = 12, 192
"""Intervals that a plan looks ahead, this one among them; the least is Parcae's."""
LASTING: Final = 6.0
"""How many times as far as a count has lasted on average."""
LEAST_GAIN: Final = 0.05
"""What another shape must train more, of what the present one does, while no machine comes or goes: less is noise."""
UNSEEN: Final = 24
"""Intervals in which the count is taken to have stayed, before anything was seen."""


class ShapeSituation(Struct, frozen=True):
    """What is known when a shape is chosen.

    Attributes:
        shape: the one until now; `IDLE`: none.
        machines_before: how many there were until now, spares among them.
        machines: how many there are now, without those whose end is announced.
        coming: by how much that is known to change in each of the next intervals, first the next: orders in flight.
        unpaid_s: how long a change that is not finished still takes [s].
    """

    shape: Shape
    machines_before: int
    machines: int
    coming: tuple[int, ...] = ()
    unpaid_s: float = 0.0


class ShapeDecision(Struct, frozen=True):
    """A shape, and what speaks for it.

    Attributes:
        shape: for now; `IDLE` if too few machines are left.
        counts: machines that were planned with, now first.
        samples: expected until the end of the look-ahead.
        adapted: the shape that counts alone would give: the same depth where it fits.
        adapted_samples: what that one is expected to train.
        because: a sentence.
    """

    shape: Shape
    counts: tuple[int, ...]
    samples: float
    adapted: Shape
    adapted_samples: float
    because: str


def look_ahead_of(changes: int, observed_s: float, interval_s: float = INTERVAL_S) -> int:
    """Return how far a plan looks if that is not said: six times as far as a count lasts, from 12 intervals, doubled.

    A change of shape must earn its cost before the next one.  Where counts last long, a plan of 12 intervals keeps slow shapes,
    because a better one pays only later; where they change all the time, a far look pays for shapes that are soon left.

    Args:
        changes: how often the count of machines has changed.
        observed_s: in how long a time [s].
        interval_s: of the plan [s].
    """
    lasts = (observed_s / interval_s + UNSEEN) / (changes + 1)
    found = LOOK_AHEAD_LEAST
    while found < LOOK_AHEAD_MOST and 2 * found <= LASTING * lasts:
        found *= 2
    return found


def decide(
    now: ShapeSituation,
    costs: BoundedCosts,
    *,
    look_ahead: int,
    interval_s: float = INTERVAL_S,
    least_gain: float = 0.0,
) -> ShapeDecision:
    """Return the shape that is expected to train most until the end of the look-ahead.

    Args:
        now: what is known.
        costs: of changes of shape, and the shapes with their throughput.
        look_ahead: intervals that are planned, 1 or more; 1: only this one.
        interval_s: their length [s].
        least_gain: by how much faster than that of counts alone another shape must be: where times are measured, smaller
            differences are noise.

    Raises:
        Misuse: the look-ahead has no interval, or the situation cannot be.
    """
    if look_ahead < 1:
        raise Misuse(f"a look-ahead of {look_ahead} intervals: write 1 or more; 1 looks at the present one alone")
    changes = (*now.coming, *(0,) * look_ahead)[: look_ahead - 1]
    counts = tuple(max(count, 0) for count in itertools.accumulate(changes, initial=now.machines))
    view = LiveputView(now.shape, now.machines_before, counts, interval_s, now.unpaid_s)
    programme = Programme.ONE_MAXIMUM if costs.ordered else Programme.ALL_PAIRS
    planned, worth = plan_and_worth(view, costs, programme)
    grid = costs.grid
    speeds = speeds_of(grid)
    kept = (
        speeds.best(now.machines)
        if now.shape == IDLE
        else adapted(speeds, now.shape, now.machines_before, now.machines)
    )
    kept_samples = float(worth[grid.place(kept)])
    chosen, samples = planned.shapes[0], planned.samples
    # Not by what they train until the end: a plan that keeps a shape now may leave it in the next interval.
    if least_gain and kept != IDLE and speeds.rate(chosen) < (1.0 + least_gain) * speeds.rate(kept):
        chosen, samples = kept, kept_samples
    because = _because(now, chosen, speeds, (samples, kept, kept_samples), (look_ahead * interval_s, least_gain))
    return ShapeDecision(chosen, counts, samples, kept, kept_samples, because)


def recut_pays(now_s: float, then_s: float, *, all_stay: bool) -> bool:
    """Return whether layers are cut differently in a shape that stays: a step must be faster by more than noise.

    Args:
        now_s: a step as layers are cut [s].
        then_s: a step as they would be [s].
        all_stay: no machine of the shape is lost or to leave; what a notice leaves time for was measured of changes that move
            less.
    """
    return all_stay and now_s > (1.0 + LEAST_GAIN) * then_s


def _because(
    now: ShapeSituation,
    chosen: Shape,
    speeds: ShapeSpeeds,
    other: tuple[float, Shape, float],
    bounds: tuple[float, float],
) -> str:
    (samples, kept, kept_samples), (span_s, least_gain) = other, bounds
    if chosen == IDLE:
        least = min(shape.machines for shape in speeds.samples_per_s)
        if now.machines < least:
            return f"{now.machines} machines are too few: the smallest shape needs {least}"
        return (
            f"with {now.machines} machines no shape trains anything within {time_text(span_s)}: its change takes longer"
        )
    says = f"{now.machines} machines: {chosen} trains {speeds.rate(chosen):.4g} samples/s"
    if chosen == kept:
        if least_gain:
            return f"{says}, and no other shape is {least_gain:.0%} faster"
        return f"{says}, and no other shape trains more in the next {time_text(span_s)}"
    gain = samples - kept_samples
    rate = speeds.rate(kept)
    return f"{says}, {kept} {rate:.4g}; to change now brings {gain:.4g} samples more in the next {time_text(span_s)}"
