"""What the journals of a job show: its losses, inputs and progress, and its simulated copy."""

from __future__ import annotations

import dataclasses

import pytest

from tests.simulated import matrix, reading, twin
from tests.simulated.reading import Journals, Progress
from tests.simulated.twin import Outcome
from windfall.events import EstimatesChanged, Fact, NoticeReceived, RanksObserved, Row
from windfall.simulation.scenario import DurationRange, RecordedLifetimes, Scenario, WorkerEstimates
from windfall.structs import replace
from windfall.terms import Notice, NoticeLevel

LOST_AT_S = (31.0, 3.0, 46.5)
ESTIMATES = WorkerEstimates(mttp_s=40.0, unannounced_share=0.5, restart_s=12.0, costs_known=False)
WALL_S = 95.0
STEPS = 430
"""So that the job's end overtakes the upload of its last save."""


def job(lifetimes_s: tuple[float, ...] = LOST_AT_S, upload_s: float = 3.0, policy: str = "every:30steps") -> Scenario:
    """A job like the table's: its upload does not fit the notice unless given otherwise."""
    return Scenario(
        steps=STEPS,
        step_s=DurationRange.of(0.2),
        stall_s=DurationRange.of(0.15),
        upload_s=DurationRange.of(upload_s),
        allocate_s=DurationRange.of(4.25),
        prepare_s=DurationRange.of(3.75),
        lifetimes=RecordedLifetimes((lifetimes_s,)),
        notice_s=2.0,
        announced_share=1.0,
        policy=policy,
        estimates=ESTIMATES,
        lifetime_ends_at_notice=True,
    )


def written(scenario: Scenario) -> Journals:
    return twin.journals(scenario, seed=1, trial=0)


@pytest.mark.parametrize("upload_s", [0.5, 3.0])
def test_the_losses_of_a_job_are_read_as_they_were(upload_s: float) -> None:
    """Each machine's lifetime up to its notice, also of one that was lost before it trained."""
    lifetimes = reading.losses(written(job(upload_s=upload_s))).lifetimes_s

    assert lifetimes[0] == pytest.approx(LOST_AT_S, abs=1e-6)


def test_a_notice_that_a_dead_machine_did_not_send_off_is_known_from_the_controller() -> None:
    """The last rows of a machine may be lost with it; its reports to the controller are not."""
    whole = written(job())
    torn = [row for row in whole.run if not any(isinstance(fact, NoticeReceived) for fact in row.facts)]
    lifetimes = reading.losses(dataclasses.replace(whole, run=torn)).lifetimes_s

    assert lifetimes[0] == pytest.approx(LOST_AT_S, abs=1e-6)


def test_a_machine_that_is_lost_after_the_last_step_is_no_loss() -> None:
    """The last upload may still be under way then, but nothing is trained any more."""
    whole = written(job())
    done_s = reading.progress(whole).finish_s
    last = whole.run[-1]
    notice = NoticeReceived(Notice(NoticeLevel.ANNOUNCED, "test", "late", last.at))
    late = replace(last, wall_time=whole.submitted_at + done_s + 0.1, facts=(*last.facts, notice))

    assert reading.losses(dataclasses.replace(whole, run=[*whole.run, late])) == reading.losses(whole)


@pytest.mark.parametrize("upload_s", [0.5, 3.0])
def test_what_a_job_cost_is_measured_to_the_millisecond(upload_s: float) -> None:
    """Step, stall, upload, allocation, preparation and notice come out of the journals as they went into the world."""
    found = reading.measure(written(job(upload_s=upload_s)))

    assert found.step_s == pytest.approx(0.2)
    assert set(found.stall_s) == {0.15}
    assert found.upload_s == pytest.approx([upload_s] * len(found.upload_s))
    assert found.allocate_s == pytest.approx([4.25] * 4), "from the submission, and from each notice"
    assert found.prepare_s == pytest.approx([3.75] * 3), "the machine that was lost before it trained prepared nothing"
    assert found.notice_s == pytest.approx([2.0] * 3)


def test_a_first_look_that_comes_late_makes_no_preparation_longer() -> None:
    """An agent whose script loaded for long sees the first steps late; when they began follows from how long they took."""
    whole = written(job())
    blind = [replace(row, facts=_without(RanksObserved, row)) for row in whole.run[:4]]
    late = dataclasses.replace(whole, run=[*blind, *whole.run[4:]])

    assert reading.measure(late).prepare_s == pytest.approx([3.75] * 3)
    assert reading.progress(late).at(4.25 + 3.75 + 2.0) == pytest.approx(10.0)


