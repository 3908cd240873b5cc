"""What a site's settings mean for jobs that can lose their machines, as `windfall doctor slurm` prints it.  Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from windfall.providers.slurm import slurm_tables
from windfall.providers.slurm.slurm_settings import SlurmSettings
from windfall.providers.slurm.slurm_site import Partition, Site
from windfall.structs import Struct
from windfall.units import count_text, duration_text

TIMES_ASKED = 3
"""Commands of one look at the site: configuration, partitions, nodes."""


class SiteFinding(Struct, frozen=True):
    """One finding.

    Attributes:
        name: what it is about.
        good: whether a job is as safe there as it can be.
        says: what was found.
        advice: what follows; empty if nothing.
    """

    name: str
    good: bool
    says: str
    advice: str = ""


def findings(site: Site, config: str, settings: SlurmSettings, site_every_s: float) -> Iterator[SiteFinding]:
    """Yield what a site's settings mean.

    Args:
        site: its partitions and nodes.
        config: what `scontrol show config` printed.
        settings: how the installation uses it.
        site_every_s: how often the site itself is looked at while machines are wanted [s].
    """
    values = slurm_tables.read_config(config)
    yield SiteFinding(
        "slurm", True, f"Slurm {values.get('SLURM_VERSION', '?')}, cluster {values.get('ClusterName', '?')}"
    )
    for name in sorted(settings.partitions - site.partitions.keys()):
        yield SiteFinding(f"partition {name}", False, "does not exist", f"choose from {', '.join(site.partitions)}")
    for partition in site.partitions.values():
        if not settings.partitions or partition.name in settings.partitions:
            yield _partition(partition, site)
    yield _accounting(site)
    yield _submissions(values)
    yield _polling(settings, site_every_s)


def _partition(partition: Partition, site: Site) -> SiteFinding:
    name = f"partition {partition.name}"
    usable = sum(kind.usable for kind in site.kinds if kind.partition == partition.name)
    limit = "no time limit" if math.isinf(partition.limit_s) else f"jobs end after {duration_text(partition.limit_s)}"
    room = f"{count_text(usable, 'usable node', 'usable nodes')}, {limit}"
    if not partition.up or not usable:
        return SiteFinding(name, False, f"{room}; it starts no jobs now", "machines ordered there wait")
    if not partition.preemptible:
        return SiteFinding(name, True, f"{room}, not preempted")
    if partition.grace_s > 0:
        says = (
            f"{room}, preempted with GraceTime={partition.grace_s:g}: TERM comes {partition.grace_s:g} s before the end"
        )
        return SiteFinding(name, True, says, "an emergency save must fit into that time")
    says = (
        f"{room}, preempted with GraceTime=0: nothing comes before the end but KillWait, the "
        f"{duration_text(site.rules.kill_wait_s)} from TERM to KILL"
    )
    advice = "do not count on emergency saves; save often (checkpoint.insure), or ask for a GraceTime"
    return SiteFinding(name, False, says, advice)


def _accounting(site: Site) -> SiteFinding:
    kept = duration_text(site.rules.keeps_ended_s)
    if site.rules.accounts:
        return SiteFinding(
            "accounting", True, f"sacct tells how jobs ended, also after the {kept} that the queue shows them"
        )
    says = f"there is none: a job that ends while no controller looks for {kept} (MinJobAge) is billed until it was last seen"
    return SiteFinding("accounting", True, says, "accounts and QOS are not checked either")


def _submissions(values: Mapping[str, str]) -> SiteFinding:
    most, sizes = values.get("MaxJobCount", "?"), values.get("MaxArraySize", "?")
    says = f"the cluster holds {most} jobs (MaxJobCount), an array {sizes} tasks (MaxArraySize)"
    return SiteFinding(
        "limits", True, says, "those of your account: `sacctmgr show assoc user=$USER format=maxsubmit,grptres`"
    )


def _polling(settings: SlurmSettings, site_every_s: float) -> SiteFinding:
    queue, site = 60.0 / settings.poll_s, 60.0 * TIMES_ASKED / site_every_s
    says = (
        f"one controller asks for its user's queue {queue:g} times a minute, and for the site {site:g} times while it wants "
        "machines; an order costs four calls, a release one"
    )
    return SiteFinding(
        "polling", settings.poll_s >= 5.0, says, "providers.slurm.poll in the configuration file changes it"
    )
