"""Changes of shape while training: planned ones, joins, losses; the result is that of a training without any."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.elastic_script import SAMPLES
from tests.elastic.scripted_fleet import ScriptedFleet, alone, fleet
from windfall.shape_layout import STORE, StateMove

STEPS = 16
WAIT_S = 0.02


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, float], str]:
    """Losses and final state of one process without a coordinator."""
    return alone(tmp_path_factory.mktemp("alone") / "run", {"steps": STEPS})


def check(machines: ScriptedFleet, reference: tuple[dict[int, float], str]) -> None:
    """Check that all was trained as if nothing had changed."""
    assert machines.losses() == reference[0]
    assert machines.digests() == {reference[1]}


def redone(machines: ScriptedFleet) -> int:
    """Return how many steps came twice on a machine, at most."""
    return max(machines.repeated().values())


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_planned_change_takes_no_step_back(reference: tuple[dict[int, float], str], tmp_path: Path) -> None:
    """From 2x1 to 1x2, 2x2 with two that join, 1x3 and 1x1: bitwise the same, and each sample of an epoch exactly once."""
    with fleet(tmp_path / "run", steps=STEPS, wait_s=WAIT_S) as machines:
        machines.start("a", "b")
        machines.begin(2, 1, ["a", "b"])
        machines.wait_step(["a", "b"], 2)
        machines.plan(1, 2, ["b", "a"])
        machines.start("c", "d")
        machines.wait_step(["a", "b"], 4)
        machines.plan(2, 2, ["a", "b", "c", "d"])
        machines.wait_step(["a", "b", "c", "d"], 7)
        machines.plan(1, 3, ["d", "b", "c"])
        machines.wait_step(["b", "c", "d"], 9)
        machines.plan(1, 1, ["b"])
        machines.finish(["b"], STEPS)

        check(machines, reference)
        assert redone(machines) == 0
        samples = machines.samples()
        for first in range(1, STEPS, 4):
            assert sorted(one for step in range(first, first + 4) for one in samples[step]) == list(range(SAMPLES))


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_loss_takes_at_most_one_step_back(reference: tuple[dict[int, float], str], tmp_path: Path) -> None:
    """One of 2x2 is killed; the others stop by themselves and train on as 1x2, then as 3x1, from a step that all hold."""
    with fleet(tmp_path / "run", steps=STEPS, wait_s=WAIT_S) as machines:
        names = ["a", "b", "c", "d"]
        machines.start(*names)
        machines.begin(2, 2, names)
        machines.wait_step(names, 4)
        machines.kill("d")
        machines.wait(["a", "b", "c"], lambda report: report.stopped)
        machines.begin(1, 2, ["a", "b"], step=machines.common_step(["a", "b", "c"]), gone=["d"])
        machines.wait_step(["a", "b"], 8)
        machines.plan(3, 1, ["a", "b", "c"])
        machines.finish(["a", "b", "c"], STEPS)

        check(machines, reference)
        assert redone(machines) <= 1


@pytest.mark.real
@pytest.mark.timeout(300)
def test_who_is_lost_is_known_at_once_though_a_sum_over_all_has_broken(tmp_path: Path) -> None:
    """Such a sum does not say whose connection broke; those that live and stopped too are not named."""
    names = ["a", "b", "c", "d"]
    with fleet(tmp_path / "run", steps=200, wait_s=WAIT_S, deterministic=False) as machines:
        machines.start(*names)
        machines.begin(4, 1, names)
        machines.wait_step(names, 3)
        machines.kill("b")
        left = ["a", "c", "d"]
        machines.wait(left, lambda report: report.stopped)

        reports = [machines.report(name) for name in left]
        assert {name for report in reports if report is not None for name in report.broken} == {"b"}


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_layout_that_says_stop_ends_a_step_that_hangs(
    reference: tuple[dict[int, float], str], tmp_path: Path
) -> None:
    """A machine that does not move any more blocks the others only until the coordinator gives the layout up."""
    with fleet(tmp_path / "run", steps=STEPS, wait_s=WAIT_S) as machines:
        machines.start("a", "b", "c")
        machines.begin(1, 3, ["a", "b", "c"])
        machines.wait_step(["a", "b", "c"], 3)
        machines.plan(3, 1, ["a", "b", "c"])
        machines.wait_step(["a", "b", "c"], 5)
        machines.freeze("b")
        machines.stop()
        machines.wait_made(["a", "c"])
        machines.wait(["a", "c"], lambda report: report.stopped)
        machines.kill("b")
        machines.begin(1, 2, ["c", "a"], step=machines.common_step(["a", "c"]), gone=["b"])
        machines.finish(["a", "c"], STEPS)

        check(machines, reference)
        assert redone(machines) <= 1


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_stage_that_is_lost_whole_comes_from_the_backup(
    reference: tuple[dict[int, float], str], tmp_path: Path
) -> None:
    """Both replicas of a stage are killed at once: the backup has its state, at most one step behind, to the last bit."""
    with fleet(tmp_path / "run", steps=STEPS, wait_s=WAIT_S) as machines:
        names = ["a", "b", "c", "d"]
        machines.start(*names, "R")
        machines.begin(2, 2, names, backup="R")
        machines.wait_step(names, 5)
        machines.kill("b", "d")
        left = ["a", "c", "R"]
        machines.wait(left, lambda report: report.stopped)
        machines.begin(2, 1, ["a", "c"], step=machines.common_step(left), gone=["b", "d"], backup="R")
        machines.finish(["a", "c", "R"], STEPS)

        check(machines, reference)
        assert redone(machines) <= 1


@pytest.mark.real
@pytest.mark.timeout(300)
def test_the_loss_of_the_backup_stops_nothing(reference: tuple[dict[int, float], str], tmp_path: Path) -> None:
    """The backup is killed and training continues; another one gets the state in a planned change, then has what is lost."""
    with fleet(tmp_path / "run", steps=STEPS, wait_s=WAIT_S) as machines:
        machines.start("a", "b", "R1", "R2")
        machines.begin(1, 2, ["a", "b"], backup="R1")
        machines.wait_step(["a", "b"], 3)
        machines.kill("R1")
        machines.wait_step(["a", "b"], 6)
        machines.plan(1, 2, ["a", "b"], backup="R2", gone=["R1"])
        machines.wait_step(["a", "b"], 9)
        machines.kill("b")
        machines.wait(["a", "R2"], lambda report: report.stopped)
        machines.begin(1, 1, ["a"], step=machines.common_step(["a", "R2"]), gone=["b"], backup="R2")
        machines.finish(["a", "R2"], STEPS)

        check(machines, reference)
        assert redone(machines) <= 1


@pytest.mark.real
@pytest.mark.timeout(300)
def test_training_begins_again_at_a_checkpoint(reference: tuple[dict[int, float], str], tmp_path: Path) -> None:
    """All machines are lost; new ones train on from the checkpoint in the store, in another shape."""
    with fleet(tmp_path / "run", steps=STEPS, wait_s=WAIT_S, save_every=5) as machines:
        machines.start("a", "b")
        machines.begin(1, 2, ["a", "b"])
        machines.wait_step(["a", "b"], 7)
        machines.kill("a", "b")
        machines.start("c", "d")
        machines.begin(2, 1, ["c", "d"], step=machines.stored(), gone=["a", "b"])
        machines.finish(["c", "d"], STEPS)

        check(machines, reference)
        assert redone(machines) == 0


@pytest.mark.real
@pytest.mark.timeout(300)
def test_what_is_trained_outlives_all_machines_that_wait(
    reference: tuple[dict[int, float], str], tmp_path: Path
) -> None:
    """Two stages stop after a loss and save what they have in common; all are killed, and another machine trains on."""
    with fleet(tmp_path / "run", steps=STEPS, wait_s=WAIT_S) as machines:
        machines.start("a", "b", "c")
        machines.begin(1, 3, ["a", "b", "c"])
        machines.wait_step(["a", "b", "c"], 3)
        machines.plan(3, 1, ["a", "b", "c"])
        machines.wait_step(["a", "b", "c"], 5)
        machines.kill("c")
        left = ["a", "b"]
        machines.wait(left, lambda report: report.stopped)
        step = machines.common_step(left)
        machines.rest(step, [StateMove(0, 4, "a", STORE), StateMove(4, 6, "b", STORE)])
        machines.wait_made(left)
        machines.wait_stored(step)
        machines.kill("a", "b")
        machines.start("d")
        machines.begin(1, 1, ["d"], step=step, gone=["a", "b", "c"])
        machines.finish(["d"], STEPS)

        check(machines, reference)
        assert redone(machines) <= 1
