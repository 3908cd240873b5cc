"""Pains of others: work that was lost although it need not have been."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.live import Run, eventually, fast, load, new_run, undisturbed
from windfall.events import CheckpointCommitted, NoticeReceived, ShardHandedOver
from windfall.terms import Cause, SaveKind, Step

pytestmark = pytest.mark.real
NO_INSURANCE = fast("--policy", "never")


def resumed_at(printed: str) -> int:
    """The step at which a machine went on."""
    (step,) = re.findall(r"^resumed at (\d+)$", printed, re.MULTILINE)
    return int(step)


def last_step(printed: str) -> int:
    return max(int(step) for step in re.findall(r"^step (\d+)$", printed, re.MULTILINE))


def test_a_preemption_with_a_known_deadline_throws_a_whole_interval_away(run: Run, tmp_path: Path) -> None:
    """Not here: with no save planned for thousands of steps, the notice alone leads to a save of the step under way."""
    first = run.train(STEPS="5000", options=NO_INSURANCE)
    first.until("step 40")
    first.process.terminate()
    assert first.code() == 75, first.text
    (checkpoint,) = run.state().checkpoints
    steps = checkpoint.step + 20
    second = run.train(STEPS=str(steps))

    assert second.code() == 0, second.text
    assert (checkpoint.kind, run.state().losses[0].cause) == (SaveKind.EMERGENCY, Cause.PREEMPTED_SAVED)
    assert last_step(first.text) - checkpoint.step <= 20, "at most what ran on while the upload was under way"
    assert resumed_at(second.text) == checkpoint.step
    assert undisturbed(tmp_path, steps) in second.text


def test_killed_while_saving_leaves_a_wreck_that_blocks_the_resume(run: Run, tmp_path: Path) -> None:
    """Not here: half a checkpoint is never a checkpoint; the next machine goes on from the whole one before."""
    half = """
if state["step"] == 12:
    open("state-half.json", "w").write('{"step": 12, "wei')
    wf.report(saving=1)
    print("half saved", flush=True)
    time.sleep(1000)
"""
    first = run.train(STEPS="30", EVERY="5", AT_STEP=half, options=NO_INSURANCE)
    first.until("half saved")
    eventually(lambda: any(checkpoint.step == 10 for checkpoint in run.state().checkpoints), "step 10 is committed")
    first.vanish()
    second = run.train(STEPS="30")

    assert second.code() == 0, second.text
    assert resumed_at(second.text) == 10
    assert undisturbed(tmp_path, 30) in second.text


def test_saving_inside_the_signal_handler_never_finishes(run: Run, tmp_path: Path) -> None:
    """Not here: SIGTERM in the middle of a step sets a flag; the save comes at the step's end and needs its lock."""
    locked = """
import threading
lock, plain_save, plain_sleep = threading.Lock(), save, time.sleep
def sleep(seconds):
    with lock:
        if state["step"] == 5:
            print("inside", flush=True)
            for _ in range(200): plain_sleep(0.01)
        plain_sleep(seconds)
def save():
    with lock:
        return plain_save()
time.sleep = sleep
print("pid", os.getpid(), flush=True)
"""
    first = run.train(STEPS="5000", AT_START=locked, options=(*NO_INSURANCE, "--isolation", "subreaper"))
    first.until("inside")
    script = int(re.findall(r"^pid (\d+)$", first.text, re.MULTILINE)[0])
    os.kill(script, signal.SIGTERM)
    first.process.terminate()

    assert first.code() == 75, first.text
    assert run.state().losses[-1].cause is Cause.PREEMPTED_SAVED
    assert run.state().checkpoints[-1].step >= 6


@pytest.mark.parametrize("phase", ["compile", "evaluation"])
def test_a_signal_during_compile_or_evaluation_is_never_looked_at(run: Run, phase: str) -> None:
    """Not here: a notice in a phase that cannot be interrupted leads to a save at the first step after it."""
    inside = f"with wf.phase({phase!r}): print('in the phase', flush=True); time.sleep(1.5)"
    hook = {"AT_START": inside} if phase == "compile" else {"AT_STEP": f"if state['step'] == 7: exec({inside!r})"}
    first = run.train(STEPS="5000", options=fast("--policy", "never", "--grace", "10s"), **hook)
    first.until("in the phase")
    first.process.terminate()

    assert first.code() == 75, first.text
    (checkpoint,) = run.state().checkpoints
    assert checkpoint.kind is SaveKind.EMERGENCY
    assert checkpoint.step == (1 if phase == "compile" else 8)


# Two epochs of twelve samples, each epoch in an order of its own; what was trained on is part of the state.
ORDER = """
def order(epoch):
    import random
    numbers = list(range(12))
    random.Random(epoch).shuffle(numbers)
    return numbers
"""
SAMPLES = """
done = state["step"] - 1
seen = [*seen, order(done // 12)[done % 12]]
state["seen"] = seen
print("seen", len(seen), flush=True)
"""


