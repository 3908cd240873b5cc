"""An account as tables for a terminal of 80 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from windfall.report.account import Account, Loss
from windfall.report.kinds import Kind
from windfall.report.unstored import grouped
from windfall.units import duration_text, size_text

MEANING = {
    Kind.COMPUTE: "steps computed for the first time",
    Kind.REDO: "steps computed again after a loss",
    Kind.SAVE: "the script stood still to save",
    Kind.RESTORE: "fetching and verifying a checkpoint",
    Kind.START: "until the first step: taking the run, imports",
    Kind.OTHER: "evaluation, compilation, data, cut-off steps",
    Kind.FINISH: "after the script: last uploads, release",
    Kind.UNSEEN: "the script ran and told nothing of its steps",
    Kind.WAITING: "no machine held the run",
    Kind.UNKNOWN: "a machine may have trained: nobody knows",
}


def moment(made: Account, at: float) -> str:
    """Write a moment as time since the run began."""
    return "+" + duration_text(max(0.0, at - made.begin))


def spent(made: Account) -> Table:
    """Where the time went: one row a kind that occurred, their sum below."""
    table = Table(title="Where the time went", title_justify="left", box=None, pad_edge=False, show_footer=True)
    table.add_column("kind", footer="total")
    table.add_column("time", justify="right", footer=duration_text(made.total_s))
    table.add_column("share", justify="right", footer="100.0 %" if made.total_s else "")
    table.add_column("what it is", footer="", no_wrap=True)
    for kind, seconds in made.spent:
        if seconds:
            table.add_row(
                kind.value, duration_text(seconds), f"{seconds / made.total_s:.1%}".replace("%", " %"), MEANING[kind]
            )
    return table


def losses(made: Account) -> Table:
    """Every loss with its cause and its price."""
    table = Table(title="Losses", title_justify="left", box=None, pad_edge=False)
    for name, justify in (("at", "right"), ("term", "right"), ("attempt", "right"), ("cause", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    table.add_column("steps lost", justify="right")
    table.add_column("redone in", justify="right")
    for loss in made.losses:
        table.add_row(
            moment(made, loss.at),
            str(loss.term),
            str(loss.attempt),
            loss.cause.value,
            loss.steps.text(),
            _redone(loss),
        )
    return table


def _redone(loss: Loss) -> str:
    if not loss.steps.low:
        return "-" if loss.steps.exact else "?"
    if loss.redone < loss.steps.low:
        return f"{duration_text(loss.redo_s)}, {loss.steps.low - loss.redone} to go"
    return duration_text(loss.redo_s)


def saves(made: Account) -> Table:
    """The committed checkpoints by kind."""
    table = Table(title="Committed checkpoints", title_justify="left", box=None, pad_edge=False)
    table.add_column("kind")
    table.add_column("points", justify="right")
    table.add_column("written", justify="right")
    for row in made.saves:
        table.add_row(row.kind.value, str(row.count), size_text(row.size_bytes))
    return table


def not_stored(made: Account) -> Table:
    """The saves that were given up, and the transfers that failed, by reason."""
    table = Table(title="Not stored", title_justify="left", box=None, pad_edge=False)
    table.add_column("what")
    table.add_column("times", justify="right")
    table.add_column("why", overflow="fold")
    for why, count in grouped(made.given_up):
        table.add_row("save given up", str(count), why)
    for failure in made.failed:
        table.add_row("try failed", str(failure.count), failure.reason)
    return table


def summary(made: Account) -> str:
    """The account in two lines."""
    goodput = "-" if made.goodput is None else f"{made.goodput.text('.1f', scale=100.0)} %"
    machines, count = len(made.tenures), len(made.losses)
    return (
        f"{made.steps} steps on {machines} machine{'s' * (machines != 1)} with {count} loss{'es' * (count != 1)}; "
        f"{made.steps_redone.text()} steps computed again.\n"
        f"Goodput {goodput}; machine-hours {made.machine_hours.text('.3f')}; "
        f"uploads behind the script {duration_text(made.upload_s)}."
    )


def whole(made: Account) -> RenderableType:
    """The account as `windfall cost` prints it."""
    parts: list[RenderableType] = [Text(summary(made)), Text(), spent(made)]
    if made.losses:
        parts += [Text(), losses(made)]
    if made.commits:
        parts += [Text(), saves(made)]
    if made.given_up or made.failed:
        parts += [Text(), not_stored(made)]
    if made.unknown:
        parts += [Text(), Text("Not known", style="italic"), *(Text(f"- {sentence}") for sentence in made.unknown)]
    return Group(*parts)
