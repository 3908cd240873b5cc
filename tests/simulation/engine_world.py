"""A small simulated job with round numbers: what happens to it can be worked out on paper.

A hundred steps of a second; a save holds them up for 2 s and is stored 3 s later; a machine starts 10 s after its order
and is prepared 20 s later.  So without any loss the first step begins at 30 s.  Lives are those until the notice, if there
is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from windfall.simulation import engine
from windfall.simulation.engine_fleet import SimulatedFleet
from windfall.simulation.outcomes import Trial
from windfall.simulation.sampling import Draws
from windfall.simulation.scenario import DurationRange, LifetimeModel, RecordedLifetimes, Scenario, WorkerEstimates
from windfall.simulation.world import World

FOREVER = math.inf
NOTICE = {"announced_share": 1.0}


def estimates(*, costs_known: bool = True, unannounced_share: float = 1.0, mttp_s: float = 3600.0) -> WorkerEstimates:
    """The worker's estimates."""
    return WorkerEstimates(mttp_s, unannounced_share, 30.0, costs_known)


def scenario(lifetimes: LifetimeModel | tuple[float, ...] = (), **more: object) -> Scenario:
    """The job; `lifetimes` of the machines of its only slot, the later ones stay."""
    words: dict[str, object] = {
        "steps": 100,
        "step_s": DurationRange.of(1.0),
        "stall_s": DurationRange.of(2.0),
        "upload_s": DurationRange.of(3.0),
        "allocate_s": DurationRange.of(10.0),
        "prepare_s": DurationRange.of(20.0),
        "lifetimes": RecordedLifetimes((lifetimes,)) if isinstance(lifetimes, tuple) else lifetimes,
        "notice_s": 0.0,
        "announced_share": 0.0,
        "policy": "every:20steps",
        "estimates": estimates(),
        "price_usd_per_hour": 3.6,
        "lifetime_ends_at_notice": True,
    }
    return Scenario(**(words | more))  # type: ignore[arg-type]


def trial(lifetimes: LifetimeModel | tuple[float, ...] = (), **more: object) -> Trial:
    """The outcome of the job."""
    return engine.history(scenario(lifetimes, **more), journal=False).trial


def several(jobs: Sequence[Scenario], *, seed: int = 0) -> tuple[World, list[SimulatedFleet]]:
    """A world with these jobs, `job-0` and so on, each the trial of its number; without journals."""
    markets = engine.scenario_markets(jobs)
    world = World(markets)
    made = [
        engine.scenario_job(f"job-{n}", job, markets, seed=seed, trial=n, journal=False) for n, job in enumerate(jobs)
    ]
    return world, [world.submit(one) for one in made]


def work_s(job: Scenario, seed: int = 0, number: int = 0) -> float:
    """How long the steps of a trial take, each once [s]."""
    return job.steps * Draws(job, seed, number).step_s


def parts(found: Trial) -> tuple[float, float, float, float]:
    """Redo, save, allocate, prepare [s]."""
    return found.redo_s, found.save_s, found.allocate_s, found.prepare_s


def saved(found: Trial) -> list[tuple[int, int, str, bool]]:
    """Machine, step, kind, committed of each save."""
    return [(save.machine, save.step, save.kind.value, save.committed) for save in found.saves]
