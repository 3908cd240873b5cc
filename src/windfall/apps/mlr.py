"""Multinomial logistic regression by stochastic gradient descent, on a parameter server.

The table has a row of weights, one for each class, for each feature, and one more for the constant.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.tier_program import Table
from windfall.structs import Struct


class LabelledData(Struct, frozen=True, eq=False):
    """Observations and their classes.

    Attributes:
        features: shape (observations, features).
        classes: of each observation, from 0.
        classes_all: how many there are.
    """

    features: NDArray[np.float64]
    classes: NDArray[np.int64]
    classes_all: int


class LogisticRegression:
    """`TierProgram`.

    Args:
        observed: all observations; data partition d has those whose number is d, d + data, ...
        data: how many data partitions there are.
        batch: observations in a clock of a data partition.
        step_size: of the descent, for the mean over one batch of each data partition.
        decay: by how much weights are pulled to 0.
    """

    def __init__(
        self, observed: LabelledData, data: int, *, batch: int = 100, step_size: float = 0.5, decay: float = 1e-4
    ) -> None:
        self.rows = observed.features.shape[1] + 1
        self._observed, self._data, self._batch = observed, data, batch
        self._step_size, self._decay = step_size / data, decay

    def first(self, rows: Rows) -> Values:
        """Return zeros."""
        return np.zeros((len(rows), self._observed.classes_all))

    def load(self, data: int) -> LabelledData:
        """Return the observations of a data partition."""
        observed, part = self._observed, slice(data, None, self._data)
        return LabelledData(observed.features[part], observed.classes[part], observed.classes_all)

    def compute(self, loaded: LabelledData, clock: int, table: Table) -> None:
        """Take a step down the gradient over the next batch."""
        rows, observations = np.arange(self.rows), len(loaded.classes)
        size = min(self._batch, observations)
        batch = ((clock - 1) * size + np.arange(size)) % observations
        weights = table.pull(rows).astype(np.float64, copy=False)
        slope = gradient(weights, loaded.features[batch], loaded.classes[batch])
        table.push(rows, -self._step_size * (slope / size + self._decay * weights))

    def loss(self, weights: Values) -> float:
        """Return the mean cross entropy over all observations."""
        scores = self._observed.features @ weights[:-1] + weights[-1]
        scores -= scores.max(axis=1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return float(-logs[np.arange(len(logs)), self._observed.classes].mean())


@numba.njit(cache=True, nogil=True)
def gradient(
    weights: NDArray[np.float64], features: NDArray[np.float64], classes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the gradient of the sum of cross entropies.

    Args:
        weights: shape (features + 1, classes).
        features: shape (observations, features).
        classes: of each observation.
    """
    found, last = np.zeros_like(weights), weights.shape[0] - 1
    for number in range(len(classes)):
        scores = weights[last].copy()
        for feature in range(last):
            scores += features[number, feature] * weights[feature]
        chances = np.exp(scores - scores.max())
        chances /= chances.sum()
        chances[classes[number]] -= 1.0
        for feature in range(last):
            found[feature] += features[number, feature] * chances
        found[last] += chances
    return found
