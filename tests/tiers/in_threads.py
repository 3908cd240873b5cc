"""A parameter server in tiers whose machines run their real loops in one process, and reach one another by function calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import numpy as np

from tests.support.simulated_store import MemoryStore
from windfall.core.tier_coordinator import TierCoordinator
from windfall.core.tier_decisions import first_layout
from windfall.errors import StoreUnreachable
from windfall.policies.layout.tiers import StageRatios, TierPlacement, place_tiers
from windfall.runtimes.machine_limits import UNLIMITED, MachineLimits
from windfall.runtimes.parameter_partition import Values
from windfall.runtimes.tier_coordinator_loop import TierCoordinatorLoop
from windfall.runtimes.tier_loop import TierLoop, Unreachable
from windfall.runtimes.tier_member import TierMember
from windfall.runtimes.tier_messages import Answer, BackUpChanges, PartCopy, PushRows, Question, ReadRows, RowsRead
from windfall.runtimes.tier_pace import TierPace
from windfall.runtimes.tier_program import TierProgram
from windfall.runtimes.tier_server import ServerSettings
from windfall.runtimes.tier_store import ObjectTierStore, StoredLog
from windfall.runtimes.turn_log import TurnLog
from windfall.terms import Bytes, WallTime
from windfall.tier_layout import CommittedClock, ServerLayout, StoredClock, TierMachine, TierReport
from windfall.tier_status import TierStatus

PARTS, DATA = 3, 4
SELDOM = TierPace(save_every=10_000)


class Links:
    """`TierLinks` of one machine."""

    def __init__(self, cluster: ThreadCluster, machine: str) -> None:
        self.cluster, self.machine = cluster, machine

    async def ask(self, machine: str, question: Question) -> Answer:
        """Ask a machine that is there."""
        asked = self.cluster.machines.get(machine)
        if asked is None or self.machine not in self.cluster.machines:
            raise Unreachable(machine)
        self.cluster.over_links[self.machine, machine] += 1
        return await asked.answer(question, self.machine)

    async def report(self, report: TierReport) -> tuple[ServerLayout, CommittedClock]:
        """Report, as long as the machine is there."""
        if self.machine not in self.cluster.machines:
            raise Unreachable("the coordinator")
        return self.cluster.coordinator.hear(report)

    async def newer(self, version: int) -> ServerLayout:
        """Wait for a layout, as long as the machine is there."""
        if self.machine not in self.cluster.machines:
            raise Unreachable("the coordinator")
        return await self.cluster.coordinator.newer(version)


class WatchedStore(MemoryStore):
    """A store that notes what is read, and may be away.

    Attributes:
        away: it cannot be reached for objects whose keys begin so; None: it can.
        failed: calls that it refused for that.
        damaged: objects whose keys begin so are read as garbage; None: none is.
        read: keys of what was read, or looked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.away: str | None = None
        self.damaged: str | None = None
        self.failed: Counter[str] = Counter()
        self.read: list[str] = []

    def _call(self, key: str) -> None:
        if self.away is not None and key.startswith(self.away):
            self.failed[key] += 1
            raise StoreUnreachable(f"no answer for {key}")

    def create(self, key: str, data: bytes) -> bool:
        """Create an object."""
        self._call(key)
        return super().create(key, data)

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self._call(key)
        super().put(key, data)

    def get(self, key: str) -> bytes | None:
        """Read an object, and note it."""
        self.read.append(key)
        self._call(key)
        damaged = self.damaged is not None and key.startswith(self.damaged)
        return b"no document" if damaged else super().get(key)

    def size(self, key: str) -> Bytes | None:
        """Look for an object, and note it."""
        self.read.append(key)
        return super().size(key)


class WatchedLoop(TierLoop):
    """A machine of which the cluster sees what it answers.

    Args:
        cluster: that sees it.
        member: its step functions.
    """

    def __init__(self, cluster: ThreadCluster, member: TierMember) -> None:
        links = Links(cluster, member.about.name)
        log = cluster.turn_logs[member.about.name] = TurnLog()
        super().__init__(
            member,
            links,
            cluster.program,
            cluster,
            slots=cluster.slots,
            pace=cluster.pace,
            limits=cluster.limits,
            turn_log=log,
        )
        self.cluster = cluster

    async def answer(self, question: Question, sender: str) -> Answer:
        """Answer, and count it."""
        self.cluster.asked += 1
        answer = await super().answer(question, sender)
        self.cluster.question_bytes[sender, self.member.about.name] += _bytes(question)
        self.cluster.answer_bytes[sender, self.member.about.name] += _bytes(answer)
        return answer


