"""A plan as a picture: the points that it shows, and that it is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.policies.test_fleet_plan import hours, planned
from tests.report.market_story import BEGIN, OFFER, job
from tests.report.test_plan_lines import MEASURED
from tests.support import tickets
from windfall.errors import Misuse
from windfall.market import Quota
from windfall.policies.planning import job_plan
from windfall.report import plan_plot
from windfall.structs import plain, replace
from windfall.terms import WallTime


def test_a_plan_of_offers_has_a_point_for_each_and_for_on_demand() -> None:
    """The chosen one first, with its P90 where it is known."""
    other = replace(OFFER, zone="zone-b", price_usd_per_hour=4.0)
    found = plain(job_plan.plan(job(), (OFFER, other), (), (MEASURED,), WallTime(BEGIN)))
    found["odds"] = {"cost_usd": {"p50": 1.0, "p90": 2.0}, "finish_s": {"p50": 3600.0, "p90": 7200.0}}
    first, *rest = plan_plot.points(found)
    assert first.chosen
    assert (first.cost_usd, first.finish_h) == ((1.0, 2.0), (1.0, 2.0))
    assert [one.name for one in rest] == ["1 small in zone-b", "the same on demand"]
    assert all(one.cost_usd[0] == one.cost_usd[1] for one in rest)


def test_a_plan_of_fleets_is_drawn_for_light_and_dark_paper(tmp_path: Path) -> None:
    """Each fleet once."""
    pytest.importorskip("matplotlib")
    with tickets.installed():
        found = plain(planned(hours(100.0), quotas=(Quota("large", "a", 2, 0),)))
    names = [point.name for point in plan_plot.points(found)]
    assert names[0] == "2 large in a + 1 small in a"
    assert len(set(names)) == len(names) >= 3
    written = plan_plot.draw(found, "tickets", tmp_path / "pictures")
    assert [path.name for path in written] == ["tickets-plan.png", "tickets-plan-dark.png"]
    assert all(path.stat().st_size > 5_000 for path in written)


def test_a_plan_without_a_finish_cannot_be_drawn(tmp_path: Path) -> None:
    """The message says how to measure it; nothing is written."""
    pytest.importorskip("matplotlib")
    found = plain(job_plan.plan(job(), (OFFER,), (), (), WallTime(BEGIN)))
    with pytest.raises(Misuse, match="windfall drill"):
        plan_plot.draw(found, "job", tmp_path / "pictures")
    assert not (tmp_path / "pictures").exists()
