"""The job loop's calls: the driver's commands go out to providers and the run, and what changed comes back as facts.

An order is sent once: whether it was accepted is for the driver to find out, from a listing.  All other commands are
idempotent and are retried with growing pauses until they succeed.  Listings, offers, bills, the run's log and the
estimates are polled; each change is a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windfall.core import driver, machines
from windfall.errors import Misuse, ProviderDenied, ProviderError, StoreError, WindfallError
from windfall.events import Command, Fact
from windfall.fleet import (
    CancelOrder,
    ChargesObserved,
    DeclareGone,
    EstimatesPooled,
    ListingCompleted,
    MachinesMissing,
    MachinesObserved,
    NotifyUser,
    OffersObserved,
    OrderAnswered,
    OrderUnanswered,
    PlaceOrder,
    PreemptMachine,
    ProgressObserved,
    ReleaseMachine,
    StopRun,
)
from windfall.jobs import Job
from windfall.market import Machine, Offer, Order, Quota, Refusal
from windfall.ports import Provider
from windfall.structs import Struct, replace
from windfall.terms import Instant, Seconds, WallTime

if TYPE_CHECKING:
    from windfall.control.job_loop import JobLoopPorts

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.5, 30.0
_NEVER = Instant(float("inf"))
NO_ANSWER = (ProviderError, Misuse)
"""Errors after which a command may have been executed or not; an unusable provider configuration is one of them."""


@dataclass(slots=True)
class _Task:
    """A command in flight, and when it is tried next."""

    command: Command
    action: Callable[[], None]
    next_at: Instant
    tries: int = 0


class CommandExecutor:
    """The commands in flight of one job."""

    def __init__(self, ports: JobLoopPorts) -> None:
        self._ports = ports
        self._in_flight: dict[str, _Task] = {}
        self._facts: list[Fact] = []

    def requeue(self, commands: Sequence[Command]) -> None:
        """Queue the commands of the last row before a crash, which may have been executed or not; never an order.

        Users may be notified twice, which is better than never.
        """
        for command in commands:
            if isinstance(command, NotifyUser):
                self._ports.notify(command.event, command.message)
            elif not isinstance(command, PlaceOrder | PreemptMachine):
                self._queue(command, self._ports.clock.now())

    def execute(self, command: Command, now: Instant) -> None:
        """Execute a command now, and retry it later if it fails."""
        if isinstance(command, PlaceOrder):
            self._forget_stops()
            self._facts.append(self._buy(command.order))
            return
        key = self._queue(command, now)
        if key is not None:
            self._try(key, now)

    def _forget_stops(self) -> None:
        """Drop a stop that never arrived: the job was resumed, and the run's next holder must not receive it."""
        self._in_flight = {key: one for key, one in self._in_flight.items() if not isinstance(one.command, StopRun)}

    @property
    def cancelling(self) -> bool:
        """Whether an order's cancellation has not reached its provider yet."""
        return any(isinstance(one.command, CancelOrder) for one in self._in_flight.values())

    def run(self, now: Instant) -> list[Fact]:
        """Retry what is due; return the facts that executed commands produced since the last call."""
        for key in [key for key, task in self._in_flight.items() if task.next_at <= now]:
            self._try(key, now)
        return self.take_facts()

    def take_facts(self) -> list[Fact]:
        """Return the facts that executed commands produced since the last call."""
        facts, self._facts = self._facts, []
        return facts

    def next_at(self, now: Instant) -> Instant:
        """Return when a command is due for a retry."""
        if self._facts:
            return now
        return min((task.next_at for task in self._in_flight.values()), default=_NEVER)

    def _buy(self, order: Order) -> Fact:
        provider = self._ports.providers.get(order.offer.provider)
        if provider is None:
            message = f"provider {order.offer.provider} is not configured on this controller"
            return OrderAnswered(order.token, (), Refusal.INVALID, message)
        try:
            answer = provider.order(order, self._ports.boot(order))
        except ProviderDenied as error:
            return OrderAnswered(order.token, (), Refusal.CREDENTIALS, str(error))
        except NO_ANSWER as error:
            return OrderUnanswered(order.token, str(error))
        return OrderAnswered(order.token, answer.machine_ids, answer.refusal, answer.message)

    def _queue(self, command: Command, now: Instant) -> str | None:
        task = self._action_of(command)
        if task is None:
            return None
        key, action = task
        self._in_flight[key] = _Task(command, action, now)
        return key

    def _action_of(self, command: Command) -> tuple[str, Callable[[], None]] | None:
        """Return a command's key and what executes it; None for a command that is not executed here."""
        runtime, providers = self._ports.runtime, self._ports.providers
        match command:
            case CancelOrder(token, name) if name in providers:
                return f"cancel {token}", lambda: providers[name].cancel(token)
            case ReleaseMachine(machine_id, name, _) if name in providers:
                return f"release {machine_id}", lambda: providers[name].release(machine_id)
            case PreemptMachine(machine_id, name, notice_s) if name in providers:
                return f"preempt {machine_id}", lambda: providers[name].preempt(machine_id, notice_s)
            case DeclareGone(machine_id):
                return f"gone {machine_id}", lambda: runtime.declare_gone(machine_id)
            case StopRun(at_once, reason):
                return f"stop {at_once}", lambda: runtime.stop(now=at_once, reason=reason)
        return None

    def _try(self, key: str, now: Instant) -> None:
        task = self._in_flight[key]
        try:
            task.action()
        except (*NO_ANSWER, StoreError) as error:
            task.tries += 1
            pause_s = min(_PAUSE_S_MIN * 2 ** min(task.tries, 10), _PAUSE_S_MAX)
            task.next_at = Instant(now + pause_s)
            if task.tries == 1:
                self._ports.log(f"{key} failed, retrying until it succeeds: {error}")
        else:
            del self._in_flight[key]


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
        self._progress: ProgressObserved | None = None
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
            facts += self._observe_progress()
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

    def _observe_progress(self) -> list[Fact]:
        try:
            observed = self._ports.runtime.progress()
        except WindfallError as error:
            self._once(f"cannot read the job's progress: {error}")
            return []
        if observed is None or observed == self._progress:
            return []
        self._progress = observed
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
