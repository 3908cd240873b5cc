"""A machine that is taken takes everything with it: its processes in any session, and its disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.real import training_plain
from tests.real.machines import PLAIN, QUICK, Run, descendants, marked, wait_for, with_path

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "train.py"
BUNDLE = (*QUICK, "--bundle")
# Helpers in sessions of their own, orphans of orphans, deaf to SIGTERM and SIGHUP; then the training itself.
SPREADING = """
import os, runpy, signal, subprocess, sys
for depth in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            subprocess.Popen(["sleep", "1000"], start_new_session=True).wait()
        os._exit(0)
runpy.run_path(os.path.join(os.path.dirname(__file__), "training_plain.py"), run_name="__main__")
"""


@pytest.mark.real
@pytest.mark.parametrize("isolation", ["auto", "subreaper"])
def test_nothing_of_a_lost_machine_lives_on(isolation: str, tmp_path: Path) -> None:
    """Grandchildren in sessions of their own die with the supervisor, and the next machine has nothing but the URL."""
    run = Run(tmp_path, 50)
    spreading = tmp_path / "spreading.py"
    spreading.write_text(SPREADING)
    mark = f"windfall-{os.getpid()}-{isolation}"
    code = (spreading, PLAIN)
    with run.machine(
        sys.executable,
        "spreading.py",
        options=(*BUNDLE, "--isolation", isolation),
        code=code,
        HOLD="step:25",
        STEP_S=0.02,
        MARK=mark,
    ) as lost:
        lost.until_held()
        wait_for(lambda: run.committed_step() >= 10, "a commit of step 10")
        assert len(marked("MARK", mark)) >= 3 + 3 + 2
        lost.process.kill()
        lost.process.wait()
        wait_for(lambda: not marked("MARK", mark), "nothing of the machine lives", 10.0)
    saved = run.committed_step()
    assert saved >= 10
    shutil.rmtree(lost.folder)
    shutil.rmtree(tmp_path / "machine-1-state")
    spreading.unlink()
    with run.machine(bare=True) as heir:
        assert heir.code() == 0, heir.printed
    assert heir.starts() == [(2, saved)]
    assert (heir.folder / "spreading.py").exists()
    run.check_done()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_torchrun_gives_each_rank_a_session_and_all_die(tmp_path: Path) -> None:
    """Two ranks under torchrun: killed with the supervisor, taken up from the store, and the states are the same."""
    pytest.importorskip("torch")
    run = Run(tmp_path, 60)
    ranks = {
        "RANKS": 2,
        "MEET": 4,
        "MEETINGS": tmp_path / "meetings",
        "PYTHONPATH": with_path(Path(__file__).parents[2]),
    }
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = (*torchrun, "-m", "tests.real.training_ranks")
    mark = f"windfall-torchrun-{os.getpid()}"
    with run.machine(*command, **ranks, MARK=mark) as lost:
        lost.until_step(25)
        sessions = {os.getsid(pid) for pid in descendants(lost.supervisor)}
        assert len(sessions) >= 3
        lost.process.kill()
        lost.process.wait()
        wait_for(lambda: not marked("MARK", mark), "nothing of the machine lives", 10.0)
    shutil.rmtree(lost.folder)
    with run.machine(*command, **ranks) as noticed:
        noticed.until_step(run.committed_step() + 5)
        os.kill(noticed.supervisor, signal.SIGTERM)
        assert noticed.code() == 75, noticed.printed
    saved = run.committed_step()
    with run.machine(*command, **ranks) as last:
        assert last.code() == 0, last.printed
    assert {step for _, step in last.starts()} == {saved}
    run.check()
    for rank in (0, 1):
        assert run.newest(rank) == training_plain.undisturbed(60, rank)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_real_model_survives_three_machines(tmp_path: Path) -> None:
    """The demonstration's GPT: lost without notice, with notice and by SIGTERM; every weight and moment is the same."""
    torch = pytest.importorskip("torch")
    run = Run(tmp_path, 0)
    steps = "160"
    command = (sys.executable, "train.py", "--steps", steps, "--print-every", "1")
    options = (*QUICK[:2], *QUICK[4:], "--policy", "every 20 steps", "--bundle")
    with run.machine(*command, options=options, code=(DEMO,)) as first:
        first.until_step(45)
        first.vanish()
    shutil.rmtree(first.folder)
    for kind in ("inject", "sigterm"):
        base = run.committed_step()
        with run.machine(bare=True, options=options[:-1]) as machine:
            machine.until_step(base + 10)
            if kind == "inject":
                run.inject("10s")
            else:
                os.kill(machine.supervisor, signal.SIGTERM)
            assert machine.code() == 75, machine.printed
        assert run.committed_step() == machine.step(), "an emergency save loses no step"
        shutil.rmtree(machine.folder)
    with run.machine(bare=True, options=options[:-1]) as last:
        assert last.code() == 0, last.printed
    run.check()
    plain = Run(tmp_path / "undisturbed", 0)
    with plain.machine(*command, options=(*options[:3], "2s", "--policy", "never"), code=(DEMO,)) as alone:
        assert alone.code() == 0, alone.printed
    ours, theirs = (tmp_path / name for name in ("ours.pt", "theirs.pt"))
    ours.write_bytes(run.newest())
    theirs.write_bytes(plain.newest())
    assert json.dumps(_digests(torch, ours)) == json.dumps(_digests(torch, theirs))


def _digests(torch: object, path: Path) -> dict[str, str]:
    """A digest of every tensor and number in a checkpoint, by its place."""
    import hashlib

    found: dict[str, str] = {}

    def walk(place: str, value: object) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(f"{place}/{name}", inner)
        elif isinstance(value, (list, tuple)):
            for number, inner in enumerate(value):
                walk(f"{place}/{number}", inner)
        elif isinstance(value, torch.Tensor):  # type: ignore[attr-defined]
            found[place] = hashlib.sha256(value.numpy().tobytes()).hexdigest()
        else:
            found[place] = repr(value)

    walk("", torch.load(path))  # type: ignore[attr-defined]
    return found
