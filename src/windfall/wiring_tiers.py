"""Binds implementations to what a machine of a parameter server needs: the part of `wiring` for the runtime `paramserver`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import ipaddress
import math
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from windfall.agent.exec_request import ExecRequest
from windfall.agent.script_environment import inherited_environment
from windfall.agent.status_files import EstimatesFile, StatusFile
from windfall.core.node_agent_state import RunStatus
from windfall.errors import EXIT_DONE, EXIT_RETRY, EXIT_STOPPED, Misuse, StoreError, WindfallError
from windfall.events import AssignmentChanged
from windfall.extras import install
from windfall.linux.clock import SystemClock
from windfall.linux.random_names import new_nonce
from windfall.notices.relay import RelayedNotices
from windfall.policies.layout import tier_rules
from windfall.policies.layout.tier_rules import TierJob
from windfall.policies.policy_registry import PARAMSERVER
from windfall.runtimes.machine_limits import MachineLimits
from windfall.runtimes.parameter_partition import Values
from windfall.runtimes.table_rows import joined_parts
from windfall.runtimes.tier_actors import TierTraining
from windfall.runtimes.tier_history import TierHistory
from windfall.runtimes.tier_node import NodeLost, TierNode, TierNodePlace, TierNodePorts
from windfall.runtimes.tier_pace import TierPace
from windfall.runtimes.tier_program import ProgramMachine, TierApplication, TierProgram
from windfall.runtimes.tier_script import ScriptProgram
from windfall.runtimes.tier_server import ServerSettings
from windfall.runtimes.tier_store import ObjectTierStore
from windfall.storage.object_stores import open_store
from windfall.structs import Struct
from windfall.terms import Notice, NoticeLevel, Outcome, Seconds, Step, Term
from windfall.tier_layout import CommittedClock, ServerLayout, TierFailure, TierMachine

_STORE_SHARE = 0.2
"""Share of a machine's memory for messages that are on their way."""
_STORE_BYTES_MIN, _STORE_BYTES_MAX = 128 << 20, 8 << 30
_ASK_AGAIN_S = Seconds(0.25)


class ProgramFailed(WindfallError):
    """The user's program did what it must not."""


def failure_text(error: BaseException) -> str:
    """Return a failure in words."""
    if isinstance(error, SystemExit):
        return f"the program ended its process by sys.exit({error.code!r})"
    return str(error) if isinstance(error, WindfallError) else f"the program raised {type(error).__name__}: {error}"


class _Departure:
    """Whether this machine is to leave, and at once; written by threads."""

    def __init__(self) -> None:
        self.leaving = self.at_once = False

    def hear(self, signals_fd: int) -> None:
        """Read signals: SIGTERM and a first SIGINT ask to leave, a second one at once."""
        interrupts = 0
        while data := os.read(signals_fd, 64):
            interrupts += data.count(signal.SIGINT)
            self.leaving = True
            self.at_once = interrupts > 1

    def deliver(self, notice: Notice) -> None:
        """Take in a notice."""
        if notice.level in (NoticeLevel.ANNOUNCED, NoticeLevel.WITHDRAWN):
            self.leaving = notice.level is NoticeLevel.ANNOUNCED


class _Assignment:
    """The newest assignment of this machine."""

    def __init__(self, request: ExecRequest, clock: SystemClock) -> None:
        self._body: Mapping[str, Any] = request.assignment
        self._file = EstimatesFile(request.estimates, clock)

    @property
    def body(self) -> Mapping[str, Any]:
        for fact in self._file.changes():
            if isinstance(fact, AssignmentChanged):
                self._body = fact.assignment
        return self._body


class _TierMachineProgram(Struct):
    """What a machine's program knows of itself."""

    request: ExecRequest
    job: TierJob
    assignment: _Assignment
    departure: _Departure
    status: StatusFile
    clock: SystemClock


def load_program(request: ExecRequest) -> TierJob:
    """Return what the request says, once the program can be imported.

    Raises:
        Misuse: the request is not for a machine of a parameter server, or the program is missing here.
        Exception, SystemExit: what the import raised.
    """
    try:
        job = tier_rules.job_of(request.settings)
    except ValueError as error:
        raise Misuse(f"runtime paramserver {error}") from error
    sys.path.insert(0, request.cwd)
    try:
        check_program(job)
    except (Exception, SystemExit) as error:
        # No coordinator hears of it, so it is written here.
        write_failure(request, failure_text(error))
        raise
    return job


def run_machine(request: ExecRequest, job: TierJob, signals_fd: int, folder: str) -> int:
    """Serve and compute until training is over or this machine is to leave; return the exit code for the node agent.

    Args:
        request: of the node agent.
        job: what it says.
        signals_fd: where the number of each signal is read, a byte each.
        folder: for Ray's own files.

    Raises:
        Exception: what the program raised.
    """
    clock, departure = SystemClock(), _Departure()
    machine = _TierMachineProgram(
        request, job, _Assignment(request, clock), departure, StatusFile(request.status, clock), clock
    )
    threading.Thread(target=departure.hear, args=(signals_fd,), name="signals", daemon=True).start()
    if request.notices is not None:
        relay = RelayedNotices(request.notices, clock, ())
        threading.Thread(
            target=relay.watch, args=(departure.deliver, lambda: False), name="notices", daemon=True
        ).start()
    while not machine.assignment.body.get(tier_rules.HEAD) or not machine.assignment.body.get(tier_rules.ADDRESS):
        if departure.leaving:
            return EXIT_RETRY
        clock.sleep(_ASK_AGAIN_S)
    return _trained(machine, folder)


