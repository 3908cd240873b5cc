"""The toy Slurm as the market of a fleet storm: the truth about machines and hours, and the line that each controller has."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from tests.storms.fleet_machine import Node
from tests.storms.slurm_scene import SLURM_FATES
from tests.support.toy_slurm import ToyJob, ToySlurm
from tests.support.toy_slurm_commands import CPUS
from windfall.errors import ProviderUnreachable
from windfall.market import Answer, BootSpec, Machine, MachineEndCause, MachineLifecycle, Order
from windfall.providers.slurm import slurm_records, slurm_submission, slurm_tables
from windfall.providers.slurm.slurm_commands import CommandResult, Commands
from windfall.providers.slurm.slurm_provider import SlurmProvider
from windfall.providers.slurm.slurm_records import SlurmRecords
from windfall.providers.slurm.slurm_settings import SlurmSettings
from windfall.providers.slurm.slurm_tables import OrderTag
from windfall.simulation.simulated_provider import MarketLimits
from windfall.simulation.virtual_time import VirtualClock
from windfall.terms import Reliability, WallTime

if TYPE_CHECKING:
    from tests.storms.fleet_ports import Gate
    from tests.storms.slurm_fleet import SlurmFleet

USD_PER_UNIT_HOUR = 1.0
SKEW_S = 1.5
"""A site's clock agrees with the controller's within seconds."""


def price_usd_per_hour(job: ToyJob) -> float:
    """What a machine of a job costs."""
    return job.partition.weight * CPUS * USD_PER_UNIT_HOUR


class SlurmMeter:
    """The cluster's own account of stretches, in dollars."""

    def __init__(self, cluster: ToySlurm) -> None:
        self._cluster = cluster

    def total_usd(self, owner: str, now: WallTime) -> float:
        """What all stretches until now come to."""
        del owner
        return sum(job_hours(job, now) * price_usd_per_hour(job) for job in self._cluster.jobs)

    @property
    def running(self) -> frozenset[str]:
        return frozenset(job.job_id for job in self._cluster.jobs for one in job.stretches if one.ended is None)


@functools.cache
def tag_of(comment: str) -> OrderTag:
    """What a job's comment says."""
    tag = slurm_tables._tag(comment)
    assert tag is not None, "only Windfall's jobs are here"
    return tag


def job_hours(job: ToyJob, now: float) -> float:
    """The machine-hours of a job."""
    seconds = sum((now if one.ended is None else one.ended) - one.started for one in job.stretches)
    return max(seconds, 0.0) / 3600.0 * job.nodes


class SlurmMarket:
    """What `Fleet` knows of its market: the machines that are alive in truth, limits, and what may happen to them."""

    name = "slurm"

    def __init__(self, cluster: ToySlurm) -> None:
        self._cluster = cluster
        self.limits = MarketLimits()
        self.meter = SlurmMeter(cluster)

    def room(self, partition: str) -> int | None:
        return self.limits.capacity.get(("m4", partition, Reliability.TRANSIENT))

    def alive(self, job_id: str) -> tuple[Machine, ...]:
        """The machines that wait, run or are on their way out; a second job of a name is none until it runs."""
        first: dict[str, int] = {}
        found = []
        for job in self._cluster.jobs:
            older = first.setdefault(job.name, job.number) < job.number
            if (job.over and (job.fenced or not job.living)) or (older and not job.living):
                continue
            tag = tag_of(job.comment)
            waits = job.state == "PENDING"
            found += [
                Machine(
                    one.machine_id, tag.owner, job_id, job.name, self.name, tag.machine_type, job.partition.name,
                    tag.reliability, tag.price_usd_per_hour,
                    MachineLifecycle.PENDING if waits else MachineLifecycle.RUNNING,
                )
                for one in job.machines
                if not job.over or one.alive
            ]  # fmt: skip
        return tuple(found)

    def end(self, machine_id: str, cause: MachineEndCause) -> None:
        """A machine stops itself, or its node is gone."""
        job, one = self._cluster.find(machine_id)
        if not one.alive:
            return
        if cause is MachineEndCause.STOPPED:
            self._cluster.exits(job, one)
        else:
            self._cluster.lose_node(job, one, lives=False)


