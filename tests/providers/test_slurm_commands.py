"""How Slurm's commands are run: here, through a login node, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windfall.control.planner import NEARBY_PACE, pace_of
from windfall.errors import ProviderAbsent, ProviderDenied, ProviderUnreachable
from windfall.jobs import Job, Resources
from windfall.linux.clock import SystemClock
from windfall.providers.slurm.slurm_commands import SiteCommands, answer_of
from windfall.providers.slurm.slurm_provider import SlurmProvider
from windfall.providers.slurm.slurm_settings import SlurmSettings

SECRET = "hush-hush-7741"


def test_missing_commands_are_one_sentence() -> None:
    """It names the command and what to do; a job that does not name Slurm never hears of it."""
    commands = SiteCommands("", {"PATH": "/nonexistent"})

    with pytest.raises(
        ProviderAbsent, match="squeue was not found on this host: put Slurm's commands on PATH, or name a"
    ):
        answer_of(commands, ("squeue",))


def _ssh(folder: Path, script: str) -> SiteCommands:
    (folder / "ssh").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "ssh").chmod(0o755)
    return SiteCommands("me@login", {"PATH": f"{folder}:{os.environ['PATH']}"})


def test_a_refused_key_is_one_sentence(tmp_path: Path) -> None:
    """Nothing was carried out, and the user learns which line to try."""
    commands = _ssh(tmp_path, "echo 'me@login: Permission denied (publickey).' >&2; exit 255")

    with pytest.raises(ProviderDenied, match=r"ssh me@login refused this user's key .*make `ssh me@login true` work"):
        answer_of(commands, ("squeue",))


def test_a_login_node_that_does_not_answer_may_have_acted(tmp_path: Path) -> None:
    """A broken line is no refusal."""
    commands = _ssh(tmp_path, "echo 'ssh: connect to host login port 22: Connection timed out' >&2; exit 255")

    with pytest.raises(ProviderUnreachable, match=r"ssh me@login failed: .*timed out"):
        answer_of(commands, ("squeue",))


def test_commands_reach_a_login_node_as_they_are(tmp_path: Path) -> None:
    """Words with spaces and quotes arrive whole, and times are asked for as seconds."""
    commands = _ssh(tmp_path, 'shift 6; eval "$1"')

    assert commands.run(("printf", "[%s]", "a b", "it's", "$HOME")).output == "[a b][it's][$HOME]"
    assert commands.run(("sh", "-c", "echo $SLURM_TIME_FORMAT; cat"), b"data").output == "%s\ndata"


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    """In bounded time, as an answer that is missing."""
    commands = SiteCommands("", dict(os.environ), timeout_s=0.2)

    with pytest.raises(ProviderUnreachable, match=r"sleep on this host did not answer within 0\.2 s"):
        commands.run(("sleep", "9"))


def test_a_users_secrets_are_no_part_of_a_commands_environment() -> None:
    """`sbatch` hands its environment to the job, which would show them to whoever reads it."""
    commands = SiteCommands("", dict(os.environ) | {"AWS_SECRET_ACCESS_KEY": SECRET})

    assert SECRET not in commands.run(("env",)).output


@pytest.mark.parametrize(
    ("login", "with_slurm", "quick"), [("", False, True), ("", True, False), ("me@login.example.org", False, False)]
)
def test_where_there_is_no_slurm_it_slows_nobody_down(
    tmp_path: Path, login: str, with_slurm: bool, quick: bool
) -> None:
    """Jobs that could go to any provider are polled at the pace of those that there are."""
    if with_slurm:
        (tmp_path / "squeue").write_text("#!/bin/sh\n")
        (tmp_path / "squeue").chmod(0o755)
    commands = SiteCommands(login, {"PATH": str(tmp_path)})
    provider = SlurmProvider(tmp_path, SlurmSettings(folder=tmp_path, login=login), SystemClock(), commands)
    anywhere = Job("job", "job", "ada", "memory://run", ("train",), (Resources(),))

    assert (pace_of(anywhere, {"slurm": provider}) == NEARBY_PACE) == quick
