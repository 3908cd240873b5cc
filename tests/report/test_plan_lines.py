"""A plan in a terminal: 80 columns, numbers that people read, what is unknown in few words."""

from __future__ import annotations

import re

import pytest

from tests.report.market_story import BEGIN, OFFER, job
from windfall.jobs import Job, Measurement, Use
from windfall.policies.planning import job_plan
from windfall.report.fleet_report import front_lines
from windfall.report.plan_report import plan_lines
from windfall.structs import plain, replace
from windfall.terms import Reliability, Seconds, Unit, WallTime

MEASURED = Measurement(
    "local",
    "small",
    Unit.STEP,
    0.5,
    Seconds(20.0),
    Seconds(2.0),
    3,
    Seconds(0.04),
    1_500_000,
    Seconds(0.06),
    Seconds(0.1),
)


def lines(*measured: Measurement, whole: bool = False) -> list[str]:
    on_demand = replace(OFFER, reliability=Reliability.RELIABLE, price_usd_per_hour=7.2)
    other = replace(OFFER, zone="zone-b", price_usd_per_hour=4.0)
    made: Job = job()
    found = job_plan.plan(made, (OFFER, other, on_demand), (), measured, WallTime(BEGIN))
    return list(plan_lines(made, plain(found), whole=whole))


def test_what_is_unknown_is_told_together_and_once() -> None:
    """Things with the same reason share it; nothing is said to be unknown twice in a sentence."""
    text = " ".join(" ".join(lines()).split())

    assert text.count("no save was measured)") == 1
    assert "unknown: unknown" not in text
    assert sum(line.startswith("unknown ") for line in lines()) == 1
    assert "cost and finish time are unknown" in text


def test_what_was_measured_becomes_cost_and_finish() -> None:
    """200 s of work and what comes around it, in dollars and minutes, without parts that take no time."""
    text = " ".join(" ".join(lines(MEASURED)).split())

    assert "small in zone-a, spot of local (1 CPU, 2 GiB)" in text
    assert "work 3 min 20 s" in text
    assert "USD on demand" in text
    assert not re.search(r"\de-", text), "no number in powers of ten"
    assert "1 other offer qualifies" in text


def test_the_whole_plan_says_how_long_it_holds() -> None:
    """Zone b costs 4 USD/h instead of 3.6: the plan is the best one until the price has risen by that much."""
    share = 100.0 * (4.0 / OFFER.price_usd_per_hour - 1.0)
    assert f"until its price rises by {share:.0f} %: then small in zone-b costs less" in " ".join(
        " ".join(lines(MEASURED, whole=True)).split()
    )
    assert "holds" not in " ".join(lines(MEASURED))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("measured", [(), (MEASURED,)])
def test_no_line_is_wider_than_a_terminal(measured: tuple[Measurement, ...], whole: bool) -> None:
    """80 columns, whatever is told."""
    assert max(map(len, lines(*measured, whole=whole))) <= 80


def test_all_shows_the_other_offers_and_every_number_with_its_source() -> None:
    """The table of offers, why the others are refused, and what it all rests on."""
    text = "\n".join(lines(MEASURED, whole=True))

    assert text.count("spot of local") == 3
    assert "refused" in text
    assert "speed: 0.5 steps/s (measured in 3 earlier runs)" in text


def test_what_rests_on_no_measurement_is_shown_in_short() -> None:
    """With its value and its reason; nothing of it where everything was measured."""
    text = " ".join(" ".join(lines()).split()).replace("\N{NO-BREAK SPACE}", " ")
    assert " preparation 2 min 40 s (nothing was measured); " in text
    assert "mean time to preemption 3 h" in text
    assert "(no machine of this provider was observed)" in text
    offer = replace(OFFER, reliability=Reliability.RELIABLE)
    found = job_plan.plan(replace(job(), use=Use.ON_DEMAND), (offer,), (), (MEASURED,), WallTime(BEGIN))
    assert not any(line.startswith("assumed") for line in plan_lines(job(), plain(found)))


def test_fleets_of_unknown_work_are_compared_by_the_cost_of_work() -> None:
    """With `--all`; their cost and finish are not known."""
    fleet = {
        "counts": [[["local", "medium", "zone-a", "transient"], 3]],
        "cost_usd": None, "finish_s": None, "usd_per_work_core_hour": 0.0319,
    }  # fmt: skip

    head, row = front_lines({"front": [fleet]})

    assert head.split(maxsplit=1) == ["fleet", "USD per core-hour of work"]
    assert row.split() == ["3", "medium", "in", "zone-a", "0.0319"]
