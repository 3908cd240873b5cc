"""Small machines on a large one: kernels that compute more slowly, and a link that carries only a limited rate.

Several machines of one computer share its cores and its memory bus.  With limits they behave as machines of their own, as long
as the computer is not busy: a kernel really computes, and its thread then rests until it has taken as long as on the small
machine; a message really moves, and arrives once the link could have carried it.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import deque
from collections.abc import Hashable

from windfall.errors import Misuse
from windfall.structs import Struct

_NEWEST_TIMES = 9
"""Few enough to follow a computer that becomes slower for good."""


class MachineLimits(Struct, frozen=True):
    """What a machine is limited to.

    Attributes:
        kernel_speed: of its programs, as a share of the computer's speed: above 0, up to 1.
        link_bytes_per_s: of its link, at once in and out [bytes/s]; infinite for no limit.
        turn_s: how long a turn of its program computes at the computer's full speed, measured before [s]; 0: as it is found to
            while it computes, which follows a computer whose speed drifts.

    Raises:
        Misuse: a limit is outside its range.
    """

    kernel_speed: float = 1.0
    link_bytes_per_s: float = math.inf
    turn_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0.0 < self.kernel_speed <= 1.0:
            raise Misuse(f"kernel_speed is {self.kernel_speed}: write a share of the host's speed, above 0 and up to 1")
        if not self.link_bytes_per_s > 0.0:
            raise Misuse(f"a link carries {self.link_bytes_per_s} bytes/s: write a rate above 0")
        if not 0.0 <= self.turn_s < math.inf:
            raise Misuse(f"a turn computes for {self.turn_s} s: write a number of seconds, or 0 if it is not known")


UNLIMITED = MachineLimits()


class KernelTimes:
    """How long the kernels of a machine usually compute: the median of the newest times of each.

    The limited machine is slower by 1 / speed, and so would be every hiccup of this computer, whose cores others share.
    """

    def __init__(self) -> None:
        self._newest: dict[Hashable, deque[float]] = {}

    def usual_s(self, kernel: Hashable, took_s: float) -> float:
        """Note how long a kernel took, and return how long it usually takes [s]."""
        newest = self._newest.setdefault(kernel, deque(maxlen=_NEWEST_TIMES))
        newest.append(took_s)
        return statistics.median(newest)


class SlowedKernel:
    """The calling thread, which computes at a share of its speed; its processor time counts, so that others do not slow it.

    Args:
        speed: share of the host's speed.
        times: of the machine's kernels; may be shared by threads.
    """

    def __init__(self, speed: float, times: KernelTimes) -> None:
        self._speed, self._times = speed, times
        self.begin(None)

    def begin(self, kernel: Hashable) -> None:
        """Count from here.

        Args:
            kernel: what is computed; of the same kernel the same is expected each time.
        """
        self._kernel = kernel
        self._began_s, self._cpu_s = time.monotonic(), time.thread_time()

    def rest(self) -> None:
        """Rest until what was computed since `begin` has taken as long as it usually takes on the limited machine."""
        if self._speed < 1.0:
            usual_s = self._times.usual_s(self._kernel, time.thread_time() - self._cpu_s)
            time.sleep(max(0.0, self._began_s + usual_s / self._speed - time.monotonic()))


def rest_of_turn(limits: MachineLimits, computed_s: float) -> None:
    """Let the calling thread rest until a turn whose time is known is over.

    Args:
        limits: of its machine.
        computed_s: how long the turn has computed by now [s].
    """
    time.sleep(max(0.0, limits.turn_s / limits.kernel_speed - computed_s))


class LimitedLink:
    """The link of a machine, which carries a limited rate each way; messages wait for those before them.

    A message leaves its sender and arrives at the same time, as over a switch: a receiver whose link is idle adds nothing to
    the time that the sender's link has needed, and one that hears from several senders needs the time for all.

    Args:
        bytes_per_s: each way [bytes/s].
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._out_free_s = self._in_free_s = -math.inf

    async def send(self, size_bytes: int) -> None:
        """Return once a message of this size has left."""
        if size_bytes and self._bytes_per_s < math.inf:
            now_s = asyncio.get_running_loop().time()
            self._out_free_s = max(self._out_free_s, now_s) + size_bytes / self._bytes_per_s
            await asyncio.sleep(self._out_free_s - now_s)

    async def receive(self, size_bytes: int) -> None:
        """Return once a message of this size, whose sender has sent it, has arrived."""
        if size_bytes and self._bytes_per_s < math.inf:
            now_s = asyncio.get_running_loop().time()
            self._in_free_s = max(self._in_free_s + size_bytes / self._bytes_per_s, now_s)
            await asyncio.sleep(self._in_free_s - now_s)
