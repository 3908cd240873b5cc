"""The thesis' Table 6.1 in small: two policies, two models, three MTTPs, live and simulated.

The thesis lets jobs train for twelve hours while machines are taken, and simulates how long the same iterations take.
Here two minutes stand for the twelve hours: lives of tens of seconds, an allocation longer than the notice, one model
whose emergency save fits the notice and one whose does not.  Each job is asked for two numbers, the steps done by a
fixed moment and the moment of its last step; its baseline receives only when it lost its machines and what its
machines estimated.  What everything costs comes from other jobs, which lost other machines.

A save that is committed a moment before or after its machine is gone moves a job by a whole interval.  On a host with a
load of several times its processors such moments shift by more than any input says: measure on a quiet one.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.live.rig import Rig
from tests.simulated import living, reading, twin
from tests.simulated.living import LARGE, SMALL, Live, Model
from tests.simulated.reading import Journals, Measurement
from tests.simulated.twin import Outcome
from windfall.jobs import Injection
from windfall.models.injection import lifetime_s
from windfall.terms import Seconds

MTTPS_S = (25.0, 45.0, 90.0)
CALIBRATION_MTTP_S = 40.0
CALIBRATED = ("adaptive", "static", "adaptive")
"""Policies of the jobs on which the inputs are measured."""
WALL_S = 95.0
"""The fixed moment: within every job."""
POLICIES = ("adaptive", "static")
SEED_FIRST = 100
ERROR_MAX = 0.03


@dataclass(frozen=True)
class Cell:
    """A row of the table."""

    policy: str
    model: str
    mttp_s: float
    losses: int
    live: Outcome
    simulated: Outcome

    @property
    def steps_error(self) -> float:
        """Simulated against live, as a share of live."""
        return self.simulated.steps / self.live.steps - 1.0

    @property
    def finish_error(self) -> float:
        """Simulated against live, as a share of live."""
        return self.simulated.finish_s / self.live.finish_s - 1.0


@dataclass(frozen=True)
class Made:
    """The table, and the inputs of each model, which were measured on other jobs."""

    cells: Sequence[Cell]
    known: dict[str, Measurement]


def seeds(first: int) -> Callable[[float], int]:
    """Return what chooses seeds, each another one: the next with which a machine is taken before the fixed moment."""
    numbers = itertools.count(first)
    return lambda mttp_s: next(seed for seed in numbers if first_life_s(mttp_s, seed) < WALL_S)


def first_life_s(mttp_s: float, seed: int) -> float:
    """Return how long the injector lets a job's first machine live [s]."""
    return lifetime_s(Injection((Seconds(mttp_s),), seed, Seconds(living.NOTICE_S)), 0, 1)


def insure(policy: str, model: Model) -> str:
    """Return what a job file says of a policy."""
    return "auto" if policy == "adaptive" else f"{model.every} steps"


@dataclass(frozen=True)
class Pair:
    """Two jobs, one of each model, that run beside each other.

    Attributes:
        measures: whether the inputs are measured on them; otherwise they are rows of the table.
    """

    policy: str
    jobs: tuple[Live, Live]
    measures: bool


def pairs() -> list[Pair]:
    """Return all jobs in the order in which they are run.

    Those on which the inputs are measured come first, last and between: a busy host is not equally busy all the time.
    """
    choose = seeds(1)
    known = [_pair(policy, CALIBRATION_MTTP_S, choose, measures=True) for policy in CALIBRATED]
    choose = seeds(SEED_FIRST)
    rows = [_pair(policy, mttp_s, choose, measures=False) for mttp_s in MTTPS_S for policy in POLICIES]
    every = len(rows) // (len(known) - 1)
    return [one for part in range(len(known)) for one in (known[part], *rows[part * every : (part + 1) * every])]


def _pair(policy: str, mttp_s: float, choose: Callable[[float], int], *, measures: bool) -> Pair:
    small, large = (Live(model, insure(policy, model), mttp_s, choose(mttp_s)) for model in (SMALL, LARGE))
    return Pair(policy, (small, large), measures)


def inputs(found: dict[str, list[Journals]]) -> dict[str, Measurement]:
    """Put together what several jobs of each model showed."""
    by_model = {name: _sum([reading.measure(journals) for journals in jobs]) for name, jobs in found.items()}
    together = _sum(list(by_model.values()))
    for own in by_model.values():
        own.allocate_s, own.prepare_s, own.notice_s = together.allocate_s, together.prepare_s, together.notice_s
    return by_model


