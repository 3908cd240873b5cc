"""`windfall exec` on a machine of the fleet, twice: the full agent of the whole storm, and a lean one.

The lean one takes and keeps the run with the very step functions of the log and of points; its script is one loop that
trains, saves, heeds notices and stops.  Several machines of a generation train together: the first leads, and a member
that is lost ends all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tests.storms import whole_scene
from tests.storms.fleet_schedules import LEAN_COSTS, ScheduleChecks, estimates_path
from tests.storms.whole_machine import Machine
from tests.storms.whole_place import Place
from tests.support.checks import demand
from tests.support.simulated_store import digest
from windfall import events as ev
from windfall.agent.status_files import EstimatesFile
from windfall.core import worker
from windfall.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_RETRY,
    EXIT_STOPPED,
    CheckpointDamaged,
    Fenced,
    StoreUnreachable,
)
from windfall.ports import Create, Delete, Get, List, Pause, Steps, T
from windfall.storage import checkpoint_store, run_log
from windfall.storage.restore import read_manifest
from windfall.storage.run_state import Claim, attempted, newest_step, released
from windfall.terms import (
    Cause,
    Checkpoint,
    CheckpointRef,
    Chunk,
    FileEntry,
    Holder,
    Notice,
    NoticeLevel,
    Outcome,
    Record,
    RecordKind,
    RunState,
    SaveCosts,
    SaveKind,
    Seconds,
    Shard,
    Step,
)
from windfall.wire.run_layout import INBOX, shard_prefix

if TYPE_CHECKING:
    from tests.storms.fleet import Fleet
    from tests.storms.fleet_machine import Node

ASSEMBLY_S = 15.0
"""A generation whose members do not come together within this time [s] ends."""
LAST_S = 4.0
"""The lean script makes its last save and releases the run this long before an announced end [s]."""
FAILURES_MAX = 3
MAIL_S = 2.5


class LeanExec:
    """One run of `windfall exec`, from its start to its exit code."""

    def __init__(self, world: Fleet, node: Node, generation: int, rank: int, members: tuple[str, ...]) -> None:
        self.world = Place(world)
        self.real = world
        self.node = node
        self.number = len(world.machines)
        self.host = node.machine_id
        self.generation, self.rank, self.members = generation, rank, members
        self.nonce = world.nonce()
        self.alive = True
        self.exit_code: int | None = None
        self.released: Outcome | None = None
        self.state = SimpleNamespace(damaged=frozenset(), step=0)
        self.skipped = False
        self.restored_step = 0
        self.script = None
        self.step, self.value = 0, whole_scene.START
        self.saved_step = 0
        self.term: int | None = None
        self.deadline: float | None = None
        self.stop: bool | None = None
        self.process = world.process(self)  # type: ignore[arg-type]
        self.step_s = Seconds(world.scene.step_s)

    @property
    def costs(self) -> SaveCosts | None:
        return LEAN_COSTS if self.saved_step else None

    def begin(self) -> None:
        if self.generation:
            self.real.groups.setdefault(self.generation, {})[self.host] = self
        self.real.start(self.process, self._life())

    # ------------------------------------------------------------------------------------------- what happens to it

    def dies(self) -> None:
        """It is gone without a word."""
        self.alive = False
        self.process.dead = True

    def kill(self) -> None:
        """End it, as the node agent does."""
        if self.alive:
            self.finish(EXIT_RETRY)

    def ask_stop(self, *, now: bool) -> None:
        self.stop = now

    def notice(self, level: NoticeLevel, left_s: float | None) -> None:
        if level is NoticeLevel.ANNOUNCED:
            assert left_s is not None
            self.deadline = self.real.time + left_s
        elif level is NoticeLevel.WITHDRAWN:
            self.deadline = None

    def finish(self, code: int) -> None:
        if self.alive:
            self.alive, self.exit_code = False, code
            self.process.dead = True
            self.node.exec_ended(code)

    # --------------------------------------------------------------------------------------------------- its own life

    def _life(self) -> Steps[None]:
        try:
            yield from (self._follow() if self.rank else self._lead())
        except Fenced:
            self.real.count("lean fenced")
            self.finish(EXIT_RETRY)

    def _others(self) -> list[LeanExec] | None:
        """Return the other members' execs of this generation, None if one is missing or gone."""
        group = self.real.groups.get(self.generation, {})
        found = [group.get(name) for name in self.members if name != self.host]
        there = [one for one in found if one is not None and one.alive and one.node.answers]
        return there if len(there) == len(found) else None

    def _follow(self) -> Steps[None]:
        """A member: hands of the leader."""
        waited_s = 0.0
        while True:
            yield Pause(Seconds(1.0))
            leader = self.real.groups.get(self.generation, {}).get(self.members[0])
            if leader is not None and leader.exit_code is not None:
                self.term, self.released = leader.term, leader.released
                self.finish(leader.exit_code)
                return
            if leader is not None and leader.term is not None:
                self.term, self.step, self.saved_step = leader.term, leader.step, leader.saved_step
            waited_s = 0.0 if leader is not None and leader.alive and leader.node.answers else waited_s + 1.0
            if waited_s > ASSEMBLY_S or (waited_s > 2.0 and leader is not None):
                self.finish(EXIT_RETRY)
                return

    def _lead(self) -> Steps[None]:
        if not (yield from self._assemble()):
            self.finish(EXIT_RETRY)
            return
        holder = Holder(self.host, self.host, 1, self.number, 0, self.nonce)
        claim = Claim(holder, "run", Seconds(whole_scene.LEASE_S), command=("train",))
        taken = yield from self._persist(
            lambda: run_log.acquire(
                claim, holder_is_dead=self.real.is_dead, wall_time=self.process.wall_time, wait=True
            )
        )
        if not taken.mine:
            self.finish(EXIT_DONE)
            return
        self.real.count("taken")
        self.term = taken.record.state.term
        yield from self._hold(taken.record)

    def _assemble(self) -> Steps[bool]:
        waited_s = 0.0
        while len(self.members) > 1 and self._others() is None:
            yield Pause(Seconds(0.5))
            waited_s += 0.5
            if waited_s > ASSEMBLY_S:
                return False
        return True

    def _hold(self, head: Record) -> Steps[None]:
        scene, rng = self.real.scene, self.real.rng
        yield from self._restore(head.state)
        every, counter, beat_at = rng.randint(4, 10), int(self.process.now() * 1000), -1e9
        fails_at = self.step + rng.randint(1, 6) if scene.broken or (rng.random() < 0.03 and not self.real.calm) else -1
        while self.step < scene.steps:
            yield Pause(Seconds(scene.step_s))
            self.step += 1
            self.state.step = self.step
            self.value = whole_scene.one_step(self.value, self.step)
            if self.real.time - beat_at > whole_scene.LEASE_S / 4:
                beat_at, counter = self.real.time, counter + 1
                yield from self._beat(head, counter)
            if self.step == fails_at:
                head = yield from self._fail(head)
                if not self.alive:
                    return
                fails_at = self.step + rng.randint(1, 6) if scene.broken else -1
                continue
            due = self.step % every == 0 or self._last()
            if due and self.stop is not True and self.step > self.saved_step:
                head = yield from self._save(head)
            if (yield from self._ends(head)):
                return
        if self.step > self.saved_step:
            head = yield from self._save(head)
        self.real.checks.lean_done(self)
        yield from self._release(head, Outcome.DONE, Cause.DONE)
        self.finish(EXIT_DONE)

    def _last(self) -> bool:
        return self.stop is not None or (self.deadline is not None and self.deadline - self.real.time < LAST_S)

    def _ends(self, head: Record) -> Steps[bool]:
        """Release the run on request, or when a member is lost."""
        if len(self.members) > 1 and self._others() is None:
            self.real.count("generation broken")
            yield from self._release(head, Outcome.WAITING, Cause.PREEMPTED_UNSAVED)
            self.finish(EXIT_RETRY)
            return True
        deadlines = [one.deadline for one in self._others() or [] if one.deadline is not None]
        if deadlines and self.deadline is None and min(deadlines) - self.real.time < LAST_S:
            self.deadline = min(deadlines)
        if not self._last():
            return False
        stopped = self.stop is not None
        saved = Cause.PREEMPTED_SAVED if self.saved_step == self.step else Cause.PREEMPTED_UNSAVED
        yield from self._release(head, Outcome.WAITING, Cause.STOPPED if stopped else saved)
        self.finish(EXIT_STOPPED if stopped else EXIT_RETRY)
        return True

    def _fail(self, head: Record) -> Steps[Record]:
        failures, attempts = head.state.failures + 1, head.state.attempts + 1
        self.real.count("script failed")
        if failures >= FAILURES_MAX:
            yield from self._release(head, Outcome.FAILED, Cause.SCRIPT_FAILED, failures)
            self.finish(EXIT_FAILED)
            return head

        def advance(state: RunState) -> RunState:
            return attempted(state, attempts=attempts, failures=failures)

        nonce, wall_time = self.real.nonce(), self.process.wall_time()
        head = yield from self._persist(
            lambda: run_log.append(head, advance, kind=RecordKind.ATTEMPT, nonce=nonce, wall_time=wall_time)
        )
        yield from self._restore(head.state)
        return head

    def _release(self, head: Record, outcome: Outcome, cause: Cause, failures: int | None = None) -> Steps[None]:
        wall_time, nonce = self.process.wall_time(), self.real.nonce()

        def advance(state: RunState) -> RunState:
            return released(state, outcome=outcome, cause=cause, wall_time=wall_time, failures=failures)

        yield from self._persist(
            lambda: run_log.append(head, advance, kind=RecordKind.RELEASE, nonce=nonce, wall_time=wall_time)
        )
        self.released = outcome
        self.real.count(cause)

    # ------------------------------------------------------------------------------------------------- the run's store

    def _beat(self, head: Record, counter: int) -> Steps[None]:
        try:
            yield from run_log.write_heartbeat(
                head.state.term, counter, self.process.wall_time(), head.number, self.nonce
            )
            taker = yield from run_log.find_takeover(head)
            keys = yield List(INBOX)
            assert isinstance(keys, list)
            for key in keys:
                data = yield Get(key)
                yield Delete(key)
                text = json.loads(data) if isinstance(data, bytes) else {}
                if text.get("type") == "stop" and text.get("term") == head.state.term:
                    self.stop = bool(text["now"])
        except StoreUnreachable:
            return
        if taker is not None:
            raise run_log.fenced_by(taker)

    def _restore(self, state: RunState) -> Steps[None]:
        self.step, self.value = 0, whole_scene.START
        if state.checkpoints:
            ref: CheckpointRef = max(state.checkpoints, key=lambda one: one.step)
            checkpoint = yield from self._persist(lambda: read_manifest(ref))
            data = yield from self._persist(lambda: _get(checkpoint.shards[0].files[0].chunks[0].key))
            _, self.step, self.value = whole_scene.read(data)
            demand(self.value == whole_scene.chain(self.step), "what is restored is the state of an uninterrupted run")
        demand(self.step == newest_step(state), "a restart restores the newest point")
        self.saved_step = self.restored_step = self.state.step = self.step

    def _save(self, head: Record) -> Steps[Record]:
        term, nonce, wall_time = head.state.term, self.real.nonce(), self.process.wall_time()
        step, value, scene = self.step, self.value, self.real.scene
        checkpoint_id = f"{step}-{term}-{nonce}"
        shards = []
        for rank in range(scene.ranks) if scene.sharded else (0,):
            key = f"{shard_prefix(term, self.nonce, checkpoint_id, rank)}x/0"
            data = whole_scene.written(rank, step, value)
            yield from self._persist(lambda key=key, data=data: _create(key, data))
            entry = FileEntry(".", 0o644, (Chunk(key, len(data), digest(data)),))
            shards.append(Shard(rank, whole_scene.file_name(rank), (entry,)))
        kind = SaveKind.EMERGENCY if self.deadline is not None else SaveKind.INSURANCE
        checkpoint = Checkpoint(checkpoint_id, Step(step), kind, term, 1, tuple(shards), wall_time)
        _, head = yield from self._persist(
            lambda: checkpoint_store.commit(head, checkpoint, nonce=nonce, wall_time=wall_time)
        )
        self.saved_step = step
        old, retire = head.state.checkpoints[:-2], self.real.nonce()
        if old:
            at = head
            try:
                head = yield from self._persist(
                    lambda: checkpoint_store.drop(at, old, nonce=retire, wall_time=wall_time)
                )
                yield from self._persist(lambda: checkpoint_store.delete(head, old, grace_s=Seconds(0.3)))
            except CheckpointDamaged:
                pass
        return head

    def _persist(self, steps: Callable[[], Steps[T]]) -> Steps[T]:
        while True:
            try:
                return (yield from steps())
            except StoreUnreachable:
                yield Pause(Seconds(0.5))


