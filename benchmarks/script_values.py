"""Values of a parameter server on their way to a script and back, within a host: against bare copies, and against Ray.

A round is a pull and a push of a whole table, as the script sees them: a turn pulls and pushes some rounds, and the machine
adds up each push.  Bare copies are two of the same bytes and an add, in one process.  Ray does the same work as ours: an actor
has the table; a worker gets what it returns, and puts what the actor then gets and adds up, all through the object store.
Both are warm: before the first pair, all of the object store's memory has been used once: Ray comes back to memory only after
some pairs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import perf_counter

import numpy as np

from benchmarks.harness import Benchmark
from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.tier_script import ScriptProgram

WIDTH = 1024
LARGE_BYTES, SMALL_BYTES = 100_000_000, 100_000
LARGE_ROUNDS, SMALL_ROUNDS = 1, 200
STORE_BYTES = 1_500_000_000
WARM_PAIRS = STORE_BYTES // (2 * LARGE_BYTES) + 2
SCRIPT = f"""
import sys, numpy as np
import windfall.paramserver as ps
table, rounds = int(sys.argv[1]), int(sys.argv[2])
rows = np.arange(table)
server = ps.connect(rows=table, width={WIDTH}, first=lambda wanted: np.zeros((len(wanted), {WIDTH})))
changes = np.ones((table, {WIDTH}), np.float32)
for turn in server.turns():
    for _ in range(rounds):
        values = server.pull(rows)
        server.push(rows, changes)
    del values
"""


def benchmarks() -> list[Callable[[], Benchmark]]:
    """The pairs of this module."""
    return [
        script_values_vs_copies_100_mb,
        script_values_vs_copies_100_kb,
        script_values_vs_ray_100_mb,
        script_values_vs_ray_100_kb,
    ]


class WholeTable:
    """`Table` that is read and pushed whole."""

    def __init__(self, rows: int) -> None:
        self.values = np.zeros((rows, WIDTH), np.float32)

    def pull(self, rows: Rows) -> Values:
        return self.values[: len(rows)]

    def push(self, rows: Rows, changes: Values) -> None:
        self.values[: len(rows)] += changes


class Channel:
    """A script that pulls and pushes."""

    def __init__(self, size: int, rounds: int) -> None:
        rows = max(1, size // (4 * WIDTH))
        self._rounds, self._bytes = rounds, rows * WIDTH * 4
        self._table = WholeTable(rows)
        argv = [sys.executable, "-c", SCRIPT, str(rows), str(rounds)]
        self._program = ScriptProgram.start(argv, os.curdir, dict(os.environ), 1, 1)
        self._clock = 0

    def speed(self) -> float:
        """Return the speed of rounds [bytes of the table / s]."""
        self._clock += 1
        start = perf_counter()
        self._program.compute(0, self._clock, self._table)
        elapsed = perf_counter() - start
        assert self._table.values[-1, -1] == self._clock * self._rounds
        return self._bytes * self._rounds / elapsed

    def close(self) -> None:
        self._program.close(5.0)


class Copies:
    """Two copies and an add."""

    def __init__(self, size: int, rounds: int) -> None:
        shape = max(1, size // (4 * WIDTH)), WIDTH
        self._rounds = rounds
        self._table, self._changes = np.zeros(shape, np.float32), np.ones(shape, np.float32)
        self._pulled, self._pushed = np.ones(shape, np.float32), np.ones(shape, np.float32)

    def speed(self) -> float:
        """Return the speed of rounds [bytes of the table / s]."""
        start = perf_counter()
        for _ in range(self._rounds):
            np.copyto(self._pulled, self._table)
            np.copyto(self._pushed, self._changes)
            self._table += self._pushed
        return self._table.nbytes * self._rounds / (perf_counter() - start)


class RayTable:
    """A table in an actor."""

    def __init__(self, size: int, rounds: int) -> None:
        import ray

        self._ray, self._rounds = ray, rounds
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            object_store_memory=STORE_BYTES,
        )
        rows = max(1, size // (4 * WIDTH))
        self._actor = ray.remote(RayWholeTable).remote(rows)
        self._changes = np.ones((rows, WIDTH), np.float32)

    def speed(self) -> float:
        """Return the speed of rounds [bytes of the table / s]."""
        start = perf_counter()
        for _ in range(self._rounds):
            values = self._ray.get(self._actor.pull.remote())
            assert values.shape == self._changes.shape
            self._ray.get(self._actor.push.remote(self._ray.put(self._changes)))
        return self._changes.nbytes * self._rounds / (perf_counter() - start)

    def close(self) -> None:
        self._ray.shutdown()


class RayWholeTable:
    """The actor."""

    def __init__(self, rows: int) -> None:
        self._values = np.zeros((rows, WIDTH), np.float32)

    def pull(self) -> Values:
        return self._values

    def push(self, changes: Values) -> None:
        self._values += changes


def script_values_vs_copies_100_mb() -> Benchmark:
    """A large dense block."""
    return _vs_copies("pull and push 100 MB vs 2 copies and an add", LARGE_BYTES, LARGE_ROUNDS)


def script_values_vs_copies_100_kb() -> Benchmark:
    """A few rows: it is missed by far, since the wake-ups of two processes cost more than copies."""
    return _vs_copies("pull and push 100 KB vs 2 copies and an add", SMALL_BYTES, SMALL_ROUNDS)


def _vs_copies(name: str, size: int, rounds: int) -> Benchmark:
    ours, copies = Channel(size, rounds), Copies(size, rounds)
    return Benchmark(name, ours.speed, copies.speed, 0.7, at_most=False, unit="B/s", rounds=15, close=ours.close)


def script_values_vs_ray_100_mb() -> Benchmark:
    """A large dense block: it is missed by far.

    Ray copies large values in several threads, here on a core that a training would use, and reads them without a copy; once
    warm it comes near two bare copies and an add in one thread.  A third of what these take is hardly enough for the add.
    """
    return _vs_ray("pull and push 100 MB vs Ray's object store", LARGE_BYTES, LARGE_ROUNDS, 3.0)


def script_values_vs_ray_100_kb() -> Benchmark:
    """A few rows."""
    return _vs_ray("pull and push 100 KB vs Ray's object store", SMALL_BYTES, SMALL_ROUNDS, 10.0)


def _vs_ray(name: str, size: int, rounds: int, target: float) -> Benchmark:
    ours, rays = Channel(size, rounds), RayTable(size, rounds)
    for _ in range(WARM_PAIRS):
        ours.speed()
        rays.speed()

    def close() -> None:
        ours.close()
        rays.close()

    return Benchmark(name, ours.speed, rays.speed, target, at_most=False, unit="B/s", rounds=9, close=close)
