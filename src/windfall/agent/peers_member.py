"""The agent of a machine that takes part in a generation without leading it: eyes and hands of the leader's reducer.

It decides nothing.  What its pages say goes to the leader, what the leader orders is done here.  When the leader is lost
the script is killed and `exec` ends with 75: what this machine had uploaded can enter no commit any more.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from windfall import codec
from windfall.agent import hands, script
from windfall.agent.keeping import keep, let_go
from windfall.agent.pages import PageWatcher
from windfall.agent.peers import Heard, words_of
from windfall.agent.peers_link import Link, Message
from windfall.agent.session import ExecRequest
from windfall.agent.standing import StandingFile
from windfall.agent.supervision import Supervision
from windfall.core.keeping_facts import Standing
from windfall.errors import EXIT_AGAIN, NewerFormat, StoreError, WindfallError
from windfall.events import (
    Fact,
    NoticeReceived,
    PeerLost,
    PublishSave,
    ScriptExited,
    ShardFailed,
    ShardUploaded,
    StopAsked,
    UploadShard,
)
from windfall.ports import Clock, NoticeSource, Restored
from windfall.terms import Instant, Notice, NoticeLevel, Outcome, RunState, Seconds, Shard, Step
from windfall.wire import environment, page

LOOK_S = 0.01
LEADER = 0
STATUS_S = 0.1
"""How often the leader hears how far the ranks here are."""
SHIP_S = 5.0
"""How often the output here is appended to the run's."""
_IDLE_S = 0.5
_KILLED = 128 + 9


class MemberHold(Protocol):
    """The run as a member sees it; any call may raise a `StoreError`."""

    @property
    def state(self) -> RunState:
        """The newest state that this machine has read."""
        ...

    def follow(self, term: int, nonce: str) -> RunState:
        """Take up the leader's term; `Fenced` if the run's newest one is another."""
        ...

    def restore(self, folder: str, checkpoint_id: str | None) -> Restored:
        """Bring the newest whole point to a folder, or the one that is named."""
        ...

    def identify(self, path: str) -> str:
        """Return what changes when a handed-over file or folder is written again."""
        ...

    def upload(self, command: UploadShard, cancelled: Callable[[], bool]) -> Shard | None:
        """Move one rank's part to the store."""
        ...

    def forget(self) -> None:
        """Forget what was uploaded until now."""
        ...

    def ship(self) -> None:
        """Append what the script has printed to the run."""
        ...


@dataclass(slots=True)
class MemberPorts:
    """Everything a member touches.

    Attributes:
        place_code: (state) -> the folder to run in, where the run's code has been put.
    """

    clock: Clock
    hold: MemberHold
    supervision: Supervision
    sources: Sequence[NoticeSource]
    place_code: Callable[[RunState], str]
    inbox: queue.SimpleQueue[Fact] = field(default_factory=queue.SimpleQueue)


