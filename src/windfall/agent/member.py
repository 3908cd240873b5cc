"""The agent of a member: a machine of a generation that another machine leads.

It decides nothing: it sends the facts of its pages to the leader and executes the leader's commands.  If the leader is
lost, it kills the script and `exec` exits with 75; what this machine has uploaded can no longer be committed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from windfall.agent import background, script_environment
from windfall.agent.coordinator import PeerMessageReceived
from windfall.agent.exec_request import ExecRequest
from windfall.agent.hard_links import link_handover, remove_links
from windfall.agent.page_watcher import PageWatcher
from windfall.agent.peer_link import PeerLink
from windfall.agent.status_files import StatusFile
from windfall.agent.supervisor_client import SupervisorClient
from windfall.core.node_agent_state import RunStatus
from windfall.errors import EXIT_RETRY, NewerFormat, StoreError, WindfallError
from windfall.events import (
    Fact,
    NoticeReceived,
    PeerLost,
    PublishSave,
    RunStopRequested,
    ScriptExited,
    ShardFailed,
    ShardUploaded,
    UploadShard,
)
from windfall.ports import Clock, NoticeSource, Restored
from windfall.structs import replace
from windfall.terms import Instant, Notice, NoticeLevel, Outcome, RunState, Seconds, Shard, Step, Term
from windfall.wire import environment, script_page
from windfall.wire.peer_messages import (
    PeerAbandon,
    PeerAcknowledge,
    PeerCommitted,
    PeerExit,
    PeerExited,
    PeerFacts,
    PeerKill,
    PeerMessage,
    PeerNotice,
    PeerPrepare,
    PeerPrepared,
    PeerPrepareFailed,
    PeerPublish,
    PeerShow,
    PeerStart,
    PeerStop,
    PeerUpload,
    PeerUploaded,
    PeerWithdraw,
)

POLL_S = 0.01
LEADER = 0
STATUS_S = 0.1
"""How often this machine reports its ranks' progress to the leader [s]."""
SHIP_S = 5.0
"""How often this machine's output is appended to the run's [s]."""
_IDLE_S = 0.5
_KILLED = 128 + 9


class MemberRunView(Protocol):
    """The run as a member sees it; any call may raise a `StoreError`."""

    @property
    def state(self) -> RunState:
        """The newest state that this machine has read."""
        ...

    def follow(self, term: int, nonce: str) -> RunState:
        """Follow the leader's term; raise `Fenced` if the run's newest term is another one."""
        ...

    def restore(self, folder: str, checkpoint_id: str | None) -> Restored:
        """Restore the newest intact checkpoint, or the given one, to a folder."""
        ...

    def identify(self, path: str) -> str:
        """Return a fingerprint that changes when a handed-over file or folder is written again."""
        ...

    def upload(self, command: UploadShard, cancelled: Callable[[], bool]) -> Shard | None:
        """Move one rank's shard to the store; return None if the upload was cancelled."""
        ...

    def forget(self) -> None:
        """Forget what has been uploaded so far."""
        ...

    def ship(self) -> None:
        """Append what the script has printed to the run."""
        ...


@dataclass(slots=True)
class MemberPorts:
    """Everything a member depends on.

    Attributes:
        place_code: (state) -> the folder to run in, where the run's code has been put.
    """

    clock: Clock
    lease: MemberRunView
    supervision: SupervisorClient
    sources: Sequence[NoticeSource]
    place_code: Callable[[RunState], str]
    inbox: queue.SimpleQueue[Fact] = field(default_factory=queue.SimpleQueue)