class SlurmNode(Node):
    """A machine of the fleet that is one of a Slurm job."""

    world: SlurmFleet
    fates = SLURM_FATES

    @property
    def job(self) -> ToyJob:
        return self.world.cluster.find(self.machine_id)[0]

    def _preempted(self, lead_s: float) -> None:
        if self.job.partition.preemptible:
            self.world.cluster.preempt(self.job)

    def _node_lost(self, lead_s: float) -> None:
        self.world.cluster.lose_node(*self.world.cluster.find(self.machine_id), lives=False)

    def _false_death(self, lead_s: float) -> None:
        self.world.cluster.lose_node(*self.world.cluster.find(self.machine_id), lives=True)

    def _cancelled_by_an_admin(self, lead_s: float) -> None:
        self.world.cluster.cancel(self.job)

    def _requeued(self, lead_s: float) -> None:
        self.world.cluster.requeue(self.job)

    def _slurmctld_killed(self, lead_s: float) -> None:
        self.world.crash(lead_s / 4)


class SlurmLine:
    """`Commands` as a controller has them: each may be cut off, carried out late or twice, or be its last."""

    where, present = "the login node", True

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def run(self, argv: Sequence[str], data: bytes = b"") -> CommandResult:
        site = self._gate.controller.world.site  # type: ignore[attr-defined]
        changes = argv[0] in {"sbatch", "scancel", "sh"} and "--test-only" not in argv
        # What is still removed after a timeout would hit the same order, sent again: its machine would start nothing and end.
        repeats = changes and slurm_submission._WIPE not in argv
        answered: list[CommandResult] = []

        def carried_out() -> CommandResult:
            # A line sends again what had no answer: a refusal of an order is one.
            if argv[0] != "sbatch" or not answered or not answered[0].code:
                answered.append(site.run(argv, data))
            return answered[-1]

        return self._gate.call(argv[0], carried_out, ProviderUnreachable, changes=changes, doubles=repeats)


class WitnessedSlurm(SlurmProvider):
    """The product's own provider, with a witness at its counter."""

    def __init__(self, world: SlurmFleet, commands: Commands, clock: VirtualClock) -> None:
        folder = Path(world.folder) / "installation"
        settings = SlurmSettings(
            folder=folder / "slurm", poll_s=world.slurm.poll_s, queue_wait_s=world.slurm.queue_wait_s,
            usd_per_unit_hour=USD_PER_UNIT_HOUR,
        )  # fmt: skip
        super().__init__(folder, settings, clock, commands)
        self._world, self._asked_at = world, 0.0

    def order(self, order: Order, boot: BootSpec) -> Answer:
        self._world.orders[order.token] = order
        self._asked_at = self._world.time
        answer = super().order(order, boot)
        self._world.checks.answered(answer)
        return answer

    def _submit(self, order: Order, boot: BootSpec) -> Answer:
        self._world.checks.submits(order.token, self._asked_at)
        return super()._submit(order, boot)

    def cancel(self, token: str) -> None:
        self._world.cancels.add(token)
        super().cancel(token)
        self._world.checks.cancelled(token)

    def release(self, machine_id: str) -> None:
        super().release(machine_id)
        self._world.checks.released_one(machine_id)


def clock_of(world: SlurmFleet) -> VirtualClock:
    """A login node's clock."""
    rng = world.rng
    return VirtualClock(world, rng.uniform(0, 1e6), rng.uniform(-0.002, 0.002), rng.uniform(-SKEW_S, SKEW_S))


@contextmanager
def kept_records() -> Iterator[None]:
    """One connection to the records for a whole storm, in place of a new one for each transaction: only faster."""
    opened: dict[Path, sqlite3.Connection] = {}

    @contextmanager
    def transaction(self: SlurmRecords) -> Iterator[sqlite3.Connection]:
        if self._folder not in opened:
            with _OPEN(self):
                pass
            found = opened[self._folder] = sqlite3.connect(self._folder / slurm_records.FILE, isolation_level=None)
            found.execute("PRAGMA journal_mode = MEMORY")
            found.execute("PRAGMA synchronous = OFF")
            found.execute("PRAGMA locking_mode = EXCLUSIVE")
        opened[self._folder].execute("BEGIN IMMEDIATE")
        yield opened[self._folder]
        opened[self._folder].execute("COMMIT")

    with patch.object(SlurmRecords, "_open", transaction):
        yield
    for one in opened.values():
        one.close()


_OPEN = SlurmRecords._open
