"""Iterations of up to eight small machines, beside what the model of tiers predicts for their shape (`models.tier_costs`).

One number of the model is free, how long one machine computes a whole iteration; it is set by two machines that share all the
serving and computing (`FITTED`), and the others are predicted, by that run's iterations one by one.  Each machine has one data
partition: of several, one would move its rows while another one computes, and the model has no such overlap.  Links are slow,
so that moving takes a good part of an iteration.  A pair with a busy iteration is void: runs are repeated a few times.

- **Predicted**: how many times as long as predicted, or as short, an iteration is.
- **Tiered**: iterations a second with four reliable and four transient machines, beside eight reliable ones that all serve.

Source: Proteus (EuroSys 2017), sections 3.2 and 6.4.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks._small_machines import ITEMS, RANK, SETTINGS, USERS, SmallMachines, Smallness
from benchmarks._turn_time import turns_s
from benchmarks.harness import Benchmark
from windfall.drill.busy_cores import BUSY_MAX
from windfall.models.tier_costs import ServedModel, TierShape, iteration_s, traffic
from windfall.policies.layout.tiers import StageRatios, active_servers

SPEED, LINK_BYTES_PER_S = 0.012, 6e5
"""So slow that what messages take of the host itself, some 0.3 s an iteration of eight machines, is little beside the rest."""
PARTS = 12
"""Divided evenly among one, two, three and four servers."""
ROUNDS, WARM_UP = 6, 2
OFF_MAX = 1.15
VOID_MAX = 3
STAGE_1, STAGE_2, STAGE_3 = StageRatios(99.0, 99.0), StageRatios(0.01, 99.0), StageRatios(0.01, 0.02)
ROW_BYTES = 4.0 * RANK


@dataclass(frozen=True)
class Live:
    """A shape that runs; `reliable` and `transient` machines in the stage that `ratios` give."""

    name: str
    reliable: int
    transient: int
    ratios: StageRatios = STAGE_1

    @property
    def shape(self) -> TierShape:
        """The same for the model."""
        if self.ratios is STAGE_1:
            return TierShape(self.reliable, self.transient)
        return TierShape(self.reliable, self.transient, active_servers(self.transient), self.ratios is not STAGE_3)


FITTED = Live("two that do all", 2, 0)
UNTIERED, TIERED = Live("8 that do all", 8, 0), Live("4+4, stage 1", 4, 4)
COMPUTING = (2, 4, 5, 6, 8)
"""How many machines compute in these shapes, and have a data partition each."""


def benchmarks() -> list[Callable[[], Benchmark]]:
    return [two_and_two, one_and_three, four, one_and_four, one_and_six, two_and_six, tiered]


def _model(compute_s: float) -> ServedModel:
    """Return what is trained: each user's row is used by one machine, each item's by all."""
    return ServedModel(USERS * ROW_BYTES, ITEMS * ROW_BYTES, compute_s)


@functools.cache
def _small() -> Smallness:
    """Return machines whose turns have the time that this computer takes now, measured once for all shapes."""
    return Smallness(SPEED, LINK_BYTES_PER_S, turns_s("windfall.apps.mf", SETTINGS, COMPUTING))


@functools.cache
def iterations_s(live: Live) -> tuple[float, ...]:
    """Return how long the iterations of a shape take that is not void, once all machines compute."""
    for void in range(VOID_MAX + 1):
        found_s, busiest = _played(live)
        words = " ".join(f"{took_s:.3f}" for took_s in found_s)
        print(f"    {live.name}, {void} void before it, cores up to {busiest:.0%}: {words}", file=sys.stderr)
        if busiest <= BUSY_MAX:
            return found_s
    raise SystemExit(f"{VOID_MAX + 1} runs in a row were void: the cores are too busy for small machines")


def _played(live: Live) -> tuple[tuple[float, ...], float]:
    reliable = [f"r{number}" for number in range(live.reliable)]
    transient = [f"t{number}" for number in range(live.transient)]
    computing = set(transient) if live.ratios is STAGE_3 else {*reliable, *transient}
    serving, servers = set(reliable), len(reliable)
    if live.ratios is not STAGE_1:
        # One that is there a little earlier than the others serves on.
        serving, servers = set(transient), active_servers(len(transient))
    machines = SmallMachines([*reliable, *transient], PARTS, len(computing), small=_small(), ratios=live.ratios)
    try:
        machines.start(*reliable)
        machines.until(1)
        machines.order("begin", *transient)
        since = machines.until_settled(serving, computing, servers=servers) + WARM_UP
        machines.until(since + ROUNDS + 1)
        return (
            tuple(machines.iterations(since + 1, since + ROUNDS + 1)),
            machines.busiest(since, since + ROUNDS + 1),
        )
    finally:
        machines.end()


@functools.cache
def _predictions_s(live: Live) -> tuple[float, ...]:
    """Return what each iteration of the fitted shape predicts for another one [s]."""
    moved = traffic(_model(0.0), FITTED.shape)["reliable"]
    moving_s = max(moved.in_bytes, moved.out_bytes) / LINK_BYTES_PER_S
    return tuple(
        iteration_s(_model((took_s - moving_s) * FITTED.shape.workers), live.shape, LINK_BYTES_PER_S)
        for took_s in iterations_s(FITTED)
    )


def _predicted(live: Live) -> Benchmark:
    """How far a shape is from its prediction, to either side."""
    predictions, found = (iter(range(ROUNDS + 1)) for _ in range(2))

    def ours() -> float:
        number = next(found)
        took_s, predicted_s = iterations_s(live)[number], _predictions_s(live)[number]
        return max(took_s, predicted_s**2 / took_s)

    return Benchmark(
        f"{live.name}, iteration vs predicted",
        ours,
        lambda: _predictions_s(live)[next(predictions)],
        OFF_MAX,
        at_most=True,
        unit="s",
        rounds=ROUNDS,
    )


def four() -> Benchmark:
    """Twice as many machines that do all."""
    return _predicted(Live("4 that do all", 4, 0))


def two_and_two() -> Benchmark:
    """Two serve, four compute."""
    return _predicted(Live("2+2, stage 1", 2, 2))


def one_and_three() -> Benchmark:
    """One serves, four compute."""
    return _predicted(Live("1+3, stage 1", 1, 3))


def one_and_four() -> Benchmark:
    """Two transient machines serve, and push to one that computes too."""
    return _predicted(Live("1+4, stage 2", 1, 4, STAGE_2))


def one_and_six() -> Benchmark:
    """Three transient machines serve, and push to one that only backs up."""
    return _predicted(Live("1+6, stage 3", 1, 6, STAGE_3))


def two_and_six() -> Benchmark:
    """Three transient machines serve, and push to two that compute too."""
    return _predicted(Live("2+6, stage 2", 2, 6, STAGE_2))


def tiered() -> Benchmark:
    """Tiers beside the same number of machines of which none can vanish."""
    rounds = {live: iter(range(ROUNDS + 1)) for live in (TIERED, UNTIERED)}
    return Benchmark(
        "4+4 tiered vs 8 untiered, iterations",
        lambda: 1.0 / iterations_s(TIERED)[next(rounds[TIERED])],
        lambda: 1.0 / iterations_s(UNTIERED)[next(rounds[UNTIERED])],
        0.9,
        at_most=False,
        unit="/s",
        rounds=ROUNDS,
    )
