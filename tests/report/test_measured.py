"""What a finished run tells the plans of its like: checked on a journal whose numbers one finds by hand."""

from __future__ import annotations

import pytest

from tests.report.market_story import BEGIN, OFFER, heard, job, machine, row, seen
from windfall.events import Row, StepsMeasured
from windfall.fleet import MachineStatus, PlaceOrder
from windfall.jobs import Measurement, Work
from windfall.market import Order
from windfall.models.job_measurements import measure, merge
from windfall.structs import replace
from windfall.terms import Instant, SaveCosts, Seconds, Step, Term, Unit, WallTime

ORDERS = tuple(Order(f"gpt-1-{number}", "owner", "gpt-1", OFFER, 1, 1) for number in (1, 2))
COSTS = SaveCosts(stall_s=Seconds(0.2), size_bytes=1000, upload_s=Seconds(3.0), commit_s=Seconds(0.1))


def controllers() -> list[Row]:
    """Two machines: ordered at 0 and 100, begun 2 s and 4 s later, ready 10 s and 20 s after that."""
    return [
        row(0, commands=(PlaceOrder(ORDERS[0]),)),
        row(2, seen(machine("m-1", "gpt-1-1", started=WallTime(BEGIN + 2)))),
        row(12, heard("m-1", MachineStatus.WAITING)),
        row(13, heard("m-1", MachineStatus.TRAINING)),
        row(100, commands=(PlaceOrder(ORDERS[1]),)),
        row(104, seen(machine("m-2", "gpt-1-2", started=WallTime(BEGIN + 104)))),
        row(124, heard("m-2", MachineStatus.WAITING)),
    ]


def steps(term: int, second: float, upto: int, count: int, mean_s: float) -> Row:
    """A window of measured steps that ended when its row was written."""
    fact = StepsMeasured(step=Step(upto), count=count, mean_s=Seconds(mean_s), longest_s=Seconds(mean_s))
    return Row(Term(term), 2, Instant(second), WallTime(BEGIN + second), (fact,), (), ())


def took(term: int, second: float) -> Row:
    return Row(Term(term), 1, Instant(second), WallTime(BEGIN + second), (), (), ())


def run_rows() -> list[Row]:
    """Term 1 takes the run at 13 s, its first step ends at 16 s; term 5 takes it at 125 s, its first step ends at 132 s."""
    return [took(1, 13), steps(1, 25, 10, 10, 1.0), took(5, 125), steps(5, 152, 20, 11, 2.0)]


def test_the_numbers_are_those_one_finds_by_hand() -> None:
    """Allocation, boot and first step are means over machines; the speed is all steps by all their time."""
    (found,) = measure(job(), controllers(), run_rows(), {Term(1): "m-1", Term(5): "m-2"}, COSTS)

    assert (found.provider, found.machine_type, found.unit, found.runs) == ("local", "small", Unit.STEP, 1)
    assert found.allocate_s == pytest.approx((2 + 4) / 2)
    assert found.boot_s == pytest.approx((10 + 20) / 2)
    # From being ready (at 12 and at 124) to the first step:
    # 10 steps of 1 s that ended at 25 began with one that ended at 16; 11 of 2 s that ended at 152, with one at 132.
    assert found.prepare_s == pytest.approx(15 + ((16 - 12) + (132 - 124)) / 2)
    assert found.work_per_s == pytest.approx(21 / (10 * 1.0 + 11 * 2.0))
    assert (found.stall_s, found.size_bytes, found.upload_s, found.commit_s) == (0.2, 1000, 3.0, 0.1)


def test_other_units_count_by_how_much_work_a_step_was() -> None:
    """4000 samples in 20 steps: 200 a step."""
    made = replace(job(), work=Work(4000.0, Unit.SAMPLE))

    (found,) = measure(made, controllers(), run_rows(), {Term(1): "m-1", Term(5): "m-2"}, None)

    assert found.unit is Unit.SAMPLE
    assert found.work_per_s == pytest.approx(200 * 21 / 32)
    assert found.stall_s is None


def test_a_machine_that_waited_for_the_run_does_not_tell_how_long_a_start_takes() -> None:
    """The first machine held the run until 130, after the second was ready: its waiting is no preparation."""
    held_on = [*run_rows(), replace(took(1, 130), sequence=3)]

    (found,) = measure(job(), controllers(), held_on, {Term(1): "m-1", Term(5): "m-2"}, COSTS)

    assert found.prepare_s == pytest.approx(15 + (16 - 12))


def test_an_term_of_a_machine_that_was_not_bought_tells_nothing() -> None:
    """Somebody's `windfall exec` on the same run is no machine of the job."""
    assert measure(job(), controllers(), run_rows(), {Term(1): "laptop"}, COSTS) == ()


def test_runs_are_folded_with_the_same_weight_and_times_are_averaged() -> None:
    """1 and 3 steps a second are 2 s and 2/3 s for two: together 1.5; what one run did not measure does not count."""
    one = Measurement(
        "local", "small", Unit.STEP, 1.0, Seconds(10.0), Seconds(2.0), 1, stall_s=Seconds(0.5), size_bytes=10
    )
    two = Measurement("local", "small", Unit.STEP, 3.0, Seconds(20.0), Seconds(4.0), 1)
    other = Measurement("local", "large", Unit.STEP, 9.0, Seconds(1.0), Seconds(1.0), 1)

    large, small = merge([one, two, other])

    assert (small.work_per_s, small.runs) == (pytest.approx(1.5), 2)
    assert (small.prepare_s, small.allocate_s, small.stall_s, small.size_bytes) == (15.0, 3.0, 0.5, 10)
    assert (large.machine_type, large.work_per_s) == ("large", pytest.approx(9.0))
