"""The state of the worker's reducer between two batches of facts, and the turn that handles one batch.

The state is immutable.  A `WorkerTurn` is local to one call of `worker.react`: handlers replace its state and append commands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from windfall.core.lifecycle import CheckpointState, WorkerStage
from windfall.events import Command, Decision, LogMessage, RankStatus, SetTimer, WorkerStarted
from windfall.models.costs import Costs
from windfall.models.preemption_rates import UNKNOWN, PreemptionHistory
from windfall.policies.checkpointing.decision import Estimates, RankProgress
from windfall.structs import Struct, replace
from windfall.terms import CheckpointRef, Instant, Notice, SaveKind, SaveTable, Seconds, Shard, Step

_HANDED_OVER: Final = CheckpointState.HANDED_OVER
_ASKED: Final = CheckpointState.ASKED
_NO_TIME = Instant(0.0)
_NO_STEPS = Step(0)
_NO_LENGTH = Seconds(0.0)
REQUESTS_KEPT = 16
"""How many earlier requests are kept, to match late answers."""


class SaveRequest(Struct, frozen=True):
    """A save requested from the script.

    Attributes:
        number: grows with each request of a term.
        sure: every rank was seen below `step` after the publication, so every rank sees the request in time.
        answered: ranks whose `check_save` returned True for it.
        passed: ranks seen past `step` once without an answer.
        late_at: for a request that may come late, the step of the fastest rank when ranks were first seen past `step`.
        done_ranks: ranks that handed over for it, or agreed and moved on without a shard; `handed_over` if any handed
            over.
        withdrawn: the request is withdrawn.
        hinted: made because of a hint that this machine may be preempted, regardless of the policy's interval.
    """

    number: int
    step: Step
    kind: SaveKind
    exact: bool
    sure: bool
    answered: tuple[int, ...] = ()
    passed: tuple[int, ...] = ()
    late_at: Step | None = None
    done_ranks: tuple[int, ...] = ()
    handed_over: bool = False
    withdrawn: bool = False
    hinted: bool = False


class SavePlan(Struct, frozen=True):
    """The inputs of the plan for the pending insurance save: while none of them changes, nothing is replanned.

    Attributes:
        request: number of the request.
        step: the policy's choice; later than the earliest possible step.
        anchor_step, losses, costs, table: inputs of the choice.
        numbers: the costs that the choice depends on (`policies.checkpointing.decision.cost_inputs`).
    """

    request: int
    step: int
    anchor_step: Step
    losses: PreemptionHistory
    costs: Costs
    table: tuple[SaveTable | None, Step]
    numbers: tuple[float | None, ...]


class TrackedShard(Struct, frozen=True):
    """A shard that one rank handed over; `stored` once it is in the store, `source` is the path as the script named it."""

    rank: int
    path: str
    request: int
    size_bytes: int
    identity: str = ""
    stored: Shard | None = None
    tries: int = 0
    source: str = ""


class TrackedCheckpoint(Struct, frozen=True):
    """A checkpoint that is not committed, or a result that is not stored yet.

    Attributes:
        number: counts the checkpoints and results of this term, in order of the hand-overs.
        result: the name of a result; empty for a checkpoint.
        unclear: a second path at the same step: a checkpoint if the script continues, a result if it ends.
        by_user: the user's own save, even if it was also requested: it is committed as periodic, and stays.
        absent: ranks that moved on without a shard.
        complete: every rank has handed over or moved on.
        upload_started_at: when its upload started; None if unknown (the agent died meanwhile).
        tries: failed commits.
    """

    checkpoint_id: str
    step: Step
    kind: SaveKind
    request: int
    state: CheckpointState
    shards: tuple[TrackedShard, ...]
    absent: tuple[int, ...] = ()
    complete: bool = False
    upload_started_at: Instant | None = None
    tries: int = 0
    number: int = 0
    result: str = ""
    unclear: bool = False
    by_user: bool = False

    @property
    def active(self) -> bool:
        """Whether it holds the uplink."""
        return self.state is not _HANDED_OVER and self.state is not _ASKED

    @property
    def distinct_shards(self) -> tuple[TrackedShard, ...]:
        """One shard per path, the lowest rank's: ranks that name the same path share one shard."""
        if len(self.shards) == 1:
            return self.shards
        lowest: dict[str, TrackedShard] = {}
        for shard in sorted(self.shards, key=lambda shard: shard.rank):
            lowest.setdefault(shard.path, shard)
        return tuple(lowest.values())

    @property
    def result_key(self) -> tuple[str, int]:
        """A result's name and rank; the newest result of each is kept."""
        return self.result, self.shards[0].rank

    @property
    def size_bytes(self) -> int:
        """Bytes to upload."""
        return sum([shard.size_bytes for shard in self.distinct_shards])


