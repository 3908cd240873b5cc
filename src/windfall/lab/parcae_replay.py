"""Policies for shapes, replayed on a series of machines as Parcae's simulator charges them.

In each interval a policy names a shape, and its change costs the mean over which machines were lost.  If a change is not paid
when the next one comes, that one costs a restart more, and the rest is forgotten; what does not fit an interval is carried to
the next.  The policies see the machines of this interval, and not those after it, but for the one that is given the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from windfall.lab import parcae_published as paper
from windfall.models.count_forecasts import Damping, guarded_arima, last_value
from windfall.models.migrations import MigrationTimes
from windfall.models.shape_costs import ShapeCosts
from windfall.models.shapes import IDLE, Shape, ShapeSpeeds
from windfall.policies.shapes.liveput import LiveputView, plan
from windfall.structs import Struct

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
        shapes: of each interval.
    """

    samples: tuple[float, ...]
    shapes: tuple[Shape, ...]

    @property
    def per_s(self) -> float:
        """Mean throughput [samples/s]."""
        return sum(self.samples) / (paper.INTERVAL_S * len(self.samples))


Choice = Callable[[Moment], Shape]


def play(counts: Sequence[int], costs: ShapeCosts, choose: Choice) -> Replayed:
    """Return what a policy trains when its changes cost what the costs say."""
    grid, again_s = costs.grid, costs.again_s()
    shape, before, unpaid_s, changes = IDLE, 0, 0.0, 0
    samples, shapes = [], []
    for number, now in enumerate(counts):
        changes += number > 0 and now != before
        past = tuple(counts[max(number - PAST, 0) : number])
        chosen = choose(Moment(number, shape, before, now, unpaid_s, past, changes))
        place = grid.place(chosen)
        cost_s = float(costs.row(grid.place(shape), before, max(before - now, 0))[place])
        if cost_s > 0.0:
            unpaid_s = cost_s + (float(again_s[place]) if unpaid_s > 0.0 else 0.0)
        samples.append(float(grid.samples_per_s[place]) * max(paper.INTERVAL_S - unpaid_s, 0.0))
        unpaid_s = max(unpaid_s - paper.INTERVAL_S, 0.0)
        shape, before = chosen, now
        shapes.append(chosen)
    return Replayed(tuple(samples), tuple(shapes))


def play_free(counts: Sequence[int], speeds: ShapeSpeeds) -> Replayed:
    """Return what the fastest shape of each interval trains if changes cost nothing."""
    shapes = tuple(speeds.best(count) for count in counts)
    return Replayed(tuple(speeds.rate(shape) * paper.INTERVAL_S for shape in shapes), shapes)


def play_checkpoints(counts: Sequence[int], speeds: ShapeSpeeds, times: MigrationTimes) -> Replayed:
    """Return what the fastest shape trains if every change of the count restarts all from a checkpoint.

    A restart costs the groups, the start and the build, saving and loading, and the state of every stage one after another.
    """
    unpaid_s, before = 0.0, 0
    samples, shapes = [], []
    for number, now in enumerate(counts):
        shape = speeds.best(now)
        if (number == 0 or now != before) and shape != IDLE:
            restart_s = times.restart_s(shape, adding=number == 0 or now > before)
            moved_s = sum(times.state_s(held) for held in times.stage_parameters(shape.stages))
            cost_s = restart_s + moved_s + (paper.CHECKPOINT_S if number else 0.0)
            unpaid_s = cost_s + (restart_s if unpaid_s > 0.0 else 0.0)
        samples.append(speeds.rate(shape) * max(paper.INTERVAL_S - unpaid_s, 0.0))
        unpaid_s, before = max(unpaid_s - paper.INTERVAL_S, 0.0), now
        shapes.append(shape)
    return Replayed(tuple(samples), tuple(shapes))


def planned(costs: ShapeCosts, ahead: Callable[[Moment], Sequence[int]]) -> Choice:
    """Return the policy that plans with the machines of now and a forecast of the others."""

    def choose(seen: Moment) -> Shape:
        counts = (seen.now, *ahead(seen))
        return plan(LiveputView(seen.shape, seen.before, counts, paper.INTERVAL_S, seen.unpaid_s), costs).shapes[0]

    return choose


def staying(seen: Moment) -> tuple[int, ...]:
    """Forecast that what there is stays."""
    return last_value((seen.now,), paper.AHEAD - 1)


class GuardedForecasts:
    """Parcae's forecasts in turn, with damping that stays."""

    def __init__(self, least: int) -> None:
        """Take the count that no forecast may fall below."""
        self._least, self._damping = least, Damping()

    def __call__(self, seen: Moment) -> tuple[int, ...]:
        """Forecast from the last counts, this interval's among them; what there is stays until there are enough."""
        history = (*seen.past, seen.now)[-paper.HISTORY :]
        if len(history) < paper.HISTORY:
            return staying(seen)
        found, self._damping = guarded_arima(
            history, paper.AHEAD - 1, self._damping, least=paper.LEAST, most=paper.MOST
        )
        return tuple(max(count, self._least) for count in found)
