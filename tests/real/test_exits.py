"""How `windfall exec` ends, and who goes on: failures, stops, notices, and contenders for one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.real.machines import QUICK, Run, wait_for
from windfall.events import NoticeReceived, RunStopRequested
from windfall.storage import object_stores
from windfall.terms import Cause, NoticeLevel, Outcome
from windfall.wire.metadata_server import serve
from windfall.wire.run_layout import inbox_key

LEASE_S = 2.0
NO_PERIODIC_SAVES = (*QUICK[:2], *QUICK[4:], "--policy", "never")
ELSEWHERE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Another PID namespace: who is alive there cannot be told from here, as on another computer."""


def _stop_is_known(run: Run) -> bool:
    return any(isinstance(fact, RunStopRequested) for row in run.rows() for fact in row.facts)


@pytest.mark.real
def test_a_script_that_fails_by_itself_is_retried_a_bounded_number_of_times(tmp_path: Path) -> None:
    """Three failures, each attempt from the newest point; then exit code 1, and the mended script goes on from there."""
    run = Run(tmp_path, 30)
    with run.machine(FAIL_AT=15, STEP_S=0.03) as machine:
        assert machine.code() == 1
    assert machine.starts() == [(1, 0), (2, 10), (3, 10)]
    assert (run.state().outcome, run.state().failures) == (Outcome.FAILED, 3)
    run.check()
    with run.machine() as machine:
        assert machine.code() == 0, machine.printed
    assert machine.starts() == [(4, 10)]
    run.check_done()


@pytest.mark.real
def test_lost_machines_are_not_failures_of_the_script(tmp_path: Path) -> None:
    """With one failure allowed to be followed by none: two lost machines in between do not count, the second failure does."""
    run = Run(tmp_path, 30)
    allowed = (*QUICK, "--max-failures", "2")
    with run.machine(options=allowed, FAIL_AT=15, STEP_S=0.03) as machine:
        machine.until("restarting it")
        machine.until("from 10")
        machine.vanish()
    for step in (12, 13):
        with run.machine(options=allowed, HOLD=f"step:{step}") as machine:
            machine.until_held()
            machine.vanish()
    assert (run.state().failures, run.state().preemptions) == (1, 2)
    with run.machine(options=allowed, FAIL_AT=15) as machine:
        assert machine.code() == 1, machine.printed
    assert (run.state().outcome, run.state().failures) == (Outcome.FAILED, 2)
    run.check()


@pytest.mark.real
@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 7", 1), ("kill -9 $$", 1)])
def test_a_script_that_never_calls_windfall_keeps_its_fate(command: str, code: int, tmp_path: Path) -> None:
    """Done is done, and a failure is a failure, however it comes."""
    run = Run(tmp_path)
    with run.machine("sh", "-c", command, options=(*QUICK, "--max-failures", "1")) as machine:
        assert machine.code() == code, machine.printed
    assert run.state().outcome is (Outcome.FAILED if code else Outcome.DONE)


@pytest.mark.real
def test_a_run_that_a_live_machine_holds_is_left_alone(tmp_path: Path) -> None:
    """Exit code 75, nothing started; with --wait the run is taken over as soon as `windfall stop` has ended the holder."""
    run = Run(tmp_path, 5000)
    with run.machine(options=NO_PERIODIC_SAVES, STEP_S=0.01) as holder:
        holder.until_step(5)
        with run.machine() as contender:
            assert contender.code() == 75, contender.printed
        assert contender.starts() == []
        assert "has held this run" in contender.printed
        with run.machine(options=(*QUICK, "--wait")) as waiting:
            waiting.until("waiting until it releases")
            stopped = run.say("stop", run.url)
            assert stopped.returncode == 0, stopped.stderr
            assert holder.code() == 6, holder.printed
            assert run.state().losses[0].cause is Cause.STOPPED
            wait_for(lambda: waiting.starts() or waiting.ended, "the waiting machine starts")
            ((_, first),) = waiting.starts()
            assert first == holder.step()
            waiting.vanish()
    run.check()


