"""A machine of a parameter server in tiers: its node of the Ray cluster, its actor, and on one machine the coordinator.

Everything here may be killed at any moment.  A machine whose node, actor or head is lost ends, and is started again as a new
one; the coordinator alone is started again in its place, since machines compute on without it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from windfall.errors import WindfallError
from windfall.linux.crashes import crash_text
from windfall.linux.listening import free_port
from windfall.ports import Clock
from windfall.runtimes.machine_limits import UNLIMITED, MachineLimits
from windfall.runtimes.tier_actors import CALLS_MAX, COORDINATOR, CoordinatorActor, MachineActor, TierLook, TierTraining
from windfall.runtimes.tier_coordinator_loop import LostMachine, Superseded
from windfall.runtimes.tier_program import TierProgram
from windfall.runtimes.tier_store import ObjectTierStore
from windfall.storage.object_stores import open_store
from windfall.structs import Struct
from windfall.terms import Seconds
from windfall.tier_layout import ServerLayout, TierMachine
from windfall.wire.python_programs import program

CONNECT_MAX_S = 60.0
"""How long a machine tries to join the cluster before it is started again."""
LOOK_S = 0.2
"""Between two looks at whether all is well."""
_RETRY_S = 0.1


class NodeLost(WindfallError):
    """This machine's node, its actor or its coordinator is gone: the machine must be started again."""


class ProgramCrashed(WindfallError):
    """The user's program ended its process by a fault, such as a segmentation fault."""


class TierNodePlace(Struct, frozen=True):
    """Where a machine is in the cluster; Ray finds the cluster's token in the environment (`wire.ray_environment`).

    Attributes:
        head: host:port of Ray's head.
        leads: the coordinator is here, and the head, unless it is given.
        given: the cluster is another's: its head is neither started nor stopped here.
        host: this machine's own, by which the cluster knows it.
        folder: Ray's own; its path is short, since sockets are in it.
        store_bytes: memory for messages that are on their way [B].
        slots: data partitions that compute at once.
        limits: of a small machine on a large one.
    """

    head: str
    leads: bool
    host: str
    folder: str
    store_bytes: int
    slots: int
    limits: MachineLimits = UNLIMITED
    given: bool = False

    @property
    def starts_head(self) -> bool:
        """Whether Ray's head is this machine's to start."""
        return self.leads and not self.given


class TierNodePorts(Struct, frozen=True):
    """What a machine depends on; `log` takes a message for its output."""

    clock: Clock
    log: Callable[[str], None]


