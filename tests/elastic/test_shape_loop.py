"""The coordinator's loop: reports in, layouts to the log and to machines, and what `ps` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.shape_scene import Scene
from windfall.cli.main import main
from windfall.core.shape_decisions import (
    opened_by_next_shape_coordinator,
    taken_by_next_shape_coordinator,
)
from windfall.core.shape_summary import shape_status
from windfall.errors import StoreUnreachable
from windfall.policies.layout.shape_rules import job_of
from windfall.report import shape_page
from windfall.report.shape_page import ShapeRecord
from windfall.runtimes.shape_coordinator_loop import (
    CoordinatorRefused,
    CoordinatorReplaced,
    ShapeCoordinatorLoop,
)
from windfall.runtimes.shape_progress import ShapeProgress
from windfall.shape_measurements import ChangeMeasurement, LayerMeasurement, MachineMeasurement
from windfall.shape_status import ShapeFailure
from windfall.structs import replace
from windfall.terms import Outcome, WallTime


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A training that has not begun."""
    return Scene(tmp_path)


def test_machines_that_are_there_begin(scene: Scene) -> None:
    """The layout is in the log, and shown; the reliable machine is the backup."""
    scene.all_say("r1", "a", "b", stopped=True)

    assert (scene.layout.pipelines, scene.layout.stages, scene.layout.step, scene.layout.backup) == (2, 1, 0, "r1")
    assert scene.board.shown[-1] == scene.log.newest_layout() == scene.layout


def test_a_silent_machine_is_lost_and_told_so(scene: Scene) -> None:
    """The others stop, and begin at the newest step; what was trained further is counted."""
    scene.trained()
    scene.all_say("r1", "a", held=((0, 6, 3),), trained=4)
    scene.wait(6.0, "r1", "a")
    stop = scene.layout
    scene.all_say("r1", "a", held=((0, 6, 3),), trained=4, stopped=True)

    assert (stop.stop, stop.because) == (True, "lost: b")
    assert (scene.layout.step, scene.layout.redone, scene.layout.pipelines) == (3, 1, 1)
    assert scene.board.gone == {"b"}


def test_a_coordinator_that_was_halted_takes_no_machine_for_lost(scene: Scene) -> None:
    """On a computer that was asleep, or busy with something else, all have been silent for as long."""
    scene.trained()
    scene.clock.now_s += 60.0
    scene.loop.turn()

    assert scene.loop.coordinator.lost == frozenset()


def test_a_machine_with_a_broken_connection_is_lost_soon(scene: Scene) -> None:
    """Not after five seconds, but after a third of one at most."""
    scene.trained()
    scene.clock.now_s += 0.4
    scene.all_say("r1", "a", stopped=True, broken=("b",))

    assert scene.loop.coordinator.lost == {"b"}


def test_a_machine_that_all_others_miss_is_lost_sooner(scene: Scene) -> None:
    """After 0.15 s, if the others have all reported since; while one of them is as late, after a third of a second."""
    for name in ("r1", "a", "b", "c"):
        scene.board.say(name, scene.layout, stopped=True)
    scene.loop.turn()
    scene.all_say("r1", "a", "b", "c", stopped=False)
    assert len(scene.layout.places) == 3
    scene.clock.now_s += 0.2
    scene.all_say("r1", "a", stopped=True, broken=("b", "c"))
    assert scene.loop.coordinator.lost == frozenset()

    scene.all_say("b", stopped=True, broken=("a", "c"))

    assert scene.loop.coordinator.lost == {"c"}


def test_a_machine_that_has_reported_since_is_not_lost_soon(scene: Scene) -> None:
    """In a sum all that were in it are named; one of them may be halted for a moment, and is lost only after five seconds."""
    scene.trained()
    scene.all_say("r1", "a", stopped=True, broken=("b",))
    scene.clock.now_s += 0.02
    scene.all_say("b", stopped=True)
    layout = scene.layout
    scene.clock.now_s += 0.9
    scene.board.say("r1", layout)
    scene.board.say("a", layout)
    scene.loop.turn()

    assert scene.loop.coordinator.lost == frozenset()
    scene.wait(6.0, "r1", "a")
    assert scene.loop.coordinator.lost == {"b"}


