"""What a site's settings mean for jobs that can lose their machines, as `windfall doctor slurm` prints it.  Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from windfall.providers.slurm import slurm_tables
from windfall.providers.slurm.slurm_limits import Associations, limits_for
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


class Insurance(Struct, frozen=True):
    """What saving at intervals costs on machines of a partition, by the saving policy.

    Attributes:
        interval_s: between two saves [s]; infinite for none.
        share: extra time for each second of work: saves, work done again, new machines.
        save_share: the saves' part of it.
        fits: whether an emergency save fits the notice; None if unknown.
        assumed: what all of it rests on, for the user.
    """

    interval_s: float
    share: float
    save_share: float
    fits: bool | None
    assumed: str


def findings(
    site: Site,
    config: str,
    settings: SlurmSettings,
    site_every_s: float,
    *,
    known: Associations,
    insurance: Callable[[Partition], Insurance | None],
) -> Iterator[SiteFinding]:
    """Yield what a site's settings mean.

    Args:
        site: its partitions and nodes.
        config: what `scontrol show config` printed.
        settings: how the installation uses it.
        site_every_s: how often the site itself is looked at while machines are wanted [s].
        known: the user's accounts and QOS.
        insurance: returns what saving costs in a partition that gives way; None if nothing helps there.
    """
    values = slurm_tables.read_config(config)
    yield SiteFinding(
        "slurm", True, f"Slurm {values.get('SLURM_VERSION', '?')}, cluster {values.get('ClusterName', '?')}"
    )
    for name in sorted(settings.partitions - site.partitions.keys()):
        yield SiteFinding(f"partition {name}", False, "does not exist", f"choose from {', '.join(site.partitions)}")
    for partition in site.partitions.values():
        if not settings.partitions or partition.name in settings.partitions:
            yield _partition(partition, site, insurance)
    yield _signals(site)
    yield _accounting(site)
    yield _submissions(values)
    if site.rules.accounts:
        yield from _own_limits(site, settings, known)
    yield _polling(settings, site_every_s)


def _partition(partition: Partition, site: Site, insurance: Callable[[Partition], Insurance | None]) -> SiteFinding:
    name = f"partition {partition.name}"
    usable = sum(kind.usable for kind in site.kinds if kind.partition == partition.name)
    limit = "no time limit" if math.isinf(partition.limit_s) else f"jobs end after {duration_text(partition.limit_s)}"
    room = f"{count_text(usable, 'usable node', 'usable nodes')}, {limit}"
    if not partition.up or not usable:
        return SiteFinding(name, False, f"{room}; it starts no jobs now", "machines ordered there wait")
    if not partition.preemptible:
        return SiteFinding(name, True, f"{room}, not preempted")
    room += f", PreemptMode={partition.mode}"
    if partition.mode.startswith(("SUSPEND", "GANG")):
        says = f"{room}: a job that gives way is stopped, keeps its memory and continues later, without a word to it"
        return SiteFinding(name, False, says, "Windfall takes it for a machine that does not answer, and replaces it")
    found = insurance(partition)
    saves = "" if found is None else _saves(found)
    if partition.grace_s > 0:
        says = f"{room}, GraceTime={partition.grace_s:g}: TERM comes {duration_text(partition.grace_s)} before the end{saves}"
        short = found is not None and found.fits is False
        return SiteFinding(
            name,
            not short,
            says,
            "such a save does not fit into that time" if short else "an emergency save must fit into that time",
        )
    says = (
        f"{room}, GraceTime=0: no emergency save possible but in KillWait, the {duration_text(site.rules.kill_wait_s)} from "
        f"TERM to KILL{saves}"
    )
    return SiteFinding(name, False, says, "do not count on emergency saves, or ask for a GraceTime")


def _saves(found: Insurance) -> str:
    if math.isinf(found.interval_s):
        return ""
    return (
        f"; saving every {duration_text(_rounded_s(found.interval_s))} costs {found.save_share:.1%} of the time, and with all "
        f"that is lost {found.share:.1%} ({found.assumed})"
    ).replace("%", " %")


def _rounded_s(interval_s: float) -> float:
    return max(round(interval_s / 60.0), 1) * 60.0 if interval_s >= 60.0 else interval_s


def _signals(site: Site) -> SiteFinding:
    wait = f"from TERM to KILL a job has KillWait={site.rules.kill_wait_s:g}"
    if site.rules.warns_batch:
        says = (
            f"{wait}; preempt_send_user_signal is set: `--signal=B:` also reaches batch shells at the start of a grace"
        )
    else:
        says = (
            f"{wait}; batch shells hear only the end of a grace (preempt_send_user_signal is not set), steps its start"
        )
    return SiteFinding("signals", True, says, "Windfall's machines are steps; your own batch scripts should use `srun`")


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
    return SiteFinding("limits", True, says)


_LIMIT_NAMES = (
    ("jobs", "jobs that run (MaxJobs)"),
    ("submit", "jobs in the queue (MaxSubmitJobs)"),
    ("node", "nodes (MaxTRES)"),
    ("cpu", "CPUs (MaxTRES)"),
    ("gres/gpu", "GPUs (MaxTRES)"),
)


def _own_limits(site: Site, settings: SlurmSettings, known: Associations) -> Iterator[SiteFinding]:
    """Yield the limits of the user's own jobs, for each set of partitions that has the same."""
    if not known.rows:
        says = "the accounts do not tell your associations: `sacctmgr show assoc user=$USER` may say why"
        yield SiteFinding("your limits", False, says)
        return
    yield SiteFinding("account", True, f"yours: {', '.join(known.accounts)}; QOS: {', '.join(known.qos) or 'none'}")
    if not site.rules.enforces_limits:
        yield SiteFinding("your limits", True, "AccountingStorageEnforce has no limits: nothing holds your jobs back")
        return
    groups: dict[str, list[str]] = {}
    for partition in site.partitions.values():
        most = limits_for(known, partition, settings, {}).most
        words = ", ".join(f"{most[key]:g} {text}" for key, text in _LIMIT_NAMES if key in most) or "none"
        groups.setdefault(words, []).append(partition.name)
    for words, names in groups.items():
        yield SiteFinding("your limits", True, f"in {', '.join(names)}: {words}")


def _polling(settings: SlurmSettings, site_every_s: float) -> SiteFinding:
    queue, site = 60.0 / settings.poll_s, 60.0 * TIMES_ASKED / site_every_s
    says = (
        f"one controller asks for its user's queue {queue:g} times a minute, and for the site {site:g} times while it wants "
        "machines; an order costs four calls, a release one"
    )
    return SiteFinding(
        "polling", settings.poll_s >= 5.0, says, "providers.slurm.poll in the configuration file changes it"
    )
