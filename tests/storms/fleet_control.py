"""The controllers of the fleet: processes that own a term, drive one conductor, die, are paused, and come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.storms.fleet_ports import (
    SNAPSHOT_ROWS,
    FaultyStore,
    Gate,
    Killed,
    SimulatedJournal,
    SimulatedSnapshots,
)
from tests.storms.fleet_scene import OWNER, PACE, SCHEDULES_S
from tests.support.checks import demand
from windfall.channels.direct import DirectChannel
from windfall.channels.mailbox import MailboxChannel
from windfall.control.job_loop import JobLoop, JobLoopPorts
from windfall.core import driver
from windfall.errors import ControllerReplaced, WindfallError
from windfall.fleet import Directive, Event, Lifetime, Report
from windfall.market import BootSpec, Order
from windfall.ports import Channel
from windfall.runtimes.checkpoint import CheckpointRuntime
from windfall.simulation.virtual_time import VirtualClock
from windfall.storage.run_log import StoreWatch
from windfall.structs import replace
from windfall.terms import Term

if TYPE_CHECKING:
    from tests.storms.fleet import Fleet

TURN_S_MIN = 0.05


@dataclass
class Ear:
    """A channel, and a witness of what reached the controller on it."""

    channel: Channel
    world: Fleet

    @property
    def name(self) -> str:
        return self.channel.name

    def receive(self) -> tuple[Report, ...]:
        reports = self.channel.receive()
        for report in reports:
            self.world.checks.check_report(report)
        return reports

    def send(self, directives: dict[str, Directive]) -> None:
        self.world.schedules.told(directives)
        self.channel.send(directives)


class Controller:
    """One process, from its start to its death; it owns the installation until a newer one takes it."""

    def __init__(self, world: Fleet) -> None:
        world.term = Term(world.term + 1)
        self.world = world
        self.term = world.term
        self.dead = False
        self.paused = False
        rng = world.rng
        offset = rng.choice((0.0, rng.uniform(-3600.0, 3600.0)))
        self.clock = VirtualClock(world, rng.uniform(0, 1e6), rng.uniform(-0.002, 0.002), offset)
        self.direct = DirectChannel(lambda: None)
        self.job_loop: JobLoop | None = None

    def begin(self) -> None:
        self.world.count("controller began")
        self.step()

    def _new_job_loop(self) -> JobLoop:
        world, gate = self.world, Gate(self)
        store = FaultyStore(gate=gate)
        box = MailboxChannel(store, self.clock, self.term, self._machine_ids)
        ports = JobLoopPorts(
            controller=self.term,
            owner=OWNER,
            clock=self.clock,
            journal=SimulatedJournal(gate),
            providers=world.providers(gate),
            channels=(Ear(self.direct, world), Ear(box, world)),
            runtime=CheckpointRuntime(StoreWatch(store, self.clock, world.nonce)),
            boot=_boot,
            notify=self._notify,
            rates=tuple,
            measured=tuple,
            record_lifetimes=self._record,
            log=world.say,
            pace=replace(PACE, estimates_s=SCHEDULES_S) if world.fleet.scheduled else PACE,
            schedule=world.schedules.make,
            in_background=lambda call: world.schedules.in_background(self, call),
            snapshots=SimulatedSnapshots(gate),
            snapshot_rows=SNAPSHOT_ROWS,
        )
        return JobLoop(world.fleet.job, ports)

    def _machine_ids(self) -> tuple[str, ...]:
        return () if self.job_loop is None else tuple(driver.known_machines(self.job_loop.state))

    def _notify(self, event: Event, message: str) -> None:
        self.world.count(f"told {event}")
        self.world.say(f"{event}: {message}")

    def _record(self, lives: tuple[Lifetime, ...]) -> None:
        self.world.lives |= {one.machine_id: one for one in lives}

    def step(self) -> None:
        """One turn of the loop, with whatever becomes of it."""
        if self.dead:
            return
        world = self.world
        if not world.calm and world.rng.random() < 0.004:
            self.clock.wall_offset += world.rng.uniform(-3600.0, 3600.0)
            world.count("clock jump")
        delay_s = 1.0
        try:
            if self.job_loop is None:
                self.job_loop = self._new_job_loop()
                world.checks.recovered(self)
            requests = world.requests_due()
            for request in requests:
                self.job_loop.requests.put(request)
            delay_s = self.job_loop.turn()
            world.fulfilled(len(requests))
        except Killed:
            demand(self.dead, "only the dead are killed")
            return
        except ControllerReplaced:
            world.count("controller replaced")
            self.dead = True
            return
        except WindfallError:
            # Its memory is lost: it restarts from its journal.
            world.count("turn failed")
            self.job_loop = None
        world.checks.turned(self)
        world.at(max(delay_s, TURN_S_MIN), self.step)

    def die(self, where: str) -> None:
        """The process is gone with everything in its memory."""
        if self.dead:
            return
        self.dead = True
        self.world.count("controller killed")
        self.world.count(f"killed at {where}")
        self.world.another_controller(self.world.rng.uniform(0.5, 15.0))


def _boot(order: Order) -> BootSpec:
    del order
    return BootSpec(("node-agent",))
