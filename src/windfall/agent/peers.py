"""The machines of one generation, as the one that leads them sees them: remote hands of the one reducer that runs there.

The leader opens a port at its own address and waits until every member has come and shown that it knows the token of
this generation.  From then on facts come in, commands go out.  A link that breaks, or is silent for too long, ends the
generation: the leader lets the run go, the members end, and the next generation takes the run as a new term.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from windfall import codec
from windfall.agent.pages import PageWatcher
from windfall.agent.peers_assembly import Assembly, place_of
from windfall.agent.peers_door import Door
from windfall.agent.peers_handshake import Place
from windfall.agent.peers_link import Link, Message
from windfall.errors import EXIT_FAILED, Apart
from windfall.events import (
    Fact,
    MetricsReported,
    NoticeReceived,
    PagesRead,
    PeerLost,
    PhaseMeasured,
    PublishSave,
    RankMovedOn,
    RanksObserved,
    SaveAnswered,
    ScriptExited,
    ShardFailed,
    ShardHandedOver,
    ShardUploaded,
    StepsMeasured,
    StopAsked,
    UploadShard,
)
from windfall.ports import Clock, Restored
from windfall.results import MessageRefused
from windfall.terms import Instant, Notice, NoticeLevel, Outcome, RunState, Seconds

JOIN_S = 60.0
"""How long a generation's machines wait for one another to come."""
_FAREWELL_S = 3.0
"""How long the leader waits until a member that was told to end has ended."""
LOOK_S = 0.1
"""How often all machines are looked at while the end of one is announced."""
_RESTORED_POLL_S = 0.5
_CARRIED = {"moved": "facts", "publish": "command", "upload": "command", "show": "notice", "acknowledge": "notice"}
"""In which field of a message words travel, where it is not called as the message is."""
_ON_PAGES = (
    MessageRefused,
    RanksObserved,
    StepsMeasured,
    PhaseMeasured,
    SaveAnswered,
    ShardHandedOver,
    RankMovedOn,
    MetricsReported,
    PagesRead,
)


@dataclass(frozen=True, slots=True)
class Heard(Fact):
    """A message of another machine, on its way through the inbox; it never reaches the reducer as such.

    Attributes:
        words: what the message carries of our words: facts, a command, a notice.
    """

    node: int
    message: Message
    at: Instant
    words: tuple[object, ...] = ()


