"""Processes of the live storm: machines that train, and a leader with the TCP store, the real coordinator and the real log."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from tests.elastic import storm_script
from tests.elastic.scripted_fleet import fleet, forked
from tests.elastic.storm_script import LAYERS
from windfall import wiring_shapes
from windfall.core.shape_coordinator import ShapePatience
from windfall.core.shape_decisions import ShapeChoice, ShapeMoment
from windfall.linux.listening import free_port
from windfall.models.shapes import IDLE, Shape
from windfall.policies.layout import shape_rules
from windfall.runtimes.shape_log import ShapeLog
from windfall.runtimes.shape_node import PlaceFile, TcpBoard
from windfall.runtimes.shape_watch import connected
from windfall.shape_layout import ShapeLayout, ShapeReport
from windfall.storage.object_stores import open_store
from windfall.wire import shape_records

MACHINES_MAX = 8
SHAPES = tuple(
    Shape(pipelines, stages)
    for stages in (1, 2, 3, 4)
    for pipelines in range(1, 5)
    if pipelines * stages <= MACHINES_MAX and stages <= LAYERS
)
RELIABLE_LOST_S = 6.0
"""In place of 15 s, which a storm of forty changes need not wait for each backup that is lost."""


class SeededShapes:
    """Takes the place of the planner: shapes by a seed, another one each time the file `whim` changes."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self.now_s, self.resting = 0.0, False

    def choose(self, moment: ShapeMoment) -> ShapeChoice:
        """Return a shape: one of those that leave the fewest machines without work, twice as often as any other."""
        fitting = [shape for shape in SHAPES if shape.machines <= moment.ready]
        if not fitting:
            return ShapeChoice(IDLE, "no machine")
        whim = (self._folder / "whim").read_text()
        large = [shape for shape in fitting if shape.machines >= moment.ready - 1]
        chance = random.Random(f"{self._seed} {moment.ready} {whim}")
        return ShapeChoice(chance.choice([*fitting, *large, *large]), f"whim {whim}")


def lead(options: Mapping[str, Any]) -> None:
    """Hold the TCP store and the coordinator until training is over."""
    folder = Path(options["folder"])
    sys.stderr.flush()
    os.dup2(os.open(folder / "leader.err", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), 2)
    store = open_store(options["url"])
    shapes = SeededShapes(folder, options["seed"])
    with (
        patch.object(wiring_shapes, "ShapePlanner", lambda *args, **more: shapes),
        patch.object(wiring_shapes, "ShapePatience", lambda: ShapePatience(reliable_lost_after_s=RELIABLE_LOST_S)),
    ):
        board = TcpBoard("127.0.0.1", options["port"])
        loop = wiring_shapes.open_coordinator(
            ShapeLog(store), store, board, shape_rules.job_of({"nodes": f"1..{MACHINES_MAX}"})
        )
    loop.run(lambda: False)


