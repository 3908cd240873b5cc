"""A provider whose machines are processes of the controller's own account: for a controller with one user alone.

Each job there could read what the controller reads: the tokens and secrets of its other users, and the key of the
installation.  So nothing is for sale there once there are two users; what was bought before can still be listed, billed
and given back.
"""

from __future__ import annotations

from collections.abc import Callable

from windfall.control.service import OffersView
from windfall.errors import ControllerError, Infeasible, ProviderDenied
from windfall.market import Answer, Bill, Boot, Capabilities, Machine, Offer, Order, Quota, Refusal
from windfall.ports import Provider
from windfall.terms import Seconds


class Alone:
    """`ports.Provider` over another, which sells while there is one user at most."""

    def __init__(self, provider: Provider, users: Callable[[], int]) -> None:
        """Stand before a provider.

        Args:
            provider: who sells.
            users: says how many users the controller has now.
        """
        self._provider = provider
        self._users = users
        self.name = provider.name

    def _check(self) -> None:
        count = self._users()
        if count > 1:
            raise ProviderDenied(refusal(self.name, count))

    def capabilities(self) -> Capabilities:
        """Say what the provider can do."""
        return self._provider.capabilities()

    def offers(self) -> tuple[Offer, ...]:
        """Return what is for sale now.

        Raises:
            ProviderDenied: the controller has a second user.
        """
        self._check()
        return self._provider.offers()

    def quota(self, owner: str) -> tuple[Quota, ...]:
        """Return the limits of this account."""
        return self._provider.quota(owner)

    def order(self, order: Order, boot: Boot) -> Answer:
        """Buy machines.

        Raises:
            ProviderDenied: the controller has a second user; nothing was bought.
        """
        self._check()
        return self._provider.order(order, boot)

    def cancel(self, token: str) -> None:
        """Make sure that nothing more comes of a token."""
        self._provider.cancel(token)

    def list(self, owner: str) -> tuple[Machine, ...]:
        """Return every machine of this owner."""
        return self._provider.list(owner)

    def release(self, machine_id: str) -> None:
        """Give a machine back."""
        self._provider.release(machine_id)

    def charges(self, owner: str, cursor: str) -> Bill:
        """Return the new lines of this owner's bill."""
        return self._provider.charges(owner, cursor)

    def preempt(self, machine_id: str, notice_s: Seconds | None) -> None:
        """Take a machine back."""
        self._provider.preempt(machine_id, notice_s)


def refusal(name: str, users: int) -> str:
    """Say why a provider does not sell to a controller with so many users."""
    return (
        f"provider {name} runs every job as the account of this controller, which has {users} users: a job of one could read "
        "the tokens and secrets of all. Unset WINDFALL_CONTROLLER to run it under a controller of your own, or let the others "
        "go (`windfall serve --remove-user NAME`)"
    )


def refuse_unsold(offered: OffersView) -> None:
    """Refuse to go on where nothing is for sale.

    Raises:
        Infeasible: every provider refuses this controller; nothing was bought.
        ControllerError: none answers.
    """
    if offered.offers or not offered.troubles:
        return
    sentence = "; ".join(trouble.sentence for trouble in offered.troubles)
    if all(trouble.refusal == Refusal.CREDENTIALS for trouble in offered.troubles):
        raise Infeasible(sentence)
    raise ControllerError(sentence)
