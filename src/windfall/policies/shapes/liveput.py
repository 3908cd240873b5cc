"""Which shape to train in now, so that most is trained although machines come and go: Parcae's dynamic programme.

An interval lasts T.  A change from shape s to t costs c(s, t) seconds on average over which machines vanish, and then t trains
with its rate v_t.  With the best that can still follow, V,

    V_i(s) = max over t of N_i machines at most:  v_t (T - c_i(s, t)) + V_{i+1}(t),      V after the last interval = 0

A change longer than an interval takes the rest from the next ones, at the new shape's rate.  The first interval is what there
is now, and only the others are forecast.  Of equally good shapes the present one stays; else the first by stages and pipelines.

**Programmes.**  `ALL_PAIRS` compares every old shape with every new one.  `ONE_MAXIMUM` is for costs that, between different
depths, depend on the old shape only through whether machines are added: it compares pairs of equal depth, and has one running
maximum over the sizes of new shapes where machines are added, and one where they are not.  Both give the same numbers to the
last bit: each adds the same numbers in the same order, and rounding keeps the order of sums.  In a maximum, pairs of equal
depth are among those of different ones; that changes nothing while no pair of equal depth costs more than a change of depth to
the same shape (`BoundedCosts.ordered`).

Source: Parcae (NSDI 2024) for the programme; equation and cases as above.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import numpy as np

from windfall.errors import Misuse
from windfall.models.shape_costs import BoundedCosts, ShapeCosts
from windfall.models.shapes import Floats, Shape
from windfall.structs import Struct


class Programme(enum.Enum):
    """How old and new shapes are compared."""

    ALL_PAIRS = "all pairs"
    ONE_MAXIMUM = "one maximum"


class LiveputView(Struct, frozen=True):
    """What is known when a shape is chosen.

    Attributes:
        shape: the one until now; `IDLE`: none.
        machines: how many there were until now.
        counts: how many there are now, and forecasts for the intervals after.
        interval_s: T [s].
        unpaid_s: of a change that is not finished [s].
    """

    shape: Shape
    machines: int
    counts: tuple[int, ...]
    interval_s: float
    unpaid_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            Misuse: there is no interval, a negative count, or a shape larger than the machines there were.
        """
        if not self.counts or min(self.counts) < 0 or self.interval_s <= 0.0:
            raise Misuse(
                f"{len(self.counts)} intervals of {self.interval_s:g} s: write at least one count, none below 0, "
                "and a length above 0 s"
            )
        if self.shape.machines > self.machines:
            raise Misuse(f"shape {self.shape} with {self.machines} machines: it uses {self.shape.machines}")


class LiveputPlan(Struct, frozen=True):
    """A shape for each interval, and what they train.

    Attributes:
        shapes: the first is for now.
        samples: expected until the end of the last interval.
    """

    shapes: tuple[Shape, ...]
    samples: float


def plan(view: LiveputView, costs: ShapeCosts, programme: Programme = Programme.ALL_PAIRS) -> LiveputPlan:
    """Return the shapes that train most.

    Raises:
        Misuse: `ONE_MAXIMUM` with costs that are not of that kind.
    """
    return _planned(view, costs, _values(view, costs, programme))[0]


def plan_and_worth(view: LiveputView, costs: ShapeCosts, programme: Programme) -> tuple[LiveputPlan, Floats]:
    """Return the same, and what each shape for now is expected to train until the end, by its place; -inf if it does not fit.

    Raises:
        Misuse: as `plan`.
    """
    return _planned(view, costs, _values(view, costs, programme))


def best_on_average(
    views: Sequence[LiveputView], costs: ShapeCosts, programme: Programme = Programme.ALL_PAIRS
) -> Shape:
    """Return the shape for now that trains most on average over several forecasts, each as likely as the others.

    From the next interval on each forecast is taken for the truth, as in a plan; of equally good shapes the present one stays.

    Args:
        views: the same but for the counts after the first.
        costs: of changes.
        programme: how shapes are compared.

    Raises:
        Misuse: there is no view, they differ in more than forecasts, or as `plan`.
    """
    if len({(view.shape, view.machines, view.counts[0], view.interval_s, view.unpaid_s) for view in views}) != 1:
        raise Misuse(f"{len(views)} views: write at least one, all of the same moment")
    worth = sum((plan_and_worth(view, costs, programme)[1] for view in views), np.zeros(len(costs.grid.shapes)))
    place = costs.grid.place(views[0].shape)
    return costs.grid.shapes[place if worth[place] >= worth.max() else int(np.argmax(worth))]


