"""The providers that jobs can name: one row each.

A new provider is one entry of `PROVIDERS`.  The job file with its messages and schema, the configuration file, `doctor`
and the controller read it; nothing above `providers` knows a provider by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from windfall.ports import Clock, Provider
from windfall.providers.job_blocks import BlockKey, BlockKind
from windfall.providers.provider_settings import NO_SETTINGS, SETTINGS_KEYS, ProviderSettings
from windfall.providers.slurm import slurm_settings
from windfall.structs import Struct


class ProviderEntry(Struct, frozen=True):
    """A provider.

    Attributes:
        name: as `infra` in a job file names it, and the name of its block.
        opener: module of this package and function, which is given the installation's folder, the clock, whether it may
            start processes of its own, and the provider's settings.
        help: what it is, in a few words.
        extra: the extra of this package that brings its client library; None if it needs none.
        client: a module of that library, which shows that it is installed.
        single_user: its machines run under the controller's own account, on its host or on a cluster that shares its
            disks, so it sells to a single user only, and its machines have what the controller has: its Python and its
            credentials for stores.
        allocations: it has allocations of several machines, in which mpirun and srun start programs on all of them.
        settings: the keys that it takes in the configuration file.
        site: further keys in the configuration file, which no other provider has.
        block: the keys of its block in a job file.
    """

    name: str
    opener: str
    help: str
    extra: str | None = None
    client: str = ""
    single_user: bool = False
    allocations: bool = False
    settings: tuple[str, ...] = SETTINGS_KEYS
    site: tuple[BlockKey, ...] = ()
    block: tuple[BlockKey, ...] = ()


PROVIDERS = (
    ProviderEntry(
        "local",
        "providers.local.local_provider:open_provider",
        "a market of processes on this host",
        single_user=True,
        settings=("limits",),
        block=(
            BlockKey(
                "uplink",
                BlockKind.TEXT,
                "Limit on each machine's uploads, instead of its type's.",
                "20MB/s",
                pattern=r"(?=.*[1-9])[0-9]+(\.[0-9]+)? *([kKMG]i?)?B/s",
            ),
            BlockKey(
                "speed",
                BlockKind.NUMBER,
                "Share of the host's speed at which each machine runs, instead of its type's.",
                "0.5",
                least=0.01,
                most=1.0,
            ),
        ),
    ),
    ProviderEntry(
        "slurm",
        "providers.slurm.slurm_provider:open_provider",
        "the jobs of a Slurm cluster",
        single_user=True,
        allocations=True,
        settings=("limits",),
        site=slurm_settings.SITE,
        block=slurm_settings.BLOCK,
    ),
)
"""Every provider; the first is the one that messages and examples name."""
EXAMPLE = PROVIDERS[0].name
"""The provider that examples name: the one that needs no account."""
_NAMED_ELSEWHERE = ("slurm", "ray", "aws", "gcp", "azure", "kubernetes", "k8s", "lambda", "runpod", "oci", "vast")


def names() -> tuple[str, ...]:
    """Return the names of all providers."""
    return tuple(entry.name for entry in PROVIDERS)


def names_later() -> tuple[str, ...]:
    """Return the providers that other tools have and Windfall does not have yet, as those tools name them."""
    return tuple(name for name in _NAMED_ELSEWHERE if name not in names())


def find(name: str) -> ProviderEntry | None:
    """Return a provider's entry; None if there is none of this name."""
    return next((entry for entry in PROVIDERS if entry.name == name), None)


def open_provider(
    entry: ProviderEntry, installation: Path, clock: Clock, *, start: bool, settings: ProviderSettings = NO_SETTINGS
) -> Provider:
    """Open a provider; nothing is bought, and no process is started yet.

    Args:
        entry: which.
        installation: its folder.
        clock: time.
        start: whether calls may start processes, as those that buy do; without, offers are answered all the same.
        settings: what the configuration file says of it.
    """
    module, _, name = entry.opener.partition(":")
    # Loaded here: a provider's client library is an extra of those who use it.
    opener: Callable[..., Provider] = getattr(import_module(f"windfall.{module}"), name)
    return opener(installation, clock, start=start, settings=settings)
