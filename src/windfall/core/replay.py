"""The journal fed back: the same facts must lead to the same decisions and commands; and what each decision compared."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from windfall.core import driver, worker
from windfall.events import Decision, Row, WorkerBegan
from windfall.fleet import ControllerBegan, JobSubmitted


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the journal and its replay part.

    Attributes:
        what: `decisions`, `commands`, `gap` (rows are missing) or `facts` (ones that cannot have been): behind the last
            two the rest of the term cannot be replayed.
        recorded, replayed: in words.
    """

    term: int
    sequence: int
    what: str
    recorded: str
    replayed: str


def replay(rows: Iterable[Row]) -> list[Difference]:
    """Feed a journal's facts back to the reducer that wrote it.

    Args:
        rows: of one or more terms of a machine, each term's in order; or of one job at a controller, whose first row
            has the submission and which is one sequence over all controllers.

    Returns:
        All differences, none if the reducer decides today as it did then.
    """
    following = iter(rows)
    first = next(following, None)
    if first is None:
        return []
    together = itertools.chain((first,), following)
    if any(isinstance(fact, JobSubmitted) for fact in first.facts):
        return _feed(together, driver.begin(), driver.react)
    differences: list[Difference] = []
    for _, term in itertools.groupby(together, key=lambda row: row.term):
        differences += _feed(term, worker.begin(), worker.react)
    return differences


def _feed(rows: Iterator[Row], state: Any, react: Callable[..., tuple[Any, ...]]) -> list[Difference]:
    """Feed one sequence of rows to a reducer."""
    differences: list[Difference] = []
    for expected, row in enumerate(rows, 1):
        if row.sequence != expected:
            found, wanted = f"row {row.sequence}", f"row {expected} expected"
            return [*differences, Difference(row.term, row.sequence, "gap", found, wanted)]
        try:
            state, decisions, commands = react(state, row.at, row.facts)
        except Exception as error:  # a journal that somebody has changed can say anything
            cannot = f"{type(error).__name__}: {error}"
            return [*differences, Difference(row.term, row.sequence, "facts", repr(row.facts), cannot)]
        if decisions != row.decisions:
            differences.append(Difference(row.term, row.sequence, "decisions", repr(row.decisions), repr(decisions)))
        if commands != row.commands:
            differences.append(Difference(row.term, row.sequence, "commands", repr(row.commands), repr(commands)))
    return differences


def explain(rows: Iterable[Row], number: int | None = None) -> list[str]:
    """Return why each decision was taken, for people: the choice, the numbers compared, the alternatives.

    Args:
        rows: the journal.
        number: only this decision, counted from 1; None for all.
    """
    lines: list[str] = []
    count = 0
    for row in rows:
        if any(isinstance(fact, WorkerBegan) for fact in row.facts):
            lines += [] if number is not None else [f"term {row.term}"]
        if any(isinstance(fact, ControllerBegan) for fact in row.facts):
            lines += [] if number is not None else [f"controller {row.term}"]
        for decision in row.decisions:
            count += 1
            if number is None or number == count:
                lines += _sentences(count, row, decision)
    return lines


def _sentences(number: int, row: Row, decision: Decision) -> list[str]:
    clock = dt.datetime.fromtimestamp(row.wall, tz=dt.UTC).strftime("%H:%M:%S")
    lines = [f"{number:4d}  {clock}  {decision.choice}  ({decision.policy}, version {decision.version})"]
    lines += [f"        {item.name} = {_number(item.value)} {item.unit}".rstrip() for item in decision.because]
    if decision.alternatives:
        lines.append(f"        instead of: {'; '.join(decision.alternatives)}")
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 10_000 or value == int(value) else f"{value:.4g}"
