"""The agent's loop: facts in, `core.worker` decides, commands out.  Everything slow runs in threads (`background`).

The loop journals each batch of facts with the decisions and commands that follow before it executes a command.  A
restarted agent replays its journal through the reducer and continues from there.
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
from windfall import events as ev
from windfall.agent import background, script_environment
from windfall.agent.coordinator import Coordinator
from windfall.agent.exec_request import ExecRequest
from windfall.agent.hard_links import link_handover, remove_links
from windfall.agent.page_watcher import PageWatcher
from windfall.agent.status_files import EstimatesFile, StatusFile
from windfall.agent.supervisor_client import SupervisorClient
from windfall.core import worker
from windfall.core.lifecycle import WorkerStage
from windfall.errors import EXIT_DONE, EXIT_RETRY, Fenced, NewerFormat, StoreError, StoreFull, WindfallError
from windfall.ports import Clock, Journal, NoticeSource, Restored, RunLease
from windfall.results import StoreResult
from windfall.terms import Bytes, Cause, CheckpointRef, Instant, Notice, NoticeLevel, Outcome, Seconds, Term
from windfall.wire import environment, script_page

POLL_S = 0.01
"""How often the pages are polled [s]."""
_IDLE_S = 0.5
_Ordered = ev.StartScript | ev.CommitCheckpoint | StoreResult | ev.DeleteCheckpoints | ev.ReleaseRun | ev.ExitAgent
"""Commands that append to the log or must wait for it: one thread executes them in their order."""
_NOT_DELETED = "cannot delete old checkpoints"
_UNWRITTEN_MAX = 100_000
"""With more rows than this waiting for a full disk, the agent fails."""


@dataclass(slots=True)
class AgentPorts:
    """Everything the loop depends on."""

    clock: Clock
    lease: RunLease
    journal: Journal
    supervision: SupervisorClient
    sources: Sequence[NoticeSource]
    inbox: queue.SimpleQueue[ev.Fact] = field(default_factory=queue.SimpleQueue)
    coordinator: Coordinator | None = None
    """The other machines of the generation, if this machine leads one."""


class Agent:
    """One term on one machine."""

    def __init__(self, request: ExecRequest, ports: AgentPorts) -> None:
        self._request = request
        self._ports = ports
        self._clock = ports.clock
        self._lease = ports.lease
        self._state = worker.initial_state()
        self._sequence = 0
        self._unwritten: deque[str] = deque()
        self._watcher: PageWatcher | None = None
        self._positions: dict[int, tuple[tuple[int, int, int], ...]] = {}
        self._timers: list[tuple[Instant, int, str]] = []
        self._timer_due: dict[str, Instant] = {}
        self._log_thread = background.TaskThread("log")
        self._cleaning_thread = background.TaskThread("cleaning")
        self._uploads = background.UploadQueue(ports.lease, ports.clock, ports.inbox.put)
        self._sigterm_reported = False
        self._unreleased = False
        self._attempt_start = (0, 0)
        self._pending_deletes: tuple[CheckpointRef, ...] = ()
        self._status_file = StatusFile(request.status, ports.clock)
        self._estimates = EstimatesFile(request.estimates, ports.clock)
        self._ended = threading.Event()

    def progress(self) -> tuple[int, int, int]:
        """Return the current attempt, the step it started from and its last complete step; safe from any thread."""
        (attempt, first), watcher = self._attempt_start, self._watcher
        known = self._state.step
        own = None if watcher is None or self._ports.coordinator is not None else watcher.step()
        return attempt, first, max(first, known if own is None else own)

    # ------------------------------------------------------------------------------------------------------ the loop

    def run(self, started: ev.WorkerStarted | None) -> None:
        """Run the term to its end.

        Args:
            started: the reducer's first fact; None to continue from this session's journal.
        """
        self._cleaning_thread.submit(
            lambda: self._best_effort(self._lease.sweep, "cannot delete what dead machines left behind")
        )
        for source in self._ports.sources:
            threading.Thread(
                target=source.watch,
                args=(lambda notice: self._ports.inbox.put(ev.NoticeReceived(notice)), self._ended.is_set),
                name=f"notices-{source.name}",
                daemon=True,
            ).start()
        self._process([started] if started is not None else self._resume())
        while not self._ended.is_set():
            facts = self._collect_facts()
            if facts:
                self._process(facts)
            if self._status_file.due:
                self._status_file.show(worker.run_status(self._state))

    def _collect_facts(self) -> list[ev.Fact]:
        """Wait for facts until the next poll or timer is due; return simultaneous facts as one batch."""
        facts: list[ev.Fact] = []
        with contextlib.suppress(queue.Empty):
            facts.append(self._ports.inbox.get(timeout=self._timeout_s()))
            while True:
                facts.append(self._ports.inbox.get_nowait())
        now = self._clock.now()
        seen: list[ev.Fact] = []
        if any(isinstance(fact, ev.ScriptExited) for fact in facts):
            seen = self._final_poll(now)
        elif self._watcher is not None:
            seen = self._poll_pages(self._watcher, now)
        facts += [*self._rank_sigterm(), *self._estimates.changes()]
        if self._watcher is not None and self._watcher.attached and _asks_for_status(facts):
            seen.append(self._watcher.observe())
        return self._merge_remote(now, seen + facts + self._due_timers(now))

    def _merge_remote(self, now: Instant, facts: list[ev.Fact]) -> list[ev.Fact]:
        """Merge this machine's facts with those of the other machines, if there are any."""
        coordinator = self._ports.coordinator
        return facts if coordinator is None else coordinator.merge_facts(now, facts, self._watcher)

    def _poll_pages(self, watcher: PageWatcher, now: Instant) -> list[ev.Fact]:
        """Poll the pages; kill a script whose Windfall version differs, because it could not save."""
        try:
            return watcher.poll(now)
        except NewerFormat as error:
            self._ports.supervision.log(str(error))
            self._kill()
            return []

    def _rank_sigterm(self) -> list[ev.Fact]:
        """Report SIGTERM to a rank as a hint: a launcher sends the same when it ends its ranks after a failure."""
        if self._watcher is None or self._sigterm_reported or not self._watcher.sigterm_seen_ns():
            return []
        self._sigterm_reported = True
        return [ev.NoticeReceived(Notice(NoticeLevel.HINT, "rank", "sigterm"))]

    def _final_poll(self, now: Instant) -> list[ev.Fact]:
        """Read what the script handed over and computed before its end."""
        watcher, self._watcher = self._watcher, None
        with contextlib.suppress(NewerFormat):
            return [] if watcher is None else watcher.finish(now)
        return []

    def _timeout_s(self) -> float:
        timeout_s = POLL_S if self._watcher is not None else _IDLE_S
        if self._timers:
            timeout_s = min(timeout_s, max(0.0, self._timers[0][0] - self._clock.now()))
        return timeout_s

    def _due_timers(self, now: Instant) -> list[ev.Fact]:
        facts: list[ev.Fact] = []
        while self._timers and self._timers[0][0] <= now:
            at, _, reason = heapq.heappop(self._timers)
            if self._timer_due.get(reason) == at:
                del self._timer_due[reason]
                facts.append(ev.TimerFired(reason))
        return facts

    def _append_row(self, line: str) -> None:
        """Append a row to the journal; rows that a full disk refuses wait in memory while the run continues."""
        self._unwritten.append(line)
        try:
            while self._unwritten:
                self._ports.journal.append(self._unwritten[0])
                self._unwritten.popleft()
        except (StoreFull, OSError) as error:
            if len(self._unwritten) > _UNWRITTEN_MAX:
                raise
            if len(self._unwritten) == 1:
                self._ports.supervision.log(f"cannot write the journal; the run continues without it: {error}")

    def _process(self, facts: list[ev.Fact]) -> None:
        now = self._clock.now()
        before = self._state
        self._state, decisions, commands = worker.react(before, now, tuple(facts))
        self._sequence += 1
        term, wall_time = Term(self._lease.state.term), self._clock.wall_time()
        row = ev.Row(term, self._sequence, now, wall_time, tuple(facts), decisions, commands)
        self._append_row(codec.row_to_line(row))
        if before.checkpoints is not self._state.checkpoints or before.results is not self._state.results:
            self._remove_links(before.held_paths - self._state.held_paths)
        if any(isinstance(command, ev.KillScript) for command in commands):
            last = self._merge_remote(now, self._final_poll(now))
            if last:
                # The steps since the last window belong in the account, although no decision depends on them.
                self._process(last)
        for command in commands:
            self._execute(command)

    def _remove_links(self, paths: frozenset[str]) -> None:
        """Remove the links to what is stored or given up."""
        if self._state.stage is WorkerStage.ENDED or not paths:
            return
        held = self._request.path("held", str(self._ports.supervision.attempt))
        for path in paths:
            self._cleaning_thread.submit(partial(remove_links, held, path))
        if self._ports.coordinator is not None:
            self._ports.coordinator.committed(self._state.committed_step, paths)

    def _resume(self) -> list[ev.Fact]:
        """Replay the journal; return the facts about what happened while no agent was running."""
        started = exited = first = 0
        for line in self._ports.journal.rows():
            row = codec.row_from_line(line)
            self._state, _, _ = worker.react(self._state, row.at, row.facts)
            self._sequence = row.sequence
            self._estimates.remember(row.facts)
            for fact in row.facts:
                if isinstance(fact, ev.PagesRead):
                    self._positions[fact.attempt] = fact.positions
                elif isinstance(fact, ev.CheckpointRestored):
                    first = fact.step
                elif isinstance(fact, ev.ScriptStarted):
                    started = fact.attempt
                    self._attempt_start = (started, first)
                elif isinstance(fact, ev.ScriptExited):
                    exited = started
        supervision = self._ports.supervision
        facts: list[ev.Fact] = [ev.AgentResumed()]
        if supervision.attempt > started:
            facts.append(ev.ScriptStarted(supervision.attempt))
        if supervision.attempt:
            self._watch_pages(supervision.attempt)
        if supervision.status is not None and supervision.attempt > exited:
            # The script ended while no agent was running: what it handed over until then comes before its end.
            facts += [*self._final_poll(self._clock.now()), ev.ScriptExited(supervision.status)]
        return facts

    # ---------------------------------------------------------------------------------------------------- the commands

    def _execute(self, command: ev.Command) -> None:
        match command:
            case ev.StartScript() | ev.CommitCheckpoint() | StoreResult() | ev.DeleteCheckpoints():
                self._log_thread.submit(partial(self._execute_in_order, command))
            case ev.ReleaseRun() | ev.ExitAgent():
                self._log_thread.submit(partial(self._execute_in_order, command))
            case ev.KillScript() | ev.PublishSave() | ev.WithdrawSave() | ev.ShowNotice():
                self._execute_on_script(command)
            case ev.UploadShard():
                if self._ports.coordinator is None or not self._ports.coordinator.upload(command):
                    self._uploads.start(command)
            case ev.AbandonCheckpoint():
                self._abandon(command.checkpoint_id)
            case ev.AcknowledgeNotice():
                self._acknowledge(command.notice)
            case ev.LogMessage():
                self._ports.supervision.log(command.message)
            case ev.SetTimer():
                self._set_timer(command)

    def _execute_in_order(self, command: _Ordered) -> None:
        """Execute, in the log's own thread, what appends to the log or must wait for it."""
        match command:
            case ev.StartScript():
                self._start(command)
            case ev.CommitCheckpoint():
                self._commit(command)
            case StoreResult():
                self._store_result(command)
            case ev.DeleteCheckpoints():
                self._delete(command)
            case ev.ReleaseRun():
                self._release(command)
            case ev.ExitAgent():
                self._exit(command)

    def _execute_on_script(self, command: ev.KillScript | ev.PublishSave | ev.WithdrawSave | ev.ShowNotice) -> None:
        match command:
            case ev.KillScript():
                self._kill()
            case ev.PublishSave():
                self._publish(command)
            case ev.WithdrawSave():
                self._withdraw()
            case ev.ShowNotice():
                self._show(command.notice)

    def _start(self, command: ev.StartScript) -> None:
        if self._ports.supervision.attempt >= command.attempt:
            return  # an earlier agent started it before it died
        self._store_counts()
        self._best_effort(self._lease.write_counts, "cannot store the number of attempts")
        restore_started = self._clock.now()
        try:
            restored = self._restore(command.attempt)
        except (WindfallError, OSError) as error:
            if self._ports.coordinator is not None and self._ports.coordinator.lost:
                return  # the reducer receives it and ends the generation
            # Starting without the newest checkpoint would silently discard the run's progress.
            self._ports.supervision.log(f"cannot restore the run: {error}")
            with contextlib.suppress(WindfallError):
                self._lease.release(Outcome.WAITING, Cause.STOPPED)
            self._finish(getattr(error, "exit_code", 1))
            return
        took = Seconds(self._clock.now() - restore_started)
        argv, state = self._request.argv or self._lease.state.command, self._lease.state
        port = script_environment.master_port(self._request.peers)
        start = script_environment.ScriptStart(state.run_id, state.term, command.attempt, restored, port)
        env = script_environment.script_environment(self._request, start, argv)
        os.makedirs(env[environment.SESSION], mode=0o700, exist_ok=True)
        self._ports.inbox.put(
            ev.CheckpointRestored(
                restored.checkpoint_id, restored.step, Bytes(restored.size_bytes), took, restored.skipped
            )
        )
        self._attempt_start = (command.attempt, restored.step)
        self._watch_pages(command.attempt)
        self._ports.supervision.start(command.attempt, argv, self._request.cwd, env)
        self._ports.inbox.put(ev.ScriptStarted(command.attempt))
        if self._ports.coordinator is not None:
            self._ports.coordinator.start(command.attempt, port)

    def _restore(self, attempt: int) -> Restored:
        folder, coordinator = self._request.path("checkpoints", str(attempt)), self._ports.coordinator
        if coordinator is None:
            return self._lease.restore(folder)
        coordinator.prepare(attempt, self._lease.state, self._request.nonce)
        restored = self._lease.restore(folder)
        coordinator.confirm_restored(restored, self._lease.state, self._request.nonce)
        return restored

    def _watch_pages(self, attempt: int) -> None:
        folder = os.path.join(self._request.pages, str(attempt))
        held = self._request.path("held", str(attempt))
        self._watcher = PageWatcher(
            folder,
            attempt,
            self._clock.now(),
            lambda path, name: link_handover(path, held, name),
            self._lease.identify,
            positions=self._positions.get(attempt, ()),
        )
        self._sigterm_reported = False

    def _kill(self) -> None:
        self._ports.supervision.kill()
        if self._ports.coordinator is not None:
            self._ports.coordinator.kill()
        self._watcher = None

    def _publish(self, command: ev.PublishSave) -> None:
        if self._watcher is None:
            return
        if self._ports.coordinator is not None:
            self._ports.coordinator.publish(command)
        self._watcher.publish(command)
        self._clock.sleep(Seconds(script_page.SETTLE_S))
        self._ports.inbox.put(self._watcher.observe(fresh=True))

    def _withdraw(self) -> None:
        if self._watcher is not None:
            self._watcher.withdraw()
        if self._ports.coordinator is not None:
            self._ports.coordinator.withdraw()

    def _show(self, notice: Notice) -> None:
        if self._watcher is not None:
            self._watcher.show_notice(notice.level, notice.deadline)
        script_environment.show_notice(self._request, notice, self._clock)
        if self._ports.coordinator is not None:
            self._ports.coordinator.show(notice)

    def _store_counts(self) -> None:
        self._lease.count(**worker.counts(self._state), costs=worker.save_costs(self._state))

    def _commit(self, command: ev.CommitCheckpoint) -> None:
        self._store_counts()
        background.commit(self._lease, self._clock, self._ports.inbox.put, command)

    def _store_result(self, command: StoreResult) -> None:
        self._store_counts()
        replaced = background.store_result(self._lease, self._clock, self._ports.inbox.put, command)
        if replaced:
            self._remove(replaced)

    def _delete(self, command: ev.DeleteCheckpoints) -> None:
        if self._state.stage is WorkerStage.ENDED:
            self._pending_deletes = command.checkpoints  # given up by the release and deleted after it
        elif self._best_effort(lambda: self._lease.drop_checkpoints(command.checkpoints), _NOT_DELETED):
            self._remove(command.checkpoints)

    def _remove(self, refs: tuple[CheckpointRef, ...]) -> None:
        self._cleaning_thread.submit(lambda: self._best_effort(lambda: self._lease.delete(refs), _NOT_DELETED))

    def _abandon(self, checkpoint_id: str) -> None:
        self._uploads.abandon(checkpoint_id)
        if self._ports.coordinator is not None:
            self._ports.coordinator.abandon(checkpoint_id)
        self._cleaning_thread.submit(
            lambda: self._best_effort(
                lambda: self._lease.abandon(checkpoint_id), f"cannot delete the uncommitted checkpoint {checkpoint_id}"
            )
        )

    def _best_effort(self, action: Callable[[], object], failure: str) -> bool:
        return background.best_effort(action, self._ports.inbox.put, self._ports.supervision.log, failure)

    def _acknowledge(self, notice: Notice) -> None:
        if self._ports.coordinator is not None and self._ports.coordinator.is_from_member(notice):
            self._log_thread.submit(partial(self._ports.coordinator.acknowledge, notice))
            return
        for source in self._ports.sources:
            # After the release and before the exit, which wait in the same queue; the source bounds its attempts.
            self._log_thread.submit(partial(source.acknowledge, notice))

    def _release(self, command: ev.ReleaseRun) -> None:
        self._store_counts()
        with contextlib.suppress(StoreError):
            self._lease.ship()
        try:
            self._pending_deletes = self._lease.release(
                command.outcome, command.cause, command.notice_s, drop=self._pending_deletes
            )
            self._status_file.release(command.outcome, worker.run_status(self._state))
            if self._ports.coordinator is not None:
                self._ports.coordinator.release(command.outcome)
        except Fenced as error:
            self._ports.inbox.put(ev.FenceLost(error.record, error.holder))
        except StoreError as error:
            if command.outcome is Outcome.DONE:
                managed = self._state.first.managed
                advice = "" if managed else "; run the same command again on this machine to mark the run as done"
                outcome = f"the script has finished and no step is trained again{advice}"
            else:
                outcome = "another machine can take it when its lease expires"
            self._ports.supervision.log(f"cannot release the run ({error}); {outcome}")
            self._unreleased = True

    def _exit(self, command: ev.ExitAgent) -> None:
        if command.message:
            self._ports.supervision.log(command.message)
        if not self._unreleased:
            if self._pending_deletes:
                self._best_effort(lambda: self._lease.delete(self._pending_deletes), _NOT_DELETED)
            with contextlib.suppress(WindfallError):
                self._lease.ship()
        # Exit code 0 promises that the store says "done" too.
        code = EXIT_RETRY if self._unreleased and command.code == EXIT_DONE else command.code
        self._finish(code, command.message)

    def _finish(self, code: int, message: str = "") -> None:
        if self._ports.coordinator is not None:
            self._ports.coordinator.end(code, message)
        self._ports.supervision.exit(code)
        self._ended.set()

    def _set_timer(self, command: ev.SetTimer) -> None:
        self._timer_due[command.name] = command.at
        heapq.heappush(self._timers, (command.at, len(self._timers), command.name))


def _asks_for_status(facts: list[ev.Fact]) -> bool:
    return any(isinstance(fact, (ev.NoticeReceived, ev.RunStopRequested)) for fact in facts)
