"""A provider from which an installation buys no more than its configuration allows, over all of its jobs."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from windfall.control.forwarding_provider import ForwardingProvider
from windfall.errors import ProviderUnreachable
from windfall.market import (
    Answer,
    BlockSettings,
    BootSpec,
    Machine,
    MachineLifecycle,
    Order,
    Quota,
    Refusal,
)
from windfall.ports import Clock, Provider
from windfall.structs import Struct, replace
from windfall.terms import Instant


class PurchaseLimits(Struct, frozen=True):
    """The most that may be pending or running at once; None for no limit.

    Attributes:
        usd_per_hour: the sum of the machines' prices [USD/h].
        origin: where the user set them, for messages.
    """

    machines: int | None
    usd_per_hour: float | None
    origin: str


@dataclass(slots=True)
class _Recent:
    """An order that a listing may not show yet: counted as bought until it does, or for as long as a listing may lag."""

    count: int
    usd_per_hour: float
    until: Instant


_UNANSWERED_S = 60.0
"""How much longer than a listing's lag an order without an answer is counted as bought [s]: it may still arrive."""


class LimitedProvider(ForwardingProvider):
    """`ports.Provider` around another, which checks each order against limits before it leaves.

    Orders are made one at a time, because the next one must know what the last one bought.
    """

    def __init__(self, provider: Provider, limits: PurchaseLimits, clock: Clock) -> None:
        """Wrap a provider."""
        super().__init__(provider)
        self._limits, self._clock = limits, clock
        self._lock = threading.Lock()
        self._recent: dict[str, _Recent] = {}

    def order(self, order: Order, boot: BootSpec) -> Answer:
        """Buy as many machines as the limits leave room for; refuse the rest as beyond a quota.

        Raises:
            ProviderUnreachable: the listing or the order was not answered.
            ProviderDenied: nothing was bought.
        """
        with self._lock:
            listed = self._provider.list(order.owner)
            if any(machine.token == order.token for machine in listed):
                return self._provider.order(order, boot)  # a repeat: it buys nothing
            room, reason = self._room(order, listed)
            if room < order.count_min:
                return Answer(order.token, (), Refusal.QUOTA, reason)
            return self._buy(order, min(room, order.count_max), reason, boot)

    def _buy(self, order: Order, count: int, reason: str, boot: BootSpec) -> Answer:
        lag_s = self._provider.capabilities().listing_lag_s
        try:
            answer = self._provider.order(replace(order, count_max=count), boot)
        except ProviderUnreachable:
            self._remember(order, count, lag_s + _UNANSWERED_S)
            raise
        self._remember(order, len(answer.machine_ids), lag_s)
        if count < order.count_max and answer.refusal is None:
            return replace(answer, refusal=Refusal.QUOTA, message=reason)
        return answer

    def _remember(self, order: Order, count: int, for_s: float) -> None:
        self._recent[order.token] = _Recent(
            count, count * order.offer.price_usd_per_hour, Instant(self._clock.now() + for_s)
        )

    def _room(self, order: Order, listed: tuple[Machine, ...]) -> tuple[int, str]:
        """Return how many machines the limits allow now, and the limit that allows no more."""
        now, tokens = self._clock.now(), {machine.token for machine in listed}
        self._recent = {
            token: one
            for token, one in self._recent.items()
            if now < one.until and token not in tokens and token != order.token
        }
        alive = [machine for machine in listed if machine.lifecycle is not MachineLifecycle.GONE]
        count = len(alive) + sum(one.count for one in self._recent.values())
        usd = math.fsum(machine.price_now_usd_per_hour for machine in alive) + math.fsum(
            one.usd_per_hour for one in self._recent.values()
        )
        rooms: list[tuple[int, str]] = [(order.count_max, "")]
        limits, price = self._limits, order.offer.price_usd_per_hour
        if limits.machines is not None:
            text = f"limits.machines of {self.name} is {limits.machines} in {limits.origin}, and {count} are in use"
            rooms.append((max(limits.machines - count, 0), text))
        if limits.usd_per_hour is not None and price > 0:
            text = f"limits.usd_per_hour of {self.name} is {limits.usd_per_hour:g} in {limits.origin}, {usd:g} in use"
            # A price that fills the limit exactly fits, whatever the last digit of the sum.
            rooms.append((max(math.floor((limits.usd_per_hour - usd) / price + 1e-9), 0), text))
        return min(rooms, key=lambda room: room[0])

    def quota(self, owner: str, block: BlockSettings = ()) -> tuple[Quota, ...]:
        """Return the limits of this account, none above what the limit on machines leaves room for."""
        rows = super().quota(owner, block)
        if self._limits.machines is None or not rows:
            return rows
        try:
            listed = self._provider.list(owner)
        except ProviderUnreachable:
            return rows  # only for show: an order is checked by itself
        room = max(self._limits.machines - sum(one.lifecycle is not MachineLifecycle.GONE for one in listed), 0)
        return tuple(replace(row, limit=min(row.limit, row.used + room)) for row in rows)


def limited(provider: Provider, limits: PurchaseLimits, clock: Clock) -> Provider:
    """Return a provider that keeps the limits; itself if there are none."""
    unlimited = limits.machines is None and limits.usd_per_hour is None
    return provider if unlimited else LimitedProvider(provider, limits, clock)
