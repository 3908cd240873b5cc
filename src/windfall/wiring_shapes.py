"""Binds implementations to what a machine of an elastic training needs: the part of `wiring` for the runtime `elastic`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

from windfall.agent.exec_request import ExecRequest
from windfall.agent.status_files import EstimatesFile, StatusFile
from windfall.core.node_agent_state import RunStatus
from windfall.core.shape_coordinator import ShapeCoordinator, ShapePatience
from windfall.core.shape_decisions import opened_by_next_shape_coordinator
from windfall.core.shape_planner import ShapePlanner, compile_plans
from windfall.errors import EXIT_DONE, EXIT_FAILED, EXIT_RETRY, EXIT_STOPPED, Infeasible, Misuse, StoreError
from windfall.events import AssignmentChanged
from windfall.linux.clock import SystemClock
from windfall.linux.machine_memory import usable_gib
from windfall.linux.random_names import new_nonce
from windfall.notices.relay import RelayedNotices
from windfall.policies.layout import shape_rules
from windfall.policies.layout.shape_rules import BadShapeSetting, ElasticJob
from windfall.ports import ObjectStore
from windfall.runtimes.shape_coordinator_loop import (
    CoordinatorRefused,
    CoordinatorReplaced,
    ShapeCoordinatorLoop,
    ShapeLoopPorts,
)
from windfall.runtimes.shape_log import ShapeLog
from windfall.runtimes.shape_node import BoardLost, PlaceFile, ShapeScript, TcpBoard, started
from windfall.runtimes.shape_output import ShapeOutput
from windfall.runtimes.shape_store import newest_checkpoint
from windfall.shape_status import ShapeFailure
from windfall.storage.object_stores import open_store
from windfall.terms import Instant, Notice, NoticeLevel, Outcome, Seconds, Step, Term
from windfall.wire import environment
from windfall.wire.python_programs import user_environment

TURN_S = Seconds(0.05)
"""Between two looks at the script, the assignment and notices [s]."""
STORE_EVERY_S = 1.0
"""Between two looks at the run's store [s]."""
BYTES_PER_GIB = float(1 << 30)
QUIET = {"TORCH_CPP_LOG_LEVEL": "FATAL"}
"""Variables without which torch writes at length about each machine that goes."""


class ShapeMachine:
    """What a machine's program knows of itself; signals and notices are heard by threads.

    Args:
        request: of the node agent.
        job: what its settings say.
        folder: for the file that the script reads.
    """

    def __init__(self, request: ExecRequest, job: ElasticJob, folder: str) -> None:
        self.request, self.job, self.clock = request, job, SystemClock()
        self.name = f"{request.machine or os.uname().nodename}-{new_nonce()[:8]}"
        self.reliable = request.role == shape_rules.RELIABLE
        self.leaving = self.at_once = False
        self.status = StatusFile(request.status, self.clock)
        self.store = open_store(request.url)
        self.log = ShapeLog(self.store)
        self.place = PlaceFile(os.path.join(folder, "place.json"))
        self._started_s = float(self.clock.wall_time())
        self._ends_s: Instant | None = None
        self._memory_bytes = usable_gib() * BYTES_PER_GIB
        self._assignment: Mapping[str, Any] = request.assignment
        self._file = EstimatesFile(request.estimates, self.clock)

    def assignment(self) -> Mapping[str, Any]:
        """Return the newest assignment."""
        for fact in self._file.changes():
            if isinstance(fact, AssignmentChanged):
                self._assignment = fact.assignment
        return self._assignment

    def read_signals(self, signals_fd: int) -> None:
        """Read signals: SIGTERM and a first SIGINT ask to leave, a second one at once."""
        interrupts = 0
        while data := os.read(signals_fd, 64):
            interrupts += data.count(signal.SIGINT)
            self.leaving, self.at_once = True, interrupts > 1

    def deliver(self, notice: Notice) -> None:
        """Take in a notice."""
        if notice.level in (NoticeLevel.ANNOUNCED, NoticeLevel.WITHDRAWN):
            self.leaving = notice.level is NoticeLevel.ANNOUNCED
            self._ends_s = notice.deadline if self.leaving else None

    def inform_script(self, assignment: Mapping[str, Any]) -> None:
        """Write what the script should know of this machine, but not before its leader is known, or the next one is."""
        if not (assignment.get(shape_rules.HEAD) and assignment.get(shape_rules.ADDRESS)):
            return
        self.place.write(
            {
                "store": str(assignment[shape_rules.HEAD]),
                "machine": self.name,
                "address": str(assignment[shape_rules.ADDRESS]).rpartition(":")[0],
                "reliable": self.reliable,
                "started_s": self._started_s,
                "leaving": self.leaving,
                "url": self.request.url,
                "settings": dict(self.job.script),
                "memory_bytes": self._memory_bytes,
                "ends_s": self._ends_s,
            }
        )


