"""The providers that jobs can name.

A new provider is one entry of `PROVIDERS`; the job file, its messages and the controller read it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from windfall.ports import Clock, Provider
from windfall.structs import Struct


class ProviderEntry(Struct, frozen=True):
    """A provider.

    Attributes:
        name: as `infra` in a job file names it.
        opener: module of this package and function, which is given the installation's folder, the clock, and
            whether it may start processes of its own.
        single_user: its machines run under the controller's own account, so it sells to a single user only.
    """

    name: str
    opener: str
    single_user: bool = False


PROVIDERS = (ProviderEntry("local", "providers.local.local_provider:open_provider", single_user=True),)


def names() -> tuple[str, ...]:
    """Return the names of all providers."""
    return tuple(entry.name for entry in PROVIDERS)


def open_provider(entry: ProviderEntry, installation: Path, clock: Clock, *, start: bool) -> Provider:
    """Open a provider; nothing is bought, and no process is started yet.

    Args:
        entry: which.
        installation: its folder.
        clock: time.
        start: whether calls may start processes, as those that buy do; without, offers are answered all the same.
    """
    module, _, name = entry.opener.partition(":")
    # Loaded here: a provider's client library is an extra of those who use it.
    opener: Callable[..., Provider] = getattr(import_module(f"windfall.{module}"), name)
    return opener(installation, clock, start=start)
