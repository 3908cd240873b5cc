"""A bill as tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from windfall.report import tables
from windfall.report.account import Account
from windfall.report.bill import Bill, Machined
from windfall.units import duration_text


def usd(amount: float) -> str:
    """Write dollars: to the cent, and small amounts so that they are not zero."""
    digits = 2 if abs(amount) >= 10 else 4 if abs(amount) >= 0.1 else 6
    return f"{amount:.{digits}f}"


def clock(seconds: float) -> str:
    """Write a stretch of time so that many of them can be compared: `0:27`, `1:02:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def whole(made: Bill, run: Account | None, unread: str) -> RenderableType:
    """The bill as `windfall cost JOB` prints it, with where the time went.

    Args:
        made: the bill.
        run: the account of the job's run; None if there is none.
        unread: why there is none, in a sentence.
    """
    parts: list[RenderableType] = [Text(line) for line in sums(made, run)]
    if made.machines:
        parts += [Text(), machines(made)]
    parts += [Text(), tables.whole(run) if run is not None else Text(unread)]
    return Group(*parts)


def sums(made: Bill, run: Account | None) -> Iterator[str]:
    """Yield what it cost in all, line by line."""
    total = made.sums
    count = len(made.machines)
    yield (
        f"{made.job.job_id} is {made.phase}: {count} machine{'s' * (count != 1)}, {total.hours:.4f} machine-hours in "
        f"{duration_text(_span_s(made))}."
    )
    if made.free:
        yield "Its machines cost no dollars."
        return
    yield f"cost        {usd(total.due_usd)} USD: settled where the bill is closed, else estimated"
    yield f"  estimated {usd(total.estimated_usd)} USD, machine-hours x price at the purchase"
    open_ = f", {total.unsettled} machine{'s' * (total.unsettled != 1)} to come" if total.unsettled else ""
    yield f"  settled   {usd(total.settled_usd)} USD{open_ or ', all of it'}"
    if total.disputed:
        few = f"{total.disputed} machine{'s' * (total.disputed != 1)}"
        yield f"  disputed  {few}, billed {usd(total.disputed_usd)} USD beside the estimate: ask the provider"
    if total.unexplained_usd:
        yield f"  unknown   {usd(total.unexplained_usd)} USD for machines that this job never had: ask the provider"
    if made.savings_percent is not None:
        yield f"on demand   {usd(total.twin_usd)} USD for the same hours; saved {made.savings_percent:.0f} %"
    undisturbed = None if run is None else made.undisturbed_usd(run)
    if undisturbed:
        less = 100 * (1 - total.due_usd / undisturbed)
        yield f"            {usd(undisturbed)} USD for the same work undisturbed; saved {less:.0f} %"


def machines(made: Bill) -> Table:
    """Every machine: what it was, from when to when, what it cost, how it ended."""
    table = Table(title="Machines", title_justify="left", box=None, pad_edge=False, show_footer=True)
    table.add_column("machine", no_wrap=True, footer="total")
    table.add_column("type")
    for name in ("USD/h", "from", "for"):
        table.add_column(name, justify="right", no_wrap=True)
    total = made.sums.due_usd - made.sums.unexplained_usd
    table.add_column("USD", justify="right", no_wrap=True, footer=usd(total))
    table.add_column("how it ended")
    for one in made.machines:
        machine = one.machine
        begun = "-" if machine.began is None else f"+{clock(max(machine.began - made.begin, 0.0))}"
        table.add_row(
            machine.machine_id,
            f"{machine.machine_type} {machine.zone}",
            f"{machine.price_usd_per_hour:.4f}",
            begun,
            clock(one.hours * 3600),
            _cost(one),
            one.how,
        )
    return table


def _cost(one: Machined) -> str:
    if one.settled_usd is None:
        return f"~{usd(one.estimated_usd)}"
    return f"{usd(one.settled_usd)}{' !' if one.disputed else ''}"


def _span_s(made: Bill) -> float:
    ends = [one.machine.ended or made.now for one in made.machines]
    return max([*ends, made.begin]) - made.begin