class WorkerShutdown(Struct, frozen=True):
    """The end of this machine's work: how it was requested, and its last save.

    Attributes:
        stop: a user requested it (otherwise it is an announced end).
        request: number of the newest request for the last save; None before the first.
        saved: the last save is committed.
        refused: it was logged that an emergency save does not fit.
        notice_s: time between the notice and the end [s]; None for a stop.
    """

    stop: bool
    request: int | None = None
    saved: bool = False
    refused: bool = False
    notice_s: Seconds | None = None


class WorkerState(Struct, frozen=True):
    """The state of one term on one machine.

    Attributes:
        started: the first fact; None before it.
        started_at: time of that fact.
        attempt: number of the script's current start.
        script: whether the script's process is running, as far as known.
        exit_status: exit status of the script while its end is handled.
        ranks, observed_at: the newest reading of the pages.
        latency_s: round-trip time to the farthest machine [s]; 0 for one machine.
        request: the pending save request; `past` holds the newest earlier ones.
        requests: number of requests made, and so the number of the newest.
        misses: failed agreements in a row; each doubles the margin.
        held: (anchor, step) of the thesis' plan.
        plan: inputs of the pending insurance save; None if it must be replanned.
        floor_step: insurance counts only from this step on (set by a request or checkpoint that failed).
        moved: (rank, step) of the newest step at which a rank moved on without a shard.
        checkpoints: uncommitted checkpoints, oldest first.
        checkpoint_count: how many checkpoints and results were opened.
        results: results not stored yet, oldest first.
        unstored_results: (name, rank) of results that could not be stored.
        last_handovers: (rank, step, path) of each rank's last hand-over.
        live: committed checkpoints, oldest first; `damaged` holds the ids of damaged ones.
        committed_step: step that a restart would restore.
        unstored_step: step of the newest save that could not be stored.
        unstored_away: whether the last failure was because the store stayed unreachable.
        expiring: (time, checkpoint id) of checkpoints to delete.
        notices: announcements in force.
        leave_at: when to release the run even without another save, shortly before the announced end.
        retry_at: when the next attempt may start after the script failed.
        timers: (name, time) of the timers that are set.
        logged: keys of the messages that are logged only once.
        table, table_step: the save schedule assigned to this machine, and the step at which it starts.
        final_commands: the commands that ended the term.
    """

    stage: WorkerStage = WorkerStage.NEW
    started: WorkerStarted | None = None
    started_at: Instant = _NO_TIME
    losses: PreemptionHistory = msgspec.field(default_factory=lambda: PreemptionHistory(UNKNOWN))
    costs: Costs = Costs()
    attempt: int = 0
    failures: int = 0
    script: bool = False
    exit_status: int | None = None
    ranks: tuple[RankStatus, ...] = ()
    observed_at: Instant = _NO_TIME
    latency_s: Seconds = _NO_LENGTH
    base_step: Step = _NO_STEPS
    request: SaveRequest | None = None
    past: tuple[SaveRequest, ...] = ()
    requests: int = 0
    misses: int = 0
    held: tuple[int, int] | None = None
    plan: SavePlan | None = None
    floor_step: Step = _NO_STEPS
    hinted: bool = False
    moved: tuple[tuple[int, Step], ...] = ()
    checkpoints: tuple[TrackedCheckpoint, ...] = ()
    checkpoint_count: int = 0
    results: tuple[TrackedCheckpoint, ...] = ()
    unstored_results: frozenset[tuple[str, int]] = frozenset()
    last_handovers: tuple[tuple[int, Step, str], ...] = ()
    live: tuple[CheckpointRef, ...] = ()
    damaged: frozenset[str] = frozenset()
    committed_step: Step = _NO_STEPS
    unstored_step: Step = _NO_STEPS
    unstored_away: bool = False
    expiring: tuple[tuple[Instant, str], ...] = ()
    notices: tuple[Notice, ...] = ()
    shutdown: WorkerShutdown | None = None
    leave_at: Instant | None = None
    retry_at: Instant | None = None
    timers: tuple[tuple[str, Instant], ...] = ()
    logged: frozenset[str] = frozenset()
    table: SaveTable | None = None
    table_step: Step = _NO_STEPS
    final_commands: tuple[Command, ...] = ()

    @property
    def first(self) -> WorkerStarted:
        """The first fact."""
        assert self.started is not None, "nothing can happen before WorkerStarted"
        return self.started

    @property
    def active(self) -> TrackedCheckpoint | None:
        """The checkpoint or result that holds the uplink."""
        for checkpoint in (*self.checkpoints, *self.results) if self.results else self.checkpoints:
            if checkpoint.active:
                return checkpoint
        return None

    @property
    def queued(self) -> TrackedCheckpoint | None:
        """The complete checkpoint that waits for the uplink: an emergency save if there is one, otherwise the oldest."""
        first = None
        for checkpoint in self.checkpoints:
            if (
                checkpoint.complete
                and not checkpoint.active
                and (first is None or checkpoint.kind is SaveKind.EMERGENCY)
            ):
                first = checkpoint
        return first

    @property
    def held_paths(self) -> frozenset[str]:
        """Paths of the shards that were handed over and are not stored yet."""
        return frozenset(
            [shard.path for checkpoint in (*self.checkpoints, *self.results) for shard in checkpoint.shards]
        )

    @property
    def step(self) -> Step:
        """Completed steps of the fastest rank, as last observed."""
        ranks = self.ranks
        if len(ranks) == 1:
            return ranks[0].step
        return max([status.step for status in ranks]) if ranks else self.base_step

    @property
    def deadline(self) -> Instant | None:
        """The earliest announced end in force."""
        if not self.notices:
            return None
        return min((notice.deadline for notice in self.notices if notice.deadline is not None), default=None)

    @property
    def anchor_step(self) -> Step:
        """Step of the newest save that is committed or in progress."""
        anchor = max(self.committed_step, self.floor_step, self.base_step)
        for checkpoint in self.checkpoints:
            anchor = max(anchor, checkpoint.step)
        return anchor

    @property
    def estimates(self) -> Estimates:
        """The current estimates of losses and costs."""
        return Estimates(self.losses, self.costs)

    def request_of(self, number: int) -> SaveRequest | None:
        """Return a pending or past request by number; None if it is unknown."""
        if self.request is not None and self.request.number == number:
            return self.request
        for request in self.past:
            if request.number == number:
                return request
        return None


