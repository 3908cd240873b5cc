"""The simulated provider's meter: the cost of each machine, from its start, its end and its market's prices and billing rule.

It shares no code with the ledger, on purpose: the storm tests compare the two to the cent.

Source of the rule by started hours: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic
resource markets", EuroSys 2017, sections 2.2 and 4: an eviction refunds what was charged at the start of its billing hour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windfall.market import PRICES_LISTED_S, Bill, BillingBasis, BillingRule, Charge, PriceChange
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import WALL_START
from windfall.structs import replace
from windfall.terms import Usd, WallTime

HOUR_S = 3600.0
DECIMALS = 6
"""Charges are rounded to a millionth of a dollar."""
_INSTANT = 1e-9
"""A share of an hour that is too short to count as started: wall clocks are sums."""


@dataclass(slots=True)
class MeteredMachine:
    """A running machine.

    Attributes:
        usd_per_hour: price of the purchase.
        prices: of its market.
    """

    owner: str
    job_id: str
    started: WallTime
    usd_per_hour: float
    billing: BillingRule
    prices: ValueSeries

    def cost_usd(self, until: WallTime) -> float:
        """Return the cost from its start until a time, which is its end or now [USD]."""
        if self.billing.basis is BillingBasis.STARTED_HOUR:
            return self._hours_usd(0, until)
        return self._seconds_usd(self.started, self._billed_until(until))

    def free_usd(self, until: WallTime) -> tuple[WallTime, float]:
        """Return the start of the hour of its preemption, and what was charged from then on, a minimum included [USD]."""
        whole = int((until - self.started) / self.billing.hour_s + _INSTANT)
        since = WallTime(self.started + whole * self.billing.hour_s)
        if self.billing.basis is BillingBasis.STARTED_HOUR:
            return since, self._hours_usd(whole, until)
        return since, self._seconds_usd(since, max(self._billed_until(until), since))

    def listed_changes(self, now: WallTime, ended: WallTime | None) -> tuple[PriceChange, ...]:
        """Return the changes of its price that a listing shows: the newest, and what differs at its start from the purchase."""
        if self.billing.basis is BillingBasis.PURCHASE or not self.prices.changes:
            return ()
        until = now if ended is None else min(now, self._billed_until(ended))
        since = until - PRICES_LISTED_S
        moves = self.prices.moves(max(since, self.started) - WALL_START, until - WALL_START)
        changes = tuple(PriceChange(WallTime(WALL_START + at_s), usd) for at_s, usd in moves)
        first = self._price(self.started)
        if since > self.started or first == self.usd_per_hour:
            return changes
        return (PriceChange(self.started, first), *changes)

    def _hours_usd(self, first: int, until: WallTime) -> float:
        """Return the cost of the started hours from the `first` on [USD]."""
        hour_s = self.billing.hour_s
        hours = math.ceil((self._billed_until(until) - self.started) / hour_s - _INSTANT)
        prices = (self._price(WallTime(self.started + hour_s * hour)) for hour in range(first, hours))
        return math.fsum(prices) * hour_s / HOUR_S

    def _billed_until(self, until: WallTime) -> WallTime:
        return WallTime(max(until, self.started + self.billing.minimum_s))

    def _seconds_usd(self, since: WallTime, until: WallTime) -> float:
        if self.billing.basis is BillingBasis.PURCHASE:
            return (until - since) / HOUR_S * self.usd_per_hour
        return self.prices.integral(since - WALL_START, until - WALL_START) / HOUR_S

    def _price(self, at: WallTime) -> float:
        return self.prices.at(at - WALL_START)


class Meter:
    """Meters each machine from its start to its end, and writes the bill.

    `total_usd` is the truth.  The charges follow it: an unsettled one at a machine's end, a settled one with the same id when
    the bill is closed, and a separate one for a refund.
    """

    def __init__(self) -> None:
        self._running: dict[str, MeteredMachine] = {}
        self._ended_usd: dict[str, float] = {}
        self._lines: list[tuple[str, Charge]] = []

    def start(self, machine_id: str, machine: MeteredMachine) -> None:
        """Start the meter of a machine."""
        assert machine_id not in self._running, "a machine starts once"
        self._running[machine_id] = machine

    def end(self, machine_id: str, at: WallTime, *, free_hour: bool) -> tuple[Charge, ...]:
        """Stop a machine's meter; return its unsettled charges.

        Args:
            machine_id: of a running machine.
            at: the end.
            free_hour: refund the hour in which it ends, counted from its start.
        """
        one = self._running.pop(machine_id)
        amount = round(one.cost_usd(at), DECIMALS)
        lines = [
            Charge(f"{machine_id}/use", machine_id, Usd(amount), one.started, at, settled=False, job_id=one.job_id)
        ]
        if free_hour:
            since, free_usd = one.free_usd(at)
            back = round(free_usd, DECIMALS)
            refund = Charge(f"{machine_id}/refund", machine_id, Usd(-back), since, at, settled=False, job_id=one.job_id)
            lines.append(refund)
        self._ended_usd[one.owner] = self._ended_usd.get(one.owner, 0.0) + sum(line.amount_usd for line in lines)
        self._write(one.owner, lines)
        return tuple(lines)

    def settle(self, owner: str, lines: tuple[Charge, ...]) -> None:
        """Settle these charges."""
        self._write(owner, [replace(line, settled=True) for line in lines])

    def _write(self, owner: str, lines: list[Charge]) -> None:
        self._lines += [(owner, line) for line in lines]

    def falsify(self, machine_id: str, by_usd: float) -> bool:
        """Falsify every use charge of a machine, for checks; return whether there was one."""
        found = False
        for at, (owner, line) in enumerate(self._lines):
            if line.charge_id == f"{machine_id}/use":
                self._lines[at] = (owner, replace(line, amount_usd=Usd(line.amount_usd + by_usd)))
                found = True
        return found

    def bill(self, owner: str, cursor: str) -> Bill:
        """Return an owner's charges since a cursor."""
        since = int(cursor or 0)
        lines = tuple(line for charged, line in self._lines[since:] if charged == owner)
        return Bill(lines, str(len(self._lines)))

    def total_usd(self, owner: str, now: WallTime) -> float:
        """Return the cost of all of an owner's machines until now [USD]."""
        running = (one for one in self._running.values() if one.owner == owner)
        return self._ended_usd.get(owner, 0.0) + sum(one.cost_usd(now) for one in running)

    @property
    def running(self) -> frozenset[str]:
        """The running machines."""
        return frozenset(self._running)
