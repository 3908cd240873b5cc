"""A TCP link between two agents of one generation: whole messages, a bound on silence, and how long a round trip takes."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

from windfall.ports import Clock
from windfall.terms import Instant, Seconds
from windfall.wire import peer_messages
from windfall.wire.peer_messages import PeerMessage, PeerPing, PeerPong

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
