"""Agent, supervisor and script are killed with SIGKILL at random instants, on one machine after the other."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.real.machines import QUICK, Machine, Run, die_once, had_heir, wait_for
from tests.support.processes import alive
from windfall.events import AgentResumed
from windfall.terms import Outcome, RecordKind

STEPS = 150
STORM = ("--max-failures", "50")


def pause(machine: Machine, seed: random.Random) -> None:
    """Let a random time pass (that is the storm, not a wait for something)."""
    end = time.monotonic() + seed.uniform(0.0, 0.9)
    while time.monotonic() < end and not machine.ended:
        time.sleep(0.002)


def storm(folder: Path, number: int) -> dict[str, int]:
    """Blow through a run until it is done; return how often what was killed."""
    seed = random.Random(number)
    run = Run(folder, STEPS)
    kills = {"agent": 0, "script": 0, "supervisor": 0}
    blows = seed.randint(6, 10)
    while True:
        with run.machine(options=(*QUICK, *STORM), STEP_S=0.015) as machine:
            while blows > 0 and not machine.ended:
                pause(machine, seed)
                victim = seed.choice(("agent", "agent", "agent", "script", "supervisor"))
                blows -= 1
                if victim == "supervisor":
                    kills["supervisor"] += not machine.ended
                    machine.vanish()
                else:
                    kills[victim] += machine.kill(machine.agent() if victim == "agent" else machine.script())
            code = machine.code()
        if run.records():
            run.check()
        if code == 0:
            break
        assert code == 137, machine.printed
    run.check_done()
    attempts = [attempt for machine in run.machines for attempt, _ in machine.starts()]
    assert attempts == sorted(set(attempts)), "no attempt is started twice"
    return kills


@pytest.mark.real
@pytest.mark.parametrize("number", [0, 1])
def test_a_storm_of_kills_changes_nothing(number: int, tmp_path: Path) -> None:
    """A run that is hit six to ten times ends with the same state, every commit once, and a journal that replays."""
    print(f"seed {number}: {storm(tmp_path, number)}")


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(100, 120))
def test_twenty_storms_of_kills_change_nothing(number: int, tmp_path: Path) -> None:
    """Twenty seeds of kill -9 of agent, supervisor and script at random instants."""
    print(f"seed {number}: {storm(tmp_path, number)}")


@pytest.mark.real
@pytest.mark.parametrize("status", [0, 7])
def test_the_script_never_notices_that_its_agent_died(status: int, tmp_path: Path) -> None:
    """An agent killed again and again: the script is started once, its saves are stored, its exit status survives."""
    run = Run(tmp_path, 100)
    with run.machine(options=(*QUICK, "--max-failures", "1"), STATUS=status, STEP_S=0.02) as machine:
        for step in (5, 25, 45, 65):
            machine.until_step(step)
            wait_for(lambda: machine.agent() is not None or machine.ended, "an agent")
            machine.kill(machine.agent())
        assert machine.code() == (1 if status else 0), machine.printed
        assert machine.starts() == [(1, 0)]
    run.check_done(Outcome.FAILED if status else Outcome.DONE)
    resumed = [fact for row in run.rows() for fact in row.facts if isinstance(fact, AgentResumed)]
    assert resumed, "an agent took up where a dead one stopped"


@pytest.mark.real
@pytest.mark.parametrize("status", [0, 7])
def test_the_last_save_and_the_exit_status_outlive_the_agent(status: int, tmp_path: Path) -> None:
    """The script saves and ends while no agent is there: the next one stores the save, and the status decides the code."""
    run = Run(tmp_path, 30)
    options = (*QUICK, "--max-failures", "1")
    with run.machine(options=options, STATUS=status, HOLD="save:30", STEP_S=0.03) as machine:
        machine.until_held()
        wait_for(lambda: run.committed_step() >= 20, "the saves before are stored")
        script = machine.script()
        assert script is not None
        os.kill(machine.supervisor, signal.SIGSTOP)
        assert machine.kill(machine.agent())
        machine.let_go()
        wait_for(lambda: not alive(script), "the script has ended")
        os.kill(machine.supervisor, signal.SIGCONT)
        assert machine.code() == (1 if status else 0), machine.printed
    assert machine.starts() == [(1, 0)]
    run.check_done(Outcome.FAILED if status else Outcome.DONE)


@pytest.mark.real
@pytest.mark.parametrize("name", ["store.create:after:2", "store.create:after:3"])
def test_an_agent_that_dies_behind_a_record_is_followed_by_its_heir(name: str, tmp_path: Path) -> None:
    """Behind the taking record, and behind the one that lets the run go: neither a second term nor a wrong exit code."""
    run = Run(tmp_path, 20)
    with run.machine(HOLD="step:15") as lost:
        lost.until_held()
        lost.vanish()
    before = len(run.records())
    with run.machine("true", **die_once(tmp_path, name)) as machine:
        assert machine.code() == 0, machine.printed
    assert had_heir(tmp_path)
    kinds = [record.kind for record in run.records()[before:]]
    assert kinds.count(RecordKind.ACQUIRE) == kinds.count(RecordKind.RELEASE) == 1
    assert run.state().outcome is Outcome.DONE
