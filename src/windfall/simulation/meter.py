"""The simulated provider's own meter: what each machine cost, from its own start, end and price.

It shares no code with the ledger, on purpose: storms compare the two to the cent.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from windfall.market import Bill, Charge
from windfall.terms import Usd, WallTime

HOUR_S = 3600.0
DECIMALS = 6
"""A line is rounded to a millionth of a dollar."""


@dataclass
class Running:
    """A machine whose meter runs."""

    owner: str
    job_id: str
    began: WallTime
    usd_per_hour: float


class Meter:
    """Runs from each machine's start to its end; writes the bill.

    `total_usd` is the truth.  The lines follow it: an unsettled one at a machine's end, the settled one of the same id
    when the bill is closed, and a line of its own for a refund.
    """

    def __init__(self) -> None:
        self._running: dict[str, Running] = {}
        self._ended_usd: dict[str, float] = {}
        self._lines: list[tuple[str, Charge]] = []

    def begin(self, machine_id: str, whose: tuple[str, str], at: WallTime, usd_per_hour: float) -> None:
        """Start the meter of a machine of (owner, job)."""
        assert machine_id not in self._running, "a machine starts once"
        self._running[machine_id] = Running(*whose, at, usd_per_hour)

    def end(self, machine_id: str, at: WallTime, *, free_hour: bool) -> tuple[Charge, ...]:
        """Stop a machine's meter; return its lines, unsettled.

        Args:
            machine_id: whose meter runs.
            at: the end.
            free_hour: the hour in which it ends, counted from its start, is given back.
        """
        one = self._running.pop(machine_id)
        amount = round((at - one.began) / HOUR_S * one.usd_per_hour, DECIMALS)
        lines = [Charge(f"{machine_id}/use", machine_id, Usd(amount), one.began, at, settled=False, job_id=one.job_id)]
        if free_hour:
            whole_s = (at - one.began) // HOUR_S * HOUR_S
            since = WallTime(one.began + whole_s)
            back = round((at - since) / HOUR_S * one.usd_per_hour, DECIMALS)
            refund = Charge(f"{machine_id}/refund", machine_id, Usd(-back), since, at, settled=False, job_id=one.job_id)
            lines.append(refund)
        self._ended_usd[one.owner] = self._ended_usd.get(one.owner, 0.0) + sum(line.amount_usd for line in lines)
        self._write(one.owner, lines)
        return tuple(lines)

    def settle(self, owner: str, lines: tuple[Charge, ...]) -> None:
        """Close the bill for these lines."""
        self._write(owner, [dataclasses.replace(line, settled=True) for line in lines])

    def _write(self, owner: str, lines: list[Charge]) -> None:
        self._lines += [(owner, line) for line in lines]

    def falsify(self, machine_id: str, by_usd: float) -> bool:
        """Put a wrong amount on every line of a machine's bill for its use; return whether there was one (for checks)."""
        found = False
        for at, (owner, line) in enumerate(self._lines):
            if line.charge_id == f"{machine_id}/use":
                self._lines[at] = (owner, dataclasses.replace(line, amount_usd=Usd(line.amount_usd + by_usd)))
                found = True
        return found

    def bill(self, owner: str, cursor: str) -> Bill:
        """Return an owner's lines since a cursor."""
        since = int(cursor or 0)
        lines = tuple(line for whose, line in self._lines[since:] if whose == owner)
        return Bill(lines, str(len(self._lines)))

    def total_usd(self, owner: str, now: WallTime) -> float:
        """Return what all of an owner's machines have cost until now [USD]."""
        running = (one for one in self._running.values() if one.owner == owner)
        return self._ended_usd.get(owner, 0.0) + sum((now - one.began) / HOUR_S * one.usd_per_hour for one in running)

    @property
    def running(self) -> frozenset[str]:
        """The machines whose meter runs."""
        return frozenset(self._running)
