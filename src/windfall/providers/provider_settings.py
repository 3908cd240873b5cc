"""What the configuration file says of a provider: credentials by reference, place, image, network, limits.

A secret is never in the file: a reference names the environment variable, the file or the profile that holds it.
"""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Mapping

from windfall.errors import ProviderDenied
from windfall.market import AgentArchive, BootImage
from windfall.structs import Struct
from windfall.terms import BlockValue

SETTINGS_KEYS = ("credentials", "region", "image", "network", "agent", "limits")
"""Every key that a provider may have in the configuration file."""
_SECRET_BYTES_MAX = 64 * 1024


class CredentialKind(enum.StrEnum):
    """Where a secret is."""

    ENV = "env"
    """In an environment variable of the controller."""
    FILE = "file"
    """In a file that only its owner may read."""
    PROFILE = "profile"
    """Under a name that the provider's own client library knows."""


class CredentialReference(Struct, frozen=True):
    """Where a provider's secret is: the name of a variable or profile, or the absolute path of a file."""

    kind: CredentialKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


class ProviderLimits(Struct, frozen=True):
    """The most that this installation may have of a provider at once; None: no limit.

    Attributes:
        machines: pending and running machines, over all jobs.
        usd_per_hour: the sum of their prices [USD/h].
    """

    machines: int | None = None
    usd_per_hour: float | None = None


class ProviderSettings(Struct, frozen=True):
    """The settings of one provider.

    Attributes:
        credentials: None: whatever the provider's client library finds by itself.
        region, image, network: the provider's own names; None for its defaults.
        agent: None if the image has the agent.
        origin: the file that they come from, for messages; empty if there is none.
        site: further keys of this provider alone (`ProviderEntry.site`), with their values.
    """

    credentials: CredentialReference | None = None
    region: str | None = None
    image: BootImage | None = None
    network: str | None = None
    agent: AgentArchive | None = None
    limits: ProviderLimits = ProviderLimits()
    origin: str = ""
    site: tuple[tuple[str, BlockValue], ...] = ()


NO_SETTINGS = ProviderSettings()
"""A provider that the configuration file does not mention."""


def credential_problem(reference: CredentialReference, environ: Mapping[str, str]) -> str | None:
    """Return why a reference leads to no usable secret, as a sentence without the secret; None if it does.

    A profile is for the provider's own library to find.
    """
    if reference.kind is CredentialKind.ENV and not environ.get(reference.name):
        return f"the environment variable {reference.name} is not set"
    if reference.kind is CredentialKind.FILE:
        try:
            found = os.stat(reference.name)
        except OSError as error:
            return f"cannot read {reference.name} ({error.strerror})"
        if not stat.S_ISREG(found.st_mode):
            return f"{reference.name} is not a file"
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            return f"{reference.name} can be read by other users: chmod 600 {reference.name}"
        if not os.access(reference.name, os.R_OK):
            return f"cannot read {reference.name} (Permission denied)"
    return None


def read_secret(reference: CredentialReference, environ: Mapping[str, str]) -> str:
    """Return the secret behind a reference, without the white space around it; of a profile, its name.

    Raises:
        ProviderDenied: there is none, or other users can read its file.
    """
    if problem := credential_problem(reference, environ):
        raise ProviderDenied(problem)
    if reference.kind is CredentialKind.ENV:
        return environ[reference.name].strip()
    if reference.kind is CredentialKind.PROFILE:
        return reference.name
    with open(reference.name, encoding="utf-8", errors="replace") as file:
        return file.read(_SECRET_BYTES_MAX).strip()