def test_a_machine_that_is_to_leave_may_end_once_it_was_replaced(scene: Scene) -> None:
    """Not before all others have made the layout without it."""
    scene.trained()
    scene.board.say("b", scene.layout, leaving=True)
    scene.loop.turn()
    planned = scene.layout

    assert (planned.step, planned.stop, planned.left) == (None, False, ("b",))
    assert scene.board.gone == set()
    scene.all_say("r1", "a", "b")
    assert scene.board.gone == {"b"}
    scene.wait(6.0, "r1", "a")
    assert scene.layout == planned
    assert shape_status(scene.loop.coordinator, 0, WallTime(1.0), 0.0).lost == 0


def changed(scene: Scene, seconds: float) -> None:
    """Three machines train side by side; their first connections took so long."""
    scene.all_say("r1", "a", "b", "c", stopped=True)
    scene.all_say("r1", "a", "b", "c", stopped=False, moved_s=seconds, step_s=0.5, trained=5, held=((0, 6, 5),))
    assert (scene.layout.pipelines, scene.layout.stages) == (3, 1)


@pytest.mark.parametrize(
    ("seconds", "left_s", "stops"), [(2.0, 3.0, False), (2.0, 2.4, True), (2.0, None, False), (0.0, 0.1, False)]
)
def test_a_change_is_planned_only_if_it_fits_into_what_is_left(
    scene: Scene, seconds: float, left_s: float | None, stops: bool
) -> None:
    """Half a second for the step, two for the change; without a time, or a measurement, it is tried."""
    changed(scene, seconds)
    scene.board.say("b", scene.layout, leaving=True, ends_in_s=left_s)
    scene.loop.turn()

    assert scene.layout.stop is stops
    assert scene.layout.redone == 0
    if stops:
        assert scene.layout.because == "b to leave in 2.4 s, and a change to 2x1 takes 2.0 s: the layout is given up"
    else:
        assert scene.layout.left == ("b",)


def test_a_machine_that_has_ended_as_announced_is_not_waited_for(scene: Scene) -> None:
    """It is silent for a third of a second, and not for five, before the others begin without it."""
    changed(scene, 2.0)
    scene.all_say("b", leaving=True, ends_in_s=0.5)
    assert scene.layout.stop
    for _ in range(10):
        scene.clock.now_s += 0.1
        scene.all_say("r1", "a", "c", stopped=True)

    assert scene.loop.coordinator.lost == {"b"}
    assert (scene.layout.step, scene.layout.redone, scene.layout.pipelines) == (5, 0, 2)


def test_a_coordinator_that_follows_changes_nothing(scene: Scene) -> None:
    """Machines keep their layout; the one before writes no more."""
    scene.trained()
    old, before = scene.loop, scene.layout
    scene.loop = scene.started(taken_by_next_shape_coordinator(before))
    assert scene.log.write_layout(scene.layout)
    scene.all_say("r1", "a", "b")

    assert (scene.layout.version, scene.layout.coordinator) == (before.version, 2)
    scene.board.newest["a"] = replace(scene.board.newest["a"], number=99, coordinator=1, leaving=True)
    with pytest.raises(CoordinatorReplaced, match=f"another coordinator has written record {before.record + 1}"):
        old.turn()


def test_after_a_change_of_coordinator_a_missed_machine_is_lost_once_its_peers_have_found_it(scene: Scene) -> None:
    """The leader, with the backup, and one of three that train are lost at once: seen after five seconds, not after sixty."""
    scene.all_say("r1", "a", "b", "c", stopped=True)
    scene.all_say("r1", "a", "b", "c", stopped=False, held=((0, 6, 3),), trained=3)
    scene.loop = scene.started(taken_by_next_shape_coordinator(scene.layout))
    assert scene.log.write_layout(scene.layout)
    scene.all_say("a", stopped=True, broken=("b", "c"))
    scene.wait(3.0, "a")
    # One that a peer missed had only given up by itself.
    scene.all_say("c", stopped=True, broken=("b",))
    scene.wait(4.5, "a", "c")
    assert scene.loop.coordinator.lost == frozenset()
    scene.wait(1.0, "a", "c")
    assert scene.loop.coordinator.lost == {"r1", "b"}


def test_after_a_change_of_coordinator_a_machine_that_no_peer_misses_is_waited_for(scene: Scene) -> None:
    """It trains, and has only not found the new coordinator yet."""
    scene.trained()
    scene.loop = scene.started(taken_by_next_shape_coordinator(scene.layout))
    assert scene.log.write_layout(scene.layout)
    scene.all_say("r1", "a")
    scene.wait(55.0, "r1", "a")

    assert scene.loop.coordinator.lost == frozenset()


