"""Stopping a script that will not save: the wait has a bound that is told, and `--now` ends it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.conftest import User

REFUSES = """
import time
import windfall as wf

wf.last()
while True:
    time.sleep(0.05)
    wf.step()
"""


def _until(condition: Callable[[], bool], limit_s: float = 90.0) -> bool:
    until = time.monotonic() + limit_s
    while not condition() and time.monotonic() < until:
        time.sleep(0.2)
    return condition()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.trial("B3")
def test_stop_says_how_long_it_waits_and_now_ends_it(user: User, tmp_path: Path) -> None:
    """`windfall stop` of a script that never saves tells the bound and `--now`, and a second stop with it ends the job."""
    (user.home / "train.py").write_text(REFUSES)
    (user.home / "job.yaml").write_text("run: python train.py\nworkdir: .\n")
    user.variables = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    assert user.say("run", "-d", "-y", "job.yaml", cwd=user.home).returncode == 0

    def job() -> dict[str, object]:
        told = user.say("ps", "--json", cwd=user.home)
        assert told.stdout, told.stderr
        return dict(json.loads(told.stdout.splitlines()[0]))

    assert _until(lambda: "1 machine training" in str(job())), str(job())
    job_id, said = str(job()["job_id"]), tmp_path / "said"
    argv = (sys.executable, "-m", "windfall.cli.main", "stop", job_id)
    with said.open("w") as out:
        stopping = subprocess.Popen(argv, cwd=user.home, env=user.environment(), stdout=out, stderr=out)
    try:
        assert _until(lambda: "up to 630 s" in said.read_text(), 20.0), said.read_text()
        assert "--now" in said.read_text()
        assert user.say("stop", job_id, "--now", cwd=user.home).returncode == 0
        assert stopping.wait(60.0) == 0
    finally:
        stopping.kill()
        stopping.wait()
    assert "stopped after" in said.read_text()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.trial("B3")
def test_max_duration_ends_a_script_that_never_saves(user: User) -> None:
    """At `max_duration` the machine is given back although the script ignores each request for a save."""
    (user.home / "train.py").write_text(REFUSES)
    (user.home / "job.yaml").write_text("run: python train.py\nworkdir: .\nmax_duration: 30s\n")
    user.variables = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    try:
        told = user.say("run", "-y", "job.yaml", cwd=user.home, limit_s=150.0)
    except subprocess.TimeoutExpired:
        pytest.fail("the job still runs two minutes after its max_duration")

    assert told.returncode == 4, told.stderr
    assert "stopped at max_duration (30 s)" in told.stdout + told.stderr
