"""What must hold at each event of the fleet storm, judged by the simulation's truth and not by what anybody says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.storms import whole_scene
from tests.storms.fleet_scene import JOB, OWNER, SILENT_S
from tests.storms.whole_checks import RunChecks
from tests.support.checks import demand
from windfall import codec
from windfall.core import driver
from windfall.events import Command, Row
from windfall.fleet import (
    CancelOrder,
    JobPhase,
    JobResumeRequested,
    MachineReported,
    MachinesMissing,
    NotifyUser,
    OrderUnanswered,
    PlaceOrder,
    ReleaseMachine,
    Report,
    ScheduleComputed,
)
from windfall.market import Answer, Machine, Order
from windfall.simulation.virtual_time import WALL_START
from windfall.terms import Cause, Record, WallTime
from windfall.wire.run_layout import heartbeat_key

if TYPE_CHECKING:
    from tests.storms.fleet import Fleet
    from tests.storms.fleet_control import Controller
    from tests.storms.fleet_exec import LeanExec

CENT = 0.005
CANCEL_S = 10.0
"""A decision to cancel leads to a first call within this time [s]."""
SURPLUS_S = 120.0
"""A machine that no slot needs lives at most so much longer while everything answers [s]."""


class FleetRunChecks(RunChecks):
    """The promises of the run's log, where a provider's word that a machine is gone replaces the lease."""

    world: Fleet

    def took(self, writer, before: Record | None, record: Record) -> None:  # type: ignore[no-untyped-def]
        self.writers[record.state.term] = writer
        assert record.state.holder is not None
        demand(record.state.term == record.number, "the number of the acquire record is the term")
        demand(record.state.holder.nonce == writer.nonce, "a holder takes the run for itself")
        if before is None or before.state.holder is None:
            return
        last = before.state.holder
        if before.state.term in self.world.gone:
            self.world.count("taken at once: its holder's machine is gone")
            return
        if last.host == writer.host and not self.world.machines[last.pid].alive:
            return
        silent_s, looks = self.looks.silence(writer.process, heartbeat_key(before.state.term))
        demand(
            silent_s >= whole_scene.LEASE_S * 0.98,
            f"no holder loses the run before a lease of silence: {silent_s:.1f} s",
        )
        demand(looks >= 5, f"and a single look after a long absence is no silence: {looks}")

    def finished(self, writer) -> None:  # type: ignore[no-untyped-def]
        if writer.script is not None:
            super().finished(writer)

    def lean_done(self, writer: LeanExec) -> None:
        demand(writer.value == whole_scene.chain(self.world.scene.steps), "done means the right final state")

    def created(self, key: str, data: bytes) -> None:
        """A controller writes into the run."""
        if key.startswith("gone/"):
            term, machine_id = int(key.removeprefix("gone/")), data.decode()
            alive = machine_id in self.world.nodes and self.world.nodes[machine_id].alive
            demand(not alive, f"a machine that lives is not declared gone: {machine_id}")
            self.world.gone.add(term)

    # ------------------------------------------------------------------------------------------------------ purchases

    def bought(self, order: Order, before: tuple[Machine, ...], answer: Answer) -> None:
        """An order created machines."""
        world = self.world
        ids = set(answer.machine_ids) - world.bought
        if not ids:
            return
        demand(order.token not in world.tokens, f"a token buys once: {order.token}")
        world.tokens.add(order.token)
        world.bought |= ids
        world.count("bought")
        if len(answer.machine_ids) < order.count_max:
            world.count("partial allocation")
        demand(world.job_wanted, f"nothing is bought for a job that has ended: {order.token}")
        demand(order.token in world.intents, f"the intent to buy is in the journal before the call: {order.token}")
        nodes = world.fleet.nodes
        plain = [machine.machine_id for machine in before if not world.says_it_ends(machine.machine_id)]
        answering = [name for name in plain if world.heard_within(name, SILENT_S)]
        crowded = len(plain) + len(ids) > nodes and not self._being_cancelled(order.token)
        demand(not crowded or not answering, f"nothing is bought for a slot whose machine answers: {answering}")
        demand(not crowded, f"a slot has two live machines only if the first says that it ends: {plain}, {order.token}")
        demand(len(before) + len(ids) <= 2 * nodes, f"a slot has at most one successor: {order.token}")
        if len(plain) < len(before):
            world.count("bought before the old one was gone")

    def _being_cancelled(self, token: str) -> bool:
        """Say whether a call that comes late is of an order that its controller has cancelled, or is about to."""
        world = self.world
        lately = world.time - world.cancelled.get(token, -1e9) < CANCEL_S
        return token in world.cancels or (token in world.cancelled and (lately or world.reachable() is None))

    def check_report(self, report: Report) -> None:
        """A report of a machine reached a controller; an older one that was overtaken tells nothing."""
        world, name = self.world, report.machine_id
        newest = world.last_reports.get(name)
        if newest is not None and newest[1].sequence >= report.sequence:
            return
        world.last_reports[name] = (world.time, report)

    def surplus(self, passed_s: float) -> None:
        """What no slot needs is given back soon, if everything answers."""
        world = self.world
        plain = [one.machine_id for one in world.provider.alive(JOB) if not world.says_it_ends(one.machine_id)]
        world.surplus_s = world.surplus_s + passed_s if len(plain) > world.fleet.nodes else 0.0
        demand(world.surplus_s <= SURPLUS_S, f"a machine that no slot needs is given back soon: one of {plain}")

    def money(self) -> None:
        """What was spent by now is within the budget."""
        budget = self.world.fleet.job.objective.budget_usd
        spent = self.world.provider.meter.total_usd(OWNER, WallTime(WALL_START + self.world.time))
        if budget is not None and not self.world.fleet.quiet:
            # Without a controller machines continued: nothing can be released by a controller that is not there.
            budget += self.world.helpless_usd
        demand(budget is None or spent <= budget, f"the budget is never exceeded: {spent:.4f} of {budget} USD")

    # ----------------------------------------------------------------------------------------------------- the journal

    def journaled(self, controller: Controller, line: str) -> None:
        world = self.world
        row = codec.row_from_line(line)
        demand(controller.term == world.term, "a controller that was replaced writes nothing")
        for command in row.commands:
            self._decided(command)
        for fact in row.facts:
            if isinstance(fact, OrderUnanswered):
                world.count("order unanswered")
            elif isinstance(fact, MachinesMissing):
                world.count("never listed as gone")
            elif isinstance(fact, JobResumeRequested):
                world.job_wanted = True
            elif isinstance(fact, MachineReported):
                world.count(f"report on {fact.channel}")
            elif isinstance(fact, ScheduleComputed):
                world.schedules.journal(fact)

    def _decided(self, command: Command) -> None:
        match command:
            case PlaceOrder(order):
                self.world.intents.add(order.token)
            case ReleaseMachine(machine_id, _, reason) if "no contact on any channel" in reason:
                self._zombie(machine_id)
            case CancelOrder(token):
                self.world.cancelled[token] = self.world.time
            case NotifyUser(event):
                self.world.count(f"wants to tell {event}")

    def _zombie(self, machine_id: str) -> None:
        if machine_id in self.world.zombies:
            return
        self.world.zombies.add(machine_id)
        self.world.count("zombie released")
        reported = self.world.heard_within(machine_id, SILENT_S)
        demand(not reported, f"no machine is released as silent that reports on a channel: {machine_id}")

    def turned(self, controller: Controller) -> None:
        """After each turn of a controller."""
        self.money()
        job_loop = controller.job_loop
        if job_loop is None:
            return
        phase = driver.phase(job_loop.state)
        self.world.phase = phase
        self.world.job_wanted = phase not in {JobPhase.DONE, JobPhase.FAILED, JobPhase.STOPPED}

    def recovered(self, controller: Controller) -> None:
        world = self.world
        if not world.rows or controller.job_loop is None:
            return
        world.count("recovered")
        if world.snapshots:
            world.count("restarts with a snapshot")
            state = driver.initial_state()
            for line in world.rows:
                row = codec.row_from_line(line)
                state, _, _ = driver.react(state, row.at, row.facts)
            demand(controller.job_loop.state == state, "a snapshot and the rows after it lead where all rows lead")

    # --------------------------------------------------------------------------------------------------------- the end

    def settled(self, state: driver.FleetState) -> None:
        """The job has ended: nothing lives, nothing bills, the ledger is the meter's, the journal decides the same."""
        world = self.world
        self._ends_for_a_reason(driver.phase(state))
        left = [machine.machine_id for machine in world.provider.alive(JOB)]
        demand(not left, f"no machine is left behind: {left}")
        demand(not world.provider.meter.running, "no meter runs")
        total = world.provider.meter.total_usd(OWNER, WallTime(WALL_START + world.time))
        sums = driver.summary(state, state.now).money
        demand(
            abs(sums.settled_usd - total) < CENT, f"the bill is the meter's: {sums.settled_usd:.6f}, {total:.6f} USD"
        )
        demand(sums.unsettled == 0, f"every machine's bill is closed: {sums.unsettled} are not")
        demand(abs(sums.unexplained_usd) < 1e-9, f"every line is explained: {sums.unexplained_usd} USD are not")
        demand(sums.disputed == 0, f"and none is disputed: {sums.disputed}")
        untold = world.tally["never listed as gone"]
        near = abs(sums.estimated_usd - total) < CENT
        demand(bool(untold) or near, f"what was expected is what was billed: {sums.estimated_usd:.6f}")
        self.replayed()

    def _ends_for_a_reason(self, phase: JobPhase) -> None:
        tally, job = self.world.tally, self.world.fleet.job
        requested = tally["JobStopRequested"] or tally["wants to tell over-budget"]
        demand(
            phase is not JobPhase.STOPPED or bool(requested), "a job is stopped only if a user or its budget stops it"
        )
        budget = job.objective.budget_usd
        over = tally["wants to tell over-budget"] and (budget is None or budget > 1.0)
        demand(not over, "a budget that is nowhere near used up stops nothing")
        failed = tally["script failed"] >= job.options.failures_max or tally[Cause.SCRIPT_FAILED]
        failed = failed or tally["machine failed"]
        demand(phase is not JobPhase.FAILED or bool(failed), "a job fails only if its script or its machines do")

    def replayed(self) -> None:
        state, sequence, at = driver.initial_state(), 0, 0.0
        for line in self.world.rows:
            row: Row = codec.row_from_line(line)
            demand(row.sequence == sequence + 1, f"rows have no gap: {row.sequence} after {sequence}")
            demand(row.at >= at, "the journal's clock never goes back")
            sequence, at = row.sequence, row.at
            state, decisions, commands = driver.react(state, row.at, row.facts)
            demand((decisions, commands) == (row.decisions, row.commands), f"row {sequence} fed back decides the same")
