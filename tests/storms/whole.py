"""The whole storm: worker and storage step functions of several machines on one simulated store, one operation at a time.

A seed draws who contends, what the script does, and what goes wrong: machines, agents and scripts that die, machines
that stop for longer than their lease, notices that suffice, do not, lie or are withdrawn, files torn while they are
uploaded, replies lost and doubled, wall clocks that jump, power cuts under the store, stored bytes that decay.  Every
promise is checked at every event; then the faults stop, and the run must finish in bounded time.

Replay a failure with `python -m tests.storms.whole --seed N [--bug NAME]`.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from unittest.mock import patch

from tests.storms import planted_whole
from tests.storms.whole_checks import ROOT, RunChecks
from tests.storms.whole_machine import Machine
from tests.storms.whole_scene import LEASE_S, Habits, draw
from tests.support.checks import Violation, demand
from tests.support.scene import Scene
from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tests.support.simulated_disk import Process as Files
from tests.support.simulated_store import Actor, Faults, MemoryStore, World, digest
from windfall.core import checkpoints
from windfall.errors import StoreUnreachable, WindfallError
from windfall.ports import Get, GetRange, List, ObjectStore, PutRange, SimpleOp, Steps
from windfall.storage import restore, shard_transfer
from windfall.storage.file_store import FileStore
from windfall.storage.store_operations import perform
from windfall.terms import Holder

CHUNK_BYTES = 128
CHUNKS_AT_ONCE = 2
GRACE_S = 8.0
"""Small, so that a state has several chunks and old points go within a machine's life."""
MACHINES_MAX = 60
TRANSFER_S = 0.8
"""A chunk takes up to so long."""
LOCAL = Get | GetRange | List | PutRange
"""Operations of which nothing is on its way any more once their process is dead."""


@dataclass(eq=False)
class Process(Actor):
    """One life of a machine's agent, as the scheduler sees it."""

    machine: Machine | None = None
    store: ObjectStore = field(default_factory=MemoryStore)
    files: Files = field(default_factory=lambda: Files(SimulatedDisk()))


