"""The agent's loop: facts in, `core.worker` decides, commands out.  Everything slow happens in threads (`hands`).

The loop journals each batch of facts with the decision it caused before any command leaves.  An agent that restarts
feeds its journal back to the reducer, and is where it was.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from windfall import codec
from windfall.agent import hands, script
from windfall.agent.beliefs import BeliefsFile
from windfall.agent.keeping import keep, let_go
from windfall.agent.pages import PageWatcher
from windfall.agent.peers import Room
from windfall.agent.session import ExecRequest
from windfall.agent.standing import StandingFile
from windfall.agent.supervision import Supervision
from windfall.core import worker
from windfall.core.lifecycle import Stage
from windfall.errors import EXIT_AGAIN, EXIT_DONE, Fenced, NewerFormat, StoreError, StoreFull, WindfallError
from windfall.events import (
    AbandonCheckpoint,
    AcknowledgeNotice,
    AgentResumed,
    CheckpointRestored,
    Command,
    CommitCheckpoint,
    DeleteCheckpoints,
    ExitAgent,
    Fact,
    FenceLost,
    KillScript,
    NoticeReceived,
    PagesRead,
    PublishSave,
    ReleaseRun,
    Row,
    ScriptExited,
    ScriptStarted,
    ShowNotice,
    StartScript,
    StopAsked,
    Tell,
    UploadShard,
    WakeAt,
    WithdrawSave,
    Woke,
    WorkerBegan,
)
from windfall.ports import Clock, Journal, NoticeSource, Restored, RunHold
from windfall.results import StoreResult
from windfall.terms import Bytes, Cause, CheckpointRef, Instant, Notice, NoticeLevel, Outcome, Seconds, Term
from windfall.wire import environment, page

LOOK_S = 0.01
"""How often the pages are looked at."""
_IDLE_S = 0.5
_NOT_DELETED = "old checkpoints could not be deleted"
_UNWRITTEN_MAX = 100_000
"""More rows than this do not wait for a disk that is full."""


@dataclass(slots=True)
class AgentPorts:
    """Everything the loop touches."""

    clock: Clock
    hold: RunHold
    journal: Journal
    supervision: Supervision
    sources: Sequence[NoticeSource]
    inbox: queue.SimpleQueue[Fact] = field(default_factory=queue.SimpleQueue)
    room: Room | None = None
    """The other machines of the generation that this one leads."""


class Agent:
    """One term on one machine."""

    def __init__(self, request: ExecRequest, ports: AgentPorts) -> None:
        self._request = request
        self._ports = ports
        self._clock = ports.clock
        self._hold = ports.hold
        self._state = worker.begin()
        self._sequence = 0
        self._unwritten: deque[str] = deque()
        self._watcher: PageWatcher | None = None
        self._marks: dict[int, tuple[tuple[int, int, int], ...]] = {}
        self._timers: list[tuple[Instant, int, str]] = []
        self._wanted: dict[str, Instant] = {}
        self._log_thread = hands.Worker("log")
        self._cleaning_thread = hands.Worker("cleaning")
        self._uploads = hands.Uploads(ports.hold, ports.clock, ports.inbox.put)
        self._rank_told = False
        self._unreleased = False
        self._from = (0, 0)
        self._left: tuple[CheckpointRef, ...] = ()
        self._standing = StandingFile(request.status, ports.clock)
        self._beliefs = BeliefsFile(request.beliefs, ports.clock)
        self._ended = threading.Event()

    def progress(self) -> tuple[int, int, int]:
        """Return the script's start that runs, from which step it began, and which is complete; any thread may ask."""
        (attempt, first), watcher = self._from, self._watcher
        known = self._state.step
        own = None if watcher is None or self._ports.room is not None else watcher.step()
        return attempt, first, max(first, known if own is None else own)

    # ------------------------------------------------------------------------------------------------------ the loop

    def run(self, began: WorkerBegan | None) -> None:
        """Run the term to its end.

        Args:
            began: what the reducer has to know at the start; None to go on from this session's journal.
        """
        self._cleaning_thread.do(
            lambda: self._tidy(self._hold.sweep, "what dead machines left behind could not be deleted")
        )
        for source in self._ports.sources:
            threading.Thread(
                target=source.watch,
                args=(lambda notice: self._ports.inbox.put(NoticeReceived(notice)), self._ended.is_set),
                name=f"notices-{source.name}",
                daemon=True,
            ).start()
        self._react([began] if began is not None else self._resume())
        while not self._ended.is_set():
            facts = self._gather()
            if facts:
                self._react(facts)
            if self._standing.due:
                self._standing.show(worker.standing(self._state))

    def _gather(self) -> list[Fact]:
        """Wait for facts until the next look or timer is due; simultaneous facts come as one batch."""
        facts: list[Fact] = []
        with contextlib.suppress(queue.Empty):
            facts.append(self._ports.inbox.get(timeout=self._patience_s()))
            while True:
                facts.append(self._ports.inbox.get_nowait())
        now = self._clock.now()
        seen: list[Fact] = []
        if any(isinstance(fact, ScriptExited) for fact in facts):
            seen = self._last_look(now)
        elif self._watcher is not None:
            seen = self._look(self._watcher, now)
        facts += [*self._sigterm_of_a_rank(), *self._beliefs.news()]
        if self._watcher is not None and self._watcher.attached and _asks_for_status(facts):
            seen.append(self._watcher.observe())
        return self._digest(now, seen + facts + self._due(now))

    def _digest(self, now: Instant, facts: list[Fact]) -> list[Fact]:
        """Put what this machine saw together with what the other machines say, where there are any."""
        room = self._ports.room
        return facts if room is None else room.digest(now, facts, self._watcher)

    def _look(self, watcher: PageWatcher, now: Instant) -> list[Fact]:
        """Look at the pages; a script that speaks another version cannot save anything and is ended."""
        try:
            return watcher.look(now)
        except NewerFormat as error:
            self._ports.supervision.say(str(error))
            self._kill()
            return []

    def _sigterm_of_a_rank(self) -> list[Fact]:
        """SIGTERM to a rank alone is a hint: a launcher that ends its ranks because one failed sends the same."""
        if self._watcher is None or self._rank_told or not self._watcher.sigterm_seen_ns():
            return []
        self._rank_told = True
        return [NoticeReceived(Notice(NoticeLevel.HINT, "rank", "sigterm"))]

    def _last_look(self, now: Instant) -> list[Fact]:
        """Read what the script handed over and computed before it ended."""
        watcher, self._watcher = self._watcher, None
        with contextlib.suppress(NewerFormat):
            return [] if watcher is None else watcher.finish(now)
        return []

    def _patience_s(self) -> float:
        patience_s = LOOK_S if self._watcher is not None else _IDLE_S
        if self._timers:
            patience_s = min(patience_s, max(0.0, self._timers[0][0] - self._clock.now()))
        return patience_s

    def _due(self, now: Instant) -> list[Fact]:
        facts: list[Fact] = []
        while self._timers and self._timers[0][0] <= now:
            at, _, why = heapq.heappop(self._timers)
            if self._wanted.get(why) == at:
                del self._wanted[why]
                facts.append(Woke(why))
        return facts

    def _write_down(self, line: str) -> None:
        """Append a row to the journal; those that a full disk refuses wait in memory, and the run goes on."""
        self._unwritten.append(line)
        try:
            while self._unwritten:
                self._ports.journal.append(self._unwritten[0])
                self._unwritten.popleft()
        except (StoreFull, OSError) as error:
            if len(self._unwritten) > _UNWRITTEN_MAX:
                raise
            if len(self._unwritten) == 1:
                self._ports.supervision.say(f"the journal cannot be written, the run goes on without: {error}")

    def _react(self, facts: list[Fact]) -> None:
        now = self._clock.now()
        before = self._state
        self._state, decisions, commands = worker.react(before, now, tuple(facts))
        self._sequence += 1
        term, wall = Term(self._hold.state.term), self._clock.wall()
        row = Row(term, self._sequence, now, wall, tuple(facts), decisions, commands)
        self._write_down(codec.row_to_line(row))
        if before.checkpoints is not self._state.checkpoints or before.results is not self._state.results:
            self._let_go(before.held_paths - self._state.held_paths)
        if any(isinstance(command, KillScript) for command in commands):
            last = self._digest(now, self._last_look(now))
            if last:
                # The steps since the last window belong into the account although nothing follows from them any more.
                self._react(last)
        for command in commands:
            self._obey(command)

    def _let_go(self, paths: frozenset[str]) -> None:
        """Remove the links of what is stored, or given up."""
        if self._state.stage is Stage.ENDED or not paths:
            return
        held = self._request.path("held", str(self._ports.supervision.attempt))
        for path in paths:
            self._cleaning_thread.do(partial(let_go, held, path))
        if self._ports.room is not None:
            self._ports.room.let_go(self._state.committed_step, paths)

    def _resume(self) -> list[Fact]:
        """Feed the journal back; return the facts that tell the reducer what happened while no agent was there."""
        started = exited = first = 0
        for line in self._ports.journal.rows():
            row = codec.row_from_line(line)
            self._state, _, _ = worker.react(self._state, row.at, row.facts)
            self._sequence = row.sequence
            self._beliefs.remember(row.facts)
            for fact in row.facts:
                if isinstance(fact, PagesRead):
                    self._marks[fact.attempt] = fact.marks
                elif isinstance(fact, CheckpointRestored):
                    first = fact.step
                elif isinstance(fact, ScriptStarted):
                    started = fact.attempt
                    self._from = (started, first)
                elif isinstance(fact, ScriptExited):
                    exited = started
        supervision = self._ports.supervision
        facts: list[Fact] = [AgentResumed()]
        if supervision.attempt > started:
            facts.append(ScriptStarted(supervision.attempt))
        if supervision.attempt:
            self._watch_pages(supervision.attempt)
        if supervision.status is not None and supervision.attempt > exited:
            # The script ended while no agent was there: what it handed over meanwhile comes before its end.
            facts += [*self._last_look(self._clock.now()), ScriptExited(supervision.status)]
        return facts

    # ---------------------------------------------------------------------------------------------------- the commands

    def _obey(self, command: Command) -> None:
        match command:
            case StartScript() | CommitCheckpoint() | StoreResult() | DeleteCheckpoints() | ReleaseRun() | ExitAgent():
                self._log_thread.do(partial(self._obey_in_order, command))
            case KillScript() | PublishSave() | WithdrawSave() | ShowNotice():
                self._obey_towards_script(command)
            case UploadShard():
                if self._ports.room is None or not self._ports.room.upload(command):
                    self._uploads.start(command)
            case AbandonCheckpoint():
                self._abandon(command.checkpoint_id)
            case AcknowledgeNotice():
                self._acknowledge(command.notice)
            case Tell():
                self._ports.supervision.say(command.sentence)
            case WakeAt():
                self._wake_at(command)

    def _obey_in_order(
        self, command: StartScript | CommitCheckpoint | StoreResult | DeleteCheckpoints | ReleaseRun | ExitAgent
    ) -> None:
        """Carry out what appends to the log or must wait for it, in the log's own thread."""
        match command:
            case StartScript():
                self._start(command)
            case CommitCheckpoint():
                self._commit(command)
            case StoreResult():
                self._store_result(command)
            case DeleteCheckpoints():
                self._delete(command)
            case ReleaseRun():
                self._release(command)
            case ExitAgent():
                self._exit(command)

    def _obey_towards_script(self, command: KillScript | PublishSave | WithdrawSave | ShowNotice) -> None:
        match command:
            case KillScript():
                self._kill()
            case PublishSave():
                self._publish(command)
            case WithdrawSave():
                self._withdraw()
            case ShowNotice():
                self._show(command.notice)

    def _start(self, command: StartScript) -> None:
        if self._ports.supervision.attempt >= command.attempt:
            return  # an earlier agent started it before it died
        self._count()
        self._tidy(self._hold.write_counts, "the number of starts could not be stored")
        began = self._clock.now()
        try:
            restored = self._restore(command.attempt)
        except (WindfallError, OSError) as error:
            if self._ports.room is not None and self._ports.room.lost:
                return  # the reducer hears of it, and says the last words
            # Without its newest point a run would silently begin anew: better not to run at all.
            self._ports.supervision.say(f"the run cannot go on: {error}")
            with contextlib.suppress(WindfallError):
                self._hold.release(Outcome.WAITING, Cause.STOPPED)
            self._finish(getattr(error, "exit_code", 1))
            return
        took = Seconds(self._clock.now() - began)
        argv, state = self._request.argv or self._hold.state.command, self._hold.state
        port = script.free_port(self._request.peers)
        start = script.Start(state.run_id, state.term, command.attempt, restored, port)
        env = script.script_environment(self._request, start, argv)
        os.makedirs(env[environment.SESSION], mode=0o700, exist_ok=True)
        self._ports.inbox.put(
            CheckpointRestored(
                restored.checkpoint_id, restored.step, Bytes(restored.size_bytes), took, restored.skipped
            )
        )
        self._from = (command.attempt, restored.step)
        self._watch_pages(command.attempt)
        self._ports.supervision.start(command.attempt, argv, self._request.cwd, env)
        self._ports.inbox.put(ScriptStarted(command.attempt))
        if self._ports.room is not None:
            self._ports.room.start(command.attempt, port)

    def _restore(self, attempt: int) -> Restored:
        folder, room = self._request.path("points", str(attempt)), self._ports.room
        if room is None:
            return self._hold.restore(folder)
        room.prepare(attempt, self._hold.state, self._request.nonce)
        restored = self._hold.restore(folder)
        room.agree(restored, self._hold.state, self._request.nonce)
        return restored

    def _watch_pages(self, attempt: int) -> None:
        folder = os.path.join(self._request.pages, str(attempt))
        held = self._request.path("held", str(attempt))
        self._watcher = PageWatcher(
            folder,
            attempt,
            self._clock.now(),
            lambda path, name: keep(path, held, name),
            self._hold.identify,
            marks=self._marks.get(attempt, ()),
        )
        self._rank_told = False

    def _kill(self) -> None:
        self._ports.supervision.kill()
        if self._ports.room is not None:
            self._ports.room.kill()
        self._watcher = None

    def _publish(self, command: PublishSave) -> None:
        if self._watcher is None:
            return
        if self._ports.room is not None:
            self._ports.room.publish(command)
        self._watcher.publish(command)
        self._clock.sleep(Seconds(page.SETTLE_S))
        self._ports.inbox.put(self._watcher.observe(fresh=True))

    def _withdraw(self) -> None:
        if self._watcher is not None:
            self._watcher.withdraw()
        if self._ports.room is not None:
            self._ports.room.withdraw()

    def _show(self, notice: Notice) -> None:
        if self._watcher is not None:
            self._watcher.show_notice(notice.level, notice.deadline)
        script.show_notice(self._request, notice, self._clock)
        if self._ports.room is not None:
            self._ports.room.show(notice)

    def _count(self) -> None:
        self._hold.count(**worker.counts(self._state), costs=worker.save_costs(self._state))

    def _commit(self, command: CommitCheckpoint) -> None:
        self._count()
        hands.commit(self._hold, self._clock, self._ports.inbox.put, command)

    def _store_result(self, command: StoreResult) -> None:
        self._count()
        replaced = hands.store_result(self._hold, self._clock, self._ports.inbox.put, command)
        if replaced:
            self._remove(replaced)

    def _delete(self, command: DeleteCheckpoints) -> None:
        if self._state.stage is Stage.ENDED:
            self._left = command.checkpoints  # given up by the release, and deleted behind it
        elif self._tidy(lambda: self._hold.give_up(command.checkpoints), _NOT_DELETED):
            self._remove(command.checkpoints)

    def _remove(self, refs: tuple[CheckpointRef, ...]) -> None:
        self._cleaning_thread.do(lambda: self._tidy(lambda: self._hold.delete(refs), _NOT_DELETED))

    def _abandon(self, checkpoint_id: str) -> None:
        self._uploads.abandon(checkpoint_id)
        if self._ports.room is not None:
            self._ports.room.abandon(checkpoint_id)
        self._cleaning_thread.do(
            lambda: self._tidy(
                lambda: self._hold.abandon(checkpoint_id), f"the uncommitted point {checkpoint_id} could not be deleted"
            )
        )

    def _tidy(self, action: Callable[[], object], what: str) -> bool:
        return hands.tidy(action, self._ports.inbox.put, self._ports.supervision.say, what)

    def _acknowledge(self, notice: Notice) -> None:
        if self._ports.room is not None and self._ports.room.brought(notice):
            self._log_thread.do(partial(self._ports.room.acknowledge, notice))
            return
        for source in self._ports.sources:
            if source.name == notice.source:
                # Behind the release and before the exit, which wait in the same queue: the source bounds its tries.
                self._log_thread.do(partial(source.acknowledge, notice))

    def _release(self, command: ReleaseRun) -> None:
        self._count()
        with contextlib.suppress(StoreError):
            self._hold.ship()
        try:
            self._left = self._hold.release(command.outcome, command.cause, command.notice_s, going=self._left)
            self._standing.release(command.outcome, worker.standing(self._state))
            if self._ports.room is not None:
                self._ports.room.release(command.outcome)
        except Fenced as error:
            self._ports.inbox.put(FenceLost(error.record, error.holder))
        except StoreError as error:
            if command.outcome is Outcome.DONE:
                line = "" if self._state.first.kept else ": start the same line again here to say so"
                left = f"the script is done, and nothing of it is trained again{line}"
            else:
                left = "its lease will run out by itself"
            self._ports.supervision.say(f"the run could not be released ({error}); {left}")
            self._unreleased = True

    def _exit(self, command: ExitAgent) -> None:
        if command.sentence:
            self._ports.supervision.say(command.sentence)
        if not self._unreleased:
            if self._left:
                self._tidy(lambda: self._hold.delete(self._left), _NOT_DELETED)
            with contextlib.suppress(WindfallError):
                self._hold.ship()
        # Whoever reads "done" from the exit code must be able to rely on the store saying so too.
        code = EXIT_AGAIN if self._unreleased and command.code == EXIT_DONE else command.code
        self._finish(code, command.sentence)

    def _finish(self, code: int, sentence: str = "") -> None:
        if self._ports.room is not None:
            self._ports.room.end(code, sentence)
        self._ports.supervision.exit(code)
        self._ended.set()

    def _wake_at(self, command: WakeAt) -> None:
        self._wanted[command.why] = command.at
        heapq.heappush(self._timers, (command.at, len(self._timers), command.why))


def _asks_for_status(facts: list[Fact]) -> bool:
    return any(isinstance(fact, (NoticeReceived, StopAsked)) for fact in facts)
