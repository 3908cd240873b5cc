"""Where a provider's price floats, a machine costs the integral of the price in effect."""

from __future__ import annotations

import random

import pytest

from windfall.core import ledger
from windfall.core.ledger import CHANGES_KEPT, Ledger
from windfall.market import Machine, MachineEndCause, MachineLifecycle, PriceChange
from windfall.structs import replace
from windfall.terms import Reliability, WallTime

HOUR = 3600.0
START = 1000.0
MACHINE = Machine(
    "m1", "o", "j", "j-1", "cloud", "large", "a", Reliability.TRANSIENT, 0.36, MachineLifecycle.RUNNING, WallTime(START)
)


def changes(*points: tuple[float, float]) -> tuple[PriceChange, ...]:
    """(hours after the start, USD/h)."""
    return tuple(PriceChange(WallTime(START + hours * HOUR), usd) for hours, usd in points)


def cost(points: tuple[PriceChange, ...], hours: float, **more: object) -> float:
    """What a machine is estimated to cost that ran so long."""
    gone = replace(
        MACHINE, price_changes=points, lifecycle=MachineLifecycle.GONE, ended=WallTime(START + hours * HOUR), **more
    )
    return ledger.totals(ledger.observe(Ledger(), [(gone, None)]), WallTime(9e9)).estimated_usd


def test_the_price_in_effect_is_integrated() -> None:
    """Half an hour at 0.36, one at 1.00, a quarter at 0.10; changes before the start and after the end do not count."""
    points = changes((-5, 7.0), (-1, 0.36), (0.5, 1.0), (1.5, 0.1), (3.0, 50.0))

    assert cost(points, 1.75) == pytest.approx(0.18 + 1.0 + 0.025, abs=1e-12)
    assert cost(changes((-1, 2.0)), 1.5) == pytest.approx(3.0), (
        "what holds at the start is not the price at the purchase"
    )


def test_without_changes_nothing_is_different() -> None:
    """A fixed price gives the very number that it gave before, to the last bit."""
    rng = random.Random(7)
    for _ in range(1000):
        hours, usd = rng.uniform(0, 900), rng.uniform(0.01, 90)
        ended = START + hours * HOUR
        gone = replace(MACHINE, price_usd_per_hour=usd, lifecycle=MachineLifecycle.GONE, ended=WallTime(ended))
        found = ledger.totals(ledger.observe(Ledger(), [(gone, None)]), WallTime(9e9)).estimated_usd
        assert found == max(ended - START, 0.0) / HOUR * usd


def test_the_free_hour_is_the_last_one_at_its_own_price() -> None:
    """Two hours and a half at rising prices, preempted with a refund: the first two are paid."""
    points = changes((1, 1.0), (2, 9.0))
    gone = replace(
        MACHINE, price_changes=points, lifecycle=MachineLifecycle.GONE, ended=WallTime(START + 2.5 * HOUR),
        cause=MachineEndCause.PREEMPTED,
    )  # fmt: skip
    account = replace(ledger.observe(Ledger(), [(gone, None)]).open["m1"], refund=True)

    assert account.estimated_usd(WallTime(9e9)) == pytest.approx(0.36 + 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_listings_add_up_whatever_they_repeat(seed: int) -> None:
    """Each listing shows the newest changes and repeats some; thousands of them are folded; the sum is the integral."""
    rng = random.Random(seed)
    at, points = 0.0, []
    for _ in range(3 * CHANGES_KEPT):
        at += rng.uniform(0.001, 0.5)
        points.append(PriceChange(WallTime(START + at * HOUR), rng.uniform(0.1, 3.0)))
    ended = WallTime(START + (at + 0.3) * HOUR)
    truth, since, price = 0.0, START, MACHINE.price_usd_per_hour
    for point in points:
        truth += (point.since - since) / HOUR * price
        since, price = point.since, point.usd_per_hour
    truth += (ended - since) / HOUR * price

    book, shown = Ledger(), 0
    while shown < len(points):
        shown = min(shown + rng.randint(1, 20), len(points))
        listed = replace(MACHINE, price_changes=tuple(points[max(shown - 30, 0) : shown]))
        book = ledger.observe(book, [(listed, None)])
    gone = replace(MACHINE, lifecycle=MachineLifecycle.GONE, ended=ended, price_changes=(points[-1],))
    book = ledger.observe(book, [(gone, None)])

    assert len(book.open["m1"].changes) <= CHANGES_KEPT
    assert ledger.totals(book, WallTime(9e9)).estimated_usd == pytest.approx(truth, abs=1e-6)
