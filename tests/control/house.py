"""One job of a controller in virtual time: a job loop over a simulated market, a journal in memory, faults on request."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from windfall.control.job_loop import JobLoop, JobLoopPorts
from windfall.control.provider_calls import PollingPace
from windfall.core import driver
from windfall.errors import DatabaseUnreachable, ProviderUnreachable, StoreUnreachable
from windfall.fleet import Directive, Event, MachineStatus, Report
from windfall.jobs import Job, Resources
from windfall.market import BootSpec, Machine, MachineLifecycle, Order
from windfall.ports import Provider
from windfall.runtimes.checkpoint import CheckpointRuntime
from windfall.simulation.simulated_provider import SimulatedMarket, SimulatedProvider
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import Timeline, VirtualClock
from windfall.terms import Holder, Outcome, Reliability, RunState, Seconds, Term, WallTime

OWNER = "home"
PACE = PollingPace(
    turn_s=Seconds(1.0), list_s=Seconds(2.0), offers_s=Seconds(5.0), bill_s=Seconds(60.0), settle_s=Seconds(10.0),
    run_s=Seconds(1.0), estimates_s=Seconds(60.0), silent_after_s=Seconds(20.0),
)  # fmt: skip


def a_job(**changes: Any) -> Job:
    """A job that any machine does."""
    return Job("gpt-1", "gpt", "ada", "memory://run", ("train",), (Resources(),), **changes)


def run_state(outcome: Outcome, holder: str | None, *, term: int = 1) -> RunState:
    """What a run's log says."""
    who = None if holder is None else Holder(holder, "boot", 1, 1, 1, "nonce")
    return RunState("run", Term(term), outcome, who, WallTime(0.0), Seconds(30.0))


