"""One simulated history, read by the very functions that read a live job: its bill, its account, its decisions.

Three things differ from a live run, because a simulation knows more: each machine's last row is written at its end, no row is
lost, and no machine is alive afterwards.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from windfall.core import replay
from windfall.events import CheckpointRestored, RanksObserved, Row, ScriptStarted
from windfall.report import bill, cost_page, run_leases, simulate_report
from windfall.report.account import Account, Lease, account
from windfall.report.bill import JobBill
from windfall.simulation.engine import History
from windfall.simulation.scenario_from_job import BuiltScenario
from windfall.structs import Struct, replace
from windfall.terms import LastProgress, Seconds, Step, Term, WallTime


class ReadHistory(Struct, frozen=True):
    """A history as the reports take it.

    Attributes:
        found: what the engine wrote.
        bill: of its machines.
        run: where its time went.
        built: what it rests on.
        head: the job in one line.
        seed: of the history.
    """

    found: History
    bill: JobBill
    run: Account
    built: BuiltScenario
    head: str
    seed: int


def read(found: History, built: BuiltScenario, head: str, seed: int) -> ReadHistory:
    """Read a history whose journals were kept; arguments as in `ReadHistory`."""
    assert found.job_rows, "a history without journals cannot be read"
    made = bill.bill(found.job_rows, found.job_rows[-1].wall_time)
    assert made is not None, "a journal has a first row"
    rows: dict[Term, list[Row]] = {}
    for row in found.run_rows:
        rows.setdefault(row.term, []).append(row)
    leases = [_with_end(lease, rows[lease.term]) for lease in run_leases.leases(found.records)]
    run = account(rows, leases, commits=run_leases.commits(found.records))
    return ReadHistory(found, made, run, built, head, seed)


def _with_end(lease: Lease, rows: Sequence[Row]) -> Lease:
    """Add what the last row of a machine that vanished says: it was written at its end."""
    if lease.released_at is not None:
        return lease
    attempt, first, last = 0, Step(0), Step(0)
    for fact in (fact for row in rows for fact in row.facts):
        if isinstance(fact, ScriptStarted):
            attempt = fact.attempt
        elif isinstance(fact, CheckpointRestored):
            first = fact.step
        elif isinstance(fact, RanksObserved):
            last = min(rank.step for rank in fact.ranks)
    ended = rows[-1].wall_time
    return replace(lease, reached=LastProgress(attempt, first, last, ended, Seconds(0.0), last=True), gone_at=ended)


def render(history: ReadHistory, *, machines: bool, columns: int) -> RenderableType:
    """Return a history as text.

    Args:
        history: to show.
        machines: explain the decisions of the machines instead of the controller's.
        columns: of the terminal.
    """
    rows = history.found.run_rows if machines else history.found.job_rows
    decided = "the machines" if machines else "the controller"
    notes = [f"{note[0].upper()}{note[1:]}." for note in history.built.notes]
    return Group(
        Text(f"A simulated history, seed {history.seed}: nothing was bought, and all times are simulated."),
        Text(history.head),
        Text(),
        cost_page.render(history.bill, history.run, "", columns=columns),
        Text(),
        simulate_report.inputs_table(history.built),
        *(Text(note) for note in notes),
        Text(),
        Text(f"Decisions of {decided}, from the submission at {_clock(history.bill.start)} on", "bold"),
        *(Text(line) for line in replay.explain(rows)),
    )


def _clock(wall_time: WallTime) -> str:
    """Write a time as `explain` does."""
    return dt.datetime.fromtimestamp(wall_time, tz=dt.UTC).strftime("%H:%M:%S")
