"""Polls listings, offers, bills, the run's log and the estimates; emits a fact per change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windfall.control.command_executor import NO_ANSWER
from windfall.core import driver, machines
from windfall.errors import ProviderDenied, WindfallError
from windfall.events import Fact
from windfall.fleet import (
    ChargesObserved,
    EstimatesPooled,
    ListingCompleted,
    MachinesMissing,
    MachinesObserved,
    OffersObserved,
    RunObserved,
)
from windfall.jobs import Job
from windfall.market import Machine, Offer, Quota, Refusal
from windfall.ports import Provider
from windfall.structs import Struct, replace
from windfall.terms import Instant, Seconds, Step, WallTime

if TYPE_CHECKING:
    from windfall.control.job_loop import JobLoopPorts


class PollingPace(Struct, frozen=True):
    """The controller's polling intervals [s]; a provider on this machine is polled more often than a cloud.

    Attributes:
        turn_s: longest pause between two turns.
        list_s: between two listings of a provider's machines: how late a loss without notice is detected.
        offers_s, bill_s, run_s, estimates_s: between two polls of each.
        settle_s: between two polls of the bill of a job that has ended and waits for nothing else.
        silent_after_s: a machine without a report on any channel for this long is silent.
    """

    turn_s: Seconds = Seconds(0.5)
    list_s: Seconds = Seconds(5.0)
    offers_s: Seconds = Seconds(30.0)
    bill_s: Seconds = Seconds(60.0)
    settle_s: Seconds = Seconds(15.0)
    run_s: Seconds = Seconds(5.0)
    estimates_s: Seconds = Seconds(60.0)
    silent_after_s: Seconds = Seconds(60.0)


LOCAL_PACE = PollingPace(
    turn_s=Seconds(0.1), list_s=Seconds(0.25), offers_s=Seconds(1.0), bill_s=Seconds(1.0), run_s=Seconds(0.25),
    settle_s=Seconds(0.25), estimates_s=Seconds(2.0), silent_after_s=Seconds(15.0),
)  # fmt: skip
"""For the local market, which is polled over the loopback."""


@dataclass(slots=True)
class _Seen:
    """What was last observed of a provider."""

    missing: frozenset[str] = frozenset()
    offers: tuple[Offer, ...] = ()
    quotas: tuple[Quota, ...] = ()
    trouble: tuple[str, Refusal, str] | None = None


class Poller:
    """Polls for one job."""

    def __init__(self, job: Job, ports: JobLoopPorts, *, cursors: dict[str, str]) -> None:
        self._job = job
        self._ports = ports
        self._cursors = dict(cursors)
        self._seen = {name: _Seen() for name in ports.providers}
        self._run: RunObserved | None = None
        self._rates: tuple[object, ...] | None = None
        self._last_offers: tuple[object, ...] | None = None
        self._at: dict[str, Instant] = {}
        self._trouble = ""

    def next_at(self, now: Instant) -> Instant:
        """Return when the next poll is due."""
        return min(self._at.values(), default=now)

    def poll(self, state: driver.FleetState, now: Instant) -> list[Fact]:
        """Poll what is due; a port that does not answer yields no fact and is polled again at the usual time."""
        pace = self._ports.pace
        facts: list[Fact] = []
        if self._is_due("estimates", pace.estimates_s, now):
            facts += self._estimates()
        if not driver.buys(state):
            # A poll that is never made must not count as overdue, or the loop would never wait.
            self._at.pop("offers", None)
        elif self._is_due("offers", pace.offers_s, now):
            facts += self._offers()
        if self._is_due("list", pace.list_s, now):
            facts += self._listings(state)
        if self._is_due("run", pace.run_s, now):
            facts += self._observe()
        if self._is_due("bill", pace.settle_s if driver.needs_bill(state) else pace.bill_s, now):
            facts += self._bills()
        return facts

    def _is_due(self, what: str, every_s: Seconds, now: Instant) -> bool:
        at = self._at.get(what, now)
        if now < at:
            self._at[what] = Instant(min(at, now + every_s))  # the interval may be shorter now than at the last poll
            return False
        self._at[what] = Instant(now + every_s)
        return True

    # ---------------------------------------------------------------------------------------------------- the providers

    def _listings(self, state: driver.FleetState) -> list[Fact]:
        facts: list[Fact] = []
        for name, provider in self._ports.providers.items():
            # Only orders sent before this listing: it says nothing about later ones.
            unanswered = driver.unanswered(state, name)
            try:
                listing = provider.list(self._ports.owner)
            except NO_ANSWER:
                continue
            facts += self._compare(state, name, unanswered, listing)
        return facts

    def _compare(
        self, state: driver.FleetState, name: str, unanswered: tuple[str, ...], listing: Iterable[Machine]
    ) -> list[Fact]:
        ours = tuple(machine for machine in listing if machine.job_id == self._job.job_id)
        known = {
            machine_id: machine
            for machine_id, machine in driver.known_machines(state).items()
            if machine.provider == name
        }
        seen = self._seen[name]
        difference = machines.compare(known, ours)
        facts: list[Fact] = []
        if difference.seen:
            facts.append(MachinesObserved(difference.seen))
        missing = frozenset(difference.missing)
        if missing & seen.missing:
            facts.append(MachinesMissing(tuple(sorted(missing & seen.missing))))
        seen.missing = missing - seen.missing
        if driver.awaits_listing(state, name):
            tokens = {machine.token for machine in ours}
            facts.append(ListingCompleted(name, tuple(token for token in unanswered if token not in tokens)))
        return facts

    def _offers(self) -> list[Fact]:
        for name, provider in self._ports.providers.items():
            self._ask_offers(self._seen[name], name, provider)
        offered = tuple(
            (tuple(replace(offer, quoted_at=WallTime(0.0)) for offer in seen.offers), seen.quotas, seen.trouble)
            for seen in self._seen.values()
        )
        if offered == self._last_offers:
            return []
        self._last_offers = offered
        return [
            OffersObserved(
                tuple(offer for seen in self._seen.values() for offer in seen.offers),
                tuple(quota for seen in self._seen.values() for quota in seen.quotas),
                tuple(seen.trouble for seen in self._seen.values() if seen.trouble is not None),
            )
        ]

    def _ask_offers(self, seen: _Seen, name: str, provider: Provider) -> None:
        try:
            seen.offers, seen.quotas, seen.trouble = provider.offers(), provider.quota(self._ports.owner), None
        except ProviderDenied as error:
            seen.offers, seen.trouble = (), (name, Refusal.CREDENTIALS, str(error))
        except NO_ANSWER as error:
            seen.trouble = (name, Refusal.NO_CAPACITY, str(error))

    def _bills(self) -> list[Fact]:
        facts: list[Fact] = []
        for name, provider in self._ports.providers.items():
            try:
                bill = provider.charges(self._ports.owner, self._cursors.get(name, ""))
            except NO_ANSWER:
                continue
            charges = tuple(charge for charge in bill.charges if charge.job_id == self._job.job_id)
            if charges:
                facts.append(ChargesObserved(charges, name, bill.cursor))
            self._cursors[name] = bill.cursor
        return facts

    # ------------------------------------------------------------------------------------------------ run and estimates

    def _observe(self) -> list[Fact]:
        try:
            state = self._ports.run.observe()
        except WindfallError as error:
            self._once(f"cannot read the run's store: {error}")
            return []
        if state is None:
            return []
        saved = max((checkpoint.step for checkpoint in state.checkpoints), default=Step(0))
        holder = None if state.holder is None else state.holder.host
        observed = RunObserved(state.outcome, state.term, holder, saved, state.failures)
        if observed == self._run:
            return []
        self._run = observed
        return [observed]

    def _estimates(self) -> list[Fact]:
        rates = self._ports.rates()
        if rates == self._rates:
            return []
        self._rates = rates
        return [EstimatesPooled(rates)]

    def _once(self, message: str) -> None:
        if message != self._trouble:
            self._trouble = message
            self._ports.log(message)
