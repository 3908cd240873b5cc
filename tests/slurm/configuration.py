"""The configuration files of a Slurm on one host: loopback only, no systemd, no munged, no cgroups, quick turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CLUSTER = "windfall"
CONTROLLER_PORT, DATABASE_PORT, NODE_PORT = 0, 1, 2
CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=no\n"


@dataclass(frozen=True)
class ClusterSettings:
    """What a test may want otherwise; seconds are those of Slurm's own settings.

    `settings` replace or join the lines of slurm.conf, `low` and `high` those of the partition (`{"MaxTime": "10"}`), both in
    Slurm's own words. `partitions` are whole lines: further partitions.
    """

    nodes: int = 3
    grace_s: int = 6
    kill_wait_s: int = 5
    node_timeout_s: int = 10
    answer_limit_s: int = 5
    requeue_delay_s: int = 5
    gpus_per_node: int = 0
    accounting: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    low: Mapping[str, str] = field(default_factory=dict)
    high: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a cluster runs: its folder, first port, host's short name, user, and its plugins unless they are the system's."""

    folder: Path
    port: int
    host: str
    user: str
    plugins: Path | None


def node_names(nodes: int) -> list[str]:
    """`n0`, `n1`, ..., one a slurmd."""
    return [f"n{number}" for number in range(nodes)]


def slurm_conf(wanted: ClusterSettings, place: Place) -> str:
    """The text of slurm.conf; a requeued job waits for `cred_expire`, which Slurm counts as 5 s at least."""
    lines = {
        "ClusterName": CLUSTER,
        "SlurmctldHost": f"{place.host}(127.0.0.1)",
        "SlurmctldPort": str(place.port + CONTROLLER_PORT),
        "SlurmdPort": str(place.port + NODE_PORT),
        "SlurmUser": place.user,
        "SlurmdUser": place.user,
        "AuthType": "auth/none",
        "CredType": "cred/none",
        "AuthInfo": f"cred_expire={wanted.requeue_delay_s}",
        "CommunicationParameters": "NoCtldInAddrAny,NoInAddrAny",
        "StateSaveLocation": str(place.folder / "state"),
        "SlurmdSpoolDir": f"{place.folder}/spool/%n",
        "SlurmctldPidFile": f"{place.folder}/run/slurmctld.pid",
        "SlurmdPidFile": f"{place.folder}/run/%n.pid",
        "SlurmctldLogFile": f"{place.folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{place.folder}/log/%n.log",
        "SlurmctldDebug": "info",
        "MailProg": "/bin/true",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "ReturnToService": "2",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "sched_interval=1,sched_min_interval=0,bf_interval=1,defer_batch=0",
        "PriorityType": "priority/basic",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "JobRequeue": "1",
        "KillWait": str(wanted.kill_wait_s),
        "SlurmctldTimeout": "10",
        "SlurmdTimeout": str(wanted.node_timeout_s),
        "MessageTimeout": str(wanted.answer_limit_s),
        "InactiveLimit": "0",
        "MinJobAge": "300",
        "BatchStartTimeout": "5",
        **_accounting(wanted, place),
        **({"PluginDir": str(place.plugins)} if place.plugins else {}),
        **({"GresTypes": "gpu"} if wanted.gpus_per_node else {}),
        **wanted.settings,
    }
    return "\n".join([*(f"{name}={value}" for name, value in lines.items()), *_nodes(wanted, place), ""])


def _nodes(wanted: ClusterSettings, place: Place) -> list[str]:
    gpus = f" Gres=gpu:{wanted.gpus_per_node}" if wanted.gpus_per_node else ""
    every = {"Nodes": ",".join(node_names(wanted.nodes)), "MaxTime": "INFINITE", "State": "UP"}
    grace = str(wanted.grace_s)
    low = {**every, "Default": "YES", "PriorityTier": "1", "PreemptMode": "REQUEUE", "GraceTime": grace, **wanted.low}
    high = {**every, "Default": "NO", "PriorityTier": "10", "PreemptMode": "OFF", **wanted.high}
    return [
        *(
            f"NodeName={name} NodeHostname={place.host} NodeAddr=127.0.0.1 Port={place.port + NODE_PORT + number} "
            f"CPUs=1 RealMemory=512 State=UNKNOWN{gpus}"
            for number, name in enumerate(node_names(wanted.nodes))
        ),
        " ".join(("PartitionName=low", *(f"{name}={value}" for name, value in low.items()))),
        " ".join(("PartitionName=high", *(f"{name}={value}" for name, value in high.items()))),
        *wanted.partitions,
    ]


def _accounting(wanted: ClusterSettings, place: Place) -> dict[str, str]:
    if not wanted.accounting:
        return {"AccountingStorageType": "accounting_storage/none", "JobAcctGatherType": "jobacct_gather/none"}
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": str(place.port + DATABASE_PORT),
        "AccountingStoreFlags": "job_comment",
        "AccountingStorageEnforce": "associations,qos,limits",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=1",
    }


def slurmdbd_conf(place: Place) -> str:
    """The text of slurmdbd.conf, which has the password of a database that only a socket in `folder` reaches."""
    lines = {
        "AuthType": "auth/none",
        "DbdHost": place.host,
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(place.port + DATABASE_PORT),
        "SlurmUser": place.user,
        "LogFile": f"{place.folder}/log/slurmdbd.log",
        "PidFile": f"{place.folder}/run/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "slurm",
        "StoragePass": "slurm",
        "StorageLoc": "slurm",
        **({"PluginDir": str(place.plugins)} if place.plugins else {}),
    }
    return "\n".join([*(f"{name}={value}" for name, value in lines.items()), ""])
