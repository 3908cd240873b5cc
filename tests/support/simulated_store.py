"""A store in memory, and a world in which many step functions use it at once under seeded faults.

`MemoryStore` is an honest `ports.ObjectStore`.  `World` interleaves actors (each one step function, on a machine with
clocks of its own) one operation at a time: a seed decides latencies, lost and doubled replies, unreachable moments,
pauses, jumps of wall clocks and deaths.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from windfall.errors import StoreUnreachable
from windfall.ports import Get, List, Pause, SimpleOp, Steps, StoreOp, Together
from windfall.simulation.virtual_time import Timeline
from windfall.storage.store_operations import perform
from windfall.terms import Bytes, Instant, Seconds, WallTime


@dataclass
class MemoryStore:
    """Objects in a dictionary; `put_range` and `get_range` use real files."""

    url: str = "memory://run"
    objects: dict[str, bytes] = field(default_factory=dict)

    def create(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self.objects[key] = data
        return True

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def size(self, key: str) -> Bytes | None:
        data = self.objects.get(key)
        return None if data is None else Bytes(len(data))

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def list(self, prefix: str) -> list[str]:
        return sorted(key for key in self.objects if key.startswith(prefix))

    def put_range(
        self, key: str, path: str, offset: int, size_bytes: int, cancelled: Callable[[], bool] | None = None
    ) -> str:
        with open(path, "rb") as file:
            data = os.pread(file.fileno(), size_bytes, offset)
        if len(data) < size_bytes:
            raise EOFError(path)
        self.objects[key] = data
        return digest(data)

    def get_range(self, key: str, path: str, offset: int, size_bytes: int) -> str | None:
        data = self.objects.get(key)
        if data is not None and len(data) == size_bytes:
            with open(path, "r+b") as file:
                os.pwrite(file.fileno(), data, offset)
        return None if data is None else digest(data)


def digest(data: bytes) -> str:
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}"


class ManualClock:
    """`ports.Clock` that moves when told, and by sleeping."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> Instant:
        return Instant(self.at)

    def wall_time(self) -> WallTime:
        return WallTime(1_800_000_000.0 + self.at)

    def sleep(self, duration_s: Seconds) -> None:
        self.at += duration_s


@dataclass(frozen=True)
class Faults:
    """Chances per operation, until `calm_at` [s of the world]."""

    lost_reply: float = 0.03
    doubled: float = 0.03
    unreachable: float = 0.02
    pause: float = 0.015
    pause_s_max: float = 30.0
    crash: float = 0.01
    clock_jump: float = 0.02
    calm_at: float = 200.0


@dataclass(eq=False)
class Actor:
    """One life of one contender: a process with a monotonic clock that drifts and a wall clock that jumps."""

    name: str
    host: str
    drift: float
    monotonic_offset: float
    wall_offset: float
    world: World
    dead: bool = False
    finished: bool = False
    result: object = None

    def now(self) -> Instant:
        return Instant(self.monotonic_offset + self.world.time * (1 + self.drift))

    def wall_time(self) -> WallTime:
        return WallTime(1_800_000_000.0 + self.world.time + self.wall_offset)

    def sleep(self, duration_s: Seconds) -> None:
        raise AssertionError("a simulated actor pauses by yielding")


Observer = Callable[[Actor, SimpleOp, object], None]


