"""The job loop's calls: the driver's commands go out to providers and the run, and what changed comes back as facts.

An order is sent once: whether it was accepted is for the driver to find out, from a listing, and an order that is older
than its provider's memory of tokens is only looked up there.  All other commands are
idempotent and are retried with growing pauses until they succeed.  Listings, offers, bills, the run's log and the
estimates are polled; each change is a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windfall.core import driver, machines, offer_changes
from windfall.errors import Misuse, ProviderAbsent, ProviderDenied, ProviderError, StoreError, WindfallError
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
    OffersChanged,
    OffersObserved,
    OrderAnswered,
    OrderUnanswered,
    PlaceOrder,
    PreemptMachine,
    ProgressObserved,
    ReleaseMachine,
    StopRun,
)
from windfall.jobs import Job, may_use, settings_for
from windfall.market import BlockSettings, Machine, Offer, Order, Quota, Refusal
from windfall.ports import Provider
from windfall.structs import Struct
from windfall.terms import Instant, Seconds

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


_NEVER_SENT = Seconds(0.0)


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

    def execute(self, command: Command, now: Instant, order_age_s: Seconds = _NEVER_SENT) -> None:
        """Execute a command now, and retry it later if it fails.

        Args:
            command: of the newest row.
            now: monotonic time.
            order_age_s: of an order, the time since it was first sent; 0 if it never was [s].
        """
        if isinstance(command, PlaceOrder):
            self._forget_stops()
            self._facts.append(self._buy(command.order, order_age_s))
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

    def _buy(self, order: Order, age_s: Seconds) -> Fact:
        provider = self._ports.providers.get(order.offer.provider)
        if provider is None:
            message = f"provider {order.offer.provider} is not configured on this controller"
            return OrderAnswered(order.token, (), Refusal.INVALID, message)
        try:
            if age_s > 0 and _is_forgotten(provider, age_s):
                return self._look_up(order, provider)
            answer = provider.order(order, self._ports.boot(order))
        except ProviderDenied as error:
            return OrderAnswered(order.token, (), Refusal.CREDENTIALS, str(error))
        except NO_ANSWER as error:
            return OrderUnanswered(order.token, str(error))
        return OrderAnswered(order.token, answer.machine_ids, answer.refusal, answer.message)

    def _look_up(self, order: Order, provider: Provider) -> Fact:
        """Close an order that its provider would take for a new one: nothing more may come of it, and what came is listed."""
        provider.cancel(order.token)
        bought = [machine.machine_id for machine in provider.list(self._ports.owner) if machine.token == order.token]
        message = f"{order.offer.provider} no longer knows the order {order.token}: it is not sent again"
        return OrderAnswered(order.token, tuple(bought), Refusal.CANCELLED, message)

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


def offers_of(provider: Provider, block: BlockSettings) -> tuple[Offer, ...]:
    """Return what a provider offers to a job with these settings."""
    return provider.offers(block) if block else provider.offers()


def quotas_of(provider: Provider, owner: str, block: BlockSettings) -> tuple[Quota, ...]:
    """Return the limits of the account as they hold for a job with these settings."""
    return provider.quota(owner, block) if block else provider.quota(owner)


def _is_forgotten(provider: Provider, age_s: Seconds) -> bool:
    """Return whether a provider may take an order of this age for a new one."""
    memory_s = provider.capabilities().token_memory_s
    return memory_s is not None and age_s >= memory_s


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


NEARBY_PACE = PollingPace(
    turn_s=Seconds(0.1), list_s=Seconds(0.25), offers_s=Seconds(1.0), bill_s=Seconds(1.0), run_s=Seconds(0.25),
    settle_s=Seconds(0.25), estimates_s=Seconds(2.0), silent_after_s=Seconds(15.0),
)  # fmt: skip
"""For providers whose calls do not leave this host."""


@dataclass(slots=True)
class _Seen:
    """What was last observed of a provider.

    Attributes:
        lag_s: how long its listing may lack what an answer named; None before the first listing.
        missing: known machines that the last listing lacked, and since when.
        unanswered: orders of unknown outcome, and since when they are.
    """

    lag_s: Seconds | None = None
    missing: dict[str, Instant] = field(default_factory=dict)
    unanswered: dict[str, Instant] = field(default_factory=dict)
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
        self._offers_seen = False
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
            facts += self._offers(state)
        if self._is_due("list", pace.list_s, now):
            facts += self._listings(state, now)
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

    def _listings(self, state: driver.FleetState, now: Instant) -> list[Fact]:
        facts: list[Fact] = []
        for name, provider in self._ports.providers.items():
            # Only orders sent before this listing: it says nothing about later ones.
            unanswered, seen = driver.unanswered(state, name), self._seen[name]
            try:
                seen.lag_s = provider.capabilities().listing_lag_s if seen.lag_s is None else seen.lag_s
                listing = provider.list(self._ports.owner)
            except NO_ANSWER:
                continue
            seen.unanswered = {token: seen.unanswered.get(token, now) for token in unanswered}
            facts += self._compare(state, name, listing, now)
        return facts

    def _compare(self, state: driver.FleetState, name: str, listing: Iterable[Machine], now: Instant) -> list[Fact]:
        ours = tuple(machine for machine in listing if machine.job_id == self._job.job_id)
        known = {
            machine_id: machine
            for machine_id, machine in driver.known_machines(state).items()
            if machine.provider == name
        }
        seen = self._seen[name]
        lag_s = seen.lag_s or 0.0
        difference = machines.compare(known, ours)
        facts: list[Fact] = []
        if difference.seen:
            facts.append(MachinesObserved(difference.seen))
        # A late listing proves nothing about what happened less than its lag ago.
        missed = {
            machine_id
            for machine_id in difference.missing
            if machine_id in seen.missing and now - seen.missing[machine_id] >= lag_s
        }
        if missed:
            facts.append(MachinesMissing(tuple(sorted(missed))))
        seen.missing = {
            machine_id: seen.missing.get(machine_id, now)
            for machine_id in difference.missing
            if machine_id not in missed
        }
        tokens = {machine.token for machine in ours}
        unlisted = {token: since for token, since in seen.unanswered.items() if token not in tokens}
        if driver.awaits_listing(state, name) and all(now - since >= lag_s for since in unlisted.values()):
            facts.append(ListingCompleted(name, tuple(unlisted)))
        return facts

    def _offers(self, state: driver.FleetState) -> list[Fact]:
        for name, provider in self._ports.providers.items():
            if may_use(self._job, name):
                self._ask_offers(self._seen[name], name, provider)
        fact = offer_changes.difference(
            state,
            OffersObserved(
                tuple(offer for seen in self._seen.values() for offer in seen.offers),
                tuple(quota for seen in self._seen.values() for quota in seen.quotas),
                tuple(seen.trouble for seen in self._seen.values() if seen.trouble is not None),
            ),
        )
        first, self._offers_seen = not self._offers_seen, True
        if fact is None and first:
            # That a provider answers a new controller may lift a block, for example after its credentials were replaced.
            return [OffersChanged()]
        return [] if fact is None else [fact]

    def _ask_offers(self, seen: _Seen, name: str, provider: Provider) -> None:
        try:
            block = settings_for(self._job, name)
            seen.offers, seen.quotas = offers_of(provider, block), quotas_of(provider, self._ports.owner, block)
            seen.trouble = None
        except ProviderDenied as error:
            named = any(want.provider == name for want in self._job.resources)
            shown = named or not isinstance(error, ProviderAbsent)
            seen.offers, seen.trouble = (), (name, Refusal.CREDENTIALS, str(error)) if shown else None
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
