"""A user's accounts, QOS and their limits, as `sacctmgr` tells them, and the quotas that follow.

Slurm takes each limit from the first that has it: the partition's QOS, the job's QOS, the user's association
(https://slurm.schedmd.com/resource_limits.html, "Hierarchy").  A machine is a job, or a node of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from windfall.market import Quota
from windfall.providers.slurm.slurm_commands import Commands, answer_of
from windfall.providers.slurm.slurm_settings import SlurmSettings
from windfall.providers.slurm.slurm_site import NodeKind, Partition, Site, asked_amounts
from windfall.structs import Struct
from windfall.terms import BlockValue

_QOS_COLUMNS = ("Name", "MaxJobsPU", "MaxSubmitPU", "MaxTRESPU")
_ASSOCIATION_COLUMNS = ("DefaultAccount", "Account", "Partition", "QOS", "DefaultQOS", "MaxJobs", "MaxSubmit")
QOS = ("sacctmgr", "--noheader", "--parsable2", "show", "qos", f"format={','.join(_QOS_COLUMNS)}")
ASSOCIATIONS = (
    "sh",
    "-c",
    f'exec sacctmgr --noheader --parsable2 show user "$(id -un)" withassoc format={",".join(_ASSOCIATION_COLUMNS)}',
)
"""On the host that has the commands, where the user may have another name."""
DEFAULT_QOS = "normal"
"""The QOS of a job that names none, whose association has no default."""
_JOBS, _SUBMITTED = "jobs", "submit"


class Limits(Struct, frozen=True):
    """The most that a user may have at once: `jobs`, `submit`, and resources (`node`, `cpu`, `gres/gpu`, `mem` in MiB)."""

    most: Mapping[str, float]


class Association(Struct, frozen=True):
    """One account of a user.

    Attributes:
        partition: the only one that it counts for; empty for all.
        qos: that may be used with it.
        default_qos: empty for none.
        default: whether it is the account of jobs that name none.
    """

    account: str
    partition: str
    qos: tuple[str, ...]
    default_qos: str
    limits: Limits
    default: bool = False


class Associations(Struct, frozen=True):
    """What the accounts know of a user.

    Attributes:
        rows: one for each account, or for each account in a partition.
        of_qos: the limits of each QOS for one user.
    """

    rows: tuple[Association, ...]
    of_qos: Mapping[str, Limits]

    @property
    def accounts(self) -> tuple[str, ...]:
        """The user's accounts."""
        return tuple(dict.fromkeys(row.account for row in self.rows))

    @property
    def qos(self) -> tuple[str, ...]:
        """The user's QOS with any account."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.qos))


NO_LIMITS = Limits({})
NO_ASSOCIATIONS = Associations((), {})


def read_associations(commands: Commands) -> Associations:
    """Ask for a user's accounts and QOS: two commands.

    Raises:
        ProviderDenied: the accounts refuse this user.
        ProviderUnreachable: they do not answer.
    """
    return associations_of(answer_of(commands, ASSOCIATIONS), answer_of(commands, QOS))


def associations_of(associations: str, qos: str) -> Associations:
    """Return what `ASSOCIATIONS` and `QOS` printed; a row that has other columns is left out."""
    rows = []
    for line in associations.splitlines():
        cells = line.split("|")
        if len(cells) == len(_ASSOCIATION_COLUMNS):
            usual, account, partition, names, qos_default, jobs, submitted = cells
            own = tuple(filter(None, names.split(",")))
            limits = _limits(jobs, submitted, "")
            rows.append(Association(account, partition, own, qos_default, limits, default=usual == account))
    of_qos = {}
    for line in qos.splitlines():
        cells = line.split("|")
        if len(cells) == len(_QOS_COLUMNS):
            of_qos[cells[0]] = _limits(*cells[1:])
    return Associations(tuple(rows), of_qos)


def _limits(jobs: str, submitted: str, resources: str) -> Limits:
    found = {}
    rows = [(_JOBS, jobs), (_SUBMITTED, submitted)]
    rows += [(name, text) for name, _, text in (one.partition("=") for one in resources.split(","))]
    for name, text in rows:
        if (amount := _amount(text)) is not None:
            found[name.lower()] = amount
    return Limits(found)


_UNITS: Mapping[str, float] = {"": 1.0, "K": 2.0**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}


def _amount(text: str) -> float | None:
    """Return a limit; memory in MiB, Slurm's own unit."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS and text[-1:] else (text, "")
    return float(number) * _UNITS[unit] if number.isdigit() else None


def limits_for(
    known: Associations, partition: Partition, settings: SlurmSettings, block: Mapping[str, BlockValue]
) -> Limits:
    """Return the limits of a user's jobs in a partition.

    Args:
        known: by the accounts.
        partition: where.
        settings: the installation's account and QOS.
        block: the job's own.
    """
    account, name = str(block.get("account", settings.account)), str(block.get("qos", settings.qos))
    rows = [one for one in known.rows if one.account == account or (not account and one.default)]
    of_partition = [one for one in rows if one.partition == partition.name]
    row = next(iter(of_partition or [one for one in rows if not one.partition]), None)
    qos = name or ("" if row is None else row.default_qos) or DEFAULT_QOS
    found: dict[str, float] = {}
    for limits in (
        known.of_qos.get(partition.qos, NO_LIMITS),
        known.of_qos.get(qos, NO_LIMITS),
        NO_LIMITS if row is None else row.limits,
    ):
        found = {**limits.most, **found}
    return Limits(found)


def machines_max(limits: Limits, amounts: Mapping[str, float]) -> int | None:
    """Return how many machines a user may have at once by these limits; None if none of them says.

    Args:
        limits: of the user's jobs.
        amounts: what one machine counts, by resource.
    """
    rooms = [limits.most[name] for name in (_JOBS, _SUBMITTED) if name in limits.most]
    rooms += [most // amounts[name] for name, most in limits.most.items() if amounts.get(name, 0.0) > 0.0]
    return None if not rooms else int(min(rooms))


def quotas_of(
    site: Site,
    known: Associations,
    settings: SlurmSettings,
    block: Mapping[str, BlockValue],
    used: Callable[[NodeKind], int],
) -> Iterator[Quota]:
    """Yield the quota of each kind of node in each partition that a limit of the user's bounds.

    Args:
        site: as it was last asked.
        known: the user's accounts and QOS.
        settings: the installation's.
        block: the job's settings.
        used: returns how many machines of a kind there are now.
    """
    if not site.rules.enforces_limits:
        return
    for kind in site.kinds:
        partition = site.partitions.get(kind.partition)
        if partition is None:
            continue
        amounts = asked_amounts(kind, partition, site.rules, block)
        most = machines_max(limits_for(known, partition, settings, block), amounts)
        if most is not None:
            yield Quota(kind.machine_type, partition.name, most, used(kind))
