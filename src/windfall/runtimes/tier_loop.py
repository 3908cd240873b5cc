"""The loop of one machine of a parameter server in tiers: it carries questions, lets programs compute, and reports.

All of the machine's state is in the step functions of `tier_member`, and only this loop's thread calls them; programs compute
in threads of their own.  A question that must wait is held where it is answered, so that a worker that is ahead asks once for
each wait, not over and over.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np

from windfall.errors import WindfallError
from windfall.runtimes.machine_limits import (
    UNLIMITED,
    KernelTimes,
    LimitedLink,
    MachineLimits,
    SlowedKernel,
    rest_of_turn,
)
from windfall.runtimes.parameter_partition import PushAnswer, PushId, Rows, Values
from windfall.runtimes.table_rows import TableRows
from windfall.runtimes.tier_counts import payload_bytes
from windfall.runtimes.tier_member import TierMember
from windfall.runtimes.tier_messages import (
    Answer,
    BackUpChanges,
    CopyPart,
    PushRows,
    PushTaken,
    Question,
    ReadRows,
    RefusalReason,
    Refused,
    SealPush,
    TakeOverPart,
)
from windfall.runtimes.tier_pace import USUAL, TierPace, through_outages
from windfall.runtimes.tier_program import PushedRows, TierProgram, TurnGivenUp
from windfall.runtimes.turn_log import TurnLog
from windfall.tier_layout import CommittedClock, ServerLayout, StoredClock, TierReport

REPORTS_MAX = 10
"""Reports that a machine makes at most in the usual time between two."""


class Unreachable(WindfallError):
    """No answer came."""


class TierLinks(Protocol):
    """How a machine reaches the others."""

    async def ask(self, machine: str, question: Question) -> Answer:
        """Return another machine's answer; a machine answers its own questions itself.

        Raises:
            Unreachable: none came.
            Misuse: the question is one that no machine may answer, for example a push that is not finite.
        """
        ...

    async def report(self, report: TierReport) -> tuple[ServerLayout, CommittedClock]:
        """Return what the coordinator says to a report.

        Raises:
            Unreachable: it said nothing.
        """
        ...

    async def newer(self, version: int) -> ServerLayout:
        """Return the newest layout once it is newer than this version, or after a while whatever it is.

        Raises:
            Unreachable: the coordinator said nothing.
        """
        ...


class TierStore(Protocol):
    """The store, as backups need it."""

    def load(self, part: int, stored: StoredClock) -> Values:
        """Return a part of a checkpoint."""
        ...

    def save(self, part: int, stored: StoredClock, values: Values) -> None:
        """Write a part of a checkpoint."""
        ...


class TierLoop:
    """A machine.

    Args:
        member: its step functions.
        links: how it reaches the others.
        program: what it trains.
        store: where checkpoints are.
        slots: data partitions that compute at once.
        pace: how often it does what.
        limits: of a small machine on a large one.
        turn_log: where turns are noted; None: nowhere.
    """

    def __init__(
        self,
        member: TierMember,
        links: TierLinks,
        program: TierProgram,
        store: TierStore,
        *,
        slots: int = 1,
        pace: TierPace = USUAL,
        limits: MachineLimits = UNLIMITED,
        turn_log: TurnLog | None = None,
    ) -> None:
        self.limits, self._link, self._turn_log = limits, LimitedLink(limits.link_bytes_per_s), turn_log
        self.kernel_times = KernelTimes()
        self.member, self.links, self.program, self.store, self.pace = member, links, program, store, pace
        self.table = TableRows(program.rows, len(member.server.layout.parts))
        self.over = self._ended = False
        self._failure: Exception | None = None
        self._loaded: dict[int, Any] = {}
        self._busy: set[tuple[object, ...]] = set()
        self._waiting: set[asyncio.Future[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        # One for each data partition: one that waits for others must not keep these from a thread.
        threads = len(member.server.layout.data)
        self._computing = ThreadPoolExecutor(threads, thread_name_prefix=f"windfall-compute-{member.about.name}")
        self.slots = threading.Semaphore(slots)
        self._storing = ThreadPoolExecutor(1, thread_name_prefix="windfall-store")

    async def run(self) -> None:
        """Do all that is due until training is over.

        Raises:
            Exception: what the program raised.
        """
        self._begin(("report",), self._report)
        self._begin(("listen",), self._listen)
        try:
            while not self.over:
                if self._failure is not None:
                    raise self._failure
                self._do_what_is_due()
                await self._change(self.pace.report_s)
        finally:
            self._ended = True
            for task in self._tasks:
                task.cancel()
            self._computing.shutdown(wait=False, cancel_futures=True)
            self._storing.shutdown(wait=False, cancel_futures=True)

    async def answer(self, question: Question, sender: str) -> Answer:
        """Return the answer to another machine's question, once there is one, or after a while "later".

        Raises:
            Misuse: a push that no part may keep.
        """
        if sender == self.member.about.name:
            return await self._answered(question, sender)
        await self._link.receive(payload_bytes(question))
        answer = await self._answered(question, sender)
        await self._link.send(payload_bytes(answer))
        return answer

    async def _answered(self, question: Question, sender: str) -> Answer:
        held_until = asyncio.get_running_loop().time() + self.pace.held_s
        while True:
            answer = self.member.server.answer(question, sender)
            left_s = held_until - asyncio.get_running_loop().time()
            if not _is_later(answer) or left_s <= 0:
                if not isinstance(question, ReadRows):
                    self._changed()
                return answer
            await self._change(left_s)

    # ------------------------------------------------------------------------------------------------------ changes wake all

    def _changed(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _change(self, timeout_s: float) -> None:
        """Return once something has changed, or after a while."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        await asyncio.wait((future,), timeout=timeout_s)
        self._waiting.discard(future)

    def _begin(self, key: tuple[object, ...], work: Callable[[], Any]) -> None:
        """Begin what is not under way yet."""
        if key in self._busy:
            return
        self._busy.add(key)
        task = asyncio.get_running_loop().create_task(self._finish(key, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, key: tuple[object, ...], work: Callable[[], Any]) -> None:
        try:
            await work()
        except Exception as error:
            self._failure = self._failure or error
        finally:
            self._busy.discard(key)
            self._changed()

    # --------------------------------------------------------------------------------------------------------- what is due

    def _do_what_is_due(self) -> None:
        member = self.member
        backing_up = [part for part in range(self.table.parts) if ("back up", part) in self._busy]
        for target, question in member.questions(backing_up):
            self._begin(_name(question), partial(self._ask, target, question))
        for push in member.worker.turns():
            if push.data in self._loaded:
                self._begin(("compute", push), partial(self._compute, push))
        for data in member.worker.to_load():
            self._begin(("load", data), partial(self._load_data, data))
        for part, stored in member.server.to_load().items():
            self._begin(("read", part), partial(self._read, part, stored))
        for part, (stored, values) in member.server.to_save().items():
            self._begin(("save", part), partial(self._save, part, stored, values))

    async def _ask(self, target: str, question: Question) -> None:
        here = target == self.member.about.name
        try:
            answer = await (self.answer(question, target) if here else self._asked(target, question))
        except Unreachable:
            await asyncio.sleep(self.pace.retry_s)
            return
        self.member.counts.message(payload_bytes(answer), payload_bytes(question), here=here)
        turns = self.member.counts.now.turns
        self.member.take(question, answer)
        if self._turn_log is not None and self.member.counts.now.turns > turns:
            self._note_turn(self._turn_log, question)
        if isinstance(answer, Refused) or (isinstance(answer, PushTaken) and answer.answer is PushAnswer.EARLY):
            await asyncio.sleep(self.pace.retry_s)

    def _note_turn(self, log: TurnLog, question: Question) -> None:
        assert isinstance(question, SealPush), "a turn ends with its last seal"
        push, now_s = question.push, asyncio.get_running_loop().time()
        clock, loss = self.member.worker.losses().get(push.data, (0, 0.0))
        log.add(push.data, now_s, self.member.counts.now, loss if clock == push.clock else None)

    async def _asked(self, target: str, question: Question) -> Answer:
        await self._link.send(payload_bytes(question))
        answer = await self.links.ask(target, question)
        await self._link.receive(payload_bytes(answer))
        return answer

    async def _report(self) -> None:
        while True:
            report = self.member.report()
            try:
                layout, committed = await self.links.report(report)
            except Unreachable:
                await asyncio.sleep(self.pace.report_s)
                continue
            self.member.hear(layout, committed)
            self.over = committed.over
            self._changed()
            await self._until_next_report(report)

    async def _until_next_report(self, last: TierReport) -> None:
        """Return once there is something to report on which others may wait, or after the usual while."""
        until = asyncio.get_running_loop().time() + self.pace.report_s
        await asyncio.sleep(self.pace.report_s / REPORTS_MAX)
        while (left_s := until - asyncio.get_running_loop().time()) > 0.0:
            if self.member.report().decisive != last.decisive:
                return
            await self._change(left_s)

    async def _listen(self) -> None:
        """Hear of each layout at once: data partitions and parts that change hands stand still until all have."""
        while True:
            try:
                layout = await self.links.newer(self.member.server.layout.version)
            except Unreachable:
                await asyncio.sleep(self.pace.report_s)
                continue
            if layout.version > self.member.server.layout.version:
                self.member.hear(layout, self.member.committed)
                self._changed()

    async def _stored(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Return what a call of the store returns, in the store's own thread; an outage of the store may last."""

        async def once() -> Any:
            return await asyncio.get_running_loop().run_in_executor(self._storing, call, *arguments)

        return await through_outages(once, self.pace, partial(self.member.counts.add, store_failures=1))

    async def _load_data(self, data: int) -> None:
        self._loaded[data] = await self._stored(self.program.load, data)
        self.member.worker.loaded(data)

    async def _read(self, part: int, stored: StoredClock) -> None:
        first = stored == StoredClock()
        values = await (
            self._stored(self.program.first, self.table.of_part(part))
            if first
            else self._stored(self.store.load, part, stored)
        )
        self.member.server.loaded(part, stored, values)

    async def _save(self, part: int, stored: StoredClock, values: Values) -> None:
        await self._stored(self.store.save, part, stored, values)
        self.member.server.saved(part, stored)

    # -------------------------------------------------------------------------------------------------------- programs

    async def _compute(self, push: PushId) -> None:
        loop = asyncio.get_running_loop()
        view = TurnTable(self, loop, push)
        try:
            loss = await loop.run_in_executor(self._computing, self._compute_in_a_slot, view)
        except TurnGivenUp:
            return
        finally:
            self.member.counts.add(waited_s=view.waited_s, computed_s=view.computed_s)
        self.member.worker.computed(push, self.table.split_changes(view.changes()), loss)

    def _compute_in_a_slot(self, view: TurnTable) -> float | None:
        with self.slots, view.timed():
            return self.program.compute(self._loaded[view.turn.data], view.turn.clock, view)

    async def pull(self, push: PushId, rows: Rows) -> Values:
        """Return the values of rows for a turn."""
        worker, split = self.member.worker, self.table.split(rows)
        while push in worker.turns() and not self._ended:
            found = worker.read(push, split)
            if found is not None:
                return self.table.joined(rows, found)
            self._changed()
            await self._change(self.pace.held_s)
        raise TurnGivenUp


class TurnTable:
    """`Table` of one turn: its calls come from the thread that computes, which leaves its slot to others while it waits.

    Attributes:
        turn: which.
        waited_s: how long it waited for what it reads [s].
        computed_s: how long it computed [s], once it has ended.
    """

    def __init__(self, machine: TierLoop, loop: asyncio.AbstractEventLoop, turn: PushId) -> None:
        self._machine, self._loop, self.turn = machine, loop, turn
        self.waited_s = self.computed_s = self._away_s = 0.0
        limits = machine.limits
        # A turn whose time is known rests once, at its end.
        speed = 1.0 if limits.turn_s else limits.kernel_speed
        self._kernel, self._pulls = SlowedKernel(speed, machine.kernel_times), 0
        self._pushed = PushedRows()
        self._width = 0
        self._dtype: np.dtype[Any] = np.dtype(np.float64)

    def pull(self, rows: Rows) -> Values:
        """Return the values of rows."""
        self._kernel.rest()
        waiting = asyncio.run_coroutine_threadsafe(self._machine.pull(self.turn, rows), self._loop)
        began_s = self._loop.time()
        self._machine.slots.release()
        try:
            found = waiting.result()
        finally:
            self.waited_s += self._loop.time() - began_s
            self._machine.slots.acquire()
            self._away_s += self._loop.time() - began_s
            self._pulls += 1
            self._begin_kernel()
        self._width, self._dtype = found.shape[1], found.dtype
        return found

    def push(self, rows: Rows, changes: Values) -> None:
        """Add to rows once the turn ends."""
        self._machine.table.split(rows)
        self._pushed.add(rows, changes)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure how long it computes."""
        began_s = self._loop.time()
        self._begin_kernel()
        try:
            yield
            self._kernel.rest()
            rest_of_turn(self._machine.limits, self._loop.time() - began_s - self._away_s)
        finally:
            self.computed_s = self._loop.time() - began_s - self._away_s

    def _begin_kernel(self) -> None:
        # What a turn computes between two pulls is the same in each clock.
        self._kernel.begin((self.turn.data, self._pulls))

    def changes(self) -> Any:
        """Return what was pushed."""
        return self._pushed.sum(self._width, self._dtype)


def _is_later(answer: Answer) -> bool:
    if isinstance(answer, PushTaken):
        return answer.answer is PushAnswer.EARLY
    return isinstance(answer, Refused) and answer.reason is RefusalReason.LATER


def _name(question: Question) -> tuple[object, ...]:
    """Return what makes a question the same as another one."""
    if isinstance(question, ReadRows):
        return "read", question.part, question.reading
    if isinstance(question, (PushRows, SealPush)):
        return type(question).__name__, question.part, question.push
    if isinstance(question, BackUpChanges):
        return "back up", question.part
    if isinstance(question, CopyPart):
        return "copy", question.part, question.term
    assert isinstance(question, TakeOverPart)
    return "take over", question.part, question.move, question.since
