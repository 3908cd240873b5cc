"""Many jobs of Proteus' arms: the same whatever plays them, and means that are worth as many blocks as they come from."""

from __future__ import annotations

import csv
import gzip
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.house.source import ROOT
from tests.simulation.shared_data import DATA, needs_data
from windfall.cli.main import main
from windfall.errors import Misuse
from windfall.lab import agileml, proteus, proteus_choices
from windfall.lab import proteus_reasons as reasons
from windfall.lab import proteus_runs as played
from windfall.lab.proteus_runs import ArmRuns, Replay
from windfall.lab.proteus_worlds import SPRING, Span
from windfall.lab.published_rows import Options, RowVerdict

DAY_S = 86_400.0
SPRING_ONLY = ("spring",)


def quiet(words: str) -> None:
    del words


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """A folder with a spring of which only the first zone has prices: m4.xlarge steps every 7 hours, m3.large is steady."""
    with gzip.open(tmp_path / "2016_feb_apr.csv.gz", "wt", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("timestamp_utc", "availability_zone", "instance_type", "price_usd_per_hour"))
        for zone in SPRING.zones:
            for number in range(60 * 24 // 7):
                at = np.datetime64("2016-02-25T00:00:00") + np.timedelta64(7 * number, "h")
                rows.writerow((f"{at}", zone, "m4.xlarge", 0.04 + 0.3 * (number % 9 == 8)))
            rows.writerow(("2016-02-25T00:00:00", zone, "m3.large", 0.03))
    return tmp_path


def runs(folder: Path, starts: int = 6, seed: int = 3) -> tuple[ArmRuns, ...]:
    chosen = dict.fromkeys(("on-demand", "standard+agileml"), proteus_choices.STATED)
    return played.play(Replay(folder, Span.TRAIN, starts, seed), 2.0, chosen, quiet, SPRING_ONLY)


def test_jobs_are_the_same_whatever_the_number_of_processors(prices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One processor, two, and again with the same seed; another seed has other starts."""
    monkeypatch.setattr(played.os, "sched_getaffinity", lambda process: {0})
    alone = runs(prices)
    monkeypatch.setattr(played.os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(played, "CHUNK", 4)
    together, others = runs(prices), runs(prices, seed=4)
    for one, two, three in zip(alone, together, others, strict=True):
        assert (one.zone, one.arm) == (two.zone, two.arm)
        assert np.array_equal(one.starts_s, two.starts_s)
        assert np.array_equal(one.cost_usd, two.cost_usd)
        assert not np.array_equal(one.starts_s, three.starts_s)


def test_every_arm_has_the_same_starts_in_a_zone_within_the_part_that_is_played(prices: Path) -> None:
    """The last third of the months to learn from, with room for the job."""
    found = runs(prices)
    for zone in SPRING.zones:
        first, second = (one for one in found if one.zone == zone)
        assert np.array_equal(first.starts_s, second.starts_s)
        assert first.starts_s.min() >= SPRING.train_s[0] + (SPRING.train_s[1] - SPRING.train_s[0]) * 2.0 / 3.0
        assert first.starts_s.max() <= SPRING.train_s[1] - 6.0 * 3600.0
        others = [one.starts_s for one in found if one.zone != zone]
        assert not any(np.array_equal(first.starts_s, starts_s) for starts_s in others)
        assert first.cost_usd == pytest.approx(64 * 0.419 * 2.0)


def column(zone: str, starts_s: list[float], cost_usd: list[float]) -> ArmRuns:
    ones = np.ones(len(starts_s))
    return ArmRuns("spring", zone, "proteus", 2.0, np.array(starts_s), np.array(cost_usd), ones, ones, ones, ones, ones)


def test_a_mean_of_one_day_has_no_width_however_many_jobs_it_has() -> None:
    """Jobs of one day see the same prices; those of many days do not."""
    jobs = np.random.default_rng(1).uniform(1.0, 3.0, 400).tolist()
    same = played.mean([column("a", np.linspace(0.0, 80_000.0, 400).tolist(), jobs)], lambda one: one.cost_usd)
    assert (same.blocks, same.low, same.high) == (1, pytest.approx(same.value), pytest.approx(same.value))
    days = played.mean([column("a", [DAY_S * n for n in range(400)], jobs)], lambda one: one.cost_usd)
    assert days.blocks == 400
    half = 1.96 * np.std(jobs) / math.sqrt(400)
    assert days.high - days.low == pytest.approx(2.0 * half, rel=0.15)


def test_a_ratio_leaves_out_jobs_that_either_did_not_finish() -> None:
    """Two of three jobs finished in both: 2 + 4 over 1 + 1."""
    starts = [0.0, DAY_S, 2.0 * DAY_S]
    one, other = column("a", starts, [2.0, 4.0, math.nan]), column("a", starts, [1.0, 1.0, 9.0])
    ratio = played.mean([one], lambda runs: runs.cost_usd, [other])
    assert ratio.value == pytest.approx(3.0)
    assert (one.unfinished, ratio.blocks) == (1, 2)


def test_half_of_the_savings_is_a_share_of_them() -> None:
    """A claim holds by its sign, and its size stands beside the printed one; without savings there is no share."""
    whole, part = played.Mean(40.0, 38.0, 42.0, 9), played.Mean(10.0, 9.0, 11.0, 9)
    assert proteus._half(whole, part).value == pytest.approx(25.0)
    assert math.isnan(proteus._half(played.Mean(-1.0, -2.0, 0.0, 9), part).value)


def test_without_prices_every_part_says_what_it_needs() -> None:
    """No row of the cost analysis has a number of ours; the tiers of reliability need none."""
    for part in (part for name, part in proteus.PARTS.items() if name not in agileml.PARTS):
        for row in part.rows(Options(10), quiet):
            assert (row.ours, row.verdict) == (None, RowVerdict.CANNOT)
            assert "--data" in row.reason


def test_sensitivity_is_never_played_on_the_months_held_out(prices: Path) -> None:
    """It would be a sweep over the months that judge."""
    with pytest.raises(Misuse, match="sensitivity"):
        proteus.PARTS["sensitivity"].rows(Options(10, folder=str(prices), held_out=True), quiet)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("proteus", "--data", "nowhere"), "--data: nowhere is no folder"),
        (("proteus", "--data", "."), "2016_feb_apr.csv.gz does not exist"),
        (("thesis", "--held-out"), "--held-out is for proteus"),
    ],
)
def test_bad_input_is_one_sentence(
    words: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit code 2, and nothing is played."""
    monkeypatch.chdir(tmp_path)
    assert main(["lab", "replicate", *words, "--trials", "1"]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err


@needs_data
def test_the_verb_plays_both_worlds_and_judges_by_sign(capsys: pytest.CaptureFixture[str]) -> None:
    """Two starts in each zone: every claim has a verdict, and every size its printed one beside it."""
    words = ("proteus", "--data", str(DATA / "aws_spot_prices"), "--item", "figure-10", "--item", "worlds")
    assert main(["lab", "replicate", *words, "--trials", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    shares = [row["ours"] for row in rows if row["item"] == "spring, proteus"]
    assert sum(shares) == pytest.approx(100.0)
    cheapest = [row["ours"] for row in rows if row["item"].startswith("1b,")]
    assert sum(cheapest) == pytest.approx(100.0)


def test_the_reason_of_a_short_run_time_says_how_long_an_eviction_would_have_to_stop_the_job() -> None:
    """Two evictions in an hour of run: each would have to stop it for 20 minutes to leave a third of the time for work."""
    above = [runs_of(run_s=[7200.0, math.nan], evictions=[4.0, 9.0], paid=[10.0, math.nan], free=[10.0, math.nan])]
    assert reasons.evictions_per_hour(above) == pytest.approx(2.0)
    assert "2 times an hour" in reasons.of_run_time(above, 60.0)
    assert "stop it for 20 min" in reasons.of_run_time(above, 60.0)
    assert "no such bid" in reasons.of_run_time([runs_of([3600.0], [0.0], [1.0], [0.0])], 60.0)


def test_the_reason_of_a_lower_cost_counts_core_hours_and_what_is_free_of_them() -> None:
    """Half of 20 core-hours free, against a fifth of 25."""
    above = [runs_of([3600.0], [1.0], [10.0], [10.0])]
    proteus = [runs_of([1800.0], [1.0], [20.0], [5.0])]
    words = reasons.of_cost(above, proteus)
    assert "25 % more core-hours" in words
    assert "20 % of them are free; just-above's 50 %" in words
    assert "finished" in reasons.of_cost([runs_of([math.nan], [1.0], [math.nan], [math.nan])], proteus)


def runs_of(run_s: list[float], evictions: list[float], paid: list[float], free: list[float]) -> ArmRuns:
    """Jobs of an arm with these columns."""
    count = len(run_s)
    ones = np.ones(count)
    columns = (np.array(run_s), np.zeros(count), np.array(paid), np.array(free), np.array(evictions))
    return ArmRuns("spring", "us-east-1a", "just-above", 2.0, np.arange(count) * 1e5, ones, *columns)


@pytest.mark.real
def test_processes_end_with_the_command_that_wants_their_runs(prices: Path) -> None:
    """Also if it is killed: they do not go on computing for nobody."""
    play = f"import sys, pathlib; from {__name__} import runs; runs(pathlib.Path(sys.argv[1]), starts=5000)"
    with subprocess.Popen([sys.executable, "-c", play, str(prices)], cwd=ROOT) as command:
        until(lambda: command.poll() is not None or len(pool_of(command.pid)) > 0)
        pool = pool_of(command.pid)
        command.kill()
    until(lambda: not any(is_of_a_pool(pid) for pid in pool))


def pool_of(parent_pid: int) -> list[int]:
    """Return the processes of a command's pool."""
    children = Path(f"/proc/{parent_pid}/task/{parent_pid}/children").read_text().split()
    return [int(pid) for pid in children if is_of_a_pool(int(pid))]


def is_of_a_pool(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; pytest's time limit ends it."""
    while not holds():
        time.sleep(0.05)
