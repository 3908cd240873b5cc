"""An account as tables for a terminal of 80 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from windfall.report.account import Account, AttemptLoss, grouped
from windfall.report.interval_kinds import Kind
from windfall.units import duration_text, size_text

MEANING = {
    Kind.COMPUTE: "steps computed for the first time",
    Kind.REDO: "steps computed again after a loss",
    Kind.SAVE: "the script was blocked by a save",
    Kind.RESTORE: "fetching and verifying a checkpoint",
    Kind.START: "before the first step: acquiring the run, imports",
    Kind.OTHER: "evaluation, compilation, data, cut-off steps",
    Kind.FINISH: "after the script: last uploads, release",
    Kind.UNSEEN: "the script ran but reported no steps",
    Kind.WAITING: "no machine held the run",
    Kind.UNKNOWN: "a machine may have trained: no record of it",
}


def moment(account: Account, at: float) -> str:
    """Write a time as time since the start of the run."""
    return "+" + duration_text(max(0.0, at - account.start))


def spent(account: Account) -> Table:
    """Return where the time went: one row for each kind that occurred, and the total."""
    table = Table(title="Where the time went", title_justify="left", box=None, pad_edge=False, show_footer=True)
    table.add_column("kind", footer="total")
    table.add_column("time", justify="right", footer=duration_text(account.total_s))
    table.add_column("share", justify="right", footer="100.0 %" if account.total_s else "")
    table.add_column("meaning", footer="", no_wrap=True)
    for kind, seconds in account.shown:
        share = f"{seconds / account.total_s:.1%}".replace("%", " %")
        table.add_row(kind.value, duration_text(seconds), share, MEANING[kind])
    return table


def losses(account: Account) -> Table:
    """Return every loss with its cause and its cost in steps and time."""
    table = Table(title="Losses", title_justify="left", box=None, pad_edge=False)
    for name, justify in (("at", "right"), ("term", "right"), ("attempt", "right"), ("cause", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    table.add_column("steps lost", justify="right")
    table.add_column("redone in", justify="right")
    for loss in account.losses:
        table.add_row(
            moment(account, loss.at),
            str(loss.term),
            str(loss.attempt),
            loss.cause.value,
            loss.steps.text(),
            _redone(loss),
        )
    return table


def _redone(loss: AttemptLoss) -> str:
    if not loss.steps.low:
        return "-" if loss.steps.exact else "?"
    if loss.redone < loss.steps.low:
        return f"{duration_text(loss.redo_s)}, {loss.steps.low - loss.redone} left"
    return duration_text(loss.redo_s)


def saves(account: Account) -> Table:
    """Return the committed checkpoints by kind."""
    table = Table(title="Committed checkpoints", title_justify="left", box=None, pad_edge=False)
    table.add_column("kind")
    table.add_column("checkpoints", justify="right")
    table.add_column("size", justify="right")
    for row in account.saves:
        table.add_row(row.kind.value, str(row.count), size_text(row.size_bytes))
    return table


def not_stored(account: Account) -> Table:
    """Return the abandoned saves and the failed transfers, by reason."""
    table = Table(title="Not stored", title_justify="left", box=None, pad_edge=False)
    table.add_column("what")
    table.add_column("times", justify="right")
    table.add_column("reason", overflow="fold")
    for reason, count in grouped(account.abandoned):
        table.add_row("save abandoned", str(count), reason)
    for failure in account.failures:
        table.add_row("attempt failed", str(failure.count), failure.reason)
    return table


def summary(account: Account) -> str:
    """Return the account in two lines."""
    goodput = "-" if account.goodput is None else f"{account.goodput.text('.1f', scale=100.0)} %"
    machines, count = len(account.leases), len(account.losses)
    return (
        f"{account.steps} steps on {machines} machine{'s' * (machines != 1)} with {count} loss{'es' * (count != 1)}; "
        f"{account.steps_redone.text()} steps computed again.\n"
        f"Goodput {goodput}; machine-hours {account.machine_hours.text('.3f')}; "
        f"uploads in the background {duration_text(account.upload_s)}."
    )


def render(account: Account) -> RenderableType:
    """Return the account as `windfall cost` prints it."""
    parts: list[RenderableType] = [Text(summary(account)), Text(), spent(account)]
    if account.losses:
        parts += [Text(), losses(account)]
    if account.commits:
        parts += [Text(), saves(account)]
    if account.abandoned or account.failures:
        parts += [Text(), not_stored(account)]
    if account.unknown:
        parts += [Text(), Text("Not known", style="italic"), *(Text(f"- {message}") for message in account.unknown)]
    return Group(*parts)
