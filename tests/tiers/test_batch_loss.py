"""Turns say the loss of their batch, and the status has the mean of the last pass over all data partitions."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.tiers.in_scripts import SCRIPTS, ScriptCluster, started
from tests.tiers.in_scripts import played as played_scripts
from tests.tiers.in_step import InStep
from tests.tiers.in_threads import DATA, ThreadCluster, played
from tests.tiers.least_squares import LeastSquares
from windfall.apps import lda, mf, mlr
from windfall.core.tier_decisions import training_loss
from windfall.report import tier_page
from windfall.report.tier_page import TierRecord
from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.tier_program import Table
from windfall.structs import replace

CLOCKS = 20


class WithLoss(LeastSquares):
    """It returns the mean square error of its data partition."""

    def compute(self, loaded: Any, clock: int, table: Table) -> float | None:
        """Compute, and say the loss before the step; of clock 3 it is not finite."""
        a, b = loaded
        missed = a @ table.pull(np.arange(self.rows)) - b
        super().compute(loaded, clock, table)
        return math.inf if clock == 3 else float((missed**2).mean())

    def loss_of(self, clock: int) -> float:
        """Return the mean over data partitions that one process has in a clock."""
        x = self.alone(clock - 1)
        return float(np.mean([((a @ x - a @ self.wanted) ** 2).mean() for a in self._a]))


async def undisturbed(cluster: ThreadCluster | ScriptCluster) -> None:
    """Nothing happens."""
    del cluster


class OneTable:
    """`Table` of one process."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def pull(self, rows: Rows) -> Values:
        """Return values of rows."""
        return self.values[rows]

    def push(self, rows: Rows, changes: Values) -> None:
        """Add to rows at once: the turn reads once."""
        self.values[rows] += changes


def passes(program: Any, data: int, clocks: int) -> list[tuple[float, float]]:
    """Return, of each pass over all data partitions, its mean loss, and that of the table after it."""
    table = OneTable(program.first(np.arange(program.rows)))
    parts = [program.load(number) for number in range(data)]
    found = []
    for sweep in range(clocks):
        losses = [program.compute(part, clock, table) for clock in (2 * sweep + 1, 2 * sweep + 2) for part in parts]
        found.append((float(np.mean(losses)), program.evaluate(table.values)))
    return found


def test_the_status_has_the_mean_loss_of_the_newest_turn_of_each_data_partition() -> None:
    """Of three machines with bound 0: as one process computes it."""
    program = WithLoss(DATA)
    cluster = played(["r1", "t1", "t2"], program, undisturbed, clocks=CLOCKS)

    assert cluster.statuses[-1].loss == pytest.approx(program.loss_of(CLOCKS), rel=1e-12)
    assert program.loss_of(CLOCKS) < 0.9 * program.loss_of(1)


def test_a_program_that_says_no_loss_or_one_that_is_not_finite_has_none() -> None:
    """The status has nothing then."""
    silent = played(["r1"], LeastSquares(DATA), undisturbed, clocks=3)
    infinite = InStep(["r1"], clocks=2)
    worker = infinite.members["r1"].worker

    assert silent.statuses[-1].loss is None
    assert "turns" not in dict(tier_page.lines(TierRecord(silent.statuses[-1])))
    assert dict(tier_page.lines(TierRecord(replace(silent.statuses[-1], loss=0.5))))["turns"].startswith(
        "a mean loss of 0.5 "
    )
    assert worker.losses() == {}
    assert played(["r1"], WithLoss(DATA), undisturbed, clocks=3).statuses[-1].loss == pytest.approx(
        WithLoss(DATA).loss_of(2), rel=1e-12
    )


def test_of_a_data_partition_that_has_moved_the_newest_turn_counts() -> None:
    """Machines still report what they had computed on before; unless each data partition has a loss, there is none."""
    cluster = InStep(["r1", "t1"], data=2, clocks=4)
    report, layout = cluster.members["r1"].report(), cluster.layout
    first, second = replace(report, losses={0: (4, 1.0), 1: (7, 3.0)}), replace(report, losses={0: (6, 2.0)})

    assert (
        training_loss(layout, {"r1": first, "t1": second}) == training_loss(layout, {"r1": second, "t1": first}) == 2.5
    )
    assert training_loss(layout, {"r1": second}) is None
    assert training_loss(replace(layout, term=1), {"r1": first, "t1": second}) is None


@pytest.mark.parametrize(
    ("program", "within"),
    [
        (mf.program({"users": 60, "items": 20, "ratings": 4000, "clocks": 2, "rank": 4, "rate": 0.02}, 2), 0.05),
        (mlr.program({"observations": 2000, "batch": 500, "features": 5}, 2), 0.15),
        (lda.program({"documents": 80, "tokens": 60, "words": 50, "clocks": 2, "topics": 4}, 2), 0.1),
    ],
    ids=["mf", "mlr", "lda"],
)
def test_applications_say_the_loss_of_their_batches_in_the_unit_of_their_evaluation(
    program: Any, within: float
) -> None:
    """After some passes, that of a pass over all data is near the loss of the whole table before and after it."""
    found = passes(program, 2, 12)
    (_, before), (during, after) = found[-2:]

    assert after <= before
    assert during == pytest.approx((before + after) / 2, rel=within)
    assert found[0][0] > 1.05 * during


def test_the_likelihood_of_drawn_topics_is_that_of_each_token_by_all_others() -> None:
    """As numpy computes it; the product of many tokens' likelihoods is far below the smallest number."""
    rng = np.random.default_rng(6)
    topics_all, words_all, alpha, beta, tokens = 5, 40, 0.3, 0.02, 800
    documents, words = np.repeat(np.arange(4), tokens // 4), rng.integers(0, words_all, tokens)
    topics, drawn = rng.integers(0, topics_all + 1, tokens), rng.random(tokens)
    counts = np.zeros((words_all + 1, topics_all))
    np.add.at(counts, (words[topics > 0], topics[topics > 0] - 1), 1.0)
    counts[-1] = counts[:-1].sum(axis=0)
    found, logs = topics.copy(), 0.0

    total = lda.draw_topics(counts.copy(), found, documents, words, drawn, np.array([alpha, beta, beta * words_all]))

    for token in range(tokens):
        if topics[token]:
            counts[[words[token], -1], topics[token] - 1] -= 1
        others = (documents == documents[token]) & (np.arange(tokens) != token)
        in_document = np.bincount(topics[others], minlength=topics_all + 1)[1:]
        shares = (in_document + alpha) / (in_document.sum() + topics_all * alpha)
        logs += math.log(shares @ ((counts[words[token]] + beta) / (counts[-1] + beta * words_all)))
        topics[token] = found[token]
        counts[[words[token], -1], topics[token] - 1] += 1
    assert logs < -750.0
    assert total == pytest.approx(logs, rel=1e-9)


@pytest.mark.real
def test_a_script_gives_the_loss_of_its_turns() -> None:
    """The last one that it gives in a turn."""
    script = SCRIPTS / "least_squares_script.py"
    cluster = played_scripts(["r1"], partial(started, script, "0"), undisturbed, clocks=6)

    assert cluster.statuses[-1].loss == pytest.approx(WithLoss(DATA).loss_of(6), rel=1e-9)
