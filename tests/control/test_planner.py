"""A question is answered without a daemon: `plan` and `simulate` ask the controller only if one runs."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.left import killed_at_the_end, processes_of
from tests.support.live import WINDFALL, plain_environment
from windfall.cli import client

JOB = "run: python train.py\nwork: {steps: 1000}\nresources: {infra: local}\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a job file, and no installation yet."""
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def windfall(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb with the installation in `state`."""
    line = [*WINDFALL, *words, "--state", str(home / "state")]
    return subprocess.run(
        line, cwd=home, env=plain_environment(), capture_output=True, text=True, timeout=60, check=False
    )


def _offers(home: Path) -> list[dict[str, Any]]:
    """What a plan rests on: the chosen offer and the others, without the moment of the question."""
    planned = windfall(home, "plan", "job.yaml", "--json")
    assert planned.returncode == 0, planned.stderr
    found = json.loads(planned.stdout)
    ranked = (found["chosen"], *found["alternatives"])
    return [{name: value for name, value in one["offer"].items() if name != "quoted_at"} for one in ranked]


def test_a_plan_starts_no_process_and_writes_nothing(home: Path) -> None:
    """A user who only asks what a job would cost has no daemon afterwards, nor a folder."""
    assert "spot of local" in windfall(home, "plan", "job.yaml").stdout
    numbers = ("--step", "1s", "--save", "1s", "--upload", "1s", "--trials", "50")
    assert "price of a machine" in windfall(home, "simulate", "job.yaml", *numbers).stdout
    assert not (home / "state").exists()
    assert processes_of(home) == {}


def test_a_job_that_cannot_have_its_fleet_policy_is_refused_without_a_controller_too(home: Path) -> None:
    """A fleet for a deadline without one: a sentence with what to write, and exit code 2."""
    (home / "job.yaml").write_text(JOB + "fleet: optimal-deadline\nspot_policy: auto\n")
    refused = windfall(home, "plan", "job.yaml")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "fleet.optimal-deadline needs a deadline to keep; write `objective: {deadline: 12h}`" in refused.stderr


def test_the_answer_is_the_controllers(home: Path) -> None:
    """One planner answers for both; with a controller it answers there."""
    alone = _offers(home)
    with killed_at_the_end(home), client.connect(home / "state", start=True):
        assert processes_of(home) != {}
        assert _offers(home) == alone
    assert _offers(home) == alone


def test_a_wrong_market_is_one_sentence(home: Path) -> None:
    """As with a controller: the file, and what is wrong in it."""
    (home / "state" / "market").mkdir(parents=True)
    (home / "state" / "market" / "market.yaml").write_text("zones: 7\n")
    refused = windfall(home, "plan", "job.yaml")
    assert refused.returncode == 2
    assert "market.yaml" in refused.stderr
    assert "Traceback" not in refused.stderr


def market(home: Path, text: str) -> None:
    (home / "state" / "market").mkdir(parents=True)
    (home / "state" / "market" / "market.yaml").write_text(text)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("types: {}\n", 3, "no provider has an offer now"),
        ("zones: []\n", 3, "no provider has an offer now"),
        ("quota: 0\n", 3, "quota 0 for every offer that fits the job (small in zone-a, small in zone-b"),
        (
            "types: {small: {on_demand: 0.1 EUR/h}}\n",
            2,
            "types.small.on_demand: '0.1 EUR/h' is not a price; prices are ",
        ),
        (
            "prices: {points: {small/zone-a: [[0, 90 USD/month]]}}\n",
            2,
            "'90 USD/month' is not a price; prices are numbers in",
        ),
    ],
)
def test_a_market_in_which_nothing_can_be_bought_is_one_sentence(home: Path, text: str, code: int, words: str) -> None:
    """Nothing for sale and no quota are no plan; a price in another unit is a mistake in a file."""
    market(home, text)
    refused = windfall(home, "plan", "job.yaml")
    assert (refused.returncode, refused.stdout) == (code, "")
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--budget", "0.0001"), 3, "no offer fits the budget: the cheapest, small in local/zone-"),
        (("--budget", "40 EUR"), 2, "--budget must be a number of dollars above zero such as 2.50, not '40 EUR'"),
        (("--budget", "-3"), 2, "--budget must be a number of dollars above zero such as 2.50, not -3.0"),
        (("--deadline", "12"), 2, "--deadline must be a duration (12h, 2d 6h) or a time (18:00, fri 9:00, "),
        (
            ("--deadline", "2020-01-01T00:00Z"),
            2,
            "'2020-01-01T00:00Z' was read as Wed 2020-01-01 00:00 UTC, and it is ",
        ),
        (
            ("--set", "objective.deadline=2020-01-01 0:00"),
            2,
            "--set objective.deadline: objective.deadline is in the past",
        ),
        (("--deadline", "next fri 9:00"), 2, "--deadline can mean two days: 'next fri 9:00'; write fri 9:00"),
        (("--loss", "none"), 2, "--loss must be a number above zero such as 0.8, not 'none'"),
        (
            ("--loss", "0.8"),
            2,
            "--loss: objective.loss needs a runtime that predicts the training loss, and checkpoint does not: ",
        ),
    ],
)
def test_a_budget_or_a_deadline_that_cannot_be_is_one_sentence(
    home: Path, options: tuple[str, ...], code: int, words: str
) -> None:
    """What is impossible has another exit code than what is written wrong."""
    refused = windfall(home, "plan", "job.yaml", *options)
    assert (refused.returncode, refused.stdout) == (code, "")
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--deadline", "2020-01-01 9:00"), "--deadline is in the past: '2020-01-01 9:00' was read as "),
        (
            ("--deadline", "9:00 EST"),
            "--deadline must have its zone as a place (Europe/Berlin), UTC or an offset (+01:00)",
        ),
        (("--loss", "0.8"), "write how much work there is instead, work: {steps: 20000}"),
    ],
)
def test_a_run_with_a_limit_that_cannot_be_read_starts_nothing(
    home: Path, options: tuple[str, ...], words: str
) -> None:
    """No controller, no folder, no machine: one sentence and exit code 2."""
    refused = windfall(home, "run", "job.yaml", "-y", *options)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert words in refused.stderr
    assert not (home / "state").exists()
    assert processes_of(home) == {}


def test_what_is_infeasible_is_refused_with_the_deadline_as_it_was_understood(home: Path) -> None:
    """Exit code 3, the same for `plan` and `run`, and no job exists afterwards."""
    limits = ("--budget", "0.0001", "--deadline", "fri 9:00 UTC")
    with killed_at_the_end(home):
        for verb in (("plan", "job.yaml"), ("run", "job.yaml", "-y")):
            refused = windfall(home, *verb, *limits)
            assert (refused.returncode, refused.stdout) == (3, "")
            assert "a budget of 0.0100 USD would do (small in local/zone-" in refused.stderr
            assert re.search(r"\(deadline: Fri 20\d\d-\d\d-\d\d 09:00 UTC.*, in .*\)$", refused.stderr.strip()), (
                refused.stderr
            )
        assert "no jobs" in windfall(home, "ps").stdout.lower()


def test_a_budget_and_a_deadline_replace_those_of_the_job_file(home: Path) -> None:
    """A deadline is a duration from now, or a time; the plan tells how it was understood."""
    limited = ("plan", "job.yaml", "--set", "objective.budget_usd=0.0001")
    assert windfall(home, *limited).returncode == 3
    later = datetime.now(tz=UTC) + timedelta(days=3)
    for deadline in ("3d", later.isoformat(timespec="minutes"), f"{later:%A %H:%M} UTC"):
        planned = windfall(home, *limited, "--budget", "40", "--deadline", deadline)
        assert planned.returncode == 0, planned.stderr
        shown = " ".join(planned.stdout.split())
        assert "whether the deadline and the budget can be met is unknown" in shown
        assert re.search(r"deadline \w{3} \d{4}-\d\d-\d\d \d\d:\d\d.*, in (3 days|2 days 23 h) ", shown), shown
