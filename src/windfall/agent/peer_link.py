"""How the machines of a generation find one another, prove that they belong to it, and talk (`wire.peer_messages`).

The leader's port, at which the members of a generation join: anyone may connect, only members are admitted.

An unknown peer cannot end, fill or delay the generation: lines are short and type-checked, a handshake is limited to a few
seconds, of too many pending handshakes the oldest is dropped, and refusals are logged rarely.  The port closes when all
members have joined.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import BinaryIO

from windfall.errors import GenerationIncomplete, Misuse, WindfallError
from windfall.ports import Clock
from windfall.structs import Struct
from windfall.terms import Instant, Seconds
from windfall.wire import peer_messages
from windfall.wire.environment import PEERS_TOKEN
from windfall.wire.peer_messages import (
    VERSION,
    PeerGreeting,
    PeerHello,
    PeerMessage,
    PeerPing,
    PeerPong,
    PeerWelcome,
    from_line,
    to_line,
)

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


PING_S = Seconds(0.25)
SILENT_S_MAX = 10.0
"""A link that is silent for longer is lost: its machine is gone, cut off or frozen [s]."""
_TRIPS_KEPT = 16


class PeerLink:
    """One connection after the handshake; three threads that die with the process."""

    def __init__(
        self,
        connection: socket.socket,
        clock: Clock,
        deliver: Callable[[PeerMessage, Instant], None],
        lost: Callable[[str], None],
    ) -> None:
        """Take over a connection.

        Args:
            connection: authenticated; nothing after the handshake has been read from it.
            clock: of this machine.
            deliver: takes each message and the instant of its arrival, in order, from one thread; its `ValueError` for
                an invalid message ends the link.
            lost: called once with the reason when the link is lost; not after `end`.
        """
        connection.settimeout(None)
        self._connection = connection
        self._clock = clock
        self._deliver = deliver
        self._lost = lost
        self._outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._received_at = clock.now()
        self._round_trips: deque[float] = deque(maxlen=_TRIPS_KEPT)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._ended_here = False

    def start(self) -> None:
        """Start to receive, to send and to watch for silence."""
        for action in (self._read, self._write, self._watch):
            threading.Thread(target=action, name=f"peer-{action.__name__}", daemon=True).start()

    @property
    def round_trip_s(self) -> float:
        """The longest of the last round trips [s]."""
        return max(tuple(self._round_trips), default=0.0)

    def send(self, message: PeerMessage) -> None:
        """Queue a message; never block, and do nothing if the link is lost."""
        self._outgoing.put(peer_messages.to_line(message))

    def end(self, last: PeerMessage | None = None, timeout_s: float = 0.0) -> None:
        """Send a last message, wait up to `timeout_s` for the other side to hang up, then hang up; `lost` is not called."""
        with self._lock:
            self._ended_here = True
        if last is not None:
            self.send(last)
            self._over.wait(timeout_s)
        self._hang_up("ended")

    def _hang_up(self, reason: str) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
            ended_here = self._ended_here
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        if not ended_here:
            self._lost(reason)

    def _read(self) -> None:
        reason = "it hung up"
        try:
            lines: BinaryIO = self._connection.makefile("rb")
            while line := lines.readline(peer_messages.LINE_BYTES_MAX):
                self._received_at = now = self._clock.now()
                self._dispatch(peer_messages.from_line(line, PeerMessage), now)
        except (OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
        self._hang_up(reason)

    def _dispatch(self, message: PeerMessage, now: Instant) -> None:
        match message:
            case PeerPing(at):
                self.send(PeerPong(at))
            case PeerPong(at):
                # A longer round trip is impossible: the link would have been lost.
                self._round_trips.append(min(max(now - at, 0.0), SILENT_S_MAX))
            case _:
                self._deliver(message, now)

    def _write(self) -> None:
        try:
            while not self._over.is_set():
                self._connection.sendall(self._outgoing.get())
        except OSError as error:
            self._hang_up(str(error))

    def _watch(self) -> None:
        while not self._over.is_set():
            silent_s = self._clock.now() - self._received_at
            if silent_s > SILENT_S_MAX:
                self._hang_up(f"silent for {silent_s:.0f} s")
            self.send(PeerPing(self._clock.now()))
            self._clock.sleep(PING_S)


PENDING_MAX = 64
"""Limit on pending handshakes; a member's takes milliseconds, and a dropped member tries again."""
_LOG_INTERVAL_S = 60.0
"""Least time between two log messages about refused connections [s]."""


class RendezvousServer:
    """The leader's listening socket."""

    def __init__(
        self,
        identity: PeerIdentity,
        clock: Clock,
        *,
        new_nonce: Callable[[], str],
        admit: Callable[[int, socket.socket], None],
        log: Callable[[str], None],
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            identity: the leader's.
            clock: of this machine.
            new_nonce: gives a fresh random name.
            admit: takes each member's node rank and connection, from threads.
            log: takes messages for the user.
        """
        self._identity = identity
        self._clock = clock
        self._new_nonce = new_nonce
        self._admit = admit
        self._log = log
        self._lock = threading.Lock()
        self._server: socket.socket | None = None
        self._closed = False
        self._pending: OrderedDict[int, socket.socket] = OrderedDict()
        self._refused = 0
        self._logged_at: Instant | None = None

    def open(self) -> None:
        """Listen at the leader's address.

        Raises:
            Misuse: this machine cannot listen there.
        """
        address = self._identity.addresses[0]
        host, port = peer_messages.host_and_port(address)
        try:
            server = socket.create_server((host, port), family=_family(host))
        except OSError as error:
            raise Misuse(
                f"cannot listen at {address} ({error.strerror}); --peers must start with an address of this machine"
            ) from error
        self._server = server
        threading.Thread(target=self._accept, args=(server,), name="peers", daemon=True).start()

    def close(self) -> None:
        """Refuse everyone from now on; members that have joined stay connected."""
        with self._lock:
            self._closed = True
            waiting, self._pending = list(self._pending.values()), OrderedDict()
        for connection in waiting:
            _hang_up(connection)
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()

    def _accept(self, server: socket.socket) -> None:
        while not self._closed:
            try:
                connection, _ = server.accept()
            except OSError:
                # Closed; or this process has run out of descriptors, which may pass.
                self._clock.sleep(_RETRY_S)
                continue
            self._start_handshake(connection)

    def _start_handshake(self, connection: socket.socket) -> None:
        with self._lock:
            self._pending[id(connection)] = connection
            oldest = self._pending.popitem(last=False)[1] if len(self._pending) > PENDING_MAX else None
        if oldest is not None:
            _hang_up(oldest)  # its thread closes it
        threading.Thread(target=self._shake_hands, args=(connection,), name="peer-handshake", daemon=True).start()

    def _shake_hands(self, connection: socket.socket) -> None:
        node = authenticate(self._identity, self._new_nonce(), connection, self._clock)
        with self._lock:
            self._pending.pop(id(connection), None)
            admitted = node is not None and not self._closed
        if admitted:
            assert node is not None
            self._admit(node, connection)
            return
        connection.close()
        if node is None:
            self._count_refused()

    def _count_refused(self) -> None:
        now = self._clock.now()
        with self._lock:
            self._refused += 1
            if self._logged_at is not None and now < self._logged_at + _LOG_INTERVAL_S:
                return
            self._logged_at, count, self._refused = now, self._refused, 0
        what = "a connection" if count == 1 else f"{count} connections"
        self._log(f"refused {what} at {self._identity.addresses[0]}: not from a machine of this generation")


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
