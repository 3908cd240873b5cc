"""Who looks on while a training runs on a cluster: at the engine's own listing, and at the processes of the host.

It knows nothing of Windfall's books: a machine is a job that Slurm calls running, and a tree of processes on the host.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.slurm.cluster import SlurmCluster

LOOK_S = 0.2
START = "windfall.providers.slurm.node_start"
OURS = (
    "windfall.providers.slurm",
    "windfall.agent",
    "windfall.cli.agent_process",
    "windfall.cli.node_agent",
    "noted_steps",
)


@dataclass
class Seen:
    """What was seen so far.

    Attributes:
        queue: of each look at the queue, when, and number and start of each running job.
        machines: of each look at the host, when, and the jobs' numbers and outermost processes of the machines that live.
    """

    queue: list[tuple[float, frozenset[tuple[str, str]]]] = field(default_factory=list)
    machines: list[tuple[float, frozenset[tuple[str, int]]]] = field(default_factory=list)

    def second_starts(self) -> set[str]:
        """The jobs that Slurm started twice."""
        starts: dict[str, set[str]] = {}
        for _, jobs in self.queue:
            for number, start in jobs:
                starts.setdefault(number, set()).add(start)
        return {number for number, found in starts.items() if len(found) > 1}

    def crowds(self) -> list[frozenset[str]]:
        """The jobs of each look at which more than one ran; one that starts a second time is no machine."""
        first: dict[str, str] = {}
        found = []
        for _, jobs in self.queue:
            running = frozenset(number for number, start in jobs if first.setdefault(number, start) == start)
            if len(running) > 1:
                found.append(running)
        return found

    def together_s(self) -> float:
        """For how long the processes of more than one machine lived at once."""
        total = 0.0
        for (since, those), (until, _) in itertools.pairwise(self.machines):
            if len(those) > 1:
                total += until - since
        return total


def machines(cluster: SlurmCluster) -> frozenset[tuple[str, int]]:
    """Number of the job and outermost process of each machine that lives on this host."""
    starts = {pid for pid, line in cluster.processes().items() if f"-m {START}" in line and "srun" not in line}
    found = set()
    for pid in starts:
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent not in starts:
            number = next(one for one in environ if one.startswith(b"SLURM_JOB_ID="))
            found.add((number.partition(b"=")[2].decode(), pid))
    return frozenset(found)


def remains(cluster: SlurmCluster) -> dict[int, str]:
    """The processes of machines that live."""
    return {pid: line for pid, line in cluster.processes().items() if any(word in line for word in OURS)}


@contextmanager
def watched(cluster: SlurmCluster) -> Iterator[Seen]:
    """Look on in the background until the block ends."""
    seen, over = Seen(), threading.Event()
    asks = ("env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--states=RUNNING", "--format=%i %S")

    def look_at_queue() -> None:
        while not over.wait(LOOK_S):
            told = cluster.call(*asks)
            if told.returncode == 0:
                rows = (line.split() for line in told.stdout.splitlines())
                seen.queue.append((time.time(), frozenset((number, start) for number, start in rows)))

    def look_at_host() -> None:
        while not over.wait(LOOK_S):
            seen.machines.append((time.time(), machines(cluster)))

    threads = [threading.Thread(target=one) for one in (look_at_queue, look_at_host)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join()
