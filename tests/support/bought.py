"""A small world in virtual time: the real conductor buys on the simulated market, for machines that do as they are told.

Nothing goes wrong by itself here: tests say what does.  Machines report once a second; one that trains makes a step a
second, saves at a notice and every ten steps, and takes the run when the one before has let go or is gone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from windfall import codec
from windfall.channels.direct import DirectChannel
from windfall.control.job_loop import JobLoop, JobLoopPorts
from windfall.control.provider_calls import PollingPace
from windfall.core import driver
from windfall.errors import ControllerReplaced
from windfall.events import Row
from windfall.fleet import Directive, Lifetime, MachineStatus, Report
from windfall.jobs import Job, Resources
from windfall.market import Answer, BootSpec, Machine, Order
from windfall.runtimes.checkpoint import CheckpointRuntime
from windfall.simulation.simulated_provider import SimulatedMarket, SimulatedProvider
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import WALL_START, Timeline, VirtualClock
from windfall.terms import (
    CheckpointRef,
    Holder,
    NoticeLevel,
    Outcome,
    Reliability,
    RunState,
    SaveKind,
    Seconds,
    Step,
    Term,
    WallTime,
)

OWNER, JOB = "home", "job"
PACE = PollingPace(
    turn_s=Seconds(2.0), list_s=Seconds(4.0), offers_s=Seconds(10.0), bill_s=Seconds(60.0), run_s=Seconds(4.0),
    estimates_s=Seconds(300.0), silent_after_s=Seconds(30.0),
)  # fmt: skip
BOOT_S, TICK_S, SAVE_EVERY = 3.0, 1.0, 10


def market(zone: str = "a", price: float = 1.0, **more: object) -> SimulatedMarket:
    """One type of machine in a zone: two seconds from order to start."""
    words = {"notice_s": Seconds(30.0), "allocate_s": (2.0, 2.0), "startup_s": Seconds(2.0)} | more
    return SimulatedMarket("m4", zone, Reliability.TRANSIENT, ValueSeries.constant(price), 4.0, **words)  # type: ignore[arg-type]


def job(**more: object) -> Job:
    """A job for one machine."""
    return Job(**({"job_id": JOB, "name": JOB, "user": "ada", "run_url": "memory://r", "command": ("train",),
                   "resources": (Resources(),)} | more))  # type: ignore[arg-type]  # fmt: skip


@dataclass
class Worker:
    """What lives on a machine: a keeper that is obedient, and a script that counts."""

    world: World
    machine: Machine
    status: MachineStatus = MachineStatus.SETUP
    step: int = 0
    sequence: int = 0
    deadline: float | None = None
    alive: bool = True
    sdk_inactive: bool = False
    hung: bool = False

    @property
    def name(self) -> str:
        return self.machine.machine_id

    def tick(self) -> None:
        """A second of its life."""
        if not self.alive:
            return
        told = self.report()
        if told is not None and self.status is not MachineStatus.SETUP:
            self.execute(told)
        if self.status is MachineStatus.TRAINING and not self.hung:
            self.world.trained(self)
        self.world.at(TICK_S, self.tick)

    def hangs(self) -> None:
        """It runs, is billed, and does nothing more."""
        self.sdk_inactive = self.hung = True

    def report(self) -> Directive | None:
        """Tell the controller how it stands; None if nobody answers."""
        self.sequence += 1
        left_s = None if self.deadline is None else Seconds(self.deadline - self.world.time)
        training = self.status is MachineStatus.TRAINING
        report = Report(
            self.name, self.sequence, "life", self.status, step=Step(self.step) if training else None,
            level=None if left_s is None else NoticeLevel.ANNOUNCED, preemption_in_s=left_s, address=f"{self.name}:1",
        )  # fmt: skip
        return None if self.sdk_inactive else self.world.deliver(report)

    def execute(self, told: Directive) -> None:
        """Take part, or wait."""
        if self.deadline is None:
            self.status = MachineStatus.TRAINING if self.world.may_train(self, told) else MachineStatus.WAITING


class Provider(SimulatedProvider):
    """The market, whose calls a test may bend: `bent["order"](call)` stands between controller and market."""

    def __init__(self, world: World, markets: tuple[SimulatedMarket, ...]) -> None:
        super().__init__("sim", world, markets, random.Random("market"), listener=world)
        self.bent: dict[str, Callable[[Callable[[], object]], object]] = {}
        self.orders: list[Order] = []
        self.released: list[str] = []
        self.born: list[str] = []

    def order(self, order: Order, boot: BootSpec) -> Answer:
        self.orders.append(order)
        return self._bend("order", lambda: super(Provider, self).order(order, boot))  # type: ignore[return-value]

    def list(self, owner: str) -> tuple[Machine, ...]:
        return self._bend("list", lambda: super(Provider, self).list(owner))  # type: ignore[return-value]

    def release(self, machine_id: str) -> None:
        self.released.append(machine_id)
        self._bend("release", lambda: super(Provider, self).release(machine_id))

    def _bend(self, name: str, call: Callable[[], object]) -> object:
        return self.bent[name](call) if name in self.bent else call()


@dataclass
class _Journal:
    """`ports.Journal` in memory, fenced by the newest controller."""

    world: World
    term: Term

    def append(self, line: str) -> None:
        if self.term < self.world.term:
            raise ControllerReplaced("another controller took the installation")
        self.world.lines.append(line)

    def rows(self) -> list[str]:
        return list(self.world.lines)


@dataclass
class _Watch:
    """`checkpoint.RunWatch` of the world's run."""

    world: World

    def observe(self) -> RunState | None:
        return self.world.run_state()

    def declare_gone(self, machine_id: str) -> None:
        if self.world.holder == machine_id:
            self.world.holder = None

    def stop(self, *, now: bool, reason: str) -> None:
        self.world.outcome = Outcome.WAITING


