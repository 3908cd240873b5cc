"""The port at which a generation comes together: whoever reaches it may knock, and only its members get in.

Nobody who knocks can end, fill or hold up the generation: lines are short and read by their types, a handshake has a few
seconds as a whole, of too many at once the oldest is dropped, and what is refused is told seldom.  When all are in, the
port is closed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable

from windfall.agent import peers_handshake as handshake
from windfall.agent.peers_handshake import Place
from windfall.errors import Misuse
from windfall.ports import Clock
from windfall.terms import Instant, Seconds
from windfall.wire import peers

KNOCKING_MAX = 64
"""How many may be in their handshake at once; a member's takes milliseconds, and it tries again."""
_TOLD_S = 60.0
"""How often the user hears of strangers [s]."""
_AGAIN_S = Seconds(0.1)


class Door:
    """The leader's port."""

    def __init__(
        self,
        place: Place,
        clock: Clock,
        *,
        new_nonce: Callable[[], str],
        let_in: Callable[[int, socket.socket], None],
        tell: Callable[[str], None],
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            place: the leader's.
            clock: of this machine.
            new_nonce: gives a fresh random name.
            let_in: takes each member's number and connection, from threads.
            tell: takes sentences for the user.
        """
        self._place = place
        self._clock = clock
        self._new_nonce = new_nonce
        self._let_in = let_in
        self._tell = tell
        self._lock = threading.Lock()
        self._server: socket.socket | None = None
        self._closed = False
        self._knocking: OrderedDict[int, socket.socket] = OrderedDict()
        self._strangers = 0
        self._told_at: Instant | None = None

    def open(self) -> None:
        """Listen at the leader's address.

        Raises:
            Misuse: it cannot be listened at.
        """
        address = self._place.addresses[0]
        host, port = peers.host_and_port(address)
        try:
            server = socket.create_server((host, port), family=_family(host))
        except OSError as error:
            raise Misuse(
                f"{address} cannot be listened at ({error.strerror}): --peers must begin with an address of this machine"
            ) from error
        self._server = server
        threading.Thread(target=self._accept, args=(server,), name="peers", daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more; who is in stays."""
        with self._lock:
            self._closed = True
            waiting, self._knocking = list(self._knocking.values()), OrderedDict()
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
                # Closed; or this process has no descriptor left, which may pass.
                self._clock.sleep(_AGAIN_S)
                continue
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        with self._lock:
            self._knocking[id(connection)] = connection
            oldest = self._knocking.popitem(last=False)[1] if len(self._knocking) > KNOCKING_MAX else None
        if oldest is not None:
            _hang_up(oldest)  # its thread closes it
        threading.Thread(target=self._welcome, args=(connection,), name="peer-welcome", daemon=True).start()

    def _welcome(self, connection: socket.socket) -> None:
        node = handshake.welcome(self._place, self._new_nonce(), connection, self._clock)
        with self._lock:
            self._knocking.pop(id(connection), None)
            wanted = node is not None and not self._closed
        if wanted:
            assert node is not None
            self._let_in(node, connection)
            return
        connection.close()
        if node is None:
            self._count_stranger()

    def _count_stranger(self) -> None:
        now = self._clock.now()
        with self._lock:
            self._strangers += 1
            if self._told_at is not None and now < self._told_at + _TOLD_S:
                return
            self._told_at, count, self._strangers = now, self._strangers, 0
        often = "somebody" if count == 1 else f"{count} times somebody"
        self._tell(
            f"{often} who does not belong to the generation called at {self._place.addresses[0]}, and was refused"
        )


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
