"""What a job loop journals of a market: all of it once, then what moves, and nothing while it stands still."""

from __future__ import annotations

from tests.control.house import House, Line
from windfall import codec
from windfall.core import driver
from windfall.core.replay import replay
from windfall.errors import ProviderUnreachable
from windfall.events import Fact
from windfall.fleet import OffersChanged, OffersObserved
from windfall.jobs import Resources
from windfall.market import Offer
from windfall.structs import replace
from windfall.terms import WallTime


def told(house: House) -> list[Fact]:
    """What the journal says of offers."""
    rows = [codec.row_from_line(line) for line in house.journal.lines]
    assert replay(rows) == []
    return [fact for row in rows for fact in row.facts if isinstance(fact, OffersObserved | OffersChanged)]


def test_only_providers_that_the_job_may_use_are_asked_for_offers() -> None:
    """The machines of all are listed: a job that changed its file may have some there."""
    house = House()
    house.job = replace(house.job, resources=(Resources("sim"),))
    asked: list[str] = []
    other = Line(house.market, house.faults, ProviderUnreachable)
    house.providers["other"] = Asked(other, asked)  # type: ignore[assignment]
    house.turns(house.job_loop(), 60.0)

    assert "list" in asked
    assert not {"offers", "quota"} & set(asked)
    anywhere = House()
    anywhere.providers["other"] = Asked(Line(anywhere.market, anywhere.faults, ProviderUnreachable), asked)  # type: ignore[assignment]
    anywhere.turns(anywhere.job_loop(), 60.0)
    assert "offers" in asked


class Asked:
    """A provider that notes what it is asked."""

    def __init__(self, inner: object, asked: list[str]) -> None:
        self._inner, self._asked = inner, asked

    def __getattr__(self, name: str) -> object:
        self._asked.append(name)
        return getattr(self._inner, name)


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
