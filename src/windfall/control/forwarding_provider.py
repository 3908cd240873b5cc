"""A provider around another: all calls pass through, except those that a subclass checks first."""

from __future__ import annotations

from windfall.market import (
    Answer,
    Bill,
    BlockSettings,
    BootSpec,
    Capabilities,
    Machine,
    Offer,
    Order,
    OrderPreview,
    Quota,
)
from windfall.ports import Provider
from windfall.terms import Seconds


class ForwardingProvider:
    """`ports.Provider`; see there for the calls."""

    def __init__(self, provider: Provider) -> None:
        """Wrap a provider."""
        self._provider = provider
        self.name = provider.name

    def capabilities(self) -> Capabilities:
        """Return what the provider can do."""
        return self._provider.capabilities()

    def offers(self, block: BlockSettings = ()) -> tuple[Offer, ...]:
        """Return the current offers."""
        return self._provider.offers(block) if block else self._provider.offers()

    def quota(self, owner: str, block: BlockSettings = ()) -> tuple[Quota, ...]:
        """Return the limits of this account."""
        return self._provider.quota(owner, block) if block else self._provider.quota(owner)

    def preview(self, order: Order, block: BlockSettings) -> OrderPreview:
        """Return what would become of an order."""
        return self._provider.preview(order, block)

    def order(self, order: Order, boot: BootSpec) -> Answer:
        """Buy machines."""
        return self._provider.order(order, boot)

    def cancel(self, token: str) -> None:
        """Cancel an order by its token."""
        self._provider.cancel(token)

    def list(self, owner: str) -> tuple[Machine, ...]:
        """Return every machine of this owner."""
        return self._provider.list(owner)

    def release(self, machine_id: str) -> None:
        """Release a machine."""
        self._provider.release(machine_id)

    def charges(self, owner: str, cursor: str) -> Bill:
        """Return the new lines of this owner's bill."""
        return self._provider.charges(owner, cursor)

    def preempt(self, machine_id: str, notice_s: Seconds | None) -> None:
        """Preempt a machine."""
        self._provider.preempt(machine_id, notice_s)