class MemberLoop:
    """One generation on a machine that does not lead it."""

    def __init__(self, request: ExecRequest, ports: MemberPorts, connection: socket.socket) -> None:
        """Start the link to the leader.

        Args:
            request: of this `exec`.
            ports: of this machine.
            connection: to the leader, after the handshake.
        """
        self._request = request
        self._ports = ports
        self._clock = ports.clock
        self._watcher: PageWatcher | None = None
        self._attempt = 0
        self._killed = 0
        self._published = 0
        self._sigterm_reported = False
        self._step = Step(0)
        self._saved_step = Step(0)
        self._reported_at = Instant(0.0)
        self._restored: Restored | None = None
        self._cwd = request.cwd
        self._ended = threading.Event()
        self._work = background.TaskThread("restoring")
        self._uploads = background.UploadQueue(ports.lease, ports.clock, ports.inbox.put)
        self._status_file = StatusFile(request.status, ports.clock)
        self._start_lock = threading.Lock()
        self._link = PeerLink(connection, ports.clock, self._receive, self._on_lost)

    def _receive(self, message: PeerMessage, at: Instant) -> None:
        self._ports.inbox.put(PeerMessageReceived(LEADER, message, at))

    def _on_lost(self, reason: str) -> None:
        leader = self._request.peers[LEADER]
        self._ports.inbox.put(PeerLost(LEADER, f"lost the leader of this generation ({leader}): {reason}"))

    def run(self) -> None:
        """Take part until the generation ends."""
        for source in self._ports.sources:
            threading.Thread(
                target=source.watch,
                args=(lambda notice: self._ports.inbox.put(NoticeReceived(notice)), self._ended.is_set),
                name=f"notices-{source.name}",
                daemon=True,
            ).start()
        self._link.start()
        threading.Thread(target=self._ship, name="output", daemon=True).start()
        while not self._ended.is_set():
            self._turn()
            self._show()

    def _ship(self) -> None:
        while not self._ended.wait(SHIP_S):
            with contextlib.suppress(StoreError):
                self._ports.lease.ship()

    def _turn(self) -> None:
        received: list[Fact] = []
        with contextlib.suppress(queue.Empty):
            received.append(self._ports.inbox.get(timeout=POLL_S if self._watcher is not None else _IDLE_S))
            while True:
                received.append(self._ports.inbox.get_nowait())
        self._poll_pages()
        for fact in received:
            self._handle(fact)

    def _poll_pages(self) -> None:
        now = self._clock.now()
        if self._watcher is None:
            return
        try:
            facts = self._watcher.poll(now)
        except NewerFormat as error:
            self._ports.supervision.log(str(error))
            self._ports.supervision.kill()
            self._watcher = None
            return
        if self._watcher.attached and now >= self._reported_at + STATUS_S:
            facts.append(self._watcher.observe())
        if self._watcher.sigterm_seen_ns() and not self._sigterm_reported:
            self._sigterm_reported = True
            self._ports.inbox.put(NoticeReceived(Notice(NoticeLevel.HINT, "rank", "sigterm")))
        self._send_pages(facts, now)

    def _send_pages(self, facts: list[Fact], at: Instant) -> None:
        if not facts:
            return
        self._reported_at = at
        self._link.send(PeerFacts(self._attempt, at, self._published, tuple(facts)))
        if self._watcher is not None:
            self._step = max((status.step for status in self._watcher.observe().ranks), default=self._step)

    def _show(self) -> None:
        if self._attempt:
            term, training = self._ports.lease.state.term, self._watcher is not None
            self._status_file.show(RunStatus(term, self._step, self._saved_step, self._attempt, training=training))

    # ---------------------------------------------------------------------------------------------------------- facts here

    def _handle(self, fact: Fact) -> None:
        match fact:
            case PeerMessageReceived():
                self._execute(fact.message)
            case ScriptExited():
                self._exited(fact.status)
            case NoticeReceived():
                self._link.send(PeerNotice(fact.notice, self._clock.now()))
            case RunStopRequested():
                self._link.send(PeerStop(fact.now, fact.reason))
            case ShardUploaded() | ShardFailed():
                self._link.send(PeerUploaded((fact,)))
            case PeerLost():
                self._end(EXIT_RETRY, f"{fact.message}; this machine stops and stores nothing more")

    def _exited(self, status: int) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            with contextlib.suppress(NewerFormat):
                now = self._clock.now()
                self._send_pages(watcher.finish(now), now)
        self._link.send(PeerExited(self._attempt, status))

    def _end(self, code: int, message: str) -> None:
        if message:
            self._ports.supervision.log(message)
        self._ended.set()
        with contextlib.suppress(StoreError):
            self._ports.lease.ship()
        self._ports.supervision.exit(code)

    # --------------------------------------------------------------------------------------------- the leader's commands

    def _execute(self, message: PeerMessage) -> None:
        match message:
            case PeerPrepare():
                self._work.submit(lambda: self._prepare(message))
            case PeerStart(attempt, port):
                self._work.submit(lambda: self._start(attempt, port))
            case PeerKill(attempt):
                self._kill(attempt)
            case PeerExit():
                self._leave(message)
            case PeerPublish(attempt, command):
                self._publish(command, attempt)
            case PeerWithdraw() if self._watcher is not None:
                self._watcher.withdraw()
            case PeerShow(notice, remaining_s):
                self._show_notice(notice, remaining_s)
            case PeerUpload(command):
                self._uploads.start(command)
            case PeerAbandon(checkpoint_id):
                self._uploads.abandon(checkpoint_id)
            case PeerCommitted(step, paths):
                self._remove_links(Step(step), paths)
            case PeerAcknowledge(notice):
                self._acknowledge(notice)

    def _leave(self, message: PeerExit) -> None:
        for outcome in Outcome:
            if outcome.value == message.released:
                self._status_file.release(outcome)
        self._end(message.code, message.message)

    def _prepare(self, message: PeerPrepare) -> None:
        """Restore in a separate thread, so that the link stays alive and a lost leader is noticed."""
        attempt = message.attempt
        try:
            state = self._ports.lease.follow(Term(message.term), message.nonce)
            if attempt != self._attempt:
                self._cwd = self._ports.place_code(state)
            self._restored = self._ports.lease.restore(
                self._request.path("checkpoints", str(attempt)), message.checkpoint_id
            )
        except (WindfallError, OSError) as error:
            self._link.send(PeerPrepareFailed(attempt, getattr(error, "exit_code", 1), str(error)))
        else:
            self._attempt = attempt
            self._saved_step = self._restored.step
            self._link.send(PeerPrepared(attempt, self._restored.checkpoint_id, self._restored.step))

    def _start(self, attempt: int, port: int) -> None:
        with self._start_lock:
            if attempt == self._killed:
                self._link.send(PeerExited(attempt, _KILLED))
            else:
                self._start_script(attempt, port)

    def _start_script(self, attempt: int, port: int) -> None:
        assert self._restored is not None, "the leader starts only prepared attempts"
        state = self._ports.lease.state
        argv = self._request.argv or state.command
        start = script_environment.ScriptStart(state.run_id, state.term, attempt, self._restored, port)
        env = script_environment.script_environment(self._request, start, argv)
        folder = env[environment.SESSION]
        os.makedirs(folder, mode=0o700, exist_ok=True)
        held = self._request.path("held", str(attempt))
        self._published, self._sigterm_reported = 0, False
        self._watcher = PageWatcher(
            folder,
            attempt,
            self._clock.now(),
            lambda path, name: link_handover(path, held, name),
            self._ports.lease.identify,
        )
        self._ports.supervision.start(attempt, argv, self._cwd, env)

    def _kill(self, attempt: int) -> None:
        """Kill an attempt, even before its start, which may be waiting for a restore."""
        with self._start_lock:
            self._killed = attempt
            self._ports.supervision.kill()

    def _publish(self, command: PublishSave, attempt: int) -> None:
        if self._watcher is None or attempt != self._attempt:
            return
        self._watcher.publish(command)
        self._clock.sleep(Seconds(script_page.SETTLE_S))
        started = self._clock.now()
        seen = self._watcher.observe(fresh=True)
        # Earlier answers of the ranks must precede the observation that could find them silent.
        self._poll_pages()
        self._published = command.request
        self._send_pages([seen], started)

    def _show_notice(self, received: Notice, remaining_s: float | None) -> None:
        deadline = None if remaining_s is None else Instant(self._clock.now() + remaining_s)
        notice = replace(received, deadline=deadline)
        if self._watcher is not None:
            self._watcher.show_notice(NoticeLevel(notice.level), notice.deadline)
        script_environment.show_notice(self._request, notice, self._clock)

    def _acknowledge(self, notice: Notice) -> None:
        for source in self._ports.sources:
            with contextlib.suppress(StoreError):
                source.acknowledge(notice)

    def _remove_links(self, step: Step, paths: Sequence[str]) -> None:
        if step > self._saved_step:
            self._saved_step = step
            self._ports.lease.forget()
        held = self._request.path("held", str(self._attempt))
        for path in paths:
            self._work.submit(partial(remove_links, held, path))
