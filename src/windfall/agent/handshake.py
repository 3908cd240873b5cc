"""How the machines of a generation connect and prove to each other that they belong to it (`wire.peer_messages`)."""

from __future__ import annotations

import contextlib
import socket

from windfall.errors import GenerationIncomplete, WindfallError
from windfall.ports import Clock
from windfall.structs import Struct
from windfall.terms import Instant, Seconds
from windfall.wire import peer_messages
from windfall.wire.environment import PEERS_TOKEN
from windfall.wire.peer_messages import VERSION, PeerGreeting, PeerHello, PeerWelcome, from_line, to_line

_CONNECT_S = 10.0
HANDSHAKE_S = 5.0
"""Limit on a whole handshake [s]."""
_LINE_BYTES_MAX = 4096
_RETRY_S = Seconds(0.1)


class PeerIdentity(Struct, frozen=True):
    """A machine's identity in a generation.

    Attributes:
        generation: its number, from 1.
        node: this machine's node rank; 0 leads.
        addresses: host:port of each machine, in the order of their node ranks; the leader listens at the first.
        token: secret that only the machines of this generation share.
    """

    generation: int
    node: int
    addresses: tuple[str, ...]
    token: str

    @property
    def others(self) -> tuple[int, ...]:
        """The node ranks of the other machines."""
        return tuple(node for node in range(len(self.addresses)) if node != self.node)


class _PeerVersion(Struct, frozen=True):
    version: int


class _HandshakeRefused(WindfallError):
    """The peer does not belong to this generation."""


def authenticate(identity: PeerIdentity, challenge: str, connection: socket.socket, clock: Clock) -> int | None:
    """Run the leader's side of a handshake; return the member's node rank, or None for any other peer.

    Args:
        identity: the leader's.
        challenge: random.
        connection: just accepted.
        clock: for the limit on the whole handshake.
    """
    deadline = Instant(clock.now() + HANDSHAKE_S)
    try:
        connection.settimeout(HANDSHAKE_S)
        connection.sendall(to_line(PeerGreeting(VERSION, challenge)))
        hello = _receive_hello(connection, deadline, clock)
        node = _check(identity, hello, challenge)
        connection.sendall(to_line(PeerWelcome(proof=_proof(identity, "leader", node, hello.challenge))))
    except _HandshakeRefused as refusal:
        with contextlib.suppress(OSError):
            connection.sendall(to_line(PeerWelcome(refused=str(refusal))))
    except (OSError, ValueError):
        pass  # not a member, or gone already
    else:
        return node
    return None


def _receive_hello(connection: socket.socket, deadline: Instant, clock: Clock) -> PeerHello:
    """Read a member's first message.

    Raises:
        _HandshakeRefused: it is a member's of another version, or no member's.
        ValueError, OSError: see `_receive`.
    """
    line = _receive(connection, deadline, clock)
    if from_line(line, _PeerVersion).version != VERSION:
        raise _HandshakeRefused("its Windfall version differs; install the same version on all machines")
    try:
        hello: PeerHello = from_line(line, PeerHello)
    except ValueError as error:
        raise _HandshakeRefused("its first message is invalid") from error
    return hello


def _check(identity: PeerIdentity, hello: PeerHello, challenge: str) -> int:
    """Return the node rank of a member of this generation.

    Raises:
        _HandshakeRefused: the peer is not one.
    """
    if hello.generation != identity.generation:
        raise _HandshakeRefused(f"this is generation {identity.generation}, not {hello.generation}")
    expected = _proof(identity, "member", hello.node, challenge)
    if hello.node not in identity.others or not peer_messages.proves(hello.proof, expected):
        raise _HandshakeRefused(f"its --node-rank or its {PEERS_TOKEN} is wrong")
    return hello.node


def _proof(identity: PeerIdentity, side: str, node: int, challenge: str) -> str:
    return peer_messages.proof(
        identity.token, side=side, generation=identity.generation, node=node, challenge=challenge
    )


def _receive(connection: socket.socket, deadline: Instant, clock: Clock) -> bytes:
    """Read one message of a handshake, byte by byte, because what follows belongs to the link.

    Raises:
        ValueError: it did not arrive in time.
        OSError: the connection is gone or silent.
    """
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES_MAX:
        left_s = deadline - clock.now()
        if left_s <= 0.0:
            raise ValueError("the handshake took too long")
        connection.settimeout(left_s)
        if not (byte := connection.recv(1)):
            raise ValueError("it hung up")
        line += byte
    return line


def join(identity: PeerIdentity, challenge: str, limit_s: float, clock: Clock) -> socket.socket:
    """Connect to the leader and run the member's side of a handshake.

    Args:
        identity: this machine's, a member's.
        challenge: random.
        limit_s: how long to wait for the leader [s].
        clock: for the pauses.

    Raises:
        GenerationIncomplete: the leader did not answer, or refused this machine.
    """
    host, port = peer_messages.host_and_port(identity.addresses[0])
    deadline = clock.now() + limit_s
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=_CONNECT_S)
        except OSError as error:
            if clock.now() >= deadline:
                raise GenerationIncomplete(
                    f"generation {identity.generation} is incomplete: its leader at {identity.addresses[0]} did not answer "
                    f"within {limit_s:g} s ({error.strerror or error})"
                ) from error
            clock.sleep(_RETRY_S)
            continue
        try:
            return _prove_membership(identity, challenge, connection, clock)
        except GenerationIncomplete:
            connection.close()
            raise
        except (OSError, ValueError) as error:
            connection.close()
            if clock.now() >= deadline:
                raise GenerationIncomplete(
                    f"{identity.addresses[0]} is not the leader of this generation ({error})"
                ) from error
            clock.sleep(_RETRY_S)


def _prove_membership(identity: PeerIdentity, challenge: str, connection: socket.socket, clock: Clock) -> socket.socket:
    deadline = Instant(clock.now() + HANDSHAKE_S)
    greeting: PeerGreeting = from_line(_receive(connection, deadline, clock), PeerGreeting)
    proof = _proof(identity, "member", identity.node, greeting.challenge)
    connection.sendall(to_line(PeerHello(VERSION, identity.generation, identity.node, challenge, proof)))
    answer: PeerWelcome = from_line(_receive(connection, deadline, clock), PeerWelcome)
    if answer.refused is not None and answer.refused.isprintable():
        raise GenerationIncomplete(f"the leader refused this machine: {answer.refused}")
    if not peer_messages.proves(answer.proof, _proof(identity, "leader", identity.node, challenge)):
        raise GenerationIncomplete(
            f"the peer at {identity.addresses[0]} is not the leader of this generation: its {PEERS_TOKEN} differs"
        )
    return connection
