"""A TCP link between two agents of one generation: whole messages, a bound on silence, and how long a round trip takes."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO

from windfall.ports import Clock
from windfall.terms import Instant, Seconds
from windfall.wire import peers

PING_S = Seconds(0.25)
SILENT_S_MAX = 10.0
"""A link that brought nothing for so long is lost: its machine is gone, cut off, or stands still."""
_TRIPS_KEPT = 16

Message = dict[str, Any]


class Link:
    """One connection after the handshake; three threads that die with the process."""

    def __init__(
        self,
        connection: socket.socket,
        clock: Clock,
        deliver: Callable[[Message, Instant], None],
        lost: Callable[[str], None],
    ) -> None:
        """Take over a connection.

        Args:
            connection: nothing of it has been read that was not understood.
            clock: of this machine.
            deliver: takes each message and the instant at which it came, in order, from one thread; a `ValueError` of
                it ends the link: whoever sent that does not speak our language.
            lost: called once, with the reason, when nothing more will come; not after `end`.
        """
        connection.settimeout(None)
        self._connection = connection
        self._clock = clock
        self._deliver = deliver
        self._lost = lost
        self._outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._heard_at = clock.now()
        self._trips: deque[float] = deque(maxlen=_TRIPS_KEPT)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._silent = False

    def start(self) -> None:
        """Begin to listen, to send and to watch."""
        for action in (self._read, self._write, self._watch):
            threading.Thread(target=action, name=f"peer-{action.__name__}", daemon=True).start()

    @property
    def round_trip_s(self) -> float:
        """The longest of the last round trips [s]."""
        return max(tuple(self._trips), default=0.0)

    def send(self, message: Message) -> None:
        """Queue a message; never blocks, and says nothing of a lost link."""
        self._outgoing.put(peers.to_line(message))

    def end(self, last: Message | None = None, patience_s: float = 0.0) -> None:
        """Say a last word; wait until the other side has hung up, or for so long, then hang up.  Not told to `lost`."""
        with self._lock:
            self._silent = True
        if last is not None:
            self.send(last)
            self._over.wait(patience_s)
        self._hang_up("ended")

    def _hang_up(self, why: str) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
            silent = self._silent
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        if not silent:
            self._lost(why)

    def _read(self) -> None:
        why = "it hung up"
        try:
            lines: BinaryIO = self._connection.makefile("rb")
            while line := lines.readline(peers.LINE_BYTES_MAX):
                self._heard_at = now = self._clock.now()
                message = peers.from_line(line)
                peers.check(message)
                self._hear(message, now)
        except (OSError, ValueError) as error:
            why = str(error) or type(error).__name__
        self._hang_up(why)

    def _hear(self, message: Message, now: Instant) -> None:
        if message["it"] == "ping":
            self.send({"it": "pong", "at": message["at"]})
        elif message["it"] == "pong":
            # More than this is no round trip: the link would have been given up.
            self._trips.append(min(max(now - message["at"], 0.0), SILENT_S_MAX))
        else:
            self._deliver(message, now)

    def _write(self) -> None:
        try:
            while not self._over.is_set():
                self._connection.sendall(self._outgoing.get())
        except OSError as error:
            self._hang_up(str(error))

    def _watch(self) -> None:
        while not self._over.is_set():
            silent_s = self._clock.now() - self._heard_at
            if silent_s > SILENT_S_MAX:
                self._hang_up(f"silent for {silent_s:.0f} s")
            self.send({"it": "ping", "at": self._clock.now()})
            self._clock.sleep(PING_S)
