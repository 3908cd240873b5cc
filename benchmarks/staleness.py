"""Is asynchronous training worth it?  Loss against time of matrix factorisation on real data, beside one machine.

The data is which module of Python's standard library has which word, with sampled negatives (`windfall.apps.mf`).  Machines are
processes of the real runtime on Ray.  Each computes one data partition at a time; after it has computed, it waits idly, so that
a clock of a data partition takes 60 ms on average and varies as clocks of shared machines do (log-normal, sigma 0.6): that way
two cores stand for four machines.  One machine computes all four data partitions in turn.  Each loss is that of a checkpoint.

The answers are claims to be held, as they came out first: four machines at bound 0 come to what one comes to, bit for bit, and
are sooner there; bound 1 is sooner still and costs nothing; without a bound each clock brings less, and that costs more than
the waiting that it saves.
"""

from __future__ import annotations

import functools
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Benchmark
from windfall.apps import mf
from windfall.runtimes.table_rows import TableRows
from windfall.runtimes.tier_program import Table, TierProgram

PARTS, DATA, CLOCKS, SAVE_EVERY = 2, 4, 48, 4
PACE_S, SIGMA = 0.06, 0.6
SETTINGS = {"source": "standard-library", "rank": 16, "rate": 0.05}
MACHINES = {"one": ("r1",), "four": ("r1", "t1", "t2", "t3")}
ROUNDS = 3
LIMIT_S = 120.0
Curve = list[tuple[int, float, float]]
"""Clock, seconds since the first clock, loss."""


def benchmarks() -> list[Callable[[], Benchmark]]:
    return [
        loss_bulk_synchronous,
        loss_staleness_1,
        time_four_vs_one,
        time_staleness_1,
        time_asynchronous,
    ]


class PacedProgram:
    """A program whose turns take as long as on a slower machine: real arithmetic, then an idle wait."""

    def __init__(self, program: TierProgram) -> None:
        self.program, self.rows = program, program.rows
        self.first, self.evaluate, self.write = program.first, program.evaluate, program.write

    def load(self, data: int) -> tuple[int, Any]:
        return data, self.program.load(data)

    def compute(self, loaded: tuple[int, Any], clock: int, table: Table) -> None:
        self.program.compute(loaded[1], clock, table)
        chance = np.random.default_rng([loaded[0], clock])
        time.sleep(PACE_S * float(np.exp(SIGMA * chance.standard_normal() - SIGMA**2 / 2)))


def _program() -> PacedProgram:
    return PacedProgram(mf.program(SETTINGS, DATA))


@functools.cache
def _on_ray() -> Any:
    import ray

    ray.init(
        num_cpus=1, include_dashboard=False, namespace="staleness", log_to_driver=False, _node_ip_address="127.0.0.1"
    )
    return ray


@functools.cache
def curve(machines: str, staleness: int | None, number: int) -> Curve:
    """Train once; `number` tells repetitions apart."""
    from windfall.policies.layout.tiers import StageRatios
    from windfall.runtimes import tier_actors
    from windfall.runtimes.tier_pace import TierPace
    from windfall.runtimes.tier_server import ServerSettings
    from windfall.runtimes.tier_store import ObjectTierStore
    from windfall.storage.object_stores import folder_url, open_store
    from windfall.tier_layout import TierMachine

    ray = _on_ray()
    with tempfile.TemporaryDirectory(prefix="windfall-staleness-") as folder:
        url = folder_url(folder)
        store = ObjectTierStore(open_store(url))
        settings = ServerSettings(staleness, 1, CLOCKS)
        training = tier_actors.TierTraining(url, settings, PARTS, DATA, StageRatios(), TierPace(save_every=SAVE_EVERY))
        names = [TierMachine(name, name[0] == "r", float(order)) for order, name in enumerate(MACHINES[machines])]
        options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 1000}
        remote = ray.remote(tier_actors.CoordinatorActor).options(name=tier_actors.COORDINATOR, **options)
        coordinator = remote.remote(training, names)
        deciding, layout = coordinator.run.remote(), ray.get(coordinator.layout.remote())
        actors = [
            ray.remote(tier_actors.MachineActor)
            .options(name=name.name, **options)
            .remote(name, training, layout, _program, 1)
            for name in names
        ]
        running = [actor.run.remote() for actor in actors]
        try:
            found = _watched(ray, store, coordinator, [deciding, *running])
        finally:
            for actor in (*actors, coordinator):
                ray.kill(actor)
    print(f"    {machines}, staleness {staleness}, round {number}: clock, seconds, loss:", file=sys.stderr)
    print("        " + "  ".join(f"{clock} {at_s:.2f} {loss:.4f}" for clock, at_s, loss in found), file=sys.stderr)
    return found


