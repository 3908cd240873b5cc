"""The machines and the coordinator of a parameter server in tiers as Ray actors: Ray places them and carries what they say.

Who is in, who is lost and what counts is not Ray's to say, but that of the coordinator and the layouts that it writes.
Actors have names within the run's Ray namespace; a machine that calls one that is not there has no answer, and asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from windfall.core.tier_coordinator import TierCoordinator
from windfall.core.tier_decisions import first_layout, taken_by_next_coordinator
from windfall.errors import LogDamaged, StoreError, WindfallError
from windfall.linux import random_names
from windfall.linux.crashes import keep_crash
from windfall.policies.layout.tiers import StageRatios, TierPlacement, place_tiers
from windfall.runtimes.machine_limits import UNLIMITED, MachineLimits
from windfall.runtimes.tier_coordinator_loop import TierCoordinatorLoop
from windfall.runtimes.tier_loop import TierLoop, Unreachable
from windfall.runtimes.tier_member import TierMember
from windfall.runtimes.tier_messages import Answer, Question
from windfall.runtimes.tier_pace import USUAL, TierPace, through_outages
from windfall.runtimes.tier_program import TierProgram
from windfall.runtimes.tier_script import ScriptProgram
from windfall.runtimes.tier_server import ServerSettings
from windfall.runtimes.tier_store import ObjectTierStore, StoredLog
from windfall.runtimes.turn_log import TurnLog
from windfall.storage.object_stores import open_store
from windfall.structs import Struct, replace
from windfall.terms import WallTime
from windfall.tier_layout import CommittedClock, ServerLayout, TierMachine, TierReport
from windfall.tier_status import TierStatus

COORDINATOR = "coordinator"
STOP_LOOK_S = 1.0
"""Between two looks at whether training is to rest."""
CALLS_MAX = 10_000
"""Calls that an actor may hold at once; each machine has a few under way."""


class TierTraining(Struct, frozen=True):
    """What all actors of a training are told.

    Attributes:
        store: URL of the run.
        settings: of the servers.
        parts, data: how many parts of the state and data partitions there are.
        ratios: above which the later stages begin.
        pace: how often all do what.
        loss: training ends once its loss is no larger; None: with its last clock alone.
        reliable: machines that cannot be preempted; the first layout awaits them, since no backup moves later.
    """

    store: str
    settings: ServerSettings
    parts: int
    data: int
    ratios: StageRatios = StageRatios()
    pace: TierPace = USUAL
    loss: float | None = None
    reliable: int = 1


class CoordinatorActor:
    """The coordinator: it takes over the run's log, and decides until training is over.

    Args:
        training: what is trained.
        machines: that the first layout names, beside reliable ones that introduce themselves; others join with their first
            report.
    """

    def __init__(self, training: TierTraining, machines: Sequence[TierMachine]) -> None:
        self._training, self._first = training, {machine.name: machine for machine in machines}
        self._introduced = asyncio.Event()
        self._store = ObjectTierStore(open_store(training.store))
        self._begun: asyncio.Future[TierCoordinatorLoop] | None = None

    async def _loop(self) -> TierCoordinatorLoop:
        """Return the loop, once the log is taken over: the first call begins with it."""
        if self._begun is None:
            self._begun = asyncio.ensure_future(self._taken_over_loop())
        return await asyncio.shield(self._begun)

    async def _taken_over_loop(self) -> TierCoordinatorLoop:
        training = self._training
        await self._await_reliable()
        layout, status = await through_outages(lambda: asyncio.to_thread(self._taken_over), training.pace)
        loop = TierCoordinatorLoop(
            TierCoordinator(layout, training.ratios, training.pace.save_every, training.settings.clocks, training.loss),
            StoredLog(self._store, training.pace, lambda: WallTime(time.time()), layout.checkpoint),
            lambda: asyncio.get_running_loop().time(),
            random_names.new_nonce,
            pace=training.pace,
            status=status,
        )
        loop.start()
        return loop

    async def introduce(self, machine: TierMachine) -> None:
        """Take in a reliable machine that the first layout is to name, if it is not written yet."""
        self._first[machine.name] = machine
        self._introduced.set()

    async def _await_reliable(self) -> None:
        """Before a first layout, wait until the reliable machines have introduced themselves, or had the time to."""
        training = self._training
        if await through_outages(lambda: asyncio.to_thread(self._store.newest_layout), training.pace) is not None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(training.pace.start_within_s):
                while sum(machine.reliable for machine in self._first.values()) < training.reliable:
                    self._introduced.clear()
                    await self._introduced.wait()

    def _last_status(self) -> TierStatus | None:
        try:
            return self._store.status()
        except LogDamaged:
            # Only counts are lost with it, and the next one takes its place.
            return None

    def _taken_over(self) -> tuple[ServerLayout, TierStatus | None]:
        """Write the first layout, or the one that says that this coordinator has started; return it, and the last status."""
        training, newest = self._training, None
        while True:
            newest = self._store.newest_layout(newest)
            if newest is None:
                nowhere = TierPlacement(("",) * training.parts, ("",) * training.parts, ("",) * training.data)
                layout = first_layout(place_tiers(list(self._first.values()), nowhere, training.ratios))
            else:
                layout = taken_by_next_coordinator(newest)
            layout = replace(layout, nonce=random_names.new_nonce())
            if self._store.write_layout(layout):
                return layout, self._last_status()

    async def run(self) -> None:
        """Decide until training is over.

        Raises:
            Superseded: another coordinator has started.
            NewerFormat, LogDamaged: the log cannot be read.
        """
        loop = await self._loop()
        watching = asyncio.create_task(self._watch_for_stop(loop.coordinator))
        try:
            await loop.run()
        finally:
            watching.cancel()
        coordinator = loop.coordinator
        if not coordinator.layout.is_done(self._training.settings.clocks):
            number = coordinator.layout.coordinator
            await through_outages(lambda: asyncio.to_thread(self._store.write_stopped, number), self._training.pace)

    async def _watch_for_stop(self, coordinator: TierCoordinator) -> None:
        while True:
            with contextlib.suppress(StoreError):
                if await asyncio.to_thread(self._store.stop_asked) >= coordinator.layout.coordinator:
                    coordinator.stop()
            await asyncio.sleep(STOP_LOOK_S)

    async def layout(self) -> ServerLayout:
        """Return the newest layout."""
        return (await self._loop()).coordinator.layout

    async def rest(self) -> None:
        """Let training rest after a checkpoint of the newest clock."""
        (await self._loop()).coordinator.stop()

    async def committed(self) -> CommittedClock:
        """Return the clock that all backups have."""
        return (await self._loop()).coordinator.committed()

    async def pid(self) -> int:
        """Return the number of its process."""
        return os.getpid()

    async def hear(self, report: TierReport) -> tuple[ServerLayout, CommittedClock]:
        """Take in a report and return what counts; raises as `TierCoordinatorLoop.hear`."""
        return (await self._loop()).hear(report)

    async def newer(self, version: int) -> ServerLayout:
        """Return the newest layout once it is newer than this version, or after a while whatever it is."""
        return await (await self._loop()).newer(version)


class RayLinks:
    """`TierLinks` of a machine, over Ray."""

    def __init__(self, machine: str, pace: TierPace) -> None:
        self._machine, self._answered_within_s = machine, pace.held_s + pace.answered_within_s
        self._actors: dict[str, Any] = {}

    async def ask(self, machine: str, question: Question) -> Answer:
        """Ask a machine's actor."""
        answer: Answer = await self._call(machine, "answer", question, self._machine)
        return answer

    async def report(self, report: TierReport) -> tuple[ServerLayout, CommittedClock]:
        """Report to the coordinator's actor."""
        answer: tuple[ServerLayout, CommittedClock] = await self._call(COORDINATOR, "hear", report)
        return answer

    async def newer(self, version: int) -> ServerLayout:
        """Ask the coordinator's actor."""
        layout: ServerLayout = await self._call(COORDINATOR, "newer", version)
        return layout

    async def _call(self, name: str, method: str, *arguments: object) -> Any:
        try:
            actor = self._actors.get(name)
            if actor is None:
                actor = self._actors[name] = await asyncio.to_thread(ray.get_actor, name)
            return await asyncio.wait_for(getattr(actor, method).remote(*arguments), self._answered_within_s)
        except (RayError, ValueError, TimeoutError) as error:
            # What the actor itself raised is an answer.
            if isinstance(error, WindfallError):
                raise
            # One of the same name may have started since, or waits for the name, which a handle holds.
            self._actors.pop(name, None)
            raise Unreachable(f"{name}: {error}") from None


