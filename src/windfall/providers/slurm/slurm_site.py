"""A site's partitions and nodes as offers: one for each kind of node in each partition.  Pure, from what commands printed."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from windfall.market import Offer
from windfall.providers.slurm import slurm_tables
from windfall.structs import Struct
from windfall.terms import BlockValue, Reliability, Seconds, WallTime
from windfall.units import size_bytes

NAME = "slurm"
PARTITIONS = ("scontrol", "-o", "show", "partition")
CONFIG = ("scontrol", "show", "config")
_NODE_COLUMNS = ("Partition", "NodeList", "CPUs", "Memory", "Gres", "StateLong", "NodeHost")
NODES = ("sinfo", "--noheader", "-N", "-O", ",".join(f"{one}:|" for one in _NODE_COLUMNS))
_UNUSABLE = ("down", "drain", "draining", "drained", "fail", "failing", "future", "inval", "perfctrs")
"""Not among them: `unknown`, a node that a slurmctld has not heard of yet since it was started, seconds ago."""
MIB_PER_GIB = 1024.0
NO_BLOCK: Mapping[str, BlockValue] = MappingProxyType({})


class SiteRules(Struct, frozen=True):
    """What a site's configuration means for a buyer.

    Attributes:
        preempts: whether jobs can be preempted at all.
        kill_wait_s: from the TERM of an end to KILL [s].
        accounts: whether finished jobs are kept in a database (`sacct`).
        keeps_ended_s: how long the queue shows a finished job [s].
        weights_max: whether the largest weighted resource counts, and not their sum.
        enforces_limits: whether limits of associations and QOS hold jobs back.
        warns_batch: whether a batch shell's `--signal` also comes at the start of a preemption.
        memory_mib, memory_per_cpu_mib: what a job has that asks for no memory [MiB]; infinite for the whole node's.
    """

    preempts: bool
    kill_wait_s: float
    accounts: bool
    keeps_ended_s: float
    weights_max: bool = False
    enforces_limits: bool = False
    warns_batch: bool = False
    memory_mib: float = math.inf
    memory_per_cpu_mib: float = math.inf


class Partition(Struct, frozen=True):
    """A partition.

    Attributes:
        preemptible: whether its jobs give way to others.
        grace_s: from the start of a preemption to its end [s].
        limit_s: the longest time limit [s]; infinite for none.
        weights: TRESBillingWeights by resource: a number, and of which unit.
        up: whether it starts jobs.
        mode: its PreemptMode, by which its jobs give way.
        qos: whose limits hold for all its jobs; empty for none.
        memory_mib, memory_per_cpu_mib: as the site's, where the partition has its own [MiB].
    """

    name: str
    preemptible: bool
    grace_s: float
    limit_s: float
    weights: tuple[tuple[str, float], ...] = ()
    up: bool = True
    default: bool = False
    mode: str = ""
    qos: str = ""
    memory_mib: float = math.inf
    memory_per_cpu_mib: float = math.inf


class NodeKind(Struct, frozen=True):
    """Nodes of one shape in a partition.

    Attributes:
        accelerator: name as in a job file; None for none.
        usable: how many of them are not down or drained.
        hosts: where they are.
    """

    partition: str
    cpus: int
    memory_gib: float
    accelerator: str | None
    accelerators: int
    usable: int
    hosts: frozenset[str] = frozenset()

    @property
    def machine_type(self) -> str:
        """Its name: `64c512g-a100x8`."""
        gpus = f"-{(self.accelerator or '').lower()}x{self.accelerators}" if self.accelerators else ""
        return f"{self.cpus}c{self.memory_gib:.3g}g{gpus}"


class Site(Struct, frozen=True):
    """A site as it was last asked."""

    rules: SiteRules
    partitions: Mapping[str, Partition]
    kinds: tuple[NodeKind, ...]

    def grace_s(self, partition: str) -> float:
        """Return how long a job runs on after its TERM [s]: the partition's grace, or what every end has."""
        found = self.partitions.get(partition)
        return max(self.rules.kill_wait_s, found.grace_s if found is not None and found.preemptible else 0.0)

    def kind(self, partition: str, machine_type: str) -> NodeKind | None:
        """Return the nodes that an offer means."""
        return next((one for one in self.kinds if (one.partition, one.machine_type) == (partition, machine_type)), None)


