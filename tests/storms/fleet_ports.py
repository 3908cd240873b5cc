"""The ports of a simulated controller: each call may be cut off, answered twice, or be the last thing a process does.

A call that is *paused* lets the rest of the world go on under its feet, as it does for a process that is stopped: when
it returns, another controller may have taken the installation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from tests.support.simulated_store import MemoryStore
from windfall.errors import ControllerError, ControllerReplaced, ProviderUnreachable, StoreUnreachable, WindfallError
from windfall.market import Answer, Bill, BootSpec, Capabilities, Machine, Offer, Order, Quota
from windfall.terms import Seconds

if TYPE_CHECKING:
    from tests.storms.fleet_control import Controller

T = TypeVar("T")

PAUSE_S = (1.0, 90.0)
LATE_S = 40.0
"""A call that is carried out twice is so the second time up to so much later [s]."""
QUIET_CALL = 0.0015
"""Chance of a fault per call that changes nothing [1]."""

OFTEN = MappingProxyType({"append": 0.3, "put": 0.3})
"""What is called far more often than anything else: faults there are so much rarer [1]."""


class Killed(BaseException):
    """The controller's process died; nothing in it can catch that."""


@dataclass
class Gate:
    """Where every call of a controller's process passes."""

    controller: Controller

    def call(
        self,
        name: str,
        effect: Callable[[], T],
        error: Callable[[str], Exception],
        *,
        changes: bool,
        doubles: bool = False,
    ) -> T:
        """Carry a call out, or not, or twice."""
        controller, world = self.controller, self.controller.world
        self._alive()
        fault = self._draw(name, changes)
        if fault == "killed before":
            controller.die(name)
            raise Killed(name)
        if fault == "paused":
            self._pause(name)
        if fault == "unreachable" or (fault == "late" and not doubles):
            world.count(f"{name} unreachable")
            raise error(f"{name} is not answered")
        if fault == "late":
            world.count(f"{name} carried out late")
            world.at(world.rng.uniform(0.0, LATE_S), lambda: _quietly(effect))
            raise error(f"{name} timed out")
        result = effect()
        if doubles and fault == "doubled":
            world.count(f"{name} doubled")
            world.at(world.rng.uniform(0.0, LATE_S), lambda: _quietly(effect))
        if fault == "killed after":
            controller.die(name)
            raise Killed(name)
        if fault == "lost":
            world.count(f"{name} reply lost")
            raise error(f"the reply to {name} was lost")
        self._alive()
        return result

    def _alive(self) -> None:
        if self.controller.dead:
            raise Killed("a dead process does nothing")

    def _draw(self, name: str, changes: bool) -> str | None:
        world = self.controller.world
        chance = world.fleet.busy * OFTEN.get(name, 1.0) if changes else QUIET_CALL
        if world.calm or world.rng.random() >= chance:
            return None
        kinds = ("unreachable", "late", "lost", "doubled", "killed before", "killed after", "paused")
        return world.rng.choices(kinds, weights=(2, 3, 3, 3, 1, 1, 2))[0]

    def _pause(self, name: str) -> None:
        controller, world = self.controller, self.controller.world
        if world.nested:
            return
        world.count("controller paused")
        world.count(f"paused at {name}")
        world.nested = True
        controller.paused = True
        if world.rng.random() < 0.7:
            world.another_controller(world.rng.uniform(0.5, 10.0))
        world.pass_time(world.rng.uniform(*PAUSE_S))
        world.nested = False
        controller.paused = False
        self._alive()


def _quietly(effect: Callable[[], object]) -> None:
    with contextlib.suppress(WindfallError):
        effect()