class TierNode:
    """A machine while it trains.

    Args:
        place: in the cluster.
        machine: what the coordinator should know of it.
        training: what is trained.
        program: returns what computes.
        ports: what it depends on.
    """

    def __init__(
        self,
        place: TierNodePlace,
        machine: TierMachine,
        training: TierTraining,
        program: Callable[[], TierProgram],
        ports: TierNodePorts,
    ) -> None:
        self._place, self._machine, self._training = place, machine, training
        self._program, self._clock, self._log = program, ports.clock, ports.log
        self._node: subprocess.Popen[bytes] | None = None
        self._coordinator: Any = None
        self._deciding: Any = None
        self._actor: Any = None
        self._running: Any = None
        self._crash_file = os.path.join(place.folder, "crash.txt")

    def start(self) -> None:
        """Join the cluster and begin to serve and compute; raises as `join`."""
        self.join()
        self.begin()

    def begin(self) -> None:
        """Begin to serve and compute."""
        self._running = self._actor.run.remote()

    def join(self) -> None:
        """Join the cluster, with an actor that does nothing yet.

        Raises:
            NodeLost: the head does not answer.
        """
        deadline = self._clock.now() + CONNECT_MAX_S
        if not self._place.starts_head:
            self._await_head(deadline)
        self._node = start_ray(self._place)
        while True:
            try:
                ray.init(
                    address=self._place.head,
                    _node_ip_address=self._place.host,
                    namespace=namespace_of(self._training.store),
                    log_to_driver=False,
                    logging_level="ERROR",
                )
                break
            except (ConnectionError, RuntimeError, RayError) as error:
                self._look_at_node()
                if self._clock.now() > deadline:
                    raise NodeLost(f"Ray's head at {self._place.head} does not answer: {error}") from None
                self._clock.sleep(Seconds(_RETRY_S))
        if self._place.leads:
            self._start_coordinator()
        self._actor = self._remote(MachineActor, self._machine.name).remote(
            self._machine,
            self._training,
            self._layout(),
            self._program,
            self._place.slots,
            limits=self._place.limits,
            crash_file=self._crash_file,
        )

    def turn(self) -> bool:
        """Look after the machine for a while; return whether training is over.

        Raises:
            NodeLost: the machine must be started again.
            ProgramCrashed: the program ended its process.
            Exception: what the program raised.
        """
        self._look_at_node()
        awaited = [one for one in (self._running, self._deciding) if one is not None]
        for done in ray.wait(awaited, timeout=LOOK_S)[0]:
            try:
                ray.get(done)
            except RayActorError as error:
                if done != self._deciding:
                    raise self._lost(f"the actor of this machine is gone: {_first_line(error)}") from None
                self._log("the coordinator is gone: starting it again")
                self._start_coordinator()
                continue
            except RayTaskError as error:
                cause = error.cause or error
                if isinstance(cause, (LostMachine, Superseded)):
                    raise NodeLost(str(cause)) from None
                raise cause from None
            if done == self._running and self._deciding is None:
                return True
            if done == self._deciding:
                return True
            self._running = None
        return False

    def look(self, *, leaving: bool) -> TierLook | None:
        """Say whether this machine is to leave; return what it has heard of, None before it has begun.

        Raises:
            NodeLost: its actor does not answer.
            ProgramCrashed: the program ended its process.
        """
        try:
            found: TierLook | None = ray.get(self._actor.look.remote(leaving), timeout=CONNECT_MAX_S)
        except RayError as error:
            raise self._lost(f"the actor of this machine does not answer: {_first_line(error)}") from None
        return found

    def _lost(self, message: str) -> WindfallError:
        """Return why this machine's actor is gone: the program's own crash is none that another start would mend."""
        crash = crash_text(self._crash_file)
        return ProgramCrashed(crash) if crash else NodeLost(message)

    def end(self) -> None:
        """End everything that was started."""
        self._actor = self._running = self._coordinator = self._deciding = None
        ray.shutdown()
        if self._node is not None:
            # `ray start --block` ends what it has started when it is asked to.
            self._node.send_signal(signal.SIGTERM)
            try:
                self._node.wait(5.0)
            except subprocess.TimeoutExpired:
                self._node.kill()

    def _look_at_node(self) -> None:
        assert self._node is not None
        code = self._node.poll()
        if code is not None:
            raise NodeLost(f"this machine's node of the Ray cluster has ended with exit code {code}")

    def _await_head(self, deadline: float) -> None:
        host, _, port = self._place.head.rpartition(":")
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1.0).close()
                return
            except OSError as error:
                if self._clock.now() > deadline:
                    raise NodeLost(f"Ray's head at {self._place.head} does not answer: {error}") from None
            self._clock.sleep(Seconds(_RETRY_S))

    def _layout(self) -> ServerLayout:
        """Wait for the first layout, which awaits the reliable machines."""
        store = ObjectTierStore(open_store(self._training.store))
        deadline = self._clock.now() + self._training.pace.start_within_s + CONNECT_MAX_S
        while (layout := store.newest_layout()) is None:
            if self._clock.now() > deadline:
                raise NodeLost("the coordinator has written no layout")
            if self._machine.reliable:
                self._introduce()
            self._clock.sleep(Seconds(_RETRY_S))
        return layout

    def _introduce(self) -> None:
        """Say to the coordinator that this machine is there; again and again, since it may be a new one."""
        with suppress(ValueError, RayError):
            ray.get(ray.get_actor(COORDINATOR).introduce.remote(self._machine), timeout=CONNECT_MAX_S)

    def _start_coordinator(self) -> None:
        # Ray does not give a dead actor's name to another one while this process has a handle of it.
        self._coordinator = self._deciding = None
        deadline = self._clock.now() + CONNECT_MAX_S
        while True:
            try:
                self._coordinator = self._remote(CoordinatorActor, COORDINATOR).remote(self._training, [self._machine])
                break
            except ValueError as error:
                # Ray has not seen the end of the last one yet.
                if self._clock.now() > deadline:
                    raise NodeLost(f"the coordinator cannot be started: {error}") from None
                self._clock.sleep(Seconds(_RETRY_S))
        self._deciding = self._coordinator.run.remote()

    def _remote(self, actor: type, name: str) -> Any:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return ray.remote(actor).options(name=name, num_cpus=0, max_concurrency=CALLS_MAX, scheduling_strategy=here)


def namespace_of(url: str) -> str:
    """Return the Ray namespace of a run: actors of others have the same names, and may be in the same cluster."""
    return f"windfall-{hashlib.sha256(url.encode()).hexdigest()[:16]}"


def start_ray(place: TierNodePlace) -> subprocess.Popen[bytes]:
    """Start a machine's node of Ray; it ends, with all that it started, on SIGTERM."""
    host, _, port = place.head.rpartition(":")
    where = [f"--address={host}:{port}"]
    if place.starts_head:
        # Ray's own default is one port of loopback, and the head ends where another user's Ray has it.
        where = ["--head", f"--port={port}", f"--ray-client-server-port={free_port()}", "--include-dashboard=false"]
    argv = [
        *program("ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
        *where,
        *(f"--node-ip-address={place.host}", "--num-cpus=0", "--num-gpus=0", "--include-log-monitor=false"),
        *(f"--object-store-memory={place.store_bytes}", f"--temp-dir={place.folder}"),
    ]
    argv[0] = without_spaces(argv[0], place.folder)
    with open(os.path.join(place.folder, "start.log"), "wb") as output:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)


def without_spaces(python: str, folder: str) -> str:
    """Return a path of a Python that has no space, by a link in a folder: Ray starts some processes by a shell, unquoted."""
    if " " not in python:
        return python
    binaries, name = os.path.split(python)
    link = os.path.join(folder, "python")
    os.symlink(os.path.dirname(binaries), link)
    return os.path.join(link, os.path.basename(binaries), name)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
