"""Facts and commands about results, which stay and which no restart restores; and what of a script's words was refused."""

from __future__ import annotations

from dataclasses import dataclass

from windfall.events import Command, Fact
from windfall.terms import Result, Seconds, Shard, Step


@dataclass(frozen=True, slots=True)
class MessageRefused(Fact):
    """What a rank said cannot be understood, or not be done; the reason begins with what it was."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class ResultStored(Fact):
    """A result's record is in the log: it stays, whatever becomes of the run."""

    result: Result
    record: int
    duration_s: Seconds


@dataclass(frozen=True, slots=True)
class StoreResult(Command):
    """Write a result's manifest, then the next record; answered by `ResultStored`, `CommitFailed` or `FenceLost`."""

    checkpoint_id: str
    name: str
    step: Step
    generation: int
    shard: Shard
