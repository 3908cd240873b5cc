"""What a job cost, and on which machines: a view of the controller's journal.

The sums are those of `core.ledger`, found by replaying the driver, which decides by them; nothing is added up a second way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from windfall.core import driver, ledger
from windfall.core.ledger import Sums
from windfall.events import Row
from windfall.fleet import (
    RUN_DONE,
    SUPERSEDED,
    ChargesSeen,
    JobPhase,
    MachineHeard,
    MachinesMissing,
    MachinesSeen,
    PreemptMachine,
    ReleaseMachine,
)
from windfall.jobs import Job
from windfall.market import Ended, Life, Machine
from windfall.report.account import Account
from windfall.report.kinds import Kind
from windfall.terms import NoticeLevel, Reliability, Seconds, Usd, WallTime

_UNKNOWN_MAX = 0.05
"""If more than this share of the time is unknown, so is what the work would have cost undisturbed."""


@dataclass(frozen=True, slots=True)
class Machined:
    """One machine of a job.

    Attributes:
        hours: on the meter, until it ended or now [h].
        estimated_usd: hours x the price at the purchase.
        settled_usd: what was billed for good; None as long as its bill is open.
        disputed: the settled bill differs from the estimate by more than a cent and more than 1 %.
        how: how it ended, or what it is, in words.
    """

    machine: Machine
    hours: float
    estimated_usd: Usd
    settled_usd: Usd | None
    disputed: bool
    how: str


@dataclass(frozen=True, slots=True)
class Bill:
    """What a job cost.

    Attributes:
        begin: when it was submitted.
        now: until when machines that live were counted.
        free: its machines cost no dollars: only their hours count.
    """

    job: Job
    phase: JobPhase
    begin: WallTime
    now: WallTime
    sums: Sums
    machines: tuple[Machined, ...]

    @property
    def free(self) -> bool:
        """Whether nothing of it costs dollars."""
        return not (self.sums.due_usd or self.sums.twin_usd or self.sums.settled_usd)

    @property
    def savings_percent(self) -> float | None:
        """How much less it cost than the same hours on demand; None where those cost nothing."""
        return None if self.sums.twin_usd <= 0 else 100.0 * (1.0 - self.sums.due_usd / self.sums.twin_usd)

    def ends(self) -> dict[str, WallTime]:
        """When the machines ended of which the provider has said so."""
        named = ((one.machine.machine_id, one.machine.ended) for one in self.machines)
        return {name: ended for name, ended in named if ended is not None}

    def undisturbed_usd(self, made: Account) -> Usd | None:
        """Return what machines that cannot be taken would have cost for the same work; None if that is not known.

        They would have started once, redone and restored nothing, and waited for nobody.

        Args:
            made: where the time of the job's run went.
        """
        unknown_s = made.of(Kind.UNKNOWN) + made.of(Kind.UNSEEN)
        if self.sums.hours <= 0 or unknown_s > _UNKNOWN_MAX * made.total_s:
            return None
        first = min((spell.term for spell in made.spells), default=None)
        start_s = sum(spell.duration_s for spell in made.spells if spell.term == first and spell.kind is Kind.START)
        kinds = (Kind.COMPUTE, Kind.SAVE, Kind.OTHER, Kind.FINISH)
        spent_s = start_s + sum(made.of(kind) for kind in kinds)
        usd_per_hour = self.sums.twin_usd / self.sums.hours
        return Usd(spent_s / ledger.HOUR_S * usd_per_hour * self.job.nodes)


@dataclass(slots=True)
class _Machines:
    """What the journal told of each machine."""

    machines: dict[str, Machine] = field(default_factory=dict)
    accounts: dict[str, ledger.Account] = field(default_factory=dict)
    announced: set[str] = field(default_factory=set)
    injected: dict[str, Seconds | None] = field(default_factory=dict)
    released: dict[str, str] = field(default_factory=dict)

    def take(self, row: Row, state: driver.FleetState) -> None:
        """Take in a row, and what the driver's ledger has of the machines that it tells of."""
        names: set[str] = set()
        for fact in row.facts:
            if isinstance(fact, MachinesSeen):
                names |= {machine.machine_id for machine in fact.machines}
            elif isinstance(fact, MachinesMissing):
                names |= set(fact.machine_ids)
            elif isinstance(fact, ChargesSeen):
                names |= {charge.machine_id for charge in fact.charges}
            elif isinstance(fact, MachineHeard) and fact.report.level is NoticeLevel.ANNOUNCED:
                self.announced.add(fact.report.machine_id)
        for command in row.commands:
            if isinstance(command, PreemptMachine):
                self.injected[command.machine_id] = command.notice_s
            elif isinstance(command, ReleaseMachine):
                self.released.setdefault(command.machine_id, command.why)
        if names:
            self._note(names, state)

    def _note(self, names: set[str], state: driver.FleetState) -> None:
        for name in names:
            unit, gone = state.units.get(name), state.gone.get(name)
            if unit is not None or gone is not None:
                self.machines[name] = unit.machine if unit is not None else gone.machine  # type: ignore[union-attr]
            account = state.ledger.open.get(name) or state.ledger.closed.get(name)
            if account is not None:
                self.accounts[name] = account

    def machined(self, name: str, now: WallTime) -> Machined:
        """Return one machine's line."""
        machine, account = self.machines[name], self.accounts[name]
        return Machined(
            machine=machine,
            hours=account.hours(now),
            estimated_usd=Usd(account.estimated_usd(now)),
            settled_usd=Usd(account.settled_usd) if account.closed else None,
            disputed=account.disputed,
            how=self._how(machine),
        )

    def _how(self, machine: Machine) -> str:
        name = machine.machine_id
        if machine.life is not Life.GONE:
            return "runs" if machine.life is Life.RUNNING else "ordered"
        if machine.cause is Ended.PREEMPTED:
            if name in self.injected:
                notice_s = self.injected[name]
                return f"taken (injected, {'no notice' if notice_s is None else f'{notice_s:g} s of notice'})"
            return f"taken ({'announced' if name in self.announced else 'no notice'})"
        if machine.cause is Ended.RELEASED or name in self.released:
            return self._why_released(name)
        if machine.cause is None:
            return "no longer listed"
        return "stopped by itself" if machine.cause is Ended.STOPPED else "broke"

    def _why_released(self, name: str) -> str:
        why = self.released.get(name, "")
        if why != SUPERSEDED:
            return f"given back: {'done' if why.startswith(RUN_DONE) else why}" if why else "given back"
        told = "injected" if name in self.injected else "announced"
        return f"taken ({told}), replaced before"


