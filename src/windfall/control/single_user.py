"""A provider whose machines run under the controller's own account, and which therefore serves a single user only.

Each job there could read what the controller reads: the tokens and secrets of all users, and the installation's key.
So it sells nothing once there are two users; machines bought before can still be listed, billed and released.
"""

from __future__ import annotations

from collections.abc import Callable

from windfall.control.controller_views import OffersView
from windfall.errors import ControllerError, Infeasible, ProviderDenied
from windfall.jobs import Job
from windfall.market import Answer, Bill, BootSpec, Capabilities, Machine, Offer, Order, Quota, Refusal
from windfall.ports import Provider
from windfall.terms import Seconds


class SingleUserProvider:
    """`ports.Provider` around another, which sells only while there is at most one user."""

    def __init__(self, provider: Provider, users: Callable[[], int]) -> None:
        """Wrap a provider.

        Args:
            provider: the one that sells.
            users: returns how many users the controller has now.
        """
        self._provider = provider
        self._users = users
        self.name = provider.name

    def _check(self) -> None:
        count = self._users()
        if count > 1:
            raise ProviderDenied(refusal(self.name, count))

    def capabilities(self) -> Capabilities:
        """Return what the provider can do."""
        return self._provider.capabilities()

    def offers(self) -> tuple[Offer, ...]:
        """Return the current offers.

        Raises:
            ProviderDenied: the controller has a second user.
        """
        self._check()
        return self._provider.offers()

    def quota(self, owner: str) -> tuple[Quota, ...]:
        """Return the limits of this account."""
        return self._provider.quota(owner)

    def order(self, order: Order, boot: BootSpec) -> Answer:
        """Buy machines.

        Raises:
            ProviderDenied: the controller has a second user; nothing was bought.
        """
        self._check()
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


def refusal(name: str, users: int) -> str:
    """Return why a provider does not sell to a controller with this number of users."""
    return (
        f"provider {name} runs every job under this controller's account, so with {users} users one user's job could read "
        "the tokens and secrets of all: unset WINDFALL_CONTROLLER to use a controller of your own, or remove the other users "
        "(`windfall serve --remove-user NAME`)"
    )


def refuse_unsold(offered: OffersView, job: Job) -> None:
    """Raise an error if nothing is for sale where a job may buy, and a provider reported a reason.

    Raises:
        Infeasible: each of these providers refuses this controller; nothing was bought.
        ControllerError: a provider did not answer.
    """
    wanted = {want.provider for want in job.resources}
    errors = [error for error in offered.provider_errors if None in wanted or error.provider in wanted]
    if not errors or any(None in wanted or offer.provider in wanted for offer in offered.offers):
        return
    message = "; ".join(error.message for error in errors)
    if all(error.refusal == Refusal.CREDENTIALS for error in errors):
        raise Infeasible(message)
    raise ControllerError(message)
