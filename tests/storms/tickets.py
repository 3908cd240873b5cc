"""The tickets storm: the toy runtime of two roles and a gang, under a fleet policy that never rests, on a faulty market.

The very code of the product decides: `control.job_loop` with `core.driver`; market, channels, journal and machines are
simulated.  A seed draws the job, the markets and what goes wrong; every promise is checked at every event; then the faults
stop, and the job must end in bounded time with every number done once, nothing left alive and a bill that is the meter's.

Replay a failure with `python -m tests.storms.tickets --seed N [--bug NAME]`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import random
from collections import Counter
from unittest.mock import patch

from tests.storms import planted_tickets, tickets_scene
from tests.storms.fleet_control import Controller
from tests.storms.fleet_ports import FaultyProvider, Gate, SimulatedJournal
from tests.storms.tickets_checks import TicketChecks
from tests.storms.tickets_machine import Change, TicketNode
from tests.storms.tickets_scene import JOB, OWNER, PACE
from tests.support import ticket_counter, tickets
from tests.support.checks import Violation, demand
from tests.support.ticket_counter import TicketCounter
from windfall import codec
from windfall.channels.direct import DirectChannel
from windfall.control.job_loop import JobLoop, JobLoopPorts
from windfall.core import driver, machines
from windfall.errors import StoreUnreachable
from windfall.events import Fact
from windfall.fleet import Event, ProgressObserved, Report
from windfall.market import Answer, BootSpec, Machine, MachineEndCause, Order
from windfall.policies.acquisition import fleet_policy_list
from windfall.policies.acquisition.fleet_policy import FleetEstimates, FleetTarget, FleetView
from windfall.simulation.simulated_provider import SimulatedProvider
from windfall.simulation.virtual_time import Timeline
from windfall.terms import NoticeLevel, Reliability, Seconds, Term

SETTLED_S = 1500.0
"""After the end of the faults a job is done within this and three times its work [s]."""
MEASURED_S = 5.0
SEEN_S = 4.0
"""So often the driver is told of the counter [s]."""
CANCEL_S = 10.0
ZOMBIE_S, UNRESPONSIVE_S, RELEASE_AGAIN_S = 45.0, 80.0, 30.0
"""Minutes of the product, so that storms get to see them."""


class TicketMarket(SimulatedProvider):
    """The market, with a witness at its counter; it may lose one machine of a gang."""

    world: Tickets

    def order(self, order: Order, boot: BootSpec) -> Answer:
        before = self.alive(JOB)
        answer = super().order(order, boot)
        for machine in self.alive(JOB):
            self.world.machines.setdefault(machine.machine_id, machine)
        self.world.checks.bought(order, before, answer)
        return answer

    def end_alone(self, machine_id: str) -> None:
        """End one machine, whatever it was bought with."""
        one = self._instances.get(machine_id)
        if one is not None:
            one.gang = [one]
            self.end(machine_id, MachineEndCause.FAILED)


class TicketRun:
    """`ports.Runtime` of a counter: it only takes the word that a machine is gone; its progress comes as requests do."""

    def __init__(self, gate: Gate, world: Tickets) -> None:
        self.gate, self.world = gate, world

    def progress(self) -> ProgressObserved | None:
        return None

    def declare_gone(self, machine_id: str) -> None:
        effect = functools.partial(self.world.declare_gone, machine_id)
        self.gate.call("create", effect, StoreUnreachable, changes=True, doubles=True)

    def stop(self, *, now: bool, reason: str) -> None:
        pass


class TicketEar(DirectChannel):
    """The channel, with a witness of what reached the controller's loop on it."""

    def __init__(self, world: Tickets) -> None:
        super().__init__(lambda: None)
        self._world = world

    def receive(self) -> tuple[Report, ...]:
        reports = super().receive()
        for report in reports:
            self._world.checks.check_report(report)
        return reports


class TicketController(Controller):
    """A controller of a job of tickets; machines reach it on one channel."""

    world: Tickets  # type: ignore[assignment]

    def _new_job_loop(self) -> JobLoop:
        world, gate = self.world, Gate(self)
        self.direct = TicketEar(world)
        ports = JobLoopPorts(
            controller=self.term, owner=OWNER, clock=self.clock, journal=SimulatedJournal(gate),
            providers={"sim": FaultyProvider(gate)}, channels=(self.direct,), runtime=TicketRun(gate, world),
            boot=lambda _: BootSpec(("node-agent",)), notify=self._notify, rates=tuple, record_lifetimes=lambda _: None,
            log=world.say, pace=PACE,
        )  # fmt: skip
        return JobLoop(world.fleet.job, ports)

    def _notify(self, event: Event, message: str) -> None:
        self.world.count(f"told {event}")
        self.world.say(f"{event}: {message}")

    def step(self) -> None:
        before, self.world.acting = self.world.acting, self
        try:
            super().step()
        finally:
            self.world.acting = before


