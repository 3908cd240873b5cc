"""One lease of a simulated run: the reducer of the real worker, with a script and an uplink in virtual time.

The engine jumps over steps: its events are saves, uploads, notices, timers and ends.  Each batch of facts starts with the
present state of the ranks, and with the steps since the last batch, so that the worker knows what the live loop learns
from a hundred polls per second.  With several machines the worker is the leader's, and the ranks are in lockstep.
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
    CheckpointCommitted,
    CheckpointRestored,
    Command,
    CommitCheckpoint,
    DeleteCheckpoints,
    EstimatesChanged,
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
    ScheduleAssigned,
    ScriptExited,
    ScriptStarted,
    SetTimer,
    ShardHandedOver,
    ShardUploaded,
    StartScript,
    StepsMeasured,
    TimerFired,
    UploadShard,
    WithdrawSave,
    WorkerStarted,
)
from windfall.simulation.engine_journal import JournalRows, SaveRecords
from windfall.simulation.engine_run import SimulatedRun, SimulatedScript, TimeBreakdown
from windfall.simulation.sampling import Draws
from windfall.simulation.scenario import Scenario
from windfall.simulation.virtual_time import CancellableEvent, Timeline
from windfall.terms import (
    Bytes,
    Chunk,
    FileEntry,
    Instant,
    Notice,
    NoticeLevel,
    Phase,
    RunOptions,
    SaveTable,
    Seconds,
    Shard,
    Step,
)

SHARD_BYTES: Final = Bytes(1 << 30)
"""Size of a shard [B]; a power of two, so that a time per byte times bytes gives the same time again."""
_FAILURES_MAX = 3
_NO_TIME = Seconds(0.0)
_SAVE: Final = Phase.SAVE
_STEP: Final = Phase.STEP


class SavingRule(Protocol):
    """The saving policy of a job."""

    def __call__(self, age_s: float, steps_left: int) -> tuple[str, SaveTable | None]:
        """Return the input of a machine's worker: a policy's canonical name, and a schedule if the policy has one.

        Args:
            age_s: of the machine [s].
            steps_left: of the run.
        """
        ...


@dataclass(slots=True)
class TrialContext:
    """State that all leases of one job's run share.

    Attributes:
        rows: journal of the machines; None: it is not kept.
        saves: of the trial.
    """

    timeline: Timeline
    scenario: Scenario
    rule: SavingRule
    draws: Draws
    run: SimulatedRun
    breakdown: TimeBreakdown
    rows: JournalRows | None
    saves: SaveRecords


class SimulatedWorker:
    """The worker of one lease: from taking the run until its release, or the loss of its leader."""

    def __init__(
        self,
        context: TrialContext,
        machine: int,
        age_s: float,
        *,
        ended: Callable[[int], None],
    ) -> None:
        """Prepare; `start` starts.

        Args:
            context: the job's.
            machine: which one of slot 0, from 0.
            age_s: of the leader [s].
            ended: called with the exit code.
        """
        self.over = False
        self._context = context
        self._timeline = context.timeline
        self._rows = context.rows
        self._ranks = context.scenario.machines
        self._steps = context.scenario.steps
        self._machine = machine
        self._step_s = Seconds(context.draws.step_s)
        self._stall_s = Seconds(context.draws.stall_s)
        self._upload_s = Seconds(context.draws.upload_s)
        self._age_s = age_s
        self._ended = ended
        self._term = context.run.term
        self._state = worker.initial_state()
        self._new_facts: list[Fact] = []
        self._wakes: dict[str, float] = {}
        self._request: PublishSave | None = None
        self._answering: PublishSave | None = None
        self._answered = False
        self._uploads: dict[str, list[UploadShard]] = {}
        self._saves: dict[int, int] = {}
        self._uploads_cut = False
        self._late = False
        self._base = context.run.saved_step
        self._measured = int(self._base)
        self._script = SimulatedScript(context.draws.step_s, self._base, context.timeline.time)
        self._seen = RanksObserved((RankStatus(0, Step(-1), _STEP, Instant(0.0)),))
        self._end = CancellableEvent(self._last_step)
        self._save_event: CancellableEvent | None = None

    def start(self) -> None:
        """Resume the run: the script starts at once, from the newest committed checkpoint."""
        context = self._context
        estimates = context.scenario.estimates
        run = context.run
        policy, table = context.rule(self._age_s, self._steps - self._base)
        facts: list[Fact] = [
            WorkerStarted(
                run=run.name,
                term=run.term,
                options=RunOptions(policy, failures_max=_FAILURES_MAX, mttp_s=Seconds(estimates.mttp_s)),
                provider=context.scenario.provider,
                checkpoints=run.checkpoints,
                attempt=run.attempts,
                failures=0,
                lifetimes_s=Seconds(run.lifetimes_s),
                preemptions=run.preemptions if estimates.learns else 0,
                announced=run.announced if estimates.learns else 0,
                notices_s=run.notices_s if estimates.learns else (),
                restart_s=Seconds(estimates.restart_s),
                costs=run.costs,
            ),
        ]
        notice_s = None if estimates.notice_s is None else Seconds(estimates.notice_s)
        facts.append(EstimatesChanged(unannounced_share=estimates.unannounced_share, notice_s=notice_s))
        if table is not None:
            facts.append(ScheduleAssigned(table, self._base))
        context.breakdown.start(self._timeline.time)
        self._timeline.when(self._script.ends_s(self._base + 1), self._first_step)
        self._timeline.when(self._script.ends_s(self._steps), self._end)
        self._react(facts)

    # ------------------------------------------------------------------------------------------------ events

    def notice(self, machine_id: str, left_s: float) -> None:
        """Deliver the notice of a machine of the lease."""
        deadline = Instant(self._timeline.time + left_s)
        notice = Notice(NoticeLevel.ANNOUNCED, self._context.scenario.provider, machine_id, deadline)
        self._react([*self._poll_ranks(), NoticeReceived(notice)])

    def last_turn(self) -> None:
        """Give the worker its last turn before the announced end of a machine.

        The live worker releases the run a moment before an announced end, because a release takes time.  Here it takes
        none, so the worker is asked at the end itself.
        """
        at = self._wakes.pop("deadline", None)
        if at is not None and at <= self._timeline.time and not self.over:
            self._react([*self._poll_ranks(), TimerFired("deadline")])

    def lose(self, node: int, machine_id: str) -> None:
        """End a machine: node 0 is the leader, which ends with it; the loss of another node is reported to the leader."""
        if node:
            self._react([*self._poll_ranks(), PeerLost(node, f"{machine_id} (node {node}) no longer place")])
            return
        if self._rows is not None:
            # The live worker's last measurement is at most five seconds old; here the final one is recorded.
            self._react_once(tuple(self._poll_ranks()))
        self._stop()
        self._close()

    def _close(self) -> None:
        """End the lease and cancel its events, so that an event far ahead does not keep all this alive."""
        self.over = True
        self._end.cancel()
        self._cancel_request()

    # ----------------------------------------------------------------------------------------------------- the batches

    def _react(self, facts: list[Fact]) -> None:
        """Let the worker decide, execute its commands, and process the facts that follow."""
        while facts:
            commands = self._react_once(tuple(facts))
            facts = self._new_facts = []
            for command in commands:
                execute = _EXECUTE.get(type(command))
                if execute is not None:
                    execute(self, command)

    def _react_once(self, facts: tuple[Fact, ...]) -> tuple[Command, ...]:
        now = Instant(self._timeline.time)
        self._state, decisions, commands = worker.react(self._state, now, facts)
        if self._rows is not None:
            self._rows.write(self._term, now, now, (facts, decisions, commands))
        return commands

    def _poll_ranks(self, *, measure: bool = True) -> list[Fact]:
        """Return the content of the pages: unreported place, the steps since the last measurement, and the ranks."""
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
        phase = _SAVE if script.stalled else _STEP
        facts.append(self._observed(step, phase, Instant(script.status_since_s(step))))
        return facts

    def _observed(self, step: Step, phase: Phase, since: Instant) -> RanksObserved:
        """Return the state of the ranks; the same object as the last one if nothing changed."""
        seen = self._seen
        first = seen.ranks[0]
        if first.step == step and first.phase is phase and first.phase_since == since:
            return seen
        self._seen = seen = RanksObserved(tuple([RankStatus(rank, step, phase, since) for rank in range(self._ranks)]))
        return seen

    # -------------------------------------------------------------------------------------------------------- the script

    def _first_step(self) -> None:
        """Measure the first step."""
        if not self.over and self._measured == self._base:
            self._react(self._poll_ranks())

    def _last_step(self) -> None:
        """Finish the script, unless a save has delayed it meanwhile; uploads are cut short."""
        if self.over:
            return
        script, timeline = self._script, self._timeline
        if script.stalled:
            self._late = True
            return
        ends_s = script.ends_s(self._steps)
        if ends_s > timeline.time:
            timeline.when(ends_s, self._end)
            return
        self._uploads_cut = True
        facts = [*self._poll_ranks(), ScriptExited(0)]
        self._stop()
        self._react(facts)
        while self._uploads and not self.over:
            self._uploaded(next(iter(self._uploads)))

    def _save(self) -> None:
        """Stall the ranks at the step of a request."""
        request = self._request
        assert request is not None, "a withdrawn request is cancelled"
        self._request, self._answering, self._answered = None, request, False
        self._script.stall(request.step, self._timeline.time)
        self._timeline.at(self._stall_s, self._hand_over)

    def _hand_over(self) -> None:
        """Hand the save over; after the last save of a machine that ends, the ranks stay stalled."""
        request = self._answering
        if self.over or request is None:
            return
        shutdown = self._state.shutdown
        script, context = self._script, self._context
        if shutdown is None or shutdown.request != request.request:
            script.resume(self._timeline.time)
            if self._late:
                self._late = False
                self._timeline.when(script.ends_s(self._steps), self._end)
        facts = self._poll_ranks()
        self._answering = None
        self._saves[request.step] = context.saves.made(self._machine, request.step, request.kind)
        shards = [
            ShardHandedOver(rank, request.step, request.request, f"{request.step}/{rank}", SHARD_BYTES, self._stall_s)
            for rank in range(self._ranks)
        ]
        place = self._ranks if isinstance(facts[0], SaveAnswered) else 0
        facts[place:place] = shards
        self._react(facts)

    def _stop(self) -> None:
        """Stop the ranks."""
        breakdown, time_s = self._context.breakdown, self._timeline.time
        breakdown.redo_s += self._script.close(
            time_s, self._steps if self._uploads_cut else self._context.run.saved_step
        )
        breakdown.save_s += self._script.save_s
        breakdown.stop(time_s)

    # ------------------------------------------------------------------------------------------------------ the commands

    def _start(self, command: StartScript) -> None:
        checkpoints = self._context.run.checkpoints
        name, size = (checkpoints[-1].checkpoint_id, checkpoints[-1].size_bytes) if checkpoints else (None, Bytes(0))
        self._new_facts += [
            CheckpointRestored(name, self._base, Bytes(size), _NO_TIME),
            ScriptStarted(command.attempt),
            self._observed(self._base, _STEP, Instant(self._timeline.time)),
        ]

    def _kill(self, command: KillScript) -> None:
        del command
        self._stop()

    def _publish(self, command: PublishSave) -> None:
        """Request a save; there is none after the last step."""
        self._cancel_request()
        self._request = command
        if command.step < self._steps and not self._script.stalled:
            self._save_event = CancellableEvent(self._save)
            self._timeline.when(self._script.ends_s(command.step), self._save_event)
        if command.exact:
            self._new_facts += self._poll_ranks()

    def _withdraw(self, command: WithdrawSave) -> None:
        del command
        self._cancel_request()

    def _cancel_request(self) -> None:
        self._request = None
        if self._save_event is not None:
            self._save_event.cancel()
            self._save_event = None

    def _upload(self, command: UploadShard) -> None:
        """Upload all shards of a checkpoint together."""
        shards = self._uploads.setdefault(command.checkpoint_id, [])
        shards.append(command)
        if len(shards) == 1:
            self._timeline.at(self._upload_s, partial(self._arrive, command.checkpoint_id, shards))

    def _arrive(self, checkpoint_id: str, shards: list[UploadShard]) -> None:
        if not self.over and self._uploads.get(checkpoint_id) is shards:
            self._uploaded(checkpoint_id)

    def _uploaded(self, checkpoint_id: str) -> None:
        shards = self._uploads.pop(checkpoint_id)
        facts = [
            ShardUploaded(checkpoint_id, part.rank, _shard(part.rank), SHARD_BYTES, self._upload_s) for part in shards
        ]
        self._react([*([] if self._uploads_cut else self._poll_ranks(measure=False)), *facts])

    def _commit(self, command: CommitCheckpoint) -> None:
        context, time_s = self._context, self._timeline.time
        size = Bytes(SHARD_BYTES * len(command.shards))
        checkpoint = context.run.commit(command, size, self._state, time_s)
        if not self._uploads_cut:
            context.saves.committed(self._saves[command.step])
        self._new_facts.append(CheckpointCommitted(checkpoint, context.run.number, _NO_TIME))

    def _abandon(self, command: AbandonCheckpoint) -> None:
        self._uploads.pop(command.checkpoint_id, None)

    def _delete(self, command: DeleteCheckpoints) -> None:
        self._context.run.drop(command.checkpoints)

    def _release(self, command: ReleaseRun) -> None:
        run, time_s = self._context.run, self._timeline.time
        run.release(command.outcome, command.cause, self._state, time_s, notice_s=command.notice_s)

    def _exit(self, command: ExitAgent) -> None:
        self._close()
        self._ended(command.code)

    def _wake(self, command: SetTimer) -> None:
        self._wakes[command.name] = command.at
        if command.name != "deadline":
            self._timeline.when(command.at, partial(self._fire_timer, command.name, command.at))

    def _fire_timer(self, reason: str, at: float) -> None:
        """Fire a timer: without the state of the ranks, and not after the worker's release time."""
        if self.over or self._wakes.get(reason) != at:
            return
        del self._wakes[reason]
        leave_at = self._state.leave_at
        if leave_at is None or at < leave_at:
            self._react([TimerFired(reason)])


@functools.cache
def _shard(rank: int) -> Shard:
    return Shard(rank, "state", (FileEntry(".", 0o600, (Chunk(f"shards/{rank}", SHARD_BYTES, "simulated"),)),))


_EXECUTE: Mapping[type[Command], Callable[[SimulatedWorker, Any], None]] = MappingProxyType(
    {
        StartScript: SimulatedWorker._start,
        KillScript: SimulatedWorker._kill,
        PublishSave: SimulatedWorker._publish,
        WithdrawSave: SimulatedWorker._withdraw,
        UploadShard: SimulatedWorker._upload,
        CommitCheckpoint: SimulatedWorker._commit,
        AbandonCheckpoint: SimulatedWorker._abandon,
        DeleteCheckpoints: SimulatedWorker._delete,
        ReleaseRun: SimulatedWorker._release,
        ExitAgent: SimulatedWorker._exit,
        SetTimer: SimulatedWorker._wake,
    }
)
