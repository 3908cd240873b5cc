"""The API server's connections: unauthenticated ones are closed early, so that they cannot use up the descriptors.

A connection costs a descriptor from its first packet, before any of it can be read.  So connections may use only a share
of the process's descriptors.  One that has sent no request, or shown no token, has a time limit and is closed first when
the limit on connections is reached.  A connection with a request in progress is never closed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from windfall.ports import Clock
from windfall.terms import Instant, Seconds

UNAUTHENTICATED_S_MAX = Seconds(20.0)
"""How long a connection may stay idle, or send requests without a token [s]."""
CONNECTIONS_MAX = 512
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(slots=True)
class _Connection:
    """A connection; `since`: when it was opened, or when its last request was answered."""

    socket: socket.socket
    since: Instant
    answering: int = 0
    known: bool = False


class Connections:
    """The connections of one server; used by its event loop's thread alone."""

    def __init__(self, clock: Clock, log: Callable[[str], None], limit: int | None = None) -> None:
        """Start without connections.

        Args:
            clock: for the time limit on unauthenticated connections.
            log: writes a message to the log.
            limit: most connections at a time; a share of this process's descriptors if None.
        """
        self._clock, self._log = clock, log
        self.limit = limit or max(8, min(CONNECTIONS_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 8))
        self._connections: dict[Any, _Connection] = {}

    def admit(self, connection: socket.socket, peer: Any) -> bool:
        """Add a new connection, closing the oldest unauthenticated one at the limit; False if there is none to close."""
        self.sweep()
        if len(self._connections) >= self.limit and not self.make_room():
            return False
        self._connections[_key(peer)] = _Connection(connection, self._clock.now())
        return True

    def enter(self, peer: Any) -> None:
        """Note the start of a request.

        Args:
            peer: the client, as the server names it.
        """
        line = self._connections.get(_key(peer))
        if line is not None:
            line.answering += 1

    def leave(self, peer: Any, *, known: bool) -> None:
        """Note the end of a request.

        Args:
            peer: the client, as the server names it.
            known: whether the request carried a valid token.
        """
        line = self._connections.get(_key(peer))
        if line is not None:
            line.answering, line.since, line.known = line.answering - 1, self._clock.now(), line.known or known

    def sweep(self) -> None:
        """Forget closed connections; close unauthenticated ones whose time is up."""
        now = self._clock.now()
        self._connections = {peer: line for peer, line in self._connections.items() if line.socket.fileno() >= 0}
        late = [peer for peer, line in self._unauthenticated() if now - line.since > UNAUTHENTICATED_S_MAX]
        for peer in late:
            self._cut(peer)
        if late:
            self._log("closed connections that sent no request with a token")

    def make_room(self) -> bool:
        """Close the oldest unauthenticated connection; False if there is none."""
        first = min(self._unauthenticated(), key=lambda one: one[1].since, default=None)
        if first is None:
            return False
        self._cut(first[0])
        self._log(f"the limit of {self.limit} connections is reached: closing those without a token first")
        return True

    def _unauthenticated(self) -> list[tuple[Any, _Connection]]:
        return [(peer, line) for peer, line in self._connections.items() if not (line.known or line.answering)]

    def _cut(self, peer: Any) -> None:
        # The server closes the descriptor once it sees the shutdown; closing it here would free its number too early.
        with contextlib.suppress(OSError):
            self._connections.pop(peer).socket.shutdown(socket.SHUT_RDWR)


class Listener(socket.socket):
    """A listening socket whose `accept` respects the limit on connections, and survives running out of descriptors.

    Where `accept` fails for lack of descriptors, asyncio (Python 3.11) leaves the connection waiting and so writes
    hundreds of tracebacks a second without end.
    """

    connections: Connections | None = None
    _spare: int = -1

    def guard(self, connections: Connections) -> None:
        """Apply the limit of these connections from now on."""
        self.connections = connections
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the socket and the spare descriptor."""
        super().close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection within the limit.

        Raises:
            BlockingIOError: no connection waits.
            ConnectionAbortedError: one did, and was closed.
        """
        try:
            connection, peer = super().accept()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR or self.connections is None:
                raise
            self._turn_away()
            raise ConnectionAbortedError(errno.ECONNABORTED, "no descriptor is left") from error
        if self.connections is not None and not self.connections.admit(connection, peer):
            connection.close()
            raise ConnectionAbortedError(errno.ECONNABORTED, "the limit on connections is reached")
        return connection, peer

    def _turn_away(self) -> None:
        """With no descriptor left, accept the waiting connection with the spare one and close it, or it would wait."""
        assert self.connections is not None
        self.connections.make_room()
        if self._spare >= 0:
            os.close(self._spare)
        try:
            with contextlib.suppress(OSError):
                super().accept()[0].close()
        finally:
            self._spare = -1
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _key(peer: Any) -> Any:
    return tuple(peer[:2]) if isinstance(peer, (tuple, list)) else peer
