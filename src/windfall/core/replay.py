"""Replay of a journal (the same facts must give the same decisions and commands), and explanations of its decisions."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from windfall.core import driver, worker
from windfall.events import ComparedValue, Decision, Row, WorkerStarted
from windfall.fleet import ControllerStarted, JobSubmitted
from windfall.structs import Struct


class ReplayDifference(Struct, frozen=True):
    """One place where the journal and its replay differ.

    Attributes:
        what: `decisions`, `commands`, `gap` (rows are missing) or `facts` (impossible ones); after a `gap` or `facts`
            difference the rest of the term cannot be replayed.
        recorded, replayed: both versions as text.
    """

    term: int
    sequence: int
    what: str
    recorded: str
    replayed: str


def replay(rows: Iterable[Row]) -> list[ReplayDifference]:
    """Feed a journal's facts back to the reducer that wrote it.

    Args:
        rows: of one or more terms of a machine, in order within each term; or of one job at a controller: one sequence
            over all controllers, whose first row has the submission.

    Returns:
        All differences; none if the reducer still decides as it did then.
    """
    following = iter(rows)
    first = next(following, None)
    if first is None:
        return []
    together = itertools.chain((first,), following)
    if any(isinstance(fact, JobSubmitted) for fact in first.facts):
        return _feed(together, driver.initial_state(), driver.react)
    differences: list[ReplayDifference] = []
    for _, term in itertools.groupby(together, key=lambda row: row.term):
        differences += _feed(term, worker.initial_state(), worker.react)
    return differences


def _feed(rows: Iterator[Row], state: Any, react: Callable[..., tuple[Any, ...]]) -> list[ReplayDifference]:
    """Feed one sequence of rows to a reducer and collect the differences."""
    differences: list[ReplayDifference] = []
    for expected, row in enumerate(rows, 1):
        if row.sequence != expected:
            found, missing = f"row {row.sequence}", f"row {expected} expected"
            return [*differences, ReplayDifference(row.term, row.sequence, "gap", found, missing)]
        try:
            state, decisions, commands = react(state, row.at, row.facts)
        except Exception as error:  # an edited journal can contain anything
            failure = f"{type(error).__name__}: {error}"
            return [*differences, ReplayDifference(row.term, row.sequence, "facts", repr(row.facts), failure)]
        if decisions != row.decisions:
            differences.append(
                ReplayDifference(row.term, row.sequence, "decisions", repr(row.decisions), repr(decisions))
            )
        if commands != row.commands:
            differences.append(ReplayDifference(row.term, row.sequence, "commands", repr(row.commands), repr(commands)))
    return differences


def explain(rows: Iterable[Row], number: int | None = None) -> list[str]:
    """Return the reasons for each decision as text: the choice, the numbers compared, the alternatives.

    Args:
        rows: the journal.
        number: the only decision to explain, counted from 1; None for all.
    """
    lines: list[str] = []
    count = 0
    for row in rows:
        if any(isinstance(fact, WorkerStarted) for fact in row.facts):
            lines += [] if number is not None else [f"term {row.term}"]
        if any(isinstance(fact, ControllerStarted) for fact in row.facts):
            lines += [] if number is not None else [f"controller {row.term}"]
        for decision in row.decisions:
            count += 1
            if number is None or number == count:
                lines += _sentences(count, row, decision)
    return lines


def _sentences(number: int, row: Row, decision: Decision) -> list[str]:
    clock = dt.datetime.fromtimestamp(row.wall_time, tz=dt.UTC).strftime("%H:%M:%S")
    lines = [f"{number:4d}  {clock}  {decision.choice}  ({decision.policy}, version {decision.version})"]
    lines += [f"        {item.name} = {_quantity(item)}" for item in decision.rationale]
    if decision.alternatives:
        lines.append(f"        instead of: {'; '.join(decision.alternatives)}")
    return lines


def _quantity(item: ComparedValue) -> str:
    """Return a number with its unit; a step has a number and no amount: `step 100`."""
    return f"step {item.value:.0f}" if item.unit == "step" else f"{_number(item.value)} {item.unit}".rstrip()


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 10_000 or value == int(value) else f"{value:.4g}"
