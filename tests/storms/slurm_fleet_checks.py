"""What must hold at each event of the Slurm storm, by the cluster's truth: machines, jobs of a name, hours, what is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.storms.fleet_checks import CENT, FleetRunChecks
from tests.storms.fleet_scene import OWNER
from tests.storms.slurm_market import SKEW_S, WitnessedSlurm, price_usd_per_hour
from tests.support.checks import demand
from tests.support.toy_slurm import HOPELESS
from windfall.core import driver
from windfall.events import Command
from windfall.fleet import ReleaseMachine
from windfall.market import Answer, Charge, Machine, MachineLifecycle, Order, Refusal
from windfall.simulation.virtual_time import WALL_START, VirtualClock

if TYPE_CHECKING:
    from tests.storms.fleet_control import Controller
    from tests.storms.slurm_fleet import SlurmFleet
    from tests.support.toy_slurm import ToyJob, ToyMachine

SOON_S = 60.0
"""What nobody may have goes within this time and a poll, if everything answers [s]."""
STRETCH_S = 1.0
"""Slurm counts in whole seconds."""


class SlurmFleetChecks(FleetRunChecks):
    """The fleet's promises, and those that only Slurm's habits can break."""

    world: SlurmFleet

    def __init__(self, world: SlurmFleet) -> None:
        super().__init__(world)
        self.began_in: dict[str, int] = {}
        self.overdue_s: dict[str, float] = {}
        self.over_at: float | None = None
        self.released: set[str] = set()

    # -------------------------------------------------------------------------------------------------------- machines

    def bought(self, order: Order, before: tuple[Machine, ...], answer: Answer) -> None:
        if order.token in self.world.cancels:
            # Slurm has no tokens: what is under way arrives all the same, and is released once it is listed.
            self.world.count("a submission was overtaken by its cancellation")
            self.world.tokens.add(order.token)
            self.world.bought |= set(answer.machine_ids)
            return
        super().bought(order, before, answer)

    def began(self, job: ToyJob, machine: ToyMachine, boot: bytes) -> None:
        """A machine's processes run."""
        world = self.world
        demand(bool(boot), "a machine has what it starts from")
        first = self.began_in.setdefault(job.name, job.number)
        demand(first == job.number, f"one job of a name has machines: {job.name} in {first} and {job.number}")
        twice = [
            one for other, one in world.cluster.living() if one is not machine and one.machine_id == machine.machine_id
        ]
        demand(not twice, f"a machine lives once: {machine.machine_id}")
        living = [
            one.machine_id
            for other, one in world.cluster.living()
            if not other.over and not world.says_it_ends(one.machine_id) and not self._is_leaving(other, one.machine_id)
        ]
        nodes = world.fleet.nodes
        demand(len(living) <= nodes, f"a slot has one live machine: {living}")

    def nothing_to_start(self, job: ToyJob) -> None:
        """A job found nothing in its folder: it has had it before, another of its name has, or it was wiped for good."""
        had = job.run > 1 or job.name in self.began_in or job.name in self.world.cancels
        demand(had or self._is_second(job), f"an order that was accepted has what its machines start from: {job.name}")

    def _is_leaving(self, job: ToyJob, machine_id: str) -> bool:
        """Say whether a machine that no slot needs is being given back: its order is cancelled, or its release decided."""
        world = self.world
        return machine_id in self.released or job.name in world.cancels or job.name in world.cancelled

    def _decided(self, command: Command) -> None:
        super()._decided(command)
        if isinstance(command, ReleaseMachine):
            self.released.add(command.machine_id)

    def created(self, key: str, data: bytes) -> None:
        if key.startswith("gone/"):
            term, machine_id = int(key.removeprefix("gone/")), data.decode()
            job, one = self.world.cluster.find(machine_id)
            demand(not one.alive or job.fenced, f"a machine that lives is not declared gone: {machine_id}")
            if one.alive:
                self.world.count("a machine that lives on is fenced")
            self.world.gone.add(term)

    def launched(self, job: ToyJob) -> None:
        """The batch script of a job runs."""
        jobs = self.world.cluster.jobs
        older = [one.job_id for one in jobs if one.name == job.name and one.number < job.number and not one.over]
        demand(not older, f"a second of a name waits for the first: {job.job_id} for {older}")

    def submits(self, token: str, asked_at: float) -> None:
        """A provider that was asked at a moment is about to submit a job."""
        there = [job.job_id for job in self.world.cluster.queue() if job.name == token and job.accepted_at < asked_at]
        demand(not there, f"what is in the queue is not submitted again: {there} of {token}")

    def answered(self, answer: Answer) -> None:
        """A provider has answered an order; there is none here that the site could never run."""
        demand(answer.refusal is not Refusal.INVALID, f"what Slurm can run is not refused for good: {answer.message}")

    def cancelled(self, token: str) -> None:
        """A provider says that an order is cancelled."""
        left = [job.job_id for job in self.world.cluster.jobs if job.name == token and job.state == "PENDING"]
        demand(not left, f"a cancelled order leaves nothing that waits: {left} of {token}")

    def released_one(self, machine_id: str) -> None:
        """A provider says that a machine is released."""
        job, _ = self.world.cluster.find(machine_id)
        demand(job.over, f"a machine that is released ends: {machine_id}")

    def surplus(self, passed_s: float) -> None:
        """What Slurm holds and nobody may have goes soon, if everything answers."""
        super().surplus(passed_s)
        world = self.world
        answers = world.job_wanted and world.reachable() is not None and world.time >= world.provider_out_until
        for what, promise in self._overdue():
            self.overdue_s[what] = self.overdue_s.get(what, 0.0) + passed_s if answers else 0.0
            demand(self.overdue_s[what] <= SOON_S + world.slurm.poll_s, f"{promise}: {what}")

    def _overdue(self) -> Iterator[tuple[str, str]]:
        first: dict[str, int] = {}
        for job in self.world.cluster.jobs:
            older = first.setdefault(job.name, job.number)
            if job.fenced:
                yield from ((one.machine_id, "a machine whose node is given up ends") for one in job.living)
            if job.state == "PENDING" and older < job.number:
                yield job.job_id, "a second of a name is taken out of the queue"
            elif job.state == "PENDING" and (job.reason in HOPELESS or job.restarts):
                yield job.job_id, "what can never start is taken out of the queue"

    def turned(self, controller: Controller) -> None:
        super().turned(controller)
        if self.world.job_wanted:
            self.over_at = None
        elif self.over_at is None:
            self.over_at = self.world.time

    def _is_second(self, job: ToyJob) -> bool:
        """Say whether an older job has its name."""
        return any(one.name == job.name and one.number < job.number for one in self.world.cluster.jobs)

    # --------------------------------------------------------------------------------------------------------- the end

    def settled(self, state: driver.FleetState) -> None:
        """The job has ended: its ledger is the provider's bill, the bill the cluster's account, and nothing is left."""
        world = self.world
        self._ends_for_a_reason(driver.phase(state))
        left = [job.job_id for job in world.cluster.jobs if not job.over and not self._came_late(job)]
        demand(not left, f"no job is left behind: {left}")
        alive = [one.machine_id for job, one in world.cluster.living() if not job.fenced and not self._came_late(job)]
        demand(not alive, f"no machine is left behind: {alive}")
        bill = self._bill()
        self._ledger(state, bill)
        self._hours(state, bill)
        self.replayed()
        world.leave()
        self._nothing_left()

    def _came_late(self, job: ToyJob) -> bool:
        """Say whether a submission reached Slurm when nobody looked for this job any more; that is for `windfall gc`."""
        assert self.over_at is not None
        late = job.submitted >= WALL_START + self.over_at - self.world.slurm.poll_s
        if late:
            self.world.count("came after the end")
        return late

    def _provider(self) -> WitnessedSlurm:
        """A provider without faults on the same records, of a site that answers."""
        self.world.answers()
        return WitnessedSlurm(self.world, self.world.site, VirtualClock(self.world))

    def _bill(self) -> dict[str, Charge]:
        return {line.machine_id: line for line in self._provider().charges(OWNER, "").charges}

    def _ledger(self, state: driver.FleetState, bill: dict[str, Charge]) -> None:
        sums = driver.summary(state, state.now).money
        known = [line.amount_usd for name, line in bill.items() if state.ledger.knows(name)]
        demand(
            abs(sums.settled_usd - sum(known)) < CENT,
            f"the ledger is the provider's bill: {sums.settled_usd:.6f}, {sum(known):.6f} USD",
        )
        demand(sums.unsettled == 0, f"every machine's bill is closed: {sums.unsettled} are not")
        for line in state.ledger.strays.values():
            job, _ = self.world.cluster.find(line.machine_id)
            demand(self._is_second(job), f"every line is explained: {line}")
            self.world.count("a second of a name is billed")
        demand(sums.disputed == 0, f"and none is disputed: {sums.disputed}")

    def _hours(self, state: driver.FleetState, bill: dict[str, Charge]) -> None:
        """Each line has the hours that the cluster's own account of stretches has."""
        for job in self.world.cluster.jobs:
            for machine in job.machines:
                line = bill.get(machine.machine_id)
                if line is not None:
                    self._line(job, line)
                elif state.ledger.knows(machine.machine_id):
                    self._billed_s(job, machine.machine_id, 0.0)

    def _line(self, job: ToyJob, line: Charge) -> None:
        billed_s = line.ended - line.started
        self._billed_s(job, line.machine_id, billed_s)
        price = line.amount_usd - billed_s / 3600.0 * price_usd_per_hour(job)
        demand(abs(price) < 1e-6, f"hours cost what the site counts: {line.machine_id}")

    def _billed_s(self, job: ToyJob, machine_id: str, billed_s: float) -> None:
        truth_s = sum(one.ended - one.started for one in job.stretches if one.ended is not None)
        if abs(billed_s - truth_s) <= STRETCH_S:
            return
        says = f"{machine_id}, {billed_s:.1f} for {truth_s} s"
        if job.undone and job.ended is not None:
            most_s = job.ended - job.stretches[0].started + SKEW_S + STRETCH_S
            demand(billed_s <= most_s, f"what starts again is billed until then at most: {says}")
            self.world.count("billed after a second start")
            return
        demand(not self.world.slurm.site.accounts, f"hours are the site's own: {says}")
        # Its last processes may have been seen when the site no longer counted them.
        most_s = max(WALL_START + job.cleared_at - job.stretches[0].started, truth_s) + SKEW_S + STRETCH_S
        demand(billed_s <= most_s, f"nothing is billed that nobody saw: {says}")
        self.world.count("billed until it was last seen")

    def _nothing_left(self) -> None:
        world, provider = self.world, self._provider()
        for machine in provider.list(OWNER):
            if machine.lifecycle is not MachineLifecycle.GONE:
                demand(
                    self._came_late(world.cluster.find(machine.machine_id)[0]),
                    f"nothing is in the queue: {machine.machine_id}",
                )
                provider.release(machine.machine_id)
        world.run(world.time + 30.0)
        living = [one.machine_id for _, one in world.cluster.living()]
        demand(not living, f"nothing lives on: {living}")
        waiting = [job.job_id for job in world.cluster.jobs if not job.over]
        demand(not waiting, f"the queue holds nothing of ours: {waiting}")
