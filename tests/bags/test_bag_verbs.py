"""A bag from its start to its results by the commands of a user: failures and their second chance, a stop and a resume."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support.live import eventually
from tests.support.shop import Shop, shop

BAG = """
name: sweep
workdir: .
run: |
  echo {{{{x}}}} >> {log}
  sleep {{{{pause}}}}
  test -e {ready} || test $(({{{{x}}}} % 5)) -ne 0 || {{ echo "no convergence at {{{{x}}}}"; exit 3; }}
  echo {{{{x}}}} > kept.txt
  echo "y = $(({{{{x}}}} * 2))"
num_nodes: 2
bag:
  parameters: {{x: {{range: [0, {items}, 1]}}, pause: {pause}}}
  results: {{y: {{regex: "y = (.*)"}}}}
  collect: [kept.txt]
  retries: 0
  finish: {finish}
"""


def job_id(here: Shop) -> str:
    """Return the only bag's id."""
    (made,) = (here.state / "runs").glob("sweep-*")
    return made.name


def started(log: Path) -> Counter[int]:
    """Return how often each item has started, by its own log."""
    return Counter(map(int, log.read_text().split()))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_failed_items_get_a_second_chance_and_all_results_are_read(tmp_path: Path) -> None:
    """20 items of which four fail, 75 % needed: done; their problem is shown; again, and the table is whole."""
    with shop(tmp_path) as here:
        log, ready = here.folder / "log", here.folder / "ready"
        (here.folder / "code" / "bag.yaml").write_text(
            BAG.format(log=log, ready=ready, items=20, pause=0.1, finish=1.0)
        )
        ran = here.say("run", "-y", "bag.yaml", timeout_s=200)
        name = job_id(here)
        assert "4 items" in ran.stderr
        assert "16 of 20 items done" in ran.stderr
        page = json.loads(here.say("ps", name, "--json").stdout)["bag"]
        assert (page["done"], page["failed"], page["failures"][0]["items"]) == (16, 4, 4)
        assert here.say("logs", f"{name}/5").stdout == "no convergence at 5\n"
        assert "there is no item 20" in here.say("logs", f"{name}/20").stderr

        ready.touch()
        assert "4 items run again" in here.say("retry-failed", name).stdout
        assert here.say("logs", "-f", name, timeout_s=200).returncode == 0

        assert here.say("results", name, "-o", "o.csv", "--files", "kept").returncode == 0
        rows = list(csv.DictReader((here.folder / "code" / "o.csv").read_text().splitlines()))
        assert [(int(row["x"]), int(row["y"])) for row in rows] == [(x, 2 * x) for x in range(20)]
        kept = here.folder / "code" / "kept"
        assert [(kept / str(x) / "kept.txt").read_text() for x in range(20)] == [f"{x}\n" for x in range(20)]
        assert started(log) == {x: 2 if x % 5 == 0 else 1 for x in range(20)}
        assert "no item of" in here.say("retry-failed", name).stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bag_that_is_stopped_resumes_with_what_is_left(tmp_path: Path) -> None:
    """What runs at the stop ends first; what was done is not run again."""
    with shop(tmp_path) as here:
        log, ready = here.folder / "log", here.folder / "ready"
        ready.touch()
        (here.folder / "code" / "bag.yaml").write_text(
            BAG.format(log=log, ready=ready, items=40, pause=0.5, finish=1.0)
        )
        assert here.say("run", "-y", "-d", "bag.yaml").returncode == 0
        name = job_id(here)
        eventually(lambda: log.exists() and len(started(log)) >= 4, "four items have started")

        assert here.say("stop", name, timeout_s=100).returncode in {0, 6}
        before = started(log)
        assert len(before) < 40
        assert json.loads(here.say("ps", name, "--json").stdout)["bag"]["done"] == len(before)
        assert here.say("resume", name, timeout_s=200).returncode == 0

        assert started(log) == dict.fromkeys(range(40), 1)
        assert len(here.say("results", name).stdout.splitlines()) == 41
