"""Programs of the parameter server: what they learn, and that machines which vanish change nothing of it."""

from __future__ import annotations

import numpy as np

from tests.tiers.in_threads import DATA, ThreadCluster, played
from windfall.apps.lda import TopicModel, documents_of
from windfall.apps.mf import MatrixFactorization, generated
from windfall.apps.mlr import LabelledData, LogisticRegression
from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.tier_program import TierProgram

CLOCKS = 40


class Alone:
    """`Table` of one process: reads see the last clock, what is pushed is added at its end."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._next = values.copy()

    def pull(self, rows: Rows) -> Values:
        """Return values of the last clock."""
        return self.values[rows]

    def push(self, rows: Rows, changes: Values) -> None:
        """Add to the next one."""
        self._next[rows] += changes

    def end_clock(self) -> None:
        """Begin the next clock."""
        self.values = self._next.copy()


def computed_alone(program: TierProgram, clocks: int = CLOCKS) -> Values:
    """Return the table that one process ends with."""
    alone = Alone(program.first(np.arange(program.rows)))
    for clock in range(1, clocks + 1):
        for data in range(DATA):
            program.compute(program.load(data), clock, alone)
        alone.end_clock()
    return alone.values


async def all_transient_are_lost(cluster: ThreadCluster) -> None:
    """After a few clocks."""
    await cluster.until(5)
    for name in ("t1", "t2"):
        cluster.lose(name)


def test_matrix_factorisation_learns_and_loses_no_bit_with_its_machines() -> None:
    """Its error falls to that of the noise's order, and is what one process finds though all transient machines vanish."""
    program = MatrixFactorization(generated(60, 40, 20), 8, DATA, step_size=0.03)

    cluster = played(["r1", "t1", "t2"], program, all_transient_are_lost, clocks=CLOCKS)

    assert cluster.layouts[-1].term > 0
    assert np.array_equal(cluster.values(), computed_alone(program))
    assert program.loss(cluster.values()) < 0.5 * program.loss(program.first(np.arange(program.rows)))


def test_first_factors_do_not_depend_on_how_rows_are_dealt() -> None:
    """Those of a row are the same whichever others are asked for."""
    program = MatrixFactorization(generated(1500, 40, 2), 4, DATA)
    rows = np.arange(program.rows)

    assert np.array_equal(program.first(rows)[3::7], program.first(rows[3::7]))


def test_topics_are_found_and_counts_equal_a_recount_after_a_roll_back() -> None:
    """Documents of two kinds with words of their own; each topic has the words of one kind."""
    rng = np.random.default_rng(2)
    kinds = [["sun", "rain", "wind", "snow"], ["bread", "salt", "oil", "wine"]]
    texts = [list(rng.choice(kinds[number % 2], 30)) for number in range(24)]
    documents, words = documents_of(texts, 8)
    program = TopicModel(documents, 2, DATA, clocks_per_sweep=2)

    cluster = played(["r1", "t1", "t2"], program, all_transient_are_lost, clocks=CLOCKS)

    values = cluster.values()
    assert cluster.layouts[-1].term > 0
    assert np.array_equal(values[: len(words) + 1], program.recount(values))
    assert values[len(words)].sum() == 24 * 30
    assert np.array_equal(values, computed_alone(program))
    topic_of = dict(zip(words, values[:8].argmax(axis=1), strict=True))
    assert len({topic_of[word] for word in kinds[0]}) == len({topic_of[word] for word in kinds[1]}) == 1
    assert topic_of["sun"] != topic_of["bread"]
    assert program.log_likelihood(values) > program.log_likelihood(computed_alone(program, 2))


def test_logistic_regression_learns_classes_and_loses_no_bit_with_its_machines() -> None:
    """Three clouds of points: nearly all are told apart."""
    rng = np.random.default_rng(3)
    classes = rng.integers(0, 3, 600)
    features = rng.standard_normal((3, 5))[classes] * 3.0 + rng.standard_normal((600, 5))
    program = LogisticRegression(LabelledData(features, classes, 3), DATA, batch=50)

    cluster = played(["r1", "t1", "t2"], program, all_transient_are_lost, clocks=CLOCKS)

    weights = cluster.values()
    assert np.array_equal(weights, computed_alone(program))
    assert program.loss(weights) < 0.2 * program.loss(np.zeros_like(weights))
    assert np.mean((features @ weights[:-1] + weights[-1]).argmax(axis=1) == classes) > 0.95
