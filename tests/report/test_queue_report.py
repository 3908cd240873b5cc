"""A plan for a queue without prices: when it starts, and hours in place of money."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from windfall.report import queue_report

NOW = datetime(2026, 11, 25, 12, 42, tzinfo=UTC).timestamp()
ESTIMATE = "Slurm's own estimate"


def local(at: float) -> datetime:
    """An hour east of Greenwich."""
    return datetime.fromtimestamp(at, timezone(timedelta(hours=1)))


def offer(zone: str) -> dict[str, Any]:
    """An offer as JSON."""
    return {"provider": "slurm", "machine_type": "64c", "zone": zone, "reliability": "transient"}


def plan(**starts_in_s: float) -> dict[str, Any]:
    """A plan for the partition `low`, with starts of partitions."""
    rows = [{"offer": offer(zone), "starts_at": NOW + s, "estimate": ESTIMATE} for zone, s in starts_in_s.items()]
    return {"chosen": {"offer": offer("low"), "usd_per_hour": 0.0, "machines": 2}, "starts": rows}


@pytest.mark.parametrize(
    ("starts", "says"),
    [
        ({"low": 1380.0}, "at 14:05, in 23 min: Slurm's own estimate"),
        ({"low": 2.0}, "at once: Slurm's own estimate"),
        ({"low": 40000.0}, "at Thu 26 Nov 00:48, in 11 h 7 min: Slurm's own estimate"),
        ({"low": 1380.0, "high": 5.0}, "at 14:05, in 23 min; 64c in high at once: Slurm's own estimate"),
        ({"low": 60.0, "high": 1380.0}, "at 13:43, in 60 s: Slurm's own estimate"),
        ({"high": 1380.0}, "unknown; 64c in high at 14:05, in 23 min: Slurm's own estimate"),
        ({}, ""),
    ],
)
def test_the_start_is_said_in_the_users_zone(starts: dict[str, float], says: str) -> None:
    """Of the chosen offer, and of one that would start sooner; whose estimate it is stands beside it."""
    assert queue_report.start_text(plan(**starts), NOW, local) == says


def test_hours_are_told_in_the_sites_units() -> None:
    """Two machines of 64 units an hour; a site without units has hours alone."""
    counted = plan() | {"units": {"per_machine_hour": 64.0, "name": "billing units"}}

    assert queue_report.free_price(counted) == "hours cost nothing; 128 billing units an hour"
    assert queue_report.free_cost(counted, 3.5) == "3.5 machine-hours (224 billing units), which cost nothing"
    assert queue_report.free_price(plan() | {"units": None}) == "hours cost nothing"
    assert queue_report.free_cost(plan() | {"units": None}, 1.0) == "1 machine-hour, which cost nothing"


def test_what_preemptions_cost_is_told_in_time_and_hours() -> None:
    """With what it rests on, and the grace."""
    costs = {
        "work_s": 86400.0, "work_known": False, "preemptions": 8.04, "redo_s": 600.0, "save_s": 1200.0, "restart_s": 0.0,
        "machine_hours": 0.5, "notice_s": 30.0, "assumed": ["mean time to preemption"], "share": 0.0208,
    }  # fmt: skip
    found = plan() | {"preemption": costs, "units": {"per_machine_hour": 64.0, "name": "billing units"}}

    assert queue_report.preemption_text(found) == (
        "8.0 expected in each 24 h of work (assumed: mean time to preemption): 2.1 % more time (10 min done again, 20 min for "
        "saves), 0.5 machine-hours (32 billing units); 30 s from a preemption's first sign to the end"
    )
    assert queue_report.preemption_text(plan()) == ""
