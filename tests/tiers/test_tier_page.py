"""What `windfall ps JOB` shows of a parameter server."""

from __future__ import annotations

import pytest

from windfall.report import tier_page
from windfall.report.tier_page import TierRecord
from windfall.structs import replace
from windfall.terms import WallTime
from windfall.tier_layout import TierFailure, TierProduct
from windfall.tier_status import TierCounters, TierMachineStatus, TierPoint, TierStatus

COUNTERS = TierCounters(
    turns=1200, redone=3, reads=1200, staleness_max=2, staleness_sum=600, pulled_bytes=3 << 20, pushed_bytes=1 << 20
)
MACHINES = (
    TierMachineStatus("r1", True, False, (), (0, 1, 2), (), TierCounters()),
    TierMachineStatus("t1", False, True, (0, 1, 2), (), (0, 1, 2, 5, 7, 8), COUNTERS),
)
STATUS = TierStatus(WallTime(5.0), 3, 12, 2, 4000, 10_000, 12.345, MACHINES, TierCounters(), 1, 2, 17, 1, 4, False)


def texts(record: TierRecord) -> dict[str, str]:
    """Lines by their labels."""
    return dict(tier_page.lines(record))


def test_lines_say_stage_clock_and_what_was_done_again() -> None:
    """In words, and numbers with units."""
    found = texts(TierRecord(STATUS))

    assert list(found) == ["stage", "clock", "redone"]
    assert found["stage"].startswith("3: transient machines serve, reliable ones only back up")
    assert "layout 12" in found["stage"]
    assert "2 coordinators" in found["stage"]
    assert found["clock"] == "4,000 of 10,000, 12.3 a second"
    backs = "17 clocks, by 1 roll-back and 2 returns to a checkpoint"
    assert found["redone"] == f"{backs}; 1 machine lost without notice, 4 left with notice"


def test_a_training_that_waits_or_is_over_is_shown_as_such() -> None:
    """Without a reliable machine there is no stage; what is over has no rate."""
    waiting = texts(TierRecord(replace(STATUS, stage=None)))
    over = texts(TierRecord(replace(STATUS, over=True, clock=10_000)))

    assert waiting["stage"].startswith("-: no reliable machine is there: all wait for one")
    assert over["clock"] == "10,000 of 10,000"


def test_failures_and_the_product_have_lines_of_their_own() -> None:
    """The newest failure with its number; the files with their sizes, and the newest loss where the program says one."""
    failure, product = TierFailure("m-1", "rank is 0"), TierProduct({"factors.npz": 2 << 20}, 0.123456789)
    history = tuple(TierPoint(WallTime(clock), clock, 1.0 / clock, 1, 1, 1) for clock in (1, 1200, 1500))
    found = texts(TierRecord(STATUS, product, failure, 2, history))

    assert "rank is 0" in found["failure"]
    assert "m-1" in found["failure"]
    assert "2" in found["failure"]
    assert found["product"] == "factors.npz (2.1 MB)"
    assert found["loss"] == "0.000666667 at clock 1,500"
    assert "loss" not in texts(TierRecord(STATUS, history=(replace(history[-1], loss=None),)))


def test_a_machine_is_a_row_with_its_numbers_as_ranges() -> None:
    """A stretch of three or more is its ends; one that is leaving is marked; without a read there is no staleness."""
    reliable, transient = tier_page.rows(STATUS)
    row = dict(zip(tier_page.COLUMNS, transient, strict=True))

    assert (row["machine"], row["serves"], row["backs up"]) == ("t1 (leaving)", "0-2", "-")
    assert row["data"] == "0-2,5,7,8"
    assert (row["turns"], row["redone"], row["staleness"]) == ("1,200", "3", "0.50, at most 2")
    assert dict(zip(tier_page.COLUMNS, reliable, strict=True))["staleness"] == "-"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), "-"), ((4,), "4"), ((4, 5), "4,5"), ((6, 4, 5), "4-6"), ((0, 2, 4), "0,2,4"), (tuple(range(12)), "0-11")],
)
def test_numbers_are_short(numbers: tuple[int, ...], text: str) -> None:
    """In ascending order."""
    (row,) = tier_page.rows(replace(STATUS, machines=(replace(MACHINES[0], backs_up=numbers),)))

    assert row[tier_page.COLUMNS.index("backs up")] == text


def test_a_record_as_data_has_what_is_not_there_as_nothing() -> None:
    """Programs find each key."""
    found = tier_page.as_json(TierRecord(STATUS))

    assert found["status"]["clock"] == 4000
    assert (found["product"], found["failure"], found["failures"]) == (None, None, 0)
