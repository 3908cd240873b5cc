"""The cost of a job: estimates from listings, charges from providers, and disputes between the two.

Estimated and settled charges are kept apart and never mixed in one number.  The ledger keeps an account for each machine
that is alive or has an open bill, and for the newest closed ones, to recognize repeated or late bill lines.  Older accounts
are kept only as totals, so the ledger does not grow with the age of the job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

import msgspec

from windfall.market import (
    BY_THE_SECOND,
    BillingBasis,
    BillingRule,
    Charge,
    Machine,
    MachineEndCause,
    MachineLifecycle,
    Offer,
    PriceChange,
)
from windfall.structs import Struct, replace
from windfall.terms import Usd, WallTime

HOUR_S = 3600.0
CLOSED_KEPT = 1024
"""How many closed accounts are kept besides their totals, to recognize a repeated or late line."""
OPEN_KEPT = 8192
"""How many ended machines may have an open bill; older ones are written off as unsettled and keep their estimates."""
LINES_KEPT = 64
"""How many settled lines of one machine are kept; older ones are folded into a sum, so a later repeat counts again."""
STRAYS_KEPT = 1024
CHANGES_KEPT = 512
"""How many changes of one machine's price are kept one by one; older ones are folded into what they cost."""
DISPUTE_USD, DISPUTE_SHARE = 0.01, 0.01
"""A bill is disputed if it differs from the estimate by more than both."""
K = TypeVar("K")
V = TypeVar("V")
_NO_TIME, _NOTHING = WallTime(0.0), Usd(0.0)
_INSTANT = 1e-9
"""A share of an hour that is too short to count: wall clocks are sums."""
_COVERED_S = 1.0
"""A bill is complete if its lines reach the machine's end to within this time [s]."""


class LedgerLine(Struct, frozen=True):
    """One line of a bill."""

    charge_id: str
    amount_usd: Usd
    ended: WallTime
    settled: bool


