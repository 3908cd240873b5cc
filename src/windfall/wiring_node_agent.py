"""Binds implementations to the node agent's ports: the machine's part of `wiring`."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from windfall.agent.exec_process import NOTICES, ExecProcess, MachineContext
from windfall.agent.node_agent import Facts, JobSetup, NodeAgent, NodeAgentPorts, Secrets, ThreadCallRunner
from windfall.channels.direct import DirectReporter
from windfall.core.node_agent_state import (
    SIGTERM,
    NodeAgentFact,
    NodeAgentIdentity,
    NodeAgentPace,
    Noticed,
    StopRequested,
)
from windfall.errors import Misuse, StoreError
from windfall.linux.clock import SystemClock
from windfall.linux.listening import free_port
from windfall.linux.random_names import new_nonce
from windfall.notices import notice_sources
from windfall.notices.relay import NoticeWriter
from windfall.policies.layout import runtime_list
from windfall.ports import Clock, ObjectStore
from windfall.storage import bundle, store_operations
from windfall.storage.object_stores import open_store
from windfall.terms import Instant, Notice, NoticeLevel, Seconds
from windfall.wire import boot_data as names
from windfall.wire.boot_data import BootData
from windfall.wire.environment import without_store_variables
from windfall.wire.run_layout import setup_output_key

_LOCAL_PACE = NodeAgentPace(
    direct_s=Seconds(0.25), mailbox_s=Seconds(2.0), mailbox_alone_s=Seconds(0.5), poll_s=Seconds(0.1)
)
"""Between processes of one computer, with a folder as the store, messages cost nothing."""
_ERRORS_MAX = 60
"""After this many turns in a row that raise an unexpected error, one second apart, the node agent gives up."""


class _Inbox:
    """Facts from threads and signal handlers, and a pipe that wakes the node agent; calls are safe in a handler."""

    def __init__(self) -> None:
        self._facts: queue.SimpleQueue[NodeAgentFact] = queue.SimpleQueue()
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def put(self, fact: NodeAgentFact) -> None:
        self._facts.put(fact)
        self.wake()

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b".")

    def take(self) -> Facts:
        found: list[NodeAgentFact] = []
        while not self._facts.empty():
            found.append(self._facts.get())
        return tuple(found)

    def wait(self, pause_s: float) -> None:
        if select.select([self._reader], [], [], pause_s)[0]:
            os.read(self._reader, 1 << 16)


class _Preparation:
    """Unpacks the code and runs the setup; the end of the setup's output is stored in the run."""

    def __init__(self, place: MachineContext, store: ObjectStore, clock: Clock) -> None:
        self._place, self._store, self._clock = place, store, clock
        self._setup: JobSetup | None = None

    def run(self, boot: BootData, secrets: Secrets) -> None:
        work = self._place.work(boot)
        marker, key = Path(self._place.path("setup-done")), self._place.environ.get(names.SETUP_KEY, "")
        if boot.setup is not None and key and marker.exists() and marker.read_text("utf-8") == key:
            _log("this disk has the job's code and set-up already")
            return
        marker.unlink(missing_ok=True)
        if boot.bundle is not None:
            packed = store_operations.run(bundle.fetch(boot.bundle), self._store, self._clock)
            shutil.rmtree(work, ignore_errors=True)
            bundle.unpack(packed, work)
        if boot.setup is None:
            return
        script = self._place.path("setup.sh")
        with open(os.open(script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(boot.setup)
        self._setup = JobSetup(tuple(value for _, value in secrets))
        try:
            env = without_store_variables(self._place.environment(boot, secrets))
            self._setup.run(script, work, {name: env[name] for name in env if not name.startswith("WINDFALL_")})
        finally:
            with contextlib.suppress(StoreError):
                self._store.put(setup_output_key(self._place.machine_id), self._setup.output())
        # Only now: a set-up that failed, or a machine that was lost in it, leaves no marker.
        if key:
            marker.write_text(key, "utf-8")

    def kill(self) -> None:
        if self._setup is not None:
            self._setup.kill()


def run_node_agent(environ: Mapping[str, str]) -> None:
    """Run this machine's node agent until the machine must end.

    Raises:
        Misuse: the environment does not name the run that this machine was bought for.
    """
    url = environ.get(names.RUN_URL)
    if not url:
        raise Misuse(f"{names.RUN_URL} is not set: only a controller can start the node agent")
    clock, inbox = SystemClock(), _Inbox()
    place = _place(url, environ)
    store, exec_ = open_store(url), ExecProcess(place, lambda name: runtime_list.rules(name).program)
    preparation = _Preparation(place, store, clock)
    controller = environ.get(names.CONTROLLER) or None
    direct, life = None, new_nonce()
    if controller is not None:
        direct = DirectReporter(controller, place.machine_id, environ.get(names.CREDENTIAL, ""), life)

    def power_off(reason: str) -> None:
        _log(f"this machine ends: {reason}")
        exec_.kill()
        preparation.kill()

    quick = place.provider == "local" and url.startswith("file://")
    address = _address(environ, place.provider, controller)
    grace_s = names.grace_of(environ)
    pace = _LOCAL_PACE if quick else NodeAgentPace()
    who = NodeAgentIdentity(place.machine_id, life, direct is not None, address, pace, grace_s is not None)
    calls = ThreadCallRunner(inbox.wake, _log)
    ports = NodeAgentPorts(clock, store, direct, exec_, preparation.run, inbox.take, calls, power_off, who)
    node_agent = NodeAgent(ports)
    _catch_signals(node_agent, exec_, clock, inbox, grace_s)
    _watch_notices(place, clock, inbox)
    _loop(node_agent, inbox)


def _loop(node_agent: NodeAgent, inbox: _Inbox) -> None:
    errors = 0
    while not node_agent.over:
        try:
            pause_s, errors = node_agent.turn(), 0
        except Exception as error:
            errors += 1
            _log(f"unexpected error in the node agent, trying again: {type(error).__name__}: {error}")
            if errors >= _ERRORS_MAX:
                raise
            pause_s = 1.0
        if not node_agent.over:
            inbox.wait(pause_s)


def _place(url: str, environ: Mapping[str, str]) -> MachineContext:
    folder = os.path.join(os.getcwd(), ".windfall")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    machine_id = environ.get(names.MACHINE_ID) or socket.gethostname()
    metadata_url = environ.get(names.METADATA_URL) or None
    # A metadata service with its own address belongs to a local market, whatever machine that market runs on.
    provider = environ.get(names.PROVIDER) or ("local" if metadata_url is not None else notice_sources.detect(environ))
    return MachineContext(url, machine_id, folder, provider, metadata_url, environ)


def _catch_signals(
    node_agent: NodeAgent, exec_: ExecProcess, clock: Clock, inbox: _Inbox, grace_s: Seconds | None
) -> None:
    """SIGTERM: this machine is being preempted, and the run's agent is notified at once.  SIGINT: save and end.

    `grace_s`: how long the machine runs on after SIGTERM, where its provider says so [s].
    """

    def terminated(*_: object) -> None:
        exec_.terminate()
        if not node_agent.has_job:
            # Nothing was started that could be saved, so the machine can end without waiting.
            inbox.put(StopRequested())
        deadline = Instant(clock.now() + (node_agent.grace_s if grace_s is None else grace_s))
        inbox.put(Noticed(Notice(NoticeLevel.ANNOUNCED, SIGTERM, SIGTERM, deadline)))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    signal.signal(signal.SIGTERM, terminated)
    signal.signal(signal.SIGINT, lambda *_: inbox.put(StopRequested()))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _watch_notices(place: MachineContext, clock: Clock, inbox: _Inbox) -> None:
    """Watch the provider's notices: each goes to the run's agent first, which has a save to start."""
    relay = NoticeWriter(place.path(NOTICES))

    def deliver(notice: Notice) -> None:
        relay.write(notice)
        inbox.put(Noticed(notice))

    try:
        sources = notice_sources.open_sources(place.provider, place.metadata_url, clock)
    except Misuse as error:  # `windfall exec` refuses it too, and the controller hears its message
        _log(str(error))
        return
    for source in sources:
        threading.Thread(
            target=source.watch,
            args=(deliver, lambda: False),
            name=f"notices-{source.name}",
            daemon=True,
        ).start()


def _address(environ: Mapping[str, str], provider: str, controller: str | None) -> str:
    """Return host:port for the job's other machines; the port is free now, and used once a generation starts."""
    host = environ.get(names.ADDRESS) or ("127.0.0.1" if provider == "local" else _own_address(controller))
    return f"{host}:{free_port('')}"


def _own_address(controller: str | None) -> str:
    """Return the address from which this machine reaches its controller; nothing is sent."""
    target = (urlsplit(controller).hostname if controller else None) or "192.0.2.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])


def _log(message: str) -> None:
    """Write a message to the machine's own output."""
    sys.stderr.write(f"windfall: {message}\n")
    sys.stderr.flush()