@dataclass(slots=True)
class WorkerTurn:
    """One turn: the state so far, and the commands and decisions to return."""

    state: WorkerState
    now: Instant
    commands: list[Command] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def change(self, **changes: Any) -> None:
        """Replace fields of the state."""
        if any(getattr(self.state, name) is not value for name, value in changes.items()):
            self.state = replace(self.state, **changes)

    def emit(self, *commands: Command) -> None:
        """Append commands."""
        self.commands.extend(commands)

    def log(self, message: str, *, once: str | None = None) -> None:
        """Log a message; with `once`, only the first time for this key."""
        if once is not None:
            if once in self.state.logged:
                return
            self.change(logged=self.state.logged | {once})
        self.emit(LogMessage(message))

    def set_timer(self, name: str, after_s: float) -> None:
        """Set a timer; it replaces an earlier one with this name."""
        at = Instant(self.now + max(after_s, 0.0))
        others = [timer for timer in self.state.timers if timer[0] != name]
        self.change(timers=(*others, (name, at)))
        self.commands.append(SetTimer(at, name))

    def set_checkpoint(self, checkpoint: TrackedCheckpoint) -> None:
        """Replace a checkpoint or result by its newer version."""
        if checkpoint.result:
            mine = [checkpoint if old.checkpoint_id == checkpoint.checkpoint_id else old for old in self.state.results]
            self.change(results=tuple(mine))
            return
        checkpoints = self.state.checkpoints
        if len(checkpoints) == 1 and checkpoints[0].checkpoint_id == checkpoint.checkpoint_id:
            self.change(checkpoints=(checkpoint,))
            return
        self.change(
            checkpoints=tuple(
                [checkpoint if old.checkpoint_id == checkpoint.checkpoint_id else old for old in checkpoints]
            )
        )

    def drop_checkpoint(self, checkpoint: TrackedCheckpoint) -> None:
        """Remove a checkpoint or result that is committed or abandoned."""
        name = "results" if checkpoint.result else "checkpoints"
        checkpoints: tuple[TrackedCheckpoint, ...] = getattr(self.state, name)
        self.change(
            **{name: tuple([known for known in checkpoints if known.checkpoint_id != checkpoint.checkpoint_id])}
        )

    def remaining_s(self) -> Seconds | None:
        """Return the time until the earliest announced end [s]."""
        deadline = self.state.deadline
        return None if deadline is None else Seconds(deadline - self.now)


def rank_progress(state: WorkerState, now: Instant) -> tuple[RankProgress, ...]:
    """Return the ranks' progress, for the policies."""
    return tuple(
        [RankProgress(status.step, status.phase, max(now - status.phase_since, 0.0)) for status in state.ranks]
    )
