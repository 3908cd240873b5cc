"""What a job cost, machine by machine: a view of the controller's journal.

The totals come from `core.ledger`: replaying the driver computes them exactly as the budget checks did.

A bill as tables for a terminal of 80 columns.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from windfall.core import driver, job_summary, ledger
from windfall.core.ledger import LedgerTotals
from windfall.events import Row
from windfall.fleet import (
    SUPERSEDED,
    ChargesObserved,
    JobPhase,
    MachineReported,
    MachinesMissing,
    MachinesObserved,
    MachineStatus,
    PreemptMachine,
    ReleaseMachine,
    Report,
)
from windfall.jobs import Forecast, Job
from windfall.market import Machine, MachineEndCause, MachineLifecycle
from windfall.policies.planning.forecasts import ForecastOutcome
from windfall.report import account_tables, forecast_report
from windfall.report.account import Account
from windfall.report.interval_kinds import Kind
from windfall.structs import Struct, plain
from windfall.terms import NoticeLevel, Reliability, Seconds, Term, Usd, WallTime
from windfall.units import duration_text

_UNKNOWN_MAX = 0.05
"""If a larger share of the time is unknown, so is the cost of the work without preemptions."""


class MachineOutcome(enum.StrEnum):
    """What a machine of a bill is doing, or how it ended."""

    ORDERED = "ordered"
    RUNNING = "running"
    PREEMPTED = "preempted"
    RELEASED = "released"
    STOPPED = "stopped"
    """It shut down on its own."""
    EXPIRED = "expired"
    """It reached a time limit that it had from its start."""
    CANCELLED = "cancelled"
    """A person ended it, past Windfall."""
    FAILED = "failed"
    UNLISTED = "unlisted"
    """The provider no longer lists it and never said how it ended."""


_OUTCOME_TEXT = {
    MachineOutcome.STOPPED: "stopped on its own",
    MachineOutcome.EXPIRED: "time limit",
    MachineOutcome.CANCELLED: "cancelled past Windfall",
    MachineOutcome.UNLISTED: "no longer listed",
}
_LOST = frozenset({MachineOutcome.PREEMPTED, MachineOutcome.EXPIRED, MachineOutcome.CANCELLED, MachineOutcome.FAILED})
_OUTCOMES = {
    MachineEndCause.STOPPED: MachineOutcome.STOPPED,
    MachineEndCause.EXPIRED: MachineOutcome.EXPIRED,
    MachineEndCause.CANCELLED: MachineOutcome.CANCELLED,
    MachineEndCause.FAILED: MachineOutcome.FAILED,
}


class MachineCost(Struct, frozen=True):
    """One machine of a job.

    Attributes:
        hours: billed time, until its end or now [h].
        estimated_usd: hours x the price at the purchase.
        settled_usd: the final charge; None while its bill is open.
        disputed: the settled bill differs from the estimate by more than a cent and more than 1 %.
        outcome: what it is doing, or how it ended.
        detail: the notice of a preemption, or the reason of a release; may be empty.
        terms: of the run, in which it trained with others.
    """

    machine: Machine
    hours: float
    estimated_usd: Usd
    settled_usd: Usd | None
    disputed: bool
    outcome: MachineOutcome
    detail: str = ""
    terms: frozenset[Term] = frozenset()

    @property
    def lost(self) -> bool:
        """Whether it ended before its job had no more work for it."""
        return self.outcome in _LOST

    @property
    def label(self) -> str:
        """The outcome in a few words: `preempted (announced)`, `released`."""
        text = _OUTCOME_TEXT.get(self.outcome, self.outcome.value)
        explained = self.outcome in (MachineOutcome.PREEMPTED, MachineOutcome.EXPIRED)
        return f"{text} ({self.detail})" if explained and self.detail else text

    @property
    def text(self) -> str:
        """The outcome with its reason: `released: the run is done`."""
        released = self.outcome is MachineOutcome.RELEASED and self.detail
        return f"{self.label}: {self.detail}" if released else self.label


class JobBill(Struct, frozen=True):
    """What a job cost.

    Attributes:
        start: when it was submitted.
        now: until when running machines are counted.
        forecast: what its plan promised before the first purchase; None if it promised nothing.
        finish_s: from the submission to the end of the work [s]; None unless it is done.
        resumed: a user resumed it after a stop or a failure.
    """

    job: Job
    phase: JobPhase
    start: WallTime
    now: WallTime
    sums: LedgerTotals
    machines: tuple[MachineCost, ...]
    forecast: Forecast | None = None
    finish_s: Seconds | None = None
    resumed: bool = False

    @property
    def free(self) -> bool:
        """Whether its machines cost no dollars, so that only their hours count."""
        return not (self.sums.due_usd or self.sums.baseline_usd or self.sums.settled_usd)

    @property
    def savings_percent(self) -> float | None:
        """How much less it cost than the same hours on demand [%]; None if those cost nothing."""
        return None if self.sums.baseline_usd <= 0 else 100.0 * (1.0 - self.sums.due_usd / self.sums.baseline_usd)

    def ends(self) -> dict[str, WallTime]:
        """When each machine ended, for those whose end the provider reported."""
        named = ((one.machine.machine_id, one.machine.ended) for one in self.machines)
        return {name: ended for name, ended in named if ended is not None}

    def undisturbed_usd(self, account: Account) -> Usd | None:
        """Return what the same work would have cost on machines that cannot be preempted; None if unknown.

        They would have started once, redone and restored nothing, and never waited.

        Args:
            account: where the time of the job's run went.
        """
        unknown_s = account.of(Kind.UNKNOWN) + account.of(Kind.UNSEEN)
        if self.sums.hours <= 0 or unknown_s > _UNKNOWN_MAX * account.total_s:
            return None
        first = min((interval.term for interval in account.intervals), default=None)
        start_s = sum(
            interval.duration_s
            for interval in account.intervals
            if interval.term == first and interval.kind is Kind.START
        )
        kinds = (Kind.COMPUTE, Kind.SAVE, Kind.OTHER, Kind.FINISH)
        spent_s = start_s + sum(account.of(kind) for kind in kinds)
        usd_per_hour = self.sums.baseline_usd / self.sums.hours
        return Usd(spent_s / ledger.HOUR_S * usd_per_hour * self.job.nodes)


@dataclass(slots=True)
class _Machines:
    """What the journal says about each machine."""

    machines: dict[str, Machine] = field(default_factory=dict)
    accounts: dict[str, ledger.LedgerAccount] = field(default_factory=dict)
    announced: set[str] = field(default_factory=set)
    injected: dict[str, Seconds | None] = field(default_factory=dict)
    released: dict[str, str] = field(default_factory=dict)
    superseded: set[str] = field(default_factory=set)
    expired: set[str] = field(default_factory=set)
    generations: dict[str, set[int]] = field(default_factory=dict)
    terms: dict[int, set[Term]] = field(default_factory=dict)

    def add(self, row: Row, state: driver.FleetState) -> None:
        """Add a row, and the driver's ledger entries of the machines it names."""
        names: set[str] = set()
        for fact in row.facts:
            if isinstance(fact, MachinesObserved):
                names |= {machine.machine_id for machine in fact.machines}
            elif isinstance(fact, MachinesMissing):
                names |= set(fact.machine_ids)
            elif isinstance(fact, ChargesObserved):
                names |= {charge.machine_id for charge in fact.charges}
            elif isinstance(fact, MachineReported):
                self._report(fact.report)
        for command in row.commands:
            if isinstance(command, PreemptMachine):
                self.injected[command.machine_id] = command.notice_s
            elif isinstance(command, ReleaseMachine):
                self._release(command, state)
        if names:
            self._update(names, state)

    def _report(self, report: Report) -> None:
        if report.level is NoticeLevel.ANNOUNCED:
            self.announced.add(report.machine_id)
        if report.generation and report.status is MachineStatus.TRAINING:
            self.generations.setdefault(report.machine_id, set()).add(report.generation)
            if report.term is not None:
                self.terms.setdefault(report.generation, set()).add(report.term)

    def _release(self, command: ReleaseMachine, state: driver.FleetState) -> None:
        self.released.setdefault(command.machine_id, command.reason)
        unit = state.units.get(command.machine_id)
        # One that the fleet policy released has left a slot, too, but its end was not announced.
        if unit is not None and unit.superseded_in is not None and command.reason == SUPERSEDED:
            self.superseded.add(command.machine_id)

    def _update(self, names: set[str], state: driver.FleetState) -> None:
        for name in names:
            unit, gone = state.units.get(name), state.gone.get(name)
            if gone is not None and gone.expired:
                self.expired.add(name)
            if unit is not None or gone is not None:
                self.machines[name] = unit.machine if unit is not None else gone.machine  # type: ignore[union-attr]
            account = state.ledger.open.get(name) or state.ledger.closed.get(name)
            if account is not None:
                self.accounts[name] = account

    def cost(self, name: str, now: WallTime) -> MachineCost:
        """Return one machine's line of the bill."""
        machine, account = self.machines[name], self.accounts[name]
        outcome, detail = self._outcome(machine)
        return MachineCost(
            machine=machine,
            hours=account.hours(now),
            estimated_usd=Usd(account.estimated_usd(now)),
            settled_usd=Usd(account.settled_usd) if account.closed else None,
            disputed=account.disputed,
            outcome=outcome,
            detail=detail,
            terms=frozenset(
                term for generation in self.generations.get(name, ()) for term in self.terms.get(generation, ())
            ),
        )

    def _outcome(self, machine: Machine) -> tuple[MachineOutcome, str]:
        """Return what a machine is doing or how it ended, and the detail of that."""
        name = machine.machine_id
        if machine.lifecycle is not MachineLifecycle.GONE:
            running = machine.lifecycle is MachineLifecycle.RUNNING
            return (MachineOutcome.RUNNING if running else MachineOutcome.ORDERED), ""
        if machine.cause is MachineEndCause.PREEMPTED:
            return MachineOutcome.PREEMPTED, self._notice(name)
        if name in self.expired:
            return MachineOutcome.EXPIRED, "replaced in time" if name in self.superseded else ""
        if name in self.superseded:
            # Its end was announced, and the successor had the run before it came: a preemption all the same.
            origin = "injected" if name in self.injected else "announced"
            return MachineOutcome.PREEMPTED, f"{origin}, replaced in time"
        if machine.cause is MachineEndCause.RELEASED or name in self.released:
            return MachineOutcome.RELEASED, self.released.get(name, "")
        return MachineOutcome.UNLISTED if machine.cause is None else _OUTCOMES[machine.cause], ""

    def _notice(self, name: str) -> str:
        if name in self.injected:
            notice_s = self.injected[name]
            return f"injected, {'no notice' if notice_s is None else f'{notice_s:g} s of notice'}"
        return "announced" if name in self.announced else "no notice"