class LedgerAccount(Struct, frozen=True):
    """The cost of one machine.

    Attributes:
        baseline_usd_per_hour: its on-demand price.
        refund: the hour in which it is preempted is free.
        assumed: no listing showed its end, it was only missing from listings; its bill then says when it ended.
        lines: of its bill, oldest first.
        changes: of the price in effect, oldest first; empty where the price at the purchase holds.
        folded_price: since when and at which price the changes count that are no longer kept one by one; None for none.
        folded_price_usd: what the machine cost until then [USD].
        folded_usd, folded_until: sum and newest end of settled lines that are no longer kept one by one.
        billing: how its time is billed.
    """

    machine_id: str
    usd_per_hour: float
    baseline_usd_per_hour: float
    refund: bool
    started: WallTime | None = None
    ended: WallTime | None = None
    preempted: bool = False
    assumed: bool = False
    lines: tuple[LedgerLine, ...] = ()
    folded_usd: float = 0.0
    folded_until: WallTime = _NO_TIME
    changes: tuple[PriceChange, ...] = ()
    folded_price: PriceChange | None = None
    folded_price_usd: float = 0.0
    billing: BillingRule = BY_THE_SECOND

    def hours(self, now: WallTime) -> float:
        """Return the time between its start and its end, or now [h]."""
        return 0.0 if self.started is None else max(self._until(now) - self.started, 0.0) / HOUR_S

    def _until(self, now: WallTime) -> WallTime:
        if self.assumed and self.lines:
            return self._billed_until
        return now if self.ended is None else self.ended

    def estimated_usd(self, now: WallTime) -> float:
        """Return what its time costs by the offer's billing rule [USD]; a minimum counts from the start on.

        By the second, the price is the one at the purchase, or the integral of the price in effect where the provider
        reports changes; by started hours, the one in effect at the start of each hour.  Where preemptions are refunded,
        the hour in which a machine was preempted is free.
        """
        if self.started is None:
            return 0.0
        hour_s, lasted_s = self.billing.hour_s, max(self._until(now) - self.started, 0.0)
        billed_s, whole = max(lasted_s, self.billing.minimum_s), math.floor(lasted_s / hour_s + _INSTANT)
        free = self.refund and self.preempted
        if self.billing.basis is BillingBasis.STARTED_HOUR:
            return self._hours_usd(self.started, whole if free else math.ceil(billed_s / hour_s - _INSTANT))
        billed_s = whole * hour_s if free else billed_s
        if not self.changes:
            return billed_s / HOUR_S * self.usd_per_hour
        return self._integrated_usd(self.started, WallTime(self.started + billed_s))

    def price_now_usd_per_hour(self, now: WallTime) -> float:
        """Return the price of its present second, or of the hour that it is in [USD/h]."""
        at = now
        if self.billing.basis is BillingBasis.STARTED_HOUR and self.started is not None:
            hours = max((now - self.started) // self.billing.hour_s, 0.0)
            at = WallTime(self.started + hours * self.billing.hour_s)
        known = [change.usd_per_hour for change in self.changes if change.since <= at]
        if known or self.folded_price is None:
            return known[-1] if known else self.usd_per_hour
        return self.folded_price.usd_per_hour

    @property
    def by_units(self) -> bool:
        """Whether it is charged in advance: by started hours, or for a minimum."""
        return self.billing.basis is BillingBasis.STARTED_HOUR or self.billing.minimum_s > 0.0

    def ahead_usd(self, now: WallTime, for_s: float) -> float:
        """Return what another `for_s` seconds cost at the present price; from its start on, if it has none [USD]."""
        running = self if self.started is not None else replace(self, started=now)
        spent = 0.0 if self.started is None else self.estimated_usd(now)
        return running.estimated_usd(WallTime(now + for_s)) - spent

    def next_hour_in_s(self, now: WallTime, for_s: float) -> float:
        """Return in how many seconds the next hour begins that starts after `for_s` seconds, less these; infinite if none."""
        if self.billing.basis is not BillingBasis.STARTED_HOUR or self.started is None:
            return math.inf
        hours = (now + for_s - self.started) // self.billing.hour_s + 1.0
        return self.started + hours * self.billing.hour_s - for_s - now

    def _charged_usd(self, started: WallTime, end: WallTime) -> float:
        """Return what is charged until a moment: its seconds, or the hours that have started by then [USD]."""
        if self.billing.basis is BillingBasis.STARTED_HOUR:
            return self._hours_usd(started, self._hours_before(started, end))
        return self._integrated_usd(started, end)

    def _hours_before(self, started: WallTime, moment: WallTime) -> int:
        """Return how many hours start before a moment."""
        return max(math.ceil((moment - started) / self.billing.hour_s), 0)

    def _hours_usd(self, started: WallTime, hours: int) -> float:
        """Return the cost of the first `hours`, each at the price at its start; the folded ones count at least [USD]."""
        count, price, parts = 0, self.usd_per_hour, [0.0]
        if self.folded_price is not None:
            count, price = self._hours_before(started, self.folded_price.since), self.folded_price.usd_per_hour
        for change in self.changes:
            until = max(min(self._hours_before(started, change.since), hours), count)
            parts.append((until - count) * price)
            count, price = until, change.usd_per_hour
        parts.append(max(hours - count, 0) * price)
        return self.folded_price_usd + math.fsum(parts) * self.billing.hour_s / HOUR_S

    def _integrated_usd(self, started: WallTime, end: WallTime) -> float:
        """Return what the price in effect comes to until a moment that is not before the folded changes [USD]."""
        at, price, parts = started, self.usd_per_hour, [self.folded_price_usd]
        if self.folded_price is not None:
            at, price = max(at, self.folded_price.since), self.folded_price.usd_per_hour
        for change in self.changes:
            until = min(max(change.since, at), end)
            parts.append((until - at) / HOUR_S * price)
            at, price = until, change.usd_per_hour
        parts.append(max(end - at, 0.0) / HOUR_S * price)
        return math.fsum(parts)

    @property
    def settled_usd(self) -> float:
        """Sum of the settled lines [USD]."""
        return self.folded_usd + math.fsum(line.amount_usd for line in self.lines if line.settled)

    @property
    def billed_usd(self) -> float:
        """Sum of all lines, including open ones [USD]."""
        return self.folded_usd + math.fsum(line.amount_usd for line in self.lines)

    @property
    def _billed_until(self) -> WallTime:
        return max((line.ended for line in self.lines), default=self.folded_until)

    @property
    def closed(self) -> bool:
        """Whether the machine has ended and settled lines reach its end."""
        if self.ended is None or any(not line.settled for line in self.lines):
            return False
        if self.started is None:
            return True
        if self.assumed and self.lines:
            return True
        return self._billed_until >= self.ended - _COVERED_S

    @property
    def disputed(self) -> bool:
        """Whether the closed bill differs by more than one cent and 1 % from an estimate with a known end."""
        if not self.closed or self.ended is None or self.assumed:
            return False
        estimated = self.estimated_usd(self.ended)
        difference = abs(self.settled_usd - estimated)
        return difference > DISPUTE_USD and difference > DISPUTE_SHARE * max(estimated, abs(self.settled_usd))


class LedgerTotals(Struct, frozen=True):
    """A job's total cost and hours.

    Attributes:
        estimated_usd: of all machines, from listings, their prices and the billing rules of their offers.
        settled_usd: what providers finally billed, unexplained lines included.
        due_usd: the best figure known: the closed bill if there is one, otherwise the estimate or an open bill,
            whichever is higher.
        baseline_usd: the same hours on on-demand machines.
        hours: machine hours.
        unsettled: machines without a closed bill.
        disputed: machines whose closed bill differs from the estimate; `disputed_usd` is the sum of the differences.
        unexplained_usd: lines for machines that this job does not know.
    """

    estimated_usd: Usd = _NOTHING
    settled_usd: Usd = _NOTHING
    due_usd: Usd = _NOTHING
    baseline_usd: Usd = _NOTHING
    hours: float = 0.0
    unsettled: int = 0
    disputed: int = 0
    disputed_usd: Usd = _NOTHING
    unexplained_usd: Usd = _NOTHING


class Ledger(Struct, frozen=True):
    """The accounts of a job.

    Attributes:
        open: accounts of machines that are alive or have an open bill, by machine.
        closed: the newest other accounts, oldest first; their totals are in `past`.
        past: totals over all accounts that are not open.
        strays: lines for unknown machines, by id.
    """

    open: Mapping[str, LedgerAccount] = msgspec.field(default_factory=dict)
    closed: Mapping[str, LedgerAccount] = msgspec.field(default_factory=dict)
    past: LedgerTotals = LedgerTotals()
    strays: Mapping[str, Charge] = msgspec.field(default_factory=dict)

    def knows(self, machine_id: str) -> bool:
        """Return whether there is an account for this machine."""
        return machine_id in self.open or machine_id in self.closed

    def accounts(self) -> Iterator[LedgerAccount]:
        """Yield the kept accounts."""
        yield from self.open.values()
        yield from self.closed.values()


def observe(ledger: Ledger, machines: Iterable[tuple[Machine, Offer | None]]) -> Ledger:
    """Record what listings say about machines: when their billing started and ended, and the price.

    Args:
        ledger: not changed.
        machines: each with the offer it was bought at; None if that is no longer known.
    """
    changed: dict[str, LedgerAccount] = {}
    for machine, offer in machines:
        known = changed.get(machine.machine_id) or _find_account(ledger, machine.machine_id) or _opened(machine, offer)
        changed[machine.machine_id] = replace(
            _repriced(known, machine),
            usd_per_hour=machine.price_usd_per_hour,
            started=machine.started,
            ended=_ended(machine),
            preempted=machine.cause is MachineEndCause.PREEMPTED,
            assumed=machine.lifecycle is MachineLifecycle.GONE and machine.cause is None,
        )
    strays = [charge for charge in ledger.strays.values() if charge.machine_id in changed]
    kept = _filed(ledger, changed)
    if not strays:
        return kept
    names = {charge.charge_id for charge in strays}
    others = {name: charge for name, charge in kept.strays.items() if name not in names}
    return charge_lines(replace(kept, strays=MappingProxyType(others)), strays)


def charge_lines(ledger: Ledger, charges: Iterable[Charge]) -> Ledger:
    """Record bill lines: a line replaces an older one with its id, but an open line never replaces a settled one."""
    changed: dict[str, LedgerAccount] = {}
    strays: dict[str, Charge] = {}
    for charge in charges:
        account = changed.get(charge.machine_id) or _find_account(ledger, charge.machine_id)
        if account is None:
            before = strays.get(charge.charge_id) or ledger.strays.get(charge.charge_id)
            if before is None or not before.settled or charge.settled:
                strays[charge.charge_id] = charge
        else:
            changed[charge.machine_id] = _record_charge(account, charge)
    if strays:
        together = {**ledger.strays, **strays}
        ledger = replace(ledger, strays=MappingProxyType(dict(list(together.items())[-STRAYS_KEPT:])))
    return _filed(ledger, changed) if changed else ledger


def totals(ledger: Ledger, now: WallTime) -> LedgerTotals:
    """Return the totals over all accounts.

    Args:
        ledger: the job's.
        now: until when live machines are charged, on the providers' clock.
    """
    total = ledger.past
    for account in ledger.open.values():
        total = _add(total, account, now)
    stray = math.fsum(charge.amount_usd for charge in ledger.strays.values())
    return replace(
        total,
        settled_usd=Usd(
            total.settled_usd + math.fsum(charge.amount_usd for charge in ledger.strays.values() if charge.settled)
        ),
        due_usd=Usd(total.due_usd + stray),
        unexplained_usd=Usd(total.unexplained_usd + stray),
    )


def copied(table: Mapping[K, V]) -> dict[K, V]:
    """Return a copy of a table; for a read-only view, copies the underlying table, which is many times faster."""
    return table.copy() if isinstance(table, MappingProxyType) else dict(table)


def _find_account(ledger: Ledger, machine_id: str) -> LedgerAccount | None:
    return ledger.open.get(machine_id) or ledger.closed.get(machine_id)


def _opened(machine: Machine, offer: Offer | None) -> LedgerAccount:
    price = machine.price_usd_per_hour
    baseline = price if offer is None else offer.on_demand_usd_per_hour
    if offer is None:
        return LedgerAccount(machine.machine_id, price, baseline, refund=False)
    return LedgerAccount(machine.machine_id, price, baseline, offer.refund, billing=offer.billing)


def unstarted_account(offer: Offer) -> LedgerAccount:
    """Return the account of a machine that is bought at an offer's price and has not started."""
    price = offer.price_usd_per_hour
    return LedgerAccount("", price, offer.on_demand_usd_per_hour, offer.refund, billing=offer.billing)


def _repriced(account: LedgerAccount, machine: Machine) -> LedgerAccount:
    """Return an account with the changes of the price that a listing adds; it repeats some that are known."""
    if not machine.price_changes:
        return account
    newest = account.changes[-1] if account.changes else account.folded_price
    new = tuple(change for change in machine.price_changes if newest is None or change.since > newest.since)
    changes = (*account.changes, *new)
    if len(changes) <= CHANGES_KEPT or machine.started is None:
        return replace(account, changes=changes)
    # The oldest half: a bill's free hour at the end must not reach back to it.
    old, kept = changes[: CHANGES_KEPT // 2], changes[CHANGES_KEPT // 2 :]
    until = max(old[-1].since, machine.started)
    spent_usd = replace(account, changes=old)._charged_usd(machine.started, until)
    return replace(account, changes=kept, folded_price=replace(old[-1], since=until), folded_price_usd=spent_usd)


def _ended(machine: Machine) -> WallTime | None:
    if machine.lifecycle is not MachineLifecycle.GONE:
        return None
    return machine.ended if machine.ended is not None else machine.started or WallTime(0.0)


def _record_charge(account: LedgerAccount, charge: Charge) -> LedgerAccount:
    if not charge.settled and any(old.charge_id == charge.charge_id and old.settled for old in account.lines):
        return account  # an older state of the line, repeated after its settlement
    line = LedgerLine(charge.charge_id, charge.amount_usd, charge.ended, charge.settled)
    lines = (*(old for old in account.lines if old.charge_id != charge.charge_id), line)
    folded_usd, until = account.folded_usd, account.folded_until
    while len(lines) > LINES_KEPT and lines[0].settled:
        folded_usd, until, lines = folded_usd + lines[0].amount_usd, max(until, lines[0].ended), lines[1:]
    return replace(account, lines=lines, folded_usd=folded_usd, folded_until=until)


def _filed(ledger: Ledger, changed: Mapping[str, LedgerAccount]) -> Ledger:
    """Return the ledger with changed accounts filed as open or closed."""
    opened, closed, past = copied(ledger.open), copied(ledger.closed), ledger.past
    for name, account in changed.items():
        opened.pop(name, None)
        before = closed.pop(name, None)
        if before is not None:
            past = _add(past, before, _end(before), sign=-1)
        if account.closed:
            closed[name] = account
            past = _add(past, account, _end(account))
        else:
            opened[name] = account
    if len(closed) > 2 * CLOSED_KEPT:
        closed = dict(list(closed.items())[-CLOSED_KEPT:])
    if len(opened) > OPEN_KEPT:
        ended = [account for account in opened.values() if account.ended is not None]
        for account in ended[:-OPEN_KEPT]:
            past = _add(past, opened.pop(account.machine_id), _end(account))
    return Ledger(MappingProxyType(opened), MappingProxyType(closed), past, ledger.strays)


def _end(account: LedgerAccount) -> WallTime:
    return account.ended if account.ended is not None else WallTime(0.0)


def _add(total: LedgerTotals, account: LedgerAccount, now: WallTime, *, sign: int = 1) -> LedgerTotals:
    estimated, hours = account.estimated_usd(now), account.hours(now)
    closed, disputed = account.closed, account.disputed
    settled = account.settled_usd
    due = settled if closed else max(estimated, account.billed_usd)
    return LedgerTotals(
        estimated_usd=Usd(total.estimated_usd + sign * estimated),
        settled_usd=Usd(total.settled_usd + sign * settled),
        due_usd=Usd(total.due_usd + sign * due),
        baseline_usd=Usd(total.baseline_usd + sign * hours * account.baseline_usd_per_hour),
        hours=total.hours + sign * hours,
        unsettled=total.unsettled + sign * (not closed),
        disputed=total.disputed + sign * disputed,
        disputed_usd=Usd(total.disputed_usd + (sign * (settled - estimated) if disputed else 0.0)),
        unexplained_usd=total.unexplained_usd,
    )