def run_machine(request: ExecRequest, signals_fd: int) -> int:
    """Train until training is over or this machine is to leave; return the exit code for the node agent.

    Args:
        request: of the node agent.
        signals_fd: where the number of each signal is read, a byte each.

    Raises:
        Misuse: the request is not for a machine of an elastic training.
    """
    try:
        job = shape_rules.job_of(request.settings)
    except BadShapeSetting as error:
        raise Misuse(f"runtime elastic {error}") from error
    with tempfile.TemporaryDirectory(prefix="wf-shapes-") as folder:
        machine = ShapeMachine(request, job, folder)
        threading.Thread(target=machine.read_signals, args=(signals_fd,), name="signals", daemon=True).start()
        # Any machine may become the one that leads.
        started(compile_plans, "plans")
        if request.notices is not None:
            relay = RelayedNotices(request.notices, machine.clock, ())
            started(lambda: relay.watch(machine.deliver, lambda: False), "notices")
        assignment = machine.assignment()
        while not (assignment.get(shape_rules.HEAD) and assignment.get(shape_rules.ADDRESS)):
            if machine.leaving:
                return EXIT_RETRY
            machine.clock.sleep(TURN_S)
            assignment = machine.assignment()
        return _trained(machine, assignment)


def _trained(machine: ShapeMachine, assignment: Mapping[str, Any]) -> int:
    leader: _Leader | None = None
    script: ShapeScript | None = None
    environ = user_environment(os.environ) | QUIET | {environment.ELASTIC: machine.place.path}
    output = ShapeOutput(machine.store, machine.request.machine, machine.clock)
    try:
        if assignment[shape_rules.LEADS]:
            leader = _Leader(machine, assignment)
        machine.inform_script(assignment)
        script = ShapeScript(machine.request.argv, machine.request.cwd, environ, _shown(output))
        code = _watched(machine, script, leader)
        if code != EXIT_DONE:
            return code
        if leader is not None:
            leader.join()
            machine.log.write_done(leader.loop.layout.checkpoint)
    except CoordinatorRefused as error:
        _log(str(error))
        with contextlib.suppress(StoreError):
            machine.log.write_failure(ShapeFailure(machine.request.machine, str(error)))
        return EXIT_RETRY
    except (StoreError, BoardLost, CoordinatorReplaced) as error:
        _log(str(error))
        return EXIT_RETRY
    except (Misuse, Infeasible) as error:
        # No machine can train this job: without the failure others would be bought for it for ever.
        machine.log.write_failure(ShapeFailure(machine.request.machine, str(error)))
        _log(str(error))
        return EXIT_FAILED
    finally:
        if script is not None:
            script.end()
        output.close()
        if leader is not None:
            leader.end()
    machine.status.release(Outcome.DONE)
    return EXIT_DONE


def _shown(output: ShapeOutput) -> Callable[[int, bytes], None]:
    """Return what passes the script's output on as this machine's own, and to the run's store."""

    def printed(stream: int, data: bytes) -> None:
        os.write(stream, data)
        output.take(stream, data)

    return printed


