"""Which implementations stand behind the keeper of a machine: the machine's part of `wiring`."""

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
from urllib.parse import urlsplit

from windfall import wiring
from windfall.agent.keeper import Keeper
from windfall.agent.keeper_exec import ExecProcess, Place
from windfall.agent.keeper_ports import Facts, KeeperPorts, Secrets, ThreadCalls
from windfall.agent.keeper_setup import Setup
from windfall.channels.reporting import DirectReporter
from windfall.core.keeping_facts import KeeperFact, Noticed, Pace, StopWished, Who
from windfall.errors import Misuse, StoreError
from windfall.notices.detect import detect
from windfall.ports import Clock, ObjectStore
from windfall.storage import bundle, executor
from windfall.storage.clocks import SystemClock
from windfall.storage.objects import open_store
from windfall.terms import Instant, Notice, NoticeLevel, Seconds
from windfall.wire import boot as names
from windfall.wire.boot import BootData
from windfall.wire.environment import without_lent
from windfall.wire.layout import setup_output_key

_LOCAL_PACE = Pace(direct_s=Seconds(0.25), box_s=Seconds(2.0), box_alone_s=Seconds(0.5), look_s=Seconds(0.1))
"""Between processes of one computer, with a folder as the store, speaking costs nothing."""
_DEFECTS_MAX = 60
"""After so many turns in a row that end in an error nobody foresaw, a second each, the machine gives up."""


class _Inbox:
    """Facts from threads and signal handlers, and a pipe that wakes the keeper; every call is safe in a handler."""

    def __init__(self) -> None:
        self._facts: queue.SimpleQueue[KeeperFact] = queue.SimpleQueue()
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def put(self, fact: KeeperFact) -> None:
        self._facts.put(fact)
        self.wake()

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b".")

    def take(self) -> Facts:
        found: list[KeeperFact] = []
        while not self._facts.empty():
            found.append(self._facts.get())
        return tuple(found)

    def wait(self, pause_s: float) -> None:
        if select.select([self._reader], [], [], pause_s)[0]:
            os.read(self._reader, 1 << 16)


class _Preparation:
    """Brings code and setup in place; the end of the setup's output goes into the run."""

    def __init__(self, place: Place, store: ObjectStore, clock: Clock) -> None:
        self._place, self._store, self._clock = place, store, clock
        self._setup: Setup | None = None

    def run(self, boot: BootData, secrets: Secrets) -> None:
        work = self._place.work(boot)
        if boot.bundle is not None:
            packed = executor.run(bundle.fetch(boot.bundle), self._store, self._clock)
            shutil.rmtree(work, ignore_errors=True)
            bundle.unpack(packed, work)
        if boot.setup is None:
            return
        script = self._place.path("setup.sh")
        with open(os.open(script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(boot.setup)
        self._setup = Setup(tuple(value for _, value in secrets))
        try:
            env = without_lent(self._place.environment(boot, secrets))
            self._setup.run(script, work, {name: env[name] for name in env if not name.startswith("WINDFALL_")})
        finally:
            with contextlib.suppress(StoreError):
                self._store.put(setup_output_key(self._place.machine_id), self._setup.output())

    def kill(self) -> None:
        if self._setup is not None:
            self._setup.kill()


def run_keeper(environ: Mapping[str, str]) -> None:
    """Keep this machine until it is to end; returns then.

    Raises:
        Misuse: the environment does not say which run this machine was bought for.
    """
    url = environ.get(names.RUN_URL)
    if not url:
        raise Misuse(f"{names.RUN_URL} is not set: a controller sets it when it boots a machine")
    clock, inbox = SystemClock(), _Inbox()
    place = _place(url, environ)
    store, exec_ = open_store(url), ExecProcess(place)
    preparation = _Preparation(place, store, clock)
    controller = environ.get(names.CONTROLLER) or None
    direct, life = None, wiring.new_nonce()
    if controller is not None:
        direct = DirectReporter(controller, place.machine_id, environ.get(names.CREDENTIAL, ""), life)

    def power(why: str) -> None:
        say(f"this machine ends: {why}")
        exec_.kill()
        preparation.kill()

    quick = place.provider == "local" and url.startswith("file://")
    address = _address(environ, place.provider, controller)
    who = Who(place.machine_id, life, direct is not None, address, _LOCAL_PACE if quick else Pace())
    calls = ThreadCalls(inbox.wake, say)
    ports = KeeperPorts(clock, store, direct, exec_, preparation.run, inbox.take, calls, power, who)
    keeper = Keeper(ports)
    _catch_signals(keeper, exec_, clock, inbox)
    _watch_notices(place, clock, inbox)
    _loop(keeper, inbox)


def _loop(keeper: Keeper, inbox: _Inbox) -> None:
    defects = 0
    while not keeper.over:
        try:
            pause_s, defects = keeper.turn(), 0
        except Exception as error:
            defects += 1
            say(f"the keeper met an error that nobody foresaw: {type(error).__name__}: {error}")
            if defects >= _DEFECTS_MAX:
                raise
            pause_s = 1.0
        if not keeper.over:
            inbox.wait(pause_s)


def _place(url: str, environ: Mapping[str, str]) -> Place:
    folder = os.path.join(os.getcwd(), ".windfall")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    machine_id = environ.get(names.MACHINE_ID) or socket.gethostname()
    metadata_url = environ.get(names.METADATA_URL) or None
    # A metadata service at an address of its own is a local market's, wherever the computer under it stands.
    provider = environ.get(names.PROVIDER) or ("local" if metadata_url is not None else detect(environ))
    return Place(url, machine_id, folder, provider, metadata_url, environ)


def _catch_signals(keeper: Keeper, exec_: ExecProcess, clock: Clock, inbox: _Inbox) -> None:
    """SIGTERM: this machine will be taken, and the run's agent hears it in the same moment.  SIGINT: save and end."""

    def terminated(*_: object) -> None:
        exec_.terminate()
        if not keeper.employed:
            # Nothing was begun that could be saved: whoever wants this machine back need not wait for it.
            inbox.put(StopWished())
        deadline = Instant(clock.now() + keeper.grace_s)
        inbox.put(Noticed(Notice(NoticeLevel.ANNOUNCED, "signal", "signal", deadline)))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    signal.signal(signal.SIGTERM, terminated)
    signal.signal(signal.SIGINT, lambda *_: inbox.put(StopWished()))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _watch_notices(place: Place, clock: Clock, inbox: _Inbox) -> None:
    if place.provider == "local" and place.metadata_url is None:
        return  # the agent of `windfall exec` makes a service of its own, for rehearsals
    for source in wiring.cloud_sources(place.provider, place.metadata_url, clock):
        threading.Thread(
            target=source.watch,
            args=(lambda notice: inbox.put(Noticed(notice)), lambda: False),
            name=f"notices-{source.name}",
            daemon=True,
        ).start()


def _address(environ: Mapping[str, str], provider: str, controller: str | None) -> str:
    """Return host:port for the job's other machines; the port is free now, and taken when a generation begins."""
    host = environ.get(names.ADDRESS) or ("127.0.0.1" if provider == "local" else _own_address(controller))
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{host}:{probe.getsockname()[1]}"


def _own_address(controller: str | None) -> str:
    """Return the address from which this machine would reach its controller; nothing is sent."""
    towards = (urlsplit(controller).hostname if controller else None) or "192.0.2.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])


def say(sentence: str) -> None:
    """Show a sentence in the machine's own output."""
    sys.stderr.write(f"windfall: {sentence}\n")
    sys.stderr.flush()
