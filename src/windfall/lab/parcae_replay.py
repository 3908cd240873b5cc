"""The policies of Parcae's simulator: plans with forecasts, and with the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from windfall.lab import parcae_published as paper
from windfall.models.count_forecasts import Damping, guarded_arima, last_value
from windfall.models.shape_costs import ShapeCosts
from windfall.models.shapes import Shape
from windfall.policies.shapes.liveput import LiveputView, Programme, best_on_average, plan
from windfall.simulation.shape_replay import Choice, Moment


def planned(costs: ShapeCosts, ahead: Callable[[Moment], Sequence[int]]) -> Choice:
    """Return the policy that plans with the machines of now and a forecast of the others."""

    def choose(seen: Moment) -> Shape:
        counts = (seen.now, *ahead(seen))
        return plan(LiveputView(seen.shape, seen.before, counts, paper.INTERVAL_S, seen.unpaid_s), costs).shapes[0]

    return choose


def planned_on_average(
    costs: ShapeCosts,
    aheads: Sequence[Callable[[Moment], Sequence[int]]],
    programme: Programme = Programme.ALL_PAIRS,
) -> Choice:
    """Return the policy that takes the shape which is best on average over forecasts, each as likely as the others."""

    def choose(seen: Moment) -> Shape:
        views = [
            LiveputView(seen.shape, seen.before, (seen.now, *ahead(seen)), paper.INTERVAL_S, seen.unpaid_s)
            for ahead in aheads
        ]
        return best_on_average(views, costs, programme)

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
