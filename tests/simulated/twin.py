"""The simulated copy of a live job: the same policy and estimates, inputs from other runs, the recorded instants of loss."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulated import reading
from tests.simulated.reading import Journals, Measurement, about
from windfall.models.preemption_rates import PreemptionHistory
from windfall.simulation.engine import history
from windfall.simulation.scenario import DurationRange, RecordedLifetimes, Scenario, WorkerEstimates
from windfall.terms import RecordKind

LISTED = ("stall_s", "upload_s", "allocate_s", "prepare_s", "notice_s")
"""Of `Measurement`: what is a list of lengths of time."""
TRIALS = 40
"""Histories over which the simulated numbers are averaged; they differ by the draws from the measured ranges."""


@dataclass(frozen=True)
class Outcome:
    """What came of a job: the steps done by a fixed moment, and when the last one was [s since the submission]."""

    steps: float
    finish_s: float


def outcome(journals: Journals, wall_s: float) -> Outcome:
    """Read off a job's progress."""
    made = reading.progress(journals)
    return Outcome(made.at(wall_s), made.finish_s)


def estimates(machines: Sequence[PreemptionHistory]) -> WorkerEstimates:
    """Return what a live job's machines estimated of losses.

    The share of losses without notice each of them learns from the run so far, and what saves cost the first one.
    """
    told = [one.share_given for one in machines if one.share_given is not None]
    notices_s = [one.notice_given_s for one in machines if one.notice_given_s is not None]
    return WorkerEstimates(
        mttp_s=statistics.fmean(one.mttp_s(0.0) for one in machines),
        unannounced_share=statistics.fmean(told) if told else None,
        restart_s=statistics.fmean(one.restart_s for one in machines),
        costs_known=False,
        notice_s=statistics.fmean(notices_s) if notices_s else None,
    )


def scenario(
    steps: int, policy: str, inputs: Measurement, estimated: WorkerEstimates, lifetimes: RecordedLifetimes
) -> Scenario:
    """Return the copy: `inputs` were measured on other runs."""
    return Scenario(
        steps=steps,
        step_s=DurationRange.of(inputs.step_s),
        stall_s=DurationRange.of(statistics.fmean(inputs.stall_s)),
        upload_s=DurationRange.of(statistics.fmean(inputs.upload_s)),
        allocate_s=about(inputs.allocate_s),
        prepare_s=about(inputs.prepare_s),
        lifetimes=lifetimes,
        notice_s=statistics.fmean(inputs.notice_s),
        announced_share=1.0,
        lifetime_ends_at_notice=True,
        policy=policy,
        estimates=estimated,
    )


def simulate(baseline: Scenario, wall_s: float, *, seed: int = 1, trials: int = TRIALS) -> Outcome:
    """Return the mean over trials."""
    found = [outcome(journals(baseline, seed, trial), wall_s) for trial in range(trials)]
    return Outcome(statistics.fmean(one.steps for one in found), statistics.fmean(one.finish_s for one in found))


def journals(baseline: Scenario, seed: int, trial: int) -> Journals:
    """Return what a simulated job writes down."""
    made = history(baseline, seed=seed, trial=trial)
    takes = [record.state for record in made.records if record.kind is RecordKind.ACQUIRE]
    return Journals(made.job_rows, made.run_rows, {state.term: state.holder.host for state in takes if state.holder})