def _sum(parts: Sequence[Measurement]) -> Measurement:
    whole = Measurement()
    for part in parts:
        whole = whole.add(part)
    return whole


def cell(policy: str, job: Live, journals: Journals, known: Measurement) -> Cell:
    """Simulate a live job and put both beside each other."""
    lost = reading.losses(journals)
    estimated = twin.estimates(reading.estimates(journals))
    scenario = twin.scenario(job.model.steps, reading.policy(journals), known, estimated, lost)
    live = twin.outcome(journals, WALL_S)
    return Cell(policy, job.model.name, job.mttp_s, len(lost.lifetimes_s[0]), live, twin.simulate(scenario, WALL_S))


def run(rig: Rig) -> Made:
    """Run everything live, then simulate it."""
    return simulated([(pair, living.run(rig, pair.jobs)) for pair in pairs()])


def simulated(done: Sequence[tuple[Pair, Sequence[Journals]]]) -> Made:
    """Simulate what was run."""
    both = [(pair, job, journals) for pair, found in done for job, journals in zip(pair.jobs, found, strict=True)]
    known = inputs(
        {
            model.name: [journals for pair, job, journals in both if pair.measures and job.model == model]
            for model in living.MODELS
        }
    )
    cells = [
        cell(pair.policy, job, journals, known[job.model.name]) for pair, job, journals in both if not pair.measures
    ]
    return Made(cells, known)


# --------------------------------------------------------------------------------------------------------------- table


def mean_absolute(errors: Sequence[float]) -> float:
    """Return the mean of the errors' sizes."""
    return math.fsum(abs(error) for error in errors) / len(errors)


def steps_mae(cells: Sequence[Cell]) -> float:
    """Mean absolute error of the steps done by the fixed moment."""
    return mean_absolute([one.steps_error for one in cells])


def finish_mae(cells: Sequence[Cell]) -> float:
    """Mean absolute error of the finish time."""
    return mean_absolute([one.finish_error for one in cells])


def table(cells: Sequence[Cell]) -> str:
    """Return the table, 80 columns wide."""
    heads = (f"steps by {WALL_S:g} s", "finish [s]")
    head = f"{'policy':<8} {'model':<5} {'MTTP':>4} {'lost':>4} | {heads[0]:^23} | {heads[1]:^23}"
    columns = f"{'live':>7} {'simul.':>7} {'error':>7}"
    sub = f"{'':<8} {'':<5} {'[s]':>4} {'':>4} | {columns} | {columns}"
    rows = [
        f"{one.policy:<8} {one.model:<5} {one.mttp_s:>4g} {one.losses:>4} | "
        f"{one.live.steps:>7.1f} {one.simulated.steps:>7.1f} {one.steps_error:>7.2%} | "
        f"{one.live.finish_s:>7.1f} {one.simulated.finish_s:>7.1f} {one.finish_error:>7.2%}"
        for one in cells
    ]
    last = f"{'mean absolute error':<24} | {steps_mae(cells):>23.2%} | {finish_mae(cells):>23.2%}"
    return "\n".join([head, sub, "-" * len(sub), *rows, "-" * len(sub), last])


def report(made: Made) -> str:
    """Return inputs and table for people."""
    lines = [f"{name}: {described(own)}" for name, own in made.known.items()]
    return "\n".join(["Measured on other runs:", *lines, "", table(made.cells)])


def as_json(made: Made) -> dict[str, Any]:
    """Return table and inputs as plain data."""
    rows = [asdict(one) | {"steps_error": one.steps_error, "finish_error": one.finish_error} for one in made.cells]
    return {
        "rows": rows,
        "steps_mae": steps_mae(made.cells),
        "finish_mae": finish_mae(made.cells),
        "inputs": {name: summary(own) for name, own in made.known.items()},
    }


def summary(known: Measurement) -> dict[str, float]:
    """Return the means of what was measured [s]."""
    means = {name: statistics.fmean(getattr(known, name)) for name in twin.LISTED}
    return {"step_s": known.step_s, **means}


def described(known: Measurement) -> str:
    """Return what was measured in one line."""
    return ", ".join(f"{name.removesuffix('_s')} {value:.4g} s" for name, value in summary(known).items())
