"""What a profile runs as Ray actors: machines and a coordinator that train again and again, each time from the start.

An actor lives as long as the profile, so that a training begins at once: the machine's process, its imports and the program
are there.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from windfall import wiring_tiers
from windfall.drill.profile_words import IdleTable, MachineSize, ProfiledProgram
from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.tier_actors import CoordinatorActor, MachineActor, TierTraining
from windfall.runtimes.tier_messages import Answer, Question
from windfall.runtimes.tier_program import Table, TierProgram
from windfall.runtimes.turn_log import TurnLog, TurnRecord
from windfall.tier_layout import CommittedClock, ServerLayout, TierMachine, TierReport


class IdleProgram:
    """`TierProgram` that computes nothing: each turn pulls the table, and pushes as much."""

    def __init__(self, table: IdleTable) -> None:
        self.rows, self._width = table.rows, table.width

    def first(self, rows: Rows) -> Values:
        """Return zeros."""
        return np.zeros((len(rows), self._width))

    def load(self, data: int) -> int:
        """Return the data partition's number."""
        return data

    def compute(self, loaded: int, clock: int, table: Table) -> None:
        """Pull and push."""
        del loaded, clock
        rows = np.arange(self.rows)
        table.push(rows, np.zeros_like(table.pull(rows)))


class ProfiledMachine:
    """A machine; created without a program."""

    def __init__(self) -> None:
        self._actor: MachineActor | None = None
        self._log = TurnLog()
        self._made: dict[tuple[str, float], TierProgram] = {}

    def make(self, program: ProfiledProgram, size: MachineSize) -> float:
        """Make an application's program for a machine type, unless it is there; return the samples of a turn, 1 if unknown.

        Raises:
            Misuse: the program is not valid, or not there.
        """
        if not program.job.app:
            return 1.0
        made: Any = self._application(program, size)
        return float(made.samples()) if hasattr(made, "samples") else 1.0

    def prepare(
        self,
        machine: TierMachine,
        training: TierTraining,
        layout: ServerLayout,
        size: MachineSize,
        program: ProfiledProgram | IdleTable,
    ) -> None:
        """Prepare for a training."""
        self._log = TurnLog()
        self._actor = MachineActor(
            machine,
            training,
            layout,
            self._maker(program, size),
            size.slots,
            limits=size.limits,
            turn_log=self._log,
        )

    async def run(self) -> None:
        """Train until training is over; raises as `MachineActor.run`."""
        assert self._actor is not None, "it is prepared"
        await self._actor.run()

    async def answer(self, question: Question, sender: str) -> Answer:
        """Answer another machine; raises as `MachineActor.answer`."""
        assert self._actor is not None, "all are prepared before one runs"
        return await self._actor.answer(question, sender)

    def count(self) -> int:
        """Return how many turns it has had."""
        return len(self._log)

    def turns(self) -> tuple[TurnRecord, ...]:
        """Return its turns."""
        return self._log.turns()

    def _maker(self, program: ProfiledProgram | IdleTable, size: MachineSize) -> Callable[[], TierProgram]:
        if isinstance(program, IdleTable):
            return lambda: IdleProgram(program)
        if program.job.app:
            return lambda: self._application(program, size)
        os.environ.update(program.environ)
        job = program.job
        return lambda: wiring_tiers.start_script(program.argv, program.folder, size.slots, job.partitions)

    def _application(self, program: ProfiledProgram, size: MachineSize) -> TierProgram:
        memory_gib = wiring_tiers.turn_gib(size.memory_gib, size.slots)
        key = (size.kind, memory_gib)
        if key not in self._made:
            os.environ.update(program.environ)
            if program.folder not in sys.path:
                sys.path.insert(0, program.folder)
            wiring_tiers.check_program(program.job)
            self._made[key] = wiring_tiers.open_application(program.job, program.folder, memory_gib)
        return self._made[key]


class ProfiledCoordinator:
    """The coordinator of one training after another."""

    def __init__(self) -> None:
        self._actor: CoordinatorActor | None = None

    async def prepare(self, training: TierTraining, machines: tuple[TierMachine, ...]) -> ServerLayout:
        """Prepare for a training; return its first layout."""
        self._actor = CoordinatorActor(training, machines)
        return await self._actor.layout()

    async def run(self) -> None:
        """Decide until training is over; raises as `CoordinatorActor.run`."""
        await self._now().run()

    async def hear(self, report: TierReport) -> tuple[ServerLayout, CommittedClock]:
        """Take in a report; raises as `CoordinatorActor.hear`."""
        return await self._now().hear(report)

    async def newer(self, version: int) -> ServerLayout:
        """Return a newer layout, as `CoordinatorActor.newer`."""
        return await self._now().newer(version)

    async def rest(self) -> None:
        """Let training rest: it ends with the newest clock."""
        await self._now().rest()

    def _now(self) -> CoordinatorActor:
        assert self._actor is not None, "it is prepared"
        return self._actor


def short_folder() -> str:
    """Make a folder of Ray's; its path is short, since sockets are in it."""
    return tempfile.mkdtemp(prefix="wf-ray-", dir="/tmp")
