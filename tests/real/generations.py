"""Generations of several machines: each machine is a real `windfall exec` with its own folders, all on this computer."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.real import training_plain
from tests.real.machines import Machine, Run, descendants, wait_for, with_path
from windfall.storage import object_stores, restore
from windfall.terms import RecordKind

ROOT = Path(__file__).parents[2]
QUICK = ("--provider", "local", "--policy", "every 10 steps", "--lease", "2s", "--grace", "10s", "--wait")
TOKEN = "a-secret"


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Generations:
    """A run of several machines, one rank on each, and the generations that hold it one after the other."""

    def __init__(self, folder: Path, nodes: int = 2, steps: int = 60, command: Sequence[str] = ()) -> None:
        self.run = Run(folder, steps)
        self.nodes = nodes
        self.command = command or (sys.executable, "-m", "tests.real.training_ranks")
        self.variables = {"MEET": 1, "MEETINGS": folder / "meetings", "PYTHONPATH": with_path(ROOT)}

    @contextlib.contextmanager
    def generation(
        self,
        number: int,
        *,
        options: Sequence[str] = QUICK,
        nodes: Sequence[int] | None = None,
        address: str | None = None,
        **more: object,
    ) -> Iterator[list[Machine]]:
        """Start a generation's machines, the leader first; whatever is left of them at the end is killed.

        Args:
            number: of the generation.
            options: of `windfall exec`.
            nodes: which machines to start; all if not given.
            address: the leader's; a free one if not given.
            more: variables of the environment.
        """
        address = address or free_address()
        addresses = ",".join([address, *(f"127.0.0.1:{9 + node}" for node in range(1, self.nodes))])
        with contextlib.ExitStack() as stack:
            machines = []
            for node in range(self.nodes) if nodes is None else nodes:
                line = ("--generation", str(number), "--node-rank", str(node), "--peers", addresses)
                variables = {**self.variables, "WINDFALL_PEERS_TOKEN": TOKEN, **more}
                opened = self.run.machine(*self.command, options=(*options, *line), **variables)
                machines.append(stack.enter_context(opened))
            yield machines

    def codes(self, machines: Sequence[Machine]) -> list[int]:
        return [machine.code() for machine in machines]

    def first_steps(self, machines: Sequence[Machine]) -> set[int]:
        """The steps from which the scripts of these machines went on at their last start."""
        return {machine.starts()[-1][1] for machine in machines}

    def check_points(self) -> int:
        """Every live point has the part of every machine's rank, all of one step; return how many were committed."""
        commits = [record for record in self.run.records() if record.kind is RecordKind.COMMIT]
        reader = object_stores.open_reader(self.run.url)
        for ref in self.run.state().checkpoints:
            checkpoint = reader.run(restore.read_manifest(ref))
            assert [shard.rank for shard in checkpoint.shards] == list(range(self.nodes))
            assert all(shard.name.startswith(f"rank{shard.rank}-{ref.step}-") for shard in checkpoint.shards)
        return len(commits)

    def check_done(self) -> None:
        """The run is done, and every machine's part is what an undisturbed one would have."""
        self.run.check()
        self.check_points()
        for rank in range(self.nodes):
            assert self.run.newest(rank) == training_plain.undisturbed(self.run.steps, rank)


def stand_still(machine: Machine) -> set[int]:
    """Stop every process of a machine, as a hypervisor does that pauses it."""
    frozen: set[int] = set()
    while below := {machine.supervisor, *descendants(machine.supervisor)} - frozen:
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        frozen |= below
    return frozen


def wake(frozen: set[int]) -> None:
    """Let them go on."""
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def until_committed(run: Run, step: int) -> None:
    """Wait until a point of a step, or a later one, is in the log."""
    wait_for(lambda: run.records() and run.committed_step() >= step, f"a commit of step {step}")
