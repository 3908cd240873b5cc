"""A Slurm in virtual time: jobs that wait, start, are preempted, lost, requeued and forgotten, with the habits of a real one.

The habits were seen on a real Slurm 22.05 (`tests/slurm/test_slurm_habits.py`).  Its commands are in `toy_slurm_commands`;
this is the truth behind them.  A job's machines are played by a `MachineSeat`: as `node_start` they start once, from what they
find in the order's folder, hear TERM, read requests once a second, and end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from windfall.providers.slurm import slurm_states
from windfall.providers.slurm.node_start import lead_s, place_of
from windfall.simulation.virtual_time import WALL_START, Timeline

YEAR_S = 365 * 86400
"""Slurm plans a job without limit for a year."""
RECENT_S = 26.0
"""A slurmctld that is killed has not written down starts that are younger [s]."""
REPORT_S = 4.0
"""For so long after its start a slurmctld knows none of its nodes [s]."""
HOPELESS = ("PartitionConfig", "BadConstraints", "AccountNotAllowed", "InvalidQOS")
LIMITED = ("QOSMaxJobsPerUserLimit", "AssocGrpCpuLimit")
WAITING = ("Priority", "Resources", "ReqNodeNotAvail, UnavailableNodes:n7")


@dataclass(frozen=True)
class ToyPartition:
    """A partition: what a CPU-hour counts, whether it gives way, the grace and the time limit [s]."""

    name: str
    weight: float
    preemptible: bool = True
    grace_s: int = 0
    limit_s: int | None = None


@dataclass(frozen=True)
class ToySite:
    """How the cluster is set.

    Attributes:
        accounts: whether there is `sacct`.
        account_lag_s: how late it is at most [s].
        keeps_ended_s: MinJobAge [s].
        kill_wait_s: from TERM to KILL [s].
        allocate_s: a job that has room starts after a draw from this range [s].
        trouble: chance that a job waits for something that it has to wait for long, or for ever [1].
    """

    partitions: tuple[ToyPartition, ...]
    accounts: bool = True
    account_lag_s: float = 5.0
    keeps_ended_s: int = 300
    kill_wait_s: int = 5
    allocate_s: tuple[float, float] = (1.0, 10.0)
    trouble: float = 0.04

    def partition(self, name: str) -> ToyPartition:
        return next(one for one in self.partitions if one.name == name)


@dataclass
class Stretch:
    """A job from one start to its end, in whole seconds since 1970, as the accounts have it; `at` are virtual times."""

    started: int
    began_at: float
    ended: int | None = None
    state: str = "RUNNING"
    ended_at: float = 0.0


@dataclass
class ToyMachine:
    """A machine of a job: `index` of its files; alive while its processes are."""

    machine_id: str
    index: int
    alive: bool = False


@dataclass(eq=False)
class ToyJob:
    """A job, or one task of an array.

    Attributes:
        run: number of its start; what was planned for an earlier one is void.
        holds: why it cannot start; empty if it can.
        undone: a start of it was undone, by an admin or by a slurmctld that had not written it down.
        accepted_at, cleared_at: virtual times of its submission, and of the end of its last process.
    """

    number: int
    task: int | None
    name: str
    comment: str
    partition: ToyPartition
    nodes: int
    folder: str
    singleton: bool
    submitted: int
    accepted_at: float
    machines: list[ToyMachine] = field(default_factory=list)
    state: str = "PENDING"
    reason: str = "None"
    holds: str = ""
    started: int | None = None
    ends: int | None = None
    ended: int | None = None
    preempted_at: int | None = None
    restarts: int = 0
    run: int = 0
    placed: bool = False
    stretches: list[Stretch] = field(default_factory=list)
    lost_node: bool = False
    undone: bool = False
    cleared_at: float = 0.0

    @property
    def over(self) -> bool:
        return self.ended is not None

    @property
    def fenced(self) -> bool:
        """Whether its machines are over for Slurm, though some may still live: a lost node's, and those of a start undone."""
        return self.lost_node or self.undone

    @property
    def living(self) -> list[ToyMachine]:
        return [one for one in self.machines if one.alive]

    @property
    def shown(self) -> str:
        """Its state in the queue: what still has processes is completing, unless its node is lost."""
        return "COMPLETING" if self.over and self.living and not self.lost_node else self.state

    @property
    def job_id(self) -> str:
        return f"{self.number}" if self.task is None else f"{self.number}_{self.task}"


