"""The driver finishes jobs on a provider that is nothing like the local market, and knows to the cent what they cost."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.support.bought import JOB, OWNER, World, job
from tests.support.toy_provider import ToyProvider, ToyRules
from windfall.core.job_summary import JobSummary
from windfall.errors import ProviderUnreachable
from windfall.jobs import Job
from windfall.market import Answer, BootSpec, MachineLifecycle, Order
from windfall.simulation.virtual_time import Timeline
from windfall.terms import Outcome

CENT = 0.01
ROUGH = ToyRules(machine_type="m4", on_demand=4000.0, life_s=150.0, rises=0.5, fails=0.15, never=0.1)
FORGETFUL = ToyRules(
    machine_type="m4", on_demand=4000.0, life_s=150.0, rises=0.5, token_memory_s=0.0, listing_lag_s=12.0
)
"""As a scheduler whose names are free again at once."""


@dataclass
class RoughToy(ToyProvider):
    """The toy over a line that loses orders and answers, and a count of what each token was sold.

    Attributes:
        lost: share of orders, half of them not sent, half of them not answered.
        unsent, swallowed: how many of the next orders are not sent, or not answered.
    """

    lost: float = 0.0
    unsent: int = 0
    swallowed: int = 0
    sold: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._line = random.Random(f"line-{self.seed}")

    def order(self, order: Order, boot: BootSpec) -> Answer:
        luck = self._line.random()
        if luck < self.lost / 2 or self.unsent:
            self.unsent = max(self.unsent - 1, 0)
            raise ProviderUnreachable("planted: the order was not sent")
        before = len(self._stretches)
        answer = super().order(order, boot)
        if len(self._stretches) > before:
            self.sold[order.token] += 1
        if luck < self.lost or self.swallowed:
            self.swallowed = max(self.swallowed - 1, 0)
            raise ProviderUnreachable("planted: the answer was lost")
        return answer


class ToyHouse(World):
    """The controller's loop, obedient machines, and the toy."""

    def __init__(self, wanted: Job, rules: ToyRules, seed: int, *, steps: int, lost: float = 0.0) -> None:
        super().__init__(wanted, steps=steps)
        timeline: Timeline = self
        self.toy = RoughToy(timeline, rules, seed, "sim", self, lost=lost)
        self.provider = self.toy  # type: ignore[assignment]

    def finish(self, limit_s: float = 60_000.0) -> JobSummary:
        """Run until the job is done and its bill complete."""
        tap = self.controllers[-1] if self.controllers else self.controller()
        self.until(lambda: tap.job_loop.ended, limit_s)
        return self.summary


def assert_paid(house: ToyHouse) -> None:
    """Estimates and bill are what the toy's own meter says, to the cent, and nothing is left there."""
    money = house.summary.money
    assert house.outcome is Outcome.DONE
    assert money.settled_usd == pytest.approx(house.toy.metered_usd(OWNER), abs=CENT)
    assert money.estimated_usd == pytest.approx(money.settled_usd, abs=CENT)
    assert (money.unsettled, money.disputed, money.unexplained_usd) == (0, 0, 0.0)
    assert house.toy.remains(OWNER) == []
    assert house.toy.alive(JOB) == ()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rules", [ROUGH, FORGETFUL], ids=["rough", "forgetful"])
def test_a_job_finishes_and_costs_what_the_meter_says(rules: ToyRules, seed: int) -> None:
    """Machines fail, never start, are taken and rise again, answers are lost, prices float: done, to the cent."""
    house = ToyHouse(job(), rules, seed, steps=400, lost=0.25)

    house.finish()

    assert_paid(house)
    assert max(house.toy.sold.values()) == 1, "no token was sold twice"


def test_an_order_that_was_never_sent_is_looked_up_and_replaced() -> None:
    """Where a token's memory is over at once, not even an order that did not arrive is sent again: the next has its own."""
    house = ToyHouse(job(), dataclasses.replace(FORGETFUL, life_s=None), 3, steps=50)
    house.toy.unsent = 1

    house.finish()

    assert [order.token for order in house.toy.orders] == [f"{JOB}-2"]
    assert_paid(house)


def test_an_order_whose_machine_came_and_went_unseen_is_not_sold_again() -> None:
    """The answer was lost, the controller was away, machine and token are forgotten: the bill has it, nobody sells it twice."""
    house = ToyHouse(job(), dataclasses.replace(FORGETFUL, token_memory_s=60.0, life_s=None, rises=0.0), 3, steps=50)
    house.toy.swallowed = 1
    first = house.controller()
    house.until(lambda: bool(house.toy.born))
    first.dead = True
    house.pass_time(5.0)
    house.toy.preempt(house.toy.born[0], None)
    house.pass_time(600.0)
    house.controller()

    summary = house.finish()

    assert [order.token for order in house.toy.orders] == [f"{JOB}-1", f"{JOB}-2"]
    assert max(house.toy.sold.values()) == 1
    assert summary.money.settled_usd == pytest.approx(house.toy.metered_usd(OWNER), abs=CENT)
    assert summary.money.unexplained_usd > 0.0, "no listing showed the first machine"


def test_a_machine_that_never_starts_is_given_up() -> None:
    """After the offer's time the machine is released, and another is bought; without such a time it would be awaited."""
    house = ToyHouse(job(), dataclasses.replace(ROUGH, never=1.0, fails=0.0, life_s=None), 1, steps=20)
    house.controller()
    house.until(lambda: len(house.toy.orders) == 1)
    (waiting,) = house.toy.alive(JOB)
    assert waiting.lifecycle is MachineLifecycle.PENDING
    house.toy.rules = dataclasses.replace(house.toy.rules, never=0.0)

    house.finish()

    assert len(house.toy.orders) == 2
    assert "did not start within 60 s" in " ".join(house.told)
    assert_paid(house)


def test_a_controller_that_starts_again_waits_for_the_listing_to_catch_up() -> None:
    """Killed right after its order, it neither sends it again nor buys another while the listing may lag."""
    house = ToyHouse(job(), dataclasses.replace(FORGETFUL, life_s=None, start_s=(1.0, 1.0)), 5, steps=30)
    first = house.controller()
    house.until(lambda: bool(house.toy.orders))
    first.dead = True
    house.lines = house.lines[: next(n for n, line in enumerate(house.lines, 1) if "PlaceOrder" in line)]
    house.controller()

    house.finish()

    assert len(house.toy.born) == 1
    assert len(house.toy.orders) == 1
    assert_paid(house)


def test_a_machine_that_a_late_listing_lacks_is_not_given_up() -> None:
    """Confirmed, not started for minutes, and not listed for minutes either: it is awaited, and no other is bought."""
    slow = dataclasses.replace(
        FORGETFUL, life_s=None, listing_lag_s=200.0, start_s=(230.0, 230.0), promise_s=2000.0, keeps_ended_s=900.0
    )
    house = ToyHouse(job(), slow, 6, steps=30)

    house.finish()

    assert len(house.toy.born) == 1
    assert len(house.toy.orders) == 1
    assert_paid(house)


def test_the_same_seed_is_the_same_history() -> None:
    """Clock and chance are handed in: two runs write the same rows."""
    lines = []
    for _ in range(2):
        house = ToyHouse(job(), ROUGH, 4, steps=100, lost=0.25)
        house.finish()
        lines.append(house.lines)

    assert lines[0] == lines[1]
