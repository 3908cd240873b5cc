"""`windfall plan` of an elastic training: what each number of machines trains, and what the job then takes and costs.

Samples per second come from the profile of the layers.  Cost and finish are means over drawn series of the planned machines, on
which the policy that live trainings ask changes shapes; `windfall simulate` plays the same beside other ways to train.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from windfall.cli import simulate_shapes
from windfall.cli.simulate_shapes import HOUR_S, ShapeChances, ShapeNumbers
from windfall.jobs import Job
from windfall.models.elastic_profile import ElasticTraining, training_of
from windfall.models.shapes import IDLE
from windfall.policies.layout import shape_rules
from windfall.policies.layout.shape_rules import ElasticJob
from windfall.simulation import elastic_odds
from windfall.simulation.elastic_odds import ElasticArm, ElasticTerms
from windfall.structs import Struct
from windfall.units import time_text

SEED, TRIALS, INTERVALS_MAX = 0, 20, 4_000
"""Of the draws, which a plan can wait for."""
NO_PROFILE = (
    "samples/s, cost and finish time are unknown without times and sizes of the layers: write them as "
    "runtime: {elastic: {profile: ...}}; `windfall drill --profile job.yaml` measures them, and `windfall ps JOB --profile` "
    "prints those of a training that has run"
)
NO_WORK = "cost and finish time are unknown without the number of steps: write work: {steps: ...}"


class ShapeRow(Struct, frozen=True):
    """A number of machines that all stay.

    Attributes:
        machines: that train.
        shape: in which; None if they are too few for any.
        spares: machines that it does not use.
        samples_per_s, steps_per_s: throughput.
        finish_s: of the job, start included; None if unknown.
        cost_usd: likewise.
        planned: it is the plan's number of machines.
    """

    machines: int
    shape: str | None
    spares: int
    samples_per_s: float
    steps_per_s: float
    finish_s: float | None
    cost_usd: float | None
    planned: bool


def complete(job: Job, planned: dict[str, Any]) -> None:
    """Add to a plan of an elastic training what is known of its shapes, and its expected outcome and odds.

    Raises:
        Infeasible: no shape that is allowed can be had with this model.
    """
    asked, steps = shape_rules.job_of(job.runtime.settings), simulate_shapes.steps_of(job)
    if asked.profile is None:
        planned["shapes"] = {"rows": [], "unknown": NO_PROFILE, "says": None}
        return
    training = training_of(asked.profile, asked.nodes_max, asked.shapes or None)
    chances = simulate_shapes.chances_of(planned, _NOTHING_GIVEN, asked.nodes_min)
    samples = None if steps is None else float(steps * asked.profile.pipeline.batch)
    rows = [_row(count, asked, training, chances, samples) for count in range(asked.nodes_min, asked.nodes_max + 1)]
    planned["shapes"] = {"rows": [_as_json(row) for row in rows], "unknown": None, "says": "if no machine is lost"}
    if samples is None:
        planned["shapes"]["unknown"] = NO_WORK
        return
    terms = ElasticTerms(
        look_ahead=asked.lookahead,
        usd_per_hour=chances.usd_per_hour,
        reliable_usd_per_hour=chances.reliable_usd_per_hour,
        samples=samples,
    )
    series = simulate_shapes.series_of(
        training, terms, _NOTHING_GIVEN, chances, asked.nodes_max, intervals_max=INTERVALS_MAX
    )
    arms = [elastic_odds.following(counts, training, terms) for counts in series]
    unfinished = sum(not arm.finished for arm in arms)
    if unfinished:
        planned["shapes"]["unknown"] = (
            f"cost and finish time are unknown: in {unfinished} of {len(arms)} drawn series of {chances.machines} machines "
            "training is not over in four times the time that it takes without losses"
        )
        return
    _expect(job, planned, chances, arms, samples / training.speeds.rate(training.speeds.best(chances.machines)))


_NOTHING_GIVEN = ShapeNumbers(None, None, None, None, None, TRIALS, SEED)


def _row(
    machines: int, asked: ElasticJob, training: ElasticTraining, chances: ShapeChances, samples: float | None
) -> ShapeRow:
    assert asked.profile is not None
    shape = training.speeds.best(machines)
    rate = training.speeds.rate(shape)
    finish_s = cost_usd = None
    if samples is not None and rate > 0.0:
        finish_s = chances.wait_s + samples / rate
        cost_usd = finish_s / HOUR_S * (machines * chances.usd_per_hour + chances.reliable_usd_per_hour)
    return ShapeRow(
        machines,
        None if shape == IDLE else str(shape),
        machines - shape.machines,
        rate,
        rate / asked.profile.pipeline.batch,
        finish_s,
        cost_usd,
        machines == chances.machines,
    )


def _as_json(row: ShapeRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


def _expect(
    job: Job, planned: dict[str, Any], chances: ShapeChances, arms: Sequence[ElasticArm], alone_s: float
) -> None:
    """Write the expected outcome and the odds into a plan."""
    start_s = chances.wait_s
    start_usd = start_s / HOUR_S * (chances.machines * chances.usd_per_hour + chances.reliable_usd_per_hour)
    times = [arm.time_s + start_s for arm in arms]
    costs = [arm.cost_usd + start_usd for arm in arms]
    wall_s, cost_usd = statistics.fmean(times), statistics.fmean(costs)
    per_s = (cost_usd - start_usd) / (wall_s - start_s)
    losing_s = max(wall_s - start_s - alone_s, 0.0)
    parts = (
        ("work", wall_s - start_s - losing_s, per_s),
        ("losses", losing_s, per_s),
        ("prepare", start_s, start_usd / start_s),
    )
    hours = statistics.fmean(arm.machine_hours for arm in arms) + chances.machines * start_s / HOUR_S
    planned["chosen"]["expected"] = {
        "cost_usd": cost_usd,
        "wall_s": wall_s,
        "finish": planned["quoted_at"] + wall_s,
        "machine_hours": hours,
        "preemptions": hours * HOUR_S / chances.mttp_s,
        "parts": [{"name": name, "duration_s": took_s, "cost_usd": took_s * usd} for name, took_s, usd in parts],
    }
    aim = job.objective
    in_time = None if aim.deadline_s is None else sum(one <= aim.deadline_s for one in times) / len(times)
    in_budget = None if aim.budget_usd is None else sum(one <= aim.budget_usd for one in costs) / len(costs)
    planned["odds"] = {
        "cost_usd": _percentiles(costs),
        "finish_s": _percentiles(times),
        "in_time": in_time,
        "in_budget": in_budget,
        "trials": len(arms),
        "says": _odds_text(in_time, in_budget, len(arms)),
    }
    if aim.deadline_s is not None and wall_s > aim.deadline_s:
        planned["warnings"].append(
            f"the training is expected to take {time_text(wall_s)}, and the deadline is in {time_text(aim.deadline_s)}"
        )
    if aim.budget_usd is not None and cost_usd > aim.budget_usd:
        planned["warnings"].append(
            f"the training is expected to cost {cost_usd:.2f} USD, and the budget is {aim.budget_usd:g} USD"
        )


def _percentiles(values: Sequence[float]) -> Mapping[str, float]:
    ordered = sorted(values)
    return {name: ordered[math.ceil(share * len(ordered)) - 1] for name, share in (("p50", 0.5), ("p90", 0.9))}


def _odds_text(in_time: float | None, in_budget: float | None, trials: int) -> str:
    kept = [
        f"{what} in {share:.0%} of runs"
        for what, share in (("done by the deadline", in_time), ("within the budget", in_budget))
        if share is not None
    ]
    return "; ".join((*kept, f"P50 and P90 from {trials} drawn series of machines; details: `windfall simulate`"))