class TierLook(Struct, frozen=True):
    """What a machine has heard of.

    Attributes:
        layout: the newest layout.
        committed: the newest clock.
        needed: the layout names this machine.
    """

    layout: ServerLayout
    committed: CommittedClock
    needed: bool


class MachineActor:
    """A machine: servers, backups and workers.

    Args:
        machine: what the coordinator should know of it.
        training: what is trained.
        layout: the newest.
        program: returns what computes.
        slots: data partitions that compute at once.
        limits: of a small machine on a large one.
        turn_log: where turns are noted; None: nowhere.
        crash_file: where Python writes what it was doing when a signal such as SIGSEGV ends this process; empty: nowhere.
    """

    def __init__(
        self,
        machine: TierMachine,
        training: TierTraining,
        layout: ServerLayout,
        program: Callable[[], TierProgram],
        slots: int,
        *,
        limits: MachineLimits = UNLIMITED,
        turn_log: TurnLog | None = None,
        crash_file: str = "",
    ) -> None:
        if crash_file:
            keep_crash(crash_file)
        self._machine, self._training, self._layout = machine, training, layout
        self._make, self._slots, self._limits, self._turn_log = program, slots, limits, turn_log
        self._begun = asyncio.Event()
        self._begun_loop: TierLoop | None = None

    async def run(self) -> None:
        """Serve and compute until training is over.

        Raises:
            Exception: what the program raised, when it was made or computed; as `TierLoop.run`.
        """
        # It may read data, or start a script, for minutes; what is wrong with it is an error of this call.
        program = await asyncio.to_thread(_warmed_up, self._make)
        training, slots = self._training, self._slots
        if isinstance(program, ScriptProgram):
            slots = program.loop_slots
        try:
            member = TierMember(self._machine, self._layout, training.settings)
            links, store = RayLinks(self._machine.name, training.pace), ObjectTierStore(open_store(training.store))
            self._begun_loop = TierLoop(
                member,
                links,
                program,
                store,
                slots=slots,
                pace=training.pace,
                limits=self._limits,
                turn_log=self._turn_log,
            )
            self._begun.set()
            await self._begun_loop.run()
        finally:
            if isinstance(program, ScriptProgram):
                await asyncio.to_thread(program.close)

    async def look(self, leaving: bool) -> TierLook | None:
        """Take in whether this machine is to leave, and return what it has heard of; None before it has begun."""
        if self._begun_loop is None:
            return None
        member = self._begun_loop.member
        member.leave(leaving)
        return TierLook(member.server.layout, member.committed, member.needed)

    async def answer(self, question: Question, sender: str) -> Answer:
        """Return the answer to another machine's question, once this one has begun; raises as `TierLoop.answer`."""
        await self._begun.wait()
        assert self._begun_loop is not None
        return await self._begun_loop.answer(question, sender)

    async def pid(self) -> int:
        """Return the number of its process."""
        return os.getpid()


def _warmed_up(make: Callable[[], TierProgram]) -> TierProgram:
    try:
        program = make()
        warm_up = getattr(program, "warm_up", None)
        if warm_up is not None:
            warm_up()
    except SystemExit as error:
        # It would end this actor, which a lost machine does too, and that is tried again for ever.
        raise RuntimeError(f"sys.exit({error.code!r})") from error
    return program