@dataclass
class Tap:
    """A controller's process: its conductor turns until it is killed."""

    world: World
    term: Term
    job_loop: JobLoop
    direct: DirectChannel
    dead: bool = False

    def turn(self) -> None:
        if self.dead:
            return
        try:
            wait_s = self.job_loop.turn()
        except ControllerReplaced:
            self.dead = True
            return
        if not self.dead:
            self.world.at(max(wait_s, 0.05), self.turn)


class World(Timeline):
    """Time, the market, the machines, the run, and the controllers."""

    def __init__(self, wanted: Job, *markets: SimulatedMarket, steps: int = 10**9) -> None:
        super().__init__()
        self.job, self.steps = wanted, steps
        self.lines: list[str] = []
        self.term = Term(0)
        self.controllers: list[Tap] = []
        self.workers: dict[str, Worker] = {}
        self.lives: dict[str, tuple[float, float | None]] = {}
        self.holder: str | None = None
        self.run_term, self.saved, self.outcome = 0, 0, Outcome.RUNNING
        self.executed = 0
        self.provider = Provider(self, markets or (market(),))
        self.pool: list[Lifetime] = []
        self.told: list[str] = []

    # ------------------------------------------------------------------------------------------------ controllers

    def controller(self) -> Tap:
        """Start one; it takes the installation."""
        self.term = Term(self.term + 1)
        direct = DirectChannel(lambda: None)
        clock = VirtualClock(self)
        ports = JobLoopPorts(
            controller=self.term, owner=OWNER, clock=clock, journal=_Journal(self, self.term),
            providers={"sim": self.provider}, channels=(direct,), runtime=CheckpointRuntime(_Watch(self)),
            boot=lambda order: BootSpec(("keeper",)), notify=lambda event, message: None, rates=tuple,
            record_lifetimes=self.pool.extend, log=self.told.append, pace=PACE,
        )  # fmt: skip
        tap = Tap(self, self.term, JobLoop(self.job, ports), direct)
        self.controllers.append(tap)
        tap.turn()
        return tap

    def deliver(self, report: Report) -> Directive | None:
        alive = [tap for tap in self.controllers if not tap.dead]
        return alive[-1].direct.deliver(report) if alive else None

    @property
    def summary(self) -> driver.JobSummary:
        return self.controllers[-1].job_loop.summary()

    def rows(self) -> list[Row]:
        return [codec.row_from_line(line) for line in self.lines]

    # --------------------------------------------------------------------------------------------------- the machines

    def started(self, machine: Machine, boot: BootSpec) -> None:
        worker = self.workers[machine.machine_id] = Worker(self, machine)
        self.provider.born.append(machine.machine_id)
        self.lives[machine.machine_id] = (self.time, None)
        self.at(0.2, worker.tick)
        self.at(BOOT_S, lambda: setattr(worker, "status", MachineStatus.WAITING))

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        worker = self.workers[machine_id]
        began, told = self.lives[machine_id]
        if left_s is not None and told is None:
            self.lives[machine_id] = (began, self.time)
            worker.deadline = self.time + left_s
            if self.holder == machine_id:
                self.saved, self.holder = worker.step, None
            if worker.status is MachineStatus.TRAINING:
                worker.status = MachineStatus.WAITING

    def ended(self, machine: Machine) -> None:
        worker = self.workers.get(machine.machine_id)
        if worker is None:
            return
        worker.alive = False
        began, told = self.lives[machine.machine_id]
        self.lives[machine.machine_id] = (began, self.time if told is None else told)

    def lifetime_source(self) -> list[str]:
        """Machines that are promised or run, by the market's truth."""
        return [machine.machine_id for machine in self.provider.alive(JOB)]

    def training(self) -> list[str]:
        """Machines whose script runs."""
        return [
            worker.name for worker in self.workers.values() if worker.alive and worker.status is MachineStatus.TRAINING
        ]

    # -------------------------------------------------------------------------------------------------------- the run

    def may_train(self, worker: Worker, told: Directive) -> bool:
        """Whether it leads the run, or is a member of a generation; taking it restores what was saved."""
        if self.outcome is not Outcome.RUNNING or str(told.desired_state) != "run":
            return False
        if told.generation:
            names = [peer.machine_id for peer in told.peers]
            return worker.name in names and all(self.workers[name].alive for name in names)
        there = self.workers.get(self.holder or "")
        if there is None or not there.alive:
            self.holder, self.run_term, worker.step = worker.name, self.run_term + 1, self.saved
        return self.holder == worker.name

    def trained(self, worker: Worker) -> None:
        """A step was made."""
        self.executed += 1
        worker.step += 1
        if worker.step % SAVE_EVERY == 0 or worker.step == self.steps:
            self.saved = max(self.saved, worker.step)
        if worker.step >= self.steps:
            self.outcome, self.holder = Outcome.DONE, None
            worker.status = MachineStatus.WAITING

    def run_state(self) -> RunState | None:
        if not self.run_term:
            return None
        name = self.holder
        holder = None if name is None else Holder(name, name, 1, 1, 0, name)
        checkpoint = CheckpointRef(
            f"p{self.saved}", Step(self.saved), SaveKind.INSURANCE, Term(1), 0, 1, "manifest", "digest", WallTime(0.0)
        )
        return RunState(
            "run",
            Term(self.run_term),
            self.outcome,
            holder,
            WallTime(WALL_START),
            Seconds(10.0),
            checkpoints=(checkpoint,),
        )

    # ------------------------------------------------------------------------------------------------------- passing

    def until(self, done: Callable[[], bool], limit_s: float = 600.0) -> None:
        """Let time pass until something is so."""
        end = self.time + limit_s
        while not done():
            soon = self.next_at()
            assert soon is not None and soon <= end, f"not within {limit_s:g} s: {self.summary.message}"  # noqa: PT018
            self.run(soon)

    def trains(self, count: int = 1, limit_s: float = 600.0) -> None:
        """Let time pass until so many machines train."""
        self.until(lambda: len(self.training()) == count, limit_s)