def read_rules(config: str) -> SiteRules:
    """Return the rules in what `scontrol show config` printed."""
    values = slurm_tables.read_config(config)
    preempts = values.get("PreemptType", "preempt/none") not in {"preempt/none", "(null)"}
    return SiteRules(
        preempts=preempts,
        kill_wait_s=_seconds(values.get("KillWait", ""), 30.0),
        accounts=values.get("AccountingStorageType", "") == "accounting_storage/slurmdbd",
        keeps_ended_s=_seconds(values.get("MinJobAge", ""), 300.0),
        weights_max="MAX_TRES" in values.get("PriorityFlags", ""),
        enforces_limits="limits" in values.get("AccountingStorageEnforce", ""),
        warns_batch="preempt_send_user_signal" in values.get("SlurmctldParameters", ""),
        memory_mib=_mebibytes(values.get("DefMemPerNode", "")),
        memory_per_cpu_mib=_mebibytes(values.get("DefMemPerCPU", "")),
    )


def _mebibytes(text: str) -> float:
    return float(text) if text.isdigit() and int(text) > 0 else math.inf


def _seconds(text: str, otherwise: float) -> float:
    try:
        return slurm_tables.read_duration_s(text)
    except ValueError:
        return otherwise


def read_partitions(text: str, rules: SiteRules) -> dict[str, Partition]:
    """Return the partitions in what `scontrol -o show partition` printed."""
    found = {}
    for line in text.splitlines():
        values = slurm_tables.read_pairs(line)
        name = values.get("PartitionName")
        if name is None:
            continue
        mode = values.get("PreemptMode", "OFF")
        found[name] = Partition(
            name,
            preemptible=rules.preempts and mode != "OFF",
            grace_s=_seconds(values.get("GraceTime", "0"), 0.0),
            limit_s=_seconds(values.get("MaxTime", "UNLIMITED"), math.inf),
            weights=_weights(values.get("TRESBillingWeights", "")),
            up=values.get("State", "UP") == "UP",
            default=values.get("Default") == "YES",
            mode=mode,
            qos="" if values.get("QoS", "N/A") == "N/A" else values["QoS"],
            memory_mib=_mebibytes(values.get("DefMemPerNode", "")),
            memory_per_cpu_mib=_mebibytes(values.get("DefMemPerCPU", "")),
        )
    return found


_UNITS = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}


def _weights(text: str) -> tuple[tuple[str, float], ...]:
    """Read `CPU=1.0,Mem=0.25G,GRES/gpu=2.0`; the weight of memory becomes one per MiB, Slurm's own unit."""
    found = []
    for name, value, unit in re.findall(r"([A-Za-z/:0-9_]+)=([0-9.]+)([KMGT]?)", text):
        scale = _UNITS["M"] / _UNITS[unit] if name.lower() == "mem" and unit else 1.0
        found.append((name.lower(), float(value) * scale))
    return tuple(found)


def read_kinds(text: str) -> tuple[NodeKind, ...]:
    """Return the kinds of nodes in what `NODES` printed, in the order of the site's partitions."""
    groups: dict[tuple[str, int, float, str], list[tuple[str, str]]] = defaultdict(list)
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 7 or not cells[2].isdigit() or not cells[3].isdigit():
            continue
        partition, _, cpus, memory, gres, state, host = cells[:7]
        key = (partition.rstrip("*"), int(cpus), int(memory) / MIB_PER_GIB, gres)
        groups[key].append((state.rstrip("*~#!%$@^-+"), host))
    return tuple(_kind(*key, nodes) for key, nodes in groups.items())


def _kind(partition: str, cpus: int, memory_gib: float, gres: str, nodes: Iterable[tuple[str, str]]) -> NodeKind:
    name, count = read_gpus(gres)
    usable = [host for state, host in nodes if state not in _UNUSABLE]
    return NodeKind(partition, cpus, memory_gib, name, count, len(usable), frozenset(usable))


def has_unknown_nodes(text: str, partition: str) -> bool:
    """Return whether a partition has nodes that have not reported to Slurm yet, in what `NODES` printed."""
    rows = ([cell.strip() for cell in line.split("|")] for line in text.splitlines())
    return any(cells[0].rstrip("*") == partition and cells[5].startswith("unk") for cells in rows if len(cells) >= 6)


