"""One run on two machines: one machine is lost, the generation changes, and both go on from the same step."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.real.generations import Generations, free_address, stand_still, until_committed, wake
from windfall.errors import EXIT_STOPPED
from windfall.terms import Cause, Outcome

STEPS = 60


@pytest.mark.real
@pytest.mark.slow
def test_undisturbed_both_machines_end_with_done(tmp_path: Path) -> None:
    """Two machines train to the end: both end with 0, and every point has the parts of both."""
    job = Generations(tmp_path, steps=STEPS)
    with job.generation(1) as machines:
        assert job.codes(machines) == [0, 0], [machine.printed for machine in machines]
    job.check_done()
    assert job.run.state().generation == 1
    assert job.run.state().outcome is Outcome.DONE


@pytest.mark.real
@pytest.mark.parametrize(
    "taken", [pytest.param(0, marks=pytest.mark.slow, id="the-leader"), pytest.param(1, id="the-member")]
)
def test_a_notice_to_one_machine_saves_the_work_of_both(taken: int, tmp_path: Path) -> None:
    """One of two machines is announced to be taken: all save the same step, and the next generation goes on from it."""
    job = Generations(tmp_path, steps=STEPS)
    never = ("--provider", "local", "--policy", "never", "--lease", "2s", "--grace", "10s", "--wait")
    with job.generation(1, options=never, SLOW_FROM=12) as machines:
        machines[0].until_step(12)
        os.kill(machines[taken].supervisor, signal.SIGTERM)
        assert job.codes(machines) == [75, 75], machines[0].printed
    saved = job.run.committed_step()
    assert saved >= 12
    assert job.run.state().losses[-1].cause is Cause.PREEMPTED_SAVED
    job.check_points()
    with job.generation(2, options=never) as machines:
        assert job.codes(machines) == [0, 0], [machine.printed for machine in machines]
    assert job.first_steps(machines) == {saved}
    job.check_done()


@pytest.mark.real
def test_a_member_that_vanishes_ends_the_generation_and_the_next_goes_on(tmp_path: Path) -> None:
    """The member is killed without a word: the leader lets the run go at once, and the next generation takes it up."""
    job = Generations(tmp_path, steps=STEPS)
    with job.generation(1, SLOW_FROM=15) as machines:
        machines[0].until_step(15)
        until_committed(job.run, 10)
        machines[1].vanish()
        assert machines[0].code() == 75, machines[0].printed
    state = job.run.state()
    assert (state.outcome, state.losses[-1].cause, state.preemptions) == (Outcome.WAITING, Cause.VANISHED, 1)
    saved = job.run.committed_step()
    with job.generation(2) as machines:
        assert job.codes(machines) == [0, 0], [machine.printed for machine in machines]
    assert job.first_steps(machines) == {saved}
    job.check_done()


@pytest.mark.real
@pytest.mark.slow
def test_a_leader_that_vanishes_ends_the_generation_and_the_next_goes_on(tmp_path: Path) -> None:
    """The leader is killed without a word: the member ends, and another leader takes the run after the lease."""
    job = Generations(tmp_path, steps=STEPS)
    with job.generation(1, SLOW_FROM=15) as machines:
        machines[0].until_step(15)
        until_committed(job.run, 10)
        machines[0].vanish()
        assert machines[1].code() == 75, machines[1].printed
        assert "the leader of this generation" in machines[1].printed
    saved = job.run.committed_step()
    with job.generation(2) as machines:
        assert job.codes(machines) == [0, 0], [machine.printed for machine in machines]
    assert job.first_steps(machines) == {saved}
    job.check_done()


@pytest.mark.real
def test_an_older_generation_that_wakes_up_stores_nothing_more(tmp_path: Path) -> None:
    """A whole generation stands still, a newer one takes the run: when the older wakes it ends and leaves no trace."""
    job = Generations(tmp_path, steps=5 * STEPS)
    with job.generation(1) as old:
        old[0].until_step(15)
        until_committed(job.run, 10)
        frozen = [stand_still(machine) for machine in old]
        with job.generation(2) as new:
            new[0].until_step(job.run.committed_step() + 5)
            for pids in frozen:
                wake(pids)
            assert job.codes(old) == [75, 75], [machine.printed for machine in old]
            assert job.codes(new) == [0, 0], [machine.printed for machine in new]
    terms = [record.state.term for record in job.run.records()]
    assert terms == sorted(terms)
    job.check_done()


@pytest.mark.real
@pytest.mark.slow
def test_a_machine_of_an_older_generation_cannot_take_the_run(tmp_path: Path) -> None:
    """An older generation comes together again after a newer one had the run: it is refused, with 75 on all machines."""
    job = Generations(tmp_path, steps=STEPS)
    with job.generation(2, SLOW_FROM=12) as machines:
        machines[0].until_step(12)
        os.kill(machines[1].supervisor, signal.SIGTERM)
        assert job.codes(machines) == [75, 75]
    records = len(job.run.records())
    with job.generation(1) as machines:
        assert job.codes(machines) == [75, 75]
    assert "generation 2 holds this run" in machines[0].printed
    assert len(job.run.records()) == records


@pytest.mark.real
def test_a_script_that_fails_on_one_machine_is_started_again_on_all(tmp_path: Path) -> None:
    """The member's script is killed by itself: one failure is counted, and both go on inside the generation."""
    job = Generations(tmp_path, steps=STEPS)
    with job.generation(1, SLOW_FROM=15) as machines:
        machines[0].until_step(15)
        until_committed(job.run, 10)
        machines[1].kill(machines[1].script())
        assert job.codes(machines) == [0, 0], [machine.printed for machine in machines]
    state = job.run.state()
    assert (state.failures, state.attempts, state.preemptions) == (1, 2, 0)
    assert len({machine.starts()[-1] for machine in machines}) == 1
    job.check_done()


