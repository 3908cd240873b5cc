"""Machines of an elastic training as processes of this host, below the coordinator that real trainings have.

A machine is a fork of a process that has imported torch, so that no start of Python is in any time.  The coordinator, its log
and the TCP store are those of a leading machine, and are in this process; machines whose names begin with R are reliable.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _elastic_model
from windfall import elastic
from windfall.core.shape_coordinator import ShapeCoordinator, ShapePatience
from windfall.core.shape_decisions import first_layout
from windfall.drill.elastic_drill import AskedPlanner
from windfall.linux.clock import SystemClock
from windfall.linux.listening import free_port
from windfall.models.elastic_profile import ElasticProfile
from windfall.models.shapes import Shape
from windfall.runtimes.shape_coordinator_loop import ShapeCoordinatorLoop, ShapeLoopPorts
from windfall.runtimes.shape_log import ShapeLog
from windfall.runtimes.shape_node import PlaceFile, TcpBoard
from windfall.runtimes.shape_store import newest_checkpoint
from windfall.shape_layout import ShapeReport
from windfall.shape_measurements import MEASURED
from windfall.storage.object_stores import open_store
from windfall.wire import environment

WITHIN_S = 90.0
STEPS = 1_000_000
IMPORTED = ("torch", "torch._dynamo", "windfall.runtimes.shape_engine", "benchmarks._elastic_fleet")
"""What machines have imported before they are forked; torch imports the second one when the first optimizer is made."""
SETTLE_S = 1.0
"""After a process has been made, until it may join: what it took from the others' processors is not to be in any step [s]."""


class FleetTerms(NamedTuple):
    """What is trained.

    Attributes:
        wait_s: that a sample takes, forward, in all layers [s].
        batch, micro_batch: samples.
        width: of the model.
        save_every: steps between checkpoints.
        deterministic: the result does not depend on the shape.
        shapes: that are allowed; empty: all.
        profile: of the layers; None: not known.
    """

    wait_s: float
    batch: int = 32
    micro_batch: int = 2
    width: int = 32
    save_every: int = 0
    deterministic: bool = False
    shapes: tuple[Shape, ...] = ()
    profile: ElasticProfile | None = None


class DoneStep(NamedTuple):
    """A step that a machine has finished, when [s], and in which version of the layout (others than ours have none: 0)."""

    at_s: float
    step: int
    layout: int


def machine(told: Mapping[str, Any]) -> None:
    """Run as a machine: build the model, wait until it may join, and train."""
    terms: FleetTerms = told["terms"]
    os.environ[environment.ELASTIC] = told["place"]
    layers = _elastic_model.layers_of(terms.width, terms.wait_s)
    model = elastic.Model(
        layers, _elastic_model.loss_of, _optimizer, batch=terms.batch, micro_batch=terms.micro_batch,
        deterministic=terms.deterministic, save_every=terms.save_every,
    )  # fmt: skip
    if told["held"]:
        Path(f"{told['place']}.built").touch()
        while not os.path.exists(f"{told['place']}.go"):
            time.sleep(0.002)
    times = _elastic_model.StepTimes(told["steps"])
    for step, _ in model.train(_elastic_model.DrawnWords(), STEPS):
        times.done(step, model._watch.report.layout)


def _optimizer(parameters: list[Any]) -> Any:
    import torch

    return torch.optim.AdamW(parameters, lr=1e-3)


