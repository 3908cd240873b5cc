"""How long spot machines are available, and how long they are not: hazards by age, learnt from series of other places.

A series says at equal steps whether a machine (or a whole gang) can be had.  Its runs of one value end with a rate that falls
with their age: most are short, and what has lasted for hours lasts for hours more.

Source: the rates are occurrences over exposure, the maximum-likelihood estimate of a piecewise constant hazard; a run that
the series does not see the end of counts by its exposure alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from windfall.structs import Struct

AGES_S = (
    *(0.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 2400.0, 3600.0, 4800.0, 7200.0, 9600.0),
    *(14_400.0, 19_200.0, 28_800.0, 38_400.0, 57_600.0, 76_800.0),
)
"""Where the classes of age begin [s]."""
UP, DOWN = 1, 0

Availability = NDArray[np.bool_]


class AvailabilityHazards(Struct, frozen=True):
    """Rates at which availability ends and begins, by age.

    Attributes:
        ages_s: where the classes of age begin; the first at 0 [s].
        ends_per_s: rate at which spot machines stop to be available, by class [1/s].
        begins_per_s: rate at which they become available again, by class [1/s].
    """

    ages_s: tuple[float, ...]
    ends_per_s: tuple[float, ...]
    begins_per_s: tuple[float, ...]

    def changes(self, step_s: float) -> NDArray[np.float64]:
        """Return the probability of a change within a step, by (down, up) and class: shape (2, classes) [1]."""
        return -np.expm1(-np.array((self.begins_per_s, self.ends_per_s)) * step_s)

    def ageing(self, step_s: float) -> NDArray[np.float64]:
        """Return the probability to pass from a class of age to the next within a step; 0 for the last one [1]."""
        widths_s = np.diff(np.array((*self.ages_s, np.inf)))
        return np.minimum(step_s / widths_s, 1.0)


def constant(available_s: float, unavailable_s: float) -> AvailabilityHazards:
    """Return hazards that do not depend on age.

    Args:
        available_s: mean time until availability ends [s].
        unavailable_s: mean time until it begins again [s].
    """
    return AvailabilityHazards((0.0,), (1.0 / available_s,), (1.0 / unavailable_s,))


def learn(series: Iterable[tuple[Availability, float]]) -> AvailabilityHazards:
    """Return the hazards of all series together.

    A class that was seldom seen is drawn to the mean rate of its kind, with the weight of one change.

    Args:
        series: availability at equal steps, and the step [s]; at least one with a change each way.
    """
    exposure_s, changes = np.zeros((2, len(AGES_S))), np.zeros((2, len(AGES_S)))
    for available, step_s in series:
        for is_up, run in itertools.groupby(available.tolist()):
            ages_s = np.arange(sum(1 for _ in run)) * step_s
            classes = np.searchsorted(AGES_S, ages_s, "right") - 1
            np.add.at(exposure_s[int(is_up)], classes, step_s)
            changes[int(is_up), classes[-1]] += 1.0
        changes[int(available[-1]), classes[-1]] -= 1.0  # the last run was not seen to end
    mean_s = exposure_s.sum(axis=1, keepdims=True) / changes.sum(axis=1, keepdims=True)
    rates = (changes + 1.0) / (exposure_s + mean_s)
    return AvailabilityHazards(AGES_S, tuple(rates[UP].tolist()), tuple(rates[DOWN].tolist()))
