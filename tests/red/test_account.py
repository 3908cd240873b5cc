"""In the words of before: an account that gives lower bounds as numbers, training as waiting, a step too few.

Black box: `windfall exec` is killed once, the same line is started again, and `windfall cost --json` is compared with what
the script wrote down itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

WINDFALL = (sys.executable, "-m", "windfall.cli.main")
PATIENCE_S = 120.0
SCRIPT = """
import os, time
log = os.open(os.environ["STEPS_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(log, f"began 0 {time.time()}\\n".encode())
import windfall as wf
found = wf.last()
for step in range(int(open(found).read()) if found else 0, 150):
    time.sleep(0.02)
    os.write(log, f"done {step + 1} {time.time()}\\n".encode())
    if wf.step() or step == 149:
        path = f"{step + 1}-{os.getpid()}.txt"
        open(path, "w").write(str(step + 1))
        wf.backup(path)
"""
FAILING = SCRIPT.replace("    if wf.step()", "    if step == 40 and len(open(os.environ['STEPS_LOG']).readlines()) < 60:\n"
                         "        raise SystemExit(3)\n    if wf.step()")  # fmt: skip
MUTE = "import time; time.sleep(1.5)"


def started(folder: Path, script: str) -> subprocess.Popen[bytes]:
    """Start the line."""
    (folder / "train.py").write_text(script)
    environment = {**os.environ, "STEPS_LOG": str(folder / "steps.log"), "XDG_STATE_HOME": str(folder / "state")}
    line = [*WINDFALL, "exec", "--provider", "local", "--policy", "never", str(folder / "run")]
    with (folder / "printed").open("ab") as out:
        return subprocess.Popen(
            [*line, "--", sys.executable, str(folder / "train.py")],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip


def cost(folder: Path) -> dict[str, Any]:
    """The account."""
    done = subprocess.run(
        [*WINDFALL, "cost", str(folder / "run"), "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def low_high(value: Any) -> tuple[float, float]:
    """A range, or a number that is claimed to be exact."""
    return (value["low"], value["high"]) if isinstance(value, dict) else (value, value)


def lines(folder: Path) -> list[tuple[str, int, float]]:
    """What the script wrote down."""
    log = folder / "steps.log"
    said = (line.split() for line in log.read_text().splitlines()) if log.exists() else ()
    return [(what, int(step), float(at)) for what, step, at in said]


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that was killed at its sixtieth step, and the moment of the kill."""
    folder = tmp_path_factory.mktemp("lost")
    process = started(folder, SCRIPT)
    end = time.monotonic() + PATIENCE_S
    while len(lines(folder)) < 61:
        assert time.monotonic() < end, (folder / "printed").read_text()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed_at = time.time()
    time.sleep(1.0)
    assert started(folder, SCRIPT).wait(PATIENCE_S) == 0, (folder / "printed").read_text()
    return folder, killed_at


@pytest.mark.real
@pytest.mark.trial("D1")
def test_steps_computed_again_are_those_of_the_script(lost: tuple[Path, float]) -> None:
    """The rows of its last seconds never arrived: it is known all the same, or a range."""
    steps = [step for what, step, _ in lines(lost[0]) if what == "done"]
    again = len(steps) - len(set(steps))
    low, high = low_high(cost(lost[0])["steps_redone"])
    assert low - 1 <= again <= high + 1, f"{low} to {high} steps computed again; the script's own log has {again}"


@pytest.mark.real
@pytest.mark.trial("D2")
def test_waiting_holds_no_training(lost: tuple[Path, float]) -> None:
    """Before the kill the machine trained: waiting is what lies between it and the next machine's taking the run."""
    folder, killed_at = lost
    began_at = [at for what, _, at in lines(folder) if what == "began"][1]
    waited_s = cost(folder)["spent"]["waiting_s"]
    assert waited_s <= began_at - killed_at + 0.25, (
        f"{waited_s:.2f} s of {began_at - killed_at:.2f} s without a machine"
    )


@pytest.mark.real
@pytest.mark.trial("D3")
def test_nothing_is_left_to_go_when_a_run_has_finished(tmp_path: Path) -> None:
    """The loss of a finished run was made up to the last step."""
    assert started(tmp_path, FAILING).wait(PATIENCE_S) == 0
    (loss,) = cost(tmp_path)["losses"]
    low, _ = low_high(loss["steps"])
    assert loss["redone"] >= low > 0, f"{low - loss['redone']} to go of {low}"


@pytest.mark.real
@pytest.mark.trial("B4")
def test_a_script_that_never_calls_windfall_is_not_idle(tmp_path: Path) -> None:
    """Its time is training of unknown progress, not a start: goodput is not nothing."""
    assert started(tmp_path, MUTE).wait(PATIENCE_S) == 0
    _, high = low_high(cost(tmp_path)["goodput"])
    assert high > 0.5


@pytest.mark.trial("E4")
def test_a_table_with_a_few_bad_rows_is_read(tmp_path: Path) -> None:
    """One empty stamp among a hundred lives says nothing against the others."""
    rows = [f"n1-highcpu-2,2026-01-{1 + n // 24:02d}T{n % 24:02d}:00:00Z,3600,1" for n in range(100)]
    rows[9] = "n1-highcpu-2,,3600,1"
    (tmp_path / "lives.csv").write_text("\n".join(["machine_type,began_utc,lifetime_s,preempted", *rows]) + "\n")
    line = [*WINDFALL, "lab", "traces", "inspect", str(tmp_path / "lives.csv"), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["events"] == 99


PARTLY = """
import time, windfall as wf
wf.last()
for step in range(150):
    time.sleep(0.02)
    wf.step()
    if step == 59:
        open("60.txt", "w").write("60")
        wf.backup("60.txt")
"""


@pytest.mark.real
@pytest.mark.trial("D4")
def test_a_finished_job_shows_its_last_step(tmp_path: Path) -> None:
    """A hundred and fifty steps were computed; that sixty of them are stored is another number."""
    (tmp_path / "train.py").write_text(PARTLY)
    (tmp_path / "job.yaml").write_text(
        f"name: partly\nworkdir: .\nrun: {sys.executable} train.py\nwork: {{steps: 150}}\n"
    )
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}

    def say(*words: str) -> str:
        done = subprocess.run(
            [*WINDFALL, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    say("run", "-y", "job.yaml")
    assert json.loads(say("ps", "partly", "--json"))["details"]["step"] == 150
