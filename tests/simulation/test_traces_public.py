"""The public traces, read: their numbers are those that their collectors state, and our own format keeps every event."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.shared_data import DATA, found, needs_data
from windfall.market import MachineEndCause
from windfall.simulation.traces import trace_format
from windfall.simulation.traces.trace_events import CatalogueEntry, Content, Count, Event, Price, Series, TracedLifetime
from windfall.simulation.traces.trace_reader import open_trace
from windfall.simulation.traces.trace_slices import parse_slice
from windfall.simulation.traces.trace_survey import SeriesStats, TraceSurvey, survey

pytestmark = needs_data
SKYPILOT = "skypilot_spot_traces"
AWS = "aws_spot_prices"
# file, days, share up of the maximum, falls: the table of the collection's own description
AVAILABILITY = [
    ("availability/1-node/aws-02-15-2023/us-east-1a_v100_1", 45.5, 0.167, 253),
    ("availability/1-node/aws-02-15-2023/us-east-1f_v100_1", 45.5, 0.591, 285),
    ("availability/1-node/aws-02-15-2023/us-east-2a_v100_1", 45.5, 0.759, 145),
    ("availability/1-node/aws-02-15-2023/us-east-2b_v100_1", 45.5, 0.682, 174),
    ("availability/1-node/aws-02-15-2023/us-west-2a_v100_1", 45.5, 0.883, 158),
    ("availability/1-node/aws-02-15-2023/us-west-2c_v100_1", 45.5, 0.891, 142),
    ("availability/1-node/aws-10-26-2022/us-west-2a_k80_1", 27.0, 0.893, 132),
    ("availability/1-node/aws-10-26-2022/us-west-2a_k80_8", 27.0, 0.326, 135),
    ("availability/1-node/aws-10-26-2022/us-west-2a_v100_1", 27.0, 0.793, 126),
    ("availability/1-node/aws-10-26-2022/us-west-2a_v100_8", 27.0, 0.480, 269),
    ("availability/1-node/aws-10-26-2022/us-west-2b_k80_1", 27.0, 0.117, 47),
    ("availability/1-node/aws-10-26-2022/us-west-2b_k80_8", 27.0, 0.408, 246),
    ("availability/1-node/aws-10-26-2022/us-west-2b_v100_1", 27.0, 0.716, 171),
    ("availability/1-node/aws-10-26-2022/us-west-2b_v100_8", 27.0, 0.466, 399),
    ("availability/16-node/aws-08-27-2023/us-east-2b_v100_1", 11.3, 0.547 * 16, 136),
    ("availability/16-node/aws-08-27-2023/us-west-2a_v100_1", 16.4, 0.431 * 16, 145),
    ("preemption/1-node/aws-04-19-2023/us-east-1c_intel_64", 6.3, 0.639, 128),
    ("preemption/1-node/aws-04-19-2023/us-east-1d_intel_64", 6.3, 0.940, 27),
    ("preemption/1-node/aws-04-22-2023/us-east-1c_v100_1", 7.4, 0.314, 41),
    ("preemption/1-node/aws-04-22-2023/us-east-1f_v100_1", 7.4, 0.592, 60),
    ("preemption/1-node/aws-04-22-2023/us-west-2c_v100_1", 7.4, 0.731, 57),
    ("preemption/1-node/gcp-04-30-2023/us-central1-a_c3-88", 1.9, 1.000, 0),
    ("preemption/1-node/gcp-04-30-2023/us-east1-b_c3-88", 1.9, 0.954, 3),
    ("preemption/4-node/aws-08-03-2023/us-east-1f_v100_1", 12.7, 0.344 * 4, 136),
    ("preemption/4-node/aws-08-03-2023/us-east-2a_v100_1", 17.8, 0.731 * 4, 60),
]
QUICK = [
    f"{AWS}/2010_feb_apr.csv.gz",
    f"{AWS}/2025_dec_2026_feb_t3micro.csv.gz",
    f"{AWS}/ondemand_*.csv",
    "gcp_spot_prices/changes_2022_2026.csv.gz",
    "gcp_preemptible_lifetimes/*.csv",
    "bamboo_traces/*.csv",
    "bamboo_traces/*.txt",
    "parcae_p3/*.csv",
    "parcae_p3/segments/*/*.txt",
    f"{SKYPILOT}/preemption/1-node/aws-04-19-2023/*.json",
    f"{SKYPILOT}/availability/16-node/*/*.json",
    "instance_catalog/a*_gpu_*.csv",
    "instance_catalog/aws_spot_advisor*.csv.gz",
]
SLOW = [
    f"{AWS}/201[356]*.csv.gz",
    f"{AWS}/2022*.csv.gz",
    f"{SKYPILOT}/*/*/*/*.json",
    "instance_catalog/*.csv",
    "instance_catalog/*.csv.gz",
]


def _survey(name: str) -> TraceSurvey:
    return survey(open_trace(DATA / name))


def _events(name: str) -> list[Event]:
    return list(open_trace(DATA / name).events())


def _one(surveyed: TraceSurvey, content: Content) -> SeriesStats:
    (stats,) = [one for one in surveyed.stats if one.content is content]
    return stats


@pytest.mark.parametrize(("name", "days", "mean", "falls"), AVAILABILITY, ids=lambda value: str(value)[-40:])
def test_skypilot_traces_have_the_stated_span_share_and_falls(name: str, days: float, mean: float, falls: int) -> None:
    """Days, mean number up and number of falls of each availability and preemption file are as stated."""
    stats = _one(_survey(f"{SKYPILOT}/{name}.json"), Content.COUNTS)

    assert stats.mean == pytest.approx(mean, abs=0.0006 * max(1.0, stats.highest or 1.0))
    assert (round(stats.last_s / 86_400, 1), stats.falls) == (days, falls)


def test_a_skypilot_trace_is_named_by_its_file() -> None:
    """Zone and machine type come from the file's name, up-runs and prices from its ticks."""
    surveyed = _survey(f"{SKYPILOT}/preemption/1-node/aws-04-19-2023/us-east-1c_intel_64.json")

    assert {one.series for one in surveyed.stats} == {Series("intel_64", "us-east-1c")}
    assert _one(surveyed, Content.PRICES).highest == pytest.approx(1.85, abs=0.01)
    assert _median_up_h(f"{SKYPILOT}/availability/1-node/aws-02-15-2023/us-west-2a_v100_1.json") == 1.03


