"""A large fleet on a market without faults: what a decision costs, and what is kept, when hundreds of machines come and go."""

from __future__ import annotations

import random
from collections.abc import Iterator

from windfall import codec
from windfall.channels.direct import DirectChannel
from windfall.control.job_loop import JobLoop, JobLoopPorts
from windfall.control.provider_calls import PollingPace
from windfall.events import Row
from windfall.fleet import MachineStatus, Report
from windfall.jobs import Job, Resources
from windfall.market import BootSpec, Machine, MachineEndCause
from windfall.runtimes.checkpoint import CheckpointRuntime
from windfall.simulation.simulated_provider import SimulatedMarket, SimulatedProvider
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import Timeline, VirtualClock
from windfall.terms import NoticeLevel, Reliability, RunState, Seconds, Term

OWNER, JOB = "calm", "job"


class Rows:
    """`ports.Journal` that keeps the newest rows."""

    def __init__(self, keep: int) -> None:
        self.keep, self.lines, self.count = keep, [], 0

    def append(self, line: str) -> None:
        self.count += 1
        self.lines = [*self.lines, line][-self.keep :]

    def rows(self) -> Iterator[str]:
        return iter(())

    def last(self, count: int) -> list[Row]:
        return [codec.row_from_line(line) for line in self.lines[-count:]]


class NoRun:
    """`checkpoint.RunWatch` of a run without a holder."""

    def observe(self) -> RunState | None:
        return None

    def declare_gone(self, machine_id: str) -> None:
        pass

    def stop(self, *, now: bool, reason: str) -> None:
        pass


class Calm:
    """One conductor, one market, machines that report and nothing else."""

    def __init__(self, nodes: int, *, turn_s: float, life_s: float | None = None, keep: int = 100) -> None:
        self.timeline, self.rng, self.life_s = Timeline(), random.Random(nodes), life_s
        price = ValueSeries.constant(1.0)
        market = SimulatedMarket("m4", "a", Reliability.TRANSIENT, price, 3.0, Seconds(30.0), allocate_s=(1.0, 5.0))
        self.provider = SimulatedProvider("sim", self.timeline, (market,), random.Random(1), listener=self)
        self.lifetime_source: dict[str, int] = {}
        self.direct, self.journal = DirectChannel(lambda: None), Rows(keep)
        self.clock = VirtualClock(self.timeline)
        pause = Seconds(turn_s)
        self.job_loop = JobLoop(
            Job(JOB, JOB, "user", "memory://run", ("train",), (Resources(),), nodes=nodes),
            JobLoopPorts(
                controller=Term(1), owner=OWNER, clock=self.clock, journal=self.journal,
                providers={"sim": self.provider}, channels=(self.direct,),
                runtime=CheckpointRuntime(NoRun()), boot=lambda _: BootSpec(("node-agent",)),
                notify=lambda *_: None, rates=tuple, record_lifetimes=lambda _: None, log=lambda _: None,
                pace=PollingPace(
                    pause, pause, Seconds(600.0), Seconds(600.0), Seconds(600.0), Seconds(3600.0), Seconds(4 * turn_s)
                ),
            ),
        )  # fmt: skip
        self.turn_s = turn_s

    def started(self, machine: Machine, boot: BootSpec) -> None:
        del boot
        self.lifetime_source[machine.machine_id] = 0
        if self.life_s is not None:
            life_s = self.rng.expovariate(1.0 / self.life_s)
            self.timeline.at(life_s, lambda: self.provider.end(machine.machine_id, MachineEndCause.PREEMPTED))

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        pass

    def ended(self, machine: Machine) -> None:
        self.lifetime_source.pop(machine.machine_id, None)

    def run(self, duration_s: float) -> None:
        """Turn every `turn_s`; before each turn every machine reports that it is ready."""
        until = self.timeline.time + duration_s
        while self.timeline.time < until:
            for machine_id in self.lifetime_source:
                self.lifetime_source[machine_id] += 1
                said = Report(
                    machine_id,
                    self.lifetime_source[machine_id],
                    "life",
                    MachineStatus.WAITING,
                    address=f"{machine_id}:1",
                )
                self.direct.deliver(said)
            self.job_loop.turn()
            self.timeline.pass_time(self.turn_s)
