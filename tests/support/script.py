"""The user's script of the world: ranks that step, save, evaluate, end or fail, each on its own time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windfall import events as ev
from windfall.terms import Phase

if TYPE_CHECKING:
    from tests.support.world import Machine


@dataclass
class Rank:
    """One process of the script."""

    number: int
    step: int
    phase: Phase = Phase.START
    since: float = 0.0
    acked: int = 0
    waiting: bool = False
    finished: bool = False


class Script:
    """One attempt of the user's script."""

    def __init__(self, machine: Machine, step: int) -> None:
        self.machine = machine
        self.world = machine.world
        self.ranks = [Rank(number, step, since=self.world.now) for number in range(self.world.scene.ranks)]
        self.attempt = machine.state.attempt
        self.request: tuple[int, int, bool] | None = None
        self.alive = True
        self.window: list[float] = []
        self.fails_at = step + self.world.rng.randint(1, 6) if self._shall_fail() else None
        for rank in self.ranks:
            self._later(self.world.jitter(1.0), lambda rank=rank: self._begin_step(rank))

    def _shall_fail(self) -> bool:
        if self.world.calm:
            return False
        return self.world.scene.broken or self.world.rng.random() < 0.05

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.world.at(delay_s, lambda: action() if self.alive and self.machine.alive else None)

    def status(self) -> ev.RanksObserved:
        """What the pages say."""
        ranks = (ev.RankStatus(rank.number, rank.step, rank.phase, rank.since) for rank in self.ranks)
        return ev.RanksObserved(tuple(ranks))

    def _enter(self, rank: Rank, phase: Phase) -> None:
        rank.phase, rank.since = phase, self.world.now

    def _begin_step(self, rank: Rank) -> None:
        scene = self.world.scene
        if rank.step >= scene.steps:
            self._enter(rank, Phase.BETWEEN)
            rank.finished = True
            if all(other.finished for other in self.ranks):
                self._later(0.2, lambda: self.exit(0))
            return
        if rank.step - min(other.step for other in self.ranks) >= 3:
            rank.waiting = True
            return
        rank.waiting = False
        self._enter(rank, Phase.STEP)
        took_s = self.world.jitter(scene.step_s)
        self._later(took_s, lambda: self._end_step(rank, took_s))

    def _end_step(self, rank: Rank, took_s: float) -> None:
        rank.step += 1
        self._enter(rank, Phase.BETWEEN)
        if rank.number == 0:
            self.window.append(took_s)
        if rank.step == self.fails_at:
            self.exit(1)
            return
        for other in self.ranks:
            if other.waiting:
                self._begin_step(other)
        request = self._asked(rank)
        scene = self.world.scene
        periodic = bool(scene.periodic) and rank.step % scene.periodic == 0
        if request:
            rank.acked = request
            self.machine.script_fact(ev.SaveAnswered(rank.number, request, rank.step))
        if request or periodic:
            self._save(rank, request)
        else:
            self._evaluate(rank)

    def _asked(self, rank: Rank) -> int:
        if self.request is None:
            return 0
        number, step, exact = self.request
        hit = rank.step == step if exact else rank.step >= step
        return number if hit and rank.acked < number else 0

    def _save(self, rank: Rank, request: int) -> None:
        scene = self.world.scene
        step = rank.step
        if not scene.sharded and rank.number != 0:
            self._later(0.001, lambda: self._move_on(rank, step))
            return
        self._enter(rank, Phase.SAVE)
        stall_s = self.world.jitter(scene.stall_s)

        def hand_over() -> None:
            owner = 0 if scene.shared_folder else rank.number
            path = self.machine.save_part(rank.number, step, owner)
            size = int(self.world.jitter(scene.size) / (1 if scene.shared_folder or not scene.sharded else scene.ranks))
            self.machine.script_fact(ev.ShardHandedOver(rank.number, step, request, path, size, stall_s))
            self._evaluate(rank)

        self._later(stall_s, hand_over)

    def _move_on(self, rank: Rank, step: int) -> None:
        self.machine.script_fact(ev.RankAdvanced(rank.number, step))
        self._evaluate(rank)

    def _evaluate(self, rank: Rank) -> None:
        scene = self.world.scene
        if not scene.evaluation or rank.step % scene.evaluation:
            self._begin_step(rank)
            return
        self._enter(rank, Phase.EVALUATION)
        took_s = self.world.jitter(scene.evaluation_s)

        def over() -> None:
            self.machine.script_fact(ev.PhaseMeasured(rank.number, Phase.EVALUATION, took_s))
            self._begin_step(rank)

        self._later(took_s, over)

    def measure(self) -> list[ev.Fact]:
        """Close a window of steps."""
        facts: list[ev.Fact] = []
        if self.window:
            mean = sum(self.window) / len(self.window)
            slowest = min(rank.step for rank in self.ranks)
            facts.append(ev.StepsMeasured(slowest, len(self.window), mean, max(self.window)))
            self.window = []
        return [*facts, self.status()]

    def exit(self, status: int) -> None:
        """The process ends."""
        if self.alive:
            self.alive = False
            self.machine.script_fact(ev.ScriptExited(status))