class ElasticFleet:
    """Machines and a coordinator.

    Args:
        folder: of this fleet alone, but for `store`.
        store: folder of the run's store.
        terms: of the training.

    Attributes:
        planner: of the coordinator; its `asked` may be changed.
        loop: of the coordinator.
    """

    def __init__(self, folder: Path, store: Path, terms: FleetTerms) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        store.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
        self.folder, self._store, self._terms = folder, store, terms
        self._address = f"127.0.0.1:{free_port('127.0.0.1')}"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(IMPORTED))
        self._processes: dict[str, Any] = {}
        self._places: dict[str, tuple[PlaceFile, dict[str, Any]]] = {}
        objects, clock = open_store(store.as_uri()), SystemClock()
        log = ShapeLog(open_store((folder / "log").as_uri()))
        stored = newest_checkpoint(objects)
        layout = first_layout(stored)
        assert log.write_layout(layout)
        self.planner = AskedPlanner(16, terms.shapes, None, clock.now(), profile=terms.profile)
        coordinator = ShapeCoordinator(layout, self.planner.choose, ShapePatience(), clock.now())
        board = TcpBoard("127.0.0.1", int(self._address.rpartition(":")[2]))
        ports = ShapeLoopPorts(board, log, lambda: newest_checkpoint(objects), clock)
        self._board = board
        self.loop = ShapeCoordinatorLoop(coordinator, self.planner, ports, stored)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self.loop.run, args=(self._ended.is_set,), daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------------------------- machines

    def start(self, *names: str, held: bool = False) -> None:
        """Start machines; those that are held join once `join` is called."""
        for name in names:
            place = PlaceFile(str(self.folder / f"{name}.json"))
            content = {
                "store": self._address, "machine": name, "reliable": name.startswith("R"), "started_s": time.time(),
                "url": self._store.as_uri(), "leaving": False,
            }  # fmt: skip
            place.write(content)
            self._places[name] = (place, content)
            told = {
                "terms": self._terms, "place": place.path, "steps": str(self.steps_path(name)), "held": held,
            }  # fmt: skip
            process = self._context.Process(target=machine, args=(told,), daemon=True)
            process.start()
            self._processes[name] = process

    def join(self, name: str) -> float:
        """Let a machine that is held join once it has built its model, and return when [s]."""
        path = self._places[name][0].path
        until(lambda: os.path.exists(f"{path}.built"), f"{name} has built its model")
        time.sleep(SETTLE_S)
        at_s = time.monotonic()
        Path(f"{path}.go").touch()
        return at_s

    def kill(self, *names: str) -> float:
        """End machines without a word, and return when [s]."""
        at_s = time.monotonic()
        for name in names:
            os.kill(self._processes[name].pid, signal.SIGKILL)
        for name in names:
            self._processes[name].join(WITHIN_S)
        return at_s

    def announce(self, name: str) -> float:
        """Give a machine notice, and return when [s]."""
        place, content = self._places[name]
        at_s = time.monotonic()
        content["leaving"] = True
        place.write(dict(content))
        return at_s

    def close(self) -> None:
        """End all."""
        for process in self._processes.values():
            if process.is_alive():
                process.kill()
        self._ended.set()
        self._thread.join(WITHIN_S)
        for process in self._processes.values():
            process.join(WITHIN_S)

    # ---------------------------------------------------------------------------------------------------------- what they do

    def steps_path(self, name: str) -> Path:
        """Return the file to which a machine writes its steps."""
        return self.folder / f"{name}.steps"

    def steps(self, name: str) -> list[DoneStep]:
        """Return what a machine has finished so far."""
        return steps_in(self.steps_path(name))

    def names(self) -> list[str]:
        """Return all machines that were started."""
        return list(self._processes)

    def is_alive(self, name: str) -> bool:
        """Return whether a machine's process runs."""
        return bool(self._processes[name].is_alive())

    def stored(self) -> int:
        """Return the step of the newest checkpoint."""
        return newest_checkpoint(open_store(self._store.as_uri()))

    def report(self, name: str) -> ShapeReport | None:
        """Return what a machine last said to the coordinator."""
        return self.loop.coordinator.reports.get(name)

    def profile(self, name: str) -> dict[str, Any] | None:
        """Return what a machine last measured of its layers, and of what it has sent to the backup."""
        store, key = self._board._store, f"{MEASURED}{name}"
        return dict(json.loads(store.get(key))) if store.check([key]) else None

    def wait_shape(self, shape: Shape, names: Sequence[str], steps: int) -> None:
        """Wait until these machines train in a shape, and have done so many steps in it."""
        until(lambda: self._trains(shape, names), f"{shape} is trained by {', '.join(names)}; now {self.loop.layout}")
        base = {name: len(self.steps(name)) for name in names}
        until(
            lambda: all(len(self.steps(name)) >= base[name] + steps for name in names),
            f"{', '.join(names)} have done {steps} steps",
        )

    def _trains(self, shape: Shape, names: Sequence[str]) -> bool:
        layout, reports = self.loop.layout, [self.report(name) for name in names]
        return (
            (layout.pipelines, layout.stages) == shape
            and not layout.stop
            and {place.machine for place in layout.places} == set(names)
            and all(one is not None and one.layout == layout.version for one in reports)
        )


def steps_in(path: Path) -> list[DoneStep]:
    """Return the whole lines of a file of steps."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [DoneStep(float(at), int(step), int(layout)) for at, step, layout in (line.split() for line in lines)]


def until(done: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> None:
    """Wait for something."""
    end_s = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < end_s, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.005)


def first_after(steps: Sequence[DoneStep], layout: int) -> float:
    """Return when a machine finished its first step in a newer layout [s]."""
    return next(one.at_s for one in steps if one.layout > layout)


def paces(steps: Sequence[DoneStep], from_s: float, to_s: float) -> list[float]:
    """Return how long each step took that ended in a span of time [s]."""
    times = [one.at_s for one in steps]
    return [after - before for before, after in itertools.pairwise(times) if from_s < after <= to_s]


def median_pace(steps: Sequence[DoneStep], from_s: float, to_s: float) -> float:
    """Return the median time of the steps in a span of time [s]."""
    return statistics.median(paces(steps, from_s, to_s))


@contextlib.contextmanager
def elastic_fleet(folder: Path, terms: FleetTerms, store: Path | None = None) -> Iterator[ElasticFleet]:
    """Have a fleet, and end it."""
    found = ElasticFleet(folder, store or folder / "store", terms)
    try:
        yield found
    finally:
        found.close()
