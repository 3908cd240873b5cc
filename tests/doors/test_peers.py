"""The port at which the machines of a generation meet: whoever reaches it may say anything, and ends nothing."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.doors.support import inputs
from tests.real.generations import free_address
from windfall import codec
from windfall.agent.coordinator import Coordinator
from windfall.agent.peer_link import SILENT_S_MAX, PeerIdentity, join
from windfall.events import Fact, PeerLost, RanksObserved, RankStatus
from windfall.linux.clock import SystemClock
from windfall.structs import replace
from windfall.terms import Instant, Notice, NoticeLevel, Phase, Seconds, Step
from windfall.wire import peer_messages

LIMIT_S = 10.0
ATTACKS = (
    b'{"version":1,"node":1e999,"generation":1,"challenge":"x","proof":"y"}\n',
    b"[" * 4000 + b"\n",
    b'{"a":' * 700 + b"\n",
    b'{"version":1,"node":[],"generation":{},"challenge":7,"proof":null}\n',
    b'{"version":1,"node":NaN,"generation":1,"challenge":"x","proof":"y"}\n',
    b"\xff\xfe\n",
    b"9" * 4090 + b"\n",
    b"no newline",
    b"",
)


class Leader:
    """A coordinator that is open for one member, and all that comes of it; an exception of any of its threads is kept."""

    def __init__(self) -> None:
        self.facts: queue.SimpleQueue[Fact] = queue.SimpleQueue()
        self.told: list[str] = []
        self.died: list[str] = []
        self.identity = PeerIdentity(3, 0, (free_address(), "127.0.0.1:9"), "a-secret")
        self.coordinator = Coordinator(
            self.identity,
            SystemClock(),
            deliver=self.facts.put,
            log=self.told.append,
            new_nonce=lambda: "a-nonce",
            kill_local=lambda: None,
        )
        self.coordinator.open()

    def call(self) -> socket.socket:
        host, port = peer_messages.host_and_port(self.identity.addresses[0])
        return socket.create_connection((host, port), timeout=LIMIT_S)

    def lives(self) -> None:
        """The member comes in, and no thread of the agent has died: one that does takes the agent with it."""
        self.joined().close()
        assert self.died == []

    def joined(self) -> socket.socket:
        member = join(replace(self.identity, node=1), "a-challenge", LIMIT_S, SystemClock())
        self.coordinator.wait_for_members(LIMIT_S)
        return member


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    died: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: died.append(repr(told.exc_value)))
    made = Leader()
    made.died = died
    yield made
    made.coordinator.end(0)


def say(leader: Leader, data: bytes) -> None:
    """Call without a token, say something, and hear the leader out."""
    with contextlib.suppress(OSError), leader.call() as caller:
        caller.sendall(data)
        caller.shutdown(socket.SHUT_WR)
        while caller.recv(4096):
            pass


@pytest.mark.trial("G3")
@pytest.mark.parametrize("data", ATTACKS, ids=range(len(ATTACKS)))
def test_one_line_without_a_token_ends_nothing(leader: Leader, data: bytes) -> None:
    """Whatever somebody says who has no token: the leader's agent lives, and the member that comes next is in."""
    say(leader, data)
    leader.lives()


@pytest.mark.trial("G3")
def test_callers_who_say_nothing_do_not_keep_a_member_out(leader: Leader) -> None:
    """A hundred open connections that are silent: the oldest are dropped, and the member is in at once."""
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(leader.call())
        leader.lives()


@pytest.mark.trial("G3")
def test_the_port_is_closed_when_all_are_in(leader: Leader) -> None:
    """Once the generation is complete nobody else can connect."""
    with leader.joined(), pytest.raises(OSError, match="refused"):
        leader.call()


@pytest.mark.trial("G3")
def test_strangers_are_told_of_once(leader: Leader) -> None:
    """Of twenty callers in a row the user hears once."""
    for _ in range(20):
        say(leader, b"hello\n")
    leader.joined().close()
    assert len(leader.told) == 1
    assert "not from a machine of this generation" in leader.told[0]


def _hellos() -> list[object]:
    return [
        {"version": 1, "generation": 3, "node": 1, "challenge": "c", "proof": "0" * 64},
        {"proof": "0" * 64},
        {"refused": "no"},
        {"type": "ping", "at": 1.0},
    ]


@pytest.mark.trial("G3")
def test_the_port_survives_whatever_is_said_to_it(leader: Leader, count: int) -> None:
    """Mutated greetings and bytes by seed: none is let in, none ends a thread, and the member comes in behind them all."""
    for given in inputs(_hellos(), count):
        say(leader, given.data + b"\n")
    leader.lives()


STATUS = RankStatus(1, Step(7), Phase.STEP, Instant(1.0))
NOTICE = Notice(NoticeLevel.ANNOUNCED, "aws", "n1", Instant(9.0))
MESSAGES = (
    peer_messages.PeerFacts(1, 5.0, 0, (RanksObserved((STATUS,), Seconds(0.0), Seconds(0.0)),)),
    peer_messages.PeerUploaded(()),
    peer_messages.PeerNotice(NOTICE, 5.0),
    peer_messages.PeerStop(now=False, reason="somebody"),
    peer_messages.PeerExited(9, 0),
    peer_messages.PeerPrepared(1, "p1", 7),
    peer_messages.PeerPrepareFailed(1, 1, "no"),
    peer_messages.PeerPong(1.0),
)


def _messages() -> list[object]:
    return [codec.encode(message) for message in MESSAGES]


@pytest.mark.trial("G3")
def test_a_member_that_says_nonsense_is_lost_and_nothing_else(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Behind the handshake too: what cannot be understood ends the link in good order, never a thread or the loop."""
    died: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: died.append(repr(told.exc_value)))
    clock = SystemClock()
    many = list(inputs(_messages(), count))
    for first in range(0, len(many), 50):
        leader = Leader()
        member = leader.joined()
        said = b"".join(given.data.replace(b"\n", b" ") + b"\n" for given in many[first : first + 50])
        with contextlib.suppress(OSError):
            member.sendall(said)
            member.shutdown(socket.SHUT_WR)
        heard: list[Fact] = []
        while not any(isinstance(fact, PeerLost) for fact in heard):
            heard.append(leader.facts.get(timeout=SILENT_S_MAX * 2))
        leader.coordinator.merge_facts(clock.now(), heard, None)
        leader.coordinator.end(0)
        member.close()
    assert died == []


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_each_message_is_understood_as_it_is_sent(message: peer_messages.PeerMessage) -> None:
    """What a machine of ours says passes its own check."""
    assert peer_messages.from_line(peer_messages.to_line(message), peer_messages.PeerMessage) == message


def test_a_field_that_is_missing_or_too_much_is_refused() -> None:
    """Every message has exactly its fields."""
    for message in MESSAGES:
        sent = codec.encode(message)
        wrong = [{key: value for key, value in sent.items() if key != name} for name in set(sent) - {"type"}]
        for data in [*wrong, {**sent, "more": 1}, {**sent, "type": "nonsense"}]:
            with pytest.raises(ValueError, match="is invalid"):
                peer_messages.from_line(json.dumps(data).encode() + b"\n", peer_messages.PeerMessage)


def test_the_pages_name_each_message() -> None:
    """The table of the protocol is what its messages are."""
    named = set(re.findall(r"^ {4}(?:leader|member|both)? .*|^ {20,}.*", peer_messages.__doc__ or "", re.MULTILINE))
    words = set(re.findall(r"[a-z_]+", " ".join(named)))
    assert {peer_messages._tag(kind.__name__) for kind in peer_messages.PeerMessage.__subclasses__()} - words == set()