class World(Timeline):
    """Time, the store and the actors; everything that happens is an entry of one heap, ties in order of entry."""

    def __init__(self, seed: int, faults: Faults, observe: Observer, on_end: Callable[[Actor], None]) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.faults = faults
        self.rng = random.Random(seed)
        self.operations = 0
        self.current: Actor | None = None
        self._observe = observe
        self._on_end = on_end

    def actor(self, name: str, host: str) -> Actor:
        rng = self.rng
        return Actor(
            name, host, rng.uniform(-0.01, 0.01), rng.uniform(0, 1e6), rng.choice((0.0, rng.uniform(-7200, 7200))), self
        )

    def start(self, actor: Actor, steps: Steps[object], delay_s: float = 0.0) -> None:
        self.at(delay_s, lambda: self._resume(actor, steps, None, first=True))

    @property
    def calm(self) -> bool:
        return self.time >= self.faults.calm_at

    def _resume(self, actor: Actor, steps: Steps[object], value: object, *, first: bool = False) -> None:
        if actor.dead:
            return
        self.current = actor
        try:
            operation = self._step(steps, value, first=first)
        except StopIteration as end:
            actor.finished, actor.result = True, end.value
            self._on_end(actor)
            return
        self._carry_out(actor, steps, operation)

    @staticmethod
    def _step(steps: Steps[object], value: object, *, first: bool) -> StoreOp:
        if isinstance(value, Exception):
            return steps.throw(value)
        return next(steps) if first else steps.send(value)

    def _carry_out(self, actor: Actor, steps: Steps[object], operation: StoreOp) -> None:
        ops = operation.ops if isinstance(operation, Together) else (operation,)
        results: list[object] = [None] * len(ops)
        missing = len(ops)

        def answer(index: int, result: object) -> None:
            nonlocal missing
            results[index] = result
            missing -= 1
            if missing:
                return
            failure = next((one for one in results if isinstance(one, Exception)), None)
            whole = results if isinstance(operation, Together) else results[0]
            self._resume(actor, steps, whole if failure is None else failure)

        for index, op in enumerate(ops):
            self._begin(actor, op, lambda result, index=index: answer(index, result))

    def _begin(self, actor: Actor, op: SimpleOp, answer: Callable[[object], None]) -> None:
        self.operations += 1
        if isinstance(op, Pause):
            self.at(op.duration_s / (1 + actor.drift), lambda: answer(actor.now()))
            return
        there, back = self.rng.uniform(0.002, 0.05), self.rng.uniform(0.002, 0.05)
        fault = self._draw()
        if fault == "clock jump":
            actor.wall_offset += self.rng.uniform(-3600, 3600)
        elif fault == "pause before":
            there += self.rng.uniform(0, self.faults.pause_s_max)
        elif fault == "pause after":
            back += self.rng.uniform(0, self.faults.pause_s_max)
        elif fault == "crash before":
            self.at(0.0, lambda: self.kill(actor))
            return
        self.at(there, lambda: self._effect(actor, op, fault, back, answer))

    def _effect(
        self, actor: Actor, op: SimpleOp, fault: str | None, back: float, answer: Callable[[object], None]
    ) -> None:
        """Let an operation reach the store; what a machine has sent arrives even if the machine dies meanwhile."""
        if fault == "unreachable":
            self.at(back, lambda: answer(StoreUnreachable("the store does not answer")))
            return
        result = self._apply(actor, op)
        if fault == "crash after":
            self.kill(actor)
        elif fault == "lost reply, error":
            self.at(back, lambda: answer(StoreUnreachable("the reply was lost")))
        elif fault == "lost reply, tried again":
            self.at(back, lambda: self._effect(actor, op, None, back, answer))
        else:
            self.at(back, lambda: answer(result))
        if fault == "doubled" and not isinstance(op, (Get, List)):
            self.at(self.rng.uniform(0, self.faults.pause_s_max), lambda: self._apply(actor, op))

    def _apply(self, actor: Actor, op: SimpleOp) -> object:
        result = perform(op, self.store, actor)
        self._observe(actor, op, result)
        return result

    def _draw(self) -> str | None:
        if self.calm:
            return None
        chances = (
            ("unreachable", self.faults.unreachable),
            ("lost reply, error", self.faults.lost_reply / 2),
            ("lost reply, tried again", self.faults.lost_reply / 2),
            ("doubled", self.faults.doubled),
            ("pause before", self.faults.pause / 2),
            ("pause after", self.faults.pause / 2),
            ("crash before", self.faults.crash / 2),
            ("crash after", self.faults.crash / 2),
            ("clock jump", self.faults.clock_jump),
        )
        checkpoint = self.rng.random()
        for name, chance in chances:
            if checkpoint < chance:
                return name
            checkpoint -= chance
        return None

    def kill(self, actor: Actor) -> None:
        if not actor.dead and not actor.finished:
            actor.dead = True
            self._on_end(actor)


class Killed(Exception):
    """A process died at a failpoint."""


@dataclass
class CrashingStore:
    """Carries out operations one by one and dies at the `deadly`-th failpoint: before or after each operation."""

    store: MemoryStore
    clock: ManualClock
    deadly: int | None = None
    passed: list[str] = field(default_factory=list)
    abandoned: list[object] = field(default_factory=list)

    def hit(self, name: str) -> None:
        self.passed.append(name)
        if self.deadly is not None and len(self.passed) == self.deadly:
            raise Killed(name)

    def drive(self, steps: Steps[object]) -> object:
        """Run a step function; it is kept, so that a death runs none of its `finally` clauses, as a real one would not."""
        self.abandoned.append(steps)
        try:
            operation = next(steps)
            while True:
                operation = self._next(steps, operation)
        except StopIteration as end:
            return end.value

    def _next(self, steps: Steps[object], operation: StoreOp) -> StoreOp:
        if isinstance(operation, Together):
            return steps.send([self._one(op) for op in operation.ops])
        return steps.send(self._one(operation))

    def _one(self, op: SimpleOp) -> object:
        name = type(op).__name__.lower()
        self.hit(f"{name}:before")
        result = perform(op, self.store, self.clock)
        self.hit(f"{name}:after")
        return result
