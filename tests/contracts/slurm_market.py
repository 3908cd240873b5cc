"""A real Slurm as a world of the provider suite: what happens on it is done by Slurm, its daemons and kill."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.slurm.cluster import SlurmCluster, no_slurm
from tests.slurm.configuration import ClusterSettings
from windfall.errors import ProviderUnreachable
from windfall.linux import processes
from windfall.linux.clock import SystemClock
from windfall.market import Answer, BootSpec
from windfall.providers.slurm.machine_names import job_of
from windfall.providers.slurm.slurm_commands import CommandResult, SiteCommands
from windfall.providers.slurm.slurm_provider import SlurmProvider
from windfall.providers.slurm.slurm_settings import SlurmSettings
from windfall.terms import Seconds
from windfall.wire.notice_formats import AWS_ACTION_PATH, AWS_TOKEN_HEADER, AWS_TOKEN_PATH, AWS_TOKEN_TTL_HEADER
from windfall.wire.notice_formats import parse_aws_action as parse_action

if TYPE_CHECKING:
    from tests.contracts.providers import Setup
    from windfall.ports import Provider

PATIENCE_S = 90.0
NODES_MAX = 7
POLL_S = Seconds(0.2)
SECOND_S = 1.1
"""Slurm's times are whole seconds: what is shorter may have lasted none."""
USD_PER_UNIT_HOUR = 3600.0
ZONE = "PartitionName=zone-a Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=6 MaxTime=INFINITE State=UP"
"""A partition with the suite's name."""


class Line:
    """A line to the site's commands on which something may happen to each call."""

    present = True

    def __init__(self, world: SlurmWorld, fault: str = "") -> None:
        self._world, self._fault, self.where = world, fault, "this host"

    def run(self, argv: Sequence[str], data: bytes = b"") -> CommandResult:
        submits = argv[0] == "sbatch" and "--test-only" not in argv
        if self._world.refuses:
            return CommandResult(1, "", "slurm_load_jobs error: Access/permission denied\n")
        if self._fault == "unsent" or (self._fault == "half" and argv[0] == "squeue"):
            raise ProviderUnreachable("planted: the line is broken")
        result = self._world.commands.run(argv, data)
        if self._fault == "doubled" and submits:
            result = self._world.commands.run(argv, data)
        if self._fault == "lost" and submits:
            raise ProviderUnreachable("planted: the answer was lost")
        return result


