"""`windfall rm`: a whole run goes, and nothing else; one that a machine holds does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.live import contents, fast, new_run


@pytest.mark.real
@pytest.mark.trial("A6")
def test_a_run_that_is_over_is_removed_and_what_is_not_of_it_stays(tmp_path: Path) -> None:
    """Refused without a yes and while a machine holds it; afterwards the place is as if it had never been used."""
    run = new_run(tmp_path)
    machine = run.train(STEPS="100000")
    machine.until("step 3")
    assert run.say("rm", run.url, "--yes").returncode == 2
    assert run.say("stop", run.url).returncode == 0
    machine.code()
    before = contents(tmp_path / "run")
    assert run.say("rm", run.url).returncode == 2
    assert contents(tmp_path / "run") == before
    (tmp_path / "run" / "notes.txt").write_text("mine")
    done = run.say("rm", run.url, "--yes", "--json")
    told = json.loads(done.stdout)
    assert (told["deleted"], told["left"]) == (len(before), ["notes.txt"])
    assert contents(tmp_path / "run") == {"notes.txt": b"mine"}
    (tmp_path / "run" / "notes.txt").unlink()
    again = run.start(sys.executable, "-c", "pass")
    assert again.code() == 0, again.text
    assert run.say("rm", run.url, "-y").returncode == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.real
def test_a_holder_of_this_machine_that_was_killed_is_not_listened_for(tmp_path: Path) -> None:
    """Its process is gone, which anybody here can see: neither `stop` nor `rm` waits out a lease of an hour."""
    run = new_run(tmp_path)
    machine = run.train(STEPS="100000", options=fast("--lease", "1h"))
    machine.until("step 3")
    machine.vanish()
    stopped = run.say("stop", run.url)
    assert (stopped.returncode, "died without releasing the run" in stopped.stdout) == (0, True), stopped.stdout
    removed = run.say("rm", run.url, "--yes")
    assert (removed.returncode, removed.stderr) == (0, "")


@pytest.mark.trial("A6")
def test_what_is_no_run_is_not_touched(tmp_path: Path) -> None:
    """A folder of somebody's files, and one whose marker was replaced."""
    run = new_run(tmp_path)
    (tmp_path / "run" / "log").mkdir(parents=True)
    (tmp_path / "run" / "log" / "00000001").write_text("my own")
    assert run.say("rm", run.url, "--yes").returncode != 0
    assert (tmp_path / "run" / "log" / "00000001").read_text() == "my own"
