"""The Slurm storm: the fleet storm on a site with Slurm's habits, with the product's own Slurm provider at its commands.

Controllers, keepers, runs and the store are those of the fleet storm.  What differs is the market: `SlurmProvider` itself,
with its records on a disk, runs `sbatch`, `squeue`, `scancel`, `scontrol`, `sinfo`, `sacct` and `sh` on a simulated cluster
(`tests/support/toy_slurm.py`), which answers in text.  Faults strike between any two commands.

Replay a failure with `python -m tests.storms.slurm_fleet --seed N [--bug NAME]`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping
from contextlib import ExitStack
from unittest.mock import patch

from tests.storms import planted_slurm, slurm_scene
from tests.storms.fleet import SETTLED_S, Fleet, weathered
from tests.storms.fleet_control import Controller
from tests.storms.fleet_ports import Gate
from tests.storms.fleet_scene import JOB, OWNER, FleetScene
from tests.storms.slurm_fleet_checks import SlurmFleetChecks
from tests.storms.slurm_market import (
    SlurmLine,
    SlurmMarket,
    SlurmNode,
    WitnessedSlurm,
    clock_of,
    kept_records,
    price_usd_per_hour,
)
from tests.support.checks import demand
from tests.support.toy_slurm import ToyJob, ToyMachine, ToySlurm
from tests.support.toy_slurm_commands import ToySlurmCommands
from windfall.fleet import DesiredState, Directive, Report
from windfall.jobs import Job
from windfall.market import Answer, Machine, MachineLifecycle, Order
from windfall.policies.layout import runtime_list
from windfall.policies.layout.runtime_list import RuntimeRules
from windfall.ports import Provider
from windfall.structs import replace
from windfall.terms import NoticeLevel, Reliability, Seconds

AFTER_S = 400.0
"""How long the world goes on after the end of the job, to see what still comes [s]."""


class SlurmFleet(Fleet):
    """Time, chance, the store, the cluster, the machines and the controllers."""

    checks: SlurmFleetChecks
    settled_s = SETTLED_S + 600.0

    def __init__(self, seed: int, folder: str) -> None:
        self.orders: dict[str, Order] = {}
        super().__init__(seed, folder)

    def draw_fleet(self, seed: int) -> FleetScene:
        return slurm_scene.draw_fleet(seed)

    def open_market(self, seed: int) -> SlurmMarket:  # type: ignore[override]
        self.slurm = slurm_scene.draw_habits(self.fleet)
        rng = random.Random(f"cluster {seed}")
        self.cluster = ToySlurm(self, self.slurm.site, rng, self, calm=lambda: self.calm)
        self.site = ToySlurmCommands(self.cluster)
        market = SlurmMarket(self.cluster)
        self.cluster.room = market.room
        return market

    def new_checks(self) -> SlurmFleetChecks:
        return SlurmFleetChecks(self)

    def providers(self, gate: Gate) -> Mapping[str, Provider]:
        return {"slurm": WitnessedSlurm(self, SlurmLine(gate), clock_of(self))}

    def answer(self, controller: Controller, report: Report) -> Directive | None:
        """As `Controller.report`: a machine that came too late for its job is told to stop."""
        told = controller.direct.deliver(report)
        return Directive(controller.term, DesiredState.STOP) if told is None and not self.job_wanted else told

    def says_it_ends(self, machine_id: str) -> bool:
        """Say so of all of a gang if one of it does: they end together, and are replaced together."""
        job, _ = self.cluster.find(machine_id)
        return any(super(SlurmFleet, self).says_it_ends(one.machine_id) for one in job.machines)

    # ------------------------------------------------------------------------------------------- what the cluster tells

    def happened(self, habit: str) -> None:
        self.count(habit)

    def submitted(self, jobs: list[ToyJob]) -> None:
        first = jobs[0]
        if any(job.name == first.name and job.number < first.number for job in self.cluster.jobs):
            self.count("a second of a name")
            return
        demand(first.name in self.orders, f"what is submitted was ordered: {first.name}")
        ids = tuple(one.machine_id for job in jobs for one in job.machines)
        before = tuple(one for one in self.provider.alive(JOB) if one.machine_id not in ids)
        self.checks.bought(self.orders[first.name], before, Answer(first.name, ids))

    def machine_began(self, job: ToyJob, machine: ToyMachine, boot: bytes) -> None:
        self.checks.began(job, machine, boot)
        now = self.cluster.now()
        tag = self.orders[job.name]
        listed = Machine(
            machine.machine_id, OWNER, JOB, job.name, "slurm", tag.offer.machine_type, job.partition.name,
            Reliability.TRANSIENT, price_usd_per_hour(job), MachineLifecycle.RUNNING, now,
        )  # fmt: skip
        self.nodes[machine.machine_id] = SlurmNode(self, listed)
        self.count("machine started")

    def launched(self, job: ToyJob) -> None:
        self.checks.launched(job)

    def nothing_to_start(self, job: ToyJob) -> None:
        self.count("nothing to start from")
        self.checks.nothing_to_start(job)

    def machine_told(self, machine: ToyMachine, left_s: float) -> None:
        self.noticed(machine.machine_id, NoticeLevel.ANNOUNCED, Seconds(left_s))

    def machine_over(self, job: ToyJob, machine: ToyMachine) -> None:
        del job
        self.nodes[machine.machine_id].dies()

    # ------------------------------------------------------------------------------------------------ what happens to it

    def crash(self, for_s: float) -> None:
        if not self.calm:
            self.cluster.crash(for_s)
            self.provider_out_until = max(self.provider_out_until, self.cluster.away_until)

    def _plan_trouble(self) -> None:
        super()._plan_trouble()
        if self.fleet.no_quota is not None:
            (self.site.full if self.slurm.quota_at_once else self.cluster.limited).add(self.fleet.no_quota)
        for at in () if self.fleet.quiet else self.slurm.crashes:
            self.at(at, lambda: self.crash(self.rng.uniform(2.0, 20.0)))

    def _out(self, name: str, length_s: float) -> None:
        super()._out(name, length_s)
        self.cluster.away_until = max(self.cluster.away_until, self.provider_out_until)

    def _deny(self, denied: bool) -> None:
        super()._deny(denied)
        self.site.denied = denied

    def _calm_down(self) -> None:
        super()._calm_down()
        self.answers()
        self.cluster.slurmd_returns()

    def answers(self) -> None:
        """Slurm answers, now."""
        self.cluster.away_until, self.site.denied = 0.0, False

    def storm(self) -> None:
        with ExitStack() as stack:
            if self.slurm.gang:
                stack.enter_context(patch.object(runtime_list, "rules", _in_gangs))
            if not self.slurm.reopens:
                stack.enter_context(kept_records())
            super().storm()

    def leave(self) -> None:
        """Let what is under way end."""
        self.cluster.slurmd_returns()
        self.run(self.time + AFTER_S)


def _in_gangs(name: str) -> RuntimeRules:
    """The rules of a runtime whose machines come as one allocation."""
    found = _RULES(name)

    def slots(job: Job) -> tuple[object, ...]:
        return tuple(replace(slot, gang="all") for slot in found.slots(job))

    return replace(found, slots=slots)


_RULES = runtime_list.rules


def storm(seed: int, bug: str | None = None) -> SlurmFleet:
    """Run one seed; see `fleet.weathered`."""
    return weathered(SlurmFleet, "tests.storms.slurm_fleet", seed, bug, planted_slurm.bug)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--bug", choices=sorted(planted_slurm.BUGS))
    arguments = parser.parse_args()
    world = storm(arguments.seed, arguments.bug)
    print("\n".join(world.said))
    for job in world.cluster.jobs:
        print(
            f"{job.job_id:>5} {job.name:8s} {job.state:10s} {[(one.began_at, one.ended_at) for one in job.stretches]}"
        )
    print(dict(world.tally))


if __name__ == "__main__":
    main()
