"""A machine of the whole storm: the real reducer, and the agent's loop and hold as step functions under the scheduler.

What `agent.agent_loop`, `agent.background` and `agent.background` do in threads is done here in lanes: a lane carries
out one action after the other, each a step function of which the world carries out one store operation at a time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.storms import whole_scene
from tests.storms.whole_checks import files_below
from tests.storms.whole_hold import Kept, StoreLease
from tests.storms.whole_place import Place
from tests.support import world as reducers
from tests.support.checks import demand
from tests.support.fate import Fate
from tests.support.script import Script
from windfall import codec
from windfall import events as ev
from windfall.agent.background import failure_of
from windfall.agent.hard_links import link_handover, remove_links
from windfall.core import worker
from windfall.errors import Fenced, ShardChanged, StoreError, WindfallError
from windfall.ports import Steps
from windfall.storage import run_log
from windfall.storage.restore import RestoredCheckpoint
from windfall.storage.run_state import Claim
from windfall.storage.spool_journal import SpoolJournal
from windfall.storage.store_operations import pause
from windfall.terms import Cause, Holder, Outcome, RunOptions, Seconds, Step

if TYPE_CHECKING:
    from tests.storms.whole import Process, Whole

BEATS_PER_LEASE = 4
Action = Callable[[], Steps[object]]


class Rows(list[ev.Row]):
    """The journal's rows, each on the machine's disk before its commands leave."""

    def __init__(self, spool: SpoolJournal) -> None:
        super().__init__(codec.row_from_line(line) for line in spool.rows())
        self.spool = spool

    def append(self, row: ev.Row) -> None:
        self.spool.append(codec.row_to_line(row))
        super().append(row)


class MachineChecks:
    """What watches one machine's reducer here; its own storms watch much more."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.fence_seen = False

    def reacted(self, before: object, facts: tuple[ev.Fact, ...], *_: object) -> None:
        self.fence_seen |= any(isinstance(fact, ev.FenceLost) for fact in facts)

    def check_executed(self, command: ev.Command) -> None:
        if isinstance(command, ev.CommitCheckpoint | ev.UploadShard | ev.PublishSave):
            demand(not self.fence_seen, "nothing is saved after the fence was lost")

    def notice(self, deadline: float, *, honest: bool) -> None:
        self.machine.world.count("honest notice" if honest else "lying notice")


