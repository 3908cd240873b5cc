"""What must hold after a live storm, by what each machine wrote of samples and steps as it went, and by the log of layouts.

A step that was given up is trained again in another term: what counts of it is the newest term's.  The term of a line is that
of the newest layout which began one before the line was written: a term begins when all that live have stopped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch

from tests.elastic.storm_fleet import StormFleet, lines
from tests.elastic.storm_script import BATCH, SAMPLES

STEPS_PER_EPOCH = -(-SAMPLES // BATCH)
GENTLE = ("join", "notice", "reshape", "leader", "backup", "leader and backup")
"""Changes after which no step is redone."""
ROUGH = ("short notice", "vanish", "two", "stage", "midway", "stage and backup")
"""Machines that train vanish without a word."""
APART = "stage and backup"
START = "the start"


class Change(NamedTuple):
    """A change of the storm.

    Attributes:
        kind: what was done.
        began_s, ended_s: when [s].
    """

    kind: str
    began_s: float
    ended_s: float


class Trained(NamedTuple):
    """What a machine did for a step.

    Attributes:
        machine: its name.
        term: in which.
        at_s: when it had [s].
        step: the one that it has finished; 0: none, since it was killed, or gave it up.
        loss: of the step.
        read: samples that its data set gave.
        trained: samples of which it computed the loss.
    """

    machine: str
    term: int
    at_s: float
    step: int
    loss: float
    read: tuple[int, ...]
    trained: tuple[int, ...]


class StormChecks:
    """A storm that is over, beside a training without changes.

    Args:
        reference: folder of the training of one process.
        machines: the storm's.
        changes: what was done.
    """

    def __init__(self, reference: Path, machines: StormFleet, changes: list[Change]) -> None:
        self._changes = changes
        self.layouts = machines.layouts()
        before = (layout for _, layout in self.layouts)
        # A coordinator that follows writes the newest layout again: no term begins by that.
        self._begins = [
            (at_s, layout)
            for (at_s, layout), last in zip(self.layouts[1:], before, strict=False)
            if layout.term != last.term
        ]
        self._expected = {done.step: done for done in _work(reference / "alone.record", []) if done.step}
        self._work = [
            done
            for path in sorted(machines.folder.glob("*.record"))
            for done in _work(path, [at_s for at_s, _ in self._begins])
        ]
        self.shapes = Counter(
            f"{layout.pipelines}x{layout.stages}" for _, layout in self.layouts if layout.stages and not layout.stop
        )
        self.redone = self._redone()
        self.checked = self.vanished_samples = 0

    def check_losses(self) -> None:
        """Every machine has the loss of the undisturbed training, to the last bit, each time."""
        for done in self._work:
            if done.step:
                assert done.loss == self._expected[done.step].loss, (done, self._expected[done.step].loss)

    def check_samples(self) -> None:
        """Each sample of each epoch counts exactly once, and it is the one of that step in the undisturbed training."""
        newest: dict[int, int] = {}
        for done in self._work:
            newest[done.step] = max(newest.get(done.step, 0), done.term)
        newest.pop(0, None)
        epochs: dict[int, Counter[int]] = {}
        for step in sorted(self._expected):
            term = newest[step]
            mine = [done for done in self._work if (done.step, done.term) == (step, term)]
            wanted = set(self._expected[step].trained)
            for kind in ("trained", "read"):
                found = Counter(sample for done in mine for sample in getattr(done, kind))
                missing = wanted - found.keys()
                if missing:
                    # They were trained by machines that vanished before they could write that the step was finished.
                    torn = {
                        one for done in self._work if (done.step, done.term) == (0, term) for one in getattr(done, kind)
                    }
                    assert missing <= torn, (step, term, kind, missing, mine)
                    found.update(missing)
                    self.vanished_samples += len(missing) if kind == "trained" else 0
                assert set(found) == wanted, (step, kind, found, wanted)
                # A pipeline reads inputs in its first stage and targets in its last one.
                assert max(found.values()) <= (1 if kind == "trained" else 2), (step, kind, found)
                if kind == "trained":
                    epochs.setdefault((step - 1) // STEPS_PER_EPOCH, Counter()).update(found)
                    self.checked += len(found)
        for epoch, found in epochs.items():
            if (epoch + 1) * STEPS_PER_EPOCH <= max(self._expected):
                assert found == Counter(range(SAMPLES)), (epoch, found)

    def check_redone(self) -> None:
        """Nothing is redone after a notice, a join, or the loss of leader or backup; after another loss at most one step."""
        for kind, steps, because in self.redone:
            if kind != APART:
                assert steps <= (1 if kind in ROUGH else 0), (kind, steps, because, self.redone)
        assert sum(steps for _, steps, _ in self.redone) >= self.layouts[-1][1].redone

    def check_changes(self, steps: int) -> None:
        """All changes came while training went on, and a term began for losses alone."""
        last_s = self._changes[-1].ended_s
        before = max(done.step for done in self._work if done.at_s < last_s)
        assert before < steps, "training was over before the last change"
        assert not [one for one in self.redone if one[0] not in {*ROUGH, START}], self.redone

    def figures(self) -> str:
        """Return what is worth knowing."""
        by_kind = Counter(change.kind for change in self._changes)
        apart = [steps for kind, steps, _ in self.redone if kind == APART]
        rest = Counter(steps for kind, steps, _ in self.redone if kind not in (APART, START))
        return (
            f"{len(self._changes)} changes {dict(sorted(by_kind.items()))}; {len(self.layouts)} layouts, shapes "
            f"{dict(sorted(self.shapes.items()))}; {len(self._begins)} terms; losses by steps redone "
            f"{dict(sorted(rest.items()))}, of a stage with the backup {apart}"
        )

    def _redone(self) -> list[tuple[str, int, str]]:
        """Return for each term that began: the change before, how many steps were trained and taken back, and why."""
        found = []
        for number, (at_s, layout) in enumerate(self._begins):
            reached = [done.step for done in self._work if done.step and done.term == number]
            newest = max([layout.base if not number else self._begins[number - 1][1].base, *reached])
            kind = next((change.kind for change in reversed(self._changes) if change.began_s <= at_s), START)
            found.append((kind, newest - layout.base, layout.because))
        return found


def _work(path: Path, begins_s: list[float]) -> list[Trained]:
    """Return what a machine has done, in order; what it did for a step that it gave up by itself."""
    found: list[Trained] = []
    term, at_s = 0, 0.0
    read: list[int] = []
    trained: list[int] = []

    def close(step: int, loss: float) -> None:
        if step or read or trained:
            found.append(Trained(path.stem, term, at_s, step, loss, tuple(read), tuple(trained)))
            read.clear()
            trained.clear()

    for line_s, kind, *values in lines(path):
        newer = bisect_right(begins_s, line_s)
        if newer != term:
            close(0, 0.0)
        term, at_s = newer, line_s
        if kind == "step":
            close(*values)
        elif kind in ("read", "trained"):
            (read if kind == "read" else trained).extend(values)
    close(0, 0.0)
    return found


def final_state(folder: Path) -> torch.Tensor:
    """Return all parameters of a training that is over, in a row; all machines must have the same."""
    found = {path: torch.load(path, weights_only=True) for path in sorted(folder.glob("*.state"))}
    rows = [torch.cat([value.flatten() for layer in state for value in layer.values()]) for state in found.values()]
    assert all(torch.equal(rows[0], row) for row in rows), list(found)
    return rows[0]


def losses(folder: Path, steps: int) -> torch.Tensor:
    """Return the loss of each step, of the newest time that it was trained."""
    found: dict[int, Trained] = {}
    for path in folder.glob("*.record"):
        for done in _work(path, []):
            if done.step and (done.step not in found or done.at_s > found[done.step].at_s):
                found[done.step] = done
    return torch.tensor([found[step].loss for step in range(1, steps + 1)], dtype=torch.float64)


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return how far states are apart: the largest difference of a parameter."""
    return float((one - other).abs().max())
