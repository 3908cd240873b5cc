"""A coordinator's loop with a board in memory, a real log and a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from windfall.core.shape_coordinator import ShapeCoordinator, ShapePatience
from windfall.core.shape_decisions import (
    first_layout,
)
from windfall.core.shape_planner import ShapePlanner
from windfall.runtimes.shape_coordinator_loop import (
    ShapeCoordinatorLoop,
    ShapeLoopPorts,
)
from windfall.runtimes.shape_log import ShapeLog
from windfall.shape_layout import ShapeLayout, ShapeReport
from windfall.shape_measurements import MachineMeasurement
from windfall.storage.object_stores import open_store
from windfall.structs import replace
from windfall.terms import Instant, Seconds, WallTime


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> Instant:
        return Instant(self.now_s)

    def wall_time(self) -> WallTime:
        return WallTime(self.now_s)

    def sleep(self, duration_s: Seconds) -> None:
        self.now_s += duration_s


class Board:
    """A board in memory."""

    def __init__(self) -> None:
        self.newest: dict[str, ShapeReport] = {}
        self.shown: list[ShapeLayout] = []
        self.gone: set[str] = set()
        self.posts: dict[str, MachineMeasurement] = {}
        self.next_reports: Callable[[], None] = lambda: None

    def reports(self) -> Iterable[ShapeReport]:
        self.next_reports()
        return list(self.newest.values())

    def reports_until(self, end_s: float, scene: Scene) -> None:
        """Let machines report at each look until an instant."""

        def report() -> None:
            if scene.clock.now_s < end_s:
                for machine in ("r1", "a", "b"):
                    self.say(machine, scene.layout, trained=9)

        self.next_reports = report

    def measurements(self) -> Iterable[MachineMeasurement]:
        return list(self.posts.values())

    def publish(self, layout: ShapeLayout) -> None:
        self.shown.append(layout)

    def dismiss(self, machines: Iterable[str]) -> None:
        self.gone |= set(machines)

    def say(self, machine: str, layout: ShapeLayout, **changes: object) -> None:
        """A machine reports."""
        old = self.newest.get(machine)
        report = old or ShapeReport(
            machine, machine.startswith("r"), 1.0, False, 0, 1, "here", 6, 0, 0, False, (), 0, steps=9, micro_batches=8
        )
        self.newest[machine] = replace(
            report, number=report.number + 1, coordinator=layout.coordinator, term=layout.term, layout=layout.version, **changes
        )  # fmt: skip


class Scene:
    """A coordinator with a board, a log and a clock."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.board = Hand(), Board()
        self.log = ShapeLog(open_store(folder.as_uri()))
        self.stored = 0
        layout = first_layout(0)
        assert self.log.write_layout(layout)
        self.loop = self.started(layout)

    def started(self, layout: ShapeLayout) -> ShapeCoordinatorLoop:
        """A coordinator of a layout."""
        planner = ShapePlanner(8, (), None, self.clock.now_s)
        trained = self.log.trained_in(layout.term)
        coordinator = ShapeCoordinator(layout, planner.choose, ShapePatience(), self.clock.now_s, trained)
        ports = ShapeLoopPorts(self.board, self.log, lambda: self.stored, self.clock)
        return ShapeCoordinatorLoop(coordinator, planner, ports, known=self.log.measured())

    @property
    def layout(self) -> ShapeLayout:
        """The newest layout."""
        return self.loop.layout

    def all_say(self, *machines: str, **changes: object) -> None:
        """Machines report that they have made the newest layout."""
        for machine in machines:
            self.board.say(machine, self.layout, **changes)
        self.loop.turn()

    def wait(self, duration_s: float, *machines: str) -> None:
        """Time passes, and some machines report; a layout that follows is not made by any."""
        layout = self.layout
        for _ in range(int(duration_s / 0.5)):
            self.clock.now_s += 0.5
            for machine in machines:
                self.board.say(machine, layout)
            self.loop.turn()

    def trained(self) -> None:
        """Two machines and a backup train."""
        self.all_say("r1", "a", "b", stopped=True)
        self.all_say("r1", "a", "b", stopped=False)
