"""What `plan` states of a job that was seen before, against what runs of it then take."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live import sleeping
from tests.live.rig import Rig
from windfall.fleet import JobSubmitted, ProgressObserved
from windfall.terms import Outcome

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1500)]
STEPS, STEP_S = 400, 0.1
SETUP_S = 3
"""Most of a machine's boot is waiting too, so that it takes as long on a busy host."""
RUNS, AT_ONCE = 10, 2
TOLERANCE = 0.10
ERRORS = 2.0
"""Ten runs draw ten lives or two of them: their mean is known to its standard error, and no better."""


def wanted() -> dict[str, object]:
    return {
        "name": "planned",
        "setup": f"sleep {SETUP_S}",
        "envs": {"STEPS": str(STEPS), "STEP_S": str(STEP_S)},
        "work": {"steps": STEPS},
    }


def took_s(rig: Rig, job_id: str) -> float:
    """From the submission to the script's end, by the job's journal [s]."""
    rows = rig.rows(job_id)
    started = next(row.at for row in rows if any(isinstance(fact, JobSubmitted) for fact in row.facts))
    done = [
        row.at
        for row in rows
        if any(isinstance(fact, ProgressObserved) and fact.progress.outcome is Outcome.DONE for fact in row.facts)
    ]
    return done[0] - started


def inject(seed: int) -> str:
    return f"mttp=30s,seed={seed},notice=8s"


def off_by(seen: list[float], expected: float) -> float:
    """How far a mean is from what was expected, as a share of what a tenth and chance together allow."""
    error = statistics.stdev(seen) / len(seen) ** 0.5
    return abs(statistics.mean(seen) - expected) / (TOLERANCE * expected + ERRORS * error)


def test_a_plan_after_a_run_meets_what_ten_then_take(new_rig: Callable[..., Rig]) -> None:
    """Expected cost and finish lie within 10 %, and two standard errors, of the mean of ten runs with lives of their own."""
    rig = new_rig(allocation_s=1.0)
    rig.start_controller()
    script = Path(sleeping.__file__)
    # Measured beside each other, as the others are run.
    for job_id in [rig.submit(wanted(), script) for _ in range(AT_ONCE)]:
        rig.ended(job_id)
    plan = rig.plan("planned", inject(1))
    took, cost, lost = [], [], []
    for base in range(0, RUNS, AT_ONCE):
        jobs = [rig.submit(wanted(), script, inject(100 + base + number)) for number in range(AT_ONCE)]
        for job_id in jobs:
            told = rig.ended(job_id, 300.0)
            took.append(took_s(rig, job_id))
            cost.append(rig.metered_usd(job_id))
            lost.append(told["details"]["preemptions"])
    expected = plan["chosen"]["expected"]
    numbers = [(number["name"], number["value"], number["source"]) for number in plan["numbers"]]
    shown = (
        f"finish {expected['wall_s']:.1f} s, took {statistics.mean(took):.1f} s ({[round(one, 1) for one in took]}); "
        f"cost {expected['cost_usd']:.3f} USD, metered {statistics.mean(cost):.3f} ({[round(one, 2) for one in cost]}); "
        f"{expected['preemptions']:.2f} preemptions, {statistics.mean(lost):.2f} ({lost}); parts {expected['parts']}; {numbers}"
    )
    print(shown)

    assert off_by(took, expected["wall_s"]) <= 1.0, shown
    assert off_by(cost, expected["cost_usd"]) <= 1.0, shown
