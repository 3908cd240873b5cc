"""The toy Slurm's commands, text in and text out: sbatch, squeue, scancel, scontrol, sinfo, sacct, and `sh` for files."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from fnmatch import fnmatch

from tests.support.toy_slurm import ToyJob, ToySlurm
from windfall.providers.slurm import slurm_limits, slurm_site, slurm_submission, slurm_tables
from windfall.providers.slurm.slurm_commands import CommandResult

AWAY = "Unable to contact slurm controller (connect failure)"
TIMED_OUT = "Batch job submission failed: Socket timed out on send/recv operation"
DENIED = "Access/permission denied"
OVER_LIMIT = (
    "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)
UNKNOWN = "Requested node configuration is not available"
CPUS, MEMORY_MIB = 4, 16384
NODES = 8
LOST_ANSWER, DOUBLED = 0.04, 0.02
"""Chances that a submission is accepted and says that it timed out, or comes twice."""


class ToySlurmCommands:
    """What a shell on the login node does.

    Attributes:
        denied: Slurm refuses this user.
        full: partitions in which this account may submit nothing more.
        calls: how often each command ran.
    """

    where, present = "the login node", True

    def __init__(self, cluster: ToySlurm) -> None:
        self.cluster = cluster
        self.denied = False
        self.full: set[str] = set()
        self.calls: dict[str, int] = {}
        self._commands: dict[str, Callable[[Sequence[str], bytes], CommandResult]] = {
            "sbatch": self._sbatch, "squeue": self._squeue, "scancel": self._scancel, "scontrol": self._scontrol,
            "sinfo": self._sinfo, "sacct": self._sacct, "sacctmgr": self._sacctmgr,
            "sh": self._sh,
        }  # fmt: skip

    def run(self, argv: Sequence[str], data: bytes = b"") -> CommandResult:
        """Run a command."""
        name = argv[0]
        self.calls[name] = self.calls.get(name, 0) + 1
        if name not in {"sh", "sacct", "sacctmgr"}:
            if self.cluster.away:
                self.cluster.seat.happened("slurmctld away")
                return CommandResult(1, "", f"{name}: error: {AWAY}\n")
            if self.denied:
                return CommandResult(1, "", f"{name}: error: {DENIED}\n")
        return self._commands[name](argv, data)

    # ------------------------------------------------------------------------------------------------------- submission

    def _sbatch(self, argv: Sequence[str], data: bytes) -> CommandResult:
        given = dict(option.removeprefix("--").partition("=")[::2] for option in argv[1:])
        if given["partition"] in self.full:
            return CommandResult(1, "", f"sbatch: error: {OVER_LIMIT}\n")
        if self.cluster.nodes_unknown:
            self.cluster.seat.happened("sbatch before the nodes reported")
            said = "allocation failure" if "test-only" in given else "sbatch: error: Batch job submission failed"
            return CommandResult(1, "", f"{said}: {UNKNOWN}\n")
        if "test-only" in given:
            return CommandResult(
                0, "", "sbatch: Job 1 to start at 2027-01-15T08:00:00 using 4 processors on nodes n0\n"
            )
        cluster, rng = self.cluster, self.cluster.rng
        folder = shlex.split(data.decode().splitlines()[-1])[-1]
        tasks = int(given["array"].partition("-")[2]) + 1 if "array" in given else None
        if tasks is not None:
            cluster.seat.happened("an array")
        if int(given["nodes"]) > 1:
            cluster.seat.happened("a gang")

        def submit() -> int:
            return cluster.submit(
                given["job-name"],
                given["comment"],
                given["partition"],
                int(given["nodes"]),
                folder,
                tasks,
                singleton=given.get("dependency") == "singleton",
            )

        number = submit()
        chance = 1.0 if cluster.calm() else rng.random()
        if chance < LOST_ANSWER:
            cluster.seat.happened("sbatch timed out, and the job is there")
            return CommandResult(1, "", f"sbatch: error: {TIMED_OUT}\n")
        if chance < LOST_ANSWER + DOUBLED:
            cluster.seat.happened("sbatch came twice")
            submit()
        return CommandResult(0, f"{number}\n", "")

    def _scancel(self, argv: Sequence[str], data: bytes) -> CommandResult:
        del data
        given = dict(word.removeprefix("--").partition("=")[::2] for word in argv[1:] if word.startswith("--"))
        if "name" in given:
            for job in self.cluster.jobs:
                if job.name == given["name"] and job.state == given.get("state", job.state):
                    self.cluster.cancel(job)
            return CommandResult(0, "", "")
        errors = [self._cancel_one(word) for word in argv[1:]]
        said = "".join(f"scancel: error: Kill job error on job id {one}\n" for one in errors if one)
        return CommandResult(int(bool(said)), "", said)

    def _cancel_one(self, word: str) -> str:
        known = [job for job in self.cluster.queue() if word in {job.job_id, str(job.number)}]
        alive = [job for job in known if not job.over]
        for job in alive:
            self.cluster.cancel(job)
        if alive:
            return ""
        return f"{word}: " + ("Job/step already completing or completed" if known else "Invalid job id specified")

    # ---------------------------------------------------------------------------------------------------------- listings

    def _squeue(self, argv: Sequence[str], data: bytes) -> CommandResult:
        del data
        assert tuple(argv[: len(slurm_tables.QUEUE)]) == slurm_tables.QUEUE
        names = [word.removeprefix("--name=") for word in argv if word.startswith("--name=")]
        jobs = [job for job in self.cluster.queue() if not names or job.name in names]
        return CommandResult(0, "".join(self._row(job) for job in jobs), "")

    def _row(self, job: ToyJob) -> str:
        started, ends = _cell(job.started), _cell(job.ends)
        if job.state == "PENDING" and job.reason == "Resources":
            # Slurm says when it may start.
            started, ends = str(self.cluster.now() + 3600), str(self.cluster.now() + 7200)
        limit = "365-00:00:00" if job.partition.limit_s is None else f"{job.partition.limit_s // 60}:00"
        cells = (
            str(job.number), "N/A" if job.task is None else str(job.task), job.name, job.shown, job.reason,
            str(job.submitted), started, ends, _cell(job.preempted_at), limit,
            f"n[0-{job.nodes - 1}]" if job.placed else "", job.partition.name, str(job.restarts), job.comment,
        )  # fmt: skip
        return slurm_tables.SEPARATOR.join(cells) + slurm_tables.SEPARATOR + "\n"

    def _sacct(self, argv: Sequence[str], data: bytes) -> CommandResult:
        del data
        cluster = self.cluster
        numbers = set(argv[-1].removeprefix("--jobs=").split(","))
        lines, time = [], cluster.timeline.time
        for job in cluster.jobs:
            if str(job.number) not in numbers:
                continue
            for one in job.stretches:
                lag_s = 0.0 if cluster.calm() else cluster.rng.uniform(0.0, cluster.site.account_lag_s)
                if time < one.began_at + lag_s:
                    cluster.seat.happened("sacct lags")
                    continue
                ended = one.ended if one.ended is not None and time >= one.ended_at + lag_s else None
                if one.ended is not None and ended is None:
                    cluster.seat.happened("sacct lags")
                state = "RUNNING" if ended is None else one.state
                by = " by 1000" if state == "CANCELLED" else ""
                until = "Unknown" if ended is None else str(ended)
                lines.append(f"{job.job_id}|{job.name}|{state}{by}|{one.started}|{until}|{job.nodes}\n")
            if not job.stretches and job.over:
                lines.append(f"{job.job_id}|{job.name}|CANCELLED by 0|None|{job.ended}|{job.nodes}\n")
        return CommandResult(0, "".join(lines), "")

    # ---------------------------------------------------------------------------------------------------------- the site

    def _scontrol(self, argv: Sequence[str], data: bytes) -> CommandResult:
        del data
        site = self.cluster.site
        if tuple(argv) == slurm_site.CONFIG:
            storage = "slurmdbd" if site.accounts else "none"
            return CommandResult(
                0,
                f"AccountingStorageType   = accounting_storage/{storage}\nKillWait                = {site.kill_wait_s} sec\n"
                f"MinJobAge               = {site.keeps_ended_s} sec\nPreemptType             = preempt/partition_prio\n",
                "",
            )
        assert tuple(argv) == slurm_site.PARTITIONS
        lines = [
            f"PartitionName={one.name} GraceTime={one.grace_s} State=UP "
            f"MaxTime={'UNLIMITED' if one.limit_s is None else f'00:{one.limit_s // 60:02d}:00'} "
            f"PreemptMode={'REQUEUE' if one.preemptible else 'OFF'} TRESBillingWeights=CPU={one.weight}\n"
            for one in site.partitions
        ]
        return CommandResult(0, "".join(lines), "")

    def _sacctmgr(self, argv: Sequence[str], data: bytes) -> CommandResult:
        del data
        assert tuple(argv) == slurm_limits.QOS
        return CommandResult(0, "", "")

    def _sinfo(self, argv: Sequence[str], data: bytes) -> CommandResult:
        del data
        assert tuple(argv) == slurm_site.NODES
        state = "unk" if self.cluster.nodes_unknown else "idle"
        lines = [
            f"{one.name}|n{number}|{CPUS}|{MEMORY_MIB}|(null)|{state}|n{number}|\n"
            for one in self.cluster.site.partitions
            for number in range(NODES)
        ]
        return CommandResult(0, "".join(lines), "")

    # -------------------------------------------------------------------------------------------------------- the folder

    def _sh(self, argv: Sequence[str], data: bytes) -> CommandResult:
        """The three scripts of `slurm_submission`, on files in memory; and the user's limits, of which there are none."""
        if tuple(argv) == slurm_limits.ASSOCIATIONS:
            return CommandResult(0, "", "")
        script, folder, names = argv[2], argv[4], argv[5:]
        files = self.cluster.files
        if script == slurm_submission._WIPE:
            patterns = [f"{folder}/{word}" for word in script.partition("rm -f ")[2].partition(";")[0].split()]
            for path in [path for path in files if any(fnmatch(path, pattern) for pattern in patterns)]:
                del files[path]
            return CommandResult(0, "", "")
        assert script in {slurm_submission._WRITE, slurm_submission._REQUEST}
        if script == slurm_submission._REQUEST and f"{folder}/" not in files:
            return CommandResult(0, "", "")
        files[f"{folder}/"] = b""
        for name in names:
            files[f"{folder}/{name}"] = data
            self.cluster.written(f"{folder}/{name}")
        return CommandResult(0, "", "")


def _cell(moment: int | None) -> str:
    return "N/A" if moment is None else str(moment)