class Machine(reducers.Machine):
    """One machine's life: it contends for the run, holds it, and loses it or ends it."""

    def __init__(self, world: Whole, number: int, host: str) -> None:
        super().__init__(Place(world), 0)  # type: ignore[arg-type]
        self.real = world
        self.number = number
        self.host = host
        self.nonce = world.nonce()
        self.folder = os.path.join(world.folder, f"m{number}")
        os.makedirs(self.folder)
        self.kept: Kept | None = None
        self.hold: StoreLease | None = None
        self.values: dict[int, tuple[int, str]] = {}
        self.restored_step = 0
        self.skipped = False
        self.process = world.process(self)

    def new_checks(self) -> MachineChecks:  # type: ignore[override]
        return MachineChecks(self)

    # ------------------------------------------------------------------------------------------------ the agent's life

    def begin(self) -> None:
        """Start the agent: it takes the run, or goes on with what an earlier agent took."""
        self.lanes: dict[str, deque[Action]] = {}
        self.do("log", self._take if self.kept is None else self._reopen)

    def do(self, lane: str, action: Action) -> None:
        """Queue an action."""
        waiting = self.lanes.setdefault(lane, deque())
        waiting.append(action)
        if len(waiting) == 1:
            self.real.start(self.process, self._work(waiting, self.process))

    def _work(self, waiting: deque[Action], process: Process) -> Steps[object]:
        while waiting and not process.dead:
            yield from waiting[0]()
            waiting.popleft()
        return None

    def _take(self) -> Steps[None]:
        holder = Holder(self.host, self.host, 1, self.number, 0, self.nonce)
        claim = Claim(holder, "run", Seconds(whole_scene.LEASE_S), command=("train",))
        try:
            taken = yield from run_log.acquire(
                claim, holder_is_dead=self.real.is_dead, wall_time=self.process.wall_time, wait=True
            )
        except StoreError:
            self.finish()
            return
        if not taken.mine:
            self.finish()
            return
        self._hold(taken.record)
        self._begin_term()

    def _reopen(self) -> Steps[None]:
        assert self.kept is not None
        try:
            head = yield from run_log.read_head(self.kept.head)
        except StoreError:
            self.finish()
            return
        if head is None or head.state.term != self.kept.term:
            self.finish()
            return
        kept = self.kept
        hold = self._hold(head)
        hold.chunks, hold.upload_ids = kept.chunks, kept.upload_ids
        hold.save()
        if not self.rows:
            self._begin_term()
            return
        self.real.count("agent resumed")
        self.feed_back()
        self.inbox.append(ev.AgentResumed())
        started = [fact.attempt for row in self.rows for fact in row.facts if isinstance(fact, ev.ScriptStarted)]
        if self.script is not None and self.script.attempt > max(started, default=0):
            self.inbox.append(ev.ScriptStarted(self.script.attempt))
        self.observe = True
        self._start_lanes()
        self._window()
        self.look()

    def feed_back(self) -> None:
        """Replay the journal: it must decide as it did."""
        self.state = worker.initial_state()
        for row in self.rows:
            self.state, decisions, commands = worker.react(self.state, row.at, row.facts)
            demand((decisions, commands) == (row.decisions, row.commands), "the journal fed back decides the same")

    def _hold(self, head: Any) -> StoreLease:
        self.term = head.state.term
        spool = SpoolJournal(self.folder, self.term)
        self.rows = Rows(spool)
        process = self.process
        self.hold = StoreLease(head, self.nonce, spool, process.wall_time, process.now, self.real.nonce, self._keep)
        return self.hold

    def _keep(self, kept: Kept) -> None:
        self.kept = kept

    def _begin_term(self) -> None:
        assert self.hold is not None
        state, rng = self.hold.state, self.real.rng
        self.inbox.append(
            ev.WorkerStarted(
                run="run",
                term=state.term,
                options=RunOptions(
                    self.real.scene.policy,
                    failures_max=self.real.scene.failures_max,
                    mttp_s=Seconds(rng.choice([20.0, 60.0])),
                    keep=rng.choice([None, 2]),
                ),
                provider="local",
                checkpoints=state.checkpoints,
                attempt=state.attempts,
                failures=state.failures,
                lifetimes_s=state.lifetimes_s,
                preemptions=state.preemptions,
                announced=state.announced,
                costs=state.costs,
            )
        )
        self.real.count("taken")
        self.draw_fate()
        self._start_lanes()
        self.look()

    def draw_fate(self) -> None:
        self.fate = Fate(self)

    def _start_lanes(self) -> None:
        assert self.hold is not None
        hold = self.hold
        self.do("cleaning", lambda: self.tidy(hold.sweep()))
        self.do("heartbeat", self._beat)

    def _beat(self) -> Steps[None]:
        assert self.hold is not None
        while True:
            try:
                yield from self.hold.beat()
                yield from self.hold.ship()
            except Fenced as error:
                self.fact(ev.FenceLost(error.record, error.holder))
                return
            except StoreError:
                pass
            yield from pause(whole_scene.LEASE_S / BEATS_PER_LEASE)

    def agent_dies(self) -> None:
        """The agent dies and is started again; disk and script are still there."""
        if self.exited or not self.alive or not self.agent_alive:
            return
        self.real.count("agent died")
        self.agent_life += 1
        self.agent_alive, self.busy = False, False
        self.inbox, self.timers = [], {}
        self.end_process()
        self.world.at(0.3, self._agent_returns)

    def _agent_returns(self) -> None:
        if self.alive and not self.exited:
            self.agent_alive = True
            self.look_at = -1.0
            self.process = self.real.process(self)
            self.begin()

    def end_process(self) -> None:
        self.process.dead = True
        self.process.files.end()
        if self.hold is not None:
            self.hold.spool.close()
            self.hold = None

    def look(self) -> None:
        if self.hold is not None:
            super().look()

    def finish(self) -> None:
        """`windfall exec` ends: the script is dead by then, and the machine's disk is gone."""
        if not self.exited:
            self.exited = True
            self._gone("exited")

    def dies(self) -> None:
        """The machine is gone with everything on it."""
        if self.alive:
            self._gone("machine died")

    def _gone(self, how: str) -> None:
        self.real.count(how)
        self.alive = False
        if self.script is not None:
            self.script.alive = False
        self.end_process()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.real.machine_gone(self)

    # ------------------------------------------------------------------------------------------------------ the script

    def save_part(self, rank: int, step: int, owner: int) -> str:
        """Write a rank's state; with one rank the agent keeps a link of its own at once."""
        saves = os.path.join(self.folder, "script", str(self.state.attempt))
        whole = os.path.join(saves, f"{step}-{owner}")
        folder = self.real.habits.as_folder or self.real.scene.shared_folder
        os.makedirs(os.path.join(whole, "empty") if folder else whole, exist_ok=True)
        path = os.path.join(whole, whole_scene.file_name(rank))
        self.write(path, whole_scene.written(rank, step, self.trained(rank, step)))
        if self.real.habits.prunes:
            self._prune(saves, step)
        handed = whole if folder else path
        if self.real.scene.ranks == 1:
            self.real.saves += 1
            return link_handover(handed, self._held(), f"{step}-{self.real.saves}")
        return handed

    def _held(self) -> str:
        return os.path.join(self.folder, "held", str(self.state.attempt))

    def react(self, facts: tuple[ev.Fact, ...]) -> None:
        """One batch; what is stored, or given up, is kept no longer."""
        before = self.state.held_paths
        super().react(facts)
        for path in before - self.state.held_paths:
            remove_links(self._held(), path)

    def write(self, path: str, data: bytes) -> None:
        """Write a file at the time of the world, which runs faster than a file system tells times apart."""
        with open(path, "wb") as file:
            file.write(data)
        at_ns = int(self.real.time * 1e9) + 10**18
        os.utime(path, ns=(at_ns, at_ns))

    def trained(self, rank: int, step: int) -> str:
        done, value = self.values[rank]
        for number in range(done + 1, step + 1):
            value = whole_scene.one_step(value, number)
        self.values[rank] = (step, value)
        return value

    def _prune(self, saves: str, step: int) -> None:
        for name in os.listdir(saves):
            if int(name.split("-")[0]) < step - 6:
                shutil.rmtree(os.path.join(saves, name), ignore_errors=True)

    def load(self, restored: RestoredCheckpoint, folder: str) -> None:
        """Let the script load what was restored, as it is: a wrong state is trained further."""
        step = 0 if restored.checkpoint is None else restored.checkpoint.step
        found = dict(files_below(folder)) if restored.checkpoint is not None else {}
        self.values = {}
        for rank in range(self.real.scene.ranks):
            data = found.get(whole_scene.file_name(rank if self.real.scene.sharded else 0))
            if restored.checkpoint is None:
                self.values[rank] = (0, whole_scene.START)
                continue
            demand(data is not None, f"a restore brings every rank's part, not {sorted(found)}")
            assert data is not None
            try:
                _, done, value = whole_scene.read(data)
            except (ValueError, IndexError) as error:
                demand(False, f"what is restored can be read ({error})")
            demand(done == step, f"what is restored is of step {step}, not {done}")
            demand(value == whole_scene.chain(step), "what is restored is the state of an uninterrupted run")
            self.values[rank] = (done, value)
        self.restored_step, self.skipped = step, bool(restored.skipped)

    # ---------------------------------------------------------------------------------------------------- the commands

    def execute(self, command: ev.Command) -> None:
        if self.hold is not None:
            super().execute(command)

    def _do_StartScript(self, command: ev.StartScript) -> None:  # noqa: N802
        self.do("log", lambda: self._start(command))

    def _start(self, command: ev.StartScript) -> Steps[None]:
        assert self.hold is not None
        if self.script is not None and self.script.attempt >= command.attempt:
            return
        self._count()
        yield from self.tidy(self.hold.write_counts())
        began = self.real.time
        folder = os.path.join(self.folder, "checkpoints", str(command.attempt))
        view = self.hold.state.checkpoints
        try:
            restored = yield from self.hold.restore(folder)
        except (WindfallError, OSError):
            self.real.count("restore failed")
            with contextlib.suppress(WindfallError):
                yield from self.hold.release(Outcome.WAITING, Cause.STOPPED)
            self.finish()
            return
        self.real.checks.restored(self, view, restored)
        self.load(restored, folder)
        step, checkpoint_id, size = Step(0), None, 0
        if restored.checkpoint is not None:
            step, checkpoint_id, size = (
                restored.checkpoint.step,
                restored.checkpoint.checkpoint_id,
                restored.checkpoint.size_bytes,
            )
        self.script = Script(self, step)
        self.script.attempt = command.attempt
        self.later(4 * self.real.scene.step_s, self._window)
        self.fact(ev.CheckpointRestored(checkpoint_id, step, size, Seconds(self.real.time - began), restored.skipped))
        self.fact(ev.ScriptStarted(command.attempt))
        self.observe = True

    def _count(self) -> None:
        assert self.hold is not None
        counts = worker.counts(self.state)
        self.hold.counts = (counts["attempts"], counts["failures"], worker.save_costs(self.state))

    def _do_UploadShard(self, command: ev.UploadShard) -> None:  # noqa: N802
        self.do("upload", lambda: self._upload(command))

    def _upload(self, command: ev.UploadShard) -> Steps[None]:
        assert self.hold is not None
        began = self.real.time
        try:
            shard = yield from self.hold.upload(command, lambda: command.checkpoint_id in self.abandoned)
        except (WindfallError, OSError) as error:
            self.real.count("overwritten" if isinstance(error, ShardChanged) else "part failed")
            self.fact(ev.ShardFailed(command.checkpoint_id, command.rank, str(error), failure_of(error)))
            return
        if shard is not None:
            size = sum(entry.size_bytes for entry in shard.files)
            took_s = Seconds(self.real.time - began)
            self.fact(ev.ShardUploaded(command.checkpoint_id, command.rank, shard, size, took_s))

    def _do_AbandonCheckpoint(self, command: ev.AbandonCheckpoint) -> None:  # noqa: N802
        assert self.hold is not None
        hold = self.hold
        self.abandoned.add(command.checkpoint_id)
        self.do("cleaning", lambda: self.tidy(hold.abandon(command.checkpoint_id)))

    def _do_CommitCheckpoint(self, command: ev.CommitCheckpoint) -> None:  # noqa: N802
        self.do("log", lambda: self._commit_steps(command))

    def _commit_steps(self, command: ev.CommitCheckpoint) -> Steps[None]:
        assert self.hold is not None
        began = self.real.time
        self._count()
        try:
            checkpoint, number = yield from self.hold.commit(command)
        except Fenced as error:
            self.fact(ev.FenceLost(error.record, error.holder))
        except WindfallError as error:
            self.fact(ev.CommitFailed(command.checkpoint_id, str(error), failure_of(error)))
        else:
            self.fact(ev.CheckpointCommitted(checkpoint, number, Seconds(self.real.time - began)))

    def _do_DeleteCheckpoints(self, command: ev.DeleteCheckpoints) -> None:  # noqa: N802
        self.do("log", lambda: self._delete(command))

    def _delete(self, command: ev.DeleteCheckpoints) -> Steps[None]:
        assert self.hold is not None
        hold = self.hold
        if (yield from self.tidy(hold.drop_checkpoints(command.checkpoints))):
            self.do("cleaning", lambda: self.tidy(hold.delete(command.checkpoints)))

    def tidy(self, steps: Steps[object]) -> Steps[bool]:
        """Do what the run can do without."""
        try:
            yield from steps
        except Fenced as error:
            self.fact(ev.FenceLost(error.record, error.holder))
        except WindfallError:
            self.real.count("not tidied")
        else:
            return True
        return False

    def _do_ReleaseRun(self, command: ev.ReleaseRun) -> None:  # noqa: N802
        self.do("log", lambda: self._release(command))

    def _release(self, command: ev.ReleaseRun) -> Steps[None]:
        assert self.hold is not None
        try:
            self._count()
            yield from self.hold.ship()
            yield from self.hold.release(command.outcome, command.cause, command.notice_s)
            self.real.count(command.cause)
        except Fenced as error:
            self.fact(ev.FenceLost(error.record, error.holder))
        except StoreError:
            self.real.count("not released")

    def _do_ExitAgent(self, command: ev.ExitAgent) -> None:  # noqa: N802
        self.do("log", self._exit)

    def _exit(self) -> Steps[None]:
        assert self.hold is not None
        with contextlib.suppress(WindfallError):
            yield from self.hold.ship()
        self.finish()