@pytest.mark.real
def test_a_stop_in_the_middle_of_a_save_uses_that_save(tmp_path: Path) -> None:
    """No second save is requested: it would delay the end for as long as it takes to redo the steps since the first."""
    run = Run(tmp_path, 5000)
    with run.machine(STEP_S=0.01, HOLD="save") as holder:
        holder.until_held()
        step = holder.step()
        os.kill(holder.supervisor, signal.SIGINT)
        wait_for(lambda: _stop_is_known(run), "the stop is known")
        holder.let_go()
        assert holder.code() == 6, holder.printed
    assert (run.state().losses[0].cause, run.committed_step()) == (Cause.STOPPED, step)
    run.check()


@pytest.mark.real
def test_another_machine_takes_over_within_about_a_lease(tmp_path: Path) -> None:
    """Where nobody can see that the holder is dead, one lease of silence says so."""
    if subprocess.run([*ELSEWHERE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow a PID namespace")
    run = Run(tmp_path, 40)
    with run.machine(HOLD="step:15") as lost:
        lost.until_held()
        lost.vanish()
    saved = run.committed_step()
    started = time.monotonic()
    with run.machine(prefix=ELSEWHERE) as other:
        other.until("resuming run")
        took_s = time.monotonic() - started
        assert other.code() == 0, other.printed
    assert LEASE_S <= took_s < 3 * LEASE_S + 5.0
    assert other.starts() == [(2, saved)]
    run.check_done()


@pytest.mark.real
def test_one_interrupt_saves_first(tmp_path: Path) -> None:
    """Ctrl-C asks for a save and a stop; the same line goes on from there."""
    run = Run(tmp_path, 200)
    with run.machine(SLOW_FROM=5) as machine:
        machine.until_step(5)
        os.kill(machine.supervisor, signal.SIGINT)
        assert machine.code() == 6, machine.printed
        assert run.committed_step() >= machine.step() - 1
    with run.machine() as machine:
        assert machine.code() == 0, machine.printed
    run.check_done()


@pytest.mark.real
def test_an_interrupt_right_behind_a_commit_keeps_the_steps_since(tmp_path: Path) -> None:
    """The agent looks where the script is before it believes that nothing was computed since the newest point."""
    run = Run(tmp_path, 400)
    with run.machine(options=("--provider", "local", "--policy", "every 20 steps"), STEP_S=0.1) as machine:
        wait_for(lambda: machine.ended or run.committed_step() > 0, "the first point")
        first = run.committed_step()
        machine.until_step(first + 3)
        os.kill(machine.supervisor, signal.SIGINT)
        assert machine.code() == 6, machine.printed
        assert "again to stop without saving" in machine.printed
        assert run.committed_step() >= machine.step() - 1 > first
    run.check()


@pytest.mark.real
def test_another_command_under_the_same_url_is_told(tmp_path: Path) -> None:
    """The second script may have been meant for another run: the first one's command is named."""
    run = Run(tmp_path, 400)
    with run.machine("sh", "-c", "exit 3", options=(*QUICK, "--max-failures", "1")) as machine:
        assert machine.code() == 1, machine.printed
    with run.machine("true") as machine:
        assert machine.code() == 0, machine.printed
        assert "the command differs from the last one of this run: sh -c 'exit 3'" in machine.printed


@pytest.mark.real
def test_two_interrupts_do_not_wait(tmp_path: Path) -> None:
    """A script that does not come to a save is stopped by the second Ctrl-C."""
    run = Run(tmp_path, 200)
    with run.machine(HOLD="step:15", STEP_S=0.03) as machine:
        machine.until_held()
        os.kill(machine.supervisor, signal.SIGINT)
        wait_for(lambda: _stop_is_known(run), "the first is known")
        assert not machine.ended
        os.kill(machine.supervisor, signal.SIGINT)
        assert machine.code(10.0) == 6, machine.printed
    run.check()
    assert (run.state().outcome, run.committed_step()) == (Outcome.WAITING, 10)


@pytest.mark.real
def test_sigterm_is_a_notice(tmp_path: Path) -> None:
    """Slurm's and Kubernetes' warning: an emergency save, exit code 75, not one step redone."""
    run = Run(tmp_path, 100)
    with run.machine(options=NO_PERIODIC_SAVES, HOLD="step:15") as machine:
        machine.until_held()
        os.kill(machine.supervisor, signal.SIGTERM)
        machine.until("this machine will be preempted in")
        machine.let_go()
        assert machine.code() == 75, machine.printed
        last = machine.step()
    assert run.committed_step() == last
    assert run.state().losses[-1].cause is Cause.PREEMPTED_SAVED
    with run.machine() as machine:
        assert machine.code() == 0, machine.printed
    assert machine.starts() == [(2, last)]
    run.check_done()


@pytest.mark.real
def test_a_signal_that_comes_while_no_agent_lives_is_not_lost(tmp_path: Path) -> None:
    """The supervisor keeps what it was told for the agent that is started next."""
    run = Run(tmp_path, 400)
    with run.machine(options=NO_PERIODIC_SAVES, STEP_S=0.01) as machine:
        machine.until_step(5)
        os.kill(machine.supervisor, signal.SIGSTOP)
        assert machine.kill(machine.agent())
        os.kill(machine.supervisor, signal.SIGTERM)
        os.kill(machine.supervisor, signal.SIGCONT)
        assert machine.code() == 75, machine.printed
        assert run.committed_step() >= machine.step() - 1
    assert machine.starts() == [(1, 0)]
    run.check()


def levels(run: Run) -> list[NoticeLevel]:
    """What the machine was told of its end, oldest first."""
    facts = [fact for row in run.rows() for fact in row.facts]
    return [fact.notice.level for fact in facts if isinstance(fact, NoticeReceived)]


@pytest.mark.real
def test_a_withdrawn_notice_changes_nothing(tmp_path: Path) -> None:
    """Azure may take an event back: the script saves, is not stopped, and trains on."""
    run = Run(tmp_path, 60)
    with serve((), "azure", now=time.time) as cloud:
        options = (*QUICK[2:], "--provider", "azure", "--metadata-url", cloud.url)
        with run.machine(options=options, HOLD="step:15") as machine:
            machine.until_held()
            cloud.announce(60.0)
            wait_for(lambda: levels(run) == [NoticeLevel.ANNOUNCED], "the announcement is known")
            cloud.withdraw()
            wait_for(lambda: NoticeLevel.WITHDRAWN in levels(run), "the withdrawal is known")
            machine.let_go()
            assert machine.code() == 0, machine.printed
        assert cloud.acknowledged == ()
    assert machine.starts() == [(1, 0)]
    run.check_done()
    assert run.state().preemptions == 0


@pytest.mark.real
def test_a_command_is_found_as_a_shell_finds_it(tmp_path: Path) -> None:
    """What cannot be started is said in one sentence, and nothing of the run is left held."""
    run = Run(tmp_path)
    with run.machine("no-such-command") as machine:
        assert machine.code() == 2
    assert "no such command" in machine.printed
    assert run.records() == []


@pytest.mark.real
def test_a_stop_meant_for_a_machine_that_vanished_does_not_stop_the_next(tmp_path: Path) -> None:
    """Messages are for the machine that held the run when they were sent."""
    run = Run(tmp_path, 60)
    with run.machine(STEP_S=0.02, SLOW_FROM=15) as first:
        first.until_step(15)
        first.vanish()
    late = json.dumps({"type": "stop", "now": True, "term": 1}).encode()
    object_stores.open_reader(run.url).store.create(inbox_key("late"), late)
    with run.machine() as second:
        assert second.code() == 0
    run.check_done()
