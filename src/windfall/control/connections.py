"""Who is connected: no stranger keeps a descriptor for long, and none is refused while others only hold theirs.

A connection costs a descriptor from its first packet on, before anything of it can be read.  So there is room for a share
of the process's descriptors; who has sent no request, or shown no token, has a short time, and goes first when room is
needed.  Connections that are being answered are never cut.
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

STRANGER_S = Seconds(20.0)
"""How long a connection may be silent, or talk without a token [s]."""
ROOM_MAX = 512
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(slots=True)
class _Line:
    """A connection; `since`: when it came, or its last request was answered."""

    socket: socket.socket
    since: Instant
    answering: int = 0
    known: bool = False


class Connections:
    """The connections of one server; used by its event loop's thread alone."""

    def __init__(self, clock: Clock, say: Callable[[str], None], room: int | None = None) -> None:
        """There are none yet.

        Args:
            clock: for the limit on strangers.
            say: takes a sentence for the log.
            room: how many there may be; a share of this process's descriptors if not given.
        """
        self._clock, self._say = clock, say
        self.room = room or max(8, min(ROOM_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 8))
        self._lines: dict[Any, _Line] = {}

    def admit(self, connection: socket.socket, peer: Any) -> bool:
        """Take a new connection in; where there is no room the stranger who came first goes; False if all are known."""
        self.sweep()
        if len(self._lines) >= self.room and not self.make_room():
            return False
        self._lines[_key(peer)] = _Line(connection, self._clock.now())
        return True

    def enter(self, peer: Any) -> None:
        """A request is being answered.

        Args:
            peer: who asks, as the server names it.
        """
        line = self._lines.get(_key(peer))
        if line is not None:
            line.answering += 1

    def leave(self, peer: Any, *, known: bool) -> None:
        """A request has been answered.

        Args:
            peer: who asked.
            known: whether a token was shown with it.
        """
        line = self._lines.get(_key(peer))
        if line is not None:
            line.answering, line.since, line.known = line.answering - 1, self._clock.now(), line.known or known

    def sweep(self) -> None:
        """Forget what was closed; close those that had their time."""
        now = self._clock.now()
        self._lines = {peer: line for peer, line in self._lines.items() if line.socket.fileno() >= 0}
        late = [peer for peer, line in self._strangers() if now - line.since > STRANGER_S]
        for peer in late:
            self._cut(peer)
        if late:
            self._say("connections were closed that sent no request with a token")

    def make_room(self) -> bool:
        """Close the stranger who came first; False if there is none."""
        first = min(self._strangers(), key=lambda one: one[1].since, default=None)
        if first is None:
            return False
        self._cut(first[0])
        self._say(
            f"there is room for {self.room} connections: those that sent no request with a token are closed first"
        )
        return True

    def _strangers(self) -> list[tuple[Any, _Line]]:
        return [(peer, line) for peer, line in self._lines.items() if not (line.known or line.answering)]

    def _cut(self, peer: Any) -> None:
        # The server closes the descriptor as soon as it sees the end; closing it here would free its number too early.
        with contextlib.suppress(OSError):
            self._lines.pop(peer).socket.shutdown(socket.SHUT_RDWR)


class Listener(socket.socket):
    """A listening socket whose `accept` keeps to the room there is, and survives having no descriptor left.

    asyncio writes hundreds of tracebacks a second where `accept` fails for want of descriptors (Python 3.11), and leaves
    the connection waiting, so that it goes on for ever.
    """

    connections: Connections | None = None
    _spare: int = -1

    def guard(self, connections: Connections) -> None:
        """Keep to this room from now on."""
        self.connections = connections
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close it."""
        super().close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection that there is room for.

        Raises:
            BlockingIOError: nobody waits.
            ConnectionAbortedError: somebody did, and was turned away.
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
            raise ConnectionAbortedError(errno.ECONNABORTED, "there is no room")
        return connection, peer

    def _turn_away(self) -> None:
        """With no descriptor left, give the spare one to whoever waits, and close it: else they would wait for ever."""
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