def _trained(machine: _TierMachineProgram, folder: str) -> int:
    """Train until it is over or this machine is to leave; return the exit code."""
    request, body = machine.request, dict(machine.assignment.body)
    leads = bool(body[tier_rules.LEADS])
    node, store = _node(machine, body, folder), ObjectTierStore(open_store(request.url))
    ended = threading.Event()
    try:
        node.start()
        watching = threading.Thread(target=_watch_history, args=(machine, store, ended), name="history", daemon=True)
        if leads:
            watching.start()
        if not _is_over(machine, node, body):
            return EXIT_RETRY
        layout = store.newest_layout()
        assert layout is not None, "training that is over has a layout"
        _show(machine, layout, CommittedClock(layout.term, layout.checkpoint.clock))
        done = layout.is_done(machine.job.clocks)
        if done and leads:
            ended.set()
            watching.join()
            _store_product(machine, store, layout)
    except (NodeLost, StoreError) as error:
        _log(str(error))
        if leads and isinstance(error, NodeLost):
            _count_as_failure(request, store, error)
        return EXIT_RETRY
    except Exception as error:
        store.write_failure(TierFailure(request.machine, failure_text(error)))
        if isinstance(error, Misuse):
            # On this machine nothing is wrong: a push was refused.
            raise ProgramFailed(str(error)) from error
        raise
    finally:
        ended.set()
        node.end()
    machine.status.release(Outcome.DONE if done else Outcome.WAITING)
    return EXIT_DONE if done else EXIT_STOPPED


def _node(machine: _TierMachineProgram, body: Mapping[str, Any], folder: str) -> TierNode:
    """Return this machine of the cluster that the assignment names."""
    request, job = machine.request, machine.job
    name = f"{request.machine or os.uname().nodename}-{new_nonce()[:8]}"
    about = TierMachine(name, request.role == tier_rules.RELIABLE, machine.clock.wall_time(), speed=_speed(request))
    program: Callable[[], TierProgram] = partial(
        start_script, request.argv, request.cwd, _slots(request), job.partitions
    )
    if job.app:
        program = partial(open_application, job, request.cwd, _turn_gib(request))
    place, training = _place(request, job.ray, body, folder), _training(request, job, body.get(tier_rules.LOSS))
    return TierNode(place, about, training, program, TierNodePorts(machine.clock, _log))


def _is_over(machine: _TierMachineProgram, node: TierNode, body: Mapping[str, Any]) -> bool:
    """Look after the machine; return whether training is over, or else that this machine is to leave, or to join again.

    Raises:
        NodeLost: the machine must be started again.
        Exception: what the program raised.
    """
    while not node.turn():
        if machine.departure.at_once or machine.assignment.body != body:
            return False
        leaving = machine.departure.leaving
        seen = node.look(leaving=leaving)
        if leaving and not (seen is not None and seen.needed):
            return False
        if seen is not None:
            _show(machine, seen.layout, seen.committed)
    return True


def _training(request: ExecRequest, job: TierJob, loss: float | None) -> TierTraining:
    return TierTraining(
        request.url,
        ServerSettings(job.staleness, 1, job.clocks),
        job.parts,
        job.partitions,
        ratios=job.ratios,
        pace=TierPace(save_every=job.save_every),
        loss=loss,
        reliable=job.reliable,
    )


def _count_as_failure(request: ExecRequest, store: ObjectTierStore, error: NodeLost) -> None:
    """Count it as a failure that the first machine cannot begin: nothing else would ever end such a job."""
    with contextlib.suppress(StoreError):
        if store.newest_layout() is None:
            store.write_failure(TierFailure(request.machine, f"training cannot begin: {error}"))


def unloaded_text(code: int) -> str:
    """Return the failure of a program whose import ended its process with an exit code."""
    return f"the program ended its process with exit code {code} while it was imported"


def write_failure(request: ExecRequest, message: str) -> None:
    """Write a failure of the program to the run's store; raises a `StoreError`."""
    ObjectTierStore(open_store(request.url)).write_failure(TierFailure(request.machine, message))


def _cpus(request: ExecRequest) -> float:
    return request.cpus or float(len(os.sched_getaffinity(0)))


def _speed(request: ExecRequest) -> float:
    return _cpus(request) * request.kernel_speed


def _slots(request: ExecRequest) -> int:
    return max(1, int(_cpus(request)))


def _show(machine: _TierMachineProgram, layout: ServerLayout, committed: CommittedClock) -> None:
    saved = Step(layout.checkpoint.clock)
    machine.status.show(RunStatus(Term(layout.coordinator), Step(committed.clock), saved, 1, training=True))


