"""How busy this host's cores are: small machines on a busy host take longer than as machines of their own."""

from __future__ import annotations

import threading
import time
from pathlib import Path

BUSY_MAX = 0.8
"""Share of the cores above which what small machines show is not theirs."""
_EVERY_S = 0.1


class BusyCores:
    """Watches the cores from its creation to `end`.

    Attributes:
        shares: pairs of an instant and the share of the cores that was busy since the one before, with work of usual priority.
    """

    def __init__(self) -> None:
        self.shares: list[tuple[float, float]] = []
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="cores", daemon=True).start()

    def between(self, since_s: float, until_s: float) -> float:
        """Return the mean share between two instants; 0 if nothing was seen between them."""
        shares = [share for at_s, share in self.shares if since_s < at_s <= until_s + _EVERY_S]
        return sum(shares) / len(shares) if shares else 0.0

    def end(self) -> None:
        """Watch no more."""
        self._ended.set()

    def _watch(self) -> None:
        before = _ticks()
        while not self._ended.wait(_EVERY_S):
            now = _ticks()
            if now[1] > before[1]:
                self.shares.append((time.monotonic(), (now[0] - before[0]) / (now[1] - before[1])))
            before = now


def _ticks() -> tuple[int, int]:
    """Return for how long the cores have been busy with work of usual priority, and for how long there have been."""
    user, nice, system, idle, waiting, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return user + system + sum(rest), user + nice + system + idle + waiting + sum(rest)
