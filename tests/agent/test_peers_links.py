"""How the machines of a generation find one another, and learn that one is gone; over real sockets."""

from __future__ import annotations

import itertools
import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.real.generations import free_address
from tests.real.machines import wait_for
from tests.support.simulated_store import ManualClock
from windfall.agent.coordinator import Coordinator
from windfall.agent.peer_link import PeerIdentity, PeerLink, join
from windfall.errors import GenerationIncomplete, Misuse
from windfall.events import Fact, PeerLost
from windfall.linux.clock import SystemClock
from windfall.structs import replace
from windfall.wire.peer_messages import PeerCommitted


class Leader:
    """A coordinator that is open, and what it delivers."""

    def __init__(self) -> None:
        self.facts: queue.SimpleQueue[Fact] = queue.SimpleQueue()
        self.identity = PeerIdentity(3, 0, (free_address(), "127.0.0.1:9"), "a-secret")
        numbers = itertools.count()
        self.coordinator = Coordinator(
            self.identity,
            SystemClock(),
            deliver=self.facts.put,
            log=lambda _: None,
            new_nonce=lambda: f"n{next(numbers)}",
            kill_local=lambda: None,
        )
        self.coordinator.open()

    def join(self, **changes: object) -> socket.socket:
        identity = replace(self.identity, **{"node": 1, **changes})  # type: ignore[arg-type]
        return join(identity, "a-challenge", 5.0, SystemClock())


@pytest.fixture
def leader() -> Iterator[Leader]:
    made = Leader()
    yield made
    made.coordinator.end(0)


def test_a_member_with_the_token_is_in(leader: Leader) -> None:
    """The generation is complete when its member has come; a member that hangs up afterwards is lost."""
    connection = leader.join()
    leader.coordinator.wait_for_members(5.0)
    connection.close()
    lost = leader.facts.get(timeout=5.0)
    assert isinstance(lost, PeerLost)
    assert lost.node == 1
    assert leader.coordinator.lost


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token": "another"}, "WINDFALL_PEERS_TOKEN is wrong"),
        ({"generation": 2}, "this is generation 3, not 2"),
        ({"node": 2}, "its --node-rank or its"),
    ],
)
def test_a_machine_that_does_not_belong_is_refused(leader: Leader, changes: dict[str, object], words: str) -> None:
    """Another token, an older generation, a number that is none of its machines'."""
    with pytest.raises(GenerationIncomplete, match=words):
        leader.join(**changes)
    with pytest.raises(GenerationIncomplete):
        leader.coordinator.wait_for_members(0.05)


def test_a_leader_with_another_token_is_refused() -> None:
    """A member sends nothing to somebody who only has the leader's address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend() -> None:
            connection, _ = server.accept()
            connection.sendall(b'{"version":1,"challenge":"x"}\n')
            connection.recv(1 << 12)
            connection.sendall(b'{"proof":"guessed"}\n')
            connection.close()

        threading.Thread(target=pretend, daemon=True).start()
        identity = PeerIdentity(3, 1, (f"127.0.0.1:{server.getsockname()[1]}", "127.0.0.1:9"), "a-secret")
        with pytest.raises(GenerationIncomplete, match="is not the leader of this generation"):
            join(identity, "a-challenge", 5.0, SystemClock())


def test_a_member_that_comes_back_before_the_others_is_taken_again(leader: Leader) -> None:
    """An `exec` that was started again while the generation comes together does not end it."""
    leader.join().close()
    connection = leader.join()
    wait_for(lambda: not leader.coordinator.lost, "nothing is lost")
    leader.coordinator.wait_for_members(5.0)
    connection.close()


def test_a_member_may_come_back_before_its_end_is_seen(leader: Leader) -> None:
    """Its first link ends after it has joined again: the second one is kept."""
    first = leader.join()
    second = leader.join()
    threading.Timer(0.3, first.close).start()
    second.settimeout(5.0)
    assert second.recv(1), "the leader sends on the link that it keeps"
    leader.coordinator.wait_for_members(5.0)
    assert not leader.coordinator.lost
    second.close()


def test_nobody_waits_for_ever_for_a_generation(leader: Leader) -> None:
    """A leader whose member does not come, and a member whose leader does not, end with 75 and name who is missing."""
    with pytest.raises(GenerationIncomplete, match=r"machine 1 \(127.0.0.1:9\) did not join within 0.1 s") as missing:
        leader.coordinator.wait_for_members(0.1)
    assert missing.value.exit_code == 75
    identity = PeerIdentity(3, 1, (free_address(), "127.0.0.1:9"), "a-secret")
    with pytest.raises(GenerationIncomplete, match=r"did not answer within 0.1 s"):
        join(identity, "a-challenge", 0.1, SystemClock())


def test_an_address_of_another_machine_cannot_be_led_from_here() -> None:
    """The message says what --peers must start with."""
    identity = PeerIdentity(1, 0, ("192.0.2.1:7000", "127.0.0.1:9"), "a-secret")
    coordinator = Coordinator(
        identity, SystemClock(), deliver=print, log=print, new_nonce=str, kill_local=lambda: None
    )  # fmt: skip
    with pytest.raises(Misuse, match="must start with an address of this machine"):
        coordinator.open()


def test_a_silent_link_is_lost() -> None:
    """A machine that stands still keeps its connection: only the silence tells."""
    ours, theirs = socket.socketpair()
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    PeerLink(ours, ManualClock(), lambda *_: None, lost.put).start()
    assert "silent for" in lost.get(timeout=5.0)
    theirs.close()


def test_both_sides_measure_the_way() -> None:
    """A round trip is known soon after the link is up, and messages arrive in their order."""
    ours, theirs = socket.socketpair()
    heard: queue.SimpleQueue[object] = queue.SimpleQueue()
    links = [
        PeerLink(end, SystemClock(), lambda message, _: heard.put(message.step), lambda _: None)
        for end in (ours, theirs)
    ]
    for link in links:
        link.start()
    for n in range(5):
        links[0].send(PeerCommitted(n, ()))
    assert [heard.get(timeout=5.0) for _ in range(5)] == [0, 1, 2, 3, 4]
    wait_for(lambda: all(link.round_trip_s > 0.0 for link in links), "a round trip")
    for link in links:
        link.end()