def turn_gib(memory_gib: float, slots: int) -> float:
    """Return the memory that a machine has for each turn of those that it computes at once [GiB]."""
    return memory_gib * (1.0 - _STORE_SHARE) / slots


def _turn_gib(request: ExecRequest) -> float:
    return turn_gib(request.memory_gib, _slots(request))


def open_application(job: TierJob, folder: str, memory_gib: float) -> TierApplication:
    """Return the program of an application.

    Args:
        job: what trains.
        folder: of the user's code, in which it runs.
        memory_gib: for each turn of those that compute at once [GiB]; 0 where it is not known.

    Raises:
        Misuse: the settings are not valid.
    """
    if folder not in sys.path:
        sys.path.insert(0, folder)
    os.chdir(folder)
    program = importlib.import_module(job.app).program
    arguments: tuple[object, ...] = (dict(job.settings), job.partitions)
    if "machine" in inspect.signature(program).parameters:
        arguments = (*arguments, ProgramMachine(memory_gib, job.staleness))
    made: TierApplication = program(*arguments)
    return made


def start_script(argv: Sequence[str], folder: str, slots: int, partitions: int) -> ScriptProgram:
    """Start the processes of a script that imports `windfall.paramserver`.

    Args:
        argv: its command.
        folder: of the user's code.
        slots: how many processes.
        partitions: data partitions.

    Raises:
        Misuse, ScriptFailed: as `ScriptProgram.start`.
    """
    environ = {name: value for name, value in inherited_environment().items() if not name.startswith("RAY_")}
    return ScriptProgram.start(argv, folder, environ, slots, partitions)


def check_program(job: TierJob) -> None:
    """Import the program, so that what is missing is a sentence of this process.

    Raises:
        Misuse: it is not there, or is none.
    """
    if not job.app:
        return
    try:
        module = importlib.import_module(job.app)
    except ModuleNotFoundError as error:
        missing = error.name or job.app
        if job.app == missing or job.app.startswith(f"{missing}."):
            raise Misuse(
                f"runtime paramserver: there is no module {missing}, which app {job.app} names: put it into workdir, or let "
                "setup install it"
            ) from None
        advice = "setup can install it"
        if job.app.startswith("windfall."):
            advice = install("torch" if missing == "torch" else PARAMSERVER)
        raise Misuse(
            f"runtime paramserver: app {job.app} needs the module {missing}, which is not here; {advice}"
        ) from None
    if not callable(getattr(module, "program", None)):
        raise Misuse(
            f"runtime paramserver: app {job.app} has no function program(settings, partitions), which returns what trains"
        )


def _place(request: ExecRequest, given: str, body: Mapping[str, Any], folder: str) -> TierNodePlace:
    head_host, own_host = (_host(str(body[key])) for key in (tier_rules.HEAD, tier_rules.ADDRESS))
    head = f"{head_host}:{str(body[tier_rules.HEAD]).rpartition(':')[2]}"
    memory_bytes = int((request.memory_gib or 4.0) * (1 << 30) * _STORE_SHARE)
    store_bytes = min(max(memory_bytes, _STORE_BYTES_MIN), _STORE_BYTES_MAX)
    limits = MachineLimits(request.kernel_speed, request.link_bytes_per_s or math.inf, request.turn_s)
    leads, slots = bool(body[tier_rules.LEADS]), _slots(request)
    return TierNodePlace(given or head, leads, own_host, folder, store_bytes, slots, limits, given=bool(given))


def _host(address: str) -> str:
    """Return the host by which Ray knows a machine.

    Ray tells machines apart by it, so machines of one computer get loopback addresses of their own, made of their ports.
    """
    host, _, port = address.rpartition(":")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    return f"127.1.{int(port) >> 8}.{int(port) & 255}" if loopback else host


def _watch_history(machine: _TierMachineProgram, store: ObjectTierStore, ended: threading.Event) -> None:
    job = machine.job
    evaluate: Callable[[Values], float | None] = _no_loss
    if job.app:
        evaluate = open_application(job, machine.request.cwd, _turn_gib(machine.request)).evaluate
    TierHistory(store, evaluate, machine.clock, ended.wait).watch(ended.is_set)


def _no_loss(values: Values) -> None:
    del values


def _store_product(machine: _TierMachineProgram, store: ObjectTierStore, layout: ServerLayout) -> None:
    """Write what training was for, unless it is there: of a script, the table itself."""
    if store.product() is not None:
        return
    job, loss = machine.job, None
    values = joined_parts([store.load(part, layout.checkpoint) for part in range(job.parts)])
    with tempfile.TemporaryDirectory() as folder:
        if job.app:
            application = open_application(job, machine.request.cwd, _turn_gib(machine.request))
            loss = float(application.evaluate(values))
            application.write(values, Path(folder))
        else:
            np.save(Path(folder, "table.npy"), values, allow_pickle=False)
        files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    store.write_product(files, loss)


def _log(message: str) -> None:
    sys.stderr.write(f"windfall: {message}\n")
    sys.stderr.flush()
