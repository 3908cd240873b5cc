"""The cost of a job: estimates from listings, settled lines from bills, and their disputes."""

from __future__ import annotations

import pytest

from tests.core.fleet_story import LARGE
from windfall.core import ledger
from windfall.core.ledger import CLOSED_KEPT, LINES_KEPT, Ledger
from windfall.market import Charge, Machine, MachineEndCause, MachineLifecycle
from windfall.structs import replace
from windfall.terms import Reliability

HOUR = 3600.0
MACHINE = Machine(
    "m1", "o", "j", "j-1", "local", "large", "a", Reliability.TRANSIENT, 0.36, MachineLifecycle.RUNNING, 1000.0
)
GONE = replace(MACHINE, lifecycle=MachineLifecycle.GONE, ended=1000.0 + 1.5 * HOUR, cause=MachineEndCause.PREEMPTED)


def book(*machines: Machine, refund: bool = False) -> Ledger:
    offer = replace(LARGE, refund=refund)
    return ledger.observe(Ledger(), [(machine, offer) for machine in machines])


def line(name: str, amount: float, *, settled: bool = True, machine: str = "m1") -> Charge:
    return Charge(name, machine, amount, 1000.0, GONE.ended or 0.0, settled)


def test_an_estimate_is_hours_times_the_price_at_the_purchase() -> None:
    """One and a half hours at 0.36 USD/h are 0.54 USD; the on-demand baseline at 1.2 USD/h costs 1.8; nothing is settled."""
    sums = ledger.totals(book(MACHINE), 1000.0 + 1.5 * HOUR)
    assert (sums.estimated_usd, sums.baseline_usd, sums.hours) == pytest.approx((0.54, 1.8, 1.5))
    assert (sums.settled_usd, sums.due_usd, sums.unsettled) == (0.0, pytest.approx(0.54), 1)


def test_a_machine_that_is_not_started_costs_nothing() -> None:
    """Billing starts with the machine."""
    assert (
        ledger.totals(book(replace(MACHINE, lifecycle=MachineLifecycle.PENDING, started=None)), 9e9).estimated_usd
        == 0.0
    )


def test_the_end_in_the_listing_ends_the_estimate() -> None:
    """A later time costs no more."""
    assert ledger.totals(book(GONE), 9e9).estimated_usd == pytest.approx(0.54)


def test_the_broken_hour_is_free_where_a_preemption_is_refunded() -> None:
    """One and a half hours are billed as one; if released, they are billed in full."""
    assert ledger.totals(book(GONE, refund=True), 9e9).estimated_usd == pytest.approx(0.36)
    ours = replace(GONE, cause=MachineEndCause.RELEASED)
    assert ledger.totals(book(ours, refund=True), 9e9).estimated_usd == pytest.approx(0.54)


def test_the_broken_hour_of_a_machine_that_still_runs_is_counted() -> None:
    """Nothing says yet that it will be refunded."""
    assert ledger.totals(book(MACHINE, refund=True), 1000.0 + 1.5 * HOUR).estimated_usd == pytest.approx(0.54)


def test_a_repeated_line_counts_once() -> None:
    """The provider repeats itself, in one reading of the bill or in two."""
    booked = ledger.charge_lines(book(GONE), [line("c1", 0.54), line("c1", 0.54)])
    assert ledger.totals(ledger.charge_lines(booked, [line("c1", 0.54)]), 9e9).settled_usd == pytest.approx(0.54)


def test_the_last_version_of_an_open_line_counts() -> None:
    """Unsettled until the bill is closed; an older word after the settlement changes nothing."""
    opened = ledger.charge_lines(book(GONE), [line("c1", 0.3, settled=False)])
    assert ledger.totals(opened, 9e9).settled_usd == 0.0
    closed = ledger.charge_lines(opened, [line("c1", 0.54)])
    again = ledger.charge_lines(closed, [line("c1", 0.3, settled=False)])
    assert [ledger.totals(book, 9e9).settled_usd for book in (closed, again)] == pytest.approx([0.54, 0.54])


