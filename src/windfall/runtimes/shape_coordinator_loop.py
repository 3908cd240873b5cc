"""The loop of an elastic training's coordinator: it reads reports, and writes the next layout to the run's log and to machines.

What the store says, and the status, are a second thread's: a slow store does not delay what follows a loss but for the log.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Protocol

from windfall.core.shape_coordinator import ShapeCoordinator
from windfall.core.shape_meter import ShapeMeter
from windfall.core.shape_planner import ShapePlanner
from windfall.core.shape_summary import shape_status, with_point
from windfall.errors import StoreError, WindfallError
from windfall.ports import Clock
from windfall.runtimes.shape_log import ShapeLog
from windfall.shape_layout import ShapeLayout, ShapeReport
from windfall.shape_measurements import MachineMeasurement, ShapeMeasurements
from windfall.shape_status import ShapePoint
from windfall.structs import Struct
from windfall.terms import Seconds

TURN_S = 0.02
"""Between two looks at reports [s]."""
MEASURED_EVERY_S = 0.25
"""Between two looks at what machines have measured [s]."""
STORE_EVERY_S = 0.25
"""Between two looks at the store [s]."""
STATUS_EVERY_S = 1.0
"""Between two statuses [s]."""
RATE_OVER_S = 30.0
"""Over how long the rate of steps is taken [s]."""
SILENT_S = 1.0
"""How long no machine reports once all scripts have ended [s]."""
END_WITHIN_S = 10.0
"""How long machines may take to see that training is over [s]."""
BOARD, STORE = "board", "store"
BORNE_S = MappingProxyType({BOARD: 60.0, STORE: 600.0})
"""How long nothing but refusals is borne [s]: the board is in this process; without the store training runs until a loss."""
REFUSAL_S = 10.0
"""The most that one refusal counts: a coordinator that was halted meanwhile was not refused [s]."""


class CoordinatorReplaced(WindfallError):
    """Another coordinator has written a layout."""


class CoordinatorRefused(WindfallError):
    """Every turn of a coordinator was refused for long."""


class ShapeBoard(Protocol):
    """Where layouts and reports are, for all machines to see; any call may raise an `OSError` or a `RuntimeError`."""

    def reports(self) -> Iterable[ShapeReport]:
        """Return the newest report of each machine."""
        ...

    def measurements(self) -> Iterable[MachineMeasurement]:
        """Return the newest of what each machine has measured."""
        ...

    def publish(self, layout: ShapeLayout) -> None:
        """Show a layout."""
        ...

    def dismiss(self, machines: Iterable[str]) -> None:
        """Tell machines to end."""
        ...


class ShapeLoopPorts(Struct, frozen=True):
    """What the loop depends on; `checkpoint` returns the newest step that is whole in the store."""

    board: ShapeBoard
    log: ShapeLog
    checkpoint: Callable[[], int]
    clock: Clock


class ShapeCoordinatorLoop:
    """A coordinator.

    Args:
        coordinator: what it knows; its layout is in the log.
        planner: chooses shapes.
        ports: what it depends on.
        stored: newest step that is whole in the store.
        known: what a coordinator before this one has measured; None for nothing.
    """

    def __init__(
        self,
        coordinator: ShapeCoordinator,
        planner: ShapePlanner,
        ports: ShapeLoopPorts,
        stored: int = 0,
        known: ShapeMeasurements | None = None,
    ) -> None:
        self.coordinator, self._planner, self._ports = coordinator, planner, ports
        self._stored = stored
        self._meter = ShapeMeter(coordinator.layout, known)
        self._planner.measured = self._kept = known
        self._measured_s = 0.0
        self._ended = threading.Event()
        self._rate: deque[tuple[float, int]] = deque()
        self._shown: ShapeLayout | None = None
        self._history: tuple[ShapePoint, ...] | None = None
        self._dismissed: frozenset[str] = frozenset()
        self._numbers: dict[str, int] = {}
        self._silent_since_s = 0.0
        self._turned_s, self._refused_s = float(ports.clock.now()), {BOARD: 0.0, STORE: 0.0}

    @property
    def layout(self) -> ShapeLayout:
        """The newest layout."""
        return self.coordinator.layout

    def run(self, stopping: Callable[[], bool]) -> None:
        """Write layouts until training is over, or until it is asked to end.

        Raises:
            CoordinatorReplaced: another coordinator has written one.
            CoordinatorRefused: the board or the store refused each turn for long.
        """
        clock = self._ports.clock
        thread = threading.Thread(target=self._look_at_store, name="store of shapes", daemon=True)
        thread.start()
        try:
            while not stopping() and not self.layout.over:
                self._guarded_turn()
                clock.sleep(Seconds(TURN_S))
            until_s = clock.now() + END_WITHIN_S
            while not stopping() and not self._all_are_silent() and clock.now() < until_s:
                self._guarded_turn()
                clock.sleep(Seconds(TURN_S))
        finally:
            self._ended.set()
            thread.join(END_WITHIN_S)

    def _guarded_turn(self) -> None:
        """Have a turn; what the store or the board refuses now is done in the next one.

        Raises:
            CoordinatorReplaced: another coordinator has written a layout.
            CoordinatorRefused: the last turn that was not refused is long ago.
        """
        began_s, self._turned_s = self._turned_s, self._ports.clock.now()
        try:
            self.turn()
        except (StoreError, OSError, RuntimeError) as error:
            self._shown = None
            who = STORE if isinstance(error, StoreError) else BOARD
            self._refused_s[who] += min(self._turned_s - began_s, REFUSAL_S)
            if self._refused_s[who] > BORNE_S[who]:
                raise CoordinatorRefused(
                    f"the coordinator could do nothing for {BORNE_S[who]:.0f} s, since its {who} refuses "
                    f"({type(error).__name__}: {error}): its machine starts again"
                ) from error
        else:
            self._refused_s = {BOARD: 0.0, STORE: 0.0}

    def turn(self) -> None:
        """Take in reports, and write the next layout if there is one.

        Raises:
            CoordinatorReplaced: another coordinator has written it.
            StoreError, OSError, RuntimeError: what was to be written was not.
        """
        ports, coordinator, now_s = self._ports, self.coordinator, self._ports.clock.now()
        if self._shown is None or self._shown.record != self.layout.record:
            ports.board.publish(self.layout)
            self._shown = self.layout
        for report in ports.board.reports():
            coordinator.take(report, now_s)
        self._measure(now_s)
        self._planner.now_s = now_s
        stored = self._stored
        layout = coordinator.next(now_s, stored)
        if layout is not None:
            if not ports.log.write_layout(layout):
                raise CoordinatorReplaced(f"another coordinator has written record {layout.record}")
            coordinator.written(layout)
            self._meter.take_layout(layout)
            ports.board.publish(layout)
            self._shown = layout
        gone = (coordinator.released(stored) | coordinator.lost) - self._dismissed
        if gone:
            ports.board.dismiss(sorted(gone))
            self._dismissed |= gone

    def _measure(self, now_s: float) -> None:
        """Take in what machines have measured, and how long they took to make the newest layout."""
        if now_s - self._measured_s >= MEASURED_EVERY_S:
            self._measured_s = now_s
            self._meter.take(self._ports.board.measurements())
        self._meter.take_reports(self.coordinator.reports)
        self._planner.measured = self._meter.found

    def _all_are_silent(self) -> bool:
        """Whether no machine has reported for a while: the scripts have seen the end, and have ended."""
        numbers, now_s = {one.machine: one.number for one in self.coordinator.there()}, self._ports.clock.now()
        if numbers != self._numbers:
            self._numbers, self._silent_since_s = numbers, now_s
        return now_s - self._silent_since_s >= SILENT_S

    def _look_at_store(self) -> None:
        status_s, last = 0.0, False
        while not last:
            last = self._ended.wait(STORE_EVERY_S)
            try:
                self._stored = max(self._stored, self._ports.checkpoint())
                self._planner.resting = self._ports.log.stop_asked() >= self.layout.coordinator
                now_s = self._ports.clock.now()
                if self._planner.resting and self.coordinator.is_at_rest(self._stored):
                    # Once this is read, the machines go, and the last status stays.
                    self.write_status(now_s)
                    self._ports.log.write_stopped(self.layout.coordinator)
                if last or now_s - status_s >= STATUS_EVERY_S:
                    status_s = now_s
                    self.write_status(now_s)
            except StoreError:
                continue

    def write_status(self, now_s: float) -> None:
        """Write what training is doing, what it has measured, and how its shape has changed; raises a `StoreError`."""
        step = self.coordinator.trained
        if self._rate and step < self._rate[-1][1]:
            self._rate.clear()
        self._rate.append((now_s, step))
        while len(self._rate) > 2 and self._rate[1][0] <= now_s - RATE_OVER_S:
            self._rate.popleft()
        (since_s, first) = self._rate[0]
        rate = (step - first) / (now_s - since_s) if now_s > since_s else 0.0
        at = self._ports.clock.wall_time()
        status = shape_status(self.coordinator, self._stored, at, rate)
        self._ports.log.write_status(status)
        found = self._meter.found
        if found is not None and found is not self._kept:
            self._ports.log.write_measured(found)
            self._kept = found
        if self._history is None:
            # A coordinator before this one may have begun it.
            self._history = self._ports.log.history()
        history = with_point(self._history, status.point)
        if history is not self._history:
            self._ports.log.write_history(history)
            self._history = history
