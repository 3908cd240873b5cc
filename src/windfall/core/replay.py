"""The journal fed back: the same facts must lead to the same decisions and commands; and what each decision compared."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from windfall.core import worker
from windfall.events import Decision, Row, WorkerBegan


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the journal and its replay part.

    Attributes:
        what: `decisions`, `commands` or `gap` (rows are missing: the rest of the epoch cannot be replayed).
        recorded, replayed: in words.
    """

    epoch: int
    sequence: int
    what: str
    recorded: str
    replayed: str


def replay(rows: Iterable[Row]) -> list[Difference]:
    """Feed a journal's facts back to the reducer.

    Args:
        rows: of one or more epochs, each epoch's in order.

    Returns:
        All differences, none if the reducer decides today as it did then.
    """
    differences: list[Difference] = []
    state, epoch, expected, torn = worker.begin(), -1, 1, False
    for row in rows:
        if row.epoch != epoch:
            state, epoch, expected, torn = worker.begin(), row.epoch, 1, False
        if torn:
            continue
        if row.sequence != expected:
            differences.append(
                Difference(epoch, row.sequence, "gap", f"row {row.sequence}", f"row {expected} expected")
            )
            torn = True
            continue
        expected += 1
        state, decisions, commands = worker.react(state, row.at, row.facts)
        if decisions != row.decisions:
            differences.append(Difference(epoch, row.sequence, "decisions", repr(row.decisions), repr(decisions)))
        if commands != row.commands:
            differences.append(Difference(epoch, row.sequence, "commands", repr(row.commands), repr(commands)))
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
            lines += [] if number is not None else [f"epoch {row.epoch}"]
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