def test_what_a_coordinator_before_knew_to_be_trained_is_counted_when_it_is_redone(scene: Scene) -> None:
    """The machine that trained step 4 is lost together with the coordinator; the status in the store says that it was."""
    scene.trained()
    scene.all_say("r1", "a", held=((0, 6, 3),), trained=3)
    scene.board.say("b", scene.layout, held=((0, 6, 4),), trained=4)
    scene.loop.turn()
    scene.loop.write_status(scene.clock.now_s)

    scene.loop = scene.started(taken_by_next_shape_coordinator(scene.layout))
    assert scene.log.write_layout(scene.layout)
    scene.loop.write_status(scene.clock.now_s)
    scene.loop = scene.started(taken_by_next_shape_coordinator(scene.layout))
    assert scene.log.write_layout(scene.layout)
    scene.all_say("r1", "a")
    scene.wait(70.0, "r1", "a")
    scene.all_say("r1", "a", stopped=True)

    assert (scene.layout.step, scene.layout.redone) == (3, 1)
    assert "steps taken back: 1" in scene.layout.because


def test_a_stored_last_step_is_the_end(scene: Scene) -> None:
    """All see a layout that says so, and the controller sees that the job is done once the scripts have ended."""
    scene.trained()
    scene.stored = 9
    for _ in range(3):
        scene.all_say("r1", "a", "b", trained=9)
        scene.loop = scene.loop if scene.layout.over else _with_stored(scene)
    scene.log.write_status(shape_status(scene.loop.coordinator, 9, WallTime(5.0), 0.0))

    assert scene.layout.over
    progress = ShapeProgress(scene.log, scene.clock)
    assert (found := progress.progress()) is not None
    assert found.progress.outcome is Outcome.RUNNING
    scene.log.write_done(9)
    assert (found := progress.progress()) is not None
    assert (found.progress.outcome, found.progress.safe.amount) == (Outcome.DONE, 9.0)


def _with_stored(scene: Scene) -> ShapeCoordinatorLoop:
    return ShapeCoordinatorLoop(scene.loop.coordinator, scene.loop._planner, scene.loop._ports, scene.stored)


def test_the_leader_waits_until_the_scripts_have_ended(scene: Scene) -> None:
    """It holds the TCP store by which machines see the end; and who ends then is not lost."""
    scene.trained()
    scene.stored = 9
    scene.loop = _with_stored(scene)
    ends_s = scene.clock.now_s + 3.0
    scene.board.reports_until(ends_s, scene)

    scene.loop.run(lambda: False)

    assert scene.layout.over
    assert ends_s + 1.0 <= scene.clock.now_s <= ends_s + 2.0
    assert scene.loop.coordinator.lost == frozenset()
    assert (found := scene.log.status()) is not None
    assert (found.over, found.lost) == (True, 0)


@pytest.mark.parametrize(
    ("error", "limit_s", "who"),
    [(RuntimeError("no answer"), 60.0, "board"), (StoreUnreachable("no answer"), 600.0, "store")],
)
def test_a_coordinator_that_is_refused_for_long_ends_with_a_reason(
    scene: Scene, error: Exception, limit_s: float, who: str
) -> None:
    """Its machine then starts again; refusals that pass, or a computer that was asleep, end nothing."""
    ends_s = scene.clock.now_s + limit_s - 1.0
    slept = []

    def refuse() -> None:
        if scene.clock.now_s < ends_s or slept:
            raise error
        # One turn goes well, then the computer sleeps.
        slept.append(scene.clock.now_s)
        scene.clock.now_s += 3600.0

    scene.board.next_reports = refuse
    with pytest.raises(
        CoordinatorRefused, match=rf"nothing for {limit_s:.0f} s, since its {who} refuses \(.*: no answer\)"
    ):
        scene.loop.run(lambda: False)

    assert limit_s - 11.0 <= scene.clock.now_s - slept[0] - 3600.0 <= limit_s + 1.0


def test_a_failure_of_the_script_reaches_the_controller(scene: Scene) -> None:
    """Also before anything was trained."""
    progress = ShapeProgress(scene.log, scene.clock)
    assert progress.progress() is None

    scene.log.write_failure(ShapeFailure("m1", "ValueError: no such file"))

    assert (found := progress.progress()) is not None
    assert (found.progress.failures, found.progress.failure) == (1, "ValueError: no such file")