class Tickets(Timeline):
    """Time, chance, the market, the machines, their counter and the controllers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.fleet = tickets_scene.draw(seed)
        self.rng = random.Random(f"tickets storm {seed}")
        self.tally: Counter[str] = Counter()
        self.counter = TicketCounter(self.fleet.given.numbers)
        self.checks = TicketChecks(self)
        self.nodes: dict[str, TicketNode] = {}
        self.machines: dict[str, Machine] = {}
        self.taken: set[str] = set()
        self.rows: list[str] = []
        self.said: list[str] = []
        self.term = Term(0)
        self.controllers: list[TicketController] = []
        self.acting: TicketController | None = None
        self.nested = False
        self.hidden: set[str] = set()
        self.cancels: set[str] = set()
        self.cancelled: dict[str, float] = {}
        self.provider_out_until = self.sql_out_until = self.no_controller_until = 0.0
        self.able_since = 0.0
        self.told: ProgressObserved | None = None
        self.visible: ProgressObserved | None = None
        self.provider = TicketMarket(
            "sim", self, self.fleet.markets, random.Random(f"tickets market {seed}"), listener=self,
            bill_lag_s=self.fleet.bill_lag_s,
        )  # fmt: skip
        self.provider.world = self

    @property
    def calm(self) -> bool:
        """Whether the faults are over."""
        return self.time >= self.fleet.calm_s or self.fleet.quiet

    def count(self, what: str) -> None:
        self.tally[what] += 1

    def say(self, message: str) -> None:
        self.said.append(f"{self.time:9.2f} {message}")

    def nonce(self) -> str:
        return f"{self.rng.getrandbits(48):012x}"

    # ------------------------------------------------------------------------------------------------------- the counter

    def change(self, newer: TicketCounter) -> None:
        """Change the counter, under the eyes of the checks."""
        if newer is not self.counter:
            before, self.counter = self.counter, newer
            self.checks.changed(before, newer)

    def asked(self, clerk: TicketNode, change: Change) -> tuple[bool, object]:
        """Let a clerk change the counter; return whether it could, and the answer."""
        if not clerk.answers or self.time < clerk.cut_until["clerk"]:
            return False, None
        if not ticket_counter.serves(self.counter, clerk.clerk_term):
            self.count("clerk fenced")
            return False, None
        newer, answer = change(self.counter)
        self.count("late result refused" if answer is False else "clerk asked")
        self.change(newer)
        return True, answer

    def declare_gone(self, machine_id: str) -> None:
        self.checks.declared_gone(machine_id)
        self.change(ticket_counter.declared_gone(self.counter, machine_id))

    def _see(self) -> None:
        """The counter is read for the driver."""
        self.visible = ticket_counter.observed(self.counter)
        self.at(SEEN_S, self._see)

    def requests_due(self) -> list[Fact]:
        """Return what the next turn is told besides: the progress."""
        return [] if self.visible is None or self.visible == self.told else [self.visible]

    def fulfilled(self, count: int) -> None:
        """The journal says what was told."""

    # ------------------------------------------------------------------------------------ what the market's machines do

    def started(self, machine: Machine, boot: BootSpec) -> None:
        del boot
        self.nodes[machine.machine_id] = TicketNode(self, machine)
        self.count("machine started")

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        if level is NoticeLevel.ANNOUNCED:
            self.taken.add(machine_id)
        if machine_id in self.nodes:
            self.nodes[machine_id].noticed(level, left_s)

    def ended(self, machine: Machine) -> None:
        self.count(f"machine {machine.cause}")
        if machine.cause is MachineEndCause.PREEMPTED:
            self.taken.add(machine.machine_id)
        if machine.machine_id in self.nodes:
            self.nodes[machine.machine_id].dies()

    def lives(self, machine_id: str) -> bool:
        """Whether a machine that was bought runs or will."""
        return any(one.machine_id == machine_id for one in self.provider.alive(JOB))

    def role(self, controller: Controller, machine_id: str) -> str:
        """Return the role of the slot that a machine fills, as its controller knows; empty while it does not."""
        state = None if controller.job_loop is None else controller.job_loop.state
        unit = None if state is None else state.units.get(machine_id)
        return "" if state is None or unit is None or unit.slot is None else state.slots[unit.slot].need.role

    def cancelled_lately(self, token: str) -> bool:
        """Say whether an order's controller has cancelled it, or is about to."""
        return token in self.cancels or token in self.cancelled

    # --------------------------------------------------------------------------------------------------- the controllers

    def reachable(self) -> TicketController | None:
        """Return the controller that answers."""
        alive = [one for one in self.controllers if not one.dead]
        return alive[-1] if alive and not alive[-1].paused else None

    def another_controller(self, delay_s: float) -> None:
        """Somebody starts a controller, unless one is there by then."""
        self.at(delay_s, self._start_controller)

    def _start_controller(self) -> None:
        if self.time < self.no_controller_until:
            self.at(self.no_controller_until - self.time, self._start_controller)
        elif self.reachable() is None:
            one = TicketController(self)  # type: ignore[arg-type]
            self.controllers.append(one)
            one.begin()

    def _watch_controllers(self) -> None:
        if self.reachable() is None:
            self.another_controller(self.rng.uniform(1.0, 10.0))
        self.at(15.0, self._watch_controllers)

    def _outage(self) -> None:
        self.count("outage")
        self.no_controller_until = self.time + self.fleet.outage_s
        for one in self.controllers:
            one.die("outage")

    # --------------------------------------------------------------------------------------------------------- the run

    def able(self) -> bool:
        """Whether a controller can do what it decides."""
        out = self.time < max(self.provider_out_until, self.sql_out_until) or self.provider.limits.denied
        if out or self.reachable() is None:
            self.able_since = self.time
        return self.time > self.able_since

    def _measure(self) -> None:
        self.able()
        self.checks.watch(MEASURED_S)
        self.at(MEASURED_S, self._measure)

    def _plan_trouble(self) -> None:
        fleet, rng = self.fleet, self.rng
        if fleet.quiet:
            return
        for begin, end, zone in fleet.dry:
            self.at(begin, functools.partial(self._dry, zone, rng.choice([0, 0, 1])))
            self.at(end, functools.partial(self._dry, zone, None))
        if fleet.outage_s:
            self.at(fleet.outage_at, self._outage)
        for name in ("provider_out_until", "sql_out_until"):
            for _ in range(rng.choice([0, 0, 1])):
                until_s = rng.uniform(2.0, 60.0)
                self.at(rng.uniform(0.0, fleet.calm_s), functools.partial(self._out, name, until_s))

    def _out(self, name: str, length_s: float) -> None:
        if not self.calm:
            self.count(name.removesuffix("_until"))
            setattr(self, name, self.time + length_s)

    def _dry(self, zone: str, capacity: int | None) -> None:
        self.count("capacity again" if capacity is None else "no capacity")
        self.provider.limits.capacity.pop(("m4", zone, Reliability.TRANSIENT), None)
        if capacity is not None and not self.calm:
            self.provider.limits.capacity["m4", zone, Reliability.TRANSIENT] = capacity

    def _calm_down(self) -> None:
        self.provider.limits.capacity.clear()
        self.provider_out_until = self.sql_out_until = 0.0
        for node in self.nodes.values():
            node.cut_until = dict.fromkeys(node.cut_until, 0.0)

    def storm(self) -> None:
        """Run until the job has ended and its bill is closed; in bounded time once the faults are over."""
        fleet = self.fleet
        self._plan_trouble()
        self._see()
        self._measure()
        self.at(fleet.calm_s, self._calm_down)
        self._watch_controllers()
        calm_s = max(fleet.calm_s, fleet.outage_at + fleet.outage_s)
        bound_s = calm_s + SETTLED_S + 3 * fleet.given.numbers * fleet.work_s[1] + max(fleet.bill_lag_s)
        while (soon := self.next_at()) is not None and (state := self._settled()) is None:
            demand(
                soon <= bound_s, f"the job ends in bounded time, {bound_s:.0f} s; it is {self.checks.ended} at the end"
            )
            self.step()
        assert state is not None
        self.count(f"ended {driver.phase(state)}")
        self.checks.settled(state)

    def _settled(self) -> driver.FleetState | None:
        one = self.controllers[-1] if self.controllers else None
        if one is None or one.dead or one.paused or one.job_loop is None or not one.job_loop.ended:
            return None
        return None if driver.needs_bill(one.job_loop.state) else one.job_loop.state

    def policy(self, view: FleetView, estimates: FleetEstimates) -> FleetTarget:
        """The fleet policy, with a witness: what it asks for is what the checks judge by."""
        target = tickets.queue(view, estimates)
        self.checks.answer = target
        return target


