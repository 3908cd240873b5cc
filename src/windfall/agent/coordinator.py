"""The leader's side of a generation: it merges the facts of all members for its reducer and sends them its commands.

The leader listens at its own address until every member has connected and proven that it knows the generation's token.
From then on members send facts and receive commands.  A link that breaks or is silent for too long ends the generation:
the leader releases the run, the members exit, and the next generation takes the run in a new term.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Collection

from windfall.agent.merged_pages import MergedPages, split_path
from windfall.agent.page_watcher import PageWatcher
from windfall.agent.peer_link import PeerIdentity, PeerLink, RendezvousServer
from windfall.errors import EXIT_FAILED, GenerationIncomplete
from windfall.events import (
    Fact,
    MetricsReported,
    NoticeReceived,
    PagesRead,
    PeerLost,
    PhaseMeasured,
    PublishSave,
    RankAdvanced,
    RanksObserved,
    RunStopRequested,
    SaveAnswered,
    ScriptExited,
    ShardFailed,
    ShardHandedOver,
    ShardUploaded,
    StepsMeasured,
    UploadShard,
)
from windfall.ports import Clock, Restored
from windfall.results import MessageRefused
from windfall.structs import Struct, replace
from windfall.terms import Instant, Notice, NoticeLevel, Outcome, RunState, Seconds
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

JOIN_S = 60.0
"""How long a generation's machines wait for one another [s]."""
_REJOIN_S = 2.0
"""How long a machine that joins waits for the end of a link with its number [s]."""
_FAREWELL_S = 3.0
"""How long the leader waits for a member to hang up after the order to exit [s]."""
POLL_S = 0.1
"""How often the leader's pages are polled while the end of a machine is announced [s]."""
_RESTORED_POLL_S = 0.5
_PAGE_FACTS = (
    MessageRefused,
    RanksObserved,
    StepsMeasured,
    PhaseMeasured,
    SaveAnswered,
    ShardHandedOver,
    RankAdvanced,
    MetricsReported,
    PagesRead,
)


class PeerMessageReceived(Struct, Fact, frozen=True):
    """A message of another machine in the agent's inbox; the reducer never receives it in this form."""

    node: int
    message: PeerMessage
    at: Instant


