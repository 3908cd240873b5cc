"""`windfall simulate` of a job whose machines come and go while it trains: its time and cost beside other ways to train."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from windfall.cli import client
from windfall.errors import Misuse
from windfall.jobs import Job
from windfall.models.elastic_profile import ElasticTraining, training_of
from windfall.policies.layout import shape_rules
from windfall.report import elastic_report
from windfall.report.console import console
from windfall.simulation import elastic_odds, value_series
from windfall.simulation.elastic_odds import ElasticArm, ElasticTerms
from windfall.structs import Struct, replace
from windfall.terms import Unit
from windfall.units import duration_text

HOUR_S, INTERVALS_MAX, TRIALS_MAX = 3_600.0, 20_000, 50
LONGER = 4.0
"""Drawn series last this many times as long as the training would take if nothing changed."""


class ShapeNumbers(Struct, frozen=True):
    """Numbers that the user gives; None for what the plan says.

    Attributes:
        steps: of the job.
        mttp_s: mean time to the preemption of a machine [s].
        wait_s: from an order to the first step of a machine [s].
        usd_per_hour: of a machine.
        trace: of machine counts; None: they are drawn.
        trials: series that are drawn.
        seed: of the draws.
    """

    steps: int | None
    mttp_s: float | None
    wait_s: float | None
    usd_per_hour: float | None
    trace: str | None
    trials: int
    seed: int


class ShapeAnswer(Struct, frozen=True):
    """What the simulation comes to.

    Attributes:
        played: arms by series.
        terms: on which.
        basis: what was assumed, a sentence.
    """

    played: tuple[tuple[ElasticArm, ...], ...]
    terms: ElasticTerms
    basis: str


def refuse_options(given: Iterable[tuple[str, object]]) -> None:
    """Refuse what applies to jobs that restart.

    Raises:
        Misuse: one is given.
    """
    for name, value in given:
        if value:
            raise Misuse(f"{name}: applies to jobs that restart from saves; an elastic training changes its shape")


def simulate_shapes(job: Job, folder: Path, given: ShapeNumbers) -> ShapeAnswer:
    """Return what an elastic job's training comes to on its planned machines, or on a trace.

    Args:
        job: with the runtime `elastic`.
        folder: of the installation.
        given: by the user.

    Raises:
        Misuse: the profile of the layers, or the number of steps, is known nowhere.
        Infeasible: no offer fits, or no shape.
    """
    asked = shape_rules.job_of(job.runtime.settings)
    if asked.profile is None:
        raise Misuse(
            "the simulation needs times and sizes of the layers: write them as runtime: {elastic: {profile: ...}}; "
            "`windfall drill --profile job.yaml` measures them, and `windfall ps JOB --profile` prints those of a training "
            "that has run"
        )
    steps = given.steps or steps_of(job)
    if steps is None:
        raise Misuse("the simulation needs the number of steps: write work: {steps: ...}, or --steps")
    training = training_of(asked.profile, asked.nodes_max, asked.shapes or None)
    with client.planner(folder) as controller:
        planned = controller.plan(replace(job, objective=replace(job.objective, deadline_s=None, budget_usd=None)))
    chances = chances_of(planned, given, asked.nodes_min)
    terms = ElasticTerms(
        look_ahead=asked.lookahead,
        usd_per_hour=chances.usd_per_hour,
        reliable_usd_per_hour=chances.reliable_usd_per_hour,
        samples=float(steps * asked.profile.pipeline.batch),
    )
    series = series_of(training, terms, given, chances, asked.nodes_max)
    basis = (
        f"machine counts of {given.trace}"
        if given.trace is not None
        else f"{len(series)} drawn series of {chances.machines} machines: each is lost after {duration_text(chances.mttp_s)} "
        f"on average, and another one trains {duration_text(chances.wait_s)} later"
    )
    return ShapeAnswer(tuple(elastic_odds.arms(counts, training, terms) for counts in series), terms, basis)


def steps_of(job: Job) -> int | None:
    """Return with how many steps a job ends; None if it does not say."""
    return round(job.work.amount) if job.work is not None and job.work.unit is Unit.STEP else None


def show(answer: ShapeAnswer, *, json_: bool) -> None:
    """Print what it comes to."""
    if json_:
        print(json.dumps({"basis": answer.basis, "arms": elastic_report.as_json(answer.played)}))
        return
    screen = console()
    screen.print(answer.basis)
    screen.print(elastic_report.table(answer.played, answer.terms))


class ShapeChances(Struct, frozen=True):
    """What a plan says of the machines that train.

    Attributes:
        machines: how many.
        mttp_s: mean time to the preemption of one [s].
        wait_s: from an order to the first step of a machine [s].
        usd_per_hour: of one.
        reliable_usd_per_hour: of all that keep states.
    """

    machines: int
    mttp_s: float
    wait_s: float
    usd_per_hour: float
    reliable_usd_per_hour: float


def chances_of(planned: Mapping[str, Any], given: ShapeNumbers, least: int) -> ShapeChances:
    """Return what a plan says of the machines that train."""
    fleet = planned["fleet"]
    chosen = fleet["chosen"]
    prices = {
        (row["provider"], row["machine_type"], row["zone"], row["reliability"]): row["price_usd_per_hour"]
        for row in fleet["offers"]
    }
    machines = sum(count for _, count in chosen["counts"]) or least
    reliable = 0.0
    if fleet["reliable"] is not None:
        reliable = fleet["reliable_machines"] * (prices[tuple(fleet["reliable"])] or 0.0)
    losses = chosen["losses_per_hour"]
    return ShapeChances(
        machines=machines,
        mttp_s=given.mttp_s or (HOUR_S * machines / losses if losses else 1e12),
        wait_s=given.wait_s or max(chosen["prepare_s"], 1.0),
        usd_per_hour=(chosen["usd_per_hour"] - reliable) / machines
        if given.usd_per_hour is None
        else given.usd_per_hour,
        reliable_usd_per_hour=reliable,
    )


def series_of(
    training: ElasticTraining,
    terms: ElasticTerms,
    given: ShapeNumbers,
    chances: ShapeChances,
    most: int,
    *,
    intervals_max: int = INTERVALS_MAX,
) -> list[tuple[int, ...]]:
    """Return machines by interval, of the trace or drawn: all series together have at most `intervals_max`, but the first."""
    if given.trace is not None:
        return [elastic_odds.counted(value_series.capacity_of_trace(given.trace), most, terms.interval_s)]
    rate = training.speeds.rate(training.speeds.best(chances.machines))
    assert terms.samples is not None, "the number of steps is known"
    alone_s = terms.samples / rate if rate else 0.0
    intervals = min(max(int(LONGER * alone_s / terms.interval_s), 60), INTERVALS_MAX)
    trials = min(given.trials, TRIALS_MAX, max(intervals_max // intervals, 1))
    return [
        elastic_odds.drawn_counts(
            chances.machines,
            intervals,
            given.seed + trial,
            mttp_s=chances.mttp_s,
            wait_s=chances.wait_s,
            interval_s=terms.interval_s,
        )
        for trial in range(trials)
    ]
