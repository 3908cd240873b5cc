"""Schedules of saves in the fleet storm: made late or never, told late, twice or not at all, and what must hold of them.

The controller's half is the product's (`control.job_loop`, `core.save_schedules`), as are the node agent's, the
file by which it tells its agent (`agent.status_files`) and the worker's.  Only the tables are drawn, since storms fit
no lives.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.storms.whole_machine import MachineChecks
from tests.support.checks import demand
from windfall import events as ev
from windfall.agent import status_files
from windfall.core import save_requests
from windfall.core.worker_state import WorkerState, WorkerTurn
from windfall.errors import StoreUnreachable
from windfall.events import Fact, ScheduleAssigned
from windfall.fleet import Directive, ScheduleComputed
from windfall.policies.checkpointing.schedule_table import ScheduleRequest, default_schedule, replan_reason
from windfall.structs import replace
from windfall.terms import Bytes, RunOptions, SaveCosts, SaveKind, SaveTable, Seconds

if TYPE_CHECKING:
    from tests.storms.fleet import Fleet
    from tests.storms.fleet_control import Controller
    from tests.storms.fleet_exec import WholeExec

LEAN_COSTS = SaveCosts(Seconds(0.3), Bytes(600), Seconds(0.6), Seconds(0.1))
LATE_S = 40.0
"""A table may be under way for so long [s]: the machine may have lost the run and taken it again meanwhile."""


class Schedules:
    """The maker of tables, and the witness of what becomes of them.

    Attributes:
        made: for whom and which holding of the run each table was made.
        journaled: those that are in the controller's journal.
    """

    def __init__(self, world: Fleet, seed: int) -> None:
        self.world = world
        self.rng = random.Random(f"schedules of {seed}")
        self.made: dict[ScheduleAssigned, tuple[str, int]] = {}
        self.journaled: set[ScheduleAssigned] = set()

    # ----------------------------------------------------------------------------------------------- at the controller

    def make(self, request: ScheduleRequest) -> ScheduleComputed | None:
        """Draw a table; sometimes fail instead."""
        world, rng, before = self.world, self.rng, request.before
        if not world.calm and rng.random() < 0.1:
            world.count("schedule failed")
            raise rng.choice([StoreUnreachable("the database does not answer"), ZeroDivisionError("unforeseen")])
        basis = request.basis(100.0)
        reason = (
            ""
            if before is None
            else replan_reason(request, before, basis) or rng.choice(["", "", "a cost has changed"])
        )
        if before is not None and not reason:
            return None
        checkpoints, at_s = [], 0.0
        for _ in range(rng.randint(0, 6)):
            at_s += rng.uniform(1.0, 8.0) * request.step_s
            checkpoints.append(at_s)
        known_s = at_s + rng.uniform(0.1, 10.0) * request.step_s if rng.random() < 0.9 else 0.0
        says = f"table {len(self.made)} for {request.machine_id}"
        given = ScheduleAssigned(SaveTable(tuple(checkpoints), known_s, 5.0, says), request.from_step, request.term)
        self.made[given] = (request.machine_id, request.term)
        world.count("schedule made")
        return replace(default_schedule(request, ""), schedule=given, basis=basis, trusted=known_s > 0.0, reason=reason)

    def in_background(self, controller: Controller, call: Callable[[], None]) -> None:
        """Carry a call out beside the controller's turns: soon, late, or never, because its process is gone by then."""
        delay_s = 0.0 if self.world.calm else self.rng.choice([0.0, 1.0, LATE_S])
        if delay_s == LATE_S:
            self.world.count("schedule late")
        self.world.at(delay_s, lambda: None if controller.dead else call())

    def told(self, directives: dict[str, Directive]) -> None:
        """A controller tells its machines."""
        for name, directive in directives.items():
            given = directive.schedule
            if given is not None:
                demand(given in self.journaled, f"a schedule is in the journal before it is told: {given}")
                demand(self.made[given][0] == name, f"a schedule goes to its own machine: {given} to {name}")

    def journal(self, fact: ScheduleComputed) -> None:
        """A schedule is in the controller's journal."""
        demand(fact.schedule not in self.journaled, f"a schedule is journaled once: {fact.schedule}")
        self.journaled.add(fact.schedule)
        self.world.count("schedule journaled" + (" again" if fact.reason else ""))

    # ------------------------------------------------------------------------------------------------- on the machine

    def leave(self, one: WholeExec, facts: Sequence[Fact]) -> None:
        """The node agent leaves facts for its agent: now, a while later because it was stopped, twice, or in vain."""
        world, rng = self.world, self.rng
        fault = "" if world.calm else rng.choice(["", "", "late", "repeated", "lost"])
        if fault:
            world.count(f"estimates {fault}")
        if fault == "lost":
            return
        at = max(world.time + (rng.uniform(0.0, LATE_S) if fault == "late" else 0.0), one.written_at)
        one.written_at = at + (rng.uniform(1.0, LATE_S) if fault == "repeated" else 0.0)
        for due in {at, one.written_at}:
            world.at(due - world.time, lambda: self._write(one, facts))

    def _write(self, one: WholeExec, facts: Sequence[Fact]) -> None:
        if one.alive:
            path = estimates_path(one)
            status_files.write(path, facts)
            # The world runs faster than a file system tells times apart.
            with contextlib.suppress(OSError):
                os.utime(path, ns=(int(self.world.time * 1e9) + 10**18,) * 2)
            one.soon()


def estimates_path(one: WholeExec) -> str:
    return os.path.join(one.folder, "estimates.json")


class ScheduleChecks(MachineChecks):
    """What watches the worker that is given schedules."""

    def __init__(self, machine: WholeExec) -> None:
        super().__init__(machine)
        self.one = machine
        self.newest: ScheduleAssigned | None = None

    def reacted(self, before: object, facts: tuple[Fact, ...], *rest: object) -> None:
        super().reacted(before, facts, *rest)
        one, world = self.one, self.one.real
        state = one.state
        for fact in facts:
            if isinstance(fact, ScheduleAssigned):
                demand(fact != self.newest, f"a schedule is told to the worker once: {fact}")
                self.newest = fact
                world.count("schedule given" if fact.term == one.term else "schedule of another term")
        if state.table is not None:
            given = ScheduleAssigned(state.table, state.table_step, one.term)
            owner = world.schedules.made.get(given)
            demand(owner == (one.node.machine_id, one.term), f"a worker acts on its own schedule of its term: {given}")
        commands = rest[-1]
        assert isinstance(commands, tuple)
        for command in commands:
            if isinstance(command, ev.PublishSave) and command.kind is SaveKind.INSURANCE:
                self._in_time(state, command.step)

    def _in_time(self, state: WorkerState, step: int) -> None:
        """A save is asked for when the default rule would, or within what the schedule is known for."""
        turn = WorkerTurn(
            replace(state, started=replace(state.first, options=RunOptions("adaptive"))), self.one.world.now
        )
        usual = save_requests.choose(turn).save_at
        step_s = state.costs.step_mean_s
        if state.first.options.policy != "optimal" or usual is None or step_s is None:
            return
        table = state.table
        known = 0 if table is None else state.table_step + round(table.horizon_s / step_s)
        # One more: a schedule takes the nearest step, the default rule the last one within its interval.
        latest = max(usual, known, save_requests.earliest_step(turn)) + 1
        demand(step <= latest, f"no schedule delays a save beyond its end and the default rule: {step} > {latest}")
        if table is not None and state.anchor_step < known:
            self.one.real.count("schedule followed")
