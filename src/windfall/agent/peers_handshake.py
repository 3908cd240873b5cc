"""How the machines of a generation find one another, and prove that they belong to it (`wire.peers`)."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass

from windfall.agent.peers_link import Message
from windfall.errors import Apart, WindfallError
from windfall.ports import Clock
from windfall.terms import Instant, Seconds
from windfall.wire import peers

_CONNECT_S = 10.0
HANDSHAKE_S = 5.0
"""How long a handshake may take as a whole; one that takes longer is no machine of ours [s]."""
_LINE_BYTES_MAX = 4096
_AGAIN_S = Seconds(0.1)


@dataclass(frozen=True, slots=True)
class Place:
    """A machine's place in a generation.

    Attributes:
        generation: its number, from 1.
        node: this machine's node rank; 0 leads.
        addresses: host:port of each machine, in the order of their node ranks; the first one's port is the leader's.
        token: shared by the machines of this generation and nobody else.
    """

    generation: int
    node: int
    addresses: tuple[str, ...]
    token: str

    @property
    def others(self) -> tuple[int, ...]:
        """The node ranks of the other machines."""
        return tuple(node for node in range(len(self.addresses)) if node != self.node)


class _Refused(WindfallError):
    """Somebody who does not belong to this generation."""


def welcome(place: Place, challenge: str, connection: socket.socket, clock: Clock) -> int | None:
    """Receive whoever has connected to the leader; return the member's node rank, None if it is none.

    Args:
        place: the leader's.
        challenge: random.
        connection: just accepted.
        clock: for the bound on the whole of it.
    """
    ends = Instant(clock.now() + HANDSHAKE_S)
    try:
        connection.settimeout(HANDSHAKE_S)
        connection.sendall(peers.to_line({"v": peers.VERSION, "challenge": challenge}))
        hello = _hear(connection, ends, clock)
        node = _check(place, hello, challenge)
        mine = _proof(place, "leader", node, hello["challenge"])
        connection.sendall(peers.to_line({"proof": mine}))
    except _Refused as refusal:
        with contextlib.suppress(OSError):
            connection.sendall(peers.to_line({"refused": str(refusal)}))
    except (OSError, ValueError):
        pass  # not one of us, or gone already
    else:
        return node
    return None


def _check(place: Place, hello: Message, challenge: str) -> int:
    """Return the node rank of a member that belongs here.

    Raises:
        _Refused: it does not.
    """
    if hello.get("v") != peers.VERSION:
        raise _Refused("the machines of a generation must have the same Windfall installed")
    if not peers.fits(hello, peers.HELLO):
        raise _Refused("this is not how a machine of a generation begins")
    node: int = hello["node"]
    generation: int = hello["generation"]
    if generation != place.generation:
        raise _Refused(f"this is generation {place.generation}, not {generation}")
    if node not in place.others or not peers.proves(hello["proof"], _proof(place, "member", node, challenge)):
        raise _Refused("it does not belong to the generation: its number or its token is wrong")
    return node


def _proof(place: Place, side: str, node: int, challenge: str) -> str:
    return peers.proof(place.token, side=side, generation=place.generation, node=node, challenge=challenge)


def _hear(connection: socket.socket, ends: Instant, clock: Clock) -> Message:
    """Read one message of a handshake, byte by byte: what follows it belongs to the link.

    Raises:
        ValueError: it is no message, or it did not come in time.
        OSError: the connection is gone, or silent.
    """
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES_MAX:
        left_s = ends - clock.now()
        if left_s <= 0.0:
            raise ValueError("it takes too long")
        connection.settimeout(left_s)
        if not (byte := connection.recv(1)):
            raise ValueError("it hung up")
        line += byte
    return peers.from_line(line)


def join(place: Place, challenge: str, limit_s: float, clock: Clock) -> socket.socket:
    """Connect to the leader and prove to one another that both belong to this generation.

    Args:
        place: this machine's, a member's.
        challenge: random.
        limit_s: how long the leader may take to be there.
        clock: for the pauses.

    Raises:
        Apart: the leader did not come, or does not want this machine.
    """
    host, port = peers.host_and_port(place.addresses[0])
    ends = clock.now() + limit_s
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=_CONNECT_S)
        except OSError as error:
            if clock.now() >= ends:
                raise Apart(
                    f"generation {place.generation} is not complete: its leader at {place.addresses[0]} did not answer "
                    f"within {limit_s:g} s ({error.strerror or error})"
                ) from error
            clock.sleep(_AGAIN_S)
            continue
        try:
            return _shake_hands(place, challenge, connection, clock)
        except Apart:
            connection.close()
            raise
        except (OSError, ValueError) as error:
            connection.close()
            if clock.now() >= ends:
                raise Apart(f"{place.addresses[0]} does not answer like a leader ({error})") from error
            clock.sleep(_AGAIN_S)


def _shake_hands(place: Place, challenge: str, connection: socket.socket, clock: Clock) -> socket.socket:
    ends = Instant(clock.now() + HANDSHAKE_S)
    greeting = _hear(connection, ends, clock)
    if not peers.fits(greeting, peers.GREETING):
        raise ValueError("it does not greet as one")
    proof = _proof(place, "member", place.node, greeting["challenge"])
    hello = {"v": peers.VERSION, "generation": place.generation, "node": place.node, "challenge": challenge}
    connection.sendall(peers.to_line({**hello, "proof": proof}))
    answer = _hear(connection, ends, clock)
    if peers.fits(answer, peers.REFUSED):
        raise Apart(f"the leader of the generation refuses this machine: {answer['refused']}")
    if not peers.fits(answer, peers.PROVEN):
        raise ValueError("it does not answer as one")
    if not peers.proves(answer["proof"], _proof(place, "leader", place.node, challenge)):
        raise Apart(f"whoever answers at {place.addresses[0]} is not the leader of this generation: its token is wrong")
    return connection