@dataclass
class FaultyProvider:
    """`ports.Provider` as a controller reaches it."""

    gate: Gate
    name: str = "sim"
    cursor: str = ""
    hidden: set[str] = field(default_factory=set)

    def capabilities(self) -> Capabilities:
        return self.gate.controller.world.provider.capabilities()

    def _call(self, name: str, effect: Callable[[], T], *, changes: bool = False, doubles: bool = False) -> T:
        world = self.gate.controller.world
        if world.time < world.provider_out_until:
            world.count("provider out")
            raise ProviderUnreachable("sim answers 503")
        return self.gate.call(name, effect, ProviderUnreachable, changes=changes, doubles=doubles)

    def offers(self) -> tuple[Offer, ...]:
        return self._call("offers", self.gate.controller.world.provider.offers)

    def quota(self, owner: str) -> tuple[Quota, ...]:
        return self._call("quota", lambda: self.gate.controller.world.provider.quota(owner))

    def order(self, order: Order, boot: BootSpec) -> Answer:
        provider = self.gate.controller.world.provider
        return self._call("order", lambda: provider.order(order, boot), changes=True, doubles=True)

    def cancel(self, token: str) -> None:
        self.gate.controller.world.cancels.add(token)
        self._call("cancel", lambda: self.gate.controller.world.provider.cancel(token), changes=True, doubles=True)

    def release(self, machine_id: str) -> None:
        provider = self.gate.controller.world.provider
        self._call("release", lambda: provider.release(machine_id), changes=True, doubles=True)

    def preempt(self, machine_id: str, notice_s: Seconds | None) -> None:
        provider = self.gate.controller.world.provider
        self._call("preempt", lambda: provider.preempt(machine_id, notice_s), changes=True, doubles=True)

    def list(self, owner: str) -> tuple[Machine, ...]:
        return self._call("list", lambda: self._stale(owner))

    def _stale(self, owner: str) -> tuple[Machine, ...]:
        """Now and then one machine is missing, in no two listings after one another."""
        world = self.gate.controller.world
        machines = world.provider.list(owner)
        hidden, world.hidden = world.hidden, set()
        if world.fleet.stale and not world.calm and machines and world.rng.random() < 0.05:
            one = world.rng.choice(machines).machine_id
            if one not in hidden:
                world.hidden = {one}
                world.count("stale listing")
        return tuple(machine for machine in machines if machine.machine_id not in world.hidden)

    def charges(self, owner: str, cursor: str) -> Bill:
        return self._call("charges", lambda: self._bill(owner, cursor))

    def _bill(self, owner: str, cursor: str) -> Bill:
        """Now and then the bill is told from its beginning once more."""
        world = self.gate.controller.world
        if not world.calm and world.rng.random() < 0.15:
            bill = world.provider.charges(owner, "")
            world.count("charges told twice" if cursor not in ("", "0") else "charges told")
            return Bill((*bill.charges, *bill.charges[:1]), bill.cursor)
        return world.provider.charges(owner, cursor)


@dataclass
class SimulatedJournal:
    """`ports.Journal` of one job in a database: what it has is durable; a newer term fences the older ones."""

    gate: Gate

    def append(self, line: str) -> None:
        self._out()
        self.gate.call("append", lambda: self._write(line), ControllerError, changes=True)

    def _write(self, line: str) -> None:
        controller = self.gate.controller
        if controller.term < controller.world.term:
            raise ControllerReplaced(f"controller {controller.world.term} took the installation")
        controller.world.rows.append(line)
        controller.world.checks.journaled(controller, line)

    def _out(self) -> None:
        world = self.gate.controller.world
        if world.time < world.sql_out_until:
            world.count("database out")
            raise ControllerError("the database does not answer")

    def rows(self, after: int = 0) -> Iterator[str]:
        self._out()
        yield from tuple(self.gate.controller.world.rows[after:])


SNAPSHOT_ROWS = 4
"""So few rows lie between two snapshots of a storm that most restarts begin with one."""


@dataclass
class SimulatedSnapshots:
    """`ports.Snapshots` beside that journal: a tenth is cut off."""

    gate: Gate

    def newest(self) -> Iterator[tuple[int, bytes]]:
        yield from sorted(self.gate.controller.world.snapshots.items(), reverse=True)

    def write(self, sequence: int, data: bytes) -> None:
        world = self.gate.controller.world
        if self.gate.controller.term < world.term:
            raise ControllerReplaced(f"controller {world.term} took the installation")
        whole = sequence % 10 != 0
        world.count("snapshot written" if whole else "snapshot cut off")
        world.snapshots[sequence] = data if whole else data[: len(data) // 2]
        for old in sorted(world.snapshots)[:-2]:
            del world.snapshots[old]


@dataclass
class FaultyStore(MemoryStore):
    """The run's store as a controller reaches it: one object at a time."""

    gate: Gate | None = None

    def _call(self, name: str, effect: Callable[[], T], *, changes: bool) -> T:
        assert self.gate is not None
        world = self.gate.controller.world
        if world.time < world.store_out_until:
            world.count("store out")
            raise StoreUnreachable("the store does not answer")
        return self.gate.call(name, effect, StoreUnreachable, changes=changes, doubles=changes)

    def create(self, key: str, data: bytes) -> bool:
        assert self.gate is not None
        world = self.gate.controller.world

        def effect() -> bool:
            world.checks.created(key, data)
            return world.store.create(key, data)

        return self._call("create", effect, changes=True)

    def put(self, key: str, data: bytes) -> None:
        assert self.gate is not None
        store = self.gate.controller.world.store
        self._call("put", lambda: store.put(key, data), changes=True)

    def get(self, key: str) -> bytes | None:
        assert self.gate is not None
        store = self.gate.controller.world.store
        return self._call("get", lambda: store.get(key), changes=False)

    def delete(self, key: str) -> None:
        assert self.gate is not None
        store = self.gate.controller.world.store
        self._call("delete", lambda: store.delete(key), changes=False)

    def list(self, prefix: str) -> list[str]:
        assert self.gate is not None
        store = self.gate.controller.world.store
        return self._call("list objects", lambda: store.list(prefix), changes=False)
