"""The checks of `windfall doctor` on the configuration file: what it says of each provider, never a secret."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import util

from windfall.errors import Misuse
from windfall.extras import for_job_files, install
from windfall.providers import provider_list
from windfall.providers.provider_list import ProviderEntry
from windfall.providers.provider_settings import ProviderSettings, credential_problem
from windfall.report.doctor_checks import Check, Verdict


def provider_checks(environ: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Check the configuration file; one result for the file, one for each provider in it."""
    try:
        with for_job_files():
            from windfall.spec import config_file  # noqa: PLC0415 - needs the packages of an extra
    except Misuse as error:
        yield Check("configuration", Verdict.OK, "not read here", str(error))
        return
    path = config_file.config_path(environ)
    if not os.path.lexists(path):
        yield Check("configuration", Verdict.OK, f"{path} does not exist: every provider has its defaults")
        return
    try:
        found = config_file.load(path)
    except Misuse as error:
        yield Check("configuration", Verdict.FAIL, str(error), "correct the file; until then no controller starts")
        return
    yield Check("configuration", Verdict.OK, f"{path}: {', '.join(found) or 'no provider'}")
    for entry in provider_list.PROVIDERS:
        if entry.name in found:
            yield _provider(entry, found[entry.name], environ)


def _provider(entry: ProviderEntry, settings: ProviderSettings, environ: Mapping[str, str]) -> Check:
    says = f"{entry.help}; {_words(settings)}"
    if entry.extra is not None and not _installed(entry.client):
        return Check(entry.name, Verdict.FAIL, says, f"its client library is missing: `{install(entry.extra)}`")
    reference = settings.credentials
    if reference is not None and (problem := credential_problem(reference, environ)):
        return Check(entry.name, Verdict.FAIL, says, problem)
    return Check(entry.name, Verdict.OK, says)


def _installed(module: str) -> bool:
    try:
        return not module or util.find_spec(module) is not None
    except ImportError:
        return False


def _words(settings: ProviderSettings) -> str:
    limits, image = settings.limits, settings.image
    parts = {
        "credentials from": settings.credentials,
        "region": settings.region,
        "container" if image is not None and image.container else "image": None if image is None else image.name,
        "network": settings.network,
        "agent from": None if settings.agent is None else settings.agent.url,
        "at most": " and ".join(
            [
                *([] if limits.machines is None else [f"{limits.machines} machines"]),
                *([] if limits.usd_per_hour is None else [f"{limits.usd_per_hour:g} USD/h"]),
            ]
        ),
    }
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value) or "no settings"
