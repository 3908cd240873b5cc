"""What a script handed over and the store does not have, and what went wrong on the way to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from windfall import events
from windfall.terms import Step, Term


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A save that was begun and never committed."""

    term: Term
    step: Step
    checkpoint_id: str
    why: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Transfers and commits that failed for one reason, whether or not a later try went well."""

    reason: str
    count: int


def given_up(term: Term, rows: Iterable[events.Row]) -> list[GivenUp]:
    """Return the saves of a term that its machine gave up, oldest first."""
    commands = [command for row in rows for command in row.commands if isinstance(command, events.AbandonCheckpoint)]
    return [GivenUp(term, _step(command.checkpoint_id), command.checkpoint_id, command.why) for command in commands]


def failed(facts: Iterable[events.Fact]) -> tuple[Failed, ...]:
    """Count the failures by their reasons, the most frequent first."""
    counted = Counter(fact.reason for fact in facts if isinstance(fact, (events.ShardFailed, events.CommitFailed)))
    return tuple(Failed(reason, count) for reason, count in counted.most_common())


def grouped(saves: Iterable[GivenUp]) -> list[tuple[str, int]]:
    """Return each reason, without the number of its step, and how many saves it cost; the most frequent first."""
    return Counter(re.sub(r"step \d+", "a step", save.why) for save in saves).most_common()


def _step(checkpoint_id: str) -> Step:
    """Return the step that begins a checkpoint's id."""
    return Step(int(checkpoint_id.partition("-")[0]))
