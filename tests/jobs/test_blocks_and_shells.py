"""What a job file says is read by somebody, and what runs under Windfall finds the `windfall` that started it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.jobs.conftest import User


@pytest.mark.trial("B2")
@pytest.mark.parametrize("provider", ["kubernetes", "local", "aws"])
def test_a_block_that_no_provider_reads_is_refused_by_its_line(provider: str, user: User) -> None:
    """A block for a provider would be ignored: the plan refuses it, naming line and the providers that there are."""
    (user.home / "job.yaml").write_text(f"run: python train.py\n{provider}: {{account: lab}}\n")

    told = user.say("plan", "job.yaml", "--json", cwd=user.home)

    assert told.returncode == 2, "a mistake in the file, nothing was started"
    assert "job.yaml:2:" in told.stderr
    says = "local.account is an unknown key" if provider == "local" else "supported providers: local"
    assert says in told.stderr, "it says which providers there are, or that this one has no such key"
    assert not (user.state / "controller.db").exists()


@pytest.mark.real
@pytest.mark.trial("B7")
def test_a_shell_script_finds_the_windfall_that_started_it(user: User) -> None:
    """No environment is activated: `windfall backup` works in a shell script, and every other program is the one of before."""
    script = "command -v windfall > found; command -v sh >> found; echo 7 > s-7; windfall backup --step 7 s-7; echo $? > code"
    (user.home / "train.sh").write_text(script)

    told = user.say("exec", "runs/a", "--", "sh", "train.sh", cwd=user.home)

    assert told.returncode == 0, told.stderr
    assert (user.home / "code").read_text().strip() == "0", told.stderr
    windfall, shell = (Path(line) for line in (user.home / "found").read_text().split())
    assert shell.parent in {Path("/usr/local/bin"), Path("/usr/bin"), Path("/bin")}
    checkpoints = user.say("checkpoints", "runs/a", "--json", cwd=user.home)
    assert [json.loads(line)["step"] for line in checkpoints.stdout.splitlines()] == [7], checkpoints.stdout
    assert windfall.name == "windfall"