def storm(seed: int, bug: str | None = None) -> Tickets:
    """Run one seed.

    Raises:
        Violation: a promise was broken; the message ends with the command that replays it.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(tickets.installed())
        world = Tickets(seed)
        for module, name, value in (
            (machines, "ZOMBIE_S", ZOMBIE_S),
            (machines, "UNRESPONSIVE_S", UNRESPONSIVE_S),
            (machines, "RELEASE_AGAIN_S", RELEASE_AGAIN_S),
            (fleet_policy_list, "policy", lambda _: world.policy),
            # Rows are immutable, and each is read several times: once is enough.
            (codec, "row_from_line", functools.cache(codec.row_from_line)),
        ):
            stack.enter_context(patch.object(module, name, value))
        try:
            if bug is not None:
                stack.enter_context(planted_tickets.bug(bug))
            world.storm()
        except Exception as error:
            again = f"python -m tests.storms.tickets --seed {seed}" + (f" --bug '{bug}'" if bug else "")
            raise Violation(f"{error!r}\nreplay: {again}") from error
    return world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--bug", choices=sorted(planted_tickets.BUGS))
    arguments = parser.parse_args()
    world = storm(arguments.seed, arguments.bug)
    print("\n".join(world.said))
    print(dict(world.tally))


if __name__ == "__main__":
    main()
