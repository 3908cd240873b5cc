"""`windfall doctor slurm`: what the settings of the user's cluster mean."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from windfall.cli.locations import DATABASE, state_folder
from windfall.errors import WindfallError
from windfall.extras import for_job_files, for_jobs
from windfall.jobs import Job, Measurement, Resources, Work
from windfall.linux.clock import SystemClock
from windfall.policies.acquisition.ranking import HORIZON_S
from windfall.policies.planning.estimates import PREPARE_S, PlanNumberKey, estimate_from
from windfall.policies.planning.preemption_costs import preemption_costs
from windfall.providers.provider_settings import NO_SETTINGS
from windfall.providers.slurm import site_checks, slurm_previews, slurm_site
from windfall.providers.slurm.site_checks import Insurance
from windfall.providers.slurm.slurm_commands import SiteCommands, answer_of
from windfall.providers.slurm.slurm_provider import SITE_S, SlurmProvider
from windfall.providers.slurm.slurm_settings import SlurmSettings, read_settings
from windfall.providers.slurm.slurm_site import Partition, Site
from windfall.report.doctor_checks import Check, Verdict
from windfall.storage.object_stores import file_system_of, is_shared
from windfall.structs import replace
from windfall.terms import Seconds, Unit
from windfall.units import duration_text

SAVE_S = Seconds(20.0)
"""How long a save stalls the script, as the advice on saving assumes [s]: some gigabytes to a disk."""
_MEASURED = Measurement(
    "slurm", "", Unit.STEP, 1.0, Seconds(PREPARE_S), Seconds(0.0), 1, SAVE_S, upload_s=Seconds(0.0), commit_s=Seconds(1.0)
)  # fmt: skip
"""A job of one step a second, whose save is all in the stall."""


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
    known = slurm_previews.associations(commands, site)
    insurance = _insurance(site, installation)
    for one in site_checks.findings(site, config, settings, SITE_S, known=known, insurance=insurance):
        yield Check(one.name, Verdict.OK if one.good else Verdict.WARN, one.says, one.advice)
    if not settings.login:
        yield _folder(settings, frozenset(host for kind in site.kinds for host in kind.hosts))


def _insurance(site: Site, installation: Path) -> Callable[[Partition], Insurance | None]:
    """Return what saving costs in a partition: a plan's own estimate for a job whose save takes `SAVE_S`."""
    with for_jobs():
        from windfall.wiring_control import open_planner  # noqa: PLC0415 - it imports everything
    job = Job("doctor", "doctor", "", "", ("true",), (Resources(),), work=Work(HORIZON_S, Unit.STEP))
    with open_planner(installation, installation / DATABASE) as planner:
        inputs = planner.plan_inputs(job)
    offers = slurm_site.offers_of(site, frozenset(), 0.0, None, inputs.now)

    def insured(partition: Partition) -> Insurance | None:
        offer = next((one for one in offers if one.zone == partition.name), None)
        if offer is None:
            return None
        if partition.grace_s <= 0.0:
            offer = replace(offer, notice_s=Seconds(0.0))
        measured = replace(_MEASURED, machine_type=offer.machine_type)
        found = estimate_from(replace(inputs, measured=(measured,)), job, offer)
        costs = preemption_costs(found)
        if costs is None:
            return None
        mttp = next(one for one in found.numbers if one.name is PlanNumberKey.MTTP)
        every = duration_text(mttp.value or 0.0)
        rests = f"{mttp.basis} a preemption every {every}, and assumed {SAVE_S:g} s for a save"
        return Insurance(found.saving.interval_s, costs.share, costs.save_s / costs.work_s, found.fit.fits, rests)

    return insured


def _folder(settings: SlurmSettings, hosts: frozenset[str]) -> Check:
    """Check that the nodes can reach what machines start from."""
    kind = file_system_of(str(settings.folder))
    if is_shared(kind):
        return Check("folder", Verdict.OK, f"machines start from {settings.folder}, on {kind}")
    if hosts <= {socket.gethostname()}:
        return Check("folder", Verdict.OK, f"machines start from {settings.folder}; every node is this host")
    says = f"machines start from {settings.folder}, on {kind or 'a local disk'}, which other nodes do not reach"
    return Check("folder", Verdict.FAIL, says, "set providers.slurm.folder to a folder on a disk that they share")