def _median_up_h(name: str) -> float:
    counts = [event for event in _events(name) if isinstance(event, Count)]
    runs = [later.at_s - now.at_s for now, later in itertools.pairwise(counts) if now.count]
    return round(statistics.median(runs) / 3600, 2)


def test_the_lives_of_960_google_machines() -> None:
    """501 were preempted, 459 stopped, in 156 batches; all preempted were gone by 24.83 h."""
    lifetimes = [
        event for event in _events("gcp_preemptible_lifetimes/lifetimes.csv") if isinstance(event, TracedLifetime)
    ]
    preempted = [lifetime for lifetime in lifetimes if not lifetime.censored]

    assert Counter(lifetime.end for lifetime in lifetimes) == {
        MachineEndCause.PREEMPTED: 501,
        MachineEndCause.RELEASED: 459,
    }
    assert len({lifetime.batch for lifetime in lifetimes}) == 156
    assert max(lifetime.lifetime_s for lifetime in preempted) / 3600 == pytest.approx(24.83, abs=0.005)
    groups = Counter(lifetime.series.machine_type for lifetime in lifetimes)
    assert (groups["n1-highcpu-32"], groups["n1-highcpu-16"], groups["n1-highcpu-64"]) == (316, 132, 22)
    assert {lifetime.load for lifetime in lifetimes} == {"idle", "non-idle"}
    assert all(lifetime.startup_s is not None and lifetime.startup_s > 0 for lifetime in lifetimes)


@pytest.mark.parametrize(
    ("hours", "alive"), [(1, 0.850), (3, 0.761), (6, 0.721), (12, 0.676), (20, 0.627), (24, 0.610)]
)
def test_their_kaplan_meier_survival_is_the_stated_one(hours: int, alive: float) -> None:
    """Read with stops as right-censored, the share alive after some hours is as stated."""
    lifetimes = [
        event for event in _events("gcp_preemptible_lifetimes/lifetimes.csv") if isinstance(event, TracedLifetime)
    ]
    survival, at_risk = 1.0, len(lifetimes)
    for lifetime in sorted(lifetimes, key=lambda lifetime: lifetime.lifetime_s):
        if lifetime.lifetime_s > hours * 3600:
            break
        survival *= 1.0 if lifetime.censored else 1.0 - 1.0 / at_risk
        at_risk -= 1

    assert survival == pytest.approx(alive, abs=0.0006)