def test_a_stop_does_not_wait_for_a_coordinator_that_is_gone(scene: Scene) -> None:
    """Its machine was lost while the job stops, and none is bought: the job ends; a slow coordinator is waited for."""
    scene.trained()
    scene.loop.write_status(scene.clock.now_s)
    progress = ShapeProgress(scene.log, scene.clock)

    def outcome() -> Outcome:
        found = progress.progress()
        assert found is not None
        return found.progress.outcome

    scene.clock.now_s += 100.0
    assert outcome() is Outcome.RUNNING
    progress.stop(now=False, reason="stopped by ada")
    for _ in range(3):
        scene.clock.now_s += 15.0
        scene.loop.write_status(scene.clock.now_s)
        assert outcome() is Outcome.RUNNING
    scene.clock.now_s += 19.0
    assert outcome() is Outcome.RUNNING
    scene.clock.now_s += 2.0
    assert outcome() is Outcome.WAITING

    scene.loop = scene.started(taken_by_next_shape_coordinator(scene.layout))
    scene.loop.write_status(scene.clock.now_s)
    scene.clock.now_s += 100.0
    assert outcome() is Outcome.RUNNING, "a job that was resumed was not asked to stop"


@pytest.mark.parametrize("stopped", [True, False])
def test_training_that_is_resumed_after_a_stop_waits_for_no_machine_of_before(scene: Scene, *, stopped: bool) -> None:
    """They were told to go; a coordinator whose machines were not waits for those that the layout names."""
    scene.trained()
    scene.loop._planner.resting = True
    scene.all_say("r1", "a", "b")
    assert not scene.layout.stages
    assert scene.layout.left
    layout = opened_by_next_shape_coordinator(scene.layout, 0, scene.layout.coordinator if stopped else 0)
    scene.loop = scene.started(layout)
    scene.board.newest.clear()

    scene.wait(10.0, "r2", "c", "d")

    assert bool(scene.layout.stages) is stopped


def test_the_history_has_each_change_of_shape_or_machines_once(scene: Scene) -> None:
    """A coordinator that follows continues it."""
    scene.loop.write_status(scene.clock.now_s)
    scene.trained()
    for _ in range(2):
        scene.loop.write_status(scene.clock.now_s)
    scene.loop = scene.started(taken_by_next_shape_coordinator(scene.layout))
    scene.loop.write_status(scene.clock.now_s)
    scene.all_say("r1", "a", "b", "c")
    scene.loop.write_status(scene.clock.now_s)

    points = scene.log.history()
    assert [(point.pipelines, point.machines) for point in points] == [(0, 0), (2, 2), (3, 3)]


def measure(scene: Scene) -> None:
    """Both machines post that gradients take long to add up, and layers next to nothing to send."""
    layers = tuple(LayerMeasurement(0.01, 0.02, 0.0, 8, 8, 1_000_000) for _ in range(6))
    for machine in ("a", "b"):
        scene.board.posts[machine] = MachineMeasurement(
            machine, scene.layout.version, 2, 1, 8, 1, 6, 0, layers, 12_000_000, 2.6, 1e9, ((8, 1e-4), (1 << 18, 0.026))
        )


def test_what_machines_measure_changes_the_shape_and_is_kept(scene: Scene) -> None:
    """Layers taken to be equal train 2x1; measured gradients of 24 MB at 10 MB/s train 1x2; the next coordinator knows it."""
    scene.trained()
    assert (scene.layout.pipelines, scene.layout.stages) == (2, 1)
    measure(scene)
    scene.wait(1.0, "r1", "a", "b")

    assert (scene.layout.pipelines, scene.layout.stages) == (1, 2)
    assert scene.layout.because.startswith("2 machines: 1x2 trains 9.867 samples/s, 2x1 3.077; ")
    scene.all_say("r1", "a", "b", moved_s=0.4)
    scene.loop.write_status(scene.clock.now_s)
    found = scene.log.measured()
    assert found is not None
    assert [(one.stages_before, one.stages, one.seconds) for one in found.changes] == [(1, 2, 0.4)]
    scene.loop = scene.started(taken_by_next_shape_coordinator(scene.layout))
    scene.all_say("r1", "a", "b")
    scene.wait(20.0, "r1", "a", "b")
    assert (scene.layout.pipelines, scene.layout.stages) == (1, 2)