def test_a_resume_in_the_middle_of_an_epoch_shuffles_anew(run: Run, tmp_path: Path) -> None:
    """Not here: over four machines each epoch holds every sample once, in the order that nobody disturbed."""
    hooks = {"AT_START": ORDER + "seen = state.get('seen', [])", "AT_STEP": SAMPLES, "STEPS": "24"}
    for stop_at in (4, 10, 16):
        machine = run.train(STEP_S="0.12", options=NO_INSURANCE, **hooks)
        machine.until(f"seen {stop_at}\n")
        machine.process.terminate()
        assert machine.code() == 75, machine.text
    last = run.train(STEP_S="0.01", **hooks)

    assert last.code() == 0, last.text
    assert run.say("get", run.url, str(tmp_path / "out")).returncode == 0
    (checkpoint,) = (tmp_path / "out").iterdir()
    space: dict[str, Callable[[int], list[int]]] = {}
    exec(ORDER, space)
    assert load(checkpoint)["seen"] == [*space["order"](0), *space["order"](1)]


RANKS = """
import json, os, signal, subprocess, sys, time
import windfall as wf
if "RANK" not in os.environ:
    to_one, to_zero = os.pipe(), os.pipe()
    ends = {0: (to_zero[0], to_one[1]), 1: (to_one[0], to_zero[1])}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, *map(str, ends[rank])],
            env={**os.environ, "RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
            pass_fds=ends[rank],
            start_new_session=True,
        )
        for rank in (0, 1)
    ]
    sys.exit(max(process.wait() for process in ranks))
hear, tell = map(int, sys.argv[1:3])
rank, step = int(os.environ["RANK"]), 0
if found := wf.last():
    step = json.load(open(found))["step"]
    print(f"rank {rank} resumed at {step}", flush=True)
while step < int(os.environ["STEPS"]):
    with wf.step_context():
        time.sleep(0.02 * (1 + rank))
        os.write(tell, b"x")     # a collective: it returns when the other rank is there, too
        assert os.read(hear, 1) == b"x"
        step += 1
    if rank == 0 and step % 10 == 0:
        print("both at", step, flush=True)
    if rank == 1 and step == 30 and not found:
        os.kill(os.getpid(), signal.SIGTERM)
        print("signalled", flush=True)
    if wf.check_save():
        json.dump({"step": step, "rank": rank}, open(f"rank-{rank}-{step}.json", "w"))
        wf.backup(f"rank-{rank}-{step}.json")
"""


def test_one_rank_gets_the_signal_and_leaves_while_the_others_hang(run: Run, tmp_path: Path) -> None:
    """Not here: a signal to one rank alone makes both save at one step and go on; no rank leaves, none waits for ever."""
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    first = run.start(sys.executable, str(script), options=NO_INSURANCE, STEPS="5000")
    first.until("signalled")
    eventually(lambda: run.state().checkpoints, "the save of both ranks is committed")
    (checkpoint,) = run.state().checkpoints
    first.until(f"both at {checkpoint.step // 10 * 10 + 10}")
    first.process.terminate()
    assert first.code() == 75, first.text
    last = run.state().checkpoints[-1]
    second = run.start(sys.executable, str(script), STEPS=str(last.step + 5))

    assert second.code() == 0, second.text
    handed = {(fact.rank, fact.step) for fact in run.facts(ShardHandedOver) if isinstance(fact, ShardHandedOver)}
    assert {(rank, step) for rank in (0, 1) for step in (checkpoint.step, last.step)} == handed
    # Two processes write to one pipe: their lines may run into each other.
    assert all(f"rank {rank} resumed at {last.step}" in second.text for rank in (0, 1))


def test_a_corrupt_checkpoint_restores_differently_each_time(run: Run, tmp_path: Path) -> None:
    """Not here: whoever restores a run whose newest point is damaged gets the same older one, and is told so."""
    first = run.train(STEPS="5000", EVERY="10", options=NO_INSURANCE)
    first.until("step 35")
    first.process.terminate()
    assert first.code() == 75, first.text
    newest, before = run.state().checkpoints[-1], run.state().checkpoints[-2]
    for path in (tmp_path / "run" / "shards").rglob("*"):
        if path.is_file() and newest.checkpoint_id in str(path):
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    restored = set()
    for number in range(2):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(tmp_path / "run", copy / "run")
        again = new_run(copy)
        machine = again.train(STEPS=str(newest.step + 3))
        assert machine.code() == 0, machine.text
        assert f"(step {newest.step}): the bytes of" in machine.text
        restored.add(resumed_at(machine.text))

    assert restored == {before.step}


def test_the_documented_notice_is_in_truth_a_maximum(run: Run) -> None:
    """Not here: the save begins at once, so a machine that is taken long before its deadline loses nothing."""
    first = run.train(STEPS="5000", options=fast("--policy", "never", "--grace", "120s"))
    first.until("step 20")
    first.process.terminate()
    eventually(lambda: run.state().checkpoints, "the emergency save is committed")
    first.vanish()
    (checkpoint,) = run.state().checkpoints
    second = run.train(STEPS=str(checkpoint.step + 5))

    assert second.code() == 0, second.text
    assert resumed_at(second.text) == checkpoint.step
    noticed, committed = (
        next(row.at for row in run.rows() if any(isinstance(fact, kind) for fact in row.facts))
        for kind in (NoticeReceived, CheckpointCommitted)
    )
    assert committed - noticed < 10, "far from the 120 s that were told"
    assert checkpoint.step > Step(0)