class Whole(World):
    """Time, chance, the store and the machines."""

    def __init__(self, seed: int, folder: str) -> None:
        self.scene, self.habits = self.draw(seed)
        faults = Faults(
            lost_reply=0.015, doubled=0.015, unreachable=0.01, pause=0.006, crash=0.003, clock_jump=0.01,
            calm_at=self.scene.calm_s,
        )  # fmt: skip
        super().__init__(seed, faults, lambda *_: None, lambda _: None)
        self.folder = folder
        self.disk = SimulatedDisk(seed) if self.habits.on_disk else None
        self.machines: list[Machine] = []
        self.tally: Counter[str] = Counter()
        self.saves = 0
        self.sent: dict[int, tuple[SimpleOp, bytes | OSError | EOFError]] = {}
        self.hosts = itertools.count()
        self.checks = self.new_checks()

    def draw(self, seed: int) -> tuple[Scene, Habits]:
        return draw(seed)

    def new_checks(self) -> RunChecks:
        return RunChecks(self)

    # ------------------------------------------------------------------------------------------- as machines see it

    @property
    def now(self) -> float:
        return self.time

    def count(self, what: str) -> None:
        self.tally[what] += 1

    def jitter(self, value: float) -> float:
        return value * self.rng.uniform(0.97, 1.03)

    def nonce(self) -> str:
        return f"{self.rng.getrandbits(48):012x}"

    def process(self, machine: Machine) -> Process:
        """Return the next life of a machine's agent; its clocks go on."""
        files = Files(self.disk or SimulatedDisk())
        store = self.store if self.disk is None else FileStore(ROOT, files)
        if isinstance(getattr(machine, "process", None), Process):
            process = copy.copy(machine.process)
            process.dead = False
        else:
            like = self.actor(f"m{machine.number}", machine.host)
            process = Process(
                like.name, like.host, like.drift, like.monotonic_offset, like.wall_offset, self, machine=machine
            )
        process.files, process.store = files, store
        return process

    def is_dead(self, holder: Holder) -> bool:
        return not self.machines[holder.pid].alive

    def next_machine(self, delay_s: float) -> None:
        """The same line is started on a machine of its own, or again on the host of a dead one."""

        def start() -> None:
            alive = [machine for machine in self.machines if machine.alive]
            if self.checks.done or len(alive) >= self.habits.machines or (self.calm and alive):
                return
            demand(len(self.machines) < MACHINES_MAX, "machines do not follow one another for ever")
            idle = sorted({machine.host for machine in self.machines} - {machine.host for machine in alive})
            host = self.rng.choice(idle) if idle and self.rng.random() < 0.3 else f"host{next(self.hosts)}"
            machine = Machine(self, len(self.machines), host)
            self.machines.append(machine)
            machine.begin()

        self.at(delay_s, start)

    def machine_gone(self, machine: Machine) -> None:
        del machine
        self.next_machine(self.rng.uniform(0.5, 8.0))

    # -------------------------------------------------------------------------------------------------- the operations

    def _resume(self, actor: Actor, steps: Steps[object], value: object, *, first: bool = False) -> None:
        assert isinstance(actor, Process)
        assert actor.machine is not None
        rest_s = actor.machine.world.stopped_until - self.time
        if rest_s > 0 and not actor.dead:
            self.at(rest_s, lambda: self._resume(actor, steps, value, first=first))
        else:
            super()._resume(actor, steps, value, first=first)

    def _begin(self, actor: Actor, op: SimpleOp, answer) -> None:  # type: ignore[no-untyped-def]
        if not isinstance(op, PutRange | GetRange):
            super()._begin(actor, op, answer)
            return
        if isinstance(op, PutRange):
            self._trouble(actor, op)
            if self.disk is None:
                self.sent[id(op)] = (op, _stretch(op))
        self.at(self.rng.uniform(0.0, TRANSFER_S), lambda: super(Whole, self)._begin(actor, op, answer))

    def _trouble(self, actor: Actor, op: PutRange) -> None:
        """Now and then the script writes into a file that is just being uploaded, or the agent dies amid an upload."""
        assert isinstance(actor, Process)
        assert actor.machine is not None
        checkpoint = self.rng.random()
        if self.calm or checkpoint > 0.035:
            return
        if checkpoint > 0.02:
            self.at(0.01, actor.machine.agent_dies)
        elif os.path.exists(op.path):
            with open(op.path, "rb") as file:
                data = file.read()
            actor.machine.write(op.path, bytes(255 - byte for byte in data))
            self.count("torn")

    def _apply(self, actor: Actor, op: SimpleOp) -> object:
        assert isinstance(actor, Process)
        if actor.dead and (self.disk is not None or isinstance(op, Get | GetRange | List)):
            return None
        if self.disk is not None and not self.calm and self.rng.random() < 0.0015:
            actor.files.die_in(self.rng.randint(0, 12))
        try:
            result = self._perform(actor, op)
        except (WindfallError, OSError, EOFError) as error:
            result = error
        except PowerCut:
            result = self._cut(actor)
        self.checks.observe(actor, op, result)
        return result

    def _perform(self, actor: Process, op: SimpleOp) -> object:
        if not isinstance(op, PutRange) or self.disk is not None:
            return perform(op, actor.store, actor)
        data = self.sent[id(op)][1]
        if isinstance(data, Exception):
            raise data
        actor.store.put(op.key, data)
        return digest(data)

    def _draw(self) -> str | None:
        fault = super()._draw()
        # A file system does not carry out what was asked of it once, twice.
        return None if fault == "doubled" and self.disk is not None else fault

    def _cut(self, actor: Process) -> object:
        """A process died amid an operation, or the store's host lost its power."""
        assert self.disk is not None
        if not self.disk.dead:
            self.count("died amid an operation")
            self.kill(actor)
            return None
        self.count("power cut")
        self.disk.restart()
        # Who has seen what was not synced yet is on the same host, and dies with it.
        survivors = self.checks.after_cut()
        for machine in self.machines:
            if machine.alive and not (survivors and self.rng.random() < 0.7):
                machine.dies()
        return StoreUnreachable("the store's host was away")

    def kill(self, actor: Actor) -> None:
        assert isinstance(actor, Process)
        machine = actor.machine
        if actor.dead or machine is None:
            return
        if self.rng.random() < 0.5:
            machine.dies()
        else:
            machine.agent_dies()

    # --------------------------------------------------------------------------------------------------------- the run

    def storm(self) -> None:
        """Run until the run is done; it must be in bounded time once the faults are over."""
        scene = self.scene
        self.next_machine(0.0)
        for _ in range(self.habits.machines - 1):
            self.next_machine(self.rng.uniform(0.0, scene.calm_s))
        if self.disk is not None:
            for _ in range(self.habits.power_cuts):
                self.at(self.rng.uniform(0.0, scene.calm_s), lambda: self.disk.cut_in(self.rng.randint(0, 40)))  # type: ignore[union-attr]
        for _ in range(self.habits.decays):
            self.at(self.rng.uniform(0.0, scene.calm_s), self.checks.decay)
        bound_s = scene.calm_s + 3 * scene.steps * (scene.step_s + scene.stall_s) + 40 * LEASE_S
        while (soon := self.next_at()) is not None and not self.checks.done:
            demand(soon <= bound_s, f"once the faults stop the run ends in bounded time ({bound_s:.0f} s)")
            self.run(soon)
        demand(self.checks.done, "something always happens until the run is done")
        self.calm_down()
        self.checks.at_the_end()

    def calm_down(self) -> None:
        """Let what is under way end."""
        self.run(self.time + 20 * LEASE_S)
        left = [machine.number for machine in self.machines if machine.alive]
        demand(not left, f"every contender learns that the run is done, and ends: {left}")


