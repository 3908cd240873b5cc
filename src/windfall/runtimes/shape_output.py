"""What the script of an elastic training prints, on its way to the run's store: whole lines, each with its machine's name.

All machines print, so that a line must say whose it is.  A store that does not answer delays nothing: what does not fit is left
out, and said to be.
"""

from __future__ import annotations

import threading
from collections import deque

from windfall.errors import StoreError
from windfall.ports import Clock, ObjectStore
from windfall.wire import run_layout

PUT_EVERY_S = 1.0
"""Between two segments [s]."""
UNSENT_BYTES_MAX = 1 << 20
"""What waits at most for a store that does not answer; then the oldest lines are left out."""
LINE_BYTES_MAX = 1 << 16
"""A longer line is cut into several."""


class ShapeOutput:
    """The output of one machine's script; any thread may add to it.

    Args:
        store: of the run.
        machine: its name at its provider.
        clock: time.
    """

    def __init__(self, store: ObjectStore, machine: str, clock: Clock) -> None:
        self._store, self._machine, self._clock = store, machine, clock
        self._lock = threading.Lock()
        self._parts: dict[int, bytes] = {}
        self._lines: deque[bytes] = deque()
        self._size = self._left_out = 0
        self._ended = threading.Event()
        self._newest_ms = 0
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def take(self, stream: int, data: bytes) -> None:
        """Take in what was printed.

        Args:
            stream: lines of several streams are not mixed.
            data: some bytes; none at the end of the stream, which ends its last line.
        """
        with self._lock:
            *whole, part = (self._parts.get(stream, b"") + data).split(b"\n")
            while len(part) > LINE_BYTES_MAX or (part and not data):
                whole.append(part[:LINE_BYTES_MAX])
                part = part[LINE_BYTES_MAX:]
            self._parts[stream] = part
            for line in whole:
                self._lines.append(line + b"\n")
                self._size += len(line) + 1
            while self._size > UNSENT_BYTES_MAX:
                self._size -= len(self._lines.popleft())
                self._left_out += 1

    def close(self) -> None:
        """Put what is left into the store, once."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        last = False
        while not last:
            last = self._ended.wait(PUT_EVERY_S)
            self._put()

    def _put(self) -> None:
        with self._lock:
            lines, left_out = list(self._lines), self._left_out
            self._lines.clear()
            self._size = self._left_out = 0
        if not lines and not left_out:
            return
        name = self._machine.encode()
        first = [b"%s: windfall: %d lines are left out\n" % (name, left_out)] if left_out else []
        # Two segments of a moment must not have one key.
        self._newest_ms = max(int(self._clock.wall_time() * 1000), self._newest_ms + 1)
        key = run_layout.shape_output_key(self._newest_ms, self._machine)
        try:
            self._store.put(key, b"".join([*first, *(b"%s: %s" % (name, line) for line in lines)]))
        except StoreError:
            with self._lock:
                self._lines.extendleft(reversed(lines))
                self._size += sum(map(len, lines))
                self._left_out += left_out