def _watched(machine: ShapeMachine, script: ShapeScript, leader: _Leader | None) -> int:
    """Look after the script until it ends, or until this machine is to; return the exit code of the machine."""
    clock, store_s = machine.clock, 0.0
    first = machine.assignment()
    # A stop before this start is over.
    stopped = machine.log.stopped()
    while (code := script.code()) is None:
        assignment = machine.assignment()
        if machine.at_once or (leader is not None and assignment != first):
            return EXIT_RETRY
        if leader is not None:
            leader.check()
        machine.inform_script(assignment)
        if clock.now() - store_s >= STORE_EVERY_S:
            store_s = clock.now()
            status = machine.log.status()
            if status is not None:
                shown = RunStatus(
                    Term(status.coordinator), Step(status.step), Step(status.checkpoint), 1, training=True
                )
                machine.status.show(shown)
            if machine.log.stopped() > stopped:
                machine.status.release(Outcome.WAITING)
                return EXIT_STOPPED
        clock.sleep(TURN_S)
    if code in (EXIT_DONE, EXIT_RETRY):
        return _ended_well(machine, code, leader)
    # What a notice or the end of the machine kills is not the script's own failure.
    if machine.leaving and code < 0:
        return EXIT_RETRY
    text = script.last_line or (f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}")
    machine.log.write_failure(ShapeFailure(machine.request.machine, text))
    return EXIT_FAILED


def _ended_well(machine: ShapeMachine, code: int, leader: _Leader | None) -> int:
    if code == EXIT_RETRY:
        return EXIT_RETRY
    layout = machine.log.newest_layout(None if leader is None else leader.loop.layout)
    if layout is not None and layout.over:
        return EXIT_DONE
    text = (
        "the script ended before training was over: it must call train of windfall.elastic, and take all of its steps"
    )
    machine.log.write_failure(ShapeFailure(machine.request.machine, text))
    _log(text)
    return EXIT_FAILED


class _Leader:
    """The TCP store and the coordinator, in a thread of this process."""

    def __init__(self, machine: ShapeMachine, assignment: Mapping[str, Any]) -> None:
        host, _, port = str(assignment[shape_rules.HEAD]).rpartition(":")
        board = TcpBoard(host, int(port))
        self.loop = open_coordinator(machine.log, machine.store, board, machine.job)
        self._error: BaseException | None = None
        self._ends = threading.Event()
        self._thread = started(self._run, "coordinator of shapes")

    def _run(self) -> None:
        try:
            self.loop.run(self._ends.is_set)
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raise what has ended the coordinator."""
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        """Wait until all machines have seen the end."""
        self._thread.join()
        self.check()

    def end(self) -> None:
        """End the coordinator."""
        self._ends.set()
        self._thread.join()


def open_coordinator(
    log: ShapeLog, store: ObjectStore, board: TcpBoard, job: ElasticJob, planner: ShapePlanner | None = None
) -> ShapeCoordinatorLoop:
    """Return a coordinator that has written the first layout, or has taken over the newest one.

    Args:
        log: of the run.
        store: of the run.
        board: where machines report.
        job: what its settings say.
        planner: chooses shapes; None: as the job says.

    Raises:
        CoordinatorReplaced: another one has done so at the same time.
        StoreError: the store cannot be reached.
    """
    clock = SystemClock()
    stored, newest = newest_checkpoint(store), log.newest_layout()
    layout = opened_by_next_shape_coordinator(newest, stored, log.stopped())
    if not log.write_layout(layout):
        raise CoordinatorReplaced(f"another coordinator has written record {layout.record}")
    planner = planner or ShapePlanner(job.nodes_max, job.shapes, job.lookahead, clock.now(), profile=job.profile)
    coordinator = ShapeCoordinator(layout, planner.choose, ShapePatience(), clock.now(), log.trained_in(layout.term))
    ports = ShapeLoopPorts(board, log, lambda: newest_checkpoint(store), clock)
    return ShapeCoordinatorLoop(coordinator, planner, ports, stored, log.measured())


def _log(message: str) -> None:
    sys.stderr.write(f"windfall: {message}\n")
    sys.stderr.flush()