class StormFleet:
    """The processes, and what is known of them."""

    def __init__(self, folder: Path, seed: int, **options: Any) -> None:
        folder.mkdir(parents=True)
        self.folder, self._seed, self._options = folder, seed, options
        self.url = str(folder / "store")
        self.log = ShapeLog(open_store(self.url))
        self._context = forked()
        self._processes: dict[str, Any] = {}
        self._places: dict[str, dict[str, Any]] = {}
        self._leader: Any = None
        self._address = ""
        self._client: Any = None
        self._layout: ShapeLayout | None = None
        self.killed: dict[str, float] = {}
        self.let("whim", 0)
        self.let("allowed", 0)

    def let(self, name: str, number: int) -> None:
        """Write a number to a file that processes read."""
        path = self.folder / name
        path.with_suffix(".new").write_text(str(number))
        path.with_suffix(".new").replace(path)

    def note(self, text: str) -> None:
        """Write what the storm does, for whoever reads why it failed."""
        with (self.folder / "changes").open("a") as file:
            file.write(text + "\n")

    # ------------------------------------------------------------------------------------------------------------ processes

    def start_leader(self) -> None:
        """Start the leader; machines are told where it is."""
        port = free_port()
        self._address = f"127.0.0.1:{port}"
        told = {"folder": str(self.folder), "url": self.url, "seed": self._seed, "port": port}
        self._leader = self._context.Process(target=lead, args=(told,))
        self._leader.start()
        self._client = None
        for name in self.alive():
            self._tell(name, store=self._address)

    def kill_leader(self) -> None:
        """End the leader without a word."""
        self._leader.kill()
        self._leader.join()

    def start(self, name: str) -> None:
        """Start a machine; those whose names begin with R are reliable."""
        place = {"machine": name, "reliable": name.startswith("R"), "started_s": time.time(), "url": self.url}
        self._places[name] = {}
        self._tell(name, store=self._address, **place)
        told = {**self._options, "folder": str(self.folder), "machine": name, "place": str(self._place(name))}
        process = self._context.Process(target=storm_script.train, args=(told,))
        process.start()
        self._processes[name] = process

    def announce(self, name: str) -> None:
        """Tell a machine that its end comes."""
        self._tell(name, leaving=True)

    def kill(self, *names: str) -> None:
        """End machines without a word, all at once."""
        for name in names:
            self.killed[name] = time.time()
            with suppress(ProcessLookupError):
                os.kill(self._processes[name].pid, signal.SIGKILL)
        for name in names:
            self._processes[name].join()

    def alive(self) -> list[str]:
        """Return the machines whose process runs."""
        return [name for name, process in self._processes.items() if process.is_alive()]

    def exit_codes(self) -> dict[str, int]:
        """Return the exit codes of machines that were not killed; 99 for one that does not end."""
        for name, process in self._processes.items():
            process.join(30.0 if name not in self.killed else None)
        return {
            name: 99 if process.exitcode is None else process.exitcode
            for name, process in self._processes.items()
            if name not in self.killed
        }

    def close(self) -> None:
        """End what is left."""
        for process in [*self._processes.values(), self._leader]:
            if process is not None:
                process.kill()
                process.join()

    def errors(self) -> str:
        """Return the last that any process has written to stderr."""
        texts = [(path.stem, path.read_text().strip()[-1500:]) for path in sorted(self.folder.glob("*.err"))]
        return "\n".join(f"{name}: {text}" for name, text in texts if "Traceback" in text)

    def _place(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _tell(self, name: str, **changes: Any) -> None:
        self._places[name] |= changes
        PlaceFile(str(self._place(name))).write(self._places[name])

    # ------------------------------------------------------------------------------------------------------------ what is seen

    def layout(self) -> ShapeLayout | None:
        """Return the newest layout of the log."""
        self._layout = self.log.newest_layout(self._layout)
        return self._layout

    def reports(self) -> dict[str, ShapeReport]:
        """Return what machines last said to this leader; nothing while it does not answer."""
        try:
            if self._client is None:
                self._client = connected(self._address)
            keys = [f"report/{name}" for name in self.alive()]
            there = [key for key in keys if self._client.check([key])]
            found = (
                [msgspec.json.decode(data, type=ShapeReport) for data in self._client.multi_get(there)] if there else []
            )
        except (OSError, RuntimeError):
            self._client = None
            return {}
        return {report.machine: report for report in found}

    def layouts(self) -> list[tuple[float, ShapeLayout]]:
        """Return all layouts, with the time at which each was written."""
        found, record = [], 1
        while (path := self.folder / "store" / "shapes" / "log" / f"{record:08d}").exists():
            found.append((path.stat().st_mtime, shape_records.LAYOUT_FORM.from_bytes(path.read_bytes())))
            record += 1
        return found


def alone(folder: Path, options: Mapping[str, Any]) -> None:
    """Train in one process without a coordinator."""
    folder.mkdir(parents=True)
    process = forked().Process(
        target=storm_script.train, args=({**options, "folder": str(folder), "machine": "alone"},)
    )
    process.start()
    process.join(240.0)
    assert process.exitcode == 0, (folder / "alone.err").read_text()[-2000:]


def fixed_shape(folder: Path, pipelines: int, stages: int, options: Mapping[str, Any]) -> None:
    """Train in one shape from the first step to the last."""
    names = [f"m{number}" for number in range(pipelines * stages)]
    with fleet(folder, storm_script.train, LAYERS, **options) as machines:
        machines.start(*names)
        machines.begin(pipelines, stages, names)
        machines.finish(names, options["steps"])


def lines(path: Path) -> list[list[Any]]:
    """Return a machine's record; the last line of a machine that was killed may be torn."""
    found = []
    for line in path.read_text().splitlines():
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found
