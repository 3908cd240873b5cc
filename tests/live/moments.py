"""When a machine of a live run was ordered, came, was ready, took the run and made its first step; by whose word."""

from __future__ import annotations

from dataclasses import dataclass

from tests.live.rig import Rig, Stay
from windfall.events import CheckpointRestored, Row, ScriptStarted, StepsMeasured
from windfall.fleet import MachineReported, MachinesObserved, MachineStatus, PlaceOrder
from windfall.market import MachineLifecycle

READY = (MachineStatus.WAITING, MachineStatus.TRAINING)


@dataclass(frozen=True)
class Coming:
    """A machine's way into the training [s since 1970].

    Attributes:
        ordered: the controller's decision is in its journal.
        started: the market's books.
        ready: the controller heard that it could take the run.
        taken: the first row of its term in the run's journal.
        script: its script was started.
        first_step: its first step was finished.
        restore_s: how long the newest point's way to its disk took [s].
    """

    machine_id: str
    ordered: float
    started: float
    ready: float
    taken: float
    script: float
    first_step: float
    restore_s: float

    @property
    def parts(self) -> dict[str, float]:
        """The way in pieces [s]."""
        return {
            "allocated": self.started - self.ordered,
            "booted": self.ready - self.started,
            "taken": self.taken - self.ready,
            "restored": self.restore_s,
            "script started": self.script - self.taken - self.restore_s,
            "first step": self.first_step - self.script,
        }


def coming(rig: Rig, job_id: str, stay: Stay, term: int) -> Coming:
    """How a machine came into the training, as holder of a term (counted from 0) of the run."""
    rows = rig.rows(job_id)
    ordered = _wall(
        rows, lambda row: any(isinstance(c, PlaceOrder) and c.order.token == stay.token for c in row.commands)
    )
    own = _terms(rig, job_id)[term]
    restored = next(fact for row in own for fact in row.facts if isinstance(fact, CheckpointRestored))
    steps, window = next((row, fact) for row in own for fact in row.facts if isinstance(fact, StepsMeasured))
    assert stay.started is not None
    return Coming(
        machine_id=stay.machine_id,
        ordered=ordered,
        started=stay.started,
        ready=_wall(rows, lambda row: _heard_ready(row, stay.machine_id)),
        taken=own[0].wall_time,
        script=_wall(own, lambda row: any(isinstance(fact, ScriptStarted) for fact in row.facts)),
        first_step=steps.wall_time - (window.count - 1) * window.mean_s,
        restore_s=restored.duration_s,
    )


def first_steps(rig: Rig, job_id: str) -> int:
    """In how many terms of the run a step was finished."""
    terms = _terms(rig, job_id)
    return sum(any(isinstance(fact, StepsMeasured) for row in own for fact in row.facts) for own in terms)


def seen_gone(rig: Rig, job_id: str, machine_id: str) -> float:
    """When the controller saw that a machine is gone [s since 1970]."""

    def tells(row: Row) -> bool:
        seen = [machine for fact in row.facts if isinstance(fact, MachinesObserved) for machine in fact.machines]
        return any(machine.machine_id == machine_id and machine.lifecycle is MachineLifecycle.GONE for machine in seen)

    return _wall(rig.rows(job_id), tells)


def _terms(rig: Rig, job_id: str) -> list[list[Row]]:
    rows = rig.run_rows(job_id)
    return [[row for row in rows if row.term == term] for term in sorted({row.term for row in rows})]


def _heard_ready(row: Row, machine_id: str) -> bool:
    heard = [fact.report for fact in row.facts if isinstance(fact, MachineReported)]
    return any(report.machine_id == machine_id and report.status in READY for report in heard)


def _wall(rows, wanted) -> float:  # type: ignore[no-untyped-def]
    return float(next(row.wall_time for row in rows if wanted(row)))