def test_ps_prints_what_was_measured_as_a_block(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The block of a job file is read as the profile that was measured; before all layers are, one sentence says so."""
    yaml = pytest.importorskip("yaml", reason="yaml is not installed: pip install 'windfall[control]'")
    url = tmp_path.as_uri()
    assert main(["ps", url, "--profile"]) == 2
    assert "is of no elastic training, or has not begun" in capsys.readouterr().err
    scene.trained()
    scene.loop.write_status(scene.clock.now_s)
    assert main(["ps", url, "--profile"]) == 2
    assert "has measured 0 of its layers until now" in capsys.readouterr().err
    measure(scene)
    scene.wait(1.0, "r1", "a", "b")
    scene.loop.write_status(scene.clock.now_s)

    assert main(["ps", url, "--profile"]) == 0
    profile = job_of(yaml.safe_load(capsys.readouterr().out)["runtime"]["elastic"]).profile
    assert profile is not None
    assert [layer.forward_s for layer in profile.pipeline.layers] == [0.01] * 6
    assert (profile.pipeline.batch, profile.pipeline.memory_bytes) == (8, 1e9)
    assert profile.pipeline.link.seconds(1 << 18) == pytest.approx(0.026, rel=0.01)


def test_ps_and_explain_say_what_was_measured(scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What shapes train as measured, and why each layout followed; a coordinator that takes over changes nothing."""
    scene.trained()
    measure(scene)
    scene.wait(1.0, "r1", "a", "b")
    scene.loop.write_status(scene.clock.now_s)
    scene.loop = scene.started(taken_by_next_shape_coordinator(scene.layout))
    assert scene.log.write_layout(scene.layout)
    scene.loop.write_status(scene.clock.now_s)
    measured = scene.loop._meter.found
    assert measured is not None

    assert shape_page.measured_speeds(measured) == "2x1 3.077 samples/s as measured"
    assert shape_page.measured_speeds(replace(measured, changes=(ChangeMeasurement(2, 1, 1, 2, 0.4),))) == (
        "2x1 3.077 samples/s as measured; changes of shape took 0.4 s in the median of 1"
    )
    assert main(["ps", tmp_path.as_uri()]) == 0
    assert main(["explain", tmp_path.as_uri()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" machines")[0] for line in lines if line.startswith("layout ")] == [
        "layout 1, term 0: all wait: training begins",
        "layout 2, term 1: 2x1: 2",
        "layout 3, term 1: 1x2: 2",
    ]


def test_a_picture_shows_the_shapes(scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence says why there is none before training has begun."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'windfall[plot]'")
    url, path = tmp_path.as_uri(), tmp_path / "shapes.png"
    assert main(["ps", url, "--plot", str(path)]) == 2
    assert "has not begun" in capsys.readouterr().err
    scene.trained()
    scene.loop.write_status(scene.clock.now_s)
    assert main(["ps", url, "--plot", str(path)]) == 0
    assert path.stat().st_size > 10_000


def test_ps_shows_a_grid_of_stages(scene: Scene) -> None:
    """A row for each pipeline, a column for each stage with its layers, and the machines that have no place."""
    scene.trained()
    status = replace(shape_status(scene.loop.coordinator, 0, WallTime(1.0), 2.5), pipelines=1, stages=2, cut=(0, 4, 6))
    first, second = [one for one in status.machines if not one.reliable]
    status = replace(
        status, machines=(replace(first, stage=0, pipeline=0), replace(second, stage=None, pipeline=None, leaving=True))
    )

    assert shape_page.columns(status) == ("pipeline", "stage 0: layers 0..3", "stage 1: layers 4..5")
    assert shape_page.rows(status) == [("0", "a", "(lost)")]
    assert shape_page.spares(status) == "b (leaving)"
    texts = dict(shape_page.lines(ShapeRecord(status, ShapeFailure("m", "it fell"), 2)))
    assert texts["shape"].startswith("1x2 (layout 2, term 1, 1 coordinator so far)")
    assert texts["step"] == "0 of 9, 2.5 a second; stored: 0"
    assert texts["redone"] == "0 steps; 0 machines lost without notice"
    assert texts["failure"] == "it fell (m; the newest of 2)"
