"""spotDNN's predictions on small machines: profiled by the product, then five mixes that were not profiled, five times each.

The profile is that of `windfall drill --profile`, on machines of two types: each alone, and clusters of 2, 4 and 7.  Its
constants predict the iteration time of each mix (the time from one turn of the cluster to the next) and the turns until a loss
that lies beyond what was profiled.  What is printed is 1 + the relative error of the prediction against each of five runs, the
median of which must be within the paper's worst error; where the runs themselves spread further than that, nothing can be said.
Runs that found the cores more than 80 % busy are void; they are counted on standard error, and repeated a few times.

Source: R. Shang et al., "spotDNN", IWQoS 2023, section V: 2.5 % for one machine, 6.9 % for clusters; the iterations of
EsperBERTo (11.7 %) and ResNet-110 (7.1 %).
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._turn_time import turns_s
from benchmarks.harness import Benchmark
from windfall.drill.busy_cores import BUSY_MAX
from windfall.drill.profile_drill import PATIENT, ProfileKinds, ProfileLength, ProfileProtocol
from windfall.drill.profile_words import MachineSize, ProfiledProgram, SeenTraining
from windfall.linux.clock import SystemClock
from windfall.linux.random_names import new_nonce
from windfall.models import asp, asp_turn_fits, asp_turns
from windfall.models.asp import AspModel
from windfall.policies.layout.tier_rules import job_of
from windfall.runtimes.machine_limits import MachineLimits
from windfall.structs import replace
from windfall.wire.ray_environment import ray_environment

SMALL = MachineSize("small", 1, MachineLimits(0.005, 2e6), 2.0)
LARGE = MachineSize("large", 1, MachineLimits(0.01, 2e6), 4.0)
"""Of the time that a turn takes with its data in the caches."""
SIZES = (2, 4, 7)
MIXES = (
    (LARGE,),
    (SMALL, SMALL, SMALL),
    (LARGE, LARGE, SMALL),
    (LARGE, LARGE, LARGE, SMALL, SMALL),
    (LARGE, LARGE, SMALL, SMALL, SMALL, SMALL),
)
PROFILED_TURNS, GOAL_TURNS, TURNS = 120, 150, 190
"""Of each cluster of the profile; after which the loss is predicted that runs are to reach; of each run."""
WARM_UP = 3
ROUNDS = 5
VOID_MAX = 4
"""Void runs of one round after which nothing can be measured here."""
ALONE, CLUSTER, LOSS_ALL, LOSS_MEDIAN = 0.025, 0.069, 0.117, 0.071
SETTINGS = {"observations": 12_000, "features": 300, "classes": 10, "apart": 0.06, "batch": 1000, "rate": 0.5}
TIERS = {
    "workers": "1..7", "clocks": 1000, "partitions": 12, "staleness": "none", "servers": "reliable",
    "app": "windfall.apps.mlr", "settings": SETTINGS,
}  # fmt: skip
LIMIT_S = 1800.0


def benchmarks() -> list[Callable[[], Benchmark]]:
    times = [functools.partial(_time, mix) for mix in MIXES]
    losses = [functools.partial(_loss, mix) for mix in MIXES]
    found: list[Callable[[], Benchmark]] = [*times, *losses, loss_median]
    for maker, mix in zip((*times, *losses), (*MIXES, *MIXES), strict=True):
        maker.__name__ = "prediction_" + "_".join(_text(mix).replace("+", "").split())  # type: ignore[attr-defined]
    return found


def _text(mix: tuple[MachineSize, ...]) -> str:
    return asp_turns.mix_text([asp_turns.TurnMachine(size.kind) for size in mix])


@functools.cache
def protocol() -> ProfileProtocol:
    """Start small machines; they end with this process."""
    os.environ.update({**ray_environment(new_nonce()), **PATIENT})
    # Ray reads the environment when it is imported.
    from windfall.drill.profile_cluster import ProfileCluster

    folder, clock = Path(tempfile.mkdtemp(prefix="windfall-prediction-")), SystemClock()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "code").mkdir()
    cluster = ProfileCluster(1, max(SIZES), folder, clock)
    atexit.register(cluster.close)
    program = ProfiledProgram(job_of(TIERS), (), str(folder / "code"), {})
    length = ProfileLength(PROFILED_TURNS, clock.now() + LIMIT_S)
    kinds = ProfileKinds((timed(SMALL), timed(LARGE)), timed(SMALL))
    return ProfileProtocol(cluster, program, kinds, length, lambda _phase, _detail: None)


@functools.cache
def timed(size: MachineSize) -> MachineSize:
    """Return a machine whose turns have the time that this computer takes now: profile and mixes are of the same machines."""
    partitions = TIERS["partitions"]
    return replace(size, limits=replace(size.limits, turn_s=turn_times()[partitions]))


@functools.cache
def turn_times() -> dict[int, float]:
    """Return how long a turn computes."""
    return turns_s(TIERS["app"], SETTINGS, (TIERS["partitions"],))


@functools.cache
def model() -> AspModel:
    """Profile, and fit."""
    trainings, idle = protocol().run(SIZES)
    fit = asp_turn_fits.fit_turns([one.run for one in trainings], idle.run)
    fitted = asp_turn_fits.model_of(fit, "prediction", servers=1)
    busy = max(one.busy for one in trainings)
    print(f"    profile: cores up to {busy:.0%} busy; {fitted.workload}; {fitted.types}", file=sys.stderr)
    return fitted


def goal() -> float:
    """The loss to reach: the model's beyond what was profiled, on as many machines of each type as a mix has."""
    return float(asp.loss_after(model(), _counts(MIXES[3]), float(GOAL_TURNS)))


