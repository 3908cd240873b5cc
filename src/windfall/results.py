"""Facts and commands about results, and about rejected messages of a script.

A result is kept, and never restored by a restart.
"""

from __future__ import annotations

from windfall.events import Command, Fact
from windfall.structs import Tagged
from windfall.terms import Result, Seconds, Shard, Step


class MessageRefused(Tagged, Fact, frozen=True):
    """A rank's message is invalid or cannot be executed; the reason starts with the kind of message."""

    rank: int
    reason: str


class ResultStored(Tagged, Fact, frozen=True):
    """A result's record is in the log; the result is kept whatever happens to the run."""

    result: Result
    record: int
    duration_s: Seconds


class StoreResult(Tagged, Command, frozen=True):
    """Write a result's manifest, then the next log record; answered by `ResultStored`, `CommitFailed` or `FenceLost`."""

    checkpoint_id: str
    name: str
    step: Step
    generation: int
    shard: Shard
