"""The commands of a driver that go to providers and to the run, carried out, and tried again where nobody answered.

An order is asked once: whether it was taken is the driver's question, which a listing answers.  Everything else may be
done twice without harm, and is repeated with growing pauses until somebody says that it is done.
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
    from windfall.control.conductor import ConductorPorts

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.5, 30.0
_NEVER = Instant(float("inf"))
NO_ANSWER = (ProviderError, Misuse)
"""What leaves open whether a provider did what was asked: also that its own configuration cannot be used now."""


@dataclass(slots=True)
class _Errand:
    """Something to be done, and when it is tried next."""

    command: Command
    action: Callable[[], None]
    next_at: Instant
    tries: int = 0


class Errands:
    """What is under way for one job."""

    def __init__(self, ports: ConductorPorts) -> None:
        self._ports = ports
        self._open: dict[str, _Errand] = {}
        self._facts: list[Fact] = []

    def again(self, commands: Sequence[Command]) -> None:
        """Queue what the last row before a crash ordered, which may have been done or not; never an order to buy.

        Users may so be told the same twice: that is better than never.
        """
        for command in commands:
            if isinstance(command, NotifyUser):
                self._ports.notify(command.event, command.sentence)
            elif not isinstance(command, PlaceOrder | PreemptMachine):
                self._queue(command, self._ports.clock.now())

    def obey(self, command: Command, now: Instant) -> None:
        """Carry a command out, now and if need be again later."""
        if isinstance(command, PlaceOrder):
            self._forget_stops()
            self._facts.append(self._buy(command.order))
            return
        key = self._queue(command, now)
        if key is not None:
            self._try(key, now)

    def _forget_stops(self) -> None:
        """Drop a stop that never arrived: who buys has been told to go on, and the run's next holder must not get it."""
        self._open = {key: one for key, one in self._open.items() if not isinstance(one.command, StopRun)}

    @property
    def cancelling(self) -> bool:
        """Whether a provider has not yet heard that nothing more shall come of an order."""
        return any(isinstance(one.command, CancelOrder) for one in self._open.values())

    def run(self, now: Instant) -> list[Fact]:
        """Try again what is due; return the facts that came of anything since the last call."""
        for key in [key for key, errand in self._open.items() if errand.next_at <= now]:
            self._try(key, now)
        return self.brought()

    def brought(self) -> list[Fact]:
        """Return the facts that came since the last call."""
        facts, self._facts = self._facts, []
        return facts

    def next_at(self, now: Instant) -> Instant:
        """Return when something is to be tried again."""
        if self._facts:
            return now
        return min((errand.next_at for errand in self._open.values()), default=_NEVER)

    def _buy(self, order: Order) -> Fact:
        provider = self._ports.providers.get(order.offer.provider)
        if provider is None:
            sentence = f"provider {order.offer.provider} is not configured on this controller"
            return OrderAnswered(order.token, (), Refusal.INVALID, sentence)
        try:
            answer = provider.order(order, self._ports.boot(order))
        except ProviderDenied as error:
            return OrderAnswered(order.token, (), Refusal.CREDENTIALS, str(error))
        except NO_ANSWER as error:
            return OrderUnanswered(order.token, str(error))
        return OrderAnswered(order.token, answer.machine_ids, answer.refusal, answer.sentence)

    def _queue(self, command: Command, now: Instant) -> str | None:
        errand = self._errand(command)
        if errand is None:
            return None
        key, action = errand
        self._open[key] = _Errand(command, action, now)
        return key

    def _errand(self, command: Command) -> tuple[str, Callable[[], None]] | None:
        """Return a command's name among the errands and what is to be done; None for one that is not an errand."""
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
        errand = self._open[key]
        try:
            errand.action()
        except (*NO_ANSWER, StoreError) as error:
            errand.tries += 1
            pause_s = min(_PAUSE_S_MIN * 2 ** min(errand.tries, 10), _PAUSE_S_MAX)
            errand.next_at = Instant(now + pause_s)
            if errand.tries == 1:
                self._ports.say(f"{key}: {error}; tried again until it is done")
        else:
            del self._open[key]
