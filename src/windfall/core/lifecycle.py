"""The legal state transitions of workers, checkpoints, jobs, machines and orders, as tables.

Code and diagrams are made from them.

A transition that is not in the table raises `IllegalTransition` and changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from windfall.fleet import JobPhase


class WorkerStage(enum.StrEnum):
    """The stage of a worker."""

    __hash__ = str.__hash__  # the enumeration's own hash is written in Python and slows down a turn

    NEW = "new"
    """Nothing has started."""
    RESTORING = "restoring"
    """A checkpoint is being restored and the script started, or the next attempt is waiting."""
    RUNNING = "running"
    """The script trains."""
    SAVING = "saving"
    """The last save of this machine is requested or in progress: a notice or a stop is in force."""
    DRAINING = "draining"
    """The script has exited; its last saves are still being stored."""
    ENDED = "ended"
    """The final commands are issued; the agent exits."""


class CheckpointState(enum.StrEnum):
    """The state of a checkpoint."""

    __hash__ = str.__hash__

    ASKED = "asked"
    """A request for it is published, or the script's own schedule is due."""
    HANDED_OVER = "handed over"
    """At least one rank's shard is on the local disk; it waits for the other ranks or for the uplink."""
    UPLOADING = "uploading"
    UPLOADED = "uploaded"
    """All shards are durable in the store, but no record names them."""
    COMMITTING = "committing"
    COMMITTED = "committed"
    """A record of the log names it: a restart restores it."""
    ABANDONED = "abandoned"
    """It will never be committed."""


class MachineState(enum.StrEnum):
    """The state of a machine, as the driver knows it."""

    PROMISED = "promised"
    """The answer to an order names it; no listing shows it yet."""
    PENDING = "pending"
    """Listed, not started, not billed."""
    BOOTING = "booting"
    """It runs and has not reported yet."""
    LIVE = "live"
    """It has reported, on any channel."""
    PREEMPTING = "preempting"
    """It has itself reported an announced end: its successor may be bought."""
    DRAINING = "draining"
    """It leaves by choice: it saves or hands over its work, then it is released."""
    RELEASING = "releasing"
    """Released; it costs money until its provider confirms that it is gone."""
    GONE = "gone"


class OrderState(enum.StrEnum):
    """The state of an order."""

    ASKED = "asked"
    """The provider is being asked."""
    UNKNOWN = "unknown"
    """The outcome is unknown until a listing, or a retry of the same order, shows it."""
    ANSWERED = "answered"
    """Its machines are known; there will be no more."""
    CANCELLED = "cancelled"
    """No longer needed; any machine that it still delivers is released."""


class IllegalTransition(AssertionError):
    """A transition that the table does not allow: a bug in Windfall."""


S = TypeVar("S", bound=enum.StrEnum)
Transitions = Mapping[S, frozenset[S]]

WORKER: Transitions[WorkerStage] = MappingProxyType(
    {
        WorkerStage.NEW: frozenset({WorkerStage.RESTORING}),
        WorkerStage.RESTORING: frozenset({WorkerStage.RUNNING, WorkerStage.DRAINING, WorkerStage.ENDED}),
        WorkerStage.RUNNING: frozenset({WorkerStage.SAVING, WorkerStage.DRAINING, WorkerStage.ENDED}),
        WorkerStage.SAVING: frozenset({WorkerStage.RUNNING, WorkerStage.DRAINING, WorkerStage.ENDED}),
        WorkerStage.DRAINING: frozenset({WorkerStage.RESTORING, WorkerStage.ENDED}),
        WorkerStage.ENDED: frozenset(),
    }
)
CHECKPOINT: Transitions[CheckpointState] = MappingProxyType(
    {
        CheckpointState.ASKED: frozenset({CheckpointState.HANDED_OVER, CheckpointState.ABANDONED}),
        CheckpointState.HANDED_OVER: frozenset({CheckpointState.UPLOADING, CheckpointState.ABANDONED}),
        CheckpointState.UPLOADING: frozenset({CheckpointState.UPLOADED, CheckpointState.ABANDONED}),
        CheckpointState.UPLOADED: frozenset({CheckpointState.COMMITTING}),
        CheckpointState.COMMITTING: frozenset({CheckpointState.COMMITTED, CheckpointState.ABANDONED}),
        CheckpointState.COMMITTED: frozenset(),
        CheckpointState.ABANDONED: frozenset(),
    }
)
JOB: Transitions[JobPhase] = MappingProxyType(
    {
        JobPhase.BUYING: frozenset({JobPhase.RUNNING, JobPhase.WAITING, JobPhase.STOPPING}),
        JobPhase.RUNNING: frozenset({JobPhase.BUYING, JobPhase.WAITING, JobPhase.STOPPING}),
        JobPhase.WAITING: frozenset({JobPhase.BUYING, JobPhase.RUNNING, JobPhase.STOPPING}),
        JobPhase.STOPPING: frozenset({JobPhase.STOPPED, JobPhase.DONE, JobPhase.FAILED}),
        JobPhase.STOPPED: frozenset({JobPhase.BUYING}),
        JobPhase.DONE: frozenset({JobPhase.BUYING}),
        JobPhase.FAILED: frozenset({JobPhase.BUYING}),
    }
)
_MACHINE_ENDS = frozenset({MachineState.RELEASING, MachineState.GONE})
MACHINE: Transitions[MachineState] = MappingProxyType(
    {
        MachineState.PROMISED: frozenset({MachineState.PENDING, MachineState.BOOTING, MachineState.LIVE})
        | _MACHINE_ENDS,
        MachineState.PENDING: frozenset({MachineState.BOOTING, MachineState.LIVE}) | _MACHINE_ENDS,
        MachineState.BOOTING: frozenset({MachineState.LIVE}) | _MACHINE_ENDS,
        MachineState.LIVE: frozenset({MachineState.PREEMPTING, MachineState.DRAINING}) | _MACHINE_ENDS,
        MachineState.PREEMPTING: frozenset({MachineState.LIVE, MachineState.DRAINING}) | _MACHINE_ENDS,
        MachineState.DRAINING: _MACHINE_ENDS,
        MachineState.RELEASING: frozenset({MachineState.GONE}),
        MachineState.GONE: frozenset(),
    }
)
ORDER: Transitions[OrderState] = MappingProxyType(
    {
        OrderState.ASKED: frozenset({OrderState.UNKNOWN, OrderState.ANSWERED, OrderState.CANCELLED}),
        OrderState.UNKNOWN: frozenset({OrderState.ASKED, OrderState.ANSWERED, OrderState.CANCELLED}),
        OrderState.ANSWERED: frozenset(),
        OrderState.CANCELLED: frozenset(),
    }
)


def transition(table: Transitions[S], current: S, target: S) -> S:
    """Return the target state.

    Raises:
        IllegalTransition: the table does not allow it.
    """
    if target not in table[current]:
        legal = ", ".join(sorted(table[current])) or "nothing"
        raise IllegalTransition(f"{current!s} cannot become {target!s}: only {legal}")
    return target


def mermaid(table: Transitions[S]) -> str:
    """Return the table as a Mermaid state diagram, in the order of the states' definition."""
    states = list(table)
    lines = ["stateDiagram-v2", *(f'    state "{state}" as {state.name}' for state in states)]
    lines.append(f"    [*] --> {states[0].name}")
    for state in states:
        lines += [f"    {state.name} --> {after.name}" for after in states if after in table[state]]
        if not table[state]:
            lines.append(f"    {state.name} --> [*]")
    return "\n".join(lines) + "\n"
