"""What a worker, a checkpoint, a job, a machine and an order may become: the legal moves as tables.

Code and diagrams are made from them.

A move that is not in the table raises `IllegalMove` and changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from windfall.fleet import JobPhase


class Stage(enum.StrEnum):
    """What a worker is about."""

    __hash__ = str.__hash__  # of the enumeration's own, written in Python, a turn would feel the time

    NEW = "new"
    """Nothing has begun."""
    STARTING = "starting"
    """A point is being restored and the script started, or the next attempt waits for its turn."""
    RUNNING = "running"
    """The script trains."""
    SAVING = "saving"
    """The last save of this machine is asked for or under way: a notice or a stop is in force."""
    DRAINING = "draining"
    """The script has ended; what it handed over is still being stored."""
    ENDED = "ended"
    """Everything is said; the agent exits."""


class PointState(enum.StrEnum):
    """What has become of a checkpoint."""

    __hash__ = str.__hash__

    ASKED = "asked"
    """A request for it is published, or the script's own schedule has come."""
    HANDED_OVER = "handed over"
    """At least one rank's part lies on the local disk; the others' are awaited, or the uplink is."""
    UPLOADING = "uploading"
    UPLOADED = "uploaded"
    """All parts are durable in the store, but no record names them."""
    COMMITTING = "committing"
    COMMITTED = "committed"
    """A record of the log names it: a restart restores it."""
    ABANDONED = "abandoned"
    """It will never be committed."""


class MachineState(enum.StrEnum):
    """What has become of a machine, as the driver knows it."""

    PROMISED = "promised"
    """An order was answered with it; no listing has it yet."""
    PENDING = "pending"
    """Listed, not started, not billed."""
    STARTING = "starting"
    """It runs, and has not spoken yet."""
    LIVE = "live"
    """It has spoken, on any channel."""
    DOOMED = "doomed"
    """It has said itself that its end is announced: its successor may be bought."""
    RELEASING = "releasing"
    """We gave it back; it costs until its provider says that it is gone."""
    GONE = "gone"


class OrderState(enum.StrEnum):
    """What has become of an order."""

    ASKED = "asked"
    """The provider is being asked."""
    UNKNOWN = "unknown"
    """Nobody knows whether it was taken: a listing, or the same order again, will tell."""
    ANSWERED = "answered"
    """Its machines are known, and no more will come."""
    CANCELLED = "cancelled"
    """Nothing more is wanted of it; what comes of it all the same is released."""


class IllegalMove(AssertionError):
    """A state was asked to become one that it cannot become: a defect of Windfall."""


S = TypeVar("S", bound=enum.StrEnum)
Table = Mapping[S, frozenset[S]]

WORKER: Table[Stage] = MappingProxyType(
    {
        Stage.NEW: frozenset({Stage.STARTING}),
        Stage.STARTING: frozenset({Stage.RUNNING, Stage.DRAINING, Stage.ENDED}),
        Stage.RUNNING: frozenset({Stage.SAVING, Stage.DRAINING, Stage.ENDED}),
        Stage.SAVING: frozenset({Stage.RUNNING, Stage.DRAINING, Stage.ENDED}),
        Stage.DRAINING: frozenset({Stage.STARTING, Stage.ENDED}),
        Stage.ENDED: frozenset(),
    }
)
POINT: Table[PointState] = MappingProxyType(
    {
        PointState.ASKED: frozenset({PointState.HANDED_OVER, PointState.ABANDONED}),
        PointState.HANDED_OVER: frozenset({PointState.UPLOADING, PointState.ABANDONED}),
        PointState.UPLOADING: frozenset({PointState.UPLOADED, PointState.ABANDONED}),
        PointState.UPLOADED: frozenset({PointState.COMMITTING}),
        PointState.COMMITTING: frozenset({PointState.COMMITTED, PointState.ABANDONED}),
        PointState.COMMITTED: frozenset(),
        PointState.ABANDONED: frozenset(),
    }
)
JOB: Table[JobPhase] = MappingProxyType(
    {
        JobPhase.BUYING: frozenset({JobPhase.RUNNING, JobPhase.WAITING, JobPhase.STOPPING}),
        JobPhase.RUNNING: frozenset({JobPhase.BUYING, JobPhase.WAITING, JobPhase.STOPPING}),
        JobPhase.WAITING: frozenset({JobPhase.BUYING, JobPhase.RUNNING, JobPhase.STOPPING}),
        JobPhase.STOPPING: frozenset({JobPhase.STOPPED, JobPhase.DONE, JobPhase.FAILED}),
        JobPhase.STOPPED: frozenset({JobPhase.BUYING}),
        JobPhase.DONE: frozenset(),
        JobPhase.FAILED: frozenset({JobPhase.BUYING}),
    }
)
_MACHINE_ENDS = frozenset({MachineState.RELEASING, MachineState.GONE})
MACHINE: Table[MachineState] = MappingProxyType(
    {
        MachineState.PROMISED: frozenset({MachineState.PENDING, MachineState.STARTING, MachineState.LIVE})
        | _MACHINE_ENDS,
        MachineState.PENDING: frozenset({MachineState.STARTING, MachineState.LIVE}) | _MACHINE_ENDS,
        MachineState.STARTING: frozenset({MachineState.LIVE}) | _MACHINE_ENDS,
        MachineState.LIVE: frozenset({MachineState.DOOMED}) | _MACHINE_ENDS,
        MachineState.DOOMED: frozenset({MachineState.LIVE}) | _MACHINE_ENDS,
        MachineState.RELEASING: frozenset({MachineState.GONE}),
        MachineState.GONE: frozenset(),
    }
)
ORDER: Table[OrderState] = MappingProxyType(
    {
        OrderState.ASKED: frozenset({OrderState.UNKNOWN, OrderState.ANSWERED, OrderState.CANCELLED}),
        OrderState.UNKNOWN: frozenset({OrderState.ASKED, OrderState.ANSWERED, OrderState.CANCELLED}),
        OrderState.ANSWERED: frozenset(),
        OrderState.CANCELLED: frozenset(),
    }
)


def move(table: Table[S], current: S, wanted: S) -> S:
    """Return the state wanted.

    Raises:
        IllegalMove: the table does not allow it.
    """
    if wanted not in table[current]:
        legal = ", ".join(sorted(table[current])) or "nothing"
        raise IllegalMove(f"{current!s} cannot become {wanted!s}: only {legal}")
    return wanted


def mermaid(table: Table[S]) -> str:
    """Return the table as a Mermaid state diagram, in the order of the states' definition."""
    states = list(table)
    lines = ["stateDiagram-v2", *(f'    state "{state}" as {state.name}' for state in states)]
    lines.append(f"    [*] --> {states[0].name}")
    for state in states:
        lines += [f"    {state.name} --> {after.name}" for after in states if after in table[state]]
        if not table[state]:
            lines.append(f"    {state.name} --> [*]")
    return "\n".join(lines) + "\n"
