"""A bag without a controller: the product's dispatcher, and its runners as real processes that may be killed.

The dispatcher's turns are done by whoever waits; a runner is `python -m windfall.cli.item_process`, as a node agent starts it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.support.live import plain_environment
from windfall.agent import status_files
from windfall.agent.exec_request import ExecRequest, save
from windfall.bags import Bag, ItemEnd, ItemOutcome, ItemRecord, Value
from windfall.errors import StoreError
from windfall.events import EstimatesChanged
from windfall.linux.clock import SystemClock
from windfall.linux.random_names import new_nonce
from windfall.policies.layout.bag_rules import settings_of
from windfall.runtimes.item_dispatcher import ItemDispatcher, read_records
from windfall.spec.bag_block import BagBlock
from windfall.spec.bag_rows import rows_of, to_bag
from windfall.storage import store_operations
from windfall.storage.object_stores import open_store
from windfall.terms import GRACE_S, RunOptions, Seconds
from windfall.wire import bag_layout

SHELL = ("bash", "-euo", "pipefail", "-c")
ROWS_EACH = 1000
RESTART_S = 0.1


@dataclass
class BagMachine:
    """A runner's process; its folder stays after it is killed."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Take it away without a word, with all that runs on it."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    @property
    def text(self) -> str:
        return (self.folder / "printed").read_text(errors="replace")


@dataclass
class BagRig:
    """A bag in a folder of its own."""

    folder: Path
    bag: Bag
    command: str
    mttp_s: float | None = None
    grace_s: float = GRACE_S
    code: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    machines: list[BagMachine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store = open_store(f"file://{self.folder / 'run'}")
        self.clock = SystemClock()
        self.dispatcher = ItemDispatcher(self.clock, self.bag, new_nonce)

    def write_rows(self, rows: Sequence[Sequence[Value]]) -> None:
        """Write the rows of the parameter space."""
        for part, key in enumerate(self.bag.rows):
            self.store.put(key, bag_layout.rows_to_bytes(rows[part * ROWS_EACH : (part + 1) * ROWS_EACH]))

    def machine(self) -> BagMachine:
        """Start a machine."""
        name = f"m-{len(self.machines)}"
        folder = self.folder / name
        work = folder / "work"
        work.mkdir(parents=True)
        for entry in () if self.code is None else self.code.iterdir():
            os.symlink(entry, work / entry.name)
        if self.mttp_s is not None:
            estimates = EstimatesChanged(Seconds(self.mttp_s), restart_s=Seconds(RESTART_S))
            status_files.write(str(folder / "estimates"), [estimates])
        request = ExecRequest(
            self.store.url, (*SHELL, self.command), str(work), RunOptions(grace_s=Seconds(self.grace_s)),
            str(folder / "state"), machine=name, status=str(folder / "status.json"),
            estimates=str(folder / "estimates"), settings=settings_of(self.bag),
        )  # fmt: skip
        save(request, str(folder / "request"))
        self.machines.append(BagMachine(name, folder, self._start(folder)))
        return self.machines[-1]

    def restart(self, machine: BagMachine) -> None:
        """Start a machine's program again, as its node agent does."""
        machine.process = self._start(machine.folder)

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        with (folder / "printed").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "windfall.cli.item_process", str(folder / "request")],
                cwd=folder / "work", env={**plain_environment(), **self.environment}, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def lose(self, machine: BagMachine) -> None:
        """Kill a machine, and let the dispatcher know that it is gone."""
        machine.kill()
        self.gone.add(machine.name)

    def turn(self) -> None:
        """One turn of the dispatcher."""
        with suppress(StoreError):
            store_operations.run(self.dispatcher.turn(gone=tuple(self.gone)), self.store, self.clock)

    def until(self, done: Callable[[], object], what: str, limit_s: float = 12.0) -> None:
        """Do turns until something is so."""
        deadline = time.monotonic() + limit_s
        while not done():
            printed = "".join(machine.text for machine in self.machines)
            assert time.monotonic() < deadline, (
                f"not within {limit_s:g} s: {what}; {self.dispatcher.table.counts}\n{printed}"
            )
            self.turn()
            time.sleep(0.02)

    def until_over(self, limit_s: float = 60.0) -> None:
        """Do turns until the bag is over."""
        self.until(lambda: self.dispatcher.table.closed, "the bag is over", limit_s)
        self.turn()

    # ---------------------------------------------------------------------------------------------------------- the truth

    def records(self) -> list[ItemRecord]:
        """The bag's log."""
        return store_operations.run(read_records(0), self.store, self.clock)

    def outcomes(self) -> list[ItemOutcome]:
        """All outcomes that count, in the order of the log."""
        return [outcome for record in self.records() for _, outcome in record.outcomes]

    def done(self) -> dict[int, ItemOutcome]:
        """The outcome of each item that is done; none is done twice."""
        found = [outcome for outcome in self.outcomes() if outcome.end is ItemEnd.DONE]
        assert len({outcome.lease.item for outcome in found}) == len(found), "an item is counted twice"
        return {outcome.lease.item: outcome for outcome in found}

    def file(self, outcome: ItemOutcome, path: str) -> bytes:
        """The content of a file that was kept of an item."""
        (key,) = [file.key for file in outcome.files if file.path == path]
        data = self.store.get(key)
        assert data is not None
        return data

    def printed(self, outcome: ItemOutcome) -> str:
        """What an item printed."""
        assert outcome.output is not None
        data = self.store.get(outcome.output.key)
        assert data is not None
        return data[outcome.output.offset :][: outcome.output.size_bytes].decode()

    def saves(self, item: int) -> list[str]:
        """The keys of an item's saves, oldest first."""
        return self.store.list(f"items/restart/{item}/saves/")


@contextmanager
def bag_rig(
    folder: Path,
    rows: Sequence[Sequence[Value]],
    names: Sequence[str],
    command: str,
    *,
    settings: Mapping[str, object] | None = None,
    **options: object,
) -> Iterator[BagRig]:
    """A bag with these rows; at the end of the block all of its machines are gone."""
    parts = tuple(bag_layout.rows_key("d", part) for part in range(-(-len(rows) // ROWS_EACH)))
    bag = Bag(len(rows), tuple(names), parts, ROWS_EACH, **{"shuffled": False, **(settings or {})})  # type: ignore[arg-type]
    rig = BagRig(folder, bag, command, **options)  # type: ignore[arg-type]
    rig.write_rows(rows)
    try:
        yield rig
    finally:
        for machine in rig.machines:
            machine.kill()


@contextmanager
def example_rig(
    folder: Path, file: Path, parameters: Mapping[str, object], *, sampled: bool = False, **options: object
) -> Iterator[BagRig]:
    """The bag of a job file as it is written, with other parameters where some are named."""
    written = yaml.safe_load(file.read_text())
    described = written["bag"] | {"order": "given", "parameters": written["bag"]["parameters"] | dict(parameters)}
    if not sampled:
        described.pop("samples", None)
    block = BagBlock.model_validate(described)
    rows = rows_of(block, lambda _: None)
    options["environment"] = written.get("envs", {})
    rig = BagRig(folder, to_bag(block, rows), written["run"], code=file.parent, **options)  # type: ignore[arg-type]
    for key, data in rows.objects().items():
        rig.store.put(key, data)
    try:
        yield rig
    finally:
        for machine in rig.machines:
            machine.kill()


def below(pid: int) -> list[int]:
    """The processes below one, by /proc."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, IndexError):
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    found, frontier = [], [pid]
    while frontier:
        frontier = [one for one, parent in parents.items() if parent in frontier]
        found += frontier
    return found
