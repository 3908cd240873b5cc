"""The fleet storm: controllers, keepers, runs and a market together, in one thread of virtual time.

The very code of the product decides and acts: `control.job_loop` with `core.driver`, `core.node_agent_reducer`,
`core.worker`, the step functions of storage; providers, channels, database, store, processes and clocks are simulated.
A seed draws the job, the markets and what goes wrong; every promise is checked at every event; then the faults stop,
and the job must end in bounded time with nothing left alive and a bill that is the meter's.

Replay a failure with `python -m tests.storms.fleet --seed N [--bug NAME]`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar
from unittest.mock import patch

from tests.storms import fleet_scene, planted_fleet, whole_scene
from tests.storms.fleet_checks import FleetRunChecks
from tests.storms.fleet_control import Controller
from tests.storms.fleet_exec import LeanExec
from tests.storms.fleet_machine import Node
from tests.storms.fleet_ports import FaultyProvider, Gate
from tests.storms.fleet_scene import JOB, FleetScene
from tests.storms.fleet_schedules import Schedules
from tests.storms.whole import CHUNK_BYTES, CHUNKS_AT_ONCE, GRACE_S, Whole
from tests.support.checks import Violation, demand
from tests.support.scene import Scene
from tests.support.simulated_store import Actor
from windfall import codec
from windfall.core import checkpoints, driver, machines
from windfall.events import Fact
from windfall.fleet import Directive, JobPhase, JobResumeRequested, JobStopRequested, Lifetime, Report
from windfall.market import Answer, BootSpec, Machine, MachineEndCause, Order
from windfall.ports import Provider
from windfall.simulation.simulated_provider import SimulatedProvider
from windfall.storage import restore, shard_transfer
from windfall.terms import NoticeLevel, Reliability, Seconds, Term

SETTLED_S = 1500.0
"""After the end of the faults a job is done, or has failed or stopped, within this and three times its work [s]."""
MEASURED_S = 2.0
ZOMBIE_S, UNRESPONSIVE_S, RELEASE_AGAIN_S = 45.0, 150.0, 30.0
"""Minutes of the product, so that storms get to see them."""


class Watched(SimulatedProvider):
    """The market, with a witness at its counter."""

    world: Fleet

    def order(self, order: Order, boot: BootSpec) -> Answer:
        before = self.alive(JOB)
        answer = super().order(order, boot)
        self.world.checks.bought(order, before, answer)
        return answer


class Fleet(Whole):
    """Time, chance, the store, the market, the machines and the controllers."""

    checks: FleetRunChecks
    settled_s = SETTLED_S

    def __init__(self, seed: int, folder: str) -> None:
        self.fleet = self.draw_fleet(seed)
        super().__init__(seed, folder)
        self.schedules = Schedules(self, seed)
        self.nodes: dict[str, Node] = {}
        self.groups: dict[int, dict[str, LeanExec]] = {}
        self.rows: list[str] = []
        self.snapshots: dict[int, bytes] = {}
        self.term = Term(0)
        self.controllers: list[Controller] = []
        self.nested = False
        self.hidden: set[str] = set()
        self.provider_out_until = self.sql_out_until = self.store_out_until = 0.0
        self.no_controller_until = 0.0
        self.gone: set[int] = set()
        self.intents: set[str] = set()
        self.tokens: set[str] = set()
        self.cancels: set[str] = set()
        self.cancelled: dict[str, float] = {}
        self.zombies: set[str] = set()
        self.bought: set[str] = set()
        self.last_reports: dict[str, tuple[float, Report]] = {}
        self.helpless_usd = self.surplus_s = 0.0
        self.lives: dict[str, Lifetime] = {}
        self.phase = JobPhase.BUYING
        self.job_wanted = True
        self.said: list[str] = []
        self._user_requests = self._draw_user_requests()
        self.provider = self.open_market(seed)

    def draw_fleet(self, seed: int) -> FleetScene:
        return fleet_scene.draw(seed)

    def open_market(self, seed: int) -> Watched:
        """Return the market, as the truth has it."""
        market = Watched(
            "sim", self, self.fleet.markets, random.Random(f"market {seed}"), listener=self,
            bill_lag_s=self.fleet.bill_lag_s,
        )  # fmt: skip
        market.world = self
        return market

    def providers(self, gate: Gate) -> Mapping[str, Provider]:
        """Return the providers as a new process has them."""
        return {"sim": FaultyProvider(gate)}

    def answer(self, controller: Controller, report: Report) -> Directive | None:
        """Return what a controller answers to a report."""
        return controller.direct.deliver(report)

    def draw(self, seed: int) -> tuple[Scene, whole_scene.Habits]:
        return fleet_scene.script(self.fleet)

    def new_checks(self) -> FleetRunChecks:
        return FleetRunChecks(self)

    def say(self, message: str) -> None:
        self.said.append(f"{self.time:9.2f} {message}")

    # ------------------------------------------------------------------------------------ what the market's machines do

    def started(self, machine: Machine, boot: BootSpec) -> None:
        self.nodes[machine.machine_id] = Node(self, machine)
        self.count("machine started")

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        if machine_id in self.nodes:
            self.nodes[machine_id].noticed(level, left_s)

    def ended(self, machine: Machine) -> None:
        self.count(f"machine {machine.cause}")
        if machine.machine_id in self.nodes:
            self.nodes[machine.machine_id].dies()

    def machine_gone(self, machine) -> None:  # type: ignore[no-untyped-def]
        del machine

    def next_machine(self, delay_s: float) -> None:
        """Nobody but the controller brings machines here."""

    def kill(self, actor: Actor) -> None:
        machine = getattr(actor, "machine", None)
        if machine is None or actor.dead:
            return
        if isinstance(machine, LeanExec) or self.rng.random() < 0.5:
            self.provider.end(machine.host, MachineEndCause.PREEMPTED)
        else:
            machine.agent_dies()

    def _draw(self) -> str | None:
        return "unreachable" if self.time < self.store_out_until else super()._draw()

    # --------------------------------------------------------------------------------------------------- the controllers

    def reachable(self) -> Controller | None:
        """Return the controller that answers at the installation's address."""
        alive = [one for one in self.controllers if not one.dead]
        return alive[-1] if alive and not alive[-1].paused else None

    def another_controller(self, delay_s: float) -> None:
        """Somebody starts a controller, unless one is there by then."""
        self.at(delay_s, self._start_controller)

    def _start_controller(self) -> None:
        if self.time < self.no_controller_until:
            self.at(self.no_controller_until - self.time, self._start_controller)
            return
        if self.reachable() is None:
            one = Controller(self)
            self.controllers.append(one)
            one.begin()

    def _watch_controllers(self) -> None:
        """The service manager: where nothing answers for long, a controller is started."""
        if self.reachable() is None:
            self.another_controller(self.rng.uniform(1.0, 10.0))
        self.at(15.0, self._watch_controllers)

    def _outage(self) -> None:
        self.count(f"outage {self.fleet.outage_s:g}")
        self.no_controller_until = self.time + self.fleet.outage_s
        for one in self.controllers:
            one.die("outage")

    def requests_due(self) -> list[Fact]:
        """Return the user requests that no controller has recorded yet."""
        return [fact for at, fact in self._user_requests if at <= self.time]

    def fulfilled(self, count: int) -> None:
        """Drop the oldest user requests, which are in the journal now."""
        for _, fact in self._user_requests[:count]:
            self.count(type(fact).__name__)
        del self._user_requests[:count]

    def _draw_user_requests(self) -> list[tuple[float, Fact]]:
        fleet = self.fleet
        if fleet.stop_at is None:
            return []
        return [
            (fleet.stop_at, JobStopRequested(fleet.stop_now, "user")),
            (fleet.resume_at, JobResumeRequested("user")),
        ]

    # --------------------------------------------------------------------------------------------------------- the run

    def heard_within(self, machine_id: str, limit_s: float) -> bool:
        return machine_id in self.last_reports and self.time - self.last_reports[machine_id][0] <= limit_s

    def says_it_ends(self, machine_id: str) -> bool:
        """Say whether the newest word of a machine that reached a controller is that it will be taken."""
        return machine_id in self.last_reports and self.last_reports[machine_id][1].level is NoticeLevel.ANNOUNCED

    def _measure(self) -> None:
        """Add up the cost of machines while no controller could act."""
        outages = (self.provider_out_until, self.sql_out_until, self.store_out_until)
        if self.reachable() is None or self.time < max(outages) or self.provider.limits.denied:
            rate = sum(machine.price_usd_per_hour for machine in self.provider.alive(JOB))
            self.helpless_usd += rate * MEASURED_S / 3600.0
            self.surplus_s = 0.0
        self.checks.surplus(MEASURED_S)
        self.at(MEASURED_S, self._measure)

    def _plan_trouble(self) -> None:
        fleet, rng = self.fleet, self.rng
        limits = self.provider.limits
        if fleet.no_quota is not None:
            limits.quota["m4", fleet.no_quota] = 0
        if fleet.tight is not None:
            limits.capacity["m4", fleet.tight[0], Reliability.TRANSIENT] = fleet.tight[1]
        if fleet.quiet:
            return
        for begin, end, zone in fleet.dry:
            self.at(begin, lambda zone=zone: self._dry(zone, 0))  # type: ignore[misc]
            self.at(end, lambda zone=zone: self._dry(zone, None))  # type: ignore[misc]
        if fleet.outage_s:
            self.at(fleet.outage_at, self._outage)
        for name in ("provider_out_until", "sql_out_until", "store_out_until"):
            for _ in range(rng.choice([0, 0, 1, 2])):
                at, length_s = rng.uniform(0.0, fleet.calm_s), rng.uniform(2.0, 60.0)
                self.at(at, lambda name=name, length_s=length_s: self._out(name, length_s))  # type: ignore[misc]
        if rng.random() < 0.15:
            self.at(rng.uniform(0.0, 100.0), lambda: self._deny(True))
            self.at(rng.uniform(100.0, 150.0), lambda: self._deny(False))

    def _out(self, name: str, length_s: float) -> None:
        if not self.calm:
            self.count(name.removesuffix("_until"))
            setattr(self, name, self.time + length_s)

    def _dry(self, zone: str, capacity: int | None) -> None:
        self.count("no capacity" if capacity == 0 else "capacity again")
        key = ("m4", zone, Reliability.TRANSIENT)
        if capacity is None:
            self.provider.limits.capacity.pop(key, None)
        else:
            self.provider.limits.capacity[key] = capacity

    def _deny(self, denied: bool) -> None:
        self.count("credentials refused" if denied else "credentials taken again")
        self.provider.limits.denied = denied

    def _calm_down(self) -> None:
        """The faults are over: machines that hang are seen to be taken, and capacity comes back."""
        self.provider.limits.capacity.clear()
        self.provider.limits.denied = False
        self.provider_out_until = self.sql_out_until = self.store_out_until = 0.0
        for node in self.nodes.values():
            node.cut_until = dict.fromkeys(node.cut_until, 0.0)

    def storm(self) -> None:
        """Run until the job has ended and its bill is closed; in bounded time once the faults are over."""
        scene, fleet = self.scene, self.fleet
        self._plan_trouble()
        self._watch_controllers()
        self._measure()
        self.at(scene.calm_s, self._calm_down)
        self._watch_controllers()
        calm_s = max(scene.calm_s, fleet.outage_at + fleet.outage_s, fleet.resume_at)
        bound_s = calm_s + self.settled_s + 5 * scene.steps * (scene.step_s + scene.stall_s) + max(fleet.bill_lag_s)
        while (soon := self.next_at()) is not None and not self._settled():
            demand(soon <= bound_s, f"the job ends in bounded time, {bound_s:.0f} s; it is {self.phase} at the end")
            self.run(soon)
        ending = self._settled()
        assert ending is not None
        self.count(f"ended {driver.phase(ending)}")
        self.checks.settled(ending)
        demand(not self.checks.records or driver.phase(ending) is not JobPhase.DONE or self.checks.done, "done is done")

    def _settled(self) -> driver.FleetState | None:
        if self._user_requests:
            return None
        for one in self.controllers:
            job_loop = one.job_loop
            if one.dead or one.paused or job_loop is None or not job_loop.ended:
                continue
            if not driver.needs_bill(job_loop.state):
                return job_loop.state
        return None


