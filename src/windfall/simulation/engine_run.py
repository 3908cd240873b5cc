"""The run of a simulated job: the state of its log, without a store.

The term is the number of the record that took the run, checkpoints are live until they are dropped, and the costs of saves
travel with the records, as in `storage.run_state`.

Where wall time goes, and how far a script is: the arithmetic of `scenario`, apart from decisions.
"""

from __future__ import annotations

import math

from windfall.core import worker
from windfall.core.worker_state import WorkerState
from windfall.events import CommitCheckpoint
from windfall.simulation.virtual_time import WALL_START
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


class SimulatedRun:
    """One run.

    Attributes:
        term: of the present, or the last, lease.
        holder: the machine that holds it; None without one.
        outcome: of the run so far.
        checkpoints: live ones, oldest first.
        saved_step: the newest committed step.
        attempts: starts of the script.
        lifetimes_s, preemptions, announced: of past holders.
        records: the takes and releases of the log; None: they are not kept.
    """

    def __init__(self, name: str, *, journal: bool) -> None:
        self.name = name
        self.term = Term(0)
        self.holder: str | None = None
        self.outcome = Outcome.RUNNING
        self.checkpoints: tuple[CheckpointRef, ...] = ()
        self.saved_step = Step(0)
        self.attempts = 0
        self.lifetimes_s = 0.0
        self.preemptions = 0
        self.announced = 0
        self.records: list[Record] | None = [] if journal else None
        self._number = 0
        self._since_s = 0.0
        self._losses: tuple[Loss, ...] = ()
        self._costs: SaveCosts | None = None
        self._counted: WorkerState | None = None

    @property
    def costs(self) -> SaveCosts | None:
        """The costs of saves in the newest record; None before a whole save was measured."""
        if self._counted is not None:
            self._costs = worker.save_costs(self._counted) or self._costs
            self._counted = None
        return self._costs

    def learn(self, costs: SaveCosts) -> None:
        """Start with the costs from earlier runs."""
        self._costs = costs

    def take(self, holder: str, time_s: float) -> None:
        """Take the run for a machine."""
        self._number += 1
        self.term = Term(self._number)
        self.holder, self.outcome, self._since_s = holder, Outcome.RUNNING, time_s
        self.attempts += 1
        self._record(RecordKind.ACQUIRE, time_s)

    def commit(self, command: CommitCheckpoint, size_bytes: Bytes, state: WorkerState, time_s: float) -> CheckpointRef:
        """Commit a checkpoint; `state` is the worker's, which holds the costs of saves."""
        self._number += 1
        checkpoint = CheckpointRef(
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
        self.checkpoints = (*self.checkpoints, checkpoint)
        self.saved_step = command.step
        self._counted = state
        return checkpoint

    @property
    def number(self) -> int:
        """The number of the newest record."""
        return self._number

    def drop(self, checkpoints: tuple[CheckpointRef, ...]) -> None:
        """Drop checkpoints."""
        self._number += 1
        gone = [checkpoint.checkpoint_id for checkpoint in checkpoints]
        self.checkpoints = tuple(
            [checkpoint for checkpoint in self.checkpoints if checkpoint.checkpoint_id not in gone]
        )

    def release(
        self, outcome: Outcome, cause: Cause, state: WorkerState, time_s: float, *, notice_s: Seconds | None = None
    ) -> None:
        """Release the run."""
        self._number += 1
        self._counted = state
        self._note_loss(cause, time_s, notice_s)
        self.holder, self.outcome = None, outcome
        self._record(RecordKind.RELEASE, time_s)

    def vanish(self, time_s: float) -> None:
        """Note that the holder vanished; the log records it when the run is taken again."""
        self._note_loss(Cause.VANISHED, time_s)

    @property
    def notices_s(self) -> tuple[Seconds, ...]:
        """The lengths of the newest notices."""
        return noticed(self._losses)

    def _note_loss(self, cause: Cause, time_s: float, notice_s: Seconds | None = None) -> None:
        self.lifetimes_s += time_s - self._since_s
        self.preemptions += cause in _TAKEN
        self.announced += cause in _TAKEN and cause is not Cause.VANISHED
        loss = Loss(cause, self.term, WallTime(WALL_START + time_s), self.saved_step, notice_s=notice_s)
        self._losses = (*self._losses, loss)[-_LOSSES_KEPT:]

    def _record(self, kind: RecordKind, time_s: float) -> None:
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
            lifetimes_s=Seconds(self.lifetimes_s),
            preemptions=self.preemptions,
            announced=self.announced,
            losses=self._losses,
            costs=self.costs,
        )
        self.records.append(Record(self._number, f"{self._number}", kind, WallTime(WALL_START + time_s), state))


