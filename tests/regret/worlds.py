"""Random worlds in which the default policy is measured against insuring always, history by history.

A world is a job on one machine at a time: lives of 5 minutes to 48 hours in the mean, saves of 1 s to 10 minutes, 1 to 48
hours of work, a notice of 0 to 10 minutes, any share of losses announced.  Of notices the machines are told the truth, or
something else, or nothing but the habit of some provider.  Insuring always is the same policy with the same costs and
the same mean life, which takes every loss for one that no notice covers, whatever it sees.

The regret is the ratio of the mean finishes, less one.  Both policies meet the same lives, waits and announcements, trial
for trial; the ratio's standard error is that of mean(a - (1 + regret) b) / mean(b), to first order.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from windfall.errors import Infeasible
from windfall.models import expected_runtime
from windfall.models.preemption_rates import providers
from windfall.policies.checkpointing import rules
from windfall.simulation import kernels
from windfall.simulation.scenario import DurationRange, MemorylessLifetimes, Scenario, WorkerEstimates
from windfall.structs import replace

WORLDS, HISTORIES, WORST, HISTORIES_AGAIN = 10_000, 300, 100, 20_000
REGRET_MAX = 0.02
HOPELESS = 20.0
"""A world in which insuring always takes so many times its work is counted apart."""
_EXPECTED_MOST = 30.0
"""... and is not even played if so much is expected."""
_SURE = 1.6449
HOUR_S = 3600.0


@dataclass(frozen=True)
class Regret:
    """How much longer the default takes in a world than insuring always.

    Attributes:
        number: of the world.
        regret, stderr: of the ratio of the mean finishes, less one.
        histories: it rests on; 0: the world is hopeless, and not counted.
    """

    number: int
    regret: float
    stderr: float
    histories: int

    @property
    def most(self) -> float:
        """The upper bound of the one-sided 95 % interval."""
        return self.regret + _SURE * self.stderr


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return low * (high / low) ** rng.random()


def world(number: int) -> Scenario:
    """The world of a number."""
    rng = random.Random(f"regret {number}")
    mean_s, save_s = _log_uniform(rng, 300.0, 48.0 * HOUR_S), _log_uniform(rng, 1.0, 600.0)
    work_s = _log_uniform(rng, HOUR_S, 48.0 * HOUR_S)
    step_s = _log_uniform(rng, 0.1, min(30.0, work_s / 200.0))
    stall_s = save_s * rng.uniform(0.02, 1.0)
    notice_s = _notice_s(rng, step_s + save_s)
    share = rng.choice((0.0, 0.5, 0.9, 1.0, rng.random(), rng.random(), rng.random(), rng.random()))
    wait_s, boot_s = (_log_uniform(rng, 1.0, min(300.0, mean_s / 3.0)) for _ in range(2))
    spread = rng.choice((0.0, 0.3))
    told_s, told_silent = rng.choice(
        ((None, None), (notice_s, 1.0 - share), (_notice_s(rng, step_s + save_s), rng.choice((0.0, rng.random()))))
    )
    return Scenario(
        steps=max(round(work_s / step_s), 1),
        step_s=DurationRange.of(step_s),
        stall_s=DurationRange.of(stall_s),
        upload_s=DurationRange.of(save_s - stall_s),
        allocate_s=DurationRange.of(wait_s, spread),
        prepare_s=DurationRange.of(boot_s, spread),
        lifetimes=MemorylessLifetimes((mean_s,)),
        notice_s=notice_s,
        announced_share=share,
        policy="adaptive",
        estimates=WorkerEstimates(mean_s, told_silent, wait_s + boot_s, rng.random() < 0.5, notice_s=told_s),
        provider=rng.choice(providers()),
        successor_at_notice=rng.random() < 0.8,
    )


def _notice_s(rng: random.Random, needs_s: float) -> float:
    """A notice: none, any, or one about as long as an emergency save."""
    return rng.choice((0.0, 600.0 * rng.random(), 600.0 * rng.random(), min(needs_s * rng.uniform(0.5, 2.0), 600.0)))


def insured(one: Scenario) -> Scenario:
    """The same world, in which every loss is taken for one that no notice covers."""
    return replace(one, estimates=replace(one.estimates, unannounced_share=1.0, learns=False))


def expected_s(one: Scenario) -> float:
    """How long insuring always is expected to take [s], by the closed form."""
    assert isinstance(one.lifetimes, MemorylessLifetimes), "all worlds have such lives"
    mean_s, stall_s = one.lifetimes.means_s[0], one.stall_s.mean_s
    durable_s = stall_s + one.upload_s.mean_s
    interval_s = rules.adaptive_interval_s(stall_s, mean_s, one.estimates.restart_s, durable_s)
    fits = rules.emergency_fits(one.notice_s, one.step_s.mean_s, stall_s, one.upload_s.mean_s, 0.0)
    hazard = expected_runtime.Hazard(mean_s, 1, 1.0 - one.announced_share, one.notice_s, fits)
    saving = expected_runtime.Saving(
        max(interval_s, one.step_s.mean_s), stall_s, one.upload_s.mean_s, one.step_s.mean_s
    )
    restart = expected_runtime.Restart(one.allocate_s.mean_s, one.prepare_s.mean_s)
    return expected_runtime.expect(one.steps * one.step_s.mean_s, hazard, saving, restart).wall_s


def measured(number: int, histories: int, seed: int = 0) -> Regret:
    """Measure the default's regret in a world."""
    one = world(number)
    work_s = one.steps * one.step_s.mean_s
    if expected_s(one) > _EXPECTED_MOST * work_s:
        return Regret(number, 0.0, 0.0, 0)
    try:
        always = kernels.simulate(insured(one), trials=histories, seed=seed, cores=1).finish_s
    except Infeasible:
        return Regret(number, 0.0, 0.0, 0)
    mean_s = float(always.mean())
    if mean_s > HOPELESS * work_s:
        return Regret(number, 0.0, 0.0, 0)
    try:
        default = kernels.simulate(one, trials=histories, seed=seed, cores=1).finish_s
    except Infeasible:
        return Regret(number, math.inf, 0.0, histories)
    regret = float(default.mean()) / mean_s - 1.0
    apart = default - (1.0 + regret) * always
    return Regret(number, regret, float(np.std(apart, ddof=1)) / math.sqrt(histories) / mean_s, histories)


def _asked(asked: tuple[int, int, int]) -> Regret:
    return measured(*asked)


def regrets(numbers: range | list[int], histories: int, seed: int, processes: int) -> Iterator[Regret]:
    """Yield what is measured in each of many worlds, in any order."""
    asked = [(number, histories, seed) for number in numbers]
    if processes == 1:
        yield from map(_asked, asked)
        return
    measured(numbers[0], 2)  # compiled once, not in each process
    with get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(_asked, asked, chunksize=4)