class Member:
    """One generation on one machine that does not lead it."""

    def __init__(self, request: ExecRequest, ports: MemberPorts, connection: socket.socket) -> None:
        """Take up the link to the leader.

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
        self._rank_told = False
        self._step = Step(0)
        self._saved = Step(0)
        self._told_at = Instant(0.0)
        self._restored: Restored | None = None
        self._cwd = request.cwd
        self._ended = threading.Event()
        self._work = hands.Worker("restoring")
        self._uploads = hands.Uploads(ports.hold, ports.clock, ports.inbox.put)
        self._standing = StandingFile(request.status, ports.clock)
        self._starting = threading.Lock()
        self._link = Link(connection, ports.clock, self._hear, self._lose)

    def _hear(self, message: Message, at: Instant) -> None:
        self._ports.inbox.put(Heard(LEADER, message, at, words_of(message)))

    def _lose(self, why: str) -> None:
        leader = self._request.peers[LEADER]
        self._ports.inbox.put(PeerLost(LEADER, f"the leader of this generation ({leader}) is lost ({why})"))

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
                self._ports.hold.ship()

    def _turn(self) -> None:
        came: list[Fact] = []
        with contextlib.suppress(queue.Empty):
            came.append(self._ports.inbox.get(timeout=LOOK_S if self._watcher is not None else _IDLE_S))
            while True:
                came.append(self._ports.inbox.get_nowait())
        self._look()
        for fact in came:
            self._take(fact)

    def _look(self) -> None:
        now = self._clock.now()
        if self._watcher is None:
            return
        try:
            facts = self._watcher.look(now)
        except NewerFormat as error:
            self._ports.supervision.say(str(error))
            self._ports.supervision.kill()
            self._watcher = None
            return
        if self._watcher.attached and now >= self._told_at + STATUS_S:
            facts.append(self._watcher.observe())
        if self._watcher.sigterm_seen_ns() and not self._rank_told:
            self._rank_told = True
            self._ports.inbox.put(NoticeReceived(Notice(NoticeLevel.HINT, "rank", "sigterm")))
        self._tell_pages(facts, now)

    def _tell_pages(self, facts: list[Fact], at: Instant) -> None:
        if not facts:
            return
        self._told_at = at
        told = [codec.encode(fact) for fact in facts]
        self._link.send(
            {"it": "facts", "attempt": self._attempt, "at": at, "published": self._published, "facts": told}
        )
        if self._watcher is not None:
            self._step = max((status.step for status in self._watcher.observe().ranks), default=self._step)

    def _show(self) -> None:
        if self._attempt:
            term, training = self._ports.hold.state.term, self._watcher is not None
            self._standing.show(Standing(term, self._step, self._saved, self._attempt, training=training))

    # ------------------------------------------------------------------------------------------------- what came in here

    def _take(self, fact: Fact) -> None:
        match fact:
            case Heard():
                self._obey(fact.message, fact.words)
            case ScriptExited():
                self._exited(fact.status)
            case NoticeReceived():
                said = codec.encode(fact.notice)
                self._link.send({"it": "notice", "notice": said, "at": self._clock.now()})
            case StopAsked():
                self._link.send({"it": "stop", "now": fact.now, "reason": fact.reason})
            case ShardUploaded() | ShardFailed():
                self._link.send({"it": "moved", "facts": [codec.encode(fact)]})
            case PeerLost():
                self._end(EXIT_AGAIN, f"{fact.sentence}: this machine stops and stores nothing more")

    def _exited(self, status: int) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            with contextlib.suppress(NewerFormat):
                now = self._clock.now()
                self._tell_pages(watcher.finish(now), now)
        self._link.send({"it": "exited", "attempt": self._attempt, "status": status})

    def _end(self, code: int, sentence: str) -> None:
        if sentence:
            self._ports.supervision.say(sentence)
        self._ended.set()
        with contextlib.suppress(StoreError):
            self._ports.hold.ship()
        self._ports.supervision.exit(code)

    # -------------------------------------------------------------------------------------------- what the leader orders

    def _obey(self, message: Message, words: tuple[object, ...]) -> None:
        for word in words:
            self._obey_word(message, word)
        match message["it"]:
            case "prepare":
                self._work.do(lambda: self._prepare(message))
            case "start":
                self._work.do(lambda: self._start(message["attempt"], message["port"]))
            case "kill":
                self._kill(message["attempt"])
            case "exit":
                self._leave(message)
            case "abandon":
                self._uploads.abandon(message["checkpoint_id"])
            case "let_go":
                self._let_go(Step(message["step"]), message["paths"])
            case "withdraw" if self._watcher is not None:
                self._watcher.withdraw()

    def _leave(self, message: Message) -> None:
        for outcome in Outcome:
            if outcome.value == message["released"]:
                self._standing.release(outcome)
        self._end(message["code"], message["sentence"])

    def _obey_word(self, message: Message, word: object) -> None:
        match word:
            case UploadShard():
                self._uploads.start(word)
            case PublishSave():
                self._publish(word, message["attempt"])
            case Notice() if message["it"] == "show":
                self._show_notice(word, message["left_s"])
            case Notice():
                self._acknowledge(word)

    def _prepare(self, message: Message) -> None:
        """Restore in a thread of its own: the links must not fall silent meanwhile, and a lost leader must be noticed."""
        attempt: int = message["attempt"]
        said: Message = {"attempt": attempt}
        try:
            state = self._ports.hold.follow(message["term"], message["nonce"])
            if attempt != self._attempt:
                self._cwd = self._ports.place_code(state)
            self._restored = self._ports.hold.restore(
                self._request.path("points", str(attempt)), message["checkpoint_id"]
            )
        except (WindfallError, OSError) as error:
            said |= {"it": "unprepared", "code": getattr(error, "exit_code", 1), "sentence": str(error)}
        else:
            self._attempt = attempt
            self._saved = self._restored.step
            said |= {"it": "prepared", "checkpoint_id": self._restored.checkpoint_id, "step": self._restored.step}
        self._link.send(said)

    def _start(self, attempt: int, port: int) -> None:
        with self._starting:
            if attempt == self._killed:
                self._link.send({"it": "exited", "attempt": attempt, "status": _KILLED})
            else:
                self._start_script(attempt, port)

    def _start_script(self, attempt: int, port: int) -> None:
        assert self._restored is not None, "the leader starts what is prepared"
        state = self._ports.hold.state
        argv = self._request.argv or state.command
        start = script.Start(state.run_id, state.term, attempt, self._restored, port)
        env = script.script_environment(self._request, start, argv)
        folder = env[environment.SESSION]
        os.makedirs(folder, mode=0o700, exist_ok=True)
        held = self._request.path("held", str(attempt))
        self._published, self._rank_told = 0, False
        self._watcher = PageWatcher(
            folder,
            attempt,
            self._clock.now(),
            lambda path, name: keep(path, held, name),
            self._ports.hold.identify,
        )
        self._ports.supervision.start(attempt, argv, self._cwd, env)

    def _kill(self, attempt: int) -> None:
        """Kill an attempt, also one that is still to be started: its start may be waiting behind a restore."""
        with self._starting:
            self._killed = attempt
            self._ports.supervision.kill()

    def _publish(self, command: PublishSave, attempt: int) -> None:
        if self._watcher is None or attempt != self._attempt:
            return
        self._watcher.publish(command)
        self._clock.sleep(Seconds(page.SETTLE_S))
        began = self._clock.now()
        seen = self._watcher.observe(fresh=True)
        # What the ranks answered before comes before the look that could find them silent.
        self._look()
        self._published = command.request
        self._tell_pages([seen], began)

    def _show_notice(self, told: Notice, left_s: float | None) -> None:
        deadline = None if left_s is None else Instant(self._clock.now() + left_s)
        notice = replace(told, deadline=deadline)
        if self._watcher is not None:
            self._watcher.show_notice(NoticeLevel(notice.level), notice.deadline)
        script.show_notice(self._request, notice, self._clock)

    def _acknowledge(self, notice: Notice) -> None:
        for source in self._ports.sources:
            if source.name == notice.source:
                with contextlib.suppress(StoreError):
                    source.acknowledge(notice)

    def _let_go(self, step: Step, paths: list[str]) -> None:
        if step > self._saved:
            self._saved = step
            self._ports.hold.forget()
        held = self._request.path("held", str(self._attempt))
        for path in paths:
            self._work.do(partial(let_go, held, path))
