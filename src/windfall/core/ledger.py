"""What a job cost: what the listings let us expect, what the providers billed, and where the two part.

Estimated and settled charges are kept apart and never mixed in one number.  An account is kept for each machine that
lives or whose bill is open, and for the newest closed ones, so that a line that is told again, or late, is known; of all
that ended the sums are kept, so that the ledger does not grow with the job's age.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from windfall.market import Charge, Ended, Life, Machine, Offer
from windfall.terms import Usd, WallTime

HOUR_S = 3600.0
CLOSED_KEPT = 1024
"""How many closed accounts are kept beside their sums, to know a line that is told again or late."""
OPEN_KEPT = 8192
"""How many machines may have ended with an open bill; older ones are given up as unsettled, their estimates stay."""
LINES_KEPT = 64
"""How many settled lines of one machine are kept; older ones are folded, so a line told again later counts again."""
STRAYS_KEPT = 1024
DISPUTE_USD, DISPUTE_SHARE = 0.01, 0.01
"""A bill is disputed if it differs from the estimate by more than both."""
K = TypeVar("K")
V = TypeVar("V")
_NO_TIME, _NOTHING = WallTime(0.0), Usd(0.0)
_COVERED_S = 1.0
"""A bill is complete if its lines reach the machine's end but for so much."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a bill."""

    charge_id: str
    amount_usd: Usd
    ended: WallTime
    settled: bool


@dataclass(frozen=True, slots=True)
class Account:
    """What one machine cost.

    Attributes:
        twin_usd_per_hour: what it would have cost if it could not be taken back.
        refund: the hour in which it is taken back is free.
        assumed: no listing told its end, it was missing in them: then its bill says when it was.
        lines: of its bill, oldest first.
        folded_usd, folded_until: sum and newest end of settled lines that are no longer kept one by one.
    """

    machine_id: str
    usd_per_hour: float
    twin_usd_per_hour: float
    refund: bool
    began: WallTime | None = None
    ended: WallTime | None = None
    preempted: bool = False
    assumed: bool = False
    lines: tuple[Line, ...] = ()
    folded_usd: float = 0.0
    folded_until: WallTime = _NO_TIME

    def hours(self, now: WallTime) -> float:
        """Return how long it was on the meter [h]: (ended, or now) - began."""
        if self.began is None:
            return 0.0
        end = now if self.ended is None else self.ended
        if self.assumed and self.lines:
            end = self._billed_until
        return max(end - self.began, 0.0) / HOUR_S

    def estimated_usd(self, now: WallTime) -> float:
        """Return hours x price at the purchase [USD]; the broken hour is free where a preemption is refunded."""
        hours = self.hours(now)
        if self.refund and self.preempted:
            hours = math.floor(hours)
        return hours * self.usd_per_hour

    @property
    def settled_usd(self) -> float:
        """Sum of the settled lines [USD]."""
        return self.folded_usd + math.fsum(line.amount_usd for line in self.lines if line.settled)

    @property
    def billed_usd(self) -> float:
        """Sum of all lines, the open ones among them [USD]."""
        return self.folded_usd + math.fsum(line.amount_usd for line in self.lines)

    @property
    def _billed_until(self) -> WallTime:
        return max((line.ended for line in self.lines), default=self.folded_until)

    @property
    def closed(self) -> bool:
        """Whether the machine has ended and settled lines reach its end."""
        if self.ended is None or any(not line.settled for line in self.lines):
            return False
        if self.began is None:
            return True
        if self.assumed and self.lines:
            return True
        return self._billed_until >= self.ended - _COVERED_S

    @property
    def disputed(self) -> bool:
        """Whether the closed bill differs by more than a cent and 1 % from an estimate that knows how it ended."""
        if not self.closed or self.ended is None or self.assumed:
            return False
        estimated = self.estimated_usd(self.ended)
        apart = abs(self.settled_usd - estimated)
        return apart > DISPUTE_USD and apart > DISPUTE_SHARE * max(estimated, abs(self.settled_usd))


@dataclass(frozen=True, slots=True)
class Sums:
    """A job's money and hours.

    Attributes:
        estimated_usd: of all machines, from listings and prices at the purchase.
        settled_usd: what providers billed for good, lines that nobody can explain among them.
        due_usd: the best that is known: a closed bill where there is one, the estimate (or an open bill that is
            higher) where there is not.
        twin_usd: the same hours on machines that cannot be taken back.
        hours: of machines.
        unsettled: machines whose bill is not closed.
        disputed: machines whose closed bill differs from the estimate; `disputed_usd` by how much in all.
        unexplained_usd: lines for machines that this job does not know.
    """

    estimated_usd: Usd = _NOTHING
    settled_usd: Usd = _NOTHING
    due_usd: Usd = _NOTHING
    twin_usd: Usd = _NOTHING
    hours: float = 0.0
    unsettled: int = 0
    disputed: int = 0
    disputed_usd: Usd = _NOTHING
    unexplained_usd: Usd = _NOTHING


@dataclass(frozen=True, slots=True)
class Ledger:
    """All of a job's accounts.

    Attributes:
        open: of machines that live, or whose bill is open.
        closed: the newest others, oldest first; their sums are in `past`.
        past: sums over all that are not open.
        strays: lines for machines that are not known, by id.
    """

    open: Mapping[str, Account] = field(default_factory=dict)
    closed: Mapping[str, Account] = field(default_factory=dict)
    past: Sums = field(default_factory=Sums)
    strays: Mapping[str, Charge] = field(default_factory=dict)

    def knows(self, machine_id: str) -> bool:
        """Whether there is an account of this machine."""
        return machine_id in self.open or machine_id in self.closed

    def accounts(self) -> Iterator[Account]:
        """Yield the accounts that are kept."""
        yield from self.open.values()
        yield from self.closed.values()


