"""Where a provider's price floats, a machine costs the integral of the price in effect."""

from __future__ import annotations

import random

import pytest

from tests.core.fleet_story import LARGE
from windfall.core import ledger
from windfall.core.ledger import CHANGES_KEPT, Ledger
from windfall.market import BillingBasis, BillingRule, Machine, MachineEndCause, MachineLifecycle, PriceChange
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


HOURLY = BillingRule(BillingBasis.STARTED_HOUR)


@pytest.mark.parametrize(
    ("rule", "hours", "due_usd", "free_usd"),
    [
        (HOURLY, 2.5, 0.36 + 1.0 + 9.0, 0.36 + 1.0),
        (HOURLY, 2.0, 0.36 + 1.0, 0.36 + 1.0),
        (HOURLY, 0.2, 0.36, 0.0),
        (BillingRule(BillingBasis.STARTED_HOUR, 2 * HOUR), 0.2, 0.36 + 1.0, 0.0),
        (BillingRule(BillingBasis.STARTED_HOUR, hour_s=HOUR / 2), 1.6, 0.18 + 0.18 + 0.5 + 0.5, 0.18 + 0.18 + 0.5),
        (BillingRule(BillingBasis.IN_EFFECT, 2 * HOUR), 1.5, 0.36 + 0.5 + 0.5, 0.36),
        (BillingRule(BillingBasis.IN_EFFECT, hour_s=HOUR / 2), 1.6, 0.36 + 0.6, 0.36 + 0.5),
    ],
)
def test_the_estimate_follows_the_rule_of_the_offer(
    rule: BillingRule, hours: float, due_usd: float, free_usd: float
) -> None:
    """0.36, after an hour 1, after two 9: started hours, minimums, seconds; the hour of a refunded preemption is free."""
    gone = replace(
        MACHINE, price_changes=changes((1, 1.0), (2, 9.0)), lifecycle=MachineLifecycle.GONE,
        ended=WallTime(START + hours * HOUR), cause=MachineEndCause.PREEMPTED,
    )  # fmt: skip
    offer = replace(LARGE, billing=rule)
    plain, refunded = (
        ledger.totals(ledger.observe(Ledger(), [(gone, replace(offer, refund=free))]), WallTime(9e9)).estimated_usd
        for free in (False, True)
    )

    assert plain == pytest.approx(due_usd)
    assert refunded == pytest.approx(free_usd)


def test_a_started_hour_costs_what_it_did_at_its_start() -> None:
    """A rise in the middle of an hour is paid from the next one on, and so is a machine's present price."""
    running = replace(MACHINE, price_changes=changes((-1, 0.5), (0.1, 2.0), (1.5, 3.0)))
    account = ledger.observe(Ledger(), [(running, replace(LARGE, billing=HOURLY))]).open["m1"]

    def at(hours: float) -> tuple[float, float]:
        now = WallTime(START + hours * HOUR)
        return account.estimated_usd(now), account.price_now_usd_per_hour(now)

    assert at(0.9) == (pytest.approx(0.5), 0.5)
    assert at(1.6) == (pytest.approx(2.5), 2.0)
    assert at(2.1) == (pytest.approx(5.5), 3.0)
