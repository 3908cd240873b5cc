"""A provider whose machines run under the controller's own account, and which therefore serves a single user only.

Each job there could read what the controller reads: the tokens and secrets of all users, and the installation's key.
So it sells nothing once there are two users; machines bought before can still be listed, billed and released.
"""

from __future__ import annotations

from collections.abc import Callable

from windfall.control.controller_views import OffersView
from windfall.control.forwarding_provider import ForwardingProvider
from windfall.errors import ControllerError, Infeasible, ProviderDenied
from windfall.jobs import Job
from windfall.market import Answer, BlockSettings, BootSpec, Offer, Order, Refusal
from windfall.ports import Provider


class SingleUserProvider(ForwardingProvider):
    """`ports.Provider` around another, which sells only while there is at most one user."""

    def __init__(self, provider: Provider, users: Callable[[], int]) -> None:
        """Wrap a provider.

        Args:
            provider: the one that sells.
            users: returns how many users the controller has now.
        """
        super().__init__(provider)
        self._users = users

    def _check(self) -> None:
        count = self._users()
        if count > 1:
            raise ProviderDenied(refusal(self.name, count))

    def offers(self, block: BlockSettings = ()) -> tuple[Offer, ...]:
        """Return the current offers.

        Raises:
            ProviderDenied: the controller has a second user.
        """
        self._check()
        return super().offers(block)

    def order(self, order: Order, boot: BootSpec) -> Answer:
        """Buy machines.

        Raises:
            ProviderDenied: the controller has a second user; nothing was bought.
        """
        self._check()
        return self._provider.order(order, boot)


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
