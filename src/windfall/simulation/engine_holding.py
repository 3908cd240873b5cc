"""One holding of a simulated run: the real worker's reducer, over a script and an uplink in virtual time.

The engine jumps over steps: what happens is a save, an upload, a notice, a timer, an end.  Each batch of facts begins
with a look at the ranks as they are at that moment, and with the steps since the last one, so that the worker knows
what the live loop's looks, a hundred in a second, would have told it.  With several machines the worker is the leader's,
and the ranks are in lockstep.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

from windfall.core import worker
from windfall.events import (
    AbandonCheckpoint,
    BeliefsChanged,
    CheckpointCommitted,
    CheckpointRestored,
    Command,
    CommitCheckpoint,
    DeleteCheckpoints,
    ExitAgent,
    Fact,
    KillScript,
    NoticeReceived,
    PeerLost,
    PublishSave,
    RanksObserved,
    RankStatus,
    ReleaseRun,
    SaveAnswered,
    SaveTableGiven,
    ScriptExited,
    ScriptStarted,
    ShardHandedOver,
    ShardUploaded,
    StartScript,
    StepsMeasured,
    UploadShard,
    WakeAt,
    WithdrawSave,
    Woke,
    WorkerBegan,
)
from windfall.simulation.clock import Appointment, Timeline
from windfall.simulation.engine_journal import Rows, Saves
from windfall.simulation.engine_run import Run
from windfall.simulation.engine_time import Division, Script
from windfall.simulation.sampling import Draws
from windfall.simulation.scenario import Scenario
from windfall.terms import (
    Bytes,
    Chunk,
    FileEntry,
    Instant,
    Notice,
    NoticeLevel,
    Phase,
    SaveTable,
    Seconds,
    Shard,
    Step,
)

PART_BYTES: Final = Bytes(1 << 30)
"""What one rank hands over [B]; a power of two, so that a time per byte times bytes is the time again."""
_FAILURES_MAX = 3
_NO_TIME = Seconds(0.0)
_SAVE: Final = Phase.SAVE
_STEP: Final = Phase.STEP


class Rule(Protocol):
    """The saving policy of a job."""

    def __call__(self, age_s: float, steps_left: int) -> tuple[str, SaveTable | None]:
        """Return what a machine's worker is given: a policy's canonical name, and a schedule if the policy has one.

        Args:
            age_s: of the machine [s].
            steps_left: of the run.
        """
        ...


@dataclass(slots=True)
class Ground:
    """What all holdings of one job's run share.

    Attributes:
        rows: journal of the machines; None: it is not kept.
        saves: that were made.
    """

    timeline: Timeline
    scenario: Scenario
    rule: Rule
    draws: Draws
    run: Run
    division: Division
    rows: Rows | None
    saves: Saves


class Holding:
    """From the taking of the run until it is let go, or its leader is gone."""

    def __init__(
        self,
        ground: Ground,
        machine: int,
        age_s: float,
        *,
        ended: Callable[[int], None],
    ) -> None:
        """Prepare; `begin` starts.

        Args:
            ground: the job's.
            machine: which one of slot 0, from 0.
            age_s: of the leader [s].
            ended: is told the exit code.
        """
        self.over = False
        self._ground = ground
        self._timeline = ground.timeline
        self._rows = ground.rows
        self._ranks = ground.scenario.machines
        self._steps = ground.scenario.steps
        self._machine = machine
        self._step_s = Seconds(ground.draws.step_s)
        self._stall_s = Seconds(ground.draws.stall_s)
        self._upload_s = Seconds(ground.draws.upload_s)
        self._age_s = age_s
        self._ended = ended
        self._term = ground.run.term
        self._state = worker.begin()
        self._brought: list[Fact] = []
        self._wakes: dict[str, float] = {}
        self._request: PublishSave | None = None
        self._answering: PublishSave | None = None
        self._answered = False
        self._uploads: dict[str, list[UploadShard]] = {}
        self._saves: dict[int, int] = {}
        self._cut = False
        self._late = False
        self._base = ground.run.saved_step
        self._measured = int(self._base)
        self._script = Script(ground.draws.step_s, self._base, ground.timeline.time)
        self._seen = RanksObserved((RankStatus(0, Step(-1), _STEP, Instant(0.0)),))
        self._end = Appointment(self._last_step)
        self._asked: Appointment | None = None

    def begin(self) -> None:
        """Take the run up: the script runs at once, from the newest committed point."""
        ground = self._ground
        believed = ground.scenario.believed
        run = ground.run
        policy, table = ground.rule(self._age_s, self._steps - self._base)
        facts: list[Fact] = [
            WorkerBegan(
                run=run.name,
                term=run.term,
                policy=policy,
                provider=ground.scenario.provider,
                checkpoints=run.checkpoints,
                attempt=run.attempts,
                failures=0,
                failures_max=_FAILURES_MAX,
                lives_s=Seconds(run.lives_s),
                preemptions=run.preemptions if believed.learns else 0,
                announced=run.announced if believed.learns else 0,
                notices_s=run.notices_s if believed.learns else (),
                mttp_s=Seconds(believed.mttp_s),
                restart_s=Seconds(believed.restart_s),
                costs=run.costs,
            ),
        ]
        told_s = None if believed.notice_s is None else Seconds(believed.notice_s)
        facts.append(BeliefsChanged(unannounced_share=believed.unannounced_share, notice_s=told_s))
        if table is not None:
            facts.append(SaveTableGiven(table, self._base))
        ground.division.begin(self._timeline.time)
        self._timeline.when(self._script.ends_s(self._base + 1), self._first_step)
        self._timeline.when(self._script.ends_s(self._steps), self._end)
        self._react(facts)

    # ------------------------------------------------------------------------------------------------ what happens to it

    def notice(self, machine_id: str, left_s: float) -> None:
        """One of its machines hears of its end."""
        deadline = Instant(self._timeline.time + left_s)
        notice = Notice(NoticeLevel.ANNOUNCED, self._ground.scenario.provider, machine_id, deadline)
        self._react([*self._look(), NoticeReceived(notice)])

    def last_moment(self) -> None:
        """A machine on notice is about to be gone.

        The worker lets the run go a moment before an announced end, because letting go takes a moment.  Here nothing
        does: so it is asked at the end itself.
        """
        at = self._wakes.pop("deadline", None)
        if at is not None and at <= self._timeline.time and not self.over:
            self._react([*self._look(), Woke("deadline")])

    def lose(self, node: int, machine_id: str) -> None:
        """A machine is gone: with the first one the leader, otherwise one that the leader misses."""
        if node:
            self._react([*self._look(), PeerLost(node, f"{machine_id} (node {node}) no longer answers")])
            return
        if self._rows is not None:
            # The live worker's last window is at most five seconds old: what came after it is known here.
            self._turn(tuple(self._look()))
        self._stop()
        self._close()

    def _close(self) -> None:
        """Nothing more happens here; what is far ahead must not keep all this alive until then."""
        self.over = True
        self._end.call_off()
        self._call_off()

    # ----------------------------------------------------------------------------------------------------- the batches

    def _react(self, facts: list[Fact]) -> None:
        """Let the worker decide, carry its commands out, and take in what they brought."""
        while facts:
            commands = self._turn(tuple(facts))
            facts = self._brought = []
            for command in commands:
                obey = _OBEY.get(type(command))
                if obey is not None:
                    obey(self, command)

    def _turn(self, facts: tuple[Fact, ...]) -> tuple[Command, ...]:
        now = Instant(self._timeline.time)
        self._state, decisions, commands = worker.react(self._state, now, facts)
        if self._rows is not None:
            self._rows.write(self._term, now, now, (facts, decisions, commands))
        return commands

    def _look(self, *, measure: bool = True) -> list[Fact]:
        """Return what the pages say: answers that were not told yet, the steps since the last window, and the ranks."""
        time_s = self._timeline.time
        script = self._script
        step = Step(script.done(time_s))
        facts: list[Fact] = []
        answering = self._answering
        if answering is not None and not self._answered:
            self._answered = True
            facts += [SaveAnswered(rank, answering.request, answering.step) for rank in range(self._ranks)]
        if measure and step > self._measured:
            facts.append(StepsMeasured(step, step - self._measured, self._step_s, self._step_s))
            self._measured = step
        phase = _SAVE if script.still else _STEP
        facts.append(self._observed(step, phase, Instant(script.doing_since_s(step))))
        return facts

    def _observed(self, step: Step, phase: Phase, since: Instant) -> RanksObserved:
        """Return a look at the ranks; where they stand as at the last look it is that look again."""
        seen = self._seen
        first = seen.ranks[0]
        if first.step == step and first.phase is phase and first.phase_since == since:
            return seen
        self._seen = seen = RanksObserved(tuple([RankStatus(rank, step, phase, since) for rank in range(self._ranks)]))
        return seen

    # -------------------------------------------------------------------------------------------------------- the script

    def _first_step(self) -> None:
        """The first step shows how long a step takes."""
        if not self.over and self._measured == self._base:
            self._react(self._look())

    def _last_step(self) -> None:
        """The script is done, if no save has held it up since this was expected; uploads are cut short."""
        if self.over:
            return
        script, timeline = self._script, self._timeline
        if script.still:
            self._late = True
            return
        ends_s = script.ends_s(self._steps)
        if ends_s > timeline.time:
            timeline.when(ends_s, self._end)
            return
        self._cut = True
        facts = [*self._look(), ScriptExited(0)]
        self._stop()
        self._react(facts)
        while self._uploads and not self.over:
            self._uploaded(next(iter(self._uploads)))

    def _save(self) -> None:
        """The ranks reach the step of a request: they say yes, and stand still."""
        request = self._request
        assert request is not None, "a request that is taken back is called off"
        self._request, self._answering, self._answered = None, request, False
        self._script.stand(request.step, self._timeline.time)
        self._timeline.at(self._stall_s, self._hand_over)

    def _hand_over(self) -> None:
        """The save lies on the machines' disks.  After the last one of a machine that ends the ranks stand still."""
        request = self._answering
        if self.over or request is None:
            return
        ending = self._state.ending
        script, ground = self._script, self._ground
        if ending is None or ending.request != request.request:
            script.go_on(self._timeline.time)
            if self._late:
                self._late = False
                self._timeline.when(script.ends_s(self._steps), self._end)
        look = self._look()
        self._answering = None
        self._saves[request.step] = ground.saves.made(self._machine, request.step, request.kind)
        parts = [
            ShardHandedOver(rank, request.step, request.request, f"{request.step}/{rank}", PART_BYTES, self._stall_s)
            for rank in range(self._ranks)
        ]
        answers = self._ranks if isinstance(look[0], SaveAnswered) else 0
        look[answers:answers] = parts
        self._react(look)

    def _stop(self) -> None:
        """The ranks are gone."""
        division, time_s = self._ground.division, self._timeline.time
        division.redo_s += self._script.close(time_s, self._steps if self._cut else self._ground.run.saved_step)
        division.save_s += self._script.save_s
        division.stop(time_s)

    # ------------------------------------------------------------------------------------------------------ the commands

    def _start(self, command: StartScript) -> None:
        points = self._ground.run.checkpoints
        name, size = (points[-1].checkpoint_id, points[-1].size_bytes) if points else (None, Bytes(0))
        self._brought += [
            CheckpointRestored(name, self._base, Bytes(size), _NO_TIME),
            ScriptStarted(command.attempt),
            self._observed(self._base, _STEP, Instant(self._timeline.time)),
        ]

    def _kill(self, command: KillScript) -> None:
        del command
        self._stop()

    def _publish(self, command: PublishSave) -> None:
        """Ask for a save; the run ends with its last step, after which nobody asks."""
        self._call_off()
        self._request = command
        if command.step < self._steps and not self._script.still:
            self._asked = Appointment(self._save)
            self._timeline.when(self._script.ends_s(command.step), self._asked)
        if command.exact:
            self._brought += self._look()

    def _withdraw(self, command: WithdrawSave) -> None:
        del command
        self._call_off()

    def _call_off(self) -> None:
        self._request = None
        if self._asked is not None:
            self._asked.call_off()
            self._asked = None

    def _upload(self, command: UploadShard) -> None:
        """All parts of a point are on their way together."""
        parts = self._uploads.setdefault(command.checkpoint_id, [])
        parts.append(command)
        if len(parts) == 1:
            self._timeline.at(self._upload_s, partial(self._arrive, command.checkpoint_id, parts))

    def _arrive(self, checkpoint_id: str, parts: list[UploadShard]) -> None:
        if not self.over and self._uploads.get(checkpoint_id) is parts:
            self._uploaded(checkpoint_id)

    def _uploaded(self, checkpoint_id: str) -> None:
        parts = self._uploads.pop(checkpoint_id)
        arrived = [
            ShardUploaded(checkpoint_id, part.rank, _shard(part.rank), PART_BYTES, self._upload_s) for part in parts
        ]
        self._react([*([] if self._cut else self._look(measure=False)), *arrived])

    def _commit(self, command: CommitCheckpoint) -> None:
        ground, time_s = self._ground, self._timeline.time
        size = Bytes(PART_BYTES * len(command.shards))
        point = ground.run.commit(command, size, self._state, time_s)
        if not self._cut:
            ground.saves.committed(self._saves[command.step])
        self._brought.append(CheckpointCommitted(point, ground.run.number, _NO_TIME))

    def _abandon(self, command: AbandonCheckpoint) -> None:
        self._uploads.pop(command.checkpoint_id, None)

    def _delete(self, command: DeleteCheckpoints) -> None:
        self._ground.run.drop(command.checkpoints)

    def _release(self, command: ReleaseRun) -> None:
        run, time_s = self._ground.run, self._timeline.time
        run.release(command.outcome, command.cause, self._state, time_s, notice_s=command.notice_s)

    def _exit(self, command: ExitAgent) -> None:
        self._close()
        self._ended(command.code)

    def _wake(self, command: WakeAt) -> None:
        self._wakes[command.why] = command.at
        if command.why != "deadline":
            self._timeline.when(command.at, partial(self._ring, command.why, command.at))

    def _ring(self, why: str, at: float) -> None:
        """A timer rings; what it is for does not look at the ranks, and in the last moments nobody cares for it."""
        if self.over or self._wakes.get(why) != at:
            return
        del self._wakes[why]
        leave_at = self._state.leave_at
        if leave_at is None or at < leave_at:
            self._react([Woke(why)])


@functools.cache
def _shard(rank: int) -> Shard:
    return Shard(rank, "state", (FileEntry(".", 0o600, (Chunk(f"shards/{rank}", PART_BYTES, "simulated"),)),))


_OBEY: Mapping[type[Command], Callable[[Holding, Any], None]] = MappingProxyType(
    {
        StartScript: Holding._start,
        KillScript: Holding._kill,
        PublishSave: Holding._publish,
        WithdrawSave: Holding._withdraw,
        UploadShard: Holding._upload,
        CommitCheckpoint: Holding._commit,
        AbandonCheckpoint: Holding._abandon,
        DeleteCheckpoints: Holding._delete,
        ReleaseRun: Holding._release,
        ExitAgent: Holding._exit,
        WakeAt: Holding._wake,
    }
)
