"""Small machines on a large one: what they compute and send takes as long as on machines of that size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

import pytest

from windfall.errors import Misuse
from windfall.runtimes.machine_limits import KernelTimes, LimitedLink, MachineLimits, SlowedKernel

RATE = 1e6
SIZE = 200_000


def seconds(work: Awaitable[object]) -> float:
    """How long something takes [s]."""
    began_s = time.monotonic()
    asyncio.run(_all(work))
    return time.monotonic() - began_s


async def _all(work: Awaitable[object]) -> None:
    await work


async def _carried(sender: LimitedLink, receiver: LimitedLink) -> None:
    await sender.send(SIZE)
    await receiver.receive(SIZE)


def test_a_kernel_rests_until_a_slower_machine_would_be_done() -> None:
    """At a quarter of the speed it takes four times its processor time."""
    # Between the two starts this process may be halted, which is no time of the kernel's.
    began_s = time.monotonic()
    kernel = SlowedKernel(0.25, KernelTimes())
    cpu_s = time.thread_time()
    sum(number * number for number in range(300_000))
    computed_s = time.thread_time() - cpu_s
    kernel.rest()
    assert time.monotonic() - began_s >= 4.0 * computed_s


def test_a_hiccup_of_the_computer_is_not_that_of_the_slower_machine() -> None:
    """A kernel rests for the median of its newest times: one that took ten times as long once counts as usual."""
    times = KernelTimes()
    assert [times.usual_s("slope", took_s) for took_s in (1.0, 1.0, 10.0)] == [1.0, 1.0, 1.0]
    assert times.usual_s("another", 10.0) == 10.0


def test_a_computer_that_becomes_slower_for_good_is_followed() -> None:
    """After half of the times that are kept, the new one is usual."""
    times = KernelTimes()
    found = [times.usual_s("slope", took_s) for took_s in (*[1.0] * 20, *[2.0] * 9)]
    assert found[20 + 3] == 1.0
    assert found[20 + 4] == 2.0


def test_time_away_is_not_computing() -> None:
    """What passed before `begin` counts for nothing: the kernel waited for others then."""
    kernel = SlowedKernel(0.01, KernelTimes())
    sum(number * number for number in range(300_000))
    kernel.begin(None)
    began_s = time.monotonic()
    kernel.rest()
    assert time.monotonic() - began_s < 0.1


def test_a_message_takes_what_the_link_needs_once() -> None:
    """Sender and receiver carry it at the same time."""
    took_s = seconds(_carried(LimitedLink(RATE), LimitedLink(RATE)))
    assert SIZE / RATE <= took_s < 1.9 * SIZE / RATE


def test_messages_of_two_senders_share_the_receivers_link() -> None:
    """Both leave at once, and arrive one after the other."""

    async def both() -> None:
        receiver = LimitedLink(RATE)
        await asyncio.gather(*(_carried(LimitedLink(RATE), receiver) for _ in range(2)))

    assert seconds(both()) >= 2 * SIZE / RATE


def test_messages_of_one_sender_leave_one_after_the_other() -> None:
    """Whoever they are for."""

    async def both() -> None:
        sender = LimitedLink(RATE)
        await asyncio.gather(*(_carried(sender, LimitedLink(RATE)) for _ in range(2)))

    assert seconds(both()) >= 2 * SIZE / RATE


@pytest.mark.parametrize(
    ("speed", "rate", "turn_s"),
    [
        (0.0, 1.0, 0.0),
        (1.5, 1.0, 0.0),
        (1.0, 0.0, 0.0),
        (1.0, float("nan"), 0.0),
        (1.0, 1.0, -1.0),
        (1.0, 1.0, float("inf")),
    ],
)
def test_limits_that_no_machine_has_are_refused(speed: float, rate: float, turn_s: float) -> None:
    """One sentence each."""
    with pytest.raises(Misuse, match="write"):
        MachineLimits(speed, rate, turn_s)