def test_parcaes_cluster_is_the_same_by_machines_and_by_counts() -> None:
    """177 machines came, 167 went; between 10 and 32 were there, 24.03 on average over 11.37 h."""
    machines, counted = _survey("parcae_p3/p3trace.csv"), _survey("parcae_p3/p3.csv")

    for surveyed, content in ((machines, Content.MACHINES), (counted, Content.COUNTS)):
        stats = _one(surveyed, content)
        assert (stats.events, stats.falls, stats.lowest, stats.highest) == (344, 167, 10, 32)
        assert stats.mean == pytest.approx(24.03, abs=0.01)
        assert round(stats.last_s / 3600, 2) == 11.37


@pytest.mark.parametrize(
    ("segment", "mean", "removed", "added"),
    [("hh_55_65", 27.48, 19, 16), ("hl_15_25", 29.63, 11, 7), ("lh_80_90", 16.82, 18, 17), ("ll_10_11", 14.63, 4, 0)],
)
def test_parcaes_segments_have_the_stated_means(segment: str, mean: float, removed: int, added: int) -> None:
    """Mean nodes, removals and additions (after the first minute) of an hour are as stated, migrations are no events."""
    surveyed = _survey(f"parcae_p3/segments/bert/trace_{segment}.txt")
    stats = _one(surveyed, Content.MACHINES)
    first = sum(event.at_s == 0.0 for event in _events(f"parcae_p3/segments/bert/trace_{segment}.txt"))

    assert stats.mean == pytest.approx(mean, abs=0.006)
    assert (stats.falls, stats.events - first - stats.falls, stats.last_s) == (removed, added, 3600.0)


def test_bamboos_clusters() -> None:
    """Spans, maxima, and the mean and longest silence of the irregular log are as stated."""
    g4, p2 = (_survey(path.relative_to(DATA).as_posix()) for path in found("bamboo_traces/[gp]*us-east-1[ce]*seconds*"))
    hours = _survey("bamboo_traces/p2.xlarge_2020-11-20_to_2020-11-23_hours_count.csv")
    name = "bamboo_traces/gcloud_a100x1_us-east1-b_2021-12-11.txt"
    log = _survey(name)

    assert [(one.stats[0].highest, round(one.span_s / 3600, 1)) for one in (g4, p2)] == [(12, 24.5), (10, 19.0)]
    assert (hours.stats[0].highest, round(hours.span_s / 3600, 1)) == (16, 88.7)
    assert [one.stats[0].series for one in (g4, p2)] == [
        Series("g4dn.xlarge", "us-east-1c"),
        Series("p2.xlarge", "us-east-1e"),
    ]
    assert round(statistics.mean(event.count for event in _events(name) if isinstance(event, Count)), 1) == 57.9
    assert (log.stats[0].lowest, round(log.span_s / 3600), round(log.gaps[0].length_s / 3600, 1)) == (17, 27, 5.0)


@pytest.mark.parametrize(
    ("name", "rows", "series"),
    [
        ("2010_feb_apr.csv.gz", 7_568, 16),
        ("2013_jan.csv.gz", 5_318, 151),
        ("2022_05_31_all_regions.csv.gz", 20_061, 19_751),
        ("2025_dec_2026_feb_t3micro.csv.gz", 914, 2),
    ],
)
def test_aws_prices_have_the_stated_rows(name: str, rows: int, series: int) -> None:
    """Each row of a price history is an event of its type, zone and product."""
    surveyed = _survey(f"{AWS}/{name}")

    assert (surveyed.events, len(surveyed.stats), surveyed.repeated) == (rows, series, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows", "series"),
    [
        ("2015_mar_aug.csv.gz", 128_504, 9),
        ("2016_feb_apr.csv.gz", 209_358, 25),
        ("2016_may_aug_events.csv.gz", 157_500, 3),
        ("2016_jun_sep_grid5min.csv.gz", 258_187, 10),
    ],
)
def test_long_aws_histories_have_the_stated_rows(name: str, rows: int, series: int) -> None:
    """The long price histories are read whole."""
    surveyed = _survey(f"{AWS}/{name}")

    assert (surveyed.events, len(surveyed.stats)) == (rows, series)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "on_demand", "ratio"),
    [
        ("2015_mar_aug.csv.gz:c3.xlarge@us-east-1a", 0.21, 1.06),
        ("2015_mar_aug.csv.gz:c3.xlarge@us-east-1b", 0.21, 0.19),
        ("2015_mar_aug.csv.gz:g2.2xlarge@us-east-1b", 0.65, 0.26),
        ("2016_feb_apr.csv.gz:m4.10xlarge@us-east-1b", 2.394, 0.54),
        ("2016_may_aug_events.csv.gz:m4.xlarge@us-east-1a", 0.239, 0.17),
        ("2016_may_aug_events.csv.gz:m4.xlarge@us-east-1c", 0.239, 0.33),
        ("2016_jun_sep_grid5min.csv.gz:m4.xlarge@us-east-1c", 0.239, 1.08),
        ("2016_jun_sep_grid5min.csv.gz:g2.2xlarge@us-east-1a", 0.65, 0.98),
    ],
)
def test_mean_prices_are_the_stated_ones(place: str, on_demand: float, ratio: float) -> None:
    """The mean over time of a price, against on-demand, is as stated."""
    wanted = parse_slice(f"{DATA / AWS}/{place}")
    surveyed = survey(open_trace(wanted.path))
    (stats,) = [one for one in surveyed.stats if wanted.matches(one.series)]

    assert stats.mean is not None
    assert stats.mean / on_demand == pytest.approx(ratio, abs=0.006)


