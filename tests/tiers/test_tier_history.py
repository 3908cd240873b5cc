"""How the loss falls, looked at beside training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.simulated_store import ManualClock
from windfall.cli.main import main
from windfall.core.tier_decisions import first_layout
from windfall.policies.layout.tiers import StageRatios, TierPlacement, place_tiers
from windfall.runtimes.tier_history import REST, TierHistory
from windfall.runtimes.tier_store import ObjectTierStore
from windfall.storage.object_stores import folder_url, open_store
from windfall.structs import replace
from windfall.terms import Seconds, WallTime
from windfall.tier_layout import ServerLayout, StoredClock, TierMachine
from windfall.tier_status import TierCounters, TierMachineStatus, TierStatus

PARTS = 2
PNG = b"\x89PNG"


class Trained:
    """A store into which a test writes checkpoints; the loss is the mean of the values."""

    def __init__(self, folder: Path) -> None:
        self.url = folder_url(str(folder))
        self.store, self.clock = ObjectTierStore(open_store(self.url)), ManualClock()
        nowhere = TierPlacement(("",) * PARTS, ("",) * PARTS, ("",))
        self.layout = first_layout(place_tiers([TierMachine("r1", True)], nowhere, StageRatios()))
        assert self.store.write_layout(self.layout)
        self.rests: list[float] = []
        self.machines: tuple[str, ...] = ("r1", "t1", "t2")
        self.history = TierHistory(self.store, lambda values: float(values.mean()), self.clock, self.rests.append)

    def checkpoint(self, stored: StoredClock, loss: float) -> ServerLayout:
        """Write a checkpoint, a layout that names it, and a status."""
        for part in range(PARTS):
            self.store.save(part, stored, np.full((3, 2), loss))
        self.layout = replace(self.layout, version=self.layout.version + 1, checkpoint=stored)
        assert self.store.write_layout(self.layout)
        machines = tuple(
            TierMachineStatus(name, name == "r1", False, (), (), (), TierCounters()) for name in self.machines
        )
        counted = (WallTime(0.0), 2, self.layout.version, 1, stored.clock, 100, 5.0, machines)
        self.store.write_status(TierStatus(*counted, TierCounters(), 0, 0, 0, 0, 0, over=False))
        return self.layout

    @property
    def seen(self) -> list[tuple[int, float | None]]:
        """Clocks and losses in the store."""
        return [(point.clock, point.loss) for point in self.store.history()]


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    """A store."""
    return Trained(tmp_path / "run")


def test_each_checkpoint_is_a_point_with_its_loss_and_its_machines(trained: Trained) -> None:
    """One that is known is not evaluated again."""
    for clock, loss in ((10, 0.5), (20, 0.25)):
        trained.checkpoint(StoredClock(0, clock), loss)
        trained.history.look()
        trained.history.look()

    assert trained.seen == [(10, 0.5), (20, 0.25)]
    last = trained.store.history()[-1]
    assert (last.stage, last.reliable, last.transient) == (2, 1, 2)


def test_after_a_return_to_a_checkpoint_later_points_are_of_what_counts(trained: Trained) -> None:
    """What was taken back is not in the history; another machine continues it."""
    for clock in (10, 20, 30):
        trained.checkpoint(StoredClock(0, clock), 1.0 / clock)
        trained.history.look()
    trained.checkpoint(StoredClock(1, 25), 0.04)
    TierHistory(trained.store, lambda values: float(values.mean()), trained.clock, trained.rests.append).look()

    assert [clock for clock, _ in trained.seen] == [10, 20, 25]


def test_a_checkpoint_that_is_gone_is_passed_over(trained: Trained) -> None:
    """The watch continues, looks once more at the end, and leaves training the machine meanwhile."""
    trained.checkpoint(StoredClock(0, 10), 0.5)
    trained.store.delete_checkpoints_before(StoredClock(0, 11))
    looks = iter([False, True])

    def slow(values: np.ndarray) -> float:
        trained.clock.sleep(4.0)
        return float(values.mean())

    def rest(duration_s: float) -> None:
        trained.rests.append(duration_s)
        trained.checkpoint(StoredClock(0, 20), 0.25)

    TierHistory(trained.store, slow, trained.clock, rest).watch(lambda: next(looks))
    assert trained.seen == [(20, 0.25)]


def test_a_slow_evaluation_leaves_training_nine_tenths_of_the_time(trained: Trained) -> None:
    """Each takes four seconds, and there is a new checkpoint each second: it evaluates at 0 s, 40 s, and at the end."""
    evaluated_s: list[float] = []

    def slow(values: np.ndarray) -> float:
        evaluated_s.append(trained.clock.now())
        trained.clock.sleep(Seconds(4.0))
        return float(values.mean())

    def rest(duration_s: float) -> None:
        trained.clock.sleep(Seconds(duration_s))
        trained.checkpoint(StoredClock(0, trained.layout.checkpoint.clock + 1), 0.25)

    trained.checkpoint(StoredClock(0, 1), 0.5)
    began_s = trained.clock.now()
    TierHistory(trained.store, slow, trained.clock, rest).watch(lambda: trained.clock.now() > began_s + 60.0)

    assert [round(at_s - began_s) for at_s in evaluated_s[:2]] == [0, round(4.0 * (1.0 + REST))]
    assert len(evaluated_s) == 3


def test_machines_that_come_are_in_the_history_though_no_checkpoint_may_be_evaluated_yet(trained: Trained) -> None:
    """A point without a loss, once; what is evaluated later takes none of them back."""
    trained.checkpoint(StoredClock(0, 10), 0.5)
    trained.history.look()
    trained.machines = ("r1", "t1", "t2", "t3")
    trained.checkpoint(StoredClock(0, 20), 0.25)
    for _ in range(3):
        trained.history.look(evaluate=False)
    trained.history.look()

    points = trained.store.history()
    assert [(point.loss, point.transient) for point in points] == [(0.5, 2), (None, 3), (0.25, 3)]


def test_a_picture_shows_the_history(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a checkpoint, or of another run, one sentence says why there is none."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'windfall[plot]'")
    path = str(tmp_path / "tiers.png")
    assert main(["ps", trained.url, "--plot", path]) == 2
    assert "is of no parameter server or elastic training, or has not begun" in capsys.readouterr().err
    trained.checkpoint(StoredClock(0, 10), 0.5)
    assert main(["ps", trained.url, "--plot", path]) == 2
    assert "has no checkpoint yet" in capsys.readouterr().err
    assert main(["ps", trained.url, "--plot", "tiers.doc"]) == 2
    trained.history.look()

    assert main(["ps", trained.url, "--plot", path]) == 0
    assert Path(path).read_bytes()[:4] == PNG
    assert "loss    0.5 at clock 10" in capsys.readouterr().out
