"""What the driver costs as a job grows: time per machine of a bulk loss, memory over a month of replacements."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable

from benchmarks.harness import Benchmark
from windfall.core import driver
from windfall.events import Fact
from windfall.fleet import (
    ChargesObserved,
    ControllerStarted,
    JobSubmitted,
    ListingCompleted,
    MachineReported,
    MachinesMissing,
    MachinesObserved,
    MachineStatus,
    OffersObserved,
    OrderAnswered,
    PlaceOrder,
    Report,
)
from windfall.jobs import Job, Resources
from windfall.market import Charge, Machine, MachineEndCause, MachineLifecycle, Offer, Order
from windfall.structs import replace
from windfall.terms import Reliability, Step, Term

FEW, MANY = 20, 2000
TIME_LIMIT, MEMORY_LIMIT = 1.5, 1.1
HOURS_WEEK, HOURS_MONTH, HOURS_LOOKED_AT, NODES_MONTH = 7 * 24, 30 * 24, 60, 20
OFFER = Offer("local", "large", "a", 0.36, 1.2, Reliability.TRANSIENT, 120.0, 0.0, startup_s=20.0)


class Market:
    """The least that sells machines to one job."""

    def __init__(self, nodes: int) -> None:
        self.now = 1e9
        self.state = driver.initial_state()
        self.machines: dict[str, Machine] = {}
        self.made = 0
        job = Job("j", "job", "ada", "file:///r", ("train",), (Resources(),), nodes=nodes)
        self.ordered = self.happens(
            JobSubmitted(job, "o"), ControllerStarted(1), OffersObserved((OFFER,)), ListingCompleted("local")
        )

    def happens(self, *facts: Fact) -> list[Order]:
        """React; return what is ordered."""
        self.now += 1.0
        self.state, _, commands = driver.react(self.state, self.now, facts)
        return [command.order for command in commands if isinstance(command, PlaceOrder)]

    def comes(self) -> None:
        """What was ordered comes, and trains."""
        (order,) = self.ordered
        made = [self._machine(order) for _ in range(order.count_max)]
        self.happens(OrderAnswered(order.token, tuple(machine.machine_id for machine in made)))
        self.happens(MachinesObserved(tuple(made)))
        self.happens(*(self._heard(machine) for machine in made))

    def _machine(self, order: Order) -> Machine:
        self.made += 1
        name = f"m{self.made}"
        self.machines[name] = Machine(
            name,
            "o",
            "j",
            order.token,
            "local",
            "large",
            "a",
            Reliability.TRANSIENT,
            0.36,
            MachineLifecycle.RUNNING,
            self.now,
        )
        return self.machines[name]

    def _heard(self, machine: Machine) -> MachineReported:
        # Each machine gets further than all before it: a job whose machines do nothing would be given up.
        step = Step(self.made)
        status = MachineStatus.TRAINING
        report = Report(machine.machine_id, 1, "a", status, Term(1), step, step, address="x:1")
        return MachineReported(report, "direct")

    def loses(self, names: list[str]) -> list[Machine]:
        """Machines are taken, all at once."""
        gone = [
            replace(
                self.machines.pop(name),
                lifecycle=MachineLifecycle.GONE,
                ended=self.now,
                cause=MachineEndCause.PREEMPTED,
            )
            for name in names
        ]
        self.ordered = self.happens(MachinesObserved(tuple(gone)))
        return gone


def per_machine_s(nodes: int) -> float:
    """Time per machine to buy all, lose 30 % in one batch, and replace them, a fifth of a second of work at least [s]."""
    repeats = max(MANY // nodes, 1)
    started = time.perf_counter()
    for _ in range(repeats):
        market = Market(nodes)
        market.comes()
        market.loses(list(market.machines)[: nodes * 3 // 10])
        market.comes()
    return (time.perf_counter() - started) / repeats / nodes


def memory_bytes(hours: int) -> float:
    """The most that is held after so many hours in each of which every machine is taken once [B].

    The ledger forgets in strides, so the most of the last `HOURS_LOOKED_AT` counts; what Python keeps for itself to use
    again is given back before each look.
    """
    gc.collect()
    tracemalloc.start()
    try:
        market = Market(NODES_MONTH)
        forgotten: list[Machine] = []
        most = 0
        for hour in range(hours):
            market.comes()
            market.now += 3600.0
            gone = market.loses(list(market.machines))
            market.happens(
                MachinesMissing(tuple(machine.machine_id for machine in forgotten)), *(_billed(one) for one in gone)
            )
            forgotten = gone
            if hour >= hours - HOURS_LOOKED_AT:
                gc.collect()
                most = max(most, tracemalloc.get_traced_memory()[0])
        return float(most)
    finally:
        tracemalloc.stop()


def _billed(machine: Machine) -> ChargesObserved:
    assert machine.started is not None and machine.ended is not None  # noqa: PT018 - both or neither
    amount = (machine.ended - machine.started) / 3600.0 * machine.price_usd_per_hour
    return ChargesObserved(
        (Charge(machine.machine_id, machine.machine_id, amount, machine.started, machine.ended, True),)
    )


def driver_time_per_machine() -> Benchmark:
    """2,000 machines cost no more each than 20."""
    return Benchmark(
        name="driver: 2,000 machines vs 20, each",
        ours=lambda: per_machine_s(MANY) * 1e6,
        yardstick=lambda: per_machine_s(FEW) * 1e6,
        target=TIME_LIMIT,
        at_most=True,
        unit="us",
    )


def driver_memory_month() -> Benchmark:
    """A month of replacements holds no more than a week."""
    return Benchmark(
        name="driver: memory after a month vs a week",
        ours=lambda: memory_bytes(HOURS_MONTH) / 1e6,
        yardstick=lambda: memory_bytes(HOURS_WEEK) / 1e6,
        target=MEMORY_LIMIT,
        at_most=True,
        unit="MB",
        rounds=2,
    )


def benchmarks() -> list[Callable[[], Benchmark]]:
    """What `python -m benchmarks driver` measures."""
    return [driver_time_per_machine, driver_memory_month]