def bill(rows: Iterable[Row], now: WallTime) -> JobBill | None:
    """Return the bill of a job; None if its journal is empty.

    Args:
        rows: the job's journal as the controller wrote it, from the first row.
        now: until when running machines are billed, on the providers' clock.
    """
    state, machines, start = driver.initial_state(), _Machines(), None
    for row in rows:
        start = row.wall_time if start is None else start
        state, _, _ = driver.react(state, row.at, row.facts)
        machines.add(row, state)
    if start is None:
        return None
    names = sorted(machines.accounts, key=lambda name: (machines.machines[name].started or now, name))
    return JobBill(
        job=state.the_job,
        phase=state.phase,
        start=start,
        now=now,
        sums=ledger.totals(state.ledger, now),
        machines=tuple(machines.cost(name, now) for name in names),
        forecast=state.forecast,
        finish_s=job_summary.finish_s(state),
        resumed=state.resumed,
    )


def as_json(bill: JobBill) -> dict[str, Any]:
    """Return a bill as data for `json.dumps`; units are in the names, times in seconds since 1970."""
    return {
        "job_id": bill.job.job_id,
        "phase": bill.phase.value,
        "start": bill.start,
        "now": bill.now,
        "money": plain(bill.sums),
        "savings_percent": bill.savings_percent,
        "forecast": forecast_report.as_json(_outcome(bill)),
        "machines": [
            {
                "machine_id": one.machine.machine_id,
                "provider": one.machine.provider,
                "machine_type": one.machine.machine_type,
                "zone": one.machine.zone,
                "spot": one.machine.reliability is Reliability.TRANSIENT,
                "usd_per_hour": one.machine.price_usd_per_hour,
                "started": one.machine.started,
                "ended": one.machine.ended,
                "hours": one.hours,
                "estimated_usd": one.estimated_usd,
                "settled_usd": one.settled_usd,
                "disputed": one.disputed,
                "outcome": one.outcome.value,
                "detail": one.detail,
            }
            for one in bill.machines
        ],
    }