class ThreadCluster(ObjectTierStore):
    """Machines by name, as in `InStep`; it is its own store, and keeps all layouts.

    Attributes:
        asked: questions so far, each machine's to itself too.
        over_links: questions that went over links, by the machine that asks and the one that is asked.
        question_bytes, answer_bytes: rows and values in them, by the machine that asks and the one that is asked, so far.
        statuses: all that were written.
        objects: in the store.
        turn_logs: turns of each machine, by its name.
    """

    def __init__(
        self,
        names: list[str],
        program: TierProgram,
        *,
        clocks: int,
        staleness: int | None = 0,
        slots: int = 2,
        back_up_every: int = 1,
        pace: TierPace = SELDOM,
        limits: MachineLimits = UNLIMITED,
    ) -> None:
        self.slots, self.pace, self.limits = slots, pace, limits
        self.program, self.settings = program, ServerSettings(staleness, back_up_every, clocks)
        self.machines: dict[str, TierLoop] = {}
        self.turn_logs: dict[str, TurnLog] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.objects = WatchedStore()
        super().__init__(self.objects)
        self.asked = self.joined = 0
        self.statuses: list[TierStatus] = []
        self.over_links: Counter[tuple[str, str]] = Counter()
        self.question_bytes: Counter[tuple[str, str]] = Counter()
        self.answer_bytes: Counter[tuple[str, str]] = Counter()
        first = [_machine(name, order) for order, name in enumerate(names)]
        nowhere = TierPlacement(("",) * PARTS, ("",) * PARTS, ("",) * DATA)
        self.layouts = [first_layout(place_tiers(first, nowhere, StageRatios()))]
        self.coordinator = TierCoordinatorLoop(
            TierCoordinator(self.layouts[0], StageRatios(), pace.save_every, clocks),
            StoredLog(self, pace, lambda: WallTime(0.0), StoredClock()),
            asyncio.get_running_loop().time,
            lambda: str(len(self.layouts)),
            pace=pace,
        )
        super().write_layout(self.layouts[0])
        self.coordinator.start()
        for name in names:
            self.add(name)

    def write_layout(self, layout: ServerLayout) -> bool:
        """Append a layout, and keep it."""
        written = super().write_layout(layout)
        if written and layout != self.layouts[-1]:
            self.layouts.append(layout)
        return written

    def write_status(self, status: TierStatus) -> None:
        """Write a status, and keep it."""
        super().write_status(status)
        self.statuses.append(status)

    def add(self, name: str) -> None:
        """Let a machine join."""
        self.joined += 1
        member = TierMember(_machine(name, self.joined), self.layouts[-1], self.settings)
        self.machines[name] = WatchedLoop(self, member)
        self.tasks[name] = asyncio.get_running_loop().create_task(self.machines[name].run())

    def lose(self, *names: str) -> None:
        """Let machines vanish; to the coordinator they are silent from the same moment on, and so lost in one decision."""
        for name in names:
            self.tasks.pop(name).cancel()
            del self.machines[name]
        lost_at = self.coordinator._lost_at
        reported = lost_at.keys() & names
        lost_at.update(dict.fromkeys(reported, max((lost_at[name] for name in reported), default=0.0)))

    def values(self) -> Values:
        """Return the table as its backups have it."""
        table = next(iter(self.machines.values())).table
        parts = [
            self.machines[place.backup].member.server._backups[part].copy()
            for part, place in enumerate(self.layouts[-1].parts)
        ]
        return table.joined(np.arange(table.rows), parts)

    def committed(self) -> int:
        """Return the newest clock that all backups have."""
        return self.coordinator.coordinator.committed().clock

    async def until(self, clock: int, limit_s: float = 30.0) -> None:
        """Return once a clock is committed."""
        async with asyncio.timeout(limit_s):
            while self.committed() < clock:
                failed = [task for task in self.tasks.values() if task.done() and task.exception()]
                if failed:
                    await failed[0]
                await asyncio.sleep(0.01)


def played(
    names: list[str],
    program: TierProgram,
    story: Callable[[ThreadCluster], Awaitable[None]],
    *,
    clocks: int,
    staleness: int | None = 0,
    slots: int = 2,
    back_up_every: int = 1,
    pace: TierPace = SELDOM,
    limits: MachineLimits = UNLIMITED,
) -> ThreadCluster:
    """Run a cluster to its end, with a story meanwhile."""

    async def play() -> ThreadCluster:
        cluster = ThreadCluster(
            names, program, clocks=clocks, staleness=staleness, slots=slots, back_up_every=back_up_every, pace=pace,
            limits=limits,
        )  # fmt: skip
        deciding = asyncio.get_running_loop().create_task(cluster.coordinator.run())
        await story(cluster)
        await cluster.until(clocks)
        await deciding
        await asyncio.gather(*cluster.tasks.values())
        return cluster

    return asyncio.run(play())


def _machine(name: str, order: int) -> TierMachine:
    return TierMachine(name, name.startswith("r"), float(order))


def _bytes(message: Question | Answer) -> int:
    """Return the bytes of what a message is made for; parts that move have more."""
    if isinstance(message, ReadRows):
        return message.rows.nbytes
    if isinstance(message, (RowsRead, PartCopy)):
        return message.values.nbytes
    if isinstance(message, PushRows):
        return message.changes.rows.nbytes + message.changes.values.nbytes
    if isinstance(message, BackUpChanges):
        return message.changes.changed.rows.nbytes + message.changes.changed.values.nbytes
    return 0
