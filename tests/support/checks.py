"""What must hold at each event of the world."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from windfall import events as ev
from windfall.core.lifecycle import WorkerStage
from windfall.core.worker_state import WorkerState
from windfall.terms import Cause, CheckpointRef, NoticeLevel, Phase

if TYPE_CHECKING:
    from tests.support.world import Machine


class Violation(AssertionError):
    """A promise was broken."""


def demand(condition: bool, promise: str) -> None:
    """Raise unless a promise holds."""
    if not condition:
        raise Violation(promise)


class Checks:
    """The checkers of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.world = machine.world
        self.blemishes: set[str] = set()
        self.fence_seen = False
        self.requests = 0
        self.failures = 0
        self.announced = False
        self.deadline: float | None = None
        self.honest = False
        self.step_at_notice: int | None = None
        self.promised: float | None = None
        self.intervals: list[float] = []
        self.uploads_since_change = self.world.store.upload_began

    # ---------------------------------------------------------------------------------------------------- observations

    def blemish(self, what: str) -> None:
        """Something went wrong that excuses bounds which assume a healthy machine and store."""
        self.blemishes.add(what)

    def notice(self, deadline: float, *, honest: bool) -> None:
        """An end is announced."""
        self.deadline, self.honest = deadline, honest

    def _steps(self) -> list[int]:
        script = self.machine.script
        return [rank.step for rank in script.ranks] if script is not None else []

    def reacted(
        self,
        before: WorkerState,
        facts: tuple[ev.Fact, ...],
        decisions: tuple[ev.Decision, ...],
        commands: tuple[ev.Command, ...],
    ) -> None:
        """A batch was reacted to."""
        for fact in facts:
            self._saw(before, fact, commands)
        if any(isinstance(fact, ev.AgentResumed) for fact in facts):
            self.blemish("agent")
        for decision in decisions:
            self._decided(decision)
        script = self.machine.script
        if script is not None and script.alive and script.attempt == self.machine.state.attempt:
            for checkpoint in self.machine.state.checkpoints:
                demand(
                    checkpoint.complete or min(self._steps()) <= checkpoint.step + 12,
                    f"a point that every rank has passed is stored or given up, not forgotten: {checkpoint}",
                )

    def _saw(self, before: WorkerState, fact: ev.Fact, commands: tuple[ev.Command, ...]) -> None:
        if isinstance(fact, ev.FenceLost) and before.stage is not WorkerStage.ENDED:
            self.fence_seen = True
            kinds = [type(command) for command in commands]
            demand(kinds[-2:] == [ev.KillScript, ev.ExitAgent], "whoever lost the run stops at once")
        elif isinstance(fact, ev.ScriptExited) and fact.status != 0:
            self.blemish("script")
            self.failures += before.shutdown is None
        elif isinstance(fact, ev.NoticeReceived):
            self.announced = fact.notice.level is NoticeLevel.ANNOUNCED
            if self.announced and before.script and self._steps():
                self.step_at_notice = min(self._steps())
            if fact.notice.level is NoticeLevel.WITHDRAWN:
                self.promised = None

    def _decided(self, decision: ev.Decision) -> None:
        numbers = {item.name: item.value for item in decision.rationale}
        if "interval" in numbers:
            self.intervals.append(numbers["interval"])
        scene = self.world.scene
        steady = self.uploads_since_change >= self.world.rate_changed_at
        if decision.policy == "thesis" or self.blemishes:
            return
        if "upload" in numbers and steady and "not known" not in decision.choice:
            truth_s = scene.latency_s + scene.size / self.world.rate
            demand(
                numbers["upload"] > 0.85 * truth_s,
                f"an upload of {truth_s:.1f} s is foreseen, not {numbers['upload']:.1f} s",
            )
        if not self.honest:
            return
        if decision.choice.startswith("emergency save") and "not known" not in decision.choice:
            parts = ("rest of phase", "snapshot", "upload", "commit")
            needs_s = sum(numbers[part] for part in parts)
            if steady and 1.2 * needs_s + 0.2 < numbers["remaining"]:
                self.promised = self.deadline
            least_s = scene.stall_s + scene.commit_s + scene.latency_s + 0.9 * scene.size / self.world.rate
            demand(
                not steady or least_s < 1.2 * numbers["remaining"],
                f"an emergency save that cannot be stored in time is refused beforehand: {least_s:.1f} s",
            )
        elif decision.choice.startswith("no emergency save") and steady:
            demand(
                self._needs_s() * 1.3 + 0.2 > numbers["remaining"],
                f"an emergency save that fits is made: {self._needs_s():.1f} s of {numbers['remaining']:.1f} s needed",
            )

    def _needs_s(self) -> float:
        """An upper bound of what an emergency save takes in truth [s]."""
        scene = self.world.scene
        margin = 1 if scene.ranks == 1 else 4 + math.ceil(0.05 / scene.step_s)
        script = self.machine.script
        evaluating = script is not None and any(rank.phase is Phase.EVALUATION for rank in script.ranks)
        evaluation_s = scene.evaluation_s if evaluating else 0.0
        saving_s = (
            scene.stall_s if script is not None and any(rank.phase is Phase.SAVE for rank in script.ranks) else 0.0
        )
        shards = scene.ranks if scene.sharded and not scene.shared_folder else 1
        upload_s = shards * scene.latency_s + scene.size / self.world.rate
        return (margin + 4) * scene.step_s + evaluation_s + saving_s + scene.stall_s + upload_s + scene.commit_s

    # -------------------------------------------------------------------------------------------------------- commands

    def check_executed(self, command: ev.Command) -> None:
        """A command is about to be carried out."""
        if isinstance(command, ev.CommitCheckpoint | ev.UploadShard | ev.PublishSave):
            demand(not self.fence_seen, "nothing is saved after the fence was lost")
        if isinstance(command, ev.PublishSave):
            demand(command.request >= self.requests, "numbers of requests grow")
            self.requests = command.request
            demand(command.exact == (len(self.machine.state.ranks) > 1), "several ranks save at exactly the same step")
        elif isinstance(command, ev.AcknowledgeNotice):
            newest = self.world.store.step
            demand(newest >= (self.step_at_notice or 0), "a notice is acknowledged only after the commit")
        elif isinstance(command, ev.StartScript):
            demand(
                self.failures < self.world.scene.failures_max, "a failing script is started a bounded number of times"
            )

    def committed(self, checkpoint: CheckpointRef) -> None:
        """A point was committed."""
        content = self.world.store.content[checkpoint.checkpoint_id]
        scene = self.world.scene
        wanted = set(range(scene.ranks)) if scene.sharded else {0}
        demand({rank for rank, _ in content} == wanted, f"a point holds every rank's part, not {sorted(content)}")
        demand({step for _, step in content} == {checkpoint.step}, f"all parts are of one step, not {sorted(content)}")
        self.world.count(f"committed {checkpoint.kind}")

    def deleted(self) -> None:
        """Points were deleted."""
        known = [
            checkpoint
            for checkpoint in self.world.store.live
            if checkpoint.checkpoint_id not in self.machine.state.damaged
        ]
        demand(len(known) >= 2, "two points that are whole as far as anyone knows always stay")

    def released(self, command: ev.ReleaseRun) -> None:
        """The run was let go."""
        if (
            command.cause is Cause.PREEMPTED_SAVED
            and self.step_at_notice is not None
            and "script" not in self.blemishes
        ):
            demand(
                self.world.store.step >= self.step_at_notice,
                "what is called saved is saved: no step before the notice is redone",
            )
        if command.cause in {Cause.PREEMPTED_SAVED, Cause.PREEMPTED_UNSAVED}:
            demand(self.announced, "a machine whose end was called off goes on")

    def done(self) -> None:
        """The run is done."""
        script = self.machine.script
        demand(script is not None and min(self._steps()) >= self.world.scene.steps, "done means all steps")

    # ---------------------------------------------------------------------------------------------------------- losses

    def died(self) -> None:
        """The machine is about to be lost."""
        if self.promised is not None and self.honest and not self.blemishes:
            demand(False, "an emergency save that was promised is committed before the announced end")
        if self.blemishes or self.deadline is not None or self.world.scene.policy != "adaptive":
            return
        if self.world.store.term != self.machine.term or not self.intervals or self.machine.state.script is False:
            return
        scene = self.world.scene
        shards = scene.ranks if scene.sharded and not scene.shared_folder else 1
        durable_s = (
            scene.stall_s + shards * scene.latency_s + scene.size / min(self.world.rate, scene.rate) + scene.commit_s
        )
        margin = 12 if scene.ranks > 1 else 2
        bound_s = max(self.intervals) * 1.1 + 2.2 * durable_s + margin * scene.step_s + scene.evaluation_s
        lost = max(self._steps()) - self.world.store.step
        demand(
            lost * scene.step_s * 0.97 <= bound_s,
            f"a loss without notice redoes at most interval + save + upload + a step: {lost} steps of {scene.step_s} s "
            f"against {bound_s:.1f} s",
        )
        self.world.count("bound checked")