def usd(amount: float) -> str:
    """Write dollars: to the cent, with more digits for small amounts."""
    digits = 2 if abs(amount) >= 10 else 4 if abs(amount) >= 0.1 else 6
    return f"{amount:.{digits}f}"


def clock(seconds: float) -> str:
    """Write a duration for a column: `0:27`, `1:02:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def render(bill: JobBill, run: Account | None, unread: str) -> RenderableType:
    """Return the bill as `windfall cost JOB` prints it, with where the time went.

    Args:
        bill: the bill.
        run: the account of the job's run; None if there is none.
        unread: one sentence on why there is none.
    """
    parts: list[RenderableType] = [Text(line) for line in (*sums(bill, run), *forecast_report.lines(_outcome(bill)))]
    if bill.machines:
        parts += [Text(), machines(bill)]
    parts += [Text(), account_tables.render(run) if run is not None else Text(unread)]
    return Group(*parts)


def _outcome(bill: JobBill) -> ForecastOutcome:
    return ForecastOutcome(bill.forecast, bill.phase, bill.sums.due_usd, bill.finish_s, bill.resumed)


def outcome_text(bill: JobBill) -> str:
    """Return a job and its phase: `gpt-1 is done`, `gpt-1 failed`."""
    return f"{bill.job.job_id} {'failed' if bill.phase is JobPhase.FAILED else f'is {bill.phase}'}"


def sums(bill: JobBill, run: Account | None) -> Iterator[str]:
    """Yield the totals, line by line."""
    total = bill.sums
    count = len(bill.machines)
    yield (
        f"{outcome_text(bill)}: {count} machine{'s' * (count != 1)}, {total.hours:.4f} machine-hours in "
        f"{duration_text(_span_s(bill))}."
    )
    if bill.free:
        yield "Its machines cost no dollars."
        return
    yield f"cost        {usd(total.due_usd)} USD: settled where the bill is closed, otherwise estimated"
    yield f"  estimated {usd(total.estimated_usd)} USD, machine-hours x price at the purchase"
    open_ = f", {total.unsettled} machine{'s' * (total.unsettled != 1)} not billed yet" if total.unsettled else ""
    yield f"  settled   {usd(total.settled_usd)} USD{open_ or ', all machines billed'}"
    if total.disputed:
        few = f"{total.disputed} machine{'s' * (total.disputed != 1)}"
        yield f"  disputed  {few}, billed {usd(total.disputed_usd)} USD off the estimate: ask the provider"
    if total.unexplained_usd:
        yield f"  unknown   {usd(total.unexplained_usd)} USD for machines that this job never had: ask the provider"
    if bill.savings_percent is not None:
        yield f"on demand   {usd(total.baseline_usd)} USD for the same hours; saved {bill.savings_percent:.0f} %"
    undisturbed = None if run is None else bill.undisturbed_usd(run)
    if undisturbed:
        less = 100 * (1 - total.due_usd / undisturbed)
        yield f"            {usd(undisturbed)} USD for the same work without preemptions; saved {less:.0f} %"


def machines(bill: JobBill) -> Table:
    """Return every machine with its type, time, cost and outcome."""
    table = Table(title="Machines", title_justify="left", box=None, pad_edge=False, show_footer=True)
    table.add_column("machine", no_wrap=True, footer="total")
    table.add_column("type")
    for name in ("USD/h", "from", "for"):
        table.add_column(name, justify="right", no_wrap=True)
    total = bill.sums.due_usd - bill.sums.unexplained_usd
    table.add_column("USD", justify="right", no_wrap=True, footer=usd(total))
    table.add_column("outcome")
    for one in bill.machines:
        machine = one.machine
        started = "-" if machine.started is None else f"+{clock(max(machine.started - bill.start, 0.0))}"
        table.add_row(
            machine.machine_id,
            f"{machine.machine_type} {machine.zone}",
            f"{machine.price_usd_per_hour:.4f}",
            started,
            clock(one.hours * 3600),
            _cost(one),
            one.text,
        )
    return table


def _cost(one: MachineCost) -> str:
    if one.settled_usd is None:
        return f"~{usd(one.estimated_usd)}"
    return f"{usd(one.settled_usd)}{' !' if one.disputed else ''}"


def _span_s(bill: JobBill) -> float:
    ends = [one.machine.ended or bill.now for one in bill.machines]
    return max([*ends, bill.start]) - bill.start