@dataclass
class Faults:
    """What goes wrong, by the name of a call: `unsent`, `lost` (done, but the answer does not come), or nothing."""

    plan: dict[str, list[str | None]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    out: set[str] = field(default_factory=set)

    def meet(self, name: str, error: type[Exception], call: Callable[[], Any]) -> Any:
        """Execute a call, or fail it."""
        self.calls[name] += 1
        waiting = self.plan.get(name, [])
        fault = waiting.pop(0) if waiting else None
        if fault == "unsent" or name in self.out:
            raise error(f"planted: {name} was not sent")
        answer = call()
        if fault == "lost":
            raise error(f"planted: the answer to {name} was lost")
        return answer


class Line:
    """A connection on which faults happen."""

    def __init__(self, there: object, faults: Faults, error: type[Exception]) -> None:
        self._there, self._faults, self._error = there, faults, error

    def __getattr__(self, name: str) -> Any:
        there = getattr(self._there, name)
        if not callable(there) or name == "capabilities":
            return there
        return lambda *given, **named: self._faults.meet(name, self._error, lambda: there(*given, **named))


@dataclass
class Rows:
    """A journal that outlives controllers."""

    faults: Faults
    lines: list[str] = field(default_factory=list)

    def append(self, line: str) -> None:
        self.faults.meet("append", DatabaseUnreachable, lambda: self.lines.append(line))

    def rows(self, after: int = 0) -> Any:
        return iter(self.lines[after:])


@dataclass
class Run:
    """A run whose log is set by the test."""

    state: RunState | None = None
    stops: list[tuple[bool, str]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)

    def observe(self) -> RunState | None:
        return self.state

    def declare_gone(self, machine_id: str) -> None:
        self.gone.append(machine_id)

    def stop(self, *, now: bool, reason: str) -> None:
        self.stops.append((now, reason))


@dataclass
class Voices:
    """A channel on which a test's machines report."""

    name: str = "direct"
    waiting: list[Report] = field(default_factory=list)
    directives: dict[str, Directive] = field(default_factory=dict)

    def receive(self) -> tuple[Report, ...]:
        heard, self.waiting = tuple(self.waiting), []
        return heard

    def send(self, directives: dict[str, Directive]) -> None:
        self.directives = dict(directives)


class House:
    """A job, its market and its controllers, one after the other."""

    def __init__(self, *, bill_lag_s: float = 0.0, capacity: int | None = None, **job: Any) -> None:
        self.timeline = Timeline()
        self.clock = VirtualClock(self.timeline)
        market = SimulatedMarket(
            "m4", "a", Reliability.TRANSIENT, ValueSeries.constant(0.36), 1.2, Seconds(120.0), allocate_s=(3.0, 3.0)
        )  # fmt: skip
        lag = (bill_lag_s, bill_lag_s)
        self.market = SimulatedProvider("sim", self.timeline, (market,), random.Random(1), bill_lag_s=lag)
        if capacity is not None:
            self.market.limits.capacity[market.key] = capacity
        self.faults = Faults()
        self.journal, self.run, self.voices = Rows(self.faults), Run(), Voices()
        self.providers: dict[str, Provider] = {"sim": Line(self.market, self.faults, ProviderUnreachable)}  # type: ignore[dict-item]
        self.job = a_job(**job)
        self.logged: list[str] = []
        self.notified: list[Event] = []
        self.lives = 0
        self.bought: list[str] = []
        self.term = 0
        self.sequence = 0

    def ports(self) -> JobLoopPorts:
        watch = CheckpointRuntime(Line(self.run, self.faults, StoreUnreachable))  # type: ignore[arg-type]
        return JobLoopPorts(
            controller=Term(self.term), owner=OWNER, clock=self.clock, journal=self.journal,
            providers=self.providers, channels=(self.voices,), runtime=watch, boot=self._boot,
            notify=lambda event, _: self.notified.append(event), rates=tuple,
            record_lifetimes=lambda _: self.faults.meet("record_lifetimes", DatabaseUnreachable, lambda: None),
            log=self.logged.append, pace=PACE,
        )  # fmt: skip

    def _boot(self, order: Order) -> BootSpec:
        self.bought.append(order.token)
        return BootSpec(("node-agent",))

    def job_loop(self) -> JobLoop:
        """Start a controller with the existing journal."""
        self.term += 1
        return JobLoop(self.job, self.ports())

    def turns(self, job_loop: JobLoop, silent_s: float) -> int:
        """Run turns at the job loop's pace for a while; return their number."""
        until, count = self.timeline.time + silent_s, 0
        while self.timeline.time < until:
            pause_s, count = job_loop.turn(), count + 1
            self.timeline.pass_time(min(max(pause_s, 0.01), until - self.timeline.time))
        job_loop.turn()
        return count + 1

    def works(self, silent_s: float) -> JobLoop:
        """Run turns, and restart the job from its journal after each error, as a running job does."""
        until = self.timeline.time + silent_s
        while True:
            try:
                job_loop = self.job_loop()
                self.turns(job_loop, until - self.timeline.time)
            except DatabaseUnreachable:
                self.timeline.pass_time(0.5)
            else:
                return job_loop

    def speaks(self, machine_id: str, status: MachineStatus = MachineStatus.TRAINING, **logged: Any) -> None:
        """A machine reports."""
        self.sequence += 1
        self.voices.waiting.append(Report(machine_id, self.sequence, "life", status, **logged))

    @property
    def alive(self) -> tuple[Machine, ...]:
        """The machines that are paid for, according to the market."""
        return self.market.alive(self.job.job_id)

    @property
    def made(self) -> int:
        """How many machines the market ever sold."""
        return self.market._count

    def trains(self, job_loop: JobLoop) -> str:
        """Run until a machine trains; return its name."""
        self.turns(job_loop, 10.0)
        (machine,) = self.alive
        assert machine.lifecycle is MachineLifecycle.RUNNING
        self.speaks(machine.machine_id)
        self.run.state = run_state(Outcome.RUNNING, machine.machine_id)
        self.turns(job_loop, 2.0)
        assert driver.phase(job_loop.state) == "running"
        return machine.machine_id
