"""What a job loop journals of a market: all of it once, then what moves, and nothing while it stands still."""

from __future__ import annotations

from tests.control.house import House
from windfall import codec
from windfall.core import driver
from windfall.core.replay import replay
from windfall.events import Fact
from windfall.fleet import OffersChanged, OffersObserved
from windfall.market import Offer
from windfall.structs import replace
from windfall.terms import WallTime


def told(house: House) -> list[Fact]:
    """What the journal says of offers."""
    rows = [codec.row_from_line(line) for line in house.journal.lines]
    assert replay(rows) == []
    return [fact for row in rows for fact in row.facts if isinstance(fact, OffersObserved | OffersChanged)]


def test_a_journal_holds_the_market_once_and_then_its_moves() -> None:
    """One whole observation, one row for a price that moved, and a word of a new controller that asked again."""
    house = House()
    job_loop = house.job_loop()
    house.turns(job_loop, 60.0)
    first = told(house)
    assert [type(fact) for fact in first] == [OffersObserved], "a market that stands still adds nothing"

    (offer,) = house.market.offers()
    offers: tuple[Offer, ...] = (replace(offer, price_usd_per_hour=0.5, quoted_at=WallTime(9.0)),)
    house.market.offers = lambda: offers  # type: ignore[method-assign]
    house.turns(job_loop, 60.0)
    moved = OffersChanged(prices=((*offer.key, 0.5),))
    assert told(house) == [*first, moved]
    assert job_loop.state.offers[0].price_usd_per_hour == 0.5

    again = house.job_loop()
    house.turns(again, 60.0)
    assert told(house) == [*first, moved, OffersChanged()]
    assert driver.summary(again.state, again.state.now).phase == driver.phase(job_loop.state)
