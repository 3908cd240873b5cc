"""How often the loops of a parameter server in tiers do what, and how long they wait for one another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from windfall.errors import Misuse, StoreError
from windfall.structs import Struct


class TierPace(Struct, frozen=True):
    """Times and counts; the defaults are for machines in one network.

    Attributes:
        save_every: clocks from one checkpoint in the store to the next.
        report_s: between two reports of a machine [s].
        decide_s: between two looks of the coordinator at what has changed [s].
        settle_s: for how long no machine may come, or begin to leave, before anything moves for those that did [s].
        lost_after_s: a transient machine is lost that has not reported for so long [s]; with the default a loss is known
            within two seconds.
        reliable_lost_after_s: a reliable one is [s]; it hardly ever is, and all is restored from the store then.
        start_within_s: how long the machines of the first layout may take to report for the first time [s].
        found_within_s: how long machines that run may take to find a coordinator that has started [s].
        held_s: how long a question is held for an answer that would be "later" [s].
        answered_within_s: how long any other answer may take [s]; then the question is asked again.
        retry_s: before a question is asked again that found no machine, or no answer but "later" [s].
        status_s: between two writes of the status into the store [s].
        rate_over_s: over which the clocks in a second are counted that the status says [s].
        store_retry_s, store_retry_max_s: pause after the first failure of the store, and the longest [s]; each is twice the
            last.

    Raises:
        Misuse: a time is not positive, or machines that are well would be taken for lost.
    """

    save_every: int = 100
    report_s: float = 0.1
    decide_s: float = 0.05
    settle_s: float = 0.5
    lost_after_s: float = 1.5
    reliable_lost_after_s: float = 10.0
    start_within_s: float = 60.0
    found_within_s: float = 5.0
    held_s: float = 0.5
    answered_within_s: float = 5.0
    retry_s: float = 0.02
    status_s: float = 1.0
    rate_over_s: float = 10.0
    store_retry_s: float = 0.2
    store_retry_max_s: float = 30.0

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise Misuse(f"{name} is {getattr(self, name)}: it must be above 0")
        for name in ("lost_after_s", "reliable_lost_after_s", "start_within_s", "found_within_s"):
            if getattr(self, name) < 2 * self.report_s:
                raise Misuse(
                    f"{name} is {getattr(self, name)}, and machines report every {self.report_s} s: "
                    f"one that is well would be taken for lost, so it must be {2 * self.report_s} or more"
                )


USUAL = TierPace()
T = TypeVar("T")


async def through_outages(
    call: Callable[[], Awaitable[T]], pace: TierPace, failed: Callable[[], None] = lambda: None
) -> T:
    """Call the store until it does not fail, with growing pauses, and return what it returns; any other error is raised.

    Args:
        call: a call that may be repeated.
        pace: of the pauses.
        failed: is called after each failure.
    """
    pause_s = pace.store_retry_s
    while True:
        try:
            return await call()
        except StoreError:
            failed()
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, pace.store_retry_max_s)