def test_the_longest_silences_of_2010_are_holes() -> None:
    """What the API would have repeated within a day and did not is told as missing."""
    surveyed = _survey(f"{AWS}/2010_feb_apr.csv.gz")

    assert surveyed.gaps_count == 5
    assert round(surveyed.gaps[0].length_s / 86_400, 2) == 3.19


def test_google_prices_know_when_no_spot_price_was_recorded() -> None:
    """5 251 rows of 67 types in 4 regions; 244 of them have no spot price, and an on-demand price of 0 is none."""
    prices = [event for event in _events("gcp_spot_prices/changes_2022_2026.csv.gz") if isinstance(event, Price)]

    assert len(prices) == 5_251
    assert len({price.series.machine_type for price in prices}) == 67
    assert len({price.series.zone for price in prices}) == 4
    assert sum(price.usd_per_hour is None for price in prices) == 244
    assert all(price.on_demand_usd_per_hour != 0.0 for price in prices)


@pytest.mark.parametrize(
    ("name", "lines", "types"),
    [
        ("aws_us-east-1_on_demand_2026-07-20.csv", 1_367, 1_367),
        ("gcp_2026-07-30.csv.gz", 17_718, 523),
        ("azure_polandcentral_linux_2026-01-26.csv", 861, None),
        ("aws_gpu_spot_us.csv", 59, None),
        ("azure_gpu_spot_us.csv", 89, None),
    ],
)
def test_price_lists_have_the_stated_lines(name: str, lines: int, types: int | None) -> None:
    """Each line of a list is one; machine types are counted as stated."""
    surveyed = _survey(f"instance_catalog/{name}")

    assert surveyed.events == lines
    assert types in (None, len(surveyed.machine_types))


def test_interruption_buckets_have_the_stated_shares() -> None:
    """The five classes of interruption are as frequent as stated; a saving can be negative."""
    listed = [
        event
        for event in _events("instance_catalog/aws_spot_advisor_2025-06.csv.gz")
        if isinstance(event, CatalogueEntry)
    ]
    buckets = Counter(event.interruption_bucket for event in listed)

    assert [round(buckets[number] / len(listed), 2) for number in range(5)] == [0.22, 0.19, 0.14, 0.13, 0.33]
    assert min(event.saving_share for event in listed if event.saving_share is not None) < 0.0


def _round_trip(path: Path, folder: Path) -> None:
    trace = open_trace(path)
    expected = list(trace.events())
    out = folder / "out.jsonl.gz"
    trace_format.write(out, trace.header, iter(expected))
    again = open_trace(out)

    assert list(again.events()) == expected
    assert again.header == trace.header


@pytest.mark.parametrize("pattern", QUICK)
def test_our_format_keeps_every_event_of_every_format(pattern: str, tmp_path: Path) -> None:
    """Read, written as a Windfall trace and read again, the events are the same, to the last digit."""
    assert found(pattern)
    for number, path in enumerate(found(pattern)):
        (folder := tmp_path / str(number)).mkdir()
        _round_trip(path, folder)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", SLOW)
def test_our_format_keeps_every_event_of_the_long_files(pattern: str, tmp_path: Path) -> None:
    """The same for all other files of the collection."""
    assert found(pattern)
    for number, path in enumerate(one for one in found(pattern) if not one.name.endswith("_series.csv")):
        (folder := tmp_path / str(number)).mkdir()
        _round_trip(path, folder)
