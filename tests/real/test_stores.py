"""A whole run over real object-store protocols: code and state travel through the store alone, and it can be asked there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.conftest import azure, s3  # noqa: F401 - fixtures
from tests.real import training_plain
from tests.real.machines import PLAIN, QUICK, WINDFALL, Run, environment_of_a_machine
from tests.real.training_plain import undisturbed

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
STEPS = 120


def ask(environment: dict[str, str], *words: str) -> str:
    """Run a verb as a user elsewhere would."""
    line = [*WINDFALL, *words]
    ended = subprocess.run(
        line, env=environment_of_a_machine() | environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("scheme", ["s3", "azure"])
def test_a_run_survives_over_a_real_protocol(scheme: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Two machines are taken, the second without a word; the third has nothing but the URL, and ends with the same state."""
    environment = request.getfixturevalue(scheme)
    run = Run(tmp_path, steps=STEPS)
    run.url = f"{'az' if scheme == 'azure' else 's3'}://lab/{os.getpid()}-{scheme}"
    code = (PLAIN,)
    command = (sys.executable, Path(training_plain.__file__).name)
    with run.machine(
        *command, options=(*QUICK, "--bundle"), code=code, STEP_S=0.03, HOLD="step:25", **environment
    ) as first:
        first.until_held()
        ask(environment, "inject", run.url, "--notice", "30s")
        first.until("this machine will be preempted in")
        first.let_go()
        assert first.code() == 75, first.printed
    shutil.rmtree(first.folder)
    with run.machine(bare=True, STEP_S=0.06, **environment) as second:
        second.until_step(70)
        second.vanish()
    shutil.rmtree(second.folder)
    with run.machine(bare=True, **environment) as third:
        assert third.code() == 0
    ask(environment, "get", run.url, str(tmp_path / "result"))
    (result,) = (tmp_path / "result").iterdir()
    assert result.read_bytes() == undisturbed(STEPS)
    told = json.loads(ask(environment, "ps", run.url, "--json"))
    assert (told["state"]["outcome"], told["newest_step"], told["state"]["preemptions"]) == ("done", STEPS, 2)
    assert "trained" in ask(environment, "logs", run.url)
    assert "the same" in ask(environment, "replay", run.url)
    spent = json.loads(ask(environment, "cost", run.url, "--json"))
    assert [loss["cause"] for loss in spent["losses"]] == ["preempted-saved", "vanished"]
    assert spent["losses"][0]["steps"] == {"low": 0, "high": 0}
