"""What a worker and a recovery point may become: the legal moves as tables, from which code and diagrams are made.

A move that is not in the table raises `IllegalMove` and changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar


class Stage(enum.StrEnum):
    """What a worker is about."""

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
    """What has become of a recovery point."""

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