class SlurmWorld:
    """See `providers.World`; the cluster starts with the first call that needs it."""

    def __init__(self, setup: Setup, folder: Path, stack: ExitStack) -> None:
        self.folder, self.clock, self.refuses = folder, SystemClock(), False
        self._stack = stack
        self._wanted = ClusterSettings(nodes=1 if setup.delay_s else min(setup.capacity, NODES_MAX), partitions=(ZONE,))
        self._blocked = setup.delay_s > 0
        self.provider = self.opened("")

    @cached_property
    def cluster(self) -> SlurmCluster:
        """The cluster; where machines are to wait, its only node is taken."""
        if reason := no_slurm():
            pytest.skip(reason)
        found = self._stack.enter_context(SlurmCluster(self._wanted))
        if self._blocked:
            job = found.submit("sleep 1000", "--partition=high")
            found.until(lambda: found.state(job) == "RUNNING", "the node is taken")
        return found

    @cached_property
    def commands(self) -> SiteCommands:
        return SiteCommands("", self.cluster.environment())

    def opened(self, fault: str) -> SlurmProvider:
        settings = SlurmSettings(
            folder=self.folder / "slurm",
            poll_s=POLL_S,
            usd_per_unit_hour=USD_PER_UNIT_HOUR,
            partitions=frozenset({"zone-a"}),
        )
        return SlurmProvider(self.folder, settings, self.clock, Line(self, fault))

    @contextmanager
    def meeting(self, fault: str) -> Iterator[Provider]:
        yield self.opened(fault)

    def half_listing(self) -> AbstractContextManager[Provider]:
        return self.meeting("half")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until, f"waited in vain: {what}"
            time.sleep(0.05)

    def pass_time(self, duration_s: float) -> None:
        self.clock.sleep(Seconds(max(duration_s, SECOND_S) if duration_s >= 0.5 else duration_s))

    @contextmanager
    def denied(self) -> Iterator[None]:
        self.refuses = True
        yield
        self.refuses = False

    def reopened(self) -> Provider:
        self.provider = self.opened("")
        return self.provider

    def boot(self, lasts_s: float | None = None) -> BootSpec:
        return BootSpec(("sleep", "1000" if lasts_s is None else str(max(lasts_s, SECOND_S))))

    def together(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(lambda call: call(), calls))

    def pids(self, machine_id: str) -> list[int]:
        """The processes of a machine on this cluster."""
        mark = f"SLURM_CONF={self.cluster.folder}/slurm.conf".encode()
        found = []
        for pid in processes.marked("WINDFALL_MACHINE_ID", machine_id):
            with suppress(FileNotFoundError, ProcessLookupError):  # it may have ended meanwhile
                found += [pid] * (mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        return found

    def lives(self, machine_id: str) -> bool:
        return bool(self.pids(machine_id))

    def breaks(self, machine_id: str) -> None:
        """Its first process is killed."""
        parent = Path(f"/proc/{self.pids(machine_id)[0]}/stat").read_text().rpartition(")")[2].split()[1]
        os.kill(int(parent), signal.SIGKILL)

    def fails_promise(self, machine_id: str) -> None:
        """An admin takes it out of the queue."""
        self.cluster.run("scancel", job_of(machine_id))

    def loses(self, machine_id: str) -> None:
        """The daemon of its node is killed; its processes live on."""
        self.cluster.kill(self.cluster.job_field(job_of(machine_id), "NodeList"))

    def rises(self, machine_id: str) -> str:
        raise NotImplementedError

    def withdraws(self, machine_id: str) -> bool:
        del machine_id
        return False

    def remains(self, owner: str) -> list[str]:
        names = [machine.machine_id for machine in self.provider.list(owner)]
        return [name for name in names if self.lives(name) or list(Path("/tmp").glob(f"wf-*-{name}"))]

    def notice_left_s(self, machine_id: str) -> float | None:
        environ = Path(f"/proc/{self.pids(machine_id)[0]}/environ").read_bytes().split(b"\0")
        (url,) = (one.partition(b"=")[2].decode() for one in environ if one.startswith(b"WINDFALL_METADATA_URL="))
        token = httpx.put(f"{url}{AWS_TOKEN_PATH}", headers={AWS_TOKEN_TTL_HEADER: "60"}, trust_env=False).text
        reply = httpx.get(f"{url}{AWS_ACTION_PATH}", headers={AWS_TOKEN_HEADER: token}, trust_env=False)
        deadline = parse_action(reply.content).deadline if reply.status_code == 200 else None
        return None if deadline is None else deadline - self.clock.wall_time()

    def metered_usd(self, owner: str) -> float:
        """By the times of Slurm's own record of each job."""
        total = 0.0
        for machine in self.provider.list(owner):
            shown = self.cluster.run("scontrol", "--oneliner", "show", "job", job_of(machine.machine_id))
            if machine.started is None or " NodeList=(null)" in shown:
                continue
            since, until = (
                datetime.fromisoformat(re.search(rf" {word}=(\S+)", shown)[1]) for word in ("StartTime", "EndTime")
            )  # type: ignore[index]
            total += (until - since).total_seconds() * machine.price_usd_per_hour / 3600.0
        return total


@contextmanager
def slurm(setup: Setup, folder: Path) -> Iterator[SlurmWorld]:
    """The world of a real Slurm."""
    with ExitStack() as stack:
        yield SlurmWorld(setup, folder, stack)
