"""Policies for shapes, replayed on a series of machines as Parcae's simulator charges them.

In each interval a policy names a shape, and its change costs the mean over which machines were lost.  If a change is not paid
when the next one comes, that one costs a restart more, and the rest is forgotten; what does not fit an interval is carried to
the next.  A policy sees the machines of this interval, and not those after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from windfall.models.migrations import MigrationTimes
from windfall.models.shape_costs import BoundedCosts, ChargedCosts
from windfall.models.shapes import IDLE, Shape, ShapeSpeeds
from windfall.policies.shapes import template_choices
from windfall.policies.shapes.shape_policy import INTERVAL_S, ShapeSituation, decide, look_ahead_of
from windfall.structs import Struct

CHECKPOINT_S: Final = 14.0
"""Saving and loading all states, in Parcae's baseline."""
PAST: Final = 60
"""Counts that a policy is shown; forecasts read fewer."""


class Moment(Struct, frozen=True):
    """What a policy sees.

    Attributes:
        number: of the interval.
        shape: until now.
        before, now: machines until now, and now.
        unpaid_s: of a change that is not finished [s].
        past: counts of the intervals before this one, at most `PAST`.
        changes: how often the count has changed, this interval included.
    """

    number: int
    shape: Shape
    before: int
    now: int
    unpaid_s: float
    past: tuple[int, ...]
    changes: int


class Replayed(Struct, frozen=True):
    """What a policy does on a series.

    Attributes:
        samples: trained in each interval.
        shapes: of each interval; of pipelines of several depths the number of them, and the stages of the deepest.
        rates: of these shapes, without changes [samples/s].
        interval_s: their length [s].
    """

    samples: tuple[float, ...]
    shapes: tuple[Shape, ...]
    rates: tuple[float, ...]
    interval_s: float = INTERVAL_S

    @property
    def per_s(self) -> float:
        """Mean throughput [samples/s]."""
        return sum(self.samples) / (self.interval_s * len(self.samples))

    @property
    def without_changes(self) -> float:
        """What its shapes would train if changes were free."""
        return math.fsum(self.rates) * self.interval_s


Choice = Callable[[Moment], Shape]


def play(counts: Sequence[int], costs: ChargedCosts, choose: Choice, interval_s: float = INTERVAL_S) -> Replayed:
    """Return what a policy trains when its changes cost what the costs say."""
    grid, again_s = costs.grid, costs.again_s()
    shape, before, unpaid_s, changes = IDLE, 0, 0.0, 0
    samples, shapes, rates = [], [], []
    for number, now in enumerate(counts):
        changes += number > 0 and now != before
        past = tuple(counts[max(number - PAST, 0) : number])
        chosen = choose(Moment(number, shape, before, now, unpaid_s, past, changes))
        place = grid.place(chosen)
        cost_s = costs.one(grid.place(shape), before, max(before - now, 0), place)
        if cost_s > 0.0:
            unpaid_s = cost_s + (float(again_s[place]) if unpaid_s > 0.0 else 0.0)
        rates.append(float(grid.samples_per_s[place]))
        samples.append(rates[-1] * max(interval_s - unpaid_s, 0.0))
        unpaid_s = max(unpaid_s - interval_s, 0.0)
        shape, before = chosen, now
        shapes.append(chosen)
    return Replayed(tuple(samples), tuple(shapes), tuple(rates), interval_s)


def play_free(counts: Sequence[int], speeds: ShapeSpeeds, interval_s: float = INTERVAL_S) -> Replayed:
    """Return what the fastest shape of each interval trains if changes cost nothing."""
    shapes = tuple(speeds.best(count) for count in counts)
    rates = tuple(speeds.rate(shape) for shape in shapes)
    return Replayed(tuple(rate * interval_s for rate in rates), shapes, rates, interval_s)


def play_checkpoints(
    counts: Sequence[int],
    speeds: ShapeSpeeds,
    times: MigrationTimes,
    choose: Callable[[int], Shape] | None = None,
    interval_s: float = INTERVAL_S,
) -> Replayed:
    """Return what is trained if every change of the count restarts all from a checkpoint.

    A restart costs the groups, the start and the build, saving and loading, and the state of every stage one after another.

    Args:
        counts: machines of each interval.
        speeds: of the shapes.
        times: of the model.
        choose: the shape for a number of machines; None: the fastest.
        interval_s: length of an interval [s].
    """
    unpaid_s, before = 0.0, 0
    samples, shapes, rates = [], [], []
    for number, now in enumerate(counts):
        shape = (choose or speeds.best)(now)
        if (number == 0 or now != before) and shape != IDLE:
            restart_s = times.restart_s(shape, adding=number == 0 or now > before)
            moved_s = sum(times.state_s(held) for held in times.stage_parameters(shape.stages))
            cost_s = restart_s + moved_s + (CHECKPOINT_S if number else 0.0)
            unpaid_s = cost_s + (restart_s if unpaid_s > 0.0 else 0.0)
        rates.append(speeds.rate(shape))
        samples.append(rates[-1] * max(interval_s - unpaid_s, 0.0))
        unpaid_s, before = max(unpaid_s - interval_s, 0.0), now
        shapes.append(shape)
    return Replayed(tuple(samples), tuple(shapes), tuple(rates), interval_s)


def play_templates(
    counts: Sequence[int], speeds: ShapeSpeeds, times: MigrationTimes, interval_s: float = INTERVAL_S
) -> Replayed:
    """Return what pipelines of several depths train that use all machines (`template_choices`)."""
    depths: template_choices.Depths = ()
    unpaid_s, before = 0.0, 0
    samples, shapes, rates = [], [], []
    for now in counts:
        chosen = template_choices.templates(speeds, now)
        cost_s = template_choices.change_s(times, depths, chosen, before, max(before - now, 0))
        if cost_s > 0.0:
            again_s = times.restart_s(Shape(len(chosen), chosen[0]), adding=False) if unpaid_s > 0.0 else 0.0
            unpaid_s = cost_s + again_s
        rates.append(template_choices.rate_of(speeds, chosen))
        samples.append(rates[-1] * max(interval_s - unpaid_s, 0.0))
        unpaid_s, depths, before = max(unpaid_s - interval_s, 0.0), chosen, now
        shapes.append(Shape(len(chosen), chosen[0]) if chosen else IDLE)
    return Replayed(tuple(samples), tuple(shapes), tuple(rates), interval_s)


def deciding(costs: BoundedCosts, look_ahead: int | None, interval_s: float = INTERVAL_S) -> Choice:
    """Return the policy of live trainings; what it decides in equal situations is remembered.

    Args:
        costs: that it plans with.
        look_ahead: intervals; None: as far as counts last.
        interval_s: their length [s].
    """
    decided: dict[tuple[Shape, int, int, float, int], Shape] = {}

    def choose(seen: Moment) -> Shape:
        observed_s = (seen.number + 1) * interval_s
        look = look_ahead_of(seen.changes, observed_s, interval_s) if look_ahead is None else look_ahead
        key = (seen.shape, seen.before, seen.now, seen.unpaid_s, look)
        if key not in decided:
            now = ShapeSituation(seen.shape, seen.before, seen.now, unpaid_s=seen.unpaid_s)
            decided[key] = decide(now, costs, look_ahead=look, interval_s=interval_s).shape
        return decided[key]

    return choose