@functools.cache
def _evaluated() -> TierProgram:
    return mf.program(SETTINGS, DATA)


def _watched(ray: Any, store: Any, coordinator: Any, calls: list[Any]) -> Curve:
    """Follow a training to its end by its checkpoints; losses are computed when it is over."""
    tables: list[tuple[int, float, Any]] = []
    limit, begun = time.monotonic() + LIMIT_S, None
    rows = TableRows(_evaluated().rows, PARTS)
    seen = 0
    while seen < CLOCKS:
        assert time.monotonic() < limit, "training takes too long"
        for over in ray.wait(calls, num_returns=len(calls), timeout=0.02)[0]:
            ray.get(over)
        layout = store.newest_layout()
        committed = layout.checkpoint.clock if ray.wait(calls[:1], timeout=0.0)[0] else _committed(ray, coordinator)
        if begun is None and committed >= 1:
            begun = time.monotonic()
        if layout.checkpoint.clock > seen:
            seen = layout.checkpoint.clock
            at_s = time.monotonic() - (begun or time.monotonic())
            parts = [store.load(part, layout.checkpoint) for part in range(PARTS)]
            tables.append((seen, at_s, rows.joined(np.arange(rows.rows), parts)))
    return [(clock, at_s, _evaluated().evaluate(table)) for clock, at_s, table in tables]


def _committed(ray: Any, coordinator: Any) -> int:
    clock: int = ray.get(coordinator.committed.remote()).clock
    return clock


def seconds_to(loss: float, found: Curve) -> float:
    """When a curve is down at a loss, on the straight line between two checkpoints."""
    for (_, before_s, before), (_, after_s, after) in itertools.pairwise(found):
        if after <= loss:
            return before_s + (after_s - before_s) * max(0.0, before - loss) / (before - after)
    return float("inf")


def _loss(staleness: int) -> Benchmark:
    rounds = {"ours": iter(range(ROUNDS + 1)), "one": iter(range(ROUNDS + 1))}
    return Benchmark(
        f"mf, loss at clock {CLOCKS}, staleness {staleness}, vs 1",
        lambda: curve("four", staleness, next(rounds["ours"]))[-1][2],
        lambda: curve("one", 0, next(rounds["one"]))[-1][2],
        1.0 if staleness == 0 else 1.02,
        at_most=True,
        unit="RMSE",
        rounds=ROUNDS,
    )


def loss_bulk_synchronous() -> Benchmark:
    """Four machines at bound 0 come to what one comes to, bit for bit."""
    return _loss(0)


def loss_staleness_1() -> Benchmark:
    """At the same clock, that reads may miss a clock of the others costs at most 2 % of the loss."""
    return _loss(1)


def _time(name: str, ours: tuple[str, int | None], yardstick: tuple[str, int | None], *, sooner: bool) -> Benchmark:
    """Seconds to the loss that the yardstick has at three quarters of its clocks."""
    rounds = {"ours": iter(range(ROUNDS + 1)), "yardstick": iter(range(ROUNDS + 1))}

    def seconds(who: str, run: tuple[str, int | None]) -> float:
        number = next(rounds[who])
        wanted = next(loss for clock, _, loss in curve(*yardstick, number) if clock >= CLOCKS * 3 // 4)
        return seconds_to(wanted, curve(*run, number))

    return Benchmark(
        name,
        lambda: seconds("ours", ours),
        lambda: seconds("yardstick", yardstick),
        1.0,
        at_most=sooner,
        unit="s",
        rounds=ROUNDS,
    )


def time_four_vs_one() -> Benchmark:
    """Four machines at bound 0 are sooner at a loss than one."""
    return _time("mf, time to a loss, 4 machines vs 1", ("four", 0), ("one", 0), sooner=True)


def time_staleness_1() -> Benchmark:
    """With bound 1, where clocks vary, sooner than with bound 0."""
    return _time("mf, time to a loss, staleness 1 vs 0", ("four", 1), ("four", 0), sooner=True)


def time_asynchronous() -> Benchmark:
    """Without a bound not sooner than with bound 0."""
    return _time("mf, time to a loss, staleness none vs 0", ("four", None), ("four", 0), sooner=False)