def _planned(view: LiveputView, costs: ShapeCosts, following: list[Floats]) -> tuple[LiveputPlan, Floats]:
    grid = costs.grid
    place, machines = grid.place(view.shape), view.machines
    shapes: list[Shape] = []
    worth = np.zeros(0)
    for number, count in enumerate(view.counts):
        cost_s = costs.row(place, machines, max(machines - count, 0))
        if number == 0:
            cost_s = _with_unpaid(cost_s, costs, view.unpaid_s)
        gains = _gains(grid.samples_per_s, cost_s, following[number], view.interval_s)
        gains[grid.machines > count] = -np.inf
        if number == 0:
            worth = gains
        if gains[place] < gains.max():
            place = int(np.argmax(gains))
        shapes.append(grid.shapes[place])
        machines = count
    return LiveputPlan(tuple(shapes), float(worth.max())), worth


def _with_unpaid(cost_s: Floats, costs: ShapeCosts, unpaid_s: float) -> Floats:
    """Return costs if a change is not finished: another one starts over, and keeping the shape pays what is left."""
    return cost_s if unpaid_s <= 0.0 else np.where(cost_s > 0.0, cost_s + costs.again_s(), unpaid_s)


def _gains(rates: Floats, cost_s: Floats, following: Floats, interval_s: float) -> Floats:
    """Return what each change brings, to the end; every programme computes it here, so that none rounds differently."""
    return np.asarray(rates * (interval_s - cost_s) + following)


def _values(view: LiveputView, costs: ShapeCosts, programme: Programme) -> list[Floats]:
    """Return V after each interval, by shape."""
    if programme is Programme.ALL_PAIRS:
        step = _all_pairs(costs, view.interval_s)
    elif isinstance(costs, BoundedCosts) and costs.ordered:
        step = _one_maximum(costs, view.interval_s)
    else:
        raise Misuse("one maximum for each case: these costs are not of that kind; use all pairs")
    found = [np.zeros(len(costs.grid.shapes))]
    for before, count in reversed(list(zip(view.counts, view.counts[1:], strict=False))):
        found.append(step(found[-1], before, count))
    return found[::-1]


Step = Callable[[Floats, int, int], Floats]
"""V before an interval, from V after it, the count before and the count in it."""


def _all_pairs(costs: ShapeCosts, interval_s: float) -> Step:
    grid = costs.grid
    kept: dict[tuple[int, int], Floats] = {}

    def step(following: Floats, before: int, count: int) -> Floats:
        key = (before, max(before - count, 0))
        if key not in kept:
            kept[key] = grid.samples_per_s[grid.machines > 0] * (interval_s - costs.matrix(*key)[:, grid.machines > 0])
        gains = kept[key] + np.where(grid.machines <= count, following, -np.inf)[grid.machines > 0]
        # Nothing is trained without machines, which is free from every shape.
        return np.asarray(np.maximum(gains.max(axis=1), following[grid.machines == 0]))

    return step


def _one_maximum(costs: BoundedCosts, interval_s: float) -> Step:
    grid = costs.grid
    rates, (old, new) = grid.samples_per_s, costs.pairs
    order = np.argsort(grid.machines, kind="stable")
    sizes, starts = grid.machines[order], np.searchsorted(old, np.arange(len(grid.shapes)))
    changed = (rates * (interval_s - costs.change_s))[:, order]
    kept: dict[tuple[int, int], Floats] = {}

    def step(following: Floats, before: int, count: int) -> Floats:
        key = (before, max(before - count, 0))
        if key not in kept:
            kept[key] = rates[new] * (interval_s - costs.kept_s(*key))
        fitting = int(np.searchsorted(sizes, count, "right"))
        ends = np.full((2, fitting + 1), -np.inf)
        gains = changed[:, :fitting] + following[order[:fitting]]
        np.maximum.accumulate(gains[0, ::-1], out=ends[0, fitting - 1 :: -1])
        np.maximum.accumulate(gains[1], out=ends[1, 1:])
        cut = np.searchsorted(sizes[:fitting], grid.machines - key[1], "right")
        among = kept[key] + np.where(grid.machines <= count, following, -np.inf)[new]
        return np.asarray(np.maximum(np.maximum.reduceat(among, starts), np.maximum(ends[0, cut], ends[1, cut])))

    return step
