"""Multinomial logistic regression by stochastic gradient descent, on a parameter server.

The table has a row of weights, one for each class, for each feature, and one more for the constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from windfall.apps.app_settings import AppSettings
from windfall.apps.data_files import csv_rows, write_origin
from windfall.errors import Misuse
from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.tier_program import PracticeTable, Table, TierApplication
from windfall.structs import Struct


class LabelledData(Struct, frozen=True, eq=False):
    """Observations and their classes.

    Attributes:
        features: shape (observations, features).
        classes: of each observation, from 0.
        class_names: of all classes.
        origin: where the observations are from.
    """

    features: NDArray[np.float64]
    classes: NDArray[np.int64]
    class_names: tuple[str, ...]
    origin: dict[str, object]


class LogisticRegression:
    """`TierProgram`.

    Args:
        observed: all observations; data partition d has those whose number is d, d + data, ...
        data: how many data partitions there are.
        batch: observations in a clock of a data partition.
        step_size: of the descent, for the mean over one batch of each data partition.
        decay: by how much weights are pulled to 0.

    Raises:
        Misuse: there are fewer observations than data partitions.
    """

    def __init__(
        self, observed: LabelledData, data: int, *, batch: int = 100, step_size: float = 0.5, decay: float = 1e-4
    ) -> None:
        if len(observed.classes) < data:
            raise Misuse(f"{len(observed.classes)} observations are too few for {data} data partitions: each needs one")
        self.rows = observed.features.shape[1] + 1
        self._observed, self._data, self._batch = observed, data, batch
        self._step_size, self._decay = step_size / data, decay

    def first(self, rows: Rows) -> Values:
        """Return zeros."""
        return np.zeros((len(rows), len(self._observed.class_names)))

    def load(self, data: int) -> LabelledData:
        """Return the observations of a data partition."""
        observed, part = self._observed, slice(data, None, self._data)
        return LabelledData(observed.features[part], observed.classes[part], observed.class_names, observed.origin)

    def compute(self, loaded: LabelledData, clock: int, table: Table) -> float:
        """Take a step down the gradient over the next batch, and return the batch's mean cross entropy before it."""
        rows, observations = np.arange(self.rows), len(loaded.classes)
        size = min(self._batch, observations)
        batch = ((clock - 1) * size + np.arange(size)) % observations
        weights = table.pull(rows).astype(np.float64, copy=False)
        slope, loss = gradient(weights, loaded.features[batch], loaded.classes[batch])
        table.push(rows, -self._step_size * (slope / size + self._decay * weights))
        return float(loss / size)

    def warm_up(self) -> None:
        """Compile the kernel, or load it."""
        seen = self._observed
        one = LabelledData(seen.features[:1], seen.classes[:1], seen.class_names, seen.origin)
        self.compute(one, 1, PracticeTable(self))

    def samples(self) -> int:
        """Return the observations of a turn."""
        return min(self._batch, len(self._observed.classes) // self._data)

    def evaluate(self, values: Values) -> float:
        """Return the mean cross entropy over all observations."""
        scores = self._observed.features @ values[:-1] + values[-1]
        scores -= scores.max(axis=1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return float(-logs[np.arange(len(logs)), self._observed.classes].mean())

    def write(self, values: Values, folder: Path) -> None:
        """Write `weights.npz`: `weights`, of shape (features, classes), `constants` and `classes`, their names."""
        np.savez(
            folder / "weights.npz",
            weights=values[:-1],
            constants=values[-1],
            classes=np.array(self._observed.class_names),
        )
        write_origin(self._observed.origin, folder)


@numba.njit(cache=True, nogil=True)
def gradient(
    weights: NDArray[np.float64], features: NDArray[np.float64], classes: NDArray[np.int64]
) -> tuple[NDArray[np.float64], float]:
    """Return the gradient of the sum of cross entropies, and the sum.

    Args:
        weights: shape (features + 1, classes).
        features: shape (observations, features).
        classes: of each observation.
    """
    found, last, total = np.zeros_like(weights), weights.shape[0] - 1, 0.0
    # Written out: whole rows at once would make an array for each of them.
    chances = np.empty(weights.shape[1])
    for number in range(len(classes)):
        chances[:] = weights[last]
        for feature in range(last):
            for place in range(len(chances)):
                chances[place] += features[number, feature] * weights[feature, place]
        chances -= chances.max()
        score, of_all = chances[classes[number]], 0.0
        for place in range(len(chances)):
            chances[place] = np.exp(chances[place])
            of_all += chances[place]
        chances /= of_all
        total += np.log(of_all) - score
        chances[classes[number]] -= 1.0
        for feature in range(last):
            for place in range(len(chances)):
                found[feature, place] += features[number, feature] * chances[place]
        found[last] += chances
    return found, total


def generated(observations: int, features: int, classes: int, *, apart: float = 3.0, seed: int = 0) -> LabelledData:
    """Return generated observations: a cloud of points around a random centre for each class.

    Args:
        observations: how many.
        features: of each.
        classes: how many.
        apart: standard deviation of centres over that of the points of a class.
        seed: of chance.
    """
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, classes, observations)
    points = apart * rng.standard_normal((classes, features))[chosen] + rng.standard_normal((observations, features))
    names = tuple(str(number) for number in range(classes))
    origin: dict[str, object] = {"source": "generated", "observations": observations, "apart": apart, "seed": seed}
    return LabelledData(points, chosen, names, origin)


def read_observations(path: Path) -> LabelledData:
    """Return the observations of a file whose last column is the class, and whose other columns are numbers.

    Raises:
        Misuse: it cannot be read, a feature is no finite number, or there is one class only.
    """
    rows = csv_rows(path, "features, then the class", 2, 1_000_000)
    features = np.empty((len(rows), len(rows[0]) - 1))
    for number, row in enumerate(rows):
        for place, text in enumerate(row[:-1]):
            try:
                features[number, place] = float(text)
            except ValueError:
                features[number, place] = math.nan
            if not math.isfinite(features[number, place]):
                raise Misuse(f"settings.file: {path}:{number + 2}: a feature must be a finite number, not {text!r}")
    names, classes = np.unique(np.array([row[-1] for row in rows]), return_inverse=True)
    if len(names) < 2:
        raise Misuse(f"settings.file: {path} has observations of one class only, '{names[0]}'; add some of another")
    return LabelledData(features, classes, tuple(str(name) for name in names), {"source": "file", "file": str(path)})


def program(settings: Mapping[str, object], data: int) -> TierApplication:
    """Return the program that an application's settings describe.

    Settings:
        file: comma-separated values with a first line of names: features, then the class; without it, data is generated.
        observations (10000), features (20), classes (5), apart (1.0): of generated data, by `seed` (1).
        batch (100), rate (0.5), decay (0.0001): of the descent.

    Args:
        settings: by name.
        data: how many data partitions there are.

    Raises:
        Misuse: a setting is wrong, or data cannot be read.
    """
    given = AppSettings(settings)
    batch = given.whole("batch", 100)
    rate, decay = given.number("rate", 0.5, most=1000.0), given.number("decay", 1e-4, most=10.0)
    source = given.source("observations.csv", ("generated",))
    if isinstance(source, Path):
        given.end()
        observed = read_observations(source)
    else:
        seed, apart = given.whole("seed", 1, least=0), given.number("apart", 1.0, most=1000.0)
        observations, features = given.whole("observations", 10_000), given.whole("features", 20)
        classes = given.whole("classes", 5, least=2)
        given.end()
        observed = generated(observations, features, classes, apart=apart, seed=seed)
    return LogisticRegression(observed, data, batch=batch, step_size=rate, decay=decay)
