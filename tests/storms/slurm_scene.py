"""What a seed of the Slurm storm draws beside the fleet's: how the site is set, and how it behaves."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass

from tests.storms import fleet_scene
from tests.storms.fleet_scene import FleetScene
from tests.support.toy_slurm import ToyPartition, ToySite
from windfall.terms import Seconds

SLURM_FATES = (
    *(
        "preempted",
        "preempted",
        "preempted",
        "preempted",
        "node lost",
        "false death",
        "false death",
        "cancelled by an admin",
    ),
    *(
        "requeued",
        "slurmctld killed",
        "stops itself",
        "zombie",
        "direct cut",
        "mailbox cut",
        "both cut",
        "none",
        "none",
    ),
)
REOPENS_SHARE = 0.05
RELIABLE = "r"
"""The partition that does not give way; `a` and `b` do."""


@dataclass(frozen=True)
class SlurmHabits:
    """The site and its luck.

    Attributes:
        poll_s: how old a listing may be [s].
        queue_wait_s: how long a queued machine is waited for [s]; None for ever.
        gang: several machines are one job of several nodes.
        quota_at_once: where the account may have nothing, `sbatch` says so; else the job waits with a reason.
        crashes: when slurmctld is killed [s].
        reopens: the records are opened for each transaction, as the product does; else once, which is faster.
    """

    site: ToySite
    poll_s: Seconds
    queue_wait_s: Seconds | None
    gang: bool
    quota_at_once: bool
    crashes: tuple[float, ...]
    reopens: bool


def draw_fleet(seed: int) -> FleetScene:
    """Draw what a storm on any market draws; bills have no lag here, and no listing lacks what another one had."""
    return dataclasses.replace(fleet_scene.draw(seed), bill_lag_s=(0.0, 0.0), stale=False)


def draw_habits(fleet: FleetScene) -> SlurmHabits:
    rng = random.Random(f"slurm {fleet.seed}")
    partitions = tuple(
        ToyPartition(
            name,
            weight=round(rng.uniform(0.1, 0.3), 3),
            grace_s=rng.choice([0, 10, 30]),
            limit_s=rng.choice([None, None, None, 240, 360]),
        )
        for name in ("a", "b")
    )
    least_s = rng.choice([1.0, 5.0])
    site = ToySite(
        partitions=(*partitions, ToyPartition(RELIABLE, weight=round(rng.uniform(0.5, 1.0), 3), preemptible=False)),
        accounts=rng.random() < 0.5,
        account_lag_s=rng.choice([0.0, 5.0, 30.0]),
        keeps_ended_s=rng.choice([5, 60, 300]),
        allocate_s=(least_s, least_s * rng.uniform(1.0, 4.0)),
        trouble=rng.choice([0.0, 0.05, 0.15]),
    )
    return SlurmHabits(
        site=site,
        poll_s=Seconds(rng.choice([4.0, 8.0, 15.0])),
        queue_wait_s=rng.choice([None, Seconds(60.0), Seconds(120.0)]),
        gang=fleet.nodes > 1 and rng.random() < 0.5,
        quota_at_once=rng.random() < 0.5,
        crashes=tuple(rng.uniform(3.0, fleet.calm_s) for _ in range(rng.choice([0, 0, 1, 2]))),
        reopens=rng.random() < REOPENS_SHARE,
    )
