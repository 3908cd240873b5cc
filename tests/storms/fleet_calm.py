"""A large fleet on a market without faults: what a decision costs, and what is kept, when hundreds of machines come and go."""

from __future__ import annotations

import random
from collections.abc import Iterator

from windfall import codec
from windfall.channels.direct import DirectChannel
from windfall.control.conductor import Conductor, ConductorPorts
from windfall.control.looking import Pace
from windfall.events import Row
from windfall.fleet import Doing, Report
from windfall.jobs import Job, Want
from windfall.market import Boot, Ended, Machine
from windfall.simulation.clock import Timeline, VirtualClock
from windfall.simulation.provider import Market, SimulatedProvider
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
    """`ports.RunWatch` of a run that nobody has taken."""

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
        price = ((0.0, 1.0),)
        market = Market("m4", "a", Reliability.TRANSIENT, price, 3.0, Seconds(30.0), allocate_s=(1.0, 5.0))
        self.provider = SimulatedProvider("sim", self.timeline, (market,), random.Random(1), tenant=self)
        self.living: dict[str, int] = {}
        self.direct, self.journal = DirectChannel(lambda: None), Rows(keep)
        self.clock = VirtualClock(self.timeline)
        pause = Seconds(turn_s)
        self.conductor = Conductor(
            Job(JOB, JOB, "user", "memory://run", ("train",), (Want(),), nodes=nodes),
            ConductorPorts(
                controller=Term(1), owner=OWNER, clock=self.clock, journal=self.journal,
                providers={"sim": self.provider}, channels=(self.direct,), run=NoRun(), boot=lambda _: Boot(("keeper",)),
                notify=lambda *_: None, rates=tuple, record_lives=lambda _: None, say=lambda _: None,
                pace=Pace(pause, pause, Seconds(600.0), Seconds(600.0), Seconds(600.0), Seconds(3600.0), Seconds(4 * turn_s)),
            ),
        )  # fmt: skip
        self.turn_s = turn_s

    def started(self, machine: Machine, boot: Boot) -> None:
        del boot
        self.living[machine.machine_id] = 0
        if self.life_s is not None:
            life_s = self.rng.expovariate(1.0 / self.life_s)
            self.timeline.at(life_s, lambda: self.provider.end(machine.machine_id, Ended.PREEMPTED))

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        pass

    def ended(self, machine: Machine) -> None:
        self.living.pop(machine.machine_id, None)

    def run(self, duration_s: float) -> None:
        """Turn every `turn_s`; before each turn every machine reports that it is ready."""
        until = self.timeline.time + duration_s
        while self.timeline.time < until:
            for machine_id in self.living:
                self.living[machine_id] += 1
                said = Report(machine_id, self.living[machine_id], "life", Doing.WAITING, address=f"{machine_id}:1")
                self.direct.deliver(said)
            self.conductor.turn()
            self.timeline.pass_time(self.turn_s)
