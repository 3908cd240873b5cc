"""Forty changes by a seed, and the real coordinator: machines join, leave, vanish, leader and backup too; the end is the same.

The figures of each seed are printed: kinds of changes, shapes, steps redone, samples checked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.elastic.storm_checks import GENTLE, ROUGH, Change, StormChecks, distance, final_state, losses
from tests.elastic.storm_fleet import MACHINES_MAX, StormFleet, alone, fixed_shape
from windfall.shape_layout import ShapeLayout

CHANGES, STEPS_EACH, STEPS_AFTER = 40, 8, 30
STEPS = CHANGES * STEPS_EACH + STEPS_AFTER
SAVE_EVERY = 10
CALM_WITHIN_S, MIGRATION_WITHIN_S = 150.0, 10.0
FIXED = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))
LEAST = 3
"""Machines that train before a change that takes some."""
FLEETS = (2, 3, 4, 6, MACHINES_MAX)
"""Machines that train before a change, at least, one of these by the seed."""


class LiveStorm:
    """One storm.

    Args:
        machines: the processes.
        seed: of all choices.
    """

    def __init__(self, machines: StormFleet, seed: int) -> None:
        self._machines, self._chance = machines, random.Random(f"live storm {seed}")
        self._started, self._whim = 0, 0
        self._leaving: list[str] = []
        self.changes: list[Change] = []
        kinds = [*GENTLE, *ROUGH] * 3
        kinds += self._chance.choices([*GENTLE, *ROUGH], k=CHANGES - len(kinds))
        self._chance.shuffle(kinds)
        self._kinds = kinds

    def run(self) -> None:
        """Let everything happen, then let training come to its end."""
        self._machines.start_leader()
        for _ in range(4):
            self._start("m")
        self._start("R")
        self._calm()
        for number, kind in enumerate(self._kinds):
            self._machines.let("allowed", STEPS_EACH * (number + 1))
            self._prepare(kind)
            began_s = time.time()
            self._machines.note(f"{began_s:.2f} {kind} {self._placed()}")
            self._act(kind)
            self.changes.append(Change(kind, began_s, time.time()))
            self._calm()
        self._machines.let("allowed", STEPS)
        self._wait("the end of training", lambda: (layout := self._machines.layout()) is not None and layout.over)

    # ------------------------------------------------------------------------------------------------------------ changes

    def _prepare(self, kind: str) -> None:
        """Have machines enough for a change."""
        wanted = self._chance.choice(FLEETS)
        while len(self._training()) < max(wanted, LEAST if kind in (*ROUGH, "notice") else 2):
            self._start("m")
        self._calm()

    def _act(self, kind: str) -> None:
        chance, machines = self._chance, self._machines
        placed = self._placed()
        if kind == "join":
            for _ in range(chance.randint(1, 2)):
                self._join()
        elif kind == "notice":
            for name in chance.sample(placed, min(len(placed) - 1, chance.randint(1, 2)) or 1):
                self._announce(name)
            if chance.random() < 0.5:
                self._join()
        elif kind == "reshape":
            self._reshape()
        elif kind in ("leader", "leader and backup"):
            if kind != "leader":
                machines.kill(*self._backups())
                self._start("R")
            machines.kill_leader()
            machines.start_leader()
        elif kind == "backup":
            machines.kill(*self._backups())
            self._start("R")
        elif kind == "short notice":
            victim = chance.choice(placed)
            self._announce(victim)
            time.sleep(chance.uniform(0.0, 0.3))
            machines.kill(victim)
        elif kind == "midway":
            self._lose_midway()
        else:
            self._lose(kind, placed)

    def _lose(self, kind: str, placed: list[str]) -> None:
        layout = self._layout()
        victims = self._chance.sample(placed, min(len(placed), 2 if kind == "two" else 1))
        if kind.startswith("stage"):
            stage = self._chance.choice(layout.places).stage
            victims = [place.machine for place in layout.places if place.stage == stage]
        if kind == "stage and backup":
            victims += self._backups()
            self._start("R")
        self._machines.kill(*victims)
        while len(self._training()) < 2 or (self._chance.random() < 0.3 and len(self._training()) < MACHINES_MAX):
            self._start("m")

    def _lose_midway(self) -> None:
        """Kill an end of a move, or one that trains, before all have made a planned layout."""
        before = self._layout()
        if self._chance.random() < 0.5:
            self._join()
        self._reshape()
        asked_s = time.time()

        def planned() -> bool:
            nonlocal asked_s
            if time.time() > asked_s + MIGRATION_WITHIN_S:
                # The shape that was drawn is the one that is trained.
                self._reshape()
                asked_s = time.time()
            return self._layout().version > before.version

        self._wait("a migration", planned)
        layout = self._layout()
        ends = {name for move in layout.moves for name in (move.source, move.target)} - {layout.backup, ""}
        self._machines.kill(self._chance.choice(sorted(ends) or self._placed()))

    def _reshape(self) -> None:
        self._whim += 1
        self._machines.let("whim", self._whim)

    def _join(self) -> None:
        if len(self._training()) < MACHINES_MAX:
            self._start("m")

    def _announce(self, name: str) -> None:
        self._leaving.append(name)
        self._machines.announce(name)

    def _start(self, kind: str) -> None:
        self._started += 1
        self._machines.start(f"{kind}{self._started}")

    # --------------------------------------------------------------------------------------------------------------- facts

    def _layout(self) -> ShapeLayout:
        layout = self._machines.layout()
        assert layout is not None
        return layout

    def _training(self) -> list[str]:
        """Machines that can train and stay."""
        return [name for name in self._machines.alive() if name.startswith("m") and name not in self._leaving]

    def _backups(self) -> list[str]:
        return [name for name in self._machines.alive() if name.startswith("R")]

    def _placed(self) -> list[str]:
        return [place.machine for place in self._layout().places]

    def _calm(self) -> None:
        """Wait until all that live have made a layout with a backup, those that are to leave have left, and steps follow."""
        steps = self._chance.randint(1, 3)
        began: dict[int, int] = {}

        def there() -> bool:
            layout, reports = self._machines.layout(), self._machines.reports()
            assert layout is None or not layout.over, f"training was over after {len(self.changes)} changes"
            if layout is None or layout.stop or not layout.stages or layout.backup not in self._backups():
                return False
            alive = self._machines.alive()
            made = all(name in reports and reports[name].layout == layout.version for name in alive)
            placed = {place.machine for place in layout.places}
            if not made or set(alive) & set(self._leaving) or not placed <= reports.keys():
                return False
            step = min(reports[name].trained for name in placed)
            return step >= began.setdefault(layout.version, step) + steps and reports[layout.backup].trained >= step - 1

        self._wait("calm", there)

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        end_s = time.monotonic() + CALM_WITHIN_S
        while not ready():
            assert time.monotonic() < end_s, (
                f"no {what} after {[change.kind for change in self.changes]}: {self._machines.layout()}, "
                f"{self._machines.reports()}, {self._machines.errors()}"
            )
            time.sleep(0.05)


def _played(folder: Path, seed: int, *, deterministic: bool) -> tuple[StormFleet, LiveStorm, float]:
    machines = StormFleet(folder, seed, steps=STEPS, deterministic=deterministic, save_every=SAVE_EVERY)
    storm = LiveStorm(machines, seed)
    began_s = time.time()
    try:
        storm.run()
        codes = machines.exit_codes()
    finally:
        machines.close()
    # 75: it was told to leave, as it was to.
    assert set(codes.values()) <= {0, 75}, (codes, machines.errors())
    return machines, storm, time.time() - began_s


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_a_storm_of_changes_does_not_change_the_result(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the bit the losses and state of one process; each sample once an epoch; nothing redone but one step after a loss."""
    alone(tmp_path / "alone", {"steps": STEPS, "deterministic": True})
    machines, storm, seconds = _played(tmp_path / "run", seed, deterministic=True)
    found = StormChecks(tmp_path / "alone", machines, storm.changes)
    with capsys.disabled():
        print(f"\nseed {seed}: {seconds:.0f} s; {found.figures()}")

    found.check_losses()
    found.check_samples()
    found.check_redone()
    found.check_changes(STEPS)
    assert {path.read_text() for path in machines.folder.glob("*.end")} == {
        (tmp_path / "alone" / "alone.end").read_text()
    }


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_storm_in_default_mode_ends_within_the_spread_of_fixed_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The final state and the losses of all steps are no further from a fixed shape's than five fixed shapes' are apart."""
    options = {"steps": STEPS, "deterministic": False}
    folders = [tmp_path / f"{pipelines}x{stages}" for pipelines, stages in FIXED]
    for folder, shape in zip(folders, FIXED, strict=True):
        fixed_shape(folder, *shape, options)
    alone(tmp_path / "alone", options)
    machines, storm, seconds = _played(tmp_path / "run", 0, deterministic=False)
    found = StormChecks(tmp_path / "alone", machines, storm.changes)
    states, curves = [final_state(folder) for folder in folders], [losses(folder, STEPS) for folder in folders]
    mine, curve = final_state(machines.folder), losses(machines.folder, STEPS)
    apart = max(distance(one, other) for one in states for other in states)
    near = min(distance(mine, one) for one in states)
    curves_apart = max(_mean_distance(one, other) for one in curves for other in curves)
    curve_near = min(_mean_distance(curve, one) for one in curves)
    with capsys.disabled():
        print(
            f"\ndefault mode, seed 0: {seconds:.0f} s; {found.figures()}; state {near:.3g} from the nearest fixed shape, these "
            f"{apart:.3g} apart at most; a step's loss on average {curve_near:.3g} from it, these {curves_apart:.3g} apart"
        )

    found.check_samples()
    found.check_redone()
    found.check_changes(STEPS)
    assert 0.0 < near <= apart
    assert 0.0 < curve_near <= curves_apart


def _mean_distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """How far losses are apart, on average over the steps."""
    return float((one - other).abs().mean())
