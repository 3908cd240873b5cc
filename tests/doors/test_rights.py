"""What a controller may is not what its users' jobs may."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import shutil
import signal
import sys
from pathlib import Path

import httpx
import pytest

from tests.control.fake import job
from tests.control.house import a_job
from tests.doors.controllers import serving, windfall
from windfall import codec
from windfall.jobs import Job
from windfall.structs import replace

ME = pwd.getpwuid(os.getuid()).pw_name
LENT = {
    "AWS_SECRET_ACCESS_KEY": "canary-1",
    "GOOGLE_SERVICE_ACCOUNT_KEY": "canary-2",
    "AZURE_STORAGE_ACCOUNT_KEY": "canary-3",
}
JOBFILE = """
name: tiny
run: |
  {python} -c "import os; open('{out}/run', 'w').write(repr(dict(os.environ)))"
setup: env > {out}/setup
secrets: [AWS_SESSION_TOKEN]
work: {{steps: 1}}
"""


@pytest.mark.trial("G12")
def test_a_job_does_not_find_the_controllers_keys(tmp_path: Path) -> None:
    """Neither its setup nor its script; a key that the user gives the job by name it has."""
    (tmp_path / "job.yaml").write_text(JOBFILE.format(python=shlex.quote(sys.executable), out=tmp_path))
    env = {
        "XDG_STATE_HOME": str(tmp_path / "state"), "WINDFALL_CONTROLLER": "", "AWS_SESSION_TOKEN": "the-users-own", **LENT,
    }  # fmt: skip
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        done = windfall("run", "-y", "job.yaml", timeout_s=100, **env)
    finally:
        os.chdir(here)
        end_of(tmp_path / "state" / "windfall")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("setup", "run"):
        found = (tmp_path / name).read_text()
        assert "PATH" in found
        assert "canary" not in found
        assert "the-users-own" in found


def end_of(state: Path) -> None:
    """End the embedded controller, and with its folder the market."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        os.kill(int(json.loads((state / "controller.json").read_text())["pid"]), signal.SIGKILL)
    shutil.rmtree(state / "market", ignore_errors=True)


def submitted(state: Path, one: Job) -> tuple[int, str]:
    """What a controller says to a job."""
    assert windfall("serve", "--state", str(state), "--users").returncode == 0
    added = windfall("serve", "--state", str(state), "--add-user", "ada").stdout.split()
    token = next(word for word in added if word.startswith("wu."))
    with serving(state) as controller:
        answer = httpx.post(
            f"{controller.url}/v1/jobs", json={"job": codec.encode(one)}, headers={"authorization": f"Bearer {token}"},
            timeout=60, trust_env=False,
        )  # fmt: skip
        return answer.status_code, answer.text


@pytest.mark.trial("G12")
def test_a_users_run_is_not_written_into_folders_of_the_controllers_machine(tmp_path: Path) -> None:
    """Whoever is no admin there has no folder there; nothing is written before that is said."""
    run = tmp_path / "elsewhere"
    status, told = submitted(tmp_path / "state", replace(job("gpt-1", "ada"), run_url=f"file://{run}"))
    assert status == 400, told
    assert "file://" in told
    assert not run.exists()


def test_nobodys_run_lies_among_the_controllers_own_files(tmp_path: Path) -> None:
    """Not even an admin's: journal, tokens and market are there."""
    from windfall.errors import Misuse
    from windfall.storage.database import UserEntry
    from windfall.wiring_control import _refuse_place

    users = lambda: (UserEntry("ada", "", True),)  # noqa: E731
    (tmp_path / "link").symlink_to(tmp_path / "state")
    for place in ("state", "state/market", "state/x/../y", "link/market", "", "state/runs"):
        with pytest.raises(Misuse, match="own folder"):
            _refuse_place(_at(f"file://{tmp_path / place}"), tmp_path / "state", users)
    for place in (f"file://{tmp_path}/state/runs/gpt-1", f"file://{tmp_path}/else", "s3://lab/x"):
        _refuse_place(_at(place), tmp_path / "state", users)


def _at(url: str) -> Job:
    return replace(a_job(), run_url=url)