_NEARLY = 1e-9
"""A step is complete if no more than this share of it is missing: times are sums of many rounded terms."""
_ULPS = 4.0 * 2.0**-52


class TimeBreakdown:
    """The breakdown of a trial's wall time [s].

    Attributes:
        redo_s, save_s: added by the worker that trains.
        allocate_s, prepare_s: time without training.
    """

    __slots__ = ("_mark_s", "_training", "_unfilled_slots", "_usable", "allocate_s", "prepare_s", "redo_s", "save_s")

    def __init__(self, machines: int, time_s: float) -> None:
        self.redo_s = 0.0
        self.save_s = 0.0
        self.allocate_s = 0.0
        self.prepare_s = 0.0
        self._usable = [0] * machines
        self._unfilled_slots = machines
        self._training = False
        self._mark_s = time_s

    def usable(self, slot: int, change: int, time_s: float) -> None:
        """Count one more, or one fewer, of a slot's machines that have started and are not on notice."""
        self._flow(time_s)
        before = self._usable[slot]
        self._usable[slot] = before + change
        self._unfilled_slots += (before + change == 0) - (before == 0)

    def start(self, time_s: float) -> None:
        """Start training."""
        assert not self._training, "one training at a time"
        self._flow(time_s)
        self._training = True

    def stop(self, time_s: float) -> None:
        """Stop training."""
        assert self._training, "training stops after it starts"
        self._training, self._mark_s = False, time_s

    def _flow(self, time_s: float) -> None:
        if self._training:
            return
        if self._unfilled_slots:
            self.allocate_s += time_s - self._mark_s
        else:
            self.prepare_s += time_s - self._mark_s
        self._mark_s = time_s


class SimulatedScript:
    """The ranks of one training, in lockstep: steps of equal length, with stalls between them.

    Attributes:
        step_s: of a step [s].
        anchor: complete steps at `since_s`, the start of the next one [s]; `since_s` is infinite during a stall.
        save_s: length of all stalls [s].
    """

    __slots__ = ("_stalled_since_s", "anchor", "save_s", "since_s", "step_s")

    def __init__(self, step_s: float, step: int, time_s: float) -> None:
        self.step_s = step_s
        self.anchor = step
        self.since_s = time_s
        self.save_s = 0.0
        self._stalled_since_s = 0.0

    @property
    def stalled(self) -> bool:
        """Whether the ranks are stalled."""
        return self.since_s == math.inf

    def ends_s(self, step: int) -> float:
        """Return when a step is complete, if no stall delays it [s]."""
        return self.since_s + (step - self.anchor) * self.step_s

    def done(self, time_s: float) -> int:
        """Return the number of complete steps."""
        if self.since_s == math.inf:
            return self.anchor
        steps = (time_s - self.since_s) / self.step_s
        return self.anchor + int(steps + _NEARLY + time_s * _ULPS / self.step_s)

    def status_since_s(self, step: int) -> float:
        """Return the start of the ranks' present phase, after `step` complete steps [s]."""
        return self._stalled_since_s if self.since_s == math.inf else self.since_s + (step - self.anchor) * self.step_s

    def stall(self, step: int, time_s: float) -> None:
        """Stall after a step."""
        self.anchor, self.since_s, self._stalled_since_s = step, math.inf, time_s

    def resume(self, time_s: float) -> None:
        """Start the next step."""
        self.save_s += time_s - self._stalled_since_s
        self.since_s = time_s

    def close(self, time_s: float, kept: int) -> float:
        """Stop; return the length of the training beyond `kept` steps, a partial step included [s]."""
        lost_s = (self.anchor - kept) * self.step_s
        if self.since_s == math.inf:
            self.save_s += time_s - self._stalled_since_s
            return lost_s
        return lost_s + time_s - self.since_s