def read_gpus(gres: str) -> tuple[str | None, int]:
    """Return name and number of a node's GPUs: `gpu:a100:8(S:0-1)` has eight A100, `gpu:2` two that are called GPU."""
    found = re.search(r"\bgpu(?::([A-Za-z][^:,(]*))?(?::([0-9]+))?", gres)
    if found is None:
        return None, 0
    return (found[1] or "gpu").upper(), int(found[2] or 1)


UNIT = "billing units"
"""What the site counts in the hours of its machines."""
_PART = frozenset({"cpus", "memory", "gres"})


def asks_for_part(block: Mapping[str, BlockValue]) -> bool:
    """Return whether a job asks for a part of a node; otherwise it has whole ones."""
    return bool(_PART & block.keys())


def asked_amounts(
    kind: NodeKind, partition: Partition, rules: SiteRules, block: Mapping[str, BlockValue]
) -> dict[str, float]:
    """Return what one machine has of each resource that sites weigh: of a whole node, or of the part that is asked for.

    Slurm gives whole cores, and on some sites more CPUs for much memory: then the account counts more than is asked for.

    Args:
        kind: the node.
        partition: where.
        rules: the site's.
        block: the job's settings.

    Returns:
        CPUs, memory in MiB, nodes, GPUs, and GPUs by their name.
    """
    cpus, memory_mib = float(kind.cpus), kind.memory_gib * MIB_PER_GIB
    name, gpus = kind.accelerator, float(kind.accelerators)
    if asks_for_part(block):
        cpus = float(block.get("cpus", 1))
        each_mib = min(partition.memory_per_cpu_mib, rules.memory_per_cpu_mib)
        usual_mib = min(partition.memory_mib, rules.memory_mib, each_mib * cpus, memory_mib)
        memory_mib = size_bytes(str(block["memory"]), "memory") / 2**20 if "memory" in block else usual_mib
        gpus = float(read_gpus(str(block.get("gres", "")))[1])
    found = {"cpu": cpus, "mem": memory_mib, "node": 1.0, "gres/gpu": gpus}
    return found | ({f"gres/gpu:{name.lower()}": gpus} if name else {})


def asked_units(
    kind: NodeKind, partition: Partition, rules: SiteRules, block: Mapping[str, BlockValue] = NO_BLOCK
) -> float:
    """Return what one machine counts in the site's account: its weighted resources, or its CPUs where nothing is weighted.

    Source: slurm.conf(5), TRESBillingWeights and PriorityFlags=MAX_TRES.
    """
    amounts = asked_amounts(kind, partition, rules, block)
    if not partition.weights:
        return amounts["cpu"]
    parts = [weight * amounts.get(name, 0.0) for name, weight in partition.weights]
    return max(parts) if rules.weights_max else math.fsum(parts)


def offers_of(
    site: Site,
    wanted: frozenset[str],
    usd_per_unit_hour: float,
    promise_s: Seconds | None,
    now: WallTime,
    *,
    block: Mapping[str, BlockValue] = NO_BLOCK,
) -> tuple[Offer, ...]:
    """Return what a site offers.

    Args:
        site: as it was last asked.
        wanted: the partitions to offer; empty for all.
        usd_per_unit_hour: what one billing unit costs in an hour [USD]; 0 where hours are free.
        promise_s: how long a queued machine is waited for [s]; None for ever.
        now: the moment.
        block: the job's settings: a part of a node costs what the part counts.
    """
    found = []
    for kind in site.kinds:
        partition = site.partitions.get(kind.partition)
        if partition is None or not partition.up or not kind.usable or (wanted and partition.name not in wanted):
            continue
        price = usd_per_unit_hour * asked_units(kind, partition, site.rules, block)
        found.append(
            Offer(
                provider=NAME,
                machine_type=kind.machine_type,
                zone=partition.name,
                price_usd_per_hour=price,
                on_demand_usd_per_hour=price,
                reliability=Reliability.TRANSIENT if partition.preemptible else Reliability.RELIABLE,
                notice_s=Seconds(site.grace_s(partition.name) if partition.preemptible else 0.0),
                quoted_at=now,
                cpus=float(kind.cpus),
                memory_gib=kind.memory_gib,
                accelerator=kind.accelerator,
                accelerators=kind.accelerators,
                promise_s=promise_s,
            )
        )
    return tuple(found)