def bill(rows: Iterable[Row], now: WallTime) -> Bill | None:
    """Make the bill of a job.

    Args:
        rows: the controller's journal of it, from the first row on.
        now: until when machines that live have cost, on the providers' clock.

    Returns:
        None if the journal is empty.
    """
    state, told, begin = driver.begin(), _Machines(), None
    for row in rows:
        begin = row.wall if begin is None else begin
        state, _, _ = driver.react(state, row.at, row.facts)
        told.take(row, state)
    if begin is None:
        return None
    names = sorted(told.accounts, key=lambda name: (told.machines[name].began or now, name))
    return Bill(
        job=state.the_job,
        phase=state.phase,
        begin=begin,
        now=now,
        sums=ledger.sums(state.ledger, now),
        machines=tuple(told.machined(name, now) for name in names),
    )


def as_json(made: Bill) -> dict[str, Any]:
    """Turn a bill into what `json.dumps` accepts; units are in the names, moments in seconds since 1970."""
    return {
        "job_id": made.job.job_id,
        "phase": made.phase.value,
        "begin": made.begin,
        "now": made.now,
        "money": dataclasses.asdict(made.sums),
        "savings_percent": made.savings_percent,
        "machines": [
            {
                "machine_id": one.machine.machine_id,
                "provider": one.machine.provider,
                "machine_type": one.machine.machine_type,
                "zone": one.machine.zone,
                "spot": one.machine.reliability is Reliability.TRANSIENT,
                "usd_per_hour": one.machine.price_usd_per_hour,
                "began": one.machine.began,
                "ended": one.machine.ended,
                "hours": one.hours,
                "estimated_usd": one.estimated_usd,
                "settled_usd": one.settled_usd,
                "disputed": one.disputed,
                "how": one.how,
            }
            for one in made.machines
        ],
    }
