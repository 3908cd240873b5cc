"""A controller with two users: no job of one reads what is another's, and no run lies where its users cannot reach it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.left import killed_at_the_end, none_left, processes_of
from tests.support.live import eventually, living, plain_environment

WINDFALL = str(Path(sys.executable).with_name("windfall"))
ATTACK = """name: attack
workdir: .
run: |
  cat {state}/token > {loot} 2>/dev/null
  cp {state}/controller.db {loot}.db
"""
QUIET = "name: quiet\nrun: echo it ran\n"


@dataclass
class Lab:
    """`windfall serve` in a folder of its own."""

    folder: Path
    process: subprocess.Popen[str]
    url: str

    @property
    def state(self) -> Path:
        return self.folder / "lab"

    def say(
        self, *words: str, token: str = "", home: str = "ada", limit_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a verb as a user of this controller, in a home of their own."""
        here = self.folder / home
        here.mkdir(exist_ok=True)
        mine = {"HOME": str(here), "XDG_STATE_HOME": str(here / "state"), "WINDFALL_CONTROLLER": self.url}
        return subprocess.run(
            [WINDFALL, *words], cwd=here, env=plain_environment() | mine | {"WINDFALL_TOKEN": token},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip

    def add(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        return self.say("serve", "--state", str(self.state), "--add-user", name, *options)

    def added(self, name: str) -> str:
        found = re.search(r"wu\.\S+", self.add(name).stdout)
        assert found is not None
        return found[0]

    @property
    def own(self) -> str:
        """The token of whoever runs the controller."""
        return (self.state / "token").read_text().strip()

    def write(self, text: str, home: str = "ada") -> str:
        here = self.folder / home
        here.mkdir(exist_ok=True)
        (here / "job.yaml").write_text(text)
        return "job.yaml"


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[Lab]:
    state = folder / "lab"
    (state / "market").mkdir(parents=True, mode=0o700)
    (state / "market" / "market.yaml").write_text("allocation_delay: 0\nidle_exit: 2\n")
    line = [WINDFALL, "serve", "--state", str(state), "--port", "0", *options]
    home = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            line,
            cwd=folder,
            env=plain_environment() | home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
        )
    try:
        eventually(lambda: (state / "controller.json").exists() or process.poll() is not None, "it serves")
        assert process.poll() is None, (folder / "serve.log").read_text()
        lab = Lab(folder, process, json.loads((state / "controller.json").read_text())["url"])
        yield lab
        release(lab)
    finally:
        with killed_at_the_end(folder):
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    none_left(folder)


def release(lab: Lab) -> None:
    """Give back what the jobs of this controller have: machines do not end with it, that is what they are for."""
    if lab.process.poll() is None:
        for line in lab.say("ps", "--json", token=lab.own).stdout.splitlines():
            lab.say("stop", "--now", json.loads(line)["job_id"], token=lab.own)
        eventually(lambda: not machines(lab), "its machines are gone")


def machines(lab: Lab) -> list[str]:
    return [line for line in processes_of(lab.folder).values() if "windfall.providers.local.machine_init" in line]


@pytest.mark.trial("G1")
@pytest.mark.real
def test_with_a_second_user_no_job_runs_as_the_controllers_own_account(tmp_path: Path) -> None:
    """Two users, and a job that copies the controller's database: it is never started; plan and run say why, with code 3."""
    with serving(tmp_path) as lab:
        lab.added("ada")
        token, loot = lab.added("eve"), tmp_path / "loot"
        # The place is the lab's own, so that nothing but the provider is in the way.
        lab.write(ATTACK.format(state=lab.state, loot=loot))

        answers = [lab.say(verb, *words, "job.yaml", token=lab.own) for verb, words in (("plan", ()), ("run", ("-y",)))]
        theirs = lab.say("plan", "job.yaml", token=token)

        assert not loot.exists()
        assert not Path(f"{loot}.db").exists()
        assert [answer.returncode for answer in (*answers, theirs)] == [3, 3, 3], answers[-1].stderr
        for answer in (*answers, theirs):
            assert "runs every job under this controller's account" in answer.stderr
        assert lab.say("ps", "--json", token=lab.own).stdout == ""


@pytest.mark.trial("G1")
@pytest.mark.real
def test_nobody_is_added_while_a_job_runs_as_the_controllers_account(tmp_path: Path) -> None:
    """While a job runs on provider local a second user is refused; once there is one, the job may not go on."""
    with serving(tmp_path) as lab:
        lab.write("name: long\nrun: sleep 600\n")
        started = lab.say("run", "-y", "-d", "--json", "job.yaml", token=lab.own)
        assert started.returncode == 0, started.stderr
        job = json.loads(started.stdout.splitlines()[-1])["job_id"]

        refused = lab.add("eve")
        assert refused.returncode == 2, refused.stdout
        assert job in refused.stderr

        stopped = lab.say("stop", "--now", job, token=lab.own)
        assert stopped.returncode == 0, stopped.stderr
        eventually(lambda: lab.add("eve").returncode == 0, "the user is added when the bill is complete")
        resumed = lab.say("resume", "-d", job, token=lab.own)
        assert resumed.returncode == 3, resumed.stdout + resumed.stderr
        assert "runs every job under this controller's account" in resumed.stderr


@pytest.mark.trial("G1")
def test_one_user_buys_of_the_local_market_under_serve(tmp_path: Path) -> None:
    """Whoever runs the controller alone goes on as before: a job of theirs is done."""
    with serving(tmp_path) as lab:
        lab.write(QUIET)
        done = lab.say("run", "-y", "job.yaml", token=lab.own)
        assert done.returncode == 0, done.stderr
        assert "it ran" in done.stdout


@pytest.mark.trial("C3")
def test_a_run_under_a_teams_controller_lies_in_the_controllers_store(tmp_path: Path) -> None:
    """With WINDFALL_CONTROLLER the store is the controller's own, not a folder of the client's disk."""
    with serving(tmp_path) as lab:
        lab.write(QUIET)
        started = lab.say("run", "-y", "-d", "--json", "job.yaml", token=lab.own)
        assert started.returncode == 0, started.stderr
        run_url = json.loads(started.stdout.splitlines()[-1])["run_url"]

        assert run_url.startswith(f"file://{lab.state}/"), "the store of whoever serves"
        assert not (tmp_path / "ada" / "state" / "windfall" / "runs").exists()


@pytest.mark.trial("C3")
def test_the_store_of_serve_is_what_jobs_get(tmp_path: Path) -> None:
    """`serve --store URL` is where runs begin that name no store."""
    with serving(tmp_path, "--store", f"file://{tmp_path}/elsewhere") as lab:
        lab.write(QUIET)
        started = lab.say("run", "-y", "-d", "--json", "job.yaml", token=lab.own)
        assert started.returncode == 0, started.stderr
        assert json.loads(started.stdout.splitlines()[-1])["run_url"].startswith(f"file://{tmp_path}/elsewhere/quiet-")


@pytest.mark.trial("C3")
def test_a_folder_of_the_clients_disk_is_refused(tmp_path: Path) -> None:
    """A job file that names a folder, handed to a team's controller: refused in a sentence, exit code 2, nothing started."""
    with serving(tmp_path) as lab:
        for store in ("file:///tmp/mine", "mine", "/tmp/mine"):
            lab.write(f"{QUIET}checkpoint: {{store: {store}}}\n")
            refused = lab.say("run", "-y", "-d", "--json", "job.yaml", token=lab.own)
            assert refused.returncode == 2, refused.stdout + refused.stderr
            assert "is a folder on this machine" in refused.stderr
        assert lab.say("ps", "--json", token=lab.own).stdout == ""


def test_an_unknown_store_is_refused_at_once(tmp_path: Path) -> None:
    """`serve --store` takes what runs can lie in, and says so otherwise."""
    line = [WINDFALL, "serve", "--state", str(tmp_path), "--port", "0", "--store", "ftp://lab/runs"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, env=plain_environment())
    assert done.returncode == 2
    assert "ftp://" in done.stderr


@pytest.mark.real
def test_a_machine_whose_controller_and_market_were_killed_ends_by_itself(tmp_path: Path) -> None:
    """kill -9 to both while a job trains: past the job's dead-man limit nothing of it runs, and nobody is billed for it."""
    with serving(tmp_path) as lab:
        lab.write("name: long\nrun: touch begun; sleep 600\ncontroller: {dead_man: 2s}\n")
        started = lab.say("run", "-y", "-d", "--json", "job.yaml", token=lab.own)
        assert started.returncode == 0, started.stderr
        machines = tmp_path / "lab" / "market" / "machines"
        eventually(lambda: any(path.name == "begun" for path in living(machines)), "the script runs")
        market = json.loads((lab.state / "market" / "daemon.json").read_text())["pid"]

        lab.process.kill()
        os.kill(market, signal.SIGKILL)

        eventually(lambda: not processes_of(tmp_path).keys() - {lab.process.pid}, "the machine has ended")
        (end,) = tmp_path.glob("lab/market/machines/*/end.json")
        assert json.loads(end.read_text())["cause"] == "stopped"
