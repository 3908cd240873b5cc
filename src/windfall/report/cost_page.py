"""What `windfall cost JOB` shows of a job, as text for a terminal and as data; `windfall simulate --history` shows the same."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from windfall.report import account, bill, machine_timeline
from windfall.report.account import Account
from windfall.report.bill import JobBill

TIMELINE_COLUMNS_MAX = 100


def render(made: JobBill, run: Account | None, unread: str, *, columns: int) -> RenderableType:
    """Return the bill, where the time went, and the timeline of the machines.

    Args:
        made: the bill.
        run: the account of the job's run; None if there is none.
        unread: one sentence on why there is none.
        columns: of the terminal.
    """
    timeline = machine_timeline.text(made, run, columns=min(columns, TIMELINE_COLUMNS_MAX))
    return Group(bill.render(made, run, unread), Text(), Text(timeline))


def as_json(made: JobBill, run: Account | None, *, run_deleted: bool = False) -> dict[str, Any]:
    """Return the bill and the account as data for `json.dumps`."""
    return bill.as_json(made) | {
        "run_deleted": run_deleted,
        "undisturbed_usd": None if run is None else made.undisturbed_usd(run),
        "run": None if run is None else account.as_json(run),
    }