class MachineSeat(Protocol):
    """Plays the machines of jobs."""

    def submitted(self, jobs: list[ToyJob]) -> None:
        """A job, or the tasks of an array, are in the queue."""

    def machine_began(self, job: ToyJob, machine: ToyMachine, boot: bytes) -> None:
        """Its processes run."""

    def machine_told(self, machine: ToyMachine, left_s: float) -> None:
        """It is told that it ends, by TERM or by its notice service."""

    def machine_over(self, job: ToyJob, machine: ToyMachine) -> None:
        """Nothing of it runs any more."""

    def launched(self, job: ToyJob) -> None:
        """Its batch script runs."""

    def nothing_to_start(self, job: ToyJob) -> None:
        """It started, and what its machines start from is not there."""

    def happened(self, habit: str) -> None:
        """One of the habits occurred."""


class ToySlurm:
    """The cluster.

    Attributes:
        files: the shared folder, by path.
        calm: whether nothing goes wrong any more.
        room: how many jobs of a partition may run at once; None for any number.
        limited: partitions in which jobs wait for a limit of the QOS until it is calm.
    """

    def __init__(
        self,
        timeline: Timeline,
        site: ToySite,
        rng: random.Random,
        seat: MachineSeat,
        *,
        calm: Callable[[], bool] = lambda: False,
    ) -> None:
        self.timeline, self.site, self.rng, self.seat, self.calm = timeline, site, rng, seat, calm
        self.room: Callable[[str], int | None] = lambda _: None
        self.files: dict[str, bytes] = {}
        self.jobs: list[ToyJob] = []
        self.away_until = 0.0
        self._reported_at = 0.0
        self.limited: set[str] = set()
        self._next = 1

    def now(self) -> int:
        """The cluster's clock: whole seconds since 1970."""
        return int(WALL_START + self.timeline.time)

    @property
    def away(self) -> bool:
        return self.timeline.time < self.away_until

    @property
    def nodes_unknown(self) -> bool:
        """Whether no node has reported to a slurmctld that has just started: it refuses every job."""
        return not self.away and self.timeline.time < self._reported_at

    def living(self) -> Iterator[tuple[ToyJob, ToyMachine]]:
        """Machines with processes: the truth."""
        return ((job, one) for job in self.jobs for one in job.living)

    def find(self, machine_id: str) -> tuple[ToyJob, ToyMachine]:
        """A machine and its job."""
        return next((job, one) for job in self.jobs for one in job.machines if one.machine_id == machine_id)

    def queue(self) -> list[ToyJob]:
        """What `squeue` shows: what has not ended, or within MinJobAge."""
        now, keeps_s = self.now(), self.site.keeps_ended_s
        return [job for job in self.jobs if job.ended is None or now - job.ended <= keeps_s or job.shown != job.state]

    def _after(self, low_s: float, high_s: float, action: Callable[[], None]) -> None:
        self.timeline.at(self.rng.uniform(low_s, high_s), action)

    # ------------------------------------------------------------------------------------------------------- submission

    def submit(
        self, name: str, comment: str, partition: str, nodes: int, folder: str, tasks: int | None, *, singleton: bool
    ) -> int:
        """Accept a job, or an array of so many tasks; return its number."""
        number, count = self._next, tasks or 1
        self._next += count
        found = self.site.partition(partition)
        for task in range(count):
            which = None if tasks is None else task
            job = ToyJob(number, which, name, comment, found, nodes, folder, singleton, self.now(), self.timeline.time)
            job.machines = [self._machine(job, rank) for rank in range(nodes)]
            job.holds = self._trouble(job)
            self.jobs.append(job)
            self._after(*self.site.allocate_s, partial(self._try_start, job))
            self._after(0.5, 2.0, partial(self._give_reason, job))
        self.seat.submitted(self.jobs[-count:])
        return number

    def _machine(self, job: ToyJob, rank: int) -> ToyMachine:
        environ = {"SLURM_JOB_ID": str(job.number), "SLURM_PROCID": str(rank), "SLURM_JOB_NUM_NODES": str(job.nodes)}
        if job.task is not None:
            # Slurm gives each task a number of its own; the whole array has that of the first.
            raw = str(job.number + job.task)
            environ |= {
                "SLURM_JOB_ID": raw, "SLURM_ARRAY_JOB_ID": str(job.number), "SLURM_ARRAY_TASK_ID": str(job.task),
            }  # fmt: skip
        place = place_of(environ)
        return ToyMachine(place.machine_id, place.index)

    def _trouble(self, job: ToyJob) -> str:
        if job.partition.name in self.limited and not self.calm():
            return LIMITED[0]
        if self.calm() or self.rng.random() >= self.site.trouble:
            return ""
        return self.rng.choice([*HOPELESS, *LIMITED, *LIMITED])

    def _give_reason(self, job: ToyJob) -> None:
        if job.state == "PENDING" and job.reason == "None":
            job.reason = job.holds or self.rng.choice(WAITING)
            self.seat.happened(f"pending {job.reason.partition(',')[0]}")

    def _try_start(self, job: ToyJob) -> None:
        if job.state != "PENDING":
            return
        if job.holds in LIMITED and self.calm():
            job.holds = ""
        first = next(one for one in self.jobs if one.name == job.name and (not one.over or one.shown != one.state))
        if job.singleton and first.number < job.number:
            job.reason = "Dependency"
            self.seat.happened("pending Dependency")
        elif job.holds:
            job.reason = job.holds
        elif self.away or self.nodes_unknown or self._full(job):
            job.reason = "Resources"
        else:
            self._start(job)
            return
        self._after(2.0, 4.0, partial(self._try_start, job))

    def _full(self, job: ToyJob) -> bool:
        room = self.room(job.partition.name)
        running = (one for one in self.jobs if one.partition is job.partition and one.state == "RUNNING")
        return room is not None and sum(one.nodes for one in running) + job.nodes > room

    def _start(self, job: ToyJob) -> None:
        job.state, job.reason, job.started, job.placed, job.run = "RUNNING", "None", self.now(), True, job.run + 1
        job.ends = job.started + (job.partition.limit_s or YEAR_S)
        job.stretches.append(Stretch(job.started, self.timeline.time))
        self._after(0.1, 1.5, partial(self._launch, job, job.run))
        if job.partition.limit_s is not None:
            late_s = self.rng.uniform(0.0, 18.0)
            self.timeline.at(job.partition.limit_s + late_s, partial(self._limit, job, job.run))

    def _launch(self, job: ToyJob, run: int) -> None:
        """The batch script starts the step: what `node_start` does on each node."""
        if job.state != "RUNNING" or job.run != run:
            return
        self.seat.launched(job)
        if job.restarts:
            self.seat.happened("started again after a requeue")
            self._finish(job, "COMPLETED")
            return
        if any(self._request(job, one).get("release") for one in job.machines):
            self.seat.happened("released before its start")
            self._finish(job, "COMPLETED")
            return
        marks = [f"{job.folder}/started-{one.index}" for one in job.machines]
        if any(mark in self.files for mark in marks):
            self.seat.happened("started before")
            self._finish(job, "FAILED")
            return
        self.files |= dict.fromkeys(marks, b"")
        boots = [self.files.pop(f"{job.folder}/boot-{one.index}.json", None) for one in job.machines]
        if None in boots:
            self.seat.nothing_to_start(job)
            self._finish(job, "FAILED")
            return
        for machine, boot in zip(job.machines, boots, strict=True):
            assert boot is not None
            machine.alive = True
            self.seat.machine_began(job, machine, boot)
            self._after(0.0, 1.0, partial(self._read, job, machine))
        if job.partition.limit_s is not None:
            left_s = job.partition.limit_s - lead_s(job.partition.limit_s)
            self.timeline.at(max(left_s, 0.0), partial(self._tell_limit, job, run))

    # ---------------------------------------------------------------------------------------------------- what ends jobs

    def cancel(self, job: ToyJob) -> None:
        """`scancel`: a pending job is gone at once, a running one has its TERM."""
        if job.over:
            return
        if job.state == "RUNNING":
            self._finish(job, "CANCELLED")
            self._terminate(job)
            return
        job.started = self.now()
        self._finish(job, "CANCELLED")

    def preempt(self, job: ToyJob) -> None:
        """A job of a higher partition takes its node."""
        if job.state != "RUNNING" or job.preempted_at is not None:
            return
        grace_s = job.partition.grace_s
        self.seat.happened("preempted with a grace" if grace_s else "preempted without a grace")
        job.preempted_at = self.now()
        if not grace_s:
            self._finish(job, "PREEMPTED")
            self._terminate(job)
            return
        job.ends = job.preempted_at + grace_s
        for one in job.living:
            self.seat.machine_told(one, max(grace_s, self.site.kill_wait_s))
        # The grace ends late.
        self._after(grace_s, grace_s + 5.0, partial(self._taken, job, job.run))

    def _taken(self, job: ToyJob, run: int) -> None:
        if job.state == "RUNNING" and job.run == run:
            self._finish(job, "PREEMPTED")
            self._terminate(job)

    def exits(self, job: ToyJob, machine: ToyMachine) -> None:
        """A machine has stopped itself: with it, a second later, its whole step."""
        self._kill(job, machine)
        if job.state == "RUNNING":
            if job.preempted_at is not None:
                self.seat.happened("completed in the grace")
            self._after(0.0, 1.0, partial(self._step_over, job, job.run))

    def _step_over(self, job: ToyJob, run: int) -> None:
        if job.run != run:
            return
        for one in job.living:
            self._kill(job, one)
        if job.state == "RUNNING":
            self._finish(job, "COMPLETED")

    def lose_node(self, job: ToyJob, machine: ToyMachine, *, lives: bool) -> None:
        """A node no longer answers: truly gone, or only its slurmd, whose processes live on."""
        if job.state != "RUNNING":
            return
        if not lives:
            for one in job.living:
                self._kill(job, one)
        self._after(3.0, 30.0, partial(self._give_up, job, machine, job.run))

    def _give_up(self, job: ToyJob, machine: ToyMachine, run: int) -> None:
        if job.state != "RUNNING" or job.run != run:
            return
        for one in job.living:
            if one is not machine:
                self._kill(job, one)
        job.lost_node = machine.alive
        self.seat.happened("NODE_FAIL with living processes" if machine.alive else "NODE_FAIL")
        self._finish(job, "NODE_FAIL")

    def requeue(self, job: ToyJob) -> None:
        """An admin sets `Requeue=1` and requeues it: it waits, and would start again under its number."""
        if job.state != "RUNNING":
            return
        self.seat.happened("requeued by an admin")
        self._undo(job, "REQUEUED")
        job.restarts, job.reason = job.restarts + 1, "BeginTime"
        self._after(6.0, 120.0, partial(self._try_start, job))

    def crash(self, for_s: float) -> None:
        """slurmctld is killed: starts that it has not written down are undone and repeated, under the same numbers."""
        self.seat.happened("slurmctld killed")
        self.away_until = max(self.away_until, self.timeline.time + for_s)
        self._reported_at = self.away_until + REPORT_S
        for job in self.jobs:
            recent = job.started is not None and self.now() - job.started <= RECENT_S
            if job.state == "RUNNING" and recent and job.preempted_at is None and self.rng.random() < 0.8:
                run = job.run
                self.timeline.at(for_s, partial(self._start_again, job, run))

    def _start_again(self, job: ToyJob, run: int) -> None:
        if job.state != "RUNNING" or job.run != run:
            return
        self.seat.happened("started again under its number")
        living = job.living
        job.state, job.reason, job.started, job.placed, job.undone = "PENDING", "None", None, False, True
        job.stretches[-1].ended, job.stretches[-1].ended_at = self.now(), self.timeline.time
        self.timeline.at(4.0, lambda: [self._kill(job, one) for one in living if one.alive])
        self._after(4.5, 10.0, partial(self._try_start, job))

    def _undo(self, job: ToyJob, state: str) -> None:
        for one in job.living:
            self._kill(job, one)
        self._close(job, state)
        job.undone = True
        job.state, job.started, job.ends, job.placed, job.preempted_at = "PENDING", None, None, False, None

    def _limit(self, job: ToyJob, run: int) -> None:
        if job.state == "RUNNING" and job.run == run:
            self.seat.happened("time limit")
            self._finish(job, "TIMEOUT")
            self._terminate(job)

    def _tell_limit(self, job: ToyJob, run: int) -> None:
        if job.state == "RUNNING" and job.run == run and job.ends is not None:
            for one in job.living:
                self.seat.machine_told(one, max(job.ends - WALL_START - self.timeline.time, 0.0))

    def _finish(self, job: ToyJob, state: str) -> None:
        job.state, job.ended = state, self.now()
        self.seat.happened(f"machine {slurm_states.ENDS[state]}")
        job.ends = job.ended
        if job.preempted_at is not None:
            job.preempted_at = job.ended
        self._close(job, state)

    def _close(self, job: ToyJob, state: str) -> None:
        if job.stretches and job.stretches[-1].ended is None:
            last = job.stretches[-1]
            last.ended, last.state, last.ended_at = self.now(), state, self.timeline.time

    def _terminate(self, job: ToyJob) -> None:
        """TERM now, KILL a while later, late as ever."""
        wait_s = self.site.kill_wait_s
        for one in job.living:
            self.seat.machine_told(one, wait_s)
            self._after(wait_s, wait_s + 3.0, partial(self._kill, job, one))

    def _kill(self, job: ToyJob, machine: ToyMachine) -> None:
        if machine.alive:
            machine.alive, job.cleared_at = False, self.timeline.time
            self.seat.machine_over(job, machine)

    def slurmd_returns(self) -> None:
        """Daemons of lost nodes are back, and end what they find."""
        for job, machine in list(self.living()):
            if job.lost_node:
                self._kill(job, machine)

    # -------------------------------------------------------------------------------------------------------- the folder

    def written(self, path: str) -> None:
        """Somebody wrote a file: a living machine looks at its own once a second."""
        folder, _, name = path.rpartition("/")
        for job, machine in self.living():
            if job.folder == folder and name == f"request-{machine.index}.json":
                self._after(0.0, 1.0, partial(self._read, job, machine))

    def _request(self, job: ToyJob, machine: ToyMachine) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.files.get(f"{job.folder}/request-{machine.index}.json", b"{}"))
        return found

    def _read(self, job: ToyJob, machine: ToyMachine) -> None:
        found = self._request(job, machine)
        if not machine.alive:
            return
        if found.get("release"):
            if job.lost_node:
                self.seat.happened("a lost node's machine read its release")
            self.exits(job, machine)
        elif "preempt_at" in found:
            left_s = max(found["preempt_at"] - WALL_START - self.timeline.time, 0.0)
            self.seat.machine_told(machine, left_s)
            self.timeline.at(left_s, lambda: self.exits(job, machine) if machine.alive else None)
