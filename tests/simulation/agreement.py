"""Random worlds in which kernel and event engine must agree, and the comparison of two trials.

`python -m tests.simulation.agreement NUMBER` replays one and prints what differs.
"""

from __future__ import annotations

import math
import random
import sys
from dataclasses import dataclass
from functools import lru_cache

from windfall.errors import Infeasible
from windfall.simulation import engine, kernels
from windfall.simulation.outcomes import Trial
from windfall.simulation.scenario import (
    AvailabilityWindows,
    DurationRange,
    LifetimeModel,
    LifetimeQuantiles,
    MemorylessLifetimes,
    RecordedLifetimes,
    Scenario,
    WorkerEstimates,
)
from windfall.simulation.simulated_policies import UserPolicy

TOLERANCE = 1e-6
READING_S = 2.0**-22
"""What a double resolves of a wall clock [s]: the engine's meter reads one at the begin and the end of each machine."""
POLICIES = ("adaptive", "thesis", "young-daly", "never", "optimal")
MACHINES_MOST, SAVES_MOST = 60, 3000
PROVIDERS = ("local", "aws", "google", "slurm")


def square_root(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s):
    """Young's rule, longer on old machines and never shorter than a save."""
    if age_s > 4000.0:
        return math.inf
    return (1e-3 + max((2.0 * stall_s * mttp_s) ** 0.5, durable_s)) * (1.0 + age_s / 1000.0)


INJECTED = UserPolicy("square_root", square_root)


@dataclass(frozen=True)
class Case:
    """One random world and one of its trials."""

    scenario: Scenario
    seed: int
    trial: int
    policy: UserPolicy | None


def case(number: int, longer: float = 1.0) -> Case:
    """The world of a number: steps from milliseconds to minutes, machines that live for a step or for ever."""
    rng = random.Random(number)
    step_s = 10.0 ** rng.uniform(-2.0, 1.3)
    steps = rng.randint(1, rng.choice((30, 300, 3000)))
    work_s = steps * step_s
    machines = rng.choice((1, 1, 2, 3, 4))
    mean_s = work_s * 10.0 ** rng.uniform(-0.6, 1.0) * machines
    notice_s = rng.choice((0.0, rng.uniform(0.0, 5.0), rng.uniform(5.0, 40.0), 120.0, 2.0 * step_s))
    return Case(
        Scenario(
            steps=steps,
            step_s=DurationRange.of(step_s, rng.choice((0.0, 0.3))),
            stall_s=_length(rng, step_s),
            upload_s=_length(rng, 4.0 * step_s),
            allocate_s=_length(rng, mean_s / 20.0),
            prepare_s=_length(rng, mean_s / 10.0),
            lifetimes=_lives(rng, longer * mean_s, machines),
            notice_s=notice_s,
            announced_share=rng.choice((0.0, 0.5, 0.9, 1.0)),
            policy=_policy(rng, step_s, steps),
            estimates=WorkerEstimates(
                mttp_s=mean_s / machines * rng.choice((0.3, 1.0, 3.0)),
                unannounced_share=rng.choice((None, 0.0, 0.1, 0.5, 1.0)),
                restart_s=mean_s / 10.0,
                costs_known=rng.random() < 0.5,
                notice_s=rng.choice((None, None, notice_s, 0.0, 3600.0)),
                learns=rng.random() < 0.8,
            ),
            machines=machines,
            price_usd_per_hour=1.0,
            provider=rng.choice(PROVIDERS),
            successor_at_notice=rng.random() < 0.8,
            lifetime_ends_at_notice=rng.random() < 0.2,
        ),
        seed=number,
        trial=rng.randint(0, 1000),
        policy=INJECTED if rng.random() < 0.1 else None,
    )


def _length(rng: random.Random, usual_s: float) -> DurationRange:
    shape = rng.random()
    if shape < 0.15:
        return DurationRange(0.0, 0.0)
    length_s = usual_s * 10.0 ** rng.uniform(-1.0, 1.0)
    return DurationRange.of(length_s) if shape < 0.4 else DurationRange.of(length_s, 0.4)


def _policy(rng: random.Random, step_s: float, steps: int) -> str:
    if rng.random() < 0.6:
        return rng.choice(POLICIES)
    count = rng.randint(1, max(steps // 3, 1))
    return f"every:{count}steps" if rng.random() < 0.5 else f"every:{count * step_s * rng.uniform(0.5, 2.0):.6g}s"


def _lives(rng: random.Random, mean_s: float, machines: int) -> LifetimeModel:
    kind = rng.randrange(4)
    if kind == 0:
        return MemorylessLifetimes(tuple(mean_s * rng.uniform(0.3, 3.0) for _ in range(rng.randint(1, 3))))
    if kind == 1:
        ages = sorted(mean_s * rng.uniform(0.0, 2.5) for _ in range(rng.randint(2, 12)))
        return LifetimeQuantiles((0.0, *ages, math.inf) if rng.random() < 0.3 else (0.0, *ages))
    if kind == 2:
        return RecordedLifetimes(
            tuple(
                tuple(mean_s * rng.uniform(0.01, 1.5) for _ in range(rng.randint(0, 12)))
                for _ in range(rng.randint(1, machines))
            )
        )
    edges, now_s = [], 0.0
    for _ in range(rng.randint(1, 6)):
        now_s += mean_s * rng.uniform(0.01, 0.4)
        begin_s = now_s
        now_s += mean_s * rng.uniform(0.1, 1.5)
        edges.append((begin_s, now_s))
    length_s = now_s + mean_s * rng.uniform(0.0, 0.3)
    return AvailabilityWindows(tuple(edges), length_s, None if rng.random() < 0.5 else length_s * rng.random())


def differences(number: int) -> list[str]:
    """Return the differences of kernel and engine in a numbered world."""
    one, ours = bearable(number)
    theirs = engine_trial(one)
    readings_s = READING_S * (one.scenario.machines + ours.preemptions)
    found = []
    for name in Trial.__struct_fields__:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if name == "saves":
            found += _saves_apart(mine, other)
        elif abs(mine - other) > TOLERANCE * max(ours.finish_s, 1.0) + readings_s * (name == "billed_s"):
            found.append(f"{name}: kernel {mine!r}, engine {other!r}")
    return found


@lru_cache(maxsize=256)
def bearable(number: int) -> tuple[Case, Trial]:
    """The world of a number and its trial in the kernel, with machines that live so long that the engine can follow."""
    for longer in range(12):
        one = case(number, 3.0**longer)
        try:
            ours = kernels.decisions(one.scenario, seed=one.seed, trial=one.trial, policy=one.policy)
        except Infeasible:
            continue
        if ours.preemptions <= MACHINES_MOST and len(ours.saves) <= SAVES_MOST:
            return one, ours
    raise AssertionError(f"world {number} loses too many machines however long they live")


def engine_trial(one: Case) -> Trial:
    """The same trial in the event engine."""
    more = {"policy": one.policy} if one.policy is not None else {}
    return engine.history(one.scenario, seed=one.seed, trial=one.trial, journal=False, **more).trial


def _saves_apart(mine: tuple, other: tuple) -> list[str]:
    for place, (ours, theirs) in enumerate(zip(mine, other, strict=False)):
        if ours != theirs:
            return [f"save {place}: kernel {ours}, engine {theirs}"]
    return [f"saves: kernel {len(mine)}, engine {len(other)}"] if len(mine) != len(other) else []


def main() -> None:
    """Replay the numbered worlds."""
    for number in map(int, sys.argv[1:]):
        print(bearable(number)[0])
        print("\n".join(differences(number)) or "agree")


if __name__ == "__main__":
    main()
