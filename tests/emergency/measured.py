"""What the journal says that a save costs, part by part, and what a machine had lost when it was gone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from tests.emergency.cloud import Machine, Moment, facts, p95
from windfall import events as ev
from windfall.events import Row


@dataclass(frozen=True)
class Parts:
    """95th percentiles of the parts of an emergency save [s], over `saves` saves."""

    rest_s: float
    snapshot_s: float
    upload_s: float
    commit_s: float
    saves: int

    @property
    def sum_s(self) -> float:
        """All parts one after the other [s]."""
        return self.rest_s + self.snapshot_s + self.upload_s + self.commit_s

    @property
    def but_upload_s(self) -> float:
        """Rest of the step, snapshot and commit [s]."""
        return self.sum_s - self.upload_s

    def __str__(self) -> str:
        return (
            f"rest of step {1e3 * self.rest_s:.1f} ms + snapshot {1e3 * self.snapshot_s:.1f} ms + upload "
            f"{self.upload_s:.3f} s + commit {1e3 * self.commit_s:.1f} ms = {self.sum_s:.3f} s (p95 of {self.saves} saves)"
        )


def parts_of(rows: list[Row], moments: Iterable[list[Moment]]) -> Parts:
    """Measure the parts.

    Args:
        rows: the run's journal.
        moments: what each machine's trainer recorded, for the length of steps.
    """
    commits = [fact.duration_s for _, fact in facts(rows, ev.CheckpointCommitted)]
    return Parts(
        p95([length for one in moments for length in step_lengths(one)]),
        p95([fact.stall_s for _, fact in facts(rows, ev.ShardHandedOver)]),
        p95([fact.duration_s for _, fact in facts(rows, ev.ShardUploaded)]),
        p95(commits),
        len(commits),
    )


def step_lengths(moments: list[Moment]) -> list[float]:
    """Return how long each step took [s], without the saves between them."""
    return [after.at - before.at for before, after in itertools.pairwise(moments) if after.word == "step"]


def lost_s(machine: Machine, restored: int, gone_at: float) -> float:
    """Return how long before the machine's end the restored step had been complete [s, monotonic]."""
    return gone_at - next(moment.at for moment in machine.moments if moment.step == restored)