def _get(key: str) -> Steps[bytes]:
    data = yield Get(key)
    assert isinstance(data, bytes), f"{key} is there"
    return data


def _create(key: str, data: bytes) -> Steps[None]:
    yield Create(key, data)


class WholeExec(Machine):
    """The full agent; its fate is its machine's."""

    def __init__(self, world: Fleet, node: Node) -> None:
        super().__init__(world, len(world.machines), node.machine_id)
        self.node = node
        self.exit_code: int | None = None
        self.released: Outcome | None = None
        self.leaving = EXIT_RETRY
        self.written_at = 0.0
        self._estimates_of = (0, EstimatesFile(None, node.clock))
        self.real.at(MAIL_S, self._read_mail)

    def new_checks(self) -> ScheduleChecks:  # type: ignore[override]
        return ScheduleChecks(self)

    def soon(self) -> None:
        """Let the agent look about."""
        self._soon()

    def look(self) -> None:
        if self.hold is not None and self.alive and self.agent_alive and not self.exited and not self.busy:
            self.inbox += self._estimates()
        super().look()

    def _estimates(self) -> list[ev.Fact]:
        """Return the facts left by the node agent; a restarted agent has replayed its journal before."""
        life, file = self._estimates_of
        if life != self.agent_life:
            file = EstimatesFile(estimates_path(self), self.node.clock)
            for row in self.rows:
                file.remember(row.facts)
            self._estimates_of = (self.agent_life, file)
        return file.changes()

    def draw_fate(self) -> None:
        if not self.real.calm and self.real.rng.random() < 0.3:
            self.real.at(self.real.rng.uniform(1.0, 60.0), self.agent_dies)

    def notice(self, level: NoticeLevel, left_s: float | None) -> None:
        deadline = None if left_s is None else self.real.time + left_s
        self.lasting_fact(ev.NoticeReceived(Notice(level, "local", "n1", deadline)))

    def ask_stop(self, *, now: bool) -> None:
        self.lasting_fact(ev.RunStopRequested(now, "the node agent"))

    def kill(self) -> None:
        self.finish()

    def _read_mail(self) -> None:
        """What the agent's beats do: take the messages to the holder of this term."""
        if not self.alive:
            return
        for key in self.real.store.list(INBOX):
            text = json.loads(self.real.store.objects[key])
            if self.hold is not None and text["term"] == self.term:
                self.real.store.delete(key)
                self.ask_stop(now=bool(text["now"]))
        self.real.at(MAIL_S, self._read_mail)

    def _release(self, command: ev.ReleaseRun) -> Steps[None]:
        yield from super()._release(command)
        assert self.hold is not None
        if self.hold.state.holder is None:
            self.released = command.outcome

    def _do_ExitAgent(self, command: ev.ExitAgent) -> None:  # noqa: N802
        self.leaving = command.code
        super()._do_ExitAgent(command)

    def finish(self) -> None:
        was = self.alive
        super().finish()
        if was:
            unreleased = self.leaving == EXIT_DONE and self.released is None
            self.exit_code = EXIT_DONE if self.real.checks.done else EXIT_FAILED if unreleased else self.leaving
            self.node.exec_ended(self.exit_code)

    @property
    def step(self) -> int:
        return 0 if self.script is None else min(rank.step for rank in self.script.ranks)

    @property
    def saved_step(self) -> int:
        return self.state.committed_step

    @property
    def step_s(self) -> Seconds | None:
        return worker.run_status(self.state).step_s if self.state.started is not None else None

    @property
    def costs(self) -> SaveCosts | None:
        return worker.save_costs(self.state)
