"""`windfall drill JOB --profile` of an elastic training: what its layers take, and what each change of shape costs.

Machines are processes of this host that run the job's script, below the coordinator that real trainings have.  They train some
steps in each of a list of shapes, so that machines join, layers are cut into other stages, and a spare takes the place of a
machine that is given notice.  What they measure is the profile, as `windfall ps JOB --profile` prints it of a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Final

from windfall import wiring_shapes
from windfall.core.shape_decisions import ShapeChoice, ShapeMoment
from windfall.core.shape_planner import ShapePlanner, compile_plans
from windfall.drill.busy_cores import BusyCores
from windfall.drill.elastic_drill_report import DrilledShape, ElasticDrillResult
from windfall.errors import Misuse, RunFailed
from windfall.jobs import Job
from windfall.linux.clock import SystemClock
from windfall.linux.listening import free_port
from windfall.models.measured_profile import measured_profile, with_changes
from windfall.models.pipeline_profile import step_s
from windfall.models.shapes import IDLE, Shape
from windfall.policies.layout import shape_rules
from windfall.policies.layout.shape_rules import ElasticJob
from windfall.policies.policy_registry import ELASTIC
from windfall.runtimes.shape_log import ShapeLog
from windfall.runtimes.shape_node import PlaceFile, ShapeScript, TcpBoard, started
from windfall.shape_layout import ShapeReport
from windfall.storage.object_stores import folder_url, open_store
from windfall.structs import Struct
from windfall.terms import Seconds
from windfall.wire import environment
from windfall.wire.python_programs import snippet, user_environment

MACHINES_USUAL, MACHINES_MAX = 3, 8
"""Machines that train at once: the first number, or what the job's smallest shape needs, up to the second."""
STEPS_MIN: Final = 4
"""Machines say what they measured after their third step of a shape, and after the tenth."""
HOST: Final = "127.0.0.1"
_LOOK_S = Seconds(0.02)
_DIES_WITH_DRILL: Final = """
import os, sys
from windfall.linux import processes
processes.die_with_parent(int(sys.argv[1]))
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Becomes the command of its arguments; a drill has threads, so that its children cannot do so by themselves."""
Show = Callable[[str, str], None]


class ElasticDrillRequest(Struct, frozen=True):
    """What is drilled.

    Attributes:
        job: with the runtime `elastic`.
        fill: copies the user's code into a folder.
        environ: variables of the job.
        steps: to train in each shape.
        limit_s: within which all must be done [s].
        folder: for code, store and what machines are told.
    """

    job: Job
    fill: Callable[[Path], None]
    environ: Mapping[str, str]
    steps: int
    limit_s: float
    folder: Path


class AskedPlanner(ShapePlanner):
    """A planner that can be told which shape is wanted, or `IDLE`; it is taken while there are machines for it."""

    asked: Shape | None = None

    def choose(self, moment: ShapeMoment) -> ShapeChoice:
        """Return the shape that is asked for, else as `ShapePlanner` does."""
        if self.asked is not None and self.asked.machines <= moment.ready and not self.resting:
            return ShapeChoice(self.asked, "asked for")
        return super().choose(moment)


def elastic_job_of(job: Job) -> ElasticJob:
    """Return a job's settings if its training can be drilled.

    Raises:
        Misuse: it is no elastic training, has a profile already, or no shape of it fits on this host.
    """
    assert job.runtime.name == ELASTIC, "another runtime is profiled in another way"
    found = shape_rules.job_of(job.runtime.settings)
    if found.profile is not None:
        raise Misuse("the job has a profile, which a new one would contradict: take it out of the file first")
    least = min((shape.machines for shape in found.shapes), default=1)
    if least > MACHINES_MAX:
        raise Misuse(
            f"the smallest shape of the job needs {least} machines, and a drill has {MACHINES_MAX} on this host: allow a "
            "smaller one under runtime.elastic.shapes"
        )
    return found