@pytest.mark.real
@pytest.mark.slow
def test_a_stop_saves_on_both_machines(tmp_path: Path) -> None:
    """Ctrl-C on the member stops the run after a save of both."""
    job = Generations(tmp_path, steps=STEPS)
    with job.generation(1, SLOW_FROM=12) as machines:
        machines[0].until_step(12)
        os.kill(machines[1].supervisor, signal.SIGINT)
        assert job.codes(machines) == [EXIT_STOPPED] * 2, [machine.printed for machine in machines]
    assert job.run.state().outcome is Outcome.WAITING
    assert job.run.committed_step() >= 12
    job.check_points()


@pytest.mark.real
def test_a_stranger_is_refused(tmp_path: Path) -> None:
    """A machine with another token does not get in, and says so; the generation's own machine does."""
    job = Generations(tmp_path, steps=20)
    address = free_address()
    with job.generation(1, nodes=[0], address=address) as [leader]:
        with job.generation(1, nodes=[1], address=address, WINDFALL_PEERS_TOKEN="guessed") as [stranger]:
            assert stranger.code() == 75
            assert "WINDFALL_PEERS_TOKEN is wrong" in stranger.printed
        with job.generation(1, nodes=[1], address=address) as [member]:
            assert job.codes([leader, member]) == [0, 0]
    assert all("guessed" not in text and "a-secret" not in text for text in (leader.printed, stranger.printed))


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("whose", [0, 1], ids=["the-leader's", "the-member's"])
def test_an_agent_that_dies_ends_the_generation(whose: int, tmp_path: Path) -> None:
    """Its links died with it: all machines end with 75, the run is let go, and the next generation goes on."""
    job = Generations(tmp_path, steps=STEPS)
    with job.generation(1, SLOW_FROM=15) as machines:
        machines[0].until_step(15)
        until_committed(job.run, 10)
        machines[whose].kill(machines[whose].agent())
        assert job.codes(machines) == [75, 75], [machine.printed for machine in machines]
    assert job.run.state().outcome is Outcome.WAITING
    saved = job.run.committed_step()
    with job.generation(2) as machines:
        assert job.codes(machines) == [0, 0], [machine.printed for machine in machines]
    assert job.first_steps(machines) == {saved}
    job.check_done()
