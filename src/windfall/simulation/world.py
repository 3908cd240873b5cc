"""Markets and jobs in one virtual time.

A world is given markets and jobs separately.  A market has many types of machines in many zones, each with prices, a
capacity, a billing rule and a way of taking machines back; a job has a driver and a runtime (`engine_runtime`).  Several jobs
may buy from one market, and then compete for its machines.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from windfall.errors import Infeasible
from windfall.events import Fact
from windfall.jobs import Job, Measurement
from windfall.market import BootSpec, Machine, Order
from windfall.simulation.engine_fleet import SimulatedFleet
from windfall.simulation.engine_journal import JournalRows
from windfall.simulation.engine_runtime import FleetCalls, SimulatedRuntime
from windfall.simulation.machine_chances import MachineChances
from windfall.simulation.simulated_provider import SimulatedMarket, SimulatedProvider
from windfall.simulation.virtual_time import Timeline
from windfall.structs import Struct
from windfall.terms import NoticeLevel, Seconds


class ProviderMarket(Struct, frozen=True):
    """What one provider sells.

    Attributes:
        pools: its machine types and zones.
        bill_lag_s: a charge is settled after a draw from this range [s].
    """

    provider: str
    pools: tuple[SimulatedMarket, ...]
    bill_lag_s: tuple[float, float] = (0.0, 0.0)


class SimulatedJob(Struct, frozen=True):
    """A job of a world.

    Attributes:
        job: as the driver gets it.
        runtime: makes what runs on its machines.
        chances: of its machines, where the market leaves them to the job.
        providers: where it may buy; empty for everywhere.
        known: facts that the driver starts with, such as estimates.
        measurements: of earlier runs.
        after_s: delay of its submission [s].
    """

    job: Job
    runtime: Callable[[Timeline, FleetCalls], SimulatedRuntime]
    chances: MachineChances | None = None
    providers: tuple[str, ...] = ()
    known: tuple[Fact, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    journal: bool = True
    after_s: float = 0.0


class World:
    """Virtual time, the providers' markets, and the jobs that buy from them and compete for their machines.

    Attributes:
        timeline: of all jobs.
        providers: by name.
        fleets: by the job's id.
    """

    def __init__(
        self,
        markets: Sequence[ProviderMarket],
        jobs: Sequence[SimulatedJob] = (),
        *,
        seed: int = 0,
        timeline: Timeline | None = None,
    ) -> None:
        """Open the markets and submit the jobs.

        Args:
            markets: one for each provider.
            jobs: buy from them; more may be submitted later.
            seed: of the markets' chances.
            timeline: a new one if None.
        """
        self.timeline = Timeline() if timeline is None else timeline
        self._lag_s = max((market.bill_lag_s[1] for market in markets), default=0.0)
        self.providers = {
            market.provider: SimulatedProvider(
                market.provider,
                self.timeline,
                market.pools,
                random.Random(f"{market.provider} {seed}"),  # noqa: S311 - a simulation
                listener=self,
                bill_lag_s=market.bill_lag_s,
                allocate_s=self._allocate_s,
                seed=seed,
            )
            for market in sorted(markets, key=lambda market: market.provider)
        }
        assert len(self.providers) == len(markets), "a provider has one market"
        self.fleets: dict[str, SimulatedFleet] = {}
        self._fleet_of_machine: dict[str, SimulatedFleet] = {}
        for job in jobs:
            self.submit(job)

    def submit(self, job: SimulatedJob) -> SimulatedFleet:
        """Submit a job, whose id no other job of this world has."""
        assert job.job.job_id not in self.fleets, "a job is submitted once"
        names = job.providers or tuple(self.providers)
        fleet = self.fleets[job.job.job_id] = SimulatedFleet(
            job.job,
            self.timeline,
            {name: self.providers[name] for name in names},
            partial(job.runtime, self.timeline),
            rows=JournalRows() if job.journal else None,
            chances=job.chances,
        )
        self.timeline.at(job.after_s, partial(fleet.submit, job.known, job.measurements))
        return fleet

    def run(self) -> None:
        """Advance time until every job is over and billed.

        Raises:
            Infeasible: a job can never finish.
        """
        timeline = self.timeline
        for job_id, fleet in self.fleets.items():
            while not fleet.over:
                if not timeline.step():
                    raise Infeasible(f"the simulation has no more events, and {job_id} is not done")
        timeline.run(timeline.time + self._lag_s)  # the providers close their bills

    # -------------------------------------------------------------------------------------------- the providers' listener

    def _allocate_s(self, order: Order, which: int) -> float:
        return self.fleets[order.job_id].allocate_s(order, which)

    def started(self, machine: Machine, boot: BootSpec) -> None:
        """Start a machine of a job."""
        del boot
        fleet = self._fleet_of_machine[machine.machine_id] = self.fleets[machine.job_id]
        fleet.started(machine)

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        """Deliver the notice of a machine's end; other notices do not occur here."""
        assert level is NoticeLevel.ANNOUNCED, "no notice is withdrawn here"
        assert left_s is not None, "an announced end has a time"
        self._fleet_of_machine[machine_id].noticed(machine_id, left_s)

    def ended(self, machine: Machine) -> None:
        """End a machine of a job."""
        self._fleet_of_machine.pop(machine.machine_id, None)
        self.fleets[machine.job_id].ended(machine)