def test_a_refund_is_a_negative_line() -> None:
    """Billed 0.54, refunded 0.18."""
    sums = ledger.totals(ledger.charge_lines(book(GONE, refund=True), [line("c1", 0.54), line("r1", -0.18)]), 9e9)
    assert (sums.settled_usd, sums.due_usd) == pytest.approx((0.36, 0.36))
    assert sums.disputed == 0


def test_a_bill_that_differs_is_disputed() -> None:
    """By more than a cent and more than 1 %; a rounding is not."""
    wrong = ledger.totals(ledger.charge_lines(book(GONE), [line("c1", 0.60)]), 9e9)
    assert (wrong.disputed, wrong.disputed_usd) == (1, pytest.approx(0.06))
    assert ledger.totals(ledger.charge_lines(book(GONE), [line("c1", 0.545)]), 9e9).disputed == 0


def test_a_bill_is_closed_once_it_reaches_the_machine_s_end() -> None:
    """Lines of its first half alone leave it open, whatever they say; the second half closes it."""
    half = replace(line("c1", 0.27), ended=1000.0 + 0.75 * HOUR)
    booked = ledger.charge_lines(book(GONE), [half])
    assert ledger.totals(booked, 9e9).unsettled == 1
    rest = replace(line("c2", 0.27), started=1000.0 + 0.75 * HOUR)
    assert ledger.totals(ledger.charge_lines(booked, [rest]), 9e9).unsettled == 0


def test_a_charge_for_an_unknown_machine_is_unexplained() -> None:
    """It is money all the same, until the machine turns up."""
    stray = ledger.charge_lines(book(), [line("c9", 0.2, machine="m9")])
    sums = ledger.totals(stray, 9e9)
    assert (sums.unexplained_usd, sums.settled_usd, sums.due_usd) == pytest.approx((0.2, 0.2, 0.2))

    explained = ledger.observe(stray, [(replace(GONE, machine_id="m9"), LARGE)])
    assert ledger.totals(explained, 9e9).unexplained_usd == 0.0
    assert ledger.totals(explained, 9e9).settled_usd == pytest.approx(0.2)


def test_estimated_and_settled_stay_apart() -> None:
    """One machine is billed, one lives: two numbers, and what is due takes the best of each."""
    both = ledger.charge_lines(book(GONE, replace(MACHINE, machine_id="m2")), [line("c1", 0.55)])
    sums = ledger.totals(both, 1000.0 + 1.5 * HOUR)
    assert (sums.estimated_usd, sums.settled_usd, sums.due_usd) == pytest.approx((1.08, 0.55, 0.55 + 0.54))
    assert sums.unsettled == 1


def test_a_month_of_machines_leaves_sums_and_no_more() -> None:
    """Ten thousand machines, each billed: the sums are right, the accounts few, a late line still known."""
    kept = Ledger()
    for first in range(0, 10_000, 50):
        batch = range(first, first + 50)
        kept = ledger.observe(kept, [(replace(GONE, machine_id=f"m{n}"), LARGE) for n in batch])
        kept = ledger.charge_lines(kept, [line(f"c{n}", 0.54, machine=f"m{n}") for n in batch])
    assert len(kept.open) == 0
    assert len(kept.closed) <= 2 * CLOSED_KEPT
    sums = ledger.totals(kept, 9e9)
    assert (sums.settled_usd, sums.estimated_usd) == pytest.approx((5400.0, 5400.0))
    late = ledger.charge_lines(kept, [line("r", -0.04, machine="m9999"), line("c9999", 0.54, machine="m9999")])
    assert ledger.totals(late, 9e9).settled_usd == pytest.approx(5399.96)


def test_hourly_lines_of_a_long_life_are_folded() -> None:
    """A machine billed for a month by the hour keeps its newest lines alone."""
    kept = book(MACHINE)
    for hour in range(720):
        kept = ledger.charge_lines(kept, [line(f"h{hour}", 0.36)])
    assert len(kept.open["m1"].lines) == LINES_KEPT
    assert ledger.totals(kept, 9e9).settled_usd == pytest.approx(720 * 0.36)
