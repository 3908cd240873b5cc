"""The configuration file of an installation's user: what Windfall needs to know of each provider, and no secret.

    providers:
      NAME:
        credentials: {env: NAME}       # or {file: PATH} or {profile: NAME}: where the secret is
        region: eu-west-1
        image: NAME                    # or {container: NAME}
        network: NAME
        agent: {url: URL, sha256: HEX}
        limits: {machines: 20, usd_per_hour: 15}

It is read when a controller starts, and never written.  Strict as a job file: an unknown key is an error that names
file, line and the nearest key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from windfall.errors import InvalidFile
from windfall.market import AgentArchive, BootImage
from windfall.policies.planning import job_checks
from windfall.providers import job_blocks, provider_list
from windfall.providers.provider_list import ProviderEntry
from windfall.providers.provider_settings import (
    CredentialKind,
    CredentialReference,
    ProviderLimits,
    ProviderSettings,
)
from windfall.spec import yaml_positions
from windfall.spec.fields import shown
from windfall.spec.job_loader import SECRET_VALUE
from windfall.spec.yaml_positions import YamlDocument, YamlPath, dotted
from windfall.spelling import closest, nearest
from windfall.structs import Struct

FILE = "windfall/config.yaml"
MACHINES_MAX = 1_000_000
_TEXT = r"[^\s\x00-\x1f]{1,300}"
_URL = r"(https?|file)://[^\s@]+"
_WHERE = "{env: NAME}, {file: PATH} or {profile: NAME}"


def config_path(environ: Mapping[str, str]) -> str:
    """Return where the configuration file is, whether or not it exists; a relative `XDG_CONFIG_HOME` does not count."""
    base = environ.get("XDG_CONFIG_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.config"), FILE)


def load(path: str) -> Mapping[str, ProviderSettings]:
    """Return the settings of each provider that the file mentions; nothing if there is no file.

    Raises:
        InvalidFile: something in it is wrong; the message starts with file:line:column and never repeats a secret.
        Misuse: it cannot be read.
    """
    if not os.path.lexists(path):
        return {}
    document = yaml_positions.parse(yaml_positions.read(path), path)
    if document.value is None:
        return {}
    return _ConfigReader(document).providers()


class _ConfigReader(Struct, frozen=True):
    """Reads a document; each method returns the value at a path, or raises `InvalidFile` with its position."""

    document: YamlDocument

    def providers(self) -> Mapping[str, ProviderSettings]:
        """Return the settings of all providers in the file."""
        top = self._map((), self.document.value, ("providers",))
        given = self._map(("providers",), top.get("providers", {}), provider_list.names())
        return {entry.name: self._settings(entry) for entry in provider_list.PROVIDERS if entry.name in given}

    def _settings(self, entry: ProviderEntry) -> ProviderSettings:
        path: YamlPath = ("providers", entry.name)
        site = {key.name: key for key in entry.site}
        given = self._map(path, self.document.value["providers"][entry.name], (*entry.settings, *site))
        values = {name: value for name, value in given.items() if name not in site}
        own = {name: value for name, value in given.items() if name in site}
        for name, value in own.items():
            if problem := job_blocks.problem_with(site[name], value):
                self._wrong((*path, name), problem)
        readers: Mapping[str, Callable[[YamlPath, Any], Any]] = {
            "credentials": self._credentials,
            "region": self._text,
            "image": self._image,
            "network": self._text,
            "agent": self._agent,
            "limits": self._limits,
        }
        found = {name: readers[name]((*path, name), value) for name, value in values.items()}
        return ProviderSettings(**found, site=tuple(own.items()), origin=self.document.name)

    # --------------------------------------------------------------------------------------------------------- values

    def _credentials(self, path: YamlPath, value: object) -> CredentialReference:
        # Whatever stands here may be a secret, so no message repeats it, not even as a key.
        if not isinstance(value, dict):
            self._wrong(path, f"must say where the secret is, {_WHERE}; the secret itself does not belong in this file")
        for key in value:
            if key not in list(CredentialKind):
                guess = closest(str(key), list(CredentialKind))
                hint = "the secret itself does not belong in this file" if guess is None else f"did you mean {guess}?"
                self._wrong((*path, key), f"has an unknown key, not one of {_WHERE}; {hint}", key=True, at=path)
        if len(value) != 1:
            self._wrong(path, f"must have exactly one of {_WHERE}")
        ((key, name),) = value.items()
        kind = CredentialKind(key)
        below = (*path, key)
        if not isinstance(name, str) or not name.strip() or SECRET_VALUE.search(name):
            self._wrong(below, f"must be a name ({_WHERE}); the secret itself does not belong in this file")
        if kind is CredentialKind.ENV and not re.fullmatch(job_checks.VARIABLE, name):
            self._wrong(below, "must be the name of an environment variable, of letters, digits and _")
        if kind is CredentialKind.FILE:
            name = os.path.expanduser(name)
            if not os.path.isabs(name):
                self._wrong(below, "must be an absolute path, or start with ~/")
        return CredentialReference(kind, name)

    def _text(self, path: YamlPath, value: object) -> str:
        if isinstance(value, str) and SECRET_VALUE.search(value):
            self._wrong(path, "looks like a secret, which does not belong in this file")
        if not isinstance(value, str) or not re.fullmatch(_TEXT, value):
            self._wrong(path, f"must be a name without spaces, not {shown(value)}")
        return value

    def _image(self, path: YamlPath, value: object) -> BootImage:
        if not isinstance(value, dict):
            return BootImage(self._text(path, value))
        given = self._map(path, value, ("container",))
        if not given:
            self._wrong(path, "must be the name of an image, or {container: NAME}")
        return BootImage(self._text((*path, "container"), given["container"]), container=True)

    def _agent(self, path: YamlPath, value: object) -> AgentArchive:
        given = self._map(path, value, ("url", "sha256"))
        for key in ("url", "sha256"):
            if key not in given:
                self._wrong(path, f"needs url and sha256; {key} is missing")
        url, digest = given["url"], given["sha256"]
        if not isinstance(url, str) or not re.fullmatch(_URL, url):
            self._wrong((*path, "url"), "must be an https://, http:// or file:// URL without a user name or password")
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            self._wrong((*path, "sha256"), f"must be 64 hexadecimal digits, not {shown(digest)}")
        return AgentArchive(url, digest)

    def _limits(self, path: YamlPath, value: object) -> ProviderLimits:
        given = self._map(path, value, ("machines", "usd_per_hour"))
        machines, usd = given.get("machines"), given.get("usd_per_hour")
        if machines is not None and (
            not isinstance(machines, int) or isinstance(machines, bool) or not 0 <= machines <= MACHINES_MAX
        ):
            self._wrong((*path, "machines"), f"must be a whole number from 0 to {MACHINES_MAX}, not {shown(machines)}")
        if usd is not None and (
            not isinstance(usd, (int, float)) or isinstance(usd, bool) or not 0 <= usd < job_checks.MONEY_USD_MAX
        ):
            self._wrong((*path, "usd_per_hour"), f"must be a number of dollars such as 2.50, not {shown(usd)}")
        return ProviderLimits(machines, None if usd is None else float(usd))

    # --------------------------------------------------------------------------------------------------------- shapes

    def _map(self, path: YamlPath, value: object, keys: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._wrong(path, f"must be a map of {', '.join(keys)}, not {shown(value)}")
        for key, below in value.items():
            if key not in keys:
                self._wrong((*path, key), f"is an unknown key; {self._advice(path, key, keys)}", key=True)
            if below is None:
                self._wrong((*path, key), "has no value; set one, or remove the line")
        return value

    def _advice(self, path: YamlPath, key: str, keys: tuple[str, ...]) -> str:
        if path == ("providers",) and key in provider_list.names_later():
            return f"this provider is not supported yet; supported: {', '.join(keys)}"
        return nearest(key, keys)

    def _wrong(self, path: YamlPath, problem: str, *, key: bool = False, at: YamlPath | None = None) -> NoReturn:
        name = dotted(path if at is None else at)
        raise InvalidFile(f"{self.document.position(path, key=key)}: {name or 'the file'} {problem}")
