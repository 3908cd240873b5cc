"""The log of turns that a profile is made of, in the real loops of machines in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tiers.in_threads import DATA, ThreadCluster, played
from tests.tiers.least_squares import LeastSquares
from windfall.runtimes.machine_limits import MachineLimits
from windfall.runtimes.tier_program import Table

CLOCKS = 20


class TellingLoss(LeastSquares):
    """It says the clock as its turn's loss, and none in clock 3."""

    def compute(self, loaded: Any, clock: int, table: Table) -> float | None:  # type: ignore[override]
        """As ever, with a loss."""
        super().compute(loaded, clock, table)
        return None if clock == 3 else float(clock)


async def undisturbed(cluster: ThreadCluster) -> None:
    """Nothing happens."""
    del cluster


def test_each_turn_is_noted_once_with_its_loss_and_what_its_machine_had_done() -> None:
    """All clocks of all data partitions, in the order of their ends; times and bytes only grow, and end at the counters."""
    cluster = played(["r1", "t1", "t2"], TellingLoss(DATA, seconds=0.002), undisturbed, clocks=CLOCKS)

    noted = {name: log.turns() for name, log in cluster.turn_logs.items()}
    losses = [(one.data, one.loss) for turns in noted.values() for one in turns]
    wanted = [(data, None if clock == 3 else float(clock)) for clock in range(1, CLOCKS + 1) for data in range(DATA)]
    assert sorted(losses, key=str) == sorted(wanted, key=str)
    for name, turns in noted.items():
        counters = cluster.machines[name].member.counts.now
        for column in ("ended_s", "computed_s", "moved_bytes"):
            values = [getattr(one, column) for one in turns]
            assert values == sorted(values), f"{column} of {name}"
        assert turns[-1].computed_s == pytest.approx(counters.computed_s)
        assert len(turns) == len(cluster.turn_logs[name]) == counters.turns
        assert np.diff([one.computed_s for one in turns]).mean() >= 0.002
    assert sum(turns[-1].moved_bytes for turns in noted.values()) > 0


def test_a_turn_whose_time_is_known_takes_it_whatever_the_program_computes() -> None:
    """Turns of 2 ms, known to take 4 at full speed, take 40 at a tenth of it: all of them, the first one too."""
    limits = MachineLimits(kernel_speed=0.1, turn_s=0.004)
    cluster = played(["r1"], TellingLoss(DATA, seconds=0.002), undisturbed, clocks=CLOCKS, slots=1, limits=limits)

    ended = [one.computed_s for one in cluster.turn_logs["r1"].turns()]
    assert np.diff([0.0, *ended]).min() >= 0.04