def _stretch(op: PutRange) -> bytes | OSError | EOFError:
    """Read what an upload sends at the moment at which it sends it."""
    try:
        with open(op.path, "rb") as file:
            data = os.pread(file.fileno(), op.size_bytes, op.offset)
    except OSError as error:
        return error
    return data if len(data) == op.size_bytes else EOFError(op.path)


def storm(seed: int, bug: str | None = None) -> Whole:
    """Run one seed.

    Raises:
        Violation: a promise was broken; the message ends with the command that replays it.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="windfall-storm-", dir=memory)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for module, name, value in (
            (shard_transfer, "CHUNK_BYTES", CHUNK_BYTES),
            (shard_transfer, "CHUNKS_AT_ONCE", CHUNKS_AT_ONCE),
            (restore, "CHUNKS_AT_ONCE", CHUNKS_AT_ONCE),
            (checkpoints, "GRACE_S", GRACE_S),
        ):
            stack.enter_context(patch.object(module, name, value))
        try:
            world = Whole(seed, folder)
            if bug is not None:
                stack.enter_context(planted_whole.bug(bug, world))
            world.storm()
        except Exception as error:
            again = f"python -m tests.storms.whole --seed {seed}" + (f" --bug '{bug}'" if bug else "")
            raise Violation(f"{error!r}\nreplay: {again}") from error
    return world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--bug", choices=sorted(planted_whole.BUGS))
    arguments = parser.parse_args()
    world = storm(arguments.seed, arguments.bug)
    for record in world.checks.records:
        steps = [checkpoint.step for checkpoint in record.state.checkpoints]
        print(f"{record.number:4d} {record.kind:8s} term {record.state.term:3d} points {steps}")
    print(dict(world.tally))


if __name__ == "__main__":
    main()
