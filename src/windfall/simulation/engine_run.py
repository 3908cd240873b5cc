"""The run of a simulated job: what its log would say, without a store.

The term is the number of the record by which the run was taken, points are live until they are given up, and what saves
cost is carried with the records, as `storage.state` has it.
"""

from __future__ import annotations

from windfall.core import worker
from windfall.core.state import WorkerState
from windfall.events import CommitCheckpoint
from windfall.simulation.clock import WALL_START
from windfall.terms import (
    Bytes,
    Cause,
    CheckpointRef,
    Holder,
    Loss,
    Outcome,
    Record,
    RecordKind,
    RunState,
    SaveCosts,
    Seconds,
    Step,
    Term,
    WallTime,
    noticed,
)

_LEASE_S = Seconds(60.0)
_TAKEN = frozenset({Cause.PREEMPTED_SAVED, Cause.PREEMPTED_UNSAVED, Cause.VANISHED})
_LOSSES_KEPT = 64


class Run:
    """One run.

    Attributes:
        term: of the present, or the last, holding.
        holder: who holds it; None if nobody does.
        outcome: what has become of it.
        points: live ones, oldest first.
        saved_step: the newest committed step.
        attempts: how often the script was started.
        lives_s, preemptions, announced: of the machines that held it and are gone.
        records: the log, as far as it is kept: who took the run and how it was let go; None: it is not kept.
    """

    def __init__(self, name: str, *, keep: bool) -> None:
        self.name = name
        self.term = Term(0)
        self.holder: str | None = None
        self.outcome = Outcome.RUNNING
        self.checkpoints: tuple[CheckpointRef, ...] = ()
        self.saved_step = Step(0)
        self.attempts = 0
        self.lives_s = 0.0
        self.preemptions = 0
        self.announced = 0
        self.records: list[Record] | None = [] if keep else None
        self._number = 0
        self._since_s = 0.0
        self._losses: tuple[Loss, ...] = ()
        self._costs: SaveCosts | None = None
        self._counted: WorkerState | None = None

    @property
    def costs(self) -> SaveCosts | None:
        """What saves cost, as the newest record says; None as long as none was measured whole."""
        if self._counted is not None:
            self._costs = worker.save_costs(self._counted) or self._costs
            self._counted = None
        return self._costs

    def learn(self, costs: SaveCosts) -> None:
        """Begin with what earlier runs have shown."""
        self._costs = costs

    def take(self, holder: str, time_s: float) -> None:
        """Let a machine take the run."""
        self._number += 1
        self.term = Term(self._number)
        self.holder, self.outcome, self._since_s = holder, Outcome.RUNNING, time_s
        self.attempts += 1
        self._keep(RecordKind.TAKE, time_s)

    def commit(self, command: CommitCheckpoint, size_bytes: Bytes, state: WorkerState, time_s: float) -> CheckpointRef:
        """Commit a point; `state` is the worker's, which knows what saves cost."""
        self._number += 1
        point = CheckpointRef(
            command.checkpoint_id,
            command.step,
            command.kind,
            self.term,
            command.generation,
            size_bytes,
            f"checkpoints/{command.checkpoint_id}",
            "simulated",
            WallTime(WALL_START + time_s),
        )
        self.checkpoints = (*self.checkpoints, point)
        self.saved_step = command.step
        self._counted = state
        return point

    @property
    def number(self) -> int:
        """Of the newest record."""
        return self._number

    def drop(self, points: tuple[CheckpointRef, ...]) -> None:
        """Give points up."""
        self._number += 1
        gone = [point.checkpoint_id for point in points]
        self.checkpoints = tuple([point for point in self.checkpoints if point.checkpoint_id not in gone])

    def release(
        self, outcome: Outcome, cause: Cause, state: WorkerState, time_s: float, *, notice_s: Seconds | None = None
    ) -> None:
        """Let the holder let go."""
        self._number += 1
        self._counted = state
        self._lost(cause, time_s, notice_s)
        self.holder, self.outcome = None, outcome
        self._keep(RecordKind.RELEASE, time_s)

    def vanish(self, time_s: float) -> None:
        """The holder is gone without a word: the log says so once the run is taken again."""
        self._lost(Cause.VANISHED, time_s)

    @property
    def notices_s(self) -> tuple[Seconds, ...]:
        """How long before the end the newest notices came."""
        return noticed(self._losses)

    def _lost(self, cause: Cause, time_s: float, notice_s: Seconds | None = None) -> None:
        self.lives_s += time_s - self._since_s
        self.preemptions += cause in _TAKEN
        self.announced += cause in _TAKEN and cause is not Cause.VANISHED
        loss = Loss(cause, self.term, WallTime(WALL_START + time_s), self.saved_step, notice_s=notice_s)
        self._losses = (*self._losses, loss)[-_LOSSES_KEPT:]

    def _keep(self, kind: RecordKind, time_s: float) -> None:
        if self.records is None:
            return
        name = self.holder
        holder = None if name is None else Holder(name, name, 1, 1, 0, f"{name}-{self.term}")
        state = RunState(
            self.name,
            self.term,
            self.outcome,
            holder,
            WallTime(WALL_START + self._since_s),
            _LEASE_S,
            self.checkpoints,
            self.attempts,
            lives_s=Seconds(self.lives_s),
            preemptions=self.preemptions,
            announced=self.announced,
            losses=self._losses,
            costs=self.costs,
        )
        self.records.append(Record(self._number, f"{self._number}", kind, WallTime(WALL_START + time_s), state))