def shapes_to_drill(job: ElasticJob) -> tuple[Shape, ...]:
    """Return the shapes to train in, so that each change adds a machine or cuts the layers differently.

    Example:
        At most 3 machines, all shapes allowed: 1x1, 2x1, 3x1, 1x3, 1x2.
    """
    least = min((shape.machines for shape in job.shapes), default=1)
    most = max(min(job.nodes_max, MACHINES_USUAL), least)
    allowed = job.shapes or [Shape(d, p) for p in range(1, most + 1) for d in range(1, most + 1)]
    fitting = [shape for shape in allowed if shape.machines <= most]
    wide = sorted((shape for shape in fitting if shape.stages == 1), key=lambda shape: shape.machines)
    deep = sorted((shape for shape in fitting if shape.stages > 1), key=lambda shape: (-shape.machines, shape.stages))
    return (*wide, *deep)


class _DrillFleet:
    """Machines of this host, and their coordinator in a thread."""

    def __init__(self, request: ElasticDrillRequest, job: ElasticJob) -> None:
        self._request, self._job = request, job
        self.code = request.folder / "code"
        self._url = folder_url(str(request.folder / "run"))
        self._clock = SystemClock()
        store = open_store(self._url)
        self._port = free_port(HOST)
        self.planner = AskedPlanner(job.nodes_max, job.shapes, None, self._clock.now())
        self._loop = wiring_shapes.open_coordinator(
            ShapeLog(store), store, TcpBoard(HOST, self._port), job, self.planner
        )
        self._scripts: dict[str, ShapeScript] = {}
        self._places: dict[str, tuple[PlaceFile, dict[str, object]]] = {}
        self._error: BaseException | None = None
        self._ends = Event()
        self._thread = started(self._run, "coordinator of shapes")

    def _run(self) -> None:
        try:
            self._loop.run(self._ends.is_set)
        except BaseException as error:
            self._error = error

    # ------------------------------------------------------------------------------------------------------------ machines

    def start(self, *, reliable: bool = False) -> None:
        """Start a machine."""
        name = f"{'reliable' if reliable else 'machine'}-{len(self._scripts)}"
        place = PlaceFile(str(self._request.folder / f"{name}.json"))
        entry = {
            "store": f"{HOST}:{self._port}", "machine": name, "address": HOST, "reliable": reliable,
            "started_s": float(self._clock.wall_time()), "url": self._url, "settings": dict(self._job.script),
        }  # fmt: skip
        place.write(entry)
        environ = user_environment({**os.environ, **self._request.environ}) | wiring_shapes.QUIET
        environ |= {environment.ELASTIC: place.path}
        output = self._request.folder / f"{name}.out"
        argv = (*snippet(_DIES_WITH_DRILL), str(os.getpid()), *self._request.job.command)
        self._scripts[name] = ShapeScript(argv, str(self.code), environ, lambda _, data: _append(output, data))
        self._places[name] = place, entry

    def ready(self) -> int:
        """Return how many machines can train, and stay."""
        reports = self._loop.coordinator.reports.values()
        return sum(one.layers > 0 and not one.reliable and not one.leaving for one in reports)

    def announce(self) -> str:
        """Give notice to a machine that trains, and return its name."""
        name = self._loop.layout.places[0].machine
        place, entry = self._places[name]
        place.write(entry | {"leaving": True})
        entry["leaving"] = True
        return name

    def close(self) -> None:
        """End all."""
        for script in self._scripts.values():
            script.end()
        self._ends.set()
        self._thread.join()

    # --------------------------------------------------------------------------------------------------------------- facts

    @property
    def layers(self) -> int:
        """How many the model has; 0 before a machine has built it."""
        return max((one.layers for one in self._loop.coordinator.reports.values()), default=0)

    def is_over(self) -> bool:
        """Return whether training has come to its end.

        Raises:
            RunFailed: the script failed.
            WindfallError: so did the coordinator.
        """
        if self._error is not None:
            raise self._error
        layout = self._loop.layout
        for name, script in self._scripts.items():
            code = script.code()
            if code is not None and not layout.over and not self._places[name][1].get("leaving"):
                why = script.last_line or "it must call train of windfall.elastic, and take all of its steps"
                raise RunFailed(f"the script ended on {name} with exit code {code}: {why}")
        return layout.over

    def placed(self, shape: Shape) -> list[ShapeReport] | None:
        """Return what the machines of a shape say; None while not all of them train in it."""
        layout, reports = self._loop.layout, self._loop.coordinator.reports
        if (layout.pipelines, layout.stages) != shape or layout.stop:
            return None
        found = [reports.get(place.machine) for place in layout.places]
        there = [one for one in found if one is not None and one.layout == layout.version and not one.leaving]
        return there if len(there) == len(found) else None

    def state(self) -> str:
        """Return what is trained, for a message."""
        layout = self._loop.layout
        return f"{layout.pipelines}x{layout.stages}" if layout.stages else "nothing"


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def drilled(request: ElasticDrillRequest, show: Show) -> ElasticDrillResult:
    """Train in all shapes, and return what was measured.

    Args:
        request: what is drilled.
        show: is told the phase, and how far it is.

    Raises:
        Misuse: the job cannot be drilled; the message says what to change.
        RunFailed: the script failed, training was over too early, or time is up.
    """
    job, clock = elastic_job_of(request.job), SystemClock()
    until_s = clock.now() + request.limit_s
    compile_plans()
    cores = BusyCores()
    fleet = _DrillFleet(request, job)
    protocol = _ShapeProtocol(fleet, request, until_s, show)
    try:
        fleet.code.mkdir()
        request.fill(fleet.code)
        trained = protocol.run(shapes_to_drill(job))
    finally:
        fleet.close()
        cores.end()
    return _result(request.job.name, fleet.planner, trained, cores.between(protocol.began_s, clock.now()))


