"""One simulated job: the reducer of the real driver, with machines that simulated providers sell.

The driver decides what to buy and which machines work, and from when on.  What the machines do once they are up is the job's
runtime (`engine_runtime`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from windfall.core import driver
from windfall.errors import Infeasible
from windfall.events import Command, Fact, SetTimer, TimerFired
from windfall.fleet import (
    CancelOrder,
    ChargesObserved,
    ControllerStarted,
    JobSubmitted,
    ListingCompleted,
    MachinesObserved,
    OffersObserved,
    OrderAnswered,
    PlaceOrder,
    ReleaseMachine,
    RequestListing,
    SettleJob,
)
from windfall.jobs import Job, Measurement
from windfall.market import BootSpec, Machine, MachineEndCause, Order
from windfall.simulation.engine_journal import JournalRows
from windfall.simulation.engine_runtime import RuntimeMaker, SimulatedRuntime
from windfall.simulation.machine_chances import MachineChances
from windfall.simulation.simulated_provider import SimulatedProvider
from windfall.simulation.virtual_time import WALL_START, Timeline
from windfall.terms import Instant, Seconds, Term

OWNER: Final = "simulated"
OFFERS_EVERY_S: Final = 600.0
"""How often a job looks at the offers where prices change [s]."""
_BOOT: Final = BootSpec(("windfall", "node-agent"))
_CONTROLLER: Final = Term(1)
MACHINES_WITHOUT_PROGRESS_MAX: Final = 20_000
"""How many machines of a slot may end in a row without progress."""


@dataclass(slots=True)
class _FleetMachine:
    """A machine that the job has bought.

    Attributes:
        n: its number within its slot, from 0.
        ends_s: when it ends by the job's own chances [s]; infinite if the market decides.
    """

    machine_id: str
    provider: SimulatedProvider
    slot: int
    n: int
    ends_s: float
    alive: bool = False
    started_s: float = 0.0
    noticed: bool = False


class SimulatedFleet:
    """One job's machines and its driver.

    Attributes:
        runtime: of its machines.
        started_s: the submission [s of virtual time].
        billed_s: of ended machines [s].
        preemptions: how many machines were preempted.
        over: the job is done and every machine is released.
    """

    def __init__(
        self,
        job: Job,
        timeline: Timeline,
        providers: Mapping[str, SimulatedProvider],
        runtime: RuntimeMaker,
        *,
        rows: JournalRows | None = None,
        chances: MachineChances | None = None,
    ) -> None:
        """Prepare; `submit` starts.

        Args:
            job: its id is unique on this timeline.
            timeline: of the world.
            providers: sell machines to it, by name.
            runtime: makes what runs on its machines.
            rows: the driver's journal; None: it is not kept.
            chances: of the machines in markets that leave them to the job.
        """
        self.started_s = 0.0
        self.billed_s = 0.0
        self.preemptions = 0
        self.over = False
        self.rows = rows
        self.job = job
        self.runtime: SimulatedRuntime = runtime(self)
        self._timeline = timeline
        self._providers = providers
        self._chances = chances
        self._state = driver.initial_state()
        self._inbox: list[Fact] = []
        self._settling = False
        self._settle_due = False
        self._machines: dict[str, _FleetMachine] = {}
        self._allocations: list[tuple[int, int, float, float]] = []
        self._wake_at: float | None = None
        self._without_progress = 0
        self._progress = 0

    @property
    def finish_s(self) -> float | None:
        """The end of the work [s of virtual time]; None before."""
        return self.runtime.finish_s

    @property
    def state(self) -> driver.FleetState:
        """The driver's state, for checks."""
        return self._state

    def submit(self, known: tuple[Fact, ...] = (), measurements: tuple[Measurement, ...] = ()) -> None:
        """Submit the job.

        Args:
            known: facts that the driver starts with.
            measurements: of earlier runs.
        """
        self.started_s = self._timeline.time
        submitted = JobSubmitted(self.job, OWNER, measurements)
        self._inbox += [submitted, ControllerStarted(_CONTROLLER), *known, self._offers()]
        self._inbox += [ListingCompleted(name) for name in self._providers]
        self._look_later()
        self.settle()

    def add(self, fact: Fact) -> None:
        """Queue a fact for the driver."""
        self._inbox.append(fact)

    def _offers(self) -> OffersObserved:
        return OffersObserved(tuple(offer for provider in self._providers.values() for offer in provider.offers()))

    def _look_later(self) -> None:
        """Look at the offers again after a while, if a price can still change."""
        changes_s = min((provider.next_price_s() for provider in self._providers.values()), default=math.inf)
        if changes_s < math.inf:
            self._timeline.when(max(changes_s, self._timeline.time + OFFERS_EVERY_S), self._look)

    def _look(self) -> None:
        if not self.over:
            self._inbox += [self._offers(), *self._repriced()]
            self._look_later()
            self.settle()

    def _repriced(self) -> list[Fact]:
        """Return what the listings say of running machines whose price has moved."""
        known = driver.known_machines(self._state)
        moved = tuple(
            machine
            for provider in self._providers.values()
            if provider.capabilities().price_floats
            for machine in provider.alive(self.job.job_id)
            if machine.price_changes and machine != known.get(machine.machine_id)
        )
        return [MachinesObserved(moved)] if moved else []

    # ---------------------------------------------------------------------------------------------- machines

    def allocate_s(self, order: Order, which: int) -> float:
        """Return the time until a machine of an order starts [s], by the job's own chances."""
        del order
        assert self._chances is not None, "the market asks a job that has chances"
        slot, n, _, _ = self._allocations[which]
        waits_s, ends_s = self._chances.machine(slot, n, self._timeline.time)
        self._allocations[which] = (slot, n, self._timeline.time + waits_s, ends_s)
        return waits_s

    def _check_progress(self) -> None:
        progress = self.runtime.progress
        self._without_progress = self._without_progress + 1 if progress == self._progress else 0
        self._progress = progress
        if self._without_progress >= MACHINES_WITHOUT_PROGRESS_MAX * self.runtime.machines:
            raise Infeasible(
                f"job {self.job.job_id} makes no progress: {self._without_progress} machines ended since step "
                f"{progress} was stored; save more often, or use machines that live longer"
            )

    def started(self, machine: Machine) -> None:
        """Start a machine."""
        one, time_s = self._machines[machine.machine_id], self._timeline.time
        one.alive, one.started_s = True, time_s
        if one.ends_s < math.inf:
            self._await_end(one)
        self._inbox.append(MachinesObserved((machine,)))
        self.runtime.start(machine.machine_id, one.slot, one.n)
        self.settle()

    def _await_end(self, one: _FleetMachine) -> None:
        """Schedule the end of a machine by the job's own chances, and its notice."""
        assert self._chances is not None, "without chances of the job no end is known"
        notice_at_s, one.ends_s = self._chances.end(one.slot, one.n, one.ends_s)
        # Machines whose window ends take their leader along: it no longer receives the others' ends.
        first = one.slot - self.runtime.machines
        if notice_at_s is None:
            self._timeline.when(max(one.ends_s, self._timeline.time), partial(self._lifetime_ends, one), first)
        else:
            self._timeline.when(max(notice_at_s, self._timeline.time), partial(self._announce, one), first)

    def _announce(self, one: _FleetMachine) -> None:
        """Send a machine its notice."""
        if not one.alive:
            return
        left_s = max(one.ends_s - self._timeline.time, 0.0)
        first = one.slot - self.runtime.machines
        self._timeline.when(one.ends_s, partial(self._lifetime_ends, one), priority=first)
        one.provider.announce(one.machine_id, Seconds(left_s))

    def _lifetime_ends(self, one: _FleetMachine) -> None:
        """Preempt a machine."""
        if one.alive:
            one.provider.end(one.machine_id, MachineEndCause.PREEMPTED)

    def noticed(self, machine_id: str, left_s: float) -> None:
        """Receive a machine's notice."""
        self._machines[machine_id].noticed = True
        self.runtime.notice(machine_id, left_s)
        self.settle()

    def ended(self, machine: Machine) -> None:
        """End a machine."""
        one = self._machines.pop(machine.machine_id)
        if one.alive:
            one.alive = False
            self.billed_s += self._timeline.time - one.started_s
            preempted = machine.cause is MachineEndCause.PREEMPTED
            # A machine on notice may be released before its announced end, once its successor can take over.
            self.preemptions += preempted or (one.noticed and self.finish_s is None)
            self.runtime.end(machine.machine_id)
        self._inbox.append(MachinesObserved((machine,)))
        self.settle()

    # ----------------------------------------------------------------------------------------------------- the driver

    def settle(self) -> None:
        """Let the driver decide once all events of this instant have happened."""
        if self._settling:
            return
        timeline = self._timeline
        if timeline.next_at() == timeline.time:
            if not self._settle_due:
                self._settle_due = True
                timeline.at(0.0, self._settle_now, priority=1)
            return
        self._settle_now()

    def _settle_now(self) -> None:
        self._settle_due = False
        self._settling = True
        while self._inbox or self.runtime.direct(self._directives):
            if self._inbox:
                observed = self.runtime.observe()
                if observed is not None:
                    self._inbox.insert(0, observed)
                facts, self._inbox = tuple(self._inbox), []
                self._react(facts)
        self._settling = False

    def _directives(self) -> Mapping[str, Any]:
        return driver.directives(self._state, _CONTROLLER)

    def _now(self) -> Instant:
        return Instant(WALL_START + self._timeline.time)

    def _react(self, facts: tuple[Fact, ...]) -> None:
        now = self._now()
        self._state, decisions, commands = driver.react(self._state, now, facts)
        if self.rows is not None:
            self.rows.write(_CONTROLLER, now, self._timeline.time, (facts, decisions, commands))
        for command in commands:
            execute = _EXECUTE.get(type(command))
            if execute is not None:
                execute(self, command)

    def _order(self, command: PlaceOrder) -> None:
        order = command.order
        slots = [slot for slot in self._state.slots.values() if slot.awaits == order.token]
        for _ in slots:
            self._check_progress()
        self._allocations = [(slot.number, slot.machine_count, 0.0, math.inf) for slot in slots]
        provider = self._providers[order.offer.provider]
        answer = provider.order(order, _BOOT)
        # The provider may have fewer machines; the driver assigns them to the first of the slots.
        for machine_id, (slot, n, _, ends_s) in zip(answer.machine_ids, self._allocations, strict=False):
            self._machines[machine_id] = _FleetMachine(machine_id, provider, slot, n, ends_s)
        self._inbox.append(OrderAnswered(order.token, answer.machine_ids, answer.refusal, answer.message))

    def _cancel(self, command: CancelOrder) -> None:
        self._providers[command.provider].cancel(command.token)

    def _release(self, command: ReleaseMachine) -> None:
        self._providers[command.provider].release(command.machine_id)

    def _list(self, command: RequestListing) -> None:
        self._inbox.append(ListingCompleted(command.provider))

    def _wake(self, command: SetTimer) -> None:
        self._wake_at = command.at
        at_s = max(command.at - WALL_START, self._timeline.time)
        self._timeline.when(at_s, partial(self._fire_timer, command))

    def _fire_timer(self, command: SetTimer) -> None:
        if not self.over and self._wake_at == command.at:
            self._wake_at = None
            self._inbox.append(TimerFired(command.name))
            self.settle()

    def _settled(self, command: SettleJob) -> None:
        del command
        self.over = True

    def bill(self) -> None:
        """Read the bills once everything is over."""
        for provider in self._providers.values():
            charges = [charge for charge in provider.charges(OWNER, "").charges if charge.job_id == self.job.job_id]
            self._inbox.append(ChargesObserved(tuple(charges), provider.name, ""))
        self._settle_now()


_EXECUTE: Mapping[type[Command], Callable[[SimulatedFleet, Any], None]] = MappingProxyType(
    {
        PlaceOrder: SimulatedFleet._order,
        CancelOrder: SimulatedFleet._cancel,
        ReleaseMachine: SimulatedFleet._release,
        RequestListing: SimulatedFleet._list,
        SetTimer: SimulatedFleet._wake,
        SettleJob: SimulatedFleet._settled,
    }
)