def observe(ledger: Ledger, machines: Iterable[tuple[Machine, Offer | None]]) -> Ledger:
    """Take in what listings say of machines: when their billing began and ended, at which price.

    Args:
        ledger: is not changed.
        machines: each with the offer it was bought at; None if that is not known any more.
    """
    changed: dict[str, Account] = {}
    for machine, offer in machines:
        known = changed.get(machine.machine_id) or _account(ledger, machine.machine_id) or _opened(machine, offer)
        changed[machine.machine_id] = replace(
            known,
            usd_per_hour=machine.price_usd_per_hour,
            began=machine.began,
            ended=_ended(machine),
            preempted=machine.cause is Ended.PREEMPTED,
            assumed=machine.life is Life.GONE and machine.cause is None,
        )
    strays = [charge for charge in ledger.strays.values() if charge.machine_id in changed]
    kept = _with(ledger, changed)
    if not strays:
        return kept
    names = {charge.charge_id for charge in strays}
    others = {name: charge for name, charge in kept.strays.items() if name not in names}
    return charge_lines(replace(kept, strays=MappingProxyType(others)), strays)


def charge_lines(ledger: Ledger, charges: Iterable[Charge]) -> Ledger:
    """Take in lines of a bill: a line of an id that is known replaces the older one, but never a settled one by an open."""
    changed: dict[str, Account] = {}
    strays: dict[str, Charge] = {}
    for charge in charges:
        account = changed.get(charge.machine_id) or _account(ledger, charge.machine_id)
        if account is None:
            before = strays.get(charge.charge_id) or ledger.strays.get(charge.charge_id)
            if before is None or not before.settled or charge.settled:
                strays[charge.charge_id] = charge
        else:
            changed[charge.machine_id] = _booked(account, charge)
    if strays:
        together = {**ledger.strays, **strays}
        ledger = replace(ledger, strays=MappingProxyType(dict(list(together.items())[-STRAYS_KEPT:])))
    return _with(ledger, changed) if changed else ledger


def sums(ledger: Ledger, now: WallTime) -> Sums:
    """Add everything up.

    Args:
        ledger: the job's.
        now: until when machines that live have cost, on the providers' clock.
    """
    total = ledger.past
    for account in ledger.open.values():
        total = _added(total, account, now)
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
    """Return a copy of a table; of a read-only view the copy of what it shows, which is many times faster."""
    return table.copy() if isinstance(table, MappingProxyType) else dict(table)


def _account(ledger: Ledger, machine_id: str) -> Account | None:
    return ledger.open.get(machine_id) or ledger.closed.get(machine_id)


def _opened(machine: Machine, offer: Offer | None) -> Account:
    price = machine.price_usd_per_hour
    twin = price if offer is None else offer.on_demand_usd_per_hour
    return Account(machine.machine_id, price, twin, offer is not None and offer.refund)


def _ended(machine: Machine) -> WallTime | None:
    if machine.life is not Life.GONE:
        return None
    return machine.ended if machine.ended is not None else machine.began or WallTime(0.0)


def _booked(account: Account, charge: Charge) -> Account:
    if not charge.settled and any(old.charge_id == charge.charge_id and old.settled for old in account.lines):
        return account  # an older state of the line, told again after its settlement
    line = Line(charge.charge_id, charge.amount_usd, charge.ended, charge.settled)
    lines = (*(old for old in account.lines if old.charge_id != charge.charge_id), line)
    folded_usd, until = account.folded_usd, account.folded_until
    while len(lines) > LINES_KEPT and lines[0].settled:
        folded_usd, until, lines = folded_usd + lines[0].amount_usd, max(until, lines[0].ended), lines[1:]
    return replace(account, lines=lines, folded_usd=folded_usd, folded_until=until)


def _with(ledger: Ledger, changed: Mapping[str, Account]) -> Ledger:
    """Put changed accounts where they belong."""
    opened, closed, past = copied(ledger.open), copied(ledger.closed), ledger.past
    for name, account in changed.items():
        opened.pop(name, None)
        before = closed.pop(name, None)
        if before is not None:
            past = _added(past, before, _end(before), sign=-1)
        if account.closed:
            closed[name] = account
            past = _added(past, account, _end(account))
        else:
            opened[name] = account
    if len(closed) > 2 * CLOSED_KEPT:
        closed = dict(list(closed.items())[-CLOSED_KEPT:])
    if len(opened) > OPEN_KEPT:
        ended = [account for account in opened.values() if account.ended is not None]
        for account in ended[:-OPEN_KEPT]:
            past = _added(past, opened.pop(account.machine_id), _end(account))
    return Ledger(MappingProxyType(opened), MappingProxyType(closed), past, ledger.strays)


def _end(account: Account) -> WallTime:
    return account.ended if account.ended is not None else WallTime(0.0)


def _added(total: Sums, account: Account, now: WallTime, *, sign: int = 1) -> Sums:
    estimated, hours = account.estimated_usd(now), account.hours(now)
    closed, disputed = account.closed, account.disputed
    settled = account.settled_usd
    due = settled if closed else max(estimated, account.billed_usd)
    return Sums(
        estimated_usd=Usd(total.estimated_usd + sign * estimated),
        settled_usd=Usd(total.settled_usd + sign * settled),
        due_usd=Usd(total.due_usd + sign * due),
        twin_usd=Usd(total.twin_usd + sign * hours * account.twin_usd_per_hour),
        hours=total.hours + sign * hours,
        unsettled=total.unsettled + sign * (not closed),
        disputed=total.disputed + sign * disputed,
        disputed_usd=Usd(total.disputed_usd + (sign * (settled - estimated) if disputed else 0.0)),
        unexplained_usd=total.unexplained_usd,
    )
