"""Whoever asks `windfall exec` to end is obeyed: while it waits, while its disk is full, and by an exit code of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live import FAST, TRAINER, WINDFALL, Machine, Run, eventually, fast, new_run, plain_environment

pytestmark = pytest.mark.real
STOPPED = 6
LONG = {"STEPS": "100000", "STEP_S": "0.02"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return new_run(tmp_path)


def end(*machines: Machine) -> None:
    for machine in machines:
        machine.process.kill()
        machine.process.wait()


@pytest.mark.trial("B5")
@pytest.mark.parametrize("how", ["Ctrl-C", "windfall stop"])
def test_a_run_that_was_stopped_is_not_done(run: Run, how: str) -> None:
    """After a stop the exit code says neither "done" (0) nor "start the same line again" (75): a requeue loop ends."""
    machine = run.train(**LONG)
    machine.until("step 3")
    if how == "Ctrl-C":
        machine.process.send_signal(signal.SIGINT)
    else:
        assert run.say("stop", run.url).returncode == 0
    assert machine.code() == STOPPED, machine.text
    assert run.state().outcome.value == "waiting"
    assert run.state().checkpoints


@pytest.mark.trial("G10")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, STOPPED), (signal.SIGTERM, 75)])
def test_a_wait_for_the_run_ends_at_one_signal(run: Run, number: signal.Signals, code: int) -> None:
    """`exec --wait` behind a live holder obeys Ctrl-C and SIGTERM at once, and the holder trains on."""
    holder = run.train(**LONG)
    holder.until("step 3")
    waiting = run.train(options=fast("--wait"), **LONG)
    waiting.until("waiting until it releases")
    waiting.process.send_signal(number)
    assert waiting.code() == code, waiting.text
    assert holder.process.poll() is None
    end(holder)


@pytest.mark.trial("G10")
def test_the_root_of_a_machine_is_no_run(tmp_path: Path) -> None:
    """`windfall exec /` is refused in a sentence, and not at work for ever."""
    line = [*WINDFALL, "exec", *FAST, "--state", str(tmp_path / "state"), "/", "--", "true"]
    said = subprocess.run(line, capture_output=True, text=True, env=plain_environment(), timeout=30, check=False)
    assert said.returncode == 2, said.stderr
    assert said.stderr.count("\n") == 1


@pytest.mark.trial("F5")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_within_a_job_nobody_is_told_to_type_a_line(tmp_path: Path, number: signal.Signals) -> None:
    """For a node agent no message tells a user to run a command again or to press Ctrl-C."""
    said = {}
    for who in ("node agent", "user"):
        (tmp_path / who).mkdir()
        one = new_run(tmp_path / who)
        machine = one.train_managed(**LONG) if who == "node agent" else one.train(**LONG)
        machine.until("step 3")
        machine.process.send_signal(number)
        machine.code()
        said[who] = machine.text

    words = ("same command", "Ctrl-C", "same line", "only this machine")
    assert [word for word in words if word in said["node agent"]] == [], said["node agent"]
    asked = ["same command", "Ctrl-C"] if number == signal.SIGINT else ["same command"]
    assert [word for word in words[:2] if word in said["user"]] == asked, said["user"]


FILL = """
if state["step"] == 5:
    try:
        with open(os.environ["FULL"] + "/filler", "wb", buffering=0) as file:
            while True:
                file.write(bytes(512))
    except OSError:
        print("full", flush=True)
"""


@pytest.mark.trial("G6")
def test_a_full_disk_of_our_own_files_ends_no_run_and_is_deaf_to_nobody(run: Run, tmp_path: Path) -> None:
    """The state folder's disk is full: the script trains on, heartbeats go on, and Ctrl-C saves and ends the run."""
    small = tmp_path / "small"
    small.mkdir()
    unshare = ["unshare", *(["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"])]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode != 0:
        pytest.skip("no mount namespace is allowed here")
    # The pages' folder of who is root in there may be another's outside.
    mounts = f"mount -t tmpfs -o size=1m none {small} && mount -t tmpfs none /dev/shm"
    mount = [*unshare, "sh", "-c", f'{mounts} && exec "$@"', "sh"]
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    with (tmp_path / "printed").open("wb") as out:
        line = [*WINDFALL, "exec", *FAST, "--state", str(small), run.url, "--", sys.executable, str(script)]
        environment = plain_environment() | LONG | {"FULL": str(small), "AT_STEP": FILL}
        process = subprocess.Popen([*mount, *line], cwd=tmp_path, env=environment, stdout=out, stderr=out)
    machine = Machine(process, tmp_path)
    try:
        machine.until("full")
        beats = set()
        eventually(lambda: beats.add(_beat(run)) or len(beats) > 3, "heartbeats go on")
        machine.process.send_signal(signal.SIGINT)
        assert machine.code() == STOPPED, machine.text
        assert "crashed" not in machine.text
        assert machine.text.count("the store is unavailable") <= 1, machine.text
        assert run.state().checkpoints
    finally:
        end(machine)


def _beat(run: Run) -> bytes:
    (path,) = Path(run.url.removeprefix("file://")).glob("heartbeats/*")
    return path.read_bytes()
