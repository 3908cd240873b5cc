"""A bought machine as a user meets it: a real node agent, a real `windfall exec`, a real controller's two routes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.keepers import LEAVE, RUN, WAIT, Controller, RunSite, serving
from tests.support.live import contents, eventually, new_run
from windfall.channels.mailbox import MailboxChannel, MailboxPace
from windfall.errors import EXIT_STOPPED
from windfall.fleet import MachineStatus, Report
from windfall.linux.clock import SystemClock
from windfall.storage.object_stores import open_store
from windfall.terms import Cause, NoticeLevel, Outcome, Seconds, Term
from windfall.wire.run_layout import gone_key, setup_output_key

pytestmark = pytest.mark.real
SECRET = "hf_very-secret-value"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[RunSite]:
    made = RunSite(tmp_path, new_run(tmp_path))
    yield made
    made.clear()


def test_a_machine_installs_trains_reports_and_leaves(place: RunSite) -> None:
    """From the claim to the end: setup once, the script with its environment, every stage told, nothing left behind."""
    at_start = "print('token', os.environ['HF_TOKEN'][:3], [n for n in os.environ if 'CREDENTIAL' in n])"
    job = place.job(
        setup="echo installing; echo my token is $HF_TOKEN; touch installed",
        secrets=("HF_TOKEN",),
        envs={"STEPS": "150", "AT_START": at_start},
    )
    with serving(Controller(job, (("HF_TOKEN", SECRET),), {"m-1": RUN})) as controller:
        machine = place.machine(controller)
        controller.hears(MachineStatus.TRAINING)
        seen = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in place.processes())
        eventually(lambda: controller.newest().exit_code == 0, f"the end of the run in:\n{machine.text}")
        controller.directives["m-1"] = LEAVE
        assert machine.ends() == 0

    stages = list(dict.fromkeys(said.status for said in controller.reports))
    assert stages[:3] == [MachineStatus.SETUP, MachineStatus.WAITING, MachineStatus.TRAINING]
    assert place.run.state().outcome is Outcome.DONE
    assert (machine.folder / "installed").exists()
    assert "token hf_ []" in machine.text
    stored = contents(place.folder / "run")
    assert b"setup | installing\nsetup | my token is ***\n" in stored[setup_output_key("m-1")]
    assert SECRET.encode() not in seen
    assert SECRET not in machine.text
    assert not [key for key, data in stored.items() if SECRET.encode() in data]
    assert len(controller.claims) == 1
    eventually(lambda: not place.processes(), "no process is left")


def test_an_outage_of_the_controller_changes_nothing(place: RunSite) -> None:
    """While it is away the same script trains on; when it is back it is told, in the same life."""
    with serving(Controller(place.job(), directives={"m-1": RUN})) as controller:
        machine = place.machine(controller)
        before = controller.hears(MachineStatus.TRAINING)
        controller.up = False
        heard = len(controller.reports)
        machine.until_step(machine.run_status["step"] + 150)
        controller.up = True
        eventually(lambda: len(controller.reports) > heard, "the next report")
        after = controller.newest()

    assert (after.status, after.term, after.incarnation) == (MachineStatus.TRAINING, before.term, before.incarnation)
    assert after.step >= before.step + 150
    assert machine.text.count("resuming run") + machine.text.count("new run") == 1


def test_past_the_dead_man_limit_the_run_is_saved_and_the_machine_ends(place: RunSite) -> None:
    """Nobody pays for a machine that no controller knows of; what it did is not lost."""
    with serving(Controller(place.job(dead_man_s=Seconds(3.0), policy="never"), directives={"m-1": RUN})) as controller:
        machine = place.machine(controller)
        controller.hears(MachineStatus.TRAINING)
        machine.until_step(20)
        controller.up = False
        step = machine.run_status["step"]
        assert machine.ends() == 0

    state = place.run.state()
    assert (state.outcome, state.holder) == (Outcome.WAITING, None)
    assert state.losses[-1].cause is Cause.STOPPED
    assert state.checkpoints[-1].step > step + 50
    assert "no contact with the controller for 3 s" in machine.text
    eventually(lambda: not place.processes(), "no process is left")


def test_a_machine_cut_off_from_the_controller_works_through_the_store(place: RunSite) -> None:
    """Job, directives, reports and contact all go through the mailbox."""
    place.put_job(place.job(dead_man_s=Seconds(2.0)))
    pace = MailboxPace(poll_s=Seconds(0.1), heartbeat_s=Seconds(0.5))
    box = MailboxChannel(open_store(place.run.url), SystemClock(), Term(3), lambda: ("m-1",), pace)
    machine = place.machine(None)
    heard: list[Report] = []

    def hears(status: MachineStatus) -> bool:
        box.send({"m-1": RUN})
        heard.extend(box.receive())
        return bool(heard) and heard[-1].status is status

    eventually(lambda: hears(MachineStatus.TRAINING), f"training in:\n{machine.text}")
    step = machine.run_status["step"]
    eventually(
        lambda: hears(MachineStatus.TRAINING) and machine.run_status["step"] > step + 250, "longer than the limit"
    )
    box.send({"m-1": LEAVE})
    assert machine.ends() == 0
    assert heard[-1].saved_step is not None


def test_a_job_with_secrets_does_not_run_without_them(place: RunSite) -> None:
    """The store never has their values: a machine without its controller waits, and says for what."""
    place.put_job(place.job(secrets=("HF_TOKEN",)))
    box = MailboxChannel(
        open_store(place.run.url), SystemClock(), Term(3), lambda: ("m-1",), MailboxPace(poll_s=Seconds(0.1))
    )
    place.machine(None)
    heard: list[Report] = []

    def said() -> bool:
        box.send({"m-1": RUN})
        heard.extend(box.receive())
        return bool(heard) and "secret HF_TOKEN" in heard[-1].message

    eventually(said, f"the reason, not {heard}")
    assert heard[-1].status is MachineStatus.SETUP
    assert not (place.folder / "run" / "log").exists()


def test_a_setup_that_fails_is_told_with_its_last_words(place: RunSite) -> None:
    """Nothing is started after it, and the controller hears the reason."""
    setup = "echo looking; nonsense-command; echo not reached"
    with serving(Controller(place.job(setup=setup), directives={"m-1": RUN})) as controller:
        machine = place.machine(controller)
        said = controller.hears(MachineStatus.FAILED)
        controller.directives["m-1"] = LEAVE
        assert machine.ends() == 0

    assert said.message.startswith("the setup exited with 127: looking / ")
    assert "nonsense-command" in said.message
    assert "not reached" not in machine.text
    assert not (place.folder / "run" / "log").exists()


def test_sigterm_saves_the_run_and_is_told_as_an_announced_end(place: RunSite) -> None:
    """The script saves within the grace period, and this machine does not take the run again."""
    with serving(Controller(place.job(policy="never"), directives={"m-1": RUN})) as controller:
        machine = place.machine(controller)
        controller.hears(MachineStatus.TRAINING)
        machine.until_step(20)
        machine.terminate()
        eventually(lambda: controller.newest().exit_code == 75, f"the end of exec in:\n{machine.text}")
        eventually(lambda: controller.newest().status is MachineStatus.WAITING, "waiting")
        said = controller.newest()

    assert said.level is NoticeLevel.ANNOUNCED
    assert 0 < said.preemption_in_s <= 10
    state = place.run.state()
    assert (state.outcome, state.losses[-1].cause) == (Outcome.WAITING, Cause.PREEMPTED_SAVED)


def test_a_warm_standby_takes_over_when_the_holder_is_declared_gone(place: RunSite) -> None:
    """It waits ready while the other trains, and needs neither lease nor boot when that machine is gone."""
    with serving(Controller(place.job(), directives={"m-1": RUN, "m-2": WAIT})) as controller:
        first = place.machine(controller, "m-1")
        term = controller.hears(MachineStatus.TRAINING, "m-1").term
        second = place.machine(controller, "m-2")
        controller.hears(MachineStatus.WAITING, "m-2")
        controller.directives["m-2"] = RUN
        eventually(lambda: "waiting until it releases" in second.text, "the standby")
        assert "m-1 has held this run" in second.text
        first.until_step(60)
        first.process.kill()
        first.process.wait()
        clock = SystemClock()
        started = clock.now()
        open_store(place.run.url).create(gone_key(term), b"m-1")
        controller.hears(MachineStatus.TRAINING, "m-2")
        took_s = clock.now() - started

    assert took_s < 10
    assert place.run.state().holder.host == "m-2"


@pytest.mark.slow
def test_a_run_that_was_stopped_is_not_taken_up_again(place: RunSite) -> None:
    """The machine asks for the newest directive before it starts anything."""
    with serving(Controller(place.job(), directives={"m-1": RUN})) as controller:
        machine = place.machine(controller)
        controller.hears(MachineStatus.TRAINING)
        controller.directives["m-1"] = WAIT
        assert place.run.say("stop", place.run.url).returncode == 0
        eventually(lambda: controller.newest().exit_code == EXIT_STOPPED, f"the end of exec in:\n{machine.text}")
        heard = len(controller.reports)
        eventually(lambda: len(controller.reports) > heard + 4, "more reports")

    assert controller.newest().status is MachineStatus.WAITING
    assert place.run.state().outcome is Outcome.WAITING
