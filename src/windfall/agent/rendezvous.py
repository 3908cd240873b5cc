"""The leader's port, at which the members of a generation join: anyone may connect, only members are admitted.

An unknown peer cannot end, fill or delay the generation: lines are short and type-checked, a handshake is limited to a few
seconds, of too many pending handshakes the oldest is dropped, and refusals are logged rarely.  The port closes when all
members have joined.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable

from windfall.agent import handshake
from windfall.agent.handshake import PeerIdentity
from windfall.errors import Misuse
from windfall.ports import Clock
from windfall.terms import Instant, Seconds
from windfall.wire import peer_messages

PENDING_MAX = 64
"""Limit on pending handshakes; a member's takes milliseconds, and a dropped member tries again."""
_LOG_INTERVAL_S = 60.0
"""Least time between two log messages about refused connections [s]."""
_RETRY_S = Seconds(0.1)


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
        node = handshake.authenticate(self._identity, self._new_nonce(), connection, self._clock)
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
