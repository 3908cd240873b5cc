"""`windfall doctor slurm`: what the settings of the user's cluster mean."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from windfall.cli.locations import state_folder
from windfall.errors import WindfallError
from windfall.extras import for_job_files
from windfall.linux.clock import SystemClock
from windfall.providers.provider_settings import NO_SETTINGS
from windfall.providers.slurm import site_checks, slurm_site
from windfall.providers.slurm.slurm_commands import SiteCommands, answer_of
from windfall.providers.slurm.slurm_provider import SITE_S, SlurmProvider
from windfall.providers.slurm.slurm_settings import SlurmSettings, read_settings
from windfall.report.doctor_checks import Check, Verdict
from windfall.storage.object_stores import file_system_of, is_shared


def slurm_checks(state: Path | None, environ: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Check the cluster that the configuration file leads to; nothing is submitted.

    Raises:
        Misuse: the configuration file is not valid.
    """
    with for_job_files():
        from windfall.spec import config_file  # noqa: PLC0415 - needs the packages of an extra
    configured = config_file.load(config_file.config_path(environ)).get("slurm", NO_SETTINGS)
    installation = state or state_folder()
    settings = read_settings(installation, configured)
    commands = SiteCommands(settings.login, environ)
    provider = SlurmProvider(installation, settings, SystemClock(), commands)
    try:
        site, config = provider.site(), answer_of(commands, slurm_site.CONFIG)
    except WindfallError as error:
        yield Check("slurm", Verdict.FAIL, str(error))
        return
    for one in site_checks.findings(site, config, settings, SITE_S):
        yield Check(one.name, Verdict.OK if one.good else Verdict.WARN, one.says, one.advice)
    if not settings.login:
        yield _folder(settings, frozenset(host for kind in site.kinds for host in kind.hosts))


def _folder(settings: SlurmSettings, hosts: frozenset[str]) -> Check:
    """Check that the nodes can reach what machines start from."""
    kind = file_system_of(str(settings.folder))
    if is_shared(kind):
        return Check("folder", Verdict.OK, f"machines start from {settings.folder}, on {kind}")
    if hosts <= {socket.gethostname()}:
        return Check("folder", Verdict.OK, f"machines start from {settings.folder}; every node is this host")
    says = f"machines start from {settings.folder}, on {kind or 'a local disk'}, which other nodes do not reach"
    return Check("folder", Verdict.FAIL, says, "set providers.slurm.folder to a folder on a disk that they share")