class Coordinator:
    """The links to all members, and the facts merged from them."""

    def __init__(
        self,
        identity: PeerIdentity,
        clock: Clock,
        *,
        deliver: Callable[[Fact], None],
        log: Callable[[str], None],
        new_nonce: Callable[[], str],
        kill_local: Callable[[], None],
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            identity: this machine's, the leader's.
            clock: of this machine.
            deliver: takes facts for the agent's inbox.
            log: takes messages for the user.
            new_nonce: gives a fresh random name.
            kill_local: kills the script on this machine.
        """
        self._identity = identity
        self._clock = clock
        self._deliver = deliver
        self._log = log
        self._kill_local = kill_local
        self._links: dict[int, PeerLink] = {}
        self._joined = threading.Condition()
        self._complete = False
        self._server = RendezvousServer(identity, clock, new_nonce=new_nonce, admit=self._join, log=log)
        self._lost = threading.Event()
        self._answers: queue.SimpleQueue[tuple[int, PeerPrepared | PeerPrepareFailed]] = queue.SimpleQueue()
        self._merged = MergedPages(len(identity.addresses))
        self._attempt = 0
        self._released: str | None = None
        self._clock_shift: dict[int, float] = {}
        self._urgent = False
        self._polled_at = clock.now()

    # ------------------------------------------------------------------------------------------------------ rendezvous

    def open(self) -> None:
        """Listen at the leader's address.

        Raises:
            Misuse: this machine cannot listen there.
        """
        self._server.open()

    def wait_for_members(self, limit_s: float = JOIN_S) -> None:
        """Wait until every member has joined.

        Raises:
            GenerationIncomplete: a member did not join in time.
        """
        with self._joined:
            complete = self._joined.wait_for(lambda: len(self._links) == len(self._identity.others), limit_s)
            self._complete = complete
        self._server.close()
        if not complete:
            missing = [f"{n} ({self._identity.addresses[n]})" for n in self._identity.others if n not in self._links]
            raise GenerationIncomplete(
                f"generation {self._identity.generation} is incomplete: machine {', '.join(missing)} did not join "
                f"within {limit_s:g} s"
            )

    def _join(self, node: int, connection: socket.socket) -> None:
        link = PeerLink(
            connection,
            self._clock,
            lambda message, at: self._receive(node, message, at),
            lambda reason: self._on_lost(node, reason),
        )
        with self._joined:
            # A machine that hung up and came back may be here before the leader has seen the end of its first link.
            if not self._joined.wait_for(lambda: node not in self._links, _REJOIN_S):
                connection.close()  # a machine of this number has already joined
                return
            self._links[node] = link
            self._joined.notify_all()
        link.start()

    def _receive(self, node: int, message: PeerMessage, at: Instant) -> None:
        if isinstance(message, (PeerPrepared, PeerPrepareFailed)):
            self._answers.put((node, message))
        else:
            self._deliver(PeerMessageReceived(node, message, at))

    def _on_lost(self, node: int, reason: str) -> None:
        with self._joined:
            if not self._complete:
                self._links.pop(node, None)  # its `exec` may restart before the others have joined
                self._joined.notify_all()
                return
        self._lost.set()
        address = self._identity.addresses[node]
        self._deliver(PeerLost(node, f"lost machine {node} of this run ({address}): {reason}"))

    # ------------------------------------------------------------------------------------------------ starting a script

    def prepare(self, attempt: int, state: RunState, nonce: str) -> None:
        """Let every member restore the newest intact checkpoint, while the leader does the same.

        Messages of earlier attempts are ignored from now on.
        """
        self._merged = MergedPages(len(self._identity.addresses))
        self._attempt = attempt
        self._send_all(self._prepare(state, nonce, None))

    def _prepare(self, state: RunState, nonce: str, checkpoint_id: str | None) -> PeerPrepare:
        return PeerPrepare(self._attempt, state.term, nonce, checkpoint_id)

    def confirm_restored(self, restored: Restored, state: RunState, nonce: str) -> None:
        """Wait until every member has restored the leader's checkpoint; a member that found another one restores again.

        Raises:
            GenerationIncomplete: a member was lost meanwhile, or cannot restore it.
        """
        waiting = set(self._identity.others)
        while waiting:
            if self._lost.is_set():
                raise GenerationIncomplete("lost a machine while restoring the newest checkpoint")
            with contextlib.suppress(queue.Empty):
                node, answer = self._answers.get(timeout=_RESTORED_POLL_S)
                if answer.attempt != self._attempt:
                    continue
                if isinstance(answer, PeerPrepareFailed):
                    error = GenerationIncomplete(f"on machine {node}: {answer.message}")
                    error.exit_code = answer.code or EXIT_FAILED
                    raise error
                if answer.checkpoint_id == restored.checkpoint_id:
                    waiting.discard(node)
                else:
                    self._links[node].send(self._prepare(state, nonce, restored.checkpoint_id))

    @property
    def lost(self) -> bool:
        """Whether a member was lost: the generation is over."""
        return self._lost.is_set()

    def start(self, attempt: int, port: int) -> None:
        """Let every member start the script."""
        self._send_all(PeerStart(attempt, port))

    # ------------------------------------------------------------------------------------------------------- facts in

    def merge_facts(self, now: Instant, facts: list[Fact], watcher: PageWatcher | None) -> list[Fact]:
        """Merge this machine's facts and the members' messages into facts for the reducer."""
        out: list[Fact] = []
        pages = watcher if watcher is not None and watcher.attached else None
        for fact in facts:
            if isinstance(fact, PeerMessageReceived):
                if isinstance(fact.message, (PeerNotice, PeerStop)) and pages is not None:
                    # The reducer needs the ranks' current steps to decide when to save.
                    out += self._merge_pages(
                        0, [pages.observe()], now, now, self._merged.request_published, quiet=False
                    )
                out += self._handle_message(fact, now)
            elif isinstance(fact, _PAGE_FACTS):
                out += self._merge_pages(0, [fact], now, now, self._merged.request_published, quiet=False)
            elif isinstance(fact, ScriptExited):
                out += self._exited(0, fact.status)
            else:
                out.append(fact)
        self._urgent = self._urgent or any(isinstance(fact, RunStopRequested) for fact in out)
        if pages is not None and self._urgent and now >= self._polled_at + POLL_S:
            # A request that a machine missed must be repeated at once, not when the next window closes.
            self._polled_at = now
            out += self._merge_pages(0, [pages.observe()], now, now, self._merged.request_published, quiet=False)
        elif self._merged.has_partial_saves and pages is not None:
            out += self._merge_pages(0, [pages.observe()], now, now, self._merged.request_published, quiet=True)
        return out

    def _merge_pages(
        self, node: int, facts: list[Fact], now: Instant, at: Instant, published: int, *, quiet: bool
    ) -> list[Fact]:
        trips = [link.round_trip_s for link in self._links.values()]
        return self._merged.take(
            node, facts, now=now, at=at, published=published, latency_s=max(trips, default=0.0), quiet=quiet
        )

    def _handle_message(self, received: PeerMessageReceived, now: Instant) -> list[Fact]:
        """Return the facts of a member's message; those of another attempt are dropped."""
        node = received.node
        match received.message:
            case PeerUploaded(facts):
                return [fact for fact in facts if isinstance(fact, (ShardUploaded, ShardFailed))]
            case PeerNotice(notice, at):
                return [self._notice(received, notice, at)]
            case PeerStop(now=at_once, reason=reason):
                return [RunStopRequested(at_once, reason)]
            case PeerExited(attempt, status) if attempt == self._attempt:
                return self._exited(node, status)
            case PeerFacts(attempt) as message if attempt == self._attempt:
                return self._remote_pages(received, message, now)
        return []

    def _remote_pages(self, received: PeerMessageReceived, message: PeerFacts, now: Instant) -> list[Fact]:
        node = received.node
        shift_s = self._clock_shift_s(node, message.at, received.at)
        ours = [_to_leader_clock(fact, shift_s) for fact in message.facts if isinstance(fact, _PAGE_FACTS)]
        at = Instant(message.at + shift_s - self._links[node].round_trip_s)
        return self._merge_pages(node, ours, now, min(at, now), message.published, quiet=True)

    def _clock_shift_s(self, node: int, sent_at: float, received_at: Instant) -> float:
        """Return what to add to a member's clock to get the leader's [s]; too much by the shortest delay of a message."""
        shift_s = min(received_at - sent_at, self._clock_shift.get(node, received_at - sent_at))
        self._clock_shift[node] = shift_s
        return shift_s

    def _notice(self, received: PeerMessageReceived, notice: Notice, sent_at: float) -> NoticeReceived:
        node = received.node
        shift_s = self._clock_shift_s(node, sent_at, received.at) - self._links[node].round_trip_s
        deadline = None if notice.deadline is None else Instant(notice.deadline + shift_s)
        return NoticeReceived(replace(notice, notice_id=f"{node}:{notice.notice_id}", deadline=deadline))

    def _exited(self, node: int, status: int) -> list[Fact]:
        """Handle the end of a machine's script: a failure ends all scripts; the attempt ends when all have ended."""
        if status != 0 and self._merged.first_failure is None:
            # The other machines' ranks may wait for the failed ones forever.
            if node != 0:
                self._log(f"the script exited with exit code {status} on machine {node}: stopping it on all machines")
            self._kill_others(node)
        whole = self._merged.exited(node, status)
        return [] if whole is None else [ScriptExited(whole)]

    def _kill_others(self, node: int) -> None:
        if node != 0 and not self._merged.has_exited(0):
            self._kill_local()
        for other, link in self._links.items():
            if other != node and not self._merged.has_exited(other):
                link.send(PeerKill(self._attempt))

    # ---------------------------------------------------------------------------------------------------- commands out

    def publish(self, command: PublishSave) -> None:
        """Let every member publish a request and poll its pages again."""
        self._merged.publish_request(command.request)
        self._send_all(PeerPublish(self._attempt, command))

    def withdraw(self) -> None:
        """Let every member withdraw the request."""
        self._merged.publish_request(0)
        self._send_all(PeerWithdraw())

    def show(self, notice: Notice) -> None:
        """Let every member show a notice to its script."""
        self._urgent = notice.level is NoticeLevel.ANNOUNCED
        remaining_s = None if notice.deadline is None else notice.deadline - self._clock.now()
        self._send_all(PeerShow(notice, remaining_s))

    def upload(self, command: UploadShard) -> bool:
        """Let the member that has a shard upload it; return False if this machine has it."""
        node, path = split_path(command.path)
        if node == 0:
            return False
        self._links[node].send(PeerUpload(replace(command, path=path)))
        return True

    def abandon(self, checkpoint_id: str) -> None:
        """Let every member stop uploading a checkpoint."""
        self._send_all(PeerAbandon(checkpoint_id))

    def committed(self, step: int, qualified_paths: Collection[str]) -> None:
        """Send every member the committed step and the paths of its own that are no longer needed."""
        places = [split_path(path) for path in qualified_paths]
        for number, link in tuple(self._links.items()):
            link.send(PeerCommitted(step, tuple(path for node, path in places if node == number)))

    def is_from_member(self, notice: Notice) -> bool:
        """Whether this notice came from a member."""
        node, colon, _ = notice.notice_id.partition(":")
        return bool(colon) and node.isdecimal() and int(node) in self._links

    def acknowledge(self, notice: Notice) -> None:
        """Let the member that reported a notice acknowledge it."""
        node, _, notice_id = notice.notice_id.partition(":")
        original = replace(notice, notice_id=notice_id)
        self._links[int(node)].send(PeerAcknowledge(original))

    def kill(self) -> None:
        """Kill the script on every member."""
        self._send_all(PeerKill(self._attempt))

    def release(self, outcome: Outcome) -> None:
        """Remember how the run was released, for the members' status files."""
        self._released = outcome.value

    def end(self, code: int, message: str = "") -> None:
        """Let every member's `exec` exit with this code; return when they have hung up, or after a few seconds."""
        last = PeerExit(code, message, self._released)
        threads = [threading.Thread(target=link.end, args=(last, _FAREWELL_S)) for link in tuple(self._links.values())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._server.close()

    def _send_all(self, message: PeerMessage) -> None:
        for link in tuple(self._links.values()):
            link.send(message)


def _to_leader_clock(fact: Fact, shift_s: float) -> Fact:
    if not isinstance(fact, RanksObserved):
        return fact
    return replace(
        fact,
        ranks=tuple(replace(status, phase_since=Instant(status.phase_since + shift_s)) for status in fact.ranks),
        age_s=Seconds(0.0),
    )
