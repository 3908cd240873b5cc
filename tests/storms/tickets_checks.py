"""What must hold at each event of the tickets storm, judged by the truth and by what the fleet policy asked for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tests.storms.tickets_scene import JOB, OWNER
from tests.support import tickets
from tests.support.checks import demand
from tests.support.ticket_counter import TicketCounter
from windfall import codec
from windfall.core import driver
from windfall.events import Command, Fact, Row
from windfall.fleet import (
    SUPERSEDED,
    CancelOrder,
    DrainMachine,
    JobPhase,
    MachineReported,
    MachinesMissing,
    MachineStatus,
    PlaceOrder,
    ProgressObserved,
    ReleaseMachine,
    Report,
)
from windfall.market import Answer, Machine, Order
from windfall.policies.acquisition.fleet_policy import FleetTarget
from windfall.simulation.virtual_time import WALL_START
from windfall.terms import Instant, NoticeLevel, Reliability, WallTime

if TYPE_CHECKING:
    from tests.storms.fleet_control import Controller
    from tests.storms.tickets import Tickets

CENT = 0.005
SURPLUS_S = 100.0
"""A machine that no slot needs lives at most so much longer while everything answers [s]."""
ALONE_S = 60.0
"""What is left of a gang lives at most so much longer while everything answers [s]."""
LEFT_S = 100.0
"""A machine that was released is gone at most so much later while everything answers [s]."""
DUE_S = 20.0
"""A drained machine that still works is released at most so long after its deadline while everything answers [s]."""


def kind(machine: Machine) -> str:
    """Return what a machine was bought for, by its market and allocation."""
    if machine.reliability is Reliability.RELIABLE:
        return "clerk"
    return "pair" if machine.allocation else "taker"


class TicketChecks:
    """The promises.

    Attributes:
        target: what the policy wants, as of the newest row of the journal.
        drained: machines that were told to leave: until when, and why.
        behind_s: how far the journal's clock is behind the world's [s].
        chosen: machines that the policy lets go although their slot stays.
        released: machines that were given back, and when [s].
    """

    def __init__(self, world: Tickets) -> None:
        self.world = world
        self.answer: FleetTarget | None = None
        self.target: FleetTarget | None = None
        self.tokens: set[str] = set()
        self.intents: set[str] = set()
        self.bought_ids: set[str] = set()
        self.drained: dict[str, tuple[Instant, str]] = {}
        self.behind_s = 0.0
        self.chosen: set[str] = set()
        self.released: dict[str, float] = {}
        self.heard: dict[str, Report] = {}
        self.journaled_reports: dict[str, Report] = {}
        self.announced: dict[str, Instant] = {}
        self.broken: set[str] = set()
        self.surplus_s: dict[str, float] = {}
        self.alone_s: dict[str, float] = {}
        self.ended: JobPhase | None = None

    # ------------------------------------------------------------------------------------------------------- the counter

    def changed(self, before: TicketCounter, after: TicketCounter) -> None:
        """The counter has changed: each number is in one place, and stays done by the grant under which it was done."""
        hands = set(after.grants)
        away, done = set(after.returned), set(after.done)
        demand(len(away) == len(after.returned), "a number comes back once")
        demand(not (hands & done) and not (hands & away) and not (away & done), "a number is in one place")
        demand(hands | away | done == set(range(after.fresh)), "no number is lost")
        owners = [grant.machine_id for grant in after.grants.values()]
        demand(len(owners) == len(set(owners)), "a machine has one number")
        for number in done - set(before.done):
            demand(before.grants.get(number) == after.done[number], f"a late result is refused: {after.done[number]}")
            demand(after.done[number].machine_id not in before.gone, "nothing is accepted of a machine declared gone")
        demand(all(after.done.get(number) == grant for number, grant in before.done.items()), "no number is done twice")

    def declared_gone(self, machine_id: str) -> None:
        """A controller declares a machine gone."""
        node = self.world.nodes.get(machine_id)
        demand(node is None or not node.alive, f"a machine that lives is not declared gone: {machine_id}")

    # ------------------------------------------------------------------------------------------------------- purchases

    def leaves(self, machine: Machine) -> bool:
        """Say whether a machine may have a successor: it said that it ends, or the driver wants it gone."""
        name = machine.machine_id
        gang = [name]
        if machine.allocation:
            gang = [one.machine_id for one in self.world.machines.values() if one.allocation == machine.allocation]
        given_up = name in self.released or machine.token in self.world.cancelled
        return given_up or any(self._says_it_ends(one) or one in self.drained or one in self.chosen for one in gang)

    def _says_it_ends(self, machine_id: str) -> bool:
        return machine_id in self.heard and self.heard[machine_id].level is NoticeLevel.ANNOUNCED

    def wanted(self, what: str) -> int:
        """Return how many machines of a kind the policy wants."""
        needs = () if self.target is None else self.target.needs
        kinds = ["clerk" if slot.role == tickets.CLERK else "pair" if slot.gang else "taker" for slot in needs]
        return kinds.count(what)

    def bought(self, order: Order, before: tuple[Machine, ...], answer: Answer) -> None:
        """An order was carried out."""
        world = self.world
        new = set(answer.machine_ids) - self.bought_ids
        if not new:
            return
        demand(order.token not in self.tokens, f"a token buys once: {order.token}")
        demand(order.token in self.intents, f"the intent to buy is in the journal before the call: {order.token}")
        self.tokens.add(order.token)
        self.bought_ids |= new
        world.count("bought")
        if len(new) < order.count_max:
            demand(not order.gang, "a gang is bought whole or not at all")
            world.count("partial allocation")
        controller = world.acting
        if controller is None or controller.term != world.term or controller.job_loop is None:
            world.count("bought by a call that came late")
            return
        self._for_its_slots(order, controller.job_loop.state)
        what = "clerk" if order.offer.reliability is Reliability.RELIABLE else "pair" if order.gang else "taker"
        plain = [one.machine_id for one in before if kind(one) == what and not self.leaves(one)]
        late = world.cancelled_lately(order.token)
        promise = f"a need has two machines only if the first one leaves: {plain} for {self.wanted(what)} {what}"
        demand(late or len(plain) + len(new) <= self.wanted(what), promise)

    def _for_its_slots(self, order: Order, state: driver.FleetState) -> None:
        """The slots that wait for an order are wanted, of its kind, and a gang is ordered as one."""
        waiting = [slot.need for slot in state.slots.values() if slot.awaits == order.token]
        ids = {slot.id for slot in self.target.needs} if self.target is not None else set()
        for need in waiting:
            demand(need.id in ids, f"nothing is bought for a slot that is retired: {need.id}")
            reliable = order.offer.reliability is Reliability.RELIABLE
            demand(reliable == (need.role == tickets.CLERK), f"{need.id} gets a machine of its reliability")
            demand(bool(need.gang) == order.gang, f"a gang is bought by one order: {need.id}")
        if order.gang:
            demand(len({need.gang for need in waiting}) <= 1, "an order is for one gang")
            self.world.count("gang bought")

    # ----------------------------------------------------------------------------------------------------- the journal

    def check_report(self, report: Report) -> None:
        """A report reached a controller."""
        newest = self.heard.get(report.machine_id)
        if newest is None or newest.sequence < report.sequence:
            self.heard[report.machine_id] = report

    def journaled(self, controller: Controller, line: str) -> None:
        """A row is in the journal; what the policy answered in it counts from now on."""
        row = codec.row_from_line(line)
        demand(controller.term == self.world.term, "a controller that was replaced writes nothing")
        self.behind_s = self.world.time - row.at
        for fact in row.facts:
            self._fact(fact)
        if self.answer is not None:
            self.target = self.answer
            self.chosen |= {release.machine_id for release in self.target.releases}
        for command in row.commands:
            self._decided(command, row.at)

    def _fact(self, fact: Fact) -> None:
        if isinstance(fact, MachineReported):
            newest = self.journaled_reports.get(fact.report.machine_id)
            if newest is None or newest.sequence <= fact.report.sequence:
                self.journaled_reports[fact.report.machine_id] = fact.report
                if fact.preemption_at is not None:
                    self.announced[fact.report.machine_id] = fact.preemption_at
        elif isinstance(fact, ProgressObserved):
            self.world.told = fact
        elif isinstance(fact, MachinesMissing):
            self.world.taken |= set(fact.machine_ids) & self.world.machines.keys()

    def _decided(self, command: Command, at: Instant) -> None:
        match command:
            case PlaceOrder(order):
                self.intents.add(order.token)
            case CancelOrder(token):
                self.world.cancelled[token] = self.world.time
            case DrainMachine(machine_id, deadline, reason):
                self.world.count(f"drained: {reason}")
                self.drained[machine_id] = (deadline, reason)
            case ReleaseMachine(machine_id, _, reason):
                self._released(machine_id, reason, at)

    def _released(self, machine_id: str, reason: str, at: Instant) -> None:
        world = self.world
        if machine_id in self.released:
            return
        self.released[machine_id] = world.time
        world.count(f"released: {reason.rsplit(' ', maxsplit=1)[-1]}")
        report = self.journaled_reports.get(machine_id)
        deadline, why = self.drained.get(machine_id, (at, ""))
        if reason == SUPERSEDED:
            self._gang_released(machine_id, at)
        elif reason == why:
            works = report is not None and report.status is MachineStatus.TRAINING
            demand(at >= deadline or not works, f"a drained machine is released once it has handed over: {machine_id}")
            world.count("drained to the deadline" if works else "drained empty")
            self._gang_released(machine_id, at)
        elif report is not None and report.status is MachineStatus.TRAINING:
            demand(reason not in ("it is old", "the job no longer needs it"), f"it is drained first: {machine_id}")

    def _gang_released(self, machine_id: str, at: Instant) -> None:
        """The other machines of its gang end with a machine that is released, so they have handed over as well."""
        gang, none = self.world.machines[machine_id].allocation, (Instant(math.inf), "")
        others = [name for name, one in self.world.machines.items() if gang and one.allocation == gang]
        end = min((self.drained.get(name, none)[0] for name in others), default=none[0])
        end = min(end, *(self.announced.get(name, end) for name in others), end)
        for name in others:
            report = self.journaled_reports.get(name)
            works = report is not None and report.status is MachineStatus.TRAINING and self.world.lives(name)
            said = report is not None and report.level is NoticeLevel.ANNOUNCED
            demand(not works or said or at >= end, f"a gang is released once all of it has handed over: {name} works")

    def turned(self, controller: Controller) -> None:
        """After each turn of a controller: slots have machines of their reliability."""
        job_loop = controller.job_loop
        if job_loop is None:
            return
        state = job_loop.state
        self.ended = driver.phase(state)
        for slot in state.slots.values():
            for name in (slot.incumbent, slot.successor):
                if name is not None and slot.need.role == tickets.CLERK:
                    demand(
                        state.units[name].machine.reliability is Reliability.RELIABLE, "the clerk's machine is reliable"
                    )

    def recovered(self, controller: Controller) -> None:
        """A controller has replayed the journal."""
        del controller
        if self.world.rows:
            self.world.count("recovered")

    # --------------------------------------------------------------------------------------------------------- all along

    def watch(self, passed_s: float) -> None:
        """Now and then: what is not needed goes, and gangs stay whole."""
        world = self.world
        alive = world.provider.alive(JOB)
        able = world.able()
        for what in ("clerk", "taker", "pair"):
            plain = [one.machine_id for one in alive if kind(one) == what and not self.leaves(one)]
            over = able and len(plain) > self.wanted(what)
            self.surplus_s[what] = self.surplus_s.get(what, 0.0) + passed_s if over else 0.0
            demand(
                self.surplus_s[what] <= SURPLUS_S, f"a machine that no slot needs is given back soon: {what} {plain}"
            )
        for one in alive:
            self._leaves_in_time(one.machine_id)
            gang = [other for other in world.machines.values() if one.allocation and other.allocation == one.allocation]
            alone = able and any(not world.lives(other.machine_id) for other in gang)
            self.alone_s[one.machine_id] = self.alone_s.get(one.machine_id, 0.0) + passed_s if alone else 0.0
            demand(self.alone_s[one.machine_id] <= ALONE_S, f"a gang is lost whole: {one.machine_id} lives on")

    def _leaves_in_time(self, machine_id: str) -> None:
        world = self.world
        released_s, end = self.released.get(machine_id), self.drained.get(machine_id, (math.inf, ""))[0]
        if released_s is not None:
            late_s = world.time - max(released_s, world.able_since)
            demand(late_s <= LEFT_S, f"a machine that was released is gone in time: {machine_id}, {late_s:.0f} s late")
        else:
            late_s = world.time - max(end + self.behind_s, world.able_since)
            demand(late_s <= DUE_S, f"a drained machine is released at its deadline: {machine_id}, {late_s:.0f} s late")

    # --------------------------------------------------------------------------------------------------------- the end

    def settled(self, state: driver.FleetState) -> None:
        """The job is done: every number once, nothing lives, the ledger is the meter's, the journal decides the same."""
        world = self.world
        demand(driver.phase(state) is JobPhase.DONE, f"the job is done, not {driver.phase(state)}: {state.ended}")
        demand(world.counter.finished, "done means that every number is done")
        left = [machine.machine_id for machine in world.provider.alive(JOB)]
        demand(not left and not world.provider.meter.running, f"no machine is left behind: {left}")
        total = world.provider.meter.total_usd(OWNER, WallTime(WALL_START + world.time))
        sums = driver.summary(state, state.now).money
        demand(
            abs(sums.settled_usd - total) < CENT, f"the bill is the meter's: {sums.settled_usd:.6f}, {total:.6f} USD"
        )
        closed = (sums.unsettled, sums.disputed, round(sums.unexplained_usd, 9))
        demand(closed == (0, 0, 0.0), f"every bill is closed, none disputed, every line explained: {closed}")
        gangs = {world.machines[name].allocation for name in world.taken} - {""}
        taken = world.taken | {name for name, one in world.machines.items() if one.allocation in gangs}
        demand(state.preemptions <= len(taken), f"only losses are preemptions: {state.preemptions} of {sorted(taken)}")
        self._replayed()

    def _replayed(self) -> None:
        state, sequence, at = driver.initial_state(), 0, 0.0
        for line in self.world.rows:
            row: Row = codec.row_from_line(line)
            demand(row.sequence == sequence + 1, f"rows have no gap: {row.sequence} after {sequence}")
            demand(row.at >= at, "the journal's clock never goes back")
            sequence, at = row.sequence, row.at
            state, decisions, commands = driver.react(state, row.at, row.facts)
            demand((decisions, commands) == (row.decisions, row.commands), f"row {sequence} fed back decides the same")
