"""A job on moving prices: outbid twice, refunded, and its bill is what the market's rule makes of the price points."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live import sleeping
from tests.live.rig import CENT, Rig
from tests.simulation.market_shop import due_usd
from windfall.market import BillingBasis, BillingRule
from windfall.providers.local import market_database

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]
BID = 1500.0
HOUR_S = 5.0
PACE = 10.0
PEAKS_S = (20.0, 45.0)
"""When the price rises above the bid [s after the market opened]."""
SERIES = (
    *((0.0, 900.0), (40.0, 720.0), (110.0, 1260.0), (160.0, 810.0), (PEAKS_S[0] * PACE, 1800.0)),
    *((240.0, 1080.0), (290.0, 630.0), (350.0, 900.0), (410.0, 1350.0), (PEAKS_S[1] * PACE, 2160.0)),
    *((490.0, 1260.0), (520.0, 990.0), (560.0, 1170.0), (610.0, 540.0), (660.0, 1440.0), (700.0, 900.0)),
)
"""Prices in effect: (since [s of the series], USD/h)."""
JOB = {
    "name": "outbid",
    "envs": {"STEPS": "900", "STEP_S": "0.05"},
    "checkpoint": {"insure": "20 steps"},
    "max_price": BID,
}
"""Forty-five seconds of work: it does not end before the second peak."""


def books_usd(rig: Rig, job_id: str) -> tuple[float, list[float]]:
    """What the market's own bill says of a job, and the refunds in it."""
    path = rig.state / "market" / "market.db"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT charge_id, amount, settled FROM bill JOIN machines USING (machine_id) WHERE job_id = ? ORDER BY line",
            (job_id,),
        ).fetchall()
    newest = {charge_id: (amount, settled) for charge_id, amount, settled in rows}
    assert all(settled for _, settled in newest.values()), "each line is final"
    amounts = [amount for amount, _ in newest.values()]
    return sum(amounts), [amount for amount in amounts if amount < 0.0]


@pytest.mark.parametrize("basis", [BillingBasis.STARTED_HOUR, BillingBasis.IN_EFFECT])
def test_the_bill_is_the_meter_when_prices_move_and_machines_are_outbid(
    basis: BillingBasis, new_rig: Callable[..., Rig]
) -> None:
    """Two hours in which a price passed the bid are free; all others cost what the rule makes of the points, to the cent."""
    billing = {"by": "hour"} if basis is BillingBasis.STARTED_HOUR else {"by": "second", "price": "in-effect"}
    points = {"small/zone-a": [list(point) for point in SERIES], "small/zone-b": [[0, 2 * BID]]}
    market = {
        "prices": {"pace": PACE, "points": points},
        "billing": {**billing, "hour": HOUR_S, "refund": True, "minimum": 1.0, "lag": 0.5},
    }
    rig = new_rig(market=market, notice_s=2.0)
    rig.start_controller()
    job_id = rig.submit(JOB, Path(sleeping.__file__))
    shown = rig.ended(job_id)["details"]["money"]

    stays = [stay for stay in rig.stays(job_id) if stay.started is not None]
    opened_at = market_database.read_opened_at(rig.state / "market")
    assert opened_at is not None
    prices = tuple((at_s / PACE, usd) for at_s, usd in SERIES)
    expected_usd = 0.0
    for stay in stays:
        assert stay.started is not None
        assert stay.ended is not None
        life = (stay.started - opened_at, stay.ended - opened_at, stay.ordered - opened_at)
        expected_usd += due_usd(BillingRule(basis, 1.0, HOUR_S), prices, *life, free=stay.cause == "preempted")

    assert [stay.cause for stay in stays][:2] == ["preempted", "preempted"]
    assert [stay.cause for stay in stays][2:] in (["released"], ["stopped"])
    for stay, peak_s in zip(stays, PEAKS_S, strict=False):
        assert stay.preemption_at is not None
        assert stay.preemption_at - opened_at == pytest.approx(peak_s + rig.notice_s, abs=1.0), "outbid, with notice"
    billed_usd, refunds = books_usd(rig, job_id)
    assert len(refunds) == 2
    assert billed_usd == pytest.approx(expected_usd, abs=CENT)
    cost = json.loads(rig.say("cost", job_id, "--json"))
    for name in ("due_usd", "settled_usd", "estimated_usd"):
        assert cost["money"][name] == pytest.approx(expected_usd, abs=CENT), name
        assert shown[name] == pytest.approx(expected_usd, abs=CENT), name
    assert cost["money"]["disputed"] == 0
    at_purchase = sum(((stay.ended or 0.0) - (stay.started or 0.0)) / 3600.0 * stay.price for stay in stays)
    print(f"{basis}: {expected_usd:.4f} USD; at the prices of the purchases {at_purchase:.4f} USD")
    assert abs(at_purchase - expected_usd) > 1.0, "the rule matters"
