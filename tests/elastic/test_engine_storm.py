"""Many changes drawn by a seed: machines join, leave, vanish, also several and in the middle of a change; the result stays."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.elastic.scripted_fleet import ScriptedFleet, alone, fleet

MACHINES_MAX, SPARES = 6, 10
KINDS = ("join", "leave", "vanish", "two", "stage", "midway", "backup", "reshape")


class Storm:
    """One storm.

    Args:
        machines: that train.
        seed: of all choices.
        steps: of the training.
    """

    def __init__(self, machines: ScriptedFleet, seed: int, steps: int) -> None:
        self._machines, self._chance, self._steps = machines, random.Random(seed), steps
        self._live: list[str] = []
        self._gone: list[str] = []
        self._backup = ""
        self._started = 0
        self._spares: dict[str, list[str]] = {"m": [], "R": []}
        self.losses = 0
        self.told: list[str] = []

    def begin(self) -> None:
        """Start with four machines and a backup; those that join later wait already, so that changes follow one another."""
        self._spares = {"m": [self._new("m") for _ in range(SPARES)], "R": [self._new("R") for _ in range(3)]}
        self._start(4)
        self._backup = self._start_one("R")
        self._machines.begin(2, 2, self._live, backup=self._backup)
        self._progress()

    def change(self) -> None:
        """Let one thing happen."""
        kind = self._chance.choice(KINDS)
        self.told.append(f"{kind} with {len(self._live)}")
        if kind == "join" and len(self._live) < MACHINES_MAX:
            self._start(1)
            self._plan()
        elif kind == "leave" and len(self._live) > 1:
            name = self._chance.choice(self._live)
            self._live.remove(name)
            self._plan()
            self._kill(name)
        elif kind in ("vanish", "two", "stage") and len(self._live) > 1:
            self._lose(self._victims(kind))
        elif kind == "midway" and len(self._live) > 1:
            self._machines.plan(*self._shape(), self._live, backup=self._backup)
            self._lose([self._chance.choice(self._live)])
        elif kind == "backup":
            self._kill(self._backup)
            self._progress()
            old, self._backup = self._backup, self._start_one("R")
            self._plan(gone=[old])
        else:
            self._plan()

    def finish(self) -> None:
        """Let training come to its end."""
        self._machines.finish([*self._trained(), self._backup], self._steps)

    # -------------------------------------------------------------------------------------------------------------- inside

    def _start(self, count: int) -> None:
        self._live += [self._start_one("m") for _ in range(count)]

    def _start_one(self, kind: str) -> str:
        name = self._spares[kind].pop() if self._spares[kind] else self._new(kind)
        self._machines.wait([name], lambda report: report.layers > 0)
        return name

    def _new(self, kind: str) -> str:
        self._started += 1
        name = f"{kind}{self._started}"
        self._machines.start(name)
        return name

    def _kill(self, *names: str) -> None:
        self._machines.kill(*names)
        self._gone += names

    def _shape(self) -> tuple[int, int]:
        stages = self._chance.choice([one for one in (1, 2, 3, 4) if one <= len(self._live)])
        pipelines = self._chance.randint(1, len(self._live) // stages)
        self._chance.shuffle(self._live)
        return pipelines, stages

    def _trained(self) -> list[str]:
        assert self._machines.layout is not None
        return [place.machine for place in self._machines.layout.places]

    def _victims(self, kind: str) -> list[str]:
        assert self._machines.layout is not None
        places = self._machines.layout.places
        if kind == "stage":
            stage = self._chance.choice(places).stage
            lost = [place.machine for place in places if place.stage == stage]
        else:
            lost = self._chance.sample(self._live, 1 if kind == "vanish" else 2)
        return lost[: len(self._live) - 1]

    def _plan(self, gone: tuple[str, ...] | list[str] = ()) -> None:
        self._machines.plan(*self._shape(), self._live, backup=self._backup, gone=gone)
        self._progress()

    def _lose(self, lost: list[str]) -> None:
        self.losses += 1
        self._kill(*lost)
        self._live = [name for name in self._live if name not in lost]
        self._machines.stop()
        left = [*self._live, self._backup]
        self._machines.wait_made(left)
        self._machines.wait(left, lambda report: report.stopped)
        step = self._machines.common_step(left)
        self._machines.begin(*self._shape(), self._live, step=step, backup=self._backup, gone=self._gone)
        self._progress()

    def _progress(self) -> None:
        names = self._trained()
        self._machines.wait_made([*names, self._backup] if self._backup not in self._gone else names)
        reports = [self._machines.report(name) for name in names]
        step = min(report.trained for report in reports if report is not None)
        wanted = min(self._steps, step + self._chance.randint(1, 3))
        self._machines.wait(names, lambda report: report.trained >= wanted)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(4))
def test_a_storm_of_changes_does_not_change_the_result(seed: int, tmp_path: Path) -> None:
    """Losses and final state are bitwise those of one process, and a loss repeats at most one step."""
    steps = 120
    expected = alone(tmp_path / "alone", {"steps": steps})
    with fleet(tmp_path / "run", steps=steps, wait_s=0.005) as machines:
        storm = Storm(machines, seed, steps)
        storm.begin()
        for _ in range(20):
            storm.change()
        storm.finish()

        assert machines.losses() == expected[0], storm.told
        assert machines.digests() == {expected[1]}, storm.told
        assert max(machines.repeated().values()) <= storm.losses, storm.told
