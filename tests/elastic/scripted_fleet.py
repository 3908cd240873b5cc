"""Machines of an elastic training as processes of this host, and a coordinator that writes the layouts a test wants."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.elastic import elastic_script
from windfall.runtimes.shape_store import newest_checkpoint
from windfall.runtimes.shape_tcp import opened_store
from windfall.shape_layout import STORE, ShapeLayout, ShapeReport, StagePlace, StateMove
from windfall.storage.object_stores import open_store

LAYERS = 6
WITHIN_S = 250.0


def forked() -> Any:
    """Return what starts processes: by a server that has loaded torch, whichever test is the first to start one.

    The server loads only what it is told to before its first process; after that each would load torch for itself, for seconds.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch", "tests.elastic.storm_fleet", "tests.elastic.elastic_script", "windfall.runtimes.shape_engine"]
    )
    return context


class ScriptedFleet:
    """Processes that train, and what is said to them."""

    def __init__(self, folder: Path, script: Callable[[Mapping[str, Any]], None], layers: int, **options: Any) -> None:
        self.folder, self._options, self._script, self._layers = folder, options, script, layers
        self.store = opened_store("127.0.0.1", 0, WITHIN_S)
        self._processes: dict[str, Any] = {}
        self._context = forked()
        self.layout: ShapeLayout | None = None

    def start(self, *names: str, **options: Any) -> None:
        """Start machines; those whose names begin with R are reliable."""
        for name in names:
            place = self.folder / f"{name}.json"
            place.write_text(
                json.dumps(
                    {
                        "store": f"127.0.0.1:{self.store.port}",
                        "machine": name,
                        "reliable": name.startswith("R"),
                        "started_s": time.time(),
                        "url": str(self.folder / "store"),
                    }
                )
            )
            told = {**self._options, **options, "folder": str(self.folder), "machine": name, "place": str(place)}
            process = self._context.Process(target=self._script, args=(told,))
            process.start()
            self._processes[name] = process

    def kill(self, *names: str) -> None:
        """End machines without a word."""
        for name in names:
            os.kill(self._processes[name].pid, signal.SIGKILL)
        for name in names:
            self._processes[name].join(WITHIN_S)

    def freeze(self, name: str) -> None:
        """Let a machine stand still."""
        os.kill(self._processes[name].pid, signal.SIGSTOP)

    def close(self) -> None:
        """End what is left."""
        for process in self._processes.values():
            if process.is_alive():
                process.kill()
            process.join(WITHIN_S)
            process.close()

    def join(self) -> None:
        """Wait until all machines that still live have ended."""
        for process in self._processes.values():
            process.join(WITHIN_S)
            assert process.exitcode is not None

    # ------------------------------------------------------------------------------------------------------------- layouts

    def begin(self, pipelines: int, stages: int, machines: Sequence[str], *, step: int = 0, **more: Any) -> ShapeLayout:
        """Write a layout that begins a term; what its machines lack comes from those that hold it, else from the store."""
        return self._shape(pipelines, stages, machines, step=step, term=self._term + 1, base=step, **more)

    def plan(self, pipelines: int, stages: int, machines: Sequence[str], **more: Any) -> ShapeLayout:
        """Write a layout for which the one before is left at a step boundary."""
        assert self.layout is not None
        return self._shape(pipelines, stages, machines, step=None, term=self.layout.term, base=self.layout.base, **more)

    @property
    def _term(self) -> int:
        return 0 if self.layout is None else self.layout.term

    def _shape(
        self, pipelines: int, stages: int, machines: Sequence[str], *, step: int | None, term: int, base: int,
        backup: str | None = None, cut: tuple[int, ...] | None = None, gone: Sequence[str] = (),
    ) -> ShapeLayout:  # fmt: skip
        ends = cut or tuple(round(self._layers * stage / stages) for stage in range(stages + 1))
        places = tuple(
            StagePlace(pipeline, stage, machines[pipeline * stages + stage])
            for pipeline in range(pipelines)
            for stage in range(stages)
        )
        holders = self._holders(step, gone)
        moves: list[StateMove] = []
        wanted = [(place.machine, range(ends[place.stage], ends[place.stage + 1])) for place in places]
        wanted += [(backup, range(self._layers))] if backup else []
        for machine, layers in wanted:
            for layer in layers:
                if machine not in holders[layer]:
                    source = holders[layer][0] if holders[layer] else STORE
                    moves.append(StateMove(layer, layer + 1, source, machine))
        return self.write(
            pipelines=pipelines, stages=stages, cut=ends, places=places, moves=tuple(moves), step=step, term=term, base=base,
            backup=backup,
        )  # fmt: skip

    def _holders(self, step: int | None, gone: Sequence[str]) -> list[list[str]]:
        if step is not None:
            found: list[list[str]] = [[] for _ in range(self._layers)]
            for name in self._processes:
                report = self.report(name)
                if report is not None and name not in gone and report.term == self._term:
                    for first, end, held in report.held:
                        for layer in range(first, end):
                            if held == step and name not in found[layer]:
                                found[layer].append(name)
            return found
        assert self.layout is not None
        old = self.layout
        names = [place.machine for place in old.places]
        found = [[name for name in names if layer in old.layers(name)] for layer in range(self._layers)]
        return [[*names, *([old.backup] if old.backup else [])] for names in found]

    def stop(self) -> ShapeLayout:
        """Write that the layout is given up."""
        assert self.layout is not None
        old = self.layout
        return self.write(
            pipelines=old.pipelines, stages=old.stages, cut=old.cut, places=old.places, moves=(), step=None, stop=True,
            term=old.term, base=old.base, backup=old.backup,
        )  # fmt: skip

    def rest(self, step: int, saves: Sequence[StateMove]) -> ShapeLayout:
        """Write a layout in which all wait at a step, which some save."""
        return self.write(
            pipelines=0, stages=0, cut=(), places=(), moves=tuple(saves), step=None, term=self._term + 1, base=step
        )

    def over(self) -> None:
        """Write that training is over."""
        self.write(pipelines=0, stages=0, cut=(), places=(), moves=(), step=None, term=self._term, base=0, over=True)

    def write(self, **fields: Any) -> ShapeLayout:
        """Write a layout."""
        version = 1 if self.layout is None else self.layout.version + 1
        layout = ShapeLayout(
            record=version, version=version, coordinator=1, because="the test", redone=0, checkpoint=0, left=(),
            **{"stop": False, "backup": None, **fields},
        )  # fmt: skip
        self.layout = layout
        self.store.set("layout", msgspec.json.encode(layout))
        return layout

    # -------------------------------------------------------------------------------------------------------------- reports

    def report(self, name: str) -> ShapeReport | None:
        """Return what a machine last said."""
        key = f"report/{name}"
        return msgspec.json.decode(self.store.get(key), type=ShapeReport) if self.store.check([key]) else None

    def wait(self, names: Sequence[str], wanted: Callable[[ShapeReport], bool], within_s: float = WITHIN_S) -> None:
        """Wait until machines report something."""
        end_s = time.monotonic() + within_s
        while True:
            reports = {name: self.report(name) for name in names}
            if all(report is not None and wanted(report) for report in reports.values()):
                return
            failed = [report.failure for report in reports.values() if report is not None and report.failure]
            assert not failed, failed
            assert time.monotonic() < end_s, reports
            time.sleep(0.01)

    def wait_made(self, names: Sequence[str]) -> None:
        """Wait until machines have made the newest layout."""
        assert self.layout is not None
        version = self.layout.version
        self.wait(names, lambda report: report.layout == version)

    def wait_step(self, names: Sequence[str], step: int) -> None:
        """Wait until machines have finished a step in the newest layout."""
        self.wait_made(names)
        self.wait(names, lambda report: report.trained >= step)

    def wait_failure(self, names: Sequence[str]) -> None:
        """Wait until a machine reports that its program failed."""
        end_s = time.monotonic() + WITHIN_S
        while not any(report is not None and report.failure for report in map(self.report, names)):
            assert time.monotonic() < end_s
            time.sleep(0.01)

    def finish(self, names: Sequence[str], steps: int) -> None:
        """Let the training come to its end."""
        self.wait_step(names, steps)
        self.wait_stored(steps)
        self.over()
        self.join()

    def wait_stored(self, step: int) -> None:
        """Wait until a step is whole in the store."""
        end_s = time.monotonic() + WITHIN_S
        while self.stored() < step:
            assert time.monotonic() < end_s
            time.sleep(0.01)

    def common_step(self, names: Sequence[str]) -> int:
        """Return the newest step of which these machines together hold all layers, and each that trained a state."""
        steps = []
        for layer in range(self._layers):
            held = set()
            for name in names:
                report = self.report(name)
                assert report is not None
                held |= {step for first, end, step in report.held if first <= layer < end}
            steps.append(held)
        return max(set.intersection(*steps))

    def stored(self) -> int:
        """Return the step of the newest checkpoint."""
        return newest_checkpoint(open_store(str(self.folder / "store")))

    # -------------------------------------------------------------------------------------------------------------- results

    def repeated(self) -> dict[str, int]:
        """Return how many steps each machine has done more than once."""
        found = {}
        for path in sorted(self.folder.glob("*.steps")):
            steps = [step for step, *_ in _lines(path)]
            found[path.stem] = len(steps) - len(set(steps))
        return found

    def losses(self) -> dict[int, float]:
        """Return each step's loss, which all machines must agree on; of a step that came twice the last."""
        found: dict[int, float] = {}
        for path in sorted(self.folder.glob("*.steps")):
            mine = {step: loss for step, loss, _, _ in _lines(path)}
            for step, loss in mine.items():
                assert found.setdefault(step, loss) == loss, (path, step)
        return found

    def samples(self) -> dict[int, list[int]]:
        """Return the samples of each step, of all machines, in no order."""
        found: dict[int, list[int]] = {}
        for path in sorted(self.folder.glob("*.steps")):
            for step, _, seen, _ in _lines(path):
                found.setdefault(step, []).extend(seen)
        return found

    def digests(self) -> set[str]:
        """Return the digests of the final states of all machines."""
        return {path.read_text() for path in self.folder.glob("*.end")}


def _lines(path: Path) -> Iterator[Any]:
    for line in path.read_text().splitlines():
        yield json.loads(line)


@contextmanager
def fleet(
    folder: Path,
    script: Callable[[Mapping[str, Any]], None] = elastic_script.train,
    layers: int = LAYERS,
    **options: Any,
) -> Iterator[ScriptedFleet]:
    """Have machines, and end them."""
    folder.mkdir(parents=True, exist_ok=True)
    found = ScriptedFleet(folder, script, layers, **options)
    try:
        yield found
    finally:
        found.close()


def alone(
    folder: Path, options: Mapping[str, Any], script: Callable[[Mapping[str, Any]], None] = elastic_script.train
) -> tuple[dict[int, float], str]:
    """Train in one process without a coordinator; return losses and the digest of the final state."""
    folder.mkdir(parents=True)
    context = forked()
    process = context.Process(target=script, args=({**options, "folder": str(folder), "machine": "alone"},))
    process.start()
    process.join(WITHIN_S)
    assert process.exitcode == 0
    losses = {step: loss for step, loss, _, _ in _lines(folder / "alone.steps")}
    return losses, (folder / "alone.end").read_text()