def storm(seed: int, bug: str | None = None) -> Fleet:
    """Run one seed; see `weathered`."""
    return weathered(Fleet, "tests.storms.fleet", seed, bug, planted_fleet.bug)


W = TypeVar("W", bound=Fleet)


def weathered(
    world_of: Callable[[int, str], W],
    command: str,
    seed: int,
    bug: str | None,
    plant: Callable[[str, W], AbstractContextManager[None]],
) -> W:
    """Run one seed of a kind of storm.

    Args:
        world_of: makes its world, from the seed and a folder.
        command: the module that replays it.
        seed: of all chance in it.
        bug: name of a bug to plant; None for none.
        plant: plants it.

    Raises:
        Violation: a promise was broken; the message ends with the command that replays it.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="windfall-storm-", dir=memory)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for module, name, value in (
            (shard_transfer, "CHUNK_BYTES", CHUNK_BYTES),
            (shard_transfer, "CHUNKS_AT_ONCE", CHUNKS_AT_ONCE),
            (restore, "CHUNKS_AT_ONCE", CHUNKS_AT_ONCE),
            (checkpoints, "GRACE_S", GRACE_S),
            (machines, "ZOMBIE_S", ZOMBIE_S),
            (machines, "UNRESPONSIVE_S", UNRESPONSIVE_S),
            (machines, "RELEASE_AGAIN_S", RELEASE_AGAIN_S),
            # Rows are immutable, and each is read dozens of times: once is enough.
            (codec, "row_from_line", functools.cache(codec.row_from_line)),
        ):
            stack.enter_context(patch.object(module, name, value))
        try:
            world = world_of(seed, folder)
            if bug is not None:
                stack.enter_context(plant(bug, world))
            world.storm()
        except Exception as error:
            again = f"python -m {command} --seed {seed}" + (f" --bug '{bug}'" if bug else "")
            raise Violation(f"{error!r}\nreplay: {again}") from error
    return world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--bug", choices=sorted(planted_fleet.BUGS))
    arguments = parser.parse_args()
    world = storm(arguments.seed, arguments.bug)
    print("\n".join(world.said))
    print(dict(world.tally))


if __name__ == "__main__":
    main()
