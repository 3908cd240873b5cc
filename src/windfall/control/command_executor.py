"""Executes a driver's commands to providers and to the run, and retries those that get no answer.

An order is sent once: whether it was accepted is for the driver to find out, from a listing.  All other commands are
idempotent and are retried with growing pauses until they succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windfall.errors import Misuse, ProviderDenied, ProviderError, StoreError
from windfall.events import Command, Fact
from windfall.fleet import (
    CancelOrder,
    DeclareGone,
    NotifyUser,
    OrderAnswered,
    OrderUnanswered,
    PlaceOrder,
    PreemptMachine,
    ReleaseMachine,
    StopRun,
)
from windfall.market import Order, Refusal
from windfall.terms import Instant

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
        run, providers = self._ports.run, self._ports.providers
        match command:
            case CancelOrder(token, name) if name in providers:
                return f"cancel {token}", lambda: providers[name].cancel(token)
            case ReleaseMachine(machine_id, name, _) if name in providers:
                return f"release {machine_id}", lambda: providers[name].release(machine_id)
            case PreemptMachine(machine_id, name, notice_s) if name in providers:
                return f"preempt {machine_id}", lambda: providers[name].preempt(machine_id, notice_s)
            case DeclareGone(machine_id):
                return f"gone {machine_id}", lambda: run.declare_gone(machine_id)
            case StopRun(at_once, reason):
                return f"stop {at_once}", lambda: run.stop(now=at_once, reason=reason)
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