def test_steps_count_from_when_they_are_made_for_good() -> None:
    """Lost steps do not count before they are made again; the last one is there when the job is done."""
    scenario = job()
    made = reading.progress(written(scenario))
    trained_s = 4.25 + 3.75

    assert made.at(trained_s) == 0.0
    assert made.at(trained_s + 2.0) == pytest.approx(10.0)
    assert made.at(4.25 + 31.0) == made.at(50.0) == 120.0, "the fourth save is committed, what follows it is lost"
    assert list(made.steps) == sorted(made.steps)
    assert made.finish_s == pytest.approx(twin.history(scenario, seed=1).trial.finish_s)


@pytest.mark.parametrize("policy", ["every:30steps", "adaptive"])
@pytest.mark.parametrize("upload_s", [0.5, 3.0])
def test_a_twin_with_inputs_of_another_run_does_what_its_original_did(policy: str, upload_s: float) -> None:
    """Measured on other losses and given these, a simulation makes the same steps and ends at the same time."""
    original = written(job(upload_s=upload_s, policy=policy))
    other = reading.measure(written(job((70.0,), upload_s, policy)))
    estimated = twin.estimates(reading.estimates(original))
    copy = twin.scenario(STEPS, reading.policy(original), other, estimated, reading.losses(original))
    live, simulated = twin.outcome(original, WALL_S), twin.simulate(copy, WALL_S, trials=2)

    assert simulated.steps == pytest.approx(live.steps, abs=1.0)
    assert simulated.finish_s == pytest.approx(live.finish_s, abs=0.2)


def test_what_machines_were_told_of_losses_is_what_they_believed() -> None:
    """The newest estimate counts, and the log gives what is missing."""
    whole = written(job(upload_s=0.5))
    untold = [replace(row, facts=_without(EstimatesChanged, row)) for row in whole.run]
    learnt = reading.estimates(dataclasses.replace(whole, run=untold))

    assert twin.estimates(reading.estimates(whole)) == ESTIMATES
    assert [one.unannounced_share() for one in learnt] == pytest.approx([2.5 / 5.0, 2.5 / 6.0, 2.5 / 7.0])


def _without(kind: type[Fact], row: Row) -> tuple[Fact, ...]:
    return tuple(fact for fact in row.facts if not isinstance(fact, kind))


def test_progress_is_straight_between_two_points() -> None:
    """And flat before the first and after the last."""
    made = Progress((10.0, 20.0), (0.0, 100.0))

    assert [made.at(moment) for moment in (5.0, 10.0, 15.0, 20.0, 25.0)] == [0.0, 0.0, 50.0, 100.0, 100.0]


def test_a_measured_range_has_the_mean_and_the_spread_of_its_values() -> None:
    """Uniform over it, so that its half width is the square root of three times the variance; never below 0."""
    assert reading.about([2.0, 4.0]) == DurationRange(3.0 - 6.0**0.5, 3.0 + 6.0**0.5)
    assert reading.about([5.0]) == DurationRange(5.0, 5.0)
    assert reading.about([0.0, 0.0, 9.0]).low_s == 0.0


def test_the_table_shows_each_error_and_their_mean_size() -> None:
    """Simulated against live as a share of live; the line below is the mean of the absolute values; 80 columns."""
    cells = [
        matrix.Cell("adaptive", "small", 25.0, 3, Outcome(200.0, 100.0), Outcome(202.0, 97.0)),
        matrix.Cell("static", "large", 90.0, 1, Outcome(200.0, 100.0), Outcome(194.0, 101.0)),
    ]
    shown = matrix.table(cells)

    assert (matrix.steps_mae(cells), matrix.finish_mae(cells)) == pytest.approx((0.02, 0.02))
    assert "1.00%" in shown
    assert "-3.00%" in shown
    assert shown.splitlines()[-1].split() == ["mean", "absolute", "error", "|", "2.00%", "|", "2.00%"]
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_every_job_of_the_table_loses_a_machine_and_shares_its_seed_with_no_other() -> None:
    """So do those on which the inputs are measured."""
    jobs = [job for pair in matrix.pairs() for job in pair.jobs]

    assert len({job.seed for job in jobs}) == len(jobs) == 2 * (len(matrix.CALIBRATED) + 6)
    assert all(matrix.first_life_s(job.mttp_s, job.seed) < matrix.WALL_S for job in jobs)