class Room:
    """The links to all members, and what must be put together from what they say."""

    def __init__(
        self,
        place: Place,
        clock: Clock,
        *,
        deliver: Callable[[Fact], None],
        tell: Callable[[str], None],
        new_nonce: Callable[[], str],
        kill_here: Callable[[], None],
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            place: this machine's; it leads.
            clock: of this machine.
            deliver: takes facts for the agent's inbox.
            tell: takes sentences for the user.
            new_nonce: gives a fresh random name.
            kill_here: kills the script on this machine.
        """
        self._place = place
        self._clock = clock
        self._deliver = deliver
        self._tell = tell
        self._kill_here = kill_here
        self._links: dict[int, Link] = {}
        self._here = threading.Condition()
        self._together = False
        self._door = Door(place, clock, new_nonce=new_nonce, let_in=self._join, tell=tell)
        self._lost = threading.Event()
        self._answers: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._assembly = Assembly(len(place.addresses))
        self._attempt = 0
        self._released: str | None = None
        self._shift: dict[int, float] = {}
        self._urgent = False
        self._looked_at = clock.now()

    # ------------------------------------------------------------------------------------------------- coming together

    def open(self) -> None:
        """Listen at the leader's address.

        Raises:
            Misuse: it cannot be listened at.
        """
        self._door.open()

    def wait_for_members(self, limit_s: float = JOIN_S) -> None:
        """Wait until every member is there.

        Raises:
            Apart: one did not come in time.
        """
        with self._here:
            complete = self._here.wait_for(lambda: len(self._links) == len(self._place.others), limit_s)
            self._together = complete
        self._door.close()
        if not complete:
            missing = [f"{n} ({self._place.addresses[n]})" for n in self._place.others if n not in self._links]
            raise Apart(
                f"generation {self._place.generation} is not complete: machine {', '.join(missing)} did not come "
                f"within {limit_s:g} s"
            )

    def _join(self, node: int, connection: socket.socket) -> None:
        link = Link(
            connection,
            self._clock,
            lambda message, at: self._hear(node, message, at),
            lambda why: self._lose(node, why),
        )
        with self._here:
            if node in self._links:
                connection.close()  # a second machine of that number: the first one is in
                return
            self._links[node] = link
            self._here.notify_all()
        link.start()

    def _hear(self, node: int, message: Message, at: Instant) -> None:
        if message["it"] in {"prepared", "unprepared"}:
            self._answers.put((node, message))
        else:
            self._deliver(Heard(node, message, at, words_of(message)))

    def _lose(self, node: int, why: str) -> None:
        with self._here:
            if not self._together:
                self._links.pop(node, None)  # its `exec` may be started again before the others have come
                return
        self._lost.set()
        address = self._place.addresses[node]
        self._deliver(PeerLost(node, f"machine {node} of this run ({address}) is lost ({why})"))

    # ------------------------------------------------------------------------------------------------ starting a script

    def prepare(self, attempt: int, state: RunState, nonce: str) -> None:
        """Let every member restore the newest whole point, while the leader does the same.

        What was said of earlier attempts is void from now on.
        """
        self._assembly = Assembly(len(self._place.addresses))
        self._attempt = attempt
        self._send_all(self._prepare(state, nonce, None))

    def _prepare(self, state: RunState, nonce: str, checkpoint_id: str | None) -> Message:
        said = {"attempt": self._attempt, "term": state.term, "nonce": nonce, "checkpoint_id": checkpoint_id}
        return {"it": "prepare", **said}

    def agree(self, restored: Restored, state: RunState, nonce: str) -> None:
        """Wait until every member has restored the point that the leader has; one that found another is told which.

        Raises:
            Apart: a member was lost meanwhile.
            WindfallError: a member cannot restore it.
        """
        waiting = set(self._place.others)
        while waiting:
            if self._lost.is_set():
                raise Apart("a machine was lost while the newest checkpoint was restored")
            with contextlib.suppress(queue.Empty):
                node, answer = self._answers.get(timeout=_RESTORED_POLL_S)
                if answer["attempt"] != self._attempt:
                    continue
                if answer["it"] == "unprepared":
                    error = Apart(f"on machine {node}: {answer['sentence']}")
                    error.exit_code = answer["code"] or EXIT_FAILED
                    raise error
                if answer["checkpoint_id"] == restored.checkpoint_id:
                    waiting.discard(node)
                else:
                    self._links[node].send(self._prepare(state, nonce, restored.checkpoint_id))

    @property
    def lost(self) -> bool:
        """Whether a member was lost: the generation is over."""
        return self._lost.is_set()

    def start(self, attempt: int, port: int) -> None:
        """Let every member start the script."""
        self._send_all({"it": "start", "attempt": attempt, "port": port})

    # ------------------------------------------------------------------------------------------------------- facts in

    def digest(self, now: Instant, facts: list[Fact], watcher: PageWatcher | None) -> list[Fact]:
        """Turn what this machine and the others say into what the reducer hears."""
        out: list[Fact] = []
        looking = watcher if watcher is not None and watcher.attached else None
        for fact in facts:
            if isinstance(fact, Heard):
                if fact.message["it"] in {"notice", "stop"} and looking is not None:
                    # Whoever decides when to save must know how far the ranks are now.
                    out += self._pages(0, [looking.observe()], now, now, self._assembly.asked, quiet=False)
                out += self._understand(fact, now)
            elif isinstance(fact, _ON_PAGES):
                out += self._pages(0, [fact], now, now, self._assembly.asked, quiet=False)
            elif isinstance(fact, ScriptExited):
                out += self._exited(0, fact.status)
            else:
                out.append(fact)
        self._urgent = self._urgent or any(isinstance(fact, StopAsked) for fact in out)
        if looking is not None and self._urgent and now >= self._looked_at + LOOK_S:
            # A request that a machine missed must be made anew at once, not when the next window closes.
            self._looked_at = now
            out += self._pages(0, [looking.observe()], now, now, self._assembly.asked, quiet=False)
        elif self._assembly.waits_for_bystanders and looking is not None:
            out += self._pages(0, [looking.observe()], now, now, self._assembly.asked, quiet=True)
        return out

    def _pages(
        self, node: int, facts: list[Fact], now: Instant, at: Instant, published: int, *, quiet: bool
    ) -> list[Fact]:
        trips = [link.round_trip_s for link in self._links.values()]
        return self._assembly.take(
            node, facts, now=now, at=at, published=published, link_s=max(trips, default=0.0), quiet=quiet
        )

    def _understand(self, heard: Heard, now: Instant) -> list[Fact]:
        """Return what a member's message says; what it says of another attempt is dropped."""
        message, node = heard.message, heard.node
        out: list[Fact] = []
        match message["it"]:
            case "moved":
                out += [fact for fact in heard.words if isinstance(fact, (ShardUploaded, ShardFailed))]
            case "notice":
                out += [self._notice(heard, word) for word in heard.words if isinstance(word, Notice)]
            case "stop":
                out.append(StopAsked(message["now"], message["reason"]))
            case "exited" if message["attempt"] == self._attempt:
                out += self._exited(node, message["status"])
            case "facts" if message["attempt"] == self._attempt:
                out += self._remote_pages(node, heard, now)
        return out

    def _remote_pages(self, node: int, heard: Heard, now: Instant) -> list[Fact]:
        message = heard.message
        shift_s = self._clock_shift_s(node, float(message["at"]), heard.at)
        ours = [_on_our_clock(fact, shift_s) for fact in heard.words if isinstance(fact, _ON_PAGES)]
        at = Instant(float(message["at"]) + shift_s - self._links[node].round_trip_s)
        return self._pages(node, ours, now, min(at, now), message["published"], quiet=True)

    def _clock_shift_s(self, node: int, said_at: float, heard_at: Instant) -> float:
        """Return what must be added to a member's clock to have ours; too much by the quickest way of a message."""
        shift_s = min(heard_at - said_at, self._shift.get(node, heard_at - said_at))
        self._shift[node] = shift_s
        return shift_s

    def _notice(self, heard: Heard, notice: Notice) -> NoticeReceived:
        node = heard.node
        shift_s = self._clock_shift_s(node, heard.message["at"], heard.at) - self._links[node].round_trip_s
        deadline = None if notice.deadline is None else Instant(notice.deadline + shift_s)
        return NoticeReceived(replace(notice, notice_id=f"{node}:{notice.notice_id}", deadline=deadline))

    def _exited(self, node: int, status: int) -> list[Fact]:
        """A machine's script ended: one that failed ends all, and the whole has ended when all have."""
        if status != 0 and self._assembly.first_failure is None:
            # The others' ranks may wait for this one's for ever.
            if node != 0:
                self._tell(f"the script ended with status {status} on machine {node}: it is ended on all")
            self._kill_others(node)
        whole = self._assembly.exited(node, status)
        return [] if whole is None else [ScriptExited(whole)]

    def _kill_others(self, node: int) -> None:
        if node != 0 and not self._assembly.has_exited(0):
            self._kill_here()
        for other, link in self._links.items():
            if other != node and not self._assembly.has_exited(other):
                link.send({"it": "kill", "attempt": self._attempt})

    # ---------------------------------------------------------------------------------------------------- commands out

    def publish(self, command: PublishSave) -> None:
        """Let every member publish a request, and look again."""
        self._assembly.ask(command.request)
        self._send_all({"it": "publish", "attempt": self._attempt, "command": codec.encode(command)})

    def withdraw(self) -> None:
        """Let every member take the request back."""
        self._assembly.ask(0)
        self._send_all({"it": "withdraw"})

    def show(self, notice: Notice) -> None:
        """Let every member show a notice to its script."""
        self._urgent = notice.level is NoticeLevel.ANNOUNCED
        left_s = None if notice.deadline is None else notice.deadline - self._clock.now()
        self._send_all({"it": "show", "notice": codec.encode(notice), "left_s": left_s})

    def upload(self, command: UploadShard) -> bool:
        """Let the member that has a part upload it; False if this machine has it."""
        node, path = place_of(command.path)
        if node == 0:
            return False
        self._links[node].send({"it": "upload", "command": codec.encode(replace(command, path=path))})
        return True

    def abandon(self, checkpoint_id: str) -> None:
        """Let every member stop working on a point."""
        self._send_all({"it": "abandon", "checkpoint_id": checkpoint_id})

    def let_go(self, step: int, addresses: Collection[str]) -> None:
        """Tell every member which step is committed, and what of its own nobody reads any more."""
        places = [place_of(address) for address in addresses]
        for number, link in tuple(self._links.items()):
            link.send({"it": "let_go", "step": step, "paths": [path for node, path in places if node == number]})

    def brought(self, notice: Notice) -> bool:
        """Whether a member brought this notice."""
        node, colon, _ = notice.notice_id.partition(":")
        return bool(colon) and node.isdecimal() and int(node) in self._links

    def acknowledge(self, notice: Notice) -> None:
        """Let the member that brought a notice acknowledge it."""
        node, _, notice_id = notice.notice_id.partition(":")
        told = replace(notice, notice_id=notice_id)
        self._links[int(node)].send({"it": "acknowledge", "notice": codec.encode(told)})

    def kill(self) -> None:
        """Kill the script on every member."""
        self._send_all({"it": "kill", "attempt": self._attempt})

    def release(self, outcome: Outcome) -> None:
        """The run was let go: every member says so when it ends."""
        self._released = outcome.value

    def end(self, code: int, sentence: str = "") -> None:
        """Let every member's `exec` end with this code; return when they have hung up, or after a while."""
        last = {"it": "exit", "code": code, "sentence": sentence, "released": self._released}
        threads = [threading.Thread(target=link.end, args=(last, _FAREWELL_S)) for link in tuple(self._links.values())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._door.close()

    def _send_all(self, message: Message) -> None:
        for link in tuple(self._links.values()):
            link.send(message)


def words_of(message: Message) -> tuple[object, ...]:
    """Return what a message carries of our words.

    Raises:
        ValueError: it carries something else.
    """
    expected: dict[str, object] = {"facts": tuple[Fact, ...], "moved": tuple[Fact, ...], "publish": PublishSave}
    expected |= {"upload": UploadShard, "show": Notice, "notice": Notice, "acknowledge": Notice}
    name: str = message["it"]
    if name not in expected:
        return ()
    try:
        found = codec.decode(message[_CARRIED.get(name, name)], expected[name])
    except (ValueError, TypeError) as error:
        raise ValueError(f"what its message `{name}` carries cannot be understood ({error})") from error
    return found if isinstance(found, tuple) else (found,)


def _on_our_clock(fact: Fact, shift_s: float) -> Fact:
    if not isinstance(fact, RanksObserved):
        return fact
    return replace(
        fact,
        ranks=tuple(replace(status, phase_since=Instant(status.phase_since + shift_s)) for status in fact.ranks),
        age_s=Seconds(0.0),
    )
