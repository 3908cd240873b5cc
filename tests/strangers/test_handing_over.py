"""What scripts hand over, said in words that every version knows: exit codes, files of a folder store, `--json`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

WINDFALL = (sys.executable, "-m", "windfall.cli.main")
PATIENCE_S = 60.0

LAST_FILE = """
import os, time, windfall as wf
os.makedirs("ck", exist_ok=True); wf.last()
for i in range(1, 101):
    time.sleep(0.01)
    if wf.step() or i % 100 == 0:
        p = f"ck/{i}.pt"; open(p, "wb").write(os.urandom(4_000_000)); wf.backup(p)
open("final.pt", "wb").write(os.urandom(1_500_000)); wf.backup("final.pt"); time.sleep(3)
"""

RANKS = """
import os, subprocess, sys, time
if "RANK" not in os.environ:
    count = os.environ["RANKS"]
    started = [subprocess.Popen([sys.executable, __file__],
               env={**os.environ, "RANK": str(n), "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count})
               for n in range(int(count))]
    sys.exit(max(abs(one.wait()) for one in started))
import windfall as wf
rank = os.environ["RANK"]
found = wf.last()
"""

NEWEST_ONLY = (
    RANKS
    + """
for step in range(1, 9):
    time.sleep(0.1)
    wf.step(step)
    if step == 5:
        path = f"rank{rank}-{step}.pt"
        open(path, "wb").write(os.urandom(1_500_000))
        wf.backup(path)
        time.sleep(1.0)
        os.unlink(path)
"""
)

COUNTED = (
    RANKS
    + """
step = int(open(found).read()) if found else 0
log = open(f"steps-{rank}", "a", buffering=1)
while step < 100_000:
    time.sleep(0.05)
    step += 1
    log.write(f"{step}\\n")
    if wf.step(step):
        path = f"rank{rank}-{step}.txt"
        open(path, "w").write(str(step).ljust(300_000))
        time.sleep(1.5)  # a large state: ranks wait for each other as long as their own save took
        wf.backup(path)
"""
)

BIG_SAVE = """
import os, time, windfall as wf
wf.last()
step = 0
while step < 100_000:
    time.sleep(0.02)
    step += 1
    open("steps", "a").write(f"{step}\\n")
    if wf.step(step):
        open(f"{step}.pt", "wb").write(os.urandom(20_000_000))
        wf.backup(f"{step}.pt")
"""

MANY_SAVES = """
import os, time, windfall as wf
wf.last()
for step in range(1, 61):
    time.sleep(0.02)
    if wf.step(step):
        open(f"{step}.pt", "wb").write(os.urandom(10_000))
        wf.backup(f"{step}.pt")
        time.sleep(0.2)
"""

SAYS = """
import os, time, windfall as wf
wf.last()
os.makedirs("folder", exist_ok=True)
open("folder/weights", "w").write("1")
def message(line):
    name = os.path.join(os.environ["WINDFALL_SESSION"], "rank-0.messages")
    with open(name, "ab") as file:
        file.write(line + b"\\n")
    words = wf.step.__self__._words
    words[12] += 1
for step in range(1, 41):
    time.sleep(0.02)
    wf.step(step)
    if step == 10:
        {said}
    if step == 40:
        open("good.pt", "w").write("good")
        wf.backup("good.pt")
print("the script has ended", flush=True)
"""


def execute(
    folder: Path, script: str, *options: str, url: str = "run", **environment: str
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start `windfall exec` of a script in a folder of its own."""
    here = folder / "machine"
    here.mkdir(exist_ok=True)
    (here / "train.py").write_text(script)
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("WINDFALL_", "AWS_"))}
    command = [*WINDFALL, "exec", "--provider", "local", "--lease", "4s", *options, str(folder / url), "--"]
    with (folder / "printed").open("ab") as out:
        process = subprocess.Popen(
            [*command, sys.executable, str(here / "train.py")],
            cwd=here,
            env={**mine, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process, here


def ended(process: subprocess.Popen[bytes], folder: Path, limit_s: float = PATIENCE_S) -> int:
    """Wait for its end; a process that does not end is killed, and its code says so."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(limit_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return -9


def printed(folder: Path) -> str:
    return (folder / "printed").read_text(errors="replace")


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.01)


def say(*arguments: str) -> list[dict[str, object]]:
    """What a verb prints with --json, one object a line."""
    done = subprocess.run([*WINDFALL, *arguments, "--json"], capture_output=True, text=True, check=False)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def stored(folder: Path, path: Path) -> bool:
    """Whether the store holds a file's bytes."""
    wanted = hashlib.sha256(path.read_bytes()).digest()
    files = (file for file in (folder / "run").rglob("*") if file.is_file())
    return any(hashlib.sha256(file.read_bytes()).digest() == wanted for file in files)


@pytest.mark.trial("A1")
def test_a_file_behind_the_loop_and_the_last_checkpoint_are_both_stored(tmp_path: Path) -> None:
    """A loop that saves at its last step, and one more file behind it: exit 0, and the store has both."""
    process, here = execute(tmp_path, LAST_FILE, "--uplink", "3MB/s")
    assert ended(process, tmp_path) == 0, printed(tmp_path)
    assert stored(tmp_path, here / "final.pt"), printed(tmp_path)
    assert stored(tmp_path, here / "ck" / "100.pt"), printed(tmp_path)


@pytest.mark.trial("A4")
@pytest.mark.parametrize("ranks", ["2", "4"])
def test_what_several_ranks_hand_over_may_be_deleted_by_them(ranks: str, tmp_path: Path) -> None:
    """Each rank deletes its file a second after it handed it over, while the uplink is still busy: it is stored."""
    process, _ = execute(tmp_path, NEWEST_ONLY, "--uplink", "1MB/s", "--policy", "never", RANKS=ranks)
    assert ended(process, tmp_path) == 0, printed(tmp_path)
    assert [checkpoint["step"] for checkpoint in say("checkpoints", str(tmp_path / "run"))] == [5], printed(tmp_path)


@pytest.mark.trial("A5")
def test_a_notice_before_the_first_save_leaves_time_for_the_release(tmp_path: Path) -> None:
    """The first save ever is far too large for the notice: exit 75 before the end, released, and told as preempted."""
    process, here = execute(tmp_path, BIG_SAVE, "--uplink", "500kB/s", "--grace", "4s")
    until((here / "steps").exists, "the first step")
    process.send_signal(signal.SIGTERM)
    assert ended(process, tmp_path, 4.0) == 75, printed(tmp_path)
    told = say("ps", str(tmp_path / "run"))[0]["state"]
    assert isinstance(told, dict)
    assert told["outcome"] == "waiting"
    assert [loss["cause"] for loss in told["losses"]] == ["preempted-unsaved"]


@pytest.mark.trial("A6")
def test_saves_against_losses_go_when_the_run_is_done(tmp_path: Path) -> None:
    """A dozen insurance saves in a run of seconds: when it is done, two are left, in the list and on the disk."""
    process, _ = execute(tmp_path, MANY_SAVES, "--policy", "every 5 steps")
    assert ended(process, tmp_path) == 0, printed(tmp_path)
    assert len(say("checkpoints", str(tmp_path / "run"))) == 2
    sizes = [file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert sum(size == 10_000 for size in sizes) == 2


@pytest.mark.trial("A7")
@pytest.mark.parametrize("ranks", ["1", "2", "4"])
def test_no_step_is_done_behind_a_stored_emergency_save(ranks: str, tmp_path: Path) -> None:
    """Every rank hands over its part of the emergency save, and computes nothing that would be computed again."""
    process, here = execute(tmp_path, COUNTED, "--grace", "20s", "--uplink", "1MB/s", RANKS=ranks)
    until(lambda: all((here / f"steps-{rank}").exists() for rank in range(int(ranks))), "the first step")
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    assert ended(process, tmp_path) == 75, printed(tmp_path)
    newest = max(int(str(checkpoint["step"])) for checkpoint in say("checkpoints", str(tmp_path / "run")))
    done = [int((here / f"steps-{rank}").read_text().split()[-1]) for rank in range(int(ranks))]
    assert done == [newest] * int(ranks), printed(tmp_path)


@pytest.mark.trial("G7")
@pytest.mark.parametrize(
    "said",
    [
        'os.path.lexists("folder/gone") or os.symlink("nowhere", "folder/gone"); wf.backup("folder")',
        'wf.backup("with\\0nul")',
        "wf.report(loss=10**400)",
        'wf.backup("")',
        'message(b"{")',
        'message(b"[1]")',
        'message(b\'{"type": "phase", "name": "tea", "duration_ns": 1}\')',
        'message(b\'{"type": "backup", "step": -1, "request": "x", "path": 7}\')',
        "wf.step.__self__._words[7] = 99",
    ],
    ids=["dangling", "nul", "huge", "empty", "half", "list", "phase", "backup", "page"],
)
def test_what_a_script_says_costs_no_later_checkpoint(said: str, tmp_path: Path) -> None:
    """What cannot be understood is not: the script runs once to its end, and its later checkpoint is stored whole."""
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "large").write_bytes(b"not a checkpoint")
    process, _ = execute(tmp_path, SAYS.replace("{said}", said), "--policy", "never")
    ended(process, tmp_path)
    assert printed(tmp_path).count("the script has ended") == 1, printed(tmp_path)
    assert "Traceback" not in printed(tmp_path)
    assert [checkpoint["step"] for checkpoint in say("checkpoints", str(tmp_path / "run"))] == [40], printed(tmp_path)
    assert not stored(tmp_path, tmp_path / "machine" / "large")
