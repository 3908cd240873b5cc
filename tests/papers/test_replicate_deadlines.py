""" "Can't Be Late", replayed: the hours of its policies, their promises, and what Windfall's own policy gains."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from tests.papers.reference import published
from tests.simulation.shared_data import DATA, needs_data
from windfall.errors import Misuse
from windfall.lab import deadlines
from windfall.lab import deadlines_published as paper
from windfall.lab import deadlines_series as replayed
from windfall.lab.published_rows import Options, PublishedRow, RowVerdict

TRACES = DATA / "skypilot_spot_traces"
WHOLE, TWO_WEEKS, _ = deadlines.READINGS


def quiet(words: str) -> None:
    del words


@functools.cache
def rows(part: str, starts: int = 300) -> tuple[PublishedRow, ...]:
    return deadlines.PARTS[part].rows(Options(starts, folder=str(TRACES)), quiet)


def hours(reading: str, policy: str) -> tuple[float, float]:
    """Return our hours on demand and on spot."""
    found = {row.quantity: row.ours for row in rows("table-3") if row.item == policy and row.source.endswith(reading)}
    on_demand, spot = found["on demand"], found["spot"]
    assert on_demand is not None
    assert spot is not None
    return on_demand, spot


def test_what_is_printed_is_what_the_reference_has() -> None:
    """Tables 3 to 5, number for number."""
    found = published("adaptive-checkpointing/uniform_progress.json")
    table = found["table_3_job_fraction_0_8"]
    assert (
        table["job_h"], table["deadline_h"], table["changeover_h"],
    ) == (paper.COMPUTE_H, paper.WINDOW_H, paper.CHANGEOVER_H)  # fmt: skip
    for policy in ("greedy", "uniform progress", "omniscient"):
        one = table[policy.replace(" ", "_")]
        assert paper.TABLE_3_H[policy] == (one["on_demand_h"], one["spot_h"], one["sd"])
    for work, one in zip(paper.WORKLOADS, found["table_4"], strict=True):
        assert work.name.lower() == one["workload"].lower()
        assert (work.spot_usd_per_hour, work.discount_pct, work.compute_h, work.changeover_h, list(work.windows_h)) == (
            one["spot_usd_h"], one["discount_pct"], one["compute_h"], one["changeover_h"], one["deadlines_h"],
        )  # fmt: skip
        assert [work.on_demand_usd, *work.uniform_usd] == found["table_5_usd"][work.name.lower()]


@needs_data
def test_the_hours_of_greedy_and_uniform_progress_are_those_of_the_reference_replay() -> None:
    """On all 27 days, 300 starts: greedy 30.0/18.0, Uniform Progress 25.9/22.1, 26.9/21.1 if it may idle; within 0.5 h."""
    replay = published("adaptive-checkpointing/uniform_progress.json")["our_replay"]
    at_600 = replay["gap_s_600"]
    wanted = {
        replayed.GREEDY: at_600["greedy"],
        replayed.UNIFORM: replay["variant_stay_on_demand_until_spot"]["gap_s_600"],
        replayed.UNIFORM_IDLING: at_600["up"],
    }
    series = replayed.public(TRACES)
    firsts = replayed.starts(series, deadlines.JOB.window_s, deadlines.JOB.tick_s, 300, 0)
    for policy, one in wanted.items():
        found = [
            replayed.play(each, first, deadlines.JOB, policy, ratio=3.0, learnt=())
            for each, first in zip(series, firsts, strict=True)
        ]
        ours = [np.concatenate([getattr(each, name) for each in found]).mean() for name in ("on_demand_h", "spot_h")]
        assert ours == pytest.approx([one["on_demand_h"], one["spot_h"]], abs=0.5)


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_first_two_weeks_of_the_series_give_the_printed_hours() -> None:
    """Both policies and the omniscient within 0.6 h of Table 3, their standard deviations within 0.5 h."""
    for policy in (replayed.GREEDY, replayed.UNIFORM, replayed.OMNISCIENT):
        on_demand_h, spot_h, _ = paper.TABLE_3_H[policy]
        assert hours(TWO_WEEKS.name, policy) == pytest.approx((on_demand_h, spot_h), abs=0.6)
    spreads = [row for row in rows("table-3") if row.quantity == "standard deviation" and TWO_WEEKS.name in row.source]
    assert {row.verdict for row in spreads} == {RowVerdict.MATCH}


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_policy_that_promises_a_deadline_misses_it_on_any_public_series() -> None:
    """19,200 runs with changeovers as stated and shorter; beyond the bounds none is later than delta + 2 (d_max - d)."""
    found = rows("promises")
    assert len(found) == 3 * len(replayed.PROMISING)
    assert {row.verdict for row in found} == {RowVerdict.MATCH}
    assert all(row.ours > 0.0 for row in found if row.quantity == "latest"), "beyond the bounds some are late"


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_windfalls_policy_costs_less_than_uniform_progress_in_zones_that_it_has_not_seen() -> None:
    """The interval of the paired difference by zone does not contain 0, and a third of the gap to the optimum is closed."""
    found = [row for row in rows("gain", 60) if "60 h" in row.source]
    saved = next(row for row in found if row.item == "windfall less uniform progress")
    assert saved.ours is not None
    assert saved.ours < -1.0
    assert "does not contain 0" in saved.reason
    share = next(row for row in found if row.quantity == "share of the gap closed")
    assert share.ours is not None
    assert share.ours > 25.0


@needs_data
def test_it_learns_from_other_zones_alone() -> None:
    """What is learnt for a series holds no series of its zone, whatever its year and its machines."""
    series = replayed.everything(TRACES)
    for one in series:
        learnt = replayed.elsewhere(series, one.zone)
        assert one.zone not in {each.zone for each in learnt}
        assert len(learnt) >= 9


def test_an_interval_by_zone_counts_each_zone_once() -> None:
    """Two series of one zone are one block: zone means -1, -2 and -3 have mean -2 and reach 4.303 x 1 / sqrt(3)."""
    found = deadlines.by_zone([-0.5, -1.5, -2.0, -3.0], ["a", "a", "b", "c"])
    assert (found.mean, found.zones) == (-2.0, 3)
    assert found.high - found.mean == pytest.approx(4.3027 / 3.0**0.5, abs=1e-3)
    assert "contains 0: not shown to differ" in found.words


def test_without_data_every_number_says_what_is_missing() -> None:
    """Without a folder no row has a number of ours, but for costs that are printed prices times printed hours."""
    for name, part in deadlines.PARTS.items():
        for row in part.rows(Options(300), quiet):
            assert row.ours is None or name == "table-5"
            assert row.ours is not None or row.reason == deadlines.NO_DATA


def test_a_folder_without_the_series_is_refused_by_its_name(tmp_path: Path) -> None:
    """With what to pass instead; a series that is missing, too."""
    with pytest.raises(Misuse, match=r"availability has no series: pass the folder of skypilot-org/spot-traces"):
        replayed.read(tmp_path, replayed.ALL)
    with pytest.raises(Misuse, match=r"none.json is missing"):
        replayed.one(tmp_path, "none.json")


def test_a_gang_is_up_when_all_of_it_is(tmp_path: Path) -> None:
    """Counts of 16 are up, of 15 down; ticks of another length take the value in effect."""
    folder = tmp_path / "availability" / "16-node" / "aws-1"
    folder.mkdir(parents=True)
    (folder / "us-east-1a_v100_1.json").write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": [16, 15, 16]}))
    (series,) = replayed.read(tmp_path, "availability")
    assert (series.zone, series.up.tolist()) == ("us-east-1a", [True, False, True])
    assert series.ticks(120.0).tolist() == [True, True, True, False, False, True, True]
