"""A world for the worker's reducer on virtual time: machines that die, a store that fails, ranks that train.

Everything is drawn from one seed.  The agent is the reducer plus the simplest loop around it; it follows the contract of
`events` and `wire.script_page`: what a rank did is seen in order, a look follows each published request.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from tests.support.checks import Checks, Violation
from tests.support.fate import Fate
from tests.support.scene import Scene, Store
from tests.support.script import Script
from windfall import events as ev
from windfall import terms
from windfall.core import worker
from windfall.terms import Cause, CheckpointRef, Failure, Outcome, RunOptions

LOOK_S = 0.01
LATE_S = 5.0
"""How late a process may be on a host that has more to run than cores [s]; early it must never be."""


class World:
    """Time, chance, the store and the machine of the present term."""

    def __init__(self, seed: int, *, scene: Scene | None = None) -> None:
        self.scene = scene or Scene.draw(seed)
        self.rng = random.Random(f"world {seed}")
        self.now = 0.0
        self.sequence = 0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.store = Store()
        self.machine: Machine | None = None
        self.done = False
        self.rate = self.scene.rate
        self.rate_changed_at = 0.0
        self.tally: dict[str, int] = {}

    @property
    def calm(self) -> bool:
        """Whether the faults are over."""
        return self.now >= self.scene.calm_s

    def count(self, what: str) -> None:
        """Remember that something was visited."""
        self.tally[what] = self.tally.get(what, 0) + 1

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self.sequence += 1
        heapq.heappush(self.heap, (self.now + delay_s, self.sequence, action))

    def jitter(self, value: float) -> float:
        """Return about the same value."""
        return value * self.rng.uniform(0.97, 1.03)

    def run(self) -> None:
        """Run to the end; it must come in bounded time once the faults are over."""
        self.next_machine(0.0)
        scene = self.scene
        bound_s = scene.calm_s + 3 * scene.steps * (scene.step_s + scene.stall_s) + 200 * scene.size / scene.rate + 1500
        while not self.done:
            if not self.heap:
                raise Violation("nothing will ever happen again, but the run is not done")
            self.now, _, action = heapq.heappop(self.heap)
            if self.now > bound_s:
                raise Violation(f"not done by {bound_s:.0f} s although the faults ended at {scene.calm_s:.0f} s")
            action()

    def next_machine(self, delay_s: float) -> None:
        """The same line is started elsewhere."""

        def start() -> None:
            self.store.term += 1
            self.machine = Machine(self, self.store.term)
            self.machine.begin()

        self.at(delay_s, start)


class Machine:
    """One term: reducer, loop, script, uplink, and what fate has in store."""

    def __init__(self, world: World, term: int) -> None:
        self.world = world
        self.term = term
        self.alive = True
        self.exited = False
        self.agent_life = 1
        self.agent_alive = True
        self.state = worker.initial_state()
        self.rows: list[ev.Row] = []
        self.inbox: list[ev.Fact] = []
        self.script_inbox: list[ev.Fact] = []
        self.lasting_inbox: list[ev.Fact] = []
        self.observe = False
        self.busy = False
        self.look_at = -1.0
        self.timers: dict[str, float] = {}
        self.script: Script | None = None
        self.disk: dict[str, set[tuple[int, int]]] = {}
        self.uplink_free = 0.0
        self.abandoned: set[str] = set()
        self.upload_began: dict[str, float] = {}
        self.started = world.now
        self.checks = self.new_checks()

    def new_checks(self) -> Checks:
        """Return what watches this machine."""
        return Checks(self)

    def save_part(self, rank: int, step: int, owner: int) -> str:
        """Let a rank save on the local disk, into `owner`'s file or folder; return its path."""
        path = f"{self.term}/{self.state.attempt}/{step}/{owner}"
        self.disk.setdefault(path, set()).add((rank, step))
        return path

    # ------------------------------------------------------------------------------------------------------- the loop

    def begin(self) -> None:
        """Take the run."""
        store, scene = self.world.store, self.world.scene
        self.inbox.append(
            ev.WorkerStarted(
                run="run",
                term=self.term,
                options=RunOptions(
                    scene.policy,
                    failures_max=scene.failures_max,
                    mttp_s=self.world.rng.choice([None, 60.0, 300.0]),
                    keep=self.world.rng.choice([None, 2]),
                ),
                provider="local",
                checkpoints=tuple(store.live),
                attempt=store.attempts + 1,
                failures=store.failures,
                lifetimes_s=0.0,
                costs=store.costs,
                preemptions=store.preemptions,
                announced=store.announced,
            )
        )
        self.fate = Fate(self)
        self.look()

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later, if this machine and this agent then still live."""
        life = self.agent_life
        self.world.at(delay_s, lambda: action() if self.alive and life == self.agent_life else None)

    def fact(self, fact: ev.Fact) -> None:
        """Something that only the agent knows: lost when it dies."""
        self.inbox.append(fact)
        self._soon()

    def script_fact(self, fact: ev.Fact) -> None:
        """Something that stays in pages and message files until an agent has read it."""
        self.script_inbox.append(fact)
        self._soon()

    def lasting_fact(self, fact: ev.Fact) -> None:
        """A message of the outside world: its source says it again until an agent has heard it."""
        self.lasting_inbox.append(fact)
        self._soon()

    def _soon(self) -> None:
        if self.agent_alive and self.look_at <= self.world.now:
            self.look_at = self.world.now + LOOK_S
            self.later(LOOK_S, self.look)

    def look(self) -> None:
        """One turn of the loop."""
        if self.exited or not self.agent_alive:
            return
        self.look_at = -1.0
        if self.busy:
            return
        facts = [*self.script_inbox]
        self.script_inbox = []
        if (self.observe or self.lasting_inbox) and self.script is not None and self.script.alive:
            facts.append(self.script.status())
        self.observe = False
        facts += self.inbox + self.lasting_inbox
        self.inbox, self.lasting_inbox = [], []
        due = [reason for reason, at in self.timers.items() if at <= self.world.now]
        for reason in due:
            del self.timers[reason]
            facts.append(ev.TimerFired(reason))
        if facts:
            self.react(tuple(facts))

    def react(self, facts: tuple[ev.Fact, ...]) -> None:
        """One batch."""
        before = self.state
        self.state, decisions, commands = worker.react(before, self.world.now, facts)
        row = ev.Row(self.term, len(self.rows) + 1, self.world.now, self.world.now, facts, decisions, commands)
        self.rows.append(row)
        self.checks.reacted(before, facts, decisions, commands)
        if not self.world.calm and self.world.rng.random() < 0.01:
            # The agent is stopped for a while between deciding and doing.
            pause_s = self.world.rng.uniform(0.0, 5.0) * self.world.scene.step_s
            self.busy = True
            self.later(pause_s, lambda: self._go_on(commands))
            return
        for command in commands:
            self.execute(command)

    def _go_on(self, commands: tuple[ev.Command, ...]) -> None:
        self.busy = False
        for command in commands:
            self.execute(command)
        self._soon()

    def agent_dies(self) -> None:
        """The agent dies and comes back from its journal."""
        if self.exited:
            return
        self.agent_life += 1
        self.agent_alive = False
        self.busy = False
        self.inbox, self.timers = [], {}
        self.world.at(0.3, self._agent_returns)

    def _agent_returns(self) -> None:
        if not self.alive or self.exited:
            return
        self.agent_alive = True
        self.state = worker.initial_state()
        for row in self.rows:
            self.state, decisions, commands = worker.react(self.state, row.at, row.facts)
            if (decisions, commands) != (row.decisions, row.commands):
                raise Violation(f"the journal fed back gives {commands}, not {row.commands}")
        self.look_at = -1.0
        self.uplink_free = self.world.now
        self.observe = True
        self.inbox.append(ev.AgentResumed())
        self._window()
        self.look()

    def _window(self) -> None:
        if self.script is not None and self.script.alive and not self.exited:
            for fact in self.script.measure():
                self.fact(fact)
            self.later(4 * self.world.scene.step_s, self._window)

    # -------------------------------------------------------------------------------------------------- the commands

    def execute(self, command: ev.Command) -> None:
        """Carry a command out."""
        if self.exited:
            return
        self.checks.check_executed(command)
        getattr(self, f"_do_{type(command).__name__}", lambda _: None)(command)

    def _do_StartScript(self, command: ev.StartScript) -> None:  # noqa: N802
        self.world.store.attempts = command.attempt
        if self.script is not None and self.script.alive:
            self._started(command.attempt, self.script.ranks[0].step)
            return
        self.later(self.world.jitter(2.0), lambda: self._restore(command.attempt))

    def _restore(self, attempt: int) -> None:
        store = self.world.store
        if len(store.whole()) > 1 and not self.world.calm and self.world.rng.random() < 0.03:
            store.damaged.add(store.whole()[-1].checkpoint_id)
            self.world.count("damaged")
        self.script = Script(self, store.step)
        self._started(attempt, store.step)
        self.later(4 * self.world.scene.step_s, self._window)

    def _started(self, attempt: int, step: int) -> None:
        whole = self.world.store.whole()
        newest = whole[-1].checkpoint_id if whole else None
        size = whole[-1].size_bytes if whole else 0
        del step
        self.fact(ev.CheckpointRestored(newest, self.world.store.step, size, 2.0))
        self.fact(ev.ScriptStarted(attempt))
        self.observe = True

    def _do_KillScript(self, command: ev.KillScript) -> None:  # noqa: N802
        if self.script is not None:
            self.script.alive = False

    def _do_PublishSave(self, command: ev.PublishSave) -> None:  # noqa: N802
        if self.script is not None and self.script.alive:
            self.script.request = (command.request, command.step, command.exact)
            self.observe = True
            self._soon()

    def _do_WithdrawSave(self, command: ev.WithdrawSave) -> None:  # noqa: N802
        if self.script is not None:
            self.script.request = None

    def _do_UploadShard(self, command: ev.UploadShard) -> None:  # noqa: N802
        content = frozenset(self.disk[command.path])
        ranks = max(len(content), 1)
        scene = self.world.scene
        size = int(scene.size / scene.ranks * ranks) if scene.sharded else scene.size
        took_s = self.world.jitter(scene.latency_s + size / self.world.rate)
        begin = max(self.world.now, self.uplink_free)
        self.uplink_free = begin + took_s

        def end() -> None:
            if command.checkpoint_id in self.abandoned:
                return
            if self._faulty():
                self.checks.blemish("store")
                failure = Failure.OVERWRITTEN if self.world.rng.random() < 0.2 else Failure.OTHER
                self.fact(ev.ShardFailed(command.checkpoint_id, command.rank, "lost", failure))
                return
            digest = ",".join(f"{rank}@{step}" for rank, step in sorted(content))
            entry = terms.FileEntry(".", 0o600, (terms.Chunk("key", size, digest),))
            shard = terms.Shard(command.rank, "state", (entry,))
            self.upload_began.setdefault(command.checkpoint_id, begin)
            self.fact(ev.ShardUploaded(command.checkpoint_id, command.rank, shard, size, took_s))

        self.later(self.uplink_free - self.world.now, end)

    def _faulty(self) -> bool:
        return not self.world.calm and self.world.rng.random() < self.world.scene.store_faults

    def _do_AbandonCheckpoint(self, command: ev.AbandonCheckpoint) -> None:  # noqa: N802
        self.abandoned.add(command.checkpoint_id)
        self.uplink_free = self.world.now

    def _do_CommitCheckpoint(self, command: ev.CommitCheckpoint) -> None:  # noqa: N802
        took_s = self.world.jitter(self.world.scene.commit_s)
        # A commit that has left the machine happens even if the agent dies before the answer.
        self.world.at(took_s, lambda: self._commit(command, took_s, self.agent_life))

    def _commit(self, command: ev.CommitCheckpoint, took_s: float, life: int) -> None:
        if not self.alive or self.exited:
            return
        store = self.world.store
        answer: ev.Fact
        if store.term != self.term:
            answer = ev.FenceLost(store.records, "another")
        elif self._faulty():
            self.checks.blemish("store")
            answer = ev.CommitFailed(command.checkpoint_id, "no answer")
        else:
            known = [checkpoint for checkpoint in store.live if checkpoint.checkpoint_id == command.checkpoint_id]
            if not known:
                store.records += 1
                checkpoint = _point_of(command, self.term, self.world.now)
                store.live.append(checkpoint)
                store.content[checkpoint.checkpoint_id] = _content_of(command)
                self.checks.committed(checkpoint)
                self.checks.uploads_since_change = self.upload_began[checkpoint.checkpoint_id]
                if costs := worker.save_costs(self.state):
                    store.costs, store.upload_began = costs, self.checks.uploads_since_change
                known = [checkpoint]
            answer = ev.CheckpointCommitted(known[0], store.records, took_s)
        if life == self.agent_life:
            self.fact(answer)

    def _do_DeleteCheckpoints(self, command: ev.DeleteCheckpoints) -> None:  # noqa: N802
        if self.world.store.term == self.term:
            gone = {checkpoint.checkpoint_id for checkpoint in command.checkpoints}
            self.world.store.live = [
                checkpoint for checkpoint in self.world.store.live if checkpoint.checkpoint_id not in gone
            ]
            self.world.count("deleted")
            self.checks.deleted()

    def _do_ReleaseRun(self, command: ev.ReleaseRun) -> None:  # noqa: N802
        if self.world.store.term != self.term:
            return
        self.checks.released(command)
        store = self.world.store
        store.failures = self.state.failures
        if command.cause in {Cause.PREEMPTED_SAVED, Cause.PREEMPTED_UNSAVED}:
            store.preemptions += 1
            store.announced += 1
        self.outcome = command.outcome
        self.world.count(command.cause)

    def _do_ExitAgent(self, command: ev.ExitAgent) -> None:  # noqa: N802
        self.exited = True
        self.alive = False
        if self.script is not None:
            self.script.alive = False
        outcome = getattr(self, "outcome", None)
        if self.world.machine is not self:
            return
        if outcome is Outcome.DONE:
            self.checks.done()
            self.world.done = True
            return
        if outcome is Outcome.FAILED:
            self.world.store.failures = 0
        self.world.next_machine(self.world.jitter(5.0))

    def _do_SetTimer(self, command: ev.SetTimer) -> None:  # noqa: N802
        self.timers[command.name] = command.at
        self.later(max(command.at - self.world.now, 0.0), self._soon)

    def dies(self) -> None:
        """The machine is gone with everything on it."""
        if not self.alive:
            return
        self.checks.died()
        self.alive = False
        self.world.store.preemptions += 1
        self.world.count("vanished")
        if self.world.machine is self and self.world.store.term == self.term:
            self.world.next_machine(self.world.scene.lease_s)


def _content_of(command: ev.CommitCheckpoint) -> frozenset[tuple[int, int]]:
    pairs = set()
    for shard in command.shards:
        for entry in shard.files[0].chunks[0].digest.split(","):
            rank, step = entry.split("@")
            pairs.add((int(rank), int(step)))
    return frozenset(pairs)


def _point_of(command: ev.CommitCheckpoint, term: int, now: float) -> CheckpointRef:
    size = sum(entry.size_bytes for shard in command.shards for entry in shard.files)
    return CheckpointRef(
        command.checkpoint_id, command.step, command.kind, term, command.generation, size, "manifest", "digest", now
    )