class _ShapeProtocol:
    """The shapes of a drill, one after another.

    Attributes:
        began_s: when all machines were ready, by the clock [s].
    """

    def __init__(self, fleet: _DrillFleet, request: ElasticDrillRequest, until_s: float, show: Show) -> None:
        self._fleet, self._request, self._until_s, self._show = fleet, request, until_s, show
        self._clock = SystemClock()
        self.began_s = 0.0

    def run(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Train in each shape; then let a spare take a place.  Return the shapes that were trained.

        Raises:
            RunFailed: as `drilled`.
        """
        fleet, trained = self._fleet, list[Shape]()
        # One more than any shape needs: the spare.
        machines = 1 + max(shape.machines for shape in shapes)
        fleet.planner.asked = IDLE
        fleet.start(reliable=True)
        for _ in range(machines):
            fleet.start()
        self._wait(lambda: fleet.ready() == machines, f"start {1 + machines} machines")
        self.began_s = self._clock.now()
        for shape in shapes:
            if shape.stages <= fleet.layers:
                fleet.planner.asked = shape
                self._train(shape, f"train in shape {shape}")
                trained.append(shape)
        if not trained:
            raise Misuse(f"no shape that the job allows has as few stages as the model has layers ({fleet.layers})")
        name = fleet.announce()
        self._train(trained[-1], f"let a spare take the place of {name}")
        return trained

    def _train(self, shape: Shape, title: str) -> None:
        first: dict[str, int] = {}

        def enough() -> bool:
            reports = self._fleet.placed(shape)
            if reports is None:
                first.clear()
                return False
            step = min(one.trained for one in reports)
            done = step - first.setdefault("step", step)
            self._show(title, f"step {done} of {self._request.steps}")
            return done >= self._request.steps and self._is_measured(shape)

        self._wait(enough, title)

    def _is_measured(self, shape: Shape) -> bool:
        found = self._fleet.planner.measured
        return found is not None and any((one.pipelines, one.stages) == shape for one in found.steps)

    def _wait(self, done: Callable[[], bool], title: str) -> None:
        self._show(title, "")
        while not done():
            if self._fleet.is_over():
                raise RunFailed(
                    f"training was over before the drill was ({title}): let the script train for more steps, or lower --steps"
                )
            if self._clock.now() > self._until_s:
                raise RunFailed(
                    f"time was up ({title}; what is trained: {self._fleet.state()}): raise --limit, or lower --steps"
                )
            self._clock.sleep(_LOOK_S)


def _result(name: str, planner: ShapePlanner, trained: Sequence[Shape], busy: float) -> ElasticDrillResult:
    found = planner.measured
    profile = None if found is None else measured_profile(found)
    if found is None or profile is None:
        raise RunFailed("not every layer was measured: drill more --steps in each shape")
    times = {Shape(one.pipelines, one.stages): one.step_s for one in found.steps}
    shapes = tuple(DrilledShape(str(shape), times[shape], step_s(profile.pipeline, shape)) for shape in trained)
    return ElasticDrillResult(name, with_changes(profile, found.changes), shapes, found.changes, busy)