def _counts(mix: tuple[MachineSize, ...]) -> list[int]:
    kinds = [size.kind for size in mix]
    return [kinds.count(one.name) for one in model().types]


@functools.cache
def run_of(mix: tuple[MachineSize, ...], number: int) -> SeenTraining:
    """Return a run that is not void, if there is one; the void ones before it are counted."""
    model()
    for void in range(VOID_MAX + 1):
        found = protocol().train(tuple(timed(size) for size in mix), TURNS)
        rate, reached = asp_turns.turns_per_s(found.run, WARM_UP), asp_turns.turns_to(found.run, goal())
        print(
            f"    {_text(mix)}, round {number}, {void} void before it, cores {found.busy:.0%} busy: {rate:.3f} turns/s, "
            f"loss {goal():.4f} after {reached} turns",
            file=sys.stderr,
        )
        if found.busy <= BUSY_MAX:
            return found
    raise SystemExit(f"{VOID_MAX + 1} runs in a row were void: the cores are too busy for small machines")


def _paired(
    name: str, mix: tuple[MachineSize, ...], measured: Callable[[SeenTraining], float], predicted: float, bound: float
) -> Benchmark:
    """A pair whose ratio is 1 + the relative error of a prediction."""
    # The first pair of a benchmark is thrown away: the runs begin warm, so it is one that is measured again.
    rounds: dict[str, Any] = {"ours": iter((1, *range(1, ROUNDS + 1))), "yardstick": iter((1, *range(1, ROUNDS + 1)))}

    def error() -> float:
        seen = measured(run_of(mix, next(rounds["ours"])))
        return seen + abs(predicted - seen)

    def yardstick() -> float:
        return measured(run_of(mix, next(rounds["yardstick"])))

    unit = "s" if name.startswith("time") else "turns"
    return Benchmark(name, error, yardstick, 1.0 + bound, at_most=True, unit=unit, rounds=ROUNDS, spread_max=bound)


def _time(mix: tuple[MachineSize, ...]) -> Benchmark:
    """The iteration time of a mix."""
    predicted_s = 1.0 / float(asp.cluster_speed(model(), _counts(mix)).iterations_per_s)
    return _paired(
        f"time of a turn, {_text(mix)}", mix, lambda seen: 1.0 / asp_turns.turns_per_s(seen.run, WARM_UP),
        predicted_s, ALONE if len(mix) == 1 else CLUSTER,
    )  # fmt: skip


def _reached(seen: SeenTraining) -> float:
    found = asp_turns.turns_to(seen.run, goal())
    return float(TURNS) if found is None else found


def _loss(mix: tuple[MachineSize, ...]) -> Benchmark:
    """The turns until a loss on a mix; a run that never reached it counts with all its turns."""
    predicted = float(asp.iterations_for(model(), _counts(mix), goal()))
    return _paired(f"turns to a loss, {_text(mix)}", mix, _reached, predicted, LOSS_ALL)


def loss_median() -> Benchmark:
    """The turns until a loss: the median error of all mixes in a round."""
    rounds = iter((1, *range(1, ROUNDS + 1)))

    def errors() -> float:
        number = next(rounds)
        found = []
        for mix in MIXES:
            seen = _reached(run_of(mix, number))
            found.append(abs(float(asp.iterations_for(model(), _counts(mix), goal())) / seen - 1.0))
        return 1.0 + statistics.median(found)

    return Benchmark(
        "turns to a loss, median error of all mixes", errors, lambda: 1.0, 1.0 + LOSS_MEDIAN, at_most=True, unit="",
        rounds=ROUNDS,
    )  # fmt: skip
