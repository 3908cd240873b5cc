"""Small machines on this host, each a node of Ray at a loopback address of its own, that train again and again for a profile.

A machine is whatever type a training wants it to be: kernels and links are limited by the runtime (`runtimes.machine_limits`).
Ray's variables (`wire.ray_environment`) must be in the environment before this module is imported.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from windfall.drill.busy_cores import BusyCores
from windfall.drill.profile_machine import ProfiledCoordinator, ProfiledMachine, short_folder
from windfall.drill.profile_words import MachineSize, ProfiledProgram, ProfileTraining, SeenTraining
from windfall.errors import Misuse, RunFailed
from windfall.linux.listening import free_port
from windfall.linux.random_names import new_nonce
from windfall.models.asp_turns import TurnMachine, TurnRun
from windfall.policies.layout.tier_rules import TierJob
from windfall.ports import Clock
from windfall.runtimes.machine_limits import UNLIMITED
from windfall.runtimes.tier_actors import CALLS_MAX, COORDINATOR, TierTraining
from windfall.runtimes.tier_node import TierNodePlace, start_ray
from windfall.runtimes.tier_pace import TierPace
from windfall.runtimes.tier_server import ServerSettings
from windfall.storage.object_stores import folder_url
from windfall.structs import replace
from windfall.terms import Seconds
from windfall.tier_layout import TierMachine

START_WITHIN_S = 300.0
"""How long the nodes of Ray may take to start."""
STARTED_AT_ONCE = 3
"""Nodes that start beside one another: more keep the cores of a host so busy that Ray takes its head for dead."""
RESTARTS_MAX = 5
"""How often a node that ended is started again, in all."""
END_WITHIN_S = 60.0
"""How long a training may take to rest."""
SILENT_S = 60.0
"""Machines of one host are not lost, only slow, where the host is busy."""
TURNS_EACH_MIN = 8
"""A training ends once each machine has had as many turns too: some begin later than others."""
CLOCKS = 1_000_000
"""More than there is time for."""
_LOOK_S = Seconds(0.1)
_STORE_BYTES = 128 << 20
_MB = 1e6


class ProfileCluster:
    """Nodes of Ray, and an actor on each.

    Args:
        reliable: machines that serve.
        workers: the most machines that compute.
        folder: for stores.
        clock: the real one.

    Raises:
        RunFailed: Ray does not start.
    """

    def __init__(self, reliable: int, workers: int, folder: Path, clock: Clock) -> None:
        self._folder, self._clock, self._trained = folder, clock, 0
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._places: list[TierNodePlace] = []
        self._folders: list[str] = []
        self._restarts_left = RESTARTS_MAX
        self._cores = BusyCores()
        try:
            self._start(reliable + workers)
            reached = [f"reliable-{number}" for number in range(reliable)]
            self._reliable = {name: self._actor(ProfiledMachine, name, place) for place, name in enumerate(reached)}
            names = [f"worker-{number}" for number in range(workers)]
            self._workers = {
                name: self._actor(ProfiledMachine, name, reliable + place) for place, name in enumerate(names)
            }
            self._coordinator = self._actor(ProfiledCoordinator, COORDINATOR, 0)
        except BaseException:
            self.close()
            raise

    def samples(self, program: ProfiledProgram, size: MachineSize) -> float:
        """Return the samples of a turn on a machine type.

        Raises:
            Misuse, RunFailed: the program cannot be made.
        """
        found: float = self._got([next(iter(self._workers.values())).make.remote(program, size)])[0]
        return found

    def train(
        self, wanted: ProfileTraining, job: TierJob, samples: Mapping[str, float], show: Callable[[int], None]
    ) -> SeenTraining:
        """Train from the start, and return what was seen of it.

        Args:
            wanted: the machines, and when it ends.
            job: the runtime's settings.
            samples: of a turn, by machine type.
            show: is told how many turns there were.

        Raises:
            Misuse, RunFailed: the program failed, or a machine was lost.
        """
        self._trained += 1
        store = self._folder / f"training-{self._trained}"
        store.mkdir(parents=True)
        training = TierTraining(
            folder_url(str(store)), ServerSettings(None, 1, CLOCKS), job.parts, job.partitions, job.ratios,
            TierPace(save_every=CLOCKS, lost_after_s=SILENT_S, reliable_lost_after_s=SILENT_S),
        )  # fmt: skip
        servers = dict(zip(self._reliable, wanted.reliable, strict=True))
        workers = dict(zip(self._workers, wanted.workers, strict=False))
        if isinstance(wanted.program, ProfiledProgram):
            self._got([self._workers[name].make.remote(wanted.program, size) for name, size in workers.items()])
        machines = {
            name: TierMachine(name, name in servers, float(place), speed=size.slots * size.limits.kernel_speed)
            for place, (name, size) in enumerate({**servers, **workers}.items())
        }
        layout = self._got([self._coordinator.prepare.remote(training, tuple(machines.values()))])[0]
        actors = [{**self._reliable, **self._workers}[name] for name in machines]
        sizes = [*servers.values(), *workers.values()]
        self._got(
            [
                actor.prepare.remote(machine, training, layout, size, wanted.program)
                for actor, machine, size in zip(actors, machines.values(), sizes, strict=True)
            ]
        )
        began_s = self._clock.now()
        running = [self._coordinator.run.remote(), *(actor.run.remote() for actor in actors)]
        computing = [self._workers[name] for name in workers]
        self._watch(wanted, running, computing, show)
        busy = self._cores.between(began_s, self._clock.now())
        self._got([self._coordinator.rest.remote()])
        self._got(running, END_WITHIN_S)
        shown = tuple(TurnMachine(one.kind, samples.get(one.kind, 1.0), one.slots) for one in workers.values())
        turns = self._got([actor.turns.remote() for actor in computing])
        shutil.rmtree(store, ignore_errors=True)
        return SeenTraining(_run_of(shown, job.partitions, turns), busy)

    def close(self) -> None:
        """End all processes."""
        self._cores.end()
        with contextlib.suppress(RayError):
            ray.shutdown()
        for node in self._nodes:
            # `ray start --block` ends what it has started when it is asked to.
            node.send_signal(signal.SIGTERM)
        for node in self._nodes:
            try:
                node.wait(10.0)
            except subprocess.TimeoutExpired:
                node.kill()
        for folder in (*self._folders, *(place.folder for place in self._places)):
            shutil.rmtree(folder, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------------------- inside

    def _start(self, machines: int) -> None:
        base = int(new_nonce()[:8], 16) % 200 + 10
        self._hosts = [f"127.{base}.{os.getpid() % 250}.{place + 1}" for place in range(machines)]
        port = free_port()
        head, until = f"{self._hosts[0]}:{port}", self._clock.now() + START_WITHIN_S
        for place, host in enumerate(self._hosts):
            self._places.append(TierNodePlace(head, place == 0, host, short_folder(), _STORE_BYTES, 1, UNLIMITED))
            self._nodes.append(start_ray(self._places[place]))
            if place == 0:
                self._until(until, lambda: _answers(self._hosts[0], port))
                self._until(until, lambda: _joined(head, self._hosts[0]))
            elif place % STARTED_AT_ONCE == 0 or place == machines - 1:
                self._until(until, lambda: len(self._ids()) == len(self._nodes))

    def _until(self, until: float, condition: Callable[[], bool]) -> None:
        while not condition():
            self._restart_ended()
            if self._clock.now() > until:
                raise RunFailed(
                    f"small machines for the profile cannot be started: Ray's nodes are not up after {START_WITHIN_S:g} s"
                )
            self._clock.sleep(_LOOK_S)

    def _restart_ended(self) -> None:
        """Start nodes again that have ended: on a busy host Ray gives some up.

        Raises:
            RunFailed: it was the head, or too many.
        """
        for number, node in enumerate(self._nodes):
            if node.poll() is None:
                continue
            place = self._places[number]
            if place.leads or not self._restarts_left:
                says = Path(place.folder, "start.log").read_text(errors="replace").strip().rpartition("\n")[2]
                raise RunFailed(
                    f"small machines for the profile cannot be started: a node of Ray ended with exit code {node.returncode}: "
                    f"{says}"
                )
            self._restarts_left -= 1
            self._folders.append(place.folder)
            self._places[number] = replace(place, folder=short_folder())
            self._nodes[number] = start_ray(self._places[number])

    def _ids(self) -> dict[str, str]:
        return {one["NodeManagerAddress"]: one["NodeID"] for one in ray.nodes() if one["Alive"]}

    def _actor(self, kind: type, name: str, place: int) -> Any:
        here = NodeAffinitySchedulingStrategy(self._ids()[self._hosts[place]], soft=False)
        options = {"num_cpus": 0, "max_concurrency": CALLS_MAX, "scheduling_strategy": here}
        return ray.remote(kind).options(name=name, **options).remote()

    def _watch(
        self, wanted: ProfileTraining, running: Sequence[Any], computing: Sequence[Any], show: Callable[[int], None]
    ) -> None:
        while self._clock.now() < wanted.until:
            ended, _ = ray.wait(list(running), timeout=2.0 * _LOOK_S)
            self._got(ended)
            counts = self._got([actor.count.remote() for actor in computing])
            show(min(sum(counts), wanted.turns))
            if sum(counts) >= wanted.turns and min(counts) >= TURNS_EACH_MIN:
                return

    def _got(self, calls: Sequence[Any], within_s: float = START_WITHIN_S) -> list[Any]:
        """Return what calls return.

        Raises:
            Misuse, RunFailed: one failed.
        """
        try:
            found: list[Any] = ray.get(list(calls), timeout=within_s)
        except RayTaskError as error:
            cause = error.cause or error
            if isinstance(cause, Misuse):
                raise Misuse(str(cause)) from None
            raise RunFailed(f"the program raised {type(cause).__name__}: {_first_line(cause)}") from None
        except RayActorError as error:
            raise RunFailed(f"a small machine of the profile is gone: {_first_line(error)}") from None
        except RayError as error:
            raise RunFailed(f"a small machine of the profile does not answer: {_first_line(error)}") from None
        return found


def _joined(head: str, host: str) -> bool:
    """Join the cluster as its driver; return whether the head knows its own node yet."""
    options = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address=head, _node_ip_address=host, namespace="windfall", **options)
    except (ConnectionError, RuntimeError, RayError):
        return False
    return True


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _run_of(machines: tuple[TurnMachine, ...], partitions: int, turns: Sequence[Sequence[Any]]) -> TurnRun:
    """Return turns of machines as one training."""
    rows = sorted(
        (one.ended_s, place, one.data, one.computed_s, one.moved_bytes / _MB, np.nan if one.loss is None else one.loss)
        for place, mine in enumerate(turns)
        for one in mine
    )
    table = np.array(rows, np.float64).reshape(len(rows), 6)
    ended_s, machine, data, computed_s, moved_mb, loss = table.T
    return TurnRun(
        machines, partitions, machine.astype(np.int64), data.astype(np.int64), ended_s, computed_s, moved_mb, loss
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
