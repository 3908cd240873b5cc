"""`fleet: explore`: which machine types a bag tries, which one it then runs on, and when it changes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from windfall.bags import Bag
from windfall.fleet import Slot
from windfall.jobs import Job, Objective, Resources, RuntimeSpec, Use, Work
from windfall.market import Offer, OfferKey, Quota
from windfall.policies.acquisition import exploring_fleet, fleet_policy
from windfall.policies.acquisition.fleet_policy import FleetEstimates, FleetMachine, FleetTarget
from windfall.policies.layout import bag_rules
from windfall.policies.replacement.successor import ReplacementTime
from windfall.structs import replace
from windfall.terms import Instant, JobProgress, Outcome, Reliability, Seconds, Unit, WallTime, WorkDone

NOW = Instant(90_000.0)
H = 3600.0


def offer(kind: str, cpus: float, usd: float) -> Offer:
    """Return an offer in zone a."""
    return Offer(
        "sim",
        kind,
        "a",
        usd,
        3.0 * usd,
        Reliability.TRANSIENT,
        Seconds(0.0),
        WallTime(NOW),
        cpus=cpus,
        startup_s=Seconds(30.0),
    )


def bag_job(items: int = 1000, *, nodes: int = 4, objective: Objective | None = None) -> Job:
    """Return a job with a bag, on spot machines."""
    bag = Bag(items, ("x",), ("rows",), 10_000)
    return Job(
        "job-1",
        "sweep",
        "me",
        "file:///runs/job-1",
        ("sh", "-c", "true"),
        (Resources(),),
        nodes=nodes,
        use=Use.SPOT,
        work=Work(float(items), Unit.ITEM),
        objective=objective or Objective(),
        runtime=RuntimeSpec("bag", bag_rules.settings_of(bag)),
        fleet="explore",
    )


@dataclass
class Market:
    """`FleetView` of a market in which each order is filled at once, and items take the given time on each type."""

    offers: tuple[Offer, ...]
    item_s: Mapping[str, float]
    job: Job = field(default_factory=bag_job)
    needs: tuple[Slot, ...] = ()
    mttp_s: Mapping[str, float] = field(default_factory=dict)
    full: frozenset[OfferKey] = frozenset()
    done: int = 0
    measured: set[str] = field(default_factory=set)
    busy: bool = True
    quotas: tuple[Quota, ...] = ()
    awaited: frozenset[str] = frozenset()
    memory: Mapping[str, float] = field(default_factory=dict)
    now: Instant = NOW
    submitted: Instant = NOW
    since: dict[str, Instant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.needs = bag_rules.slots(self.job)

    @property
    def progress(self) -> JobProgress:
        work = WorkDone(float(self.done), Unit.ITEM)
        return JobProgress(work, work, 0, Outcome.RUNNING)

    def machines(self) -> tuple[FleetMachine, ...]:
        sold = {one.key for one in self.offers} - self.full
        found = []
        for slot in self.needs:
            key = next((key for key in slot.wants if key in sold), None)
            if key is not None:
                since = self.since.setdefault(slot.id, self.now)
                step_s = self.item_s[key[1]] if key[1] in self.measured else None
                found.append(
                    FleetMachine(slot.id, slot.id, key, 0.1, since, None, True, step_s=step_s, busy=self.busy)
                )  # fmt: skip
        return tuple(found)

    def allocations(self) -> tuple[()]:
        return ()

    def refused(self) -> frozenset[OfferKey]:
        return self.full

    def spent_usd(self) -> float:
        return 0.0

    def ask(self) -> FleetTarget:
        """Carry out the policy's answer, and return it."""
        rates = tuple(("sim", kind, "a", Seconds(mttp_s), None) for kind, mttp_s in self.mttp_s.items())
        estimates = FleetEstimates(rates, (), ReplacementTime(Seconds(60.0), Seconds(60.0)))
        target = exploring_fleet.fleet_of(self, estimates)
        slots = {slot.id: slot for slot in self.needs}
        assert fleet_policy.flaw(target, slots, (), bag_rules.RULES.roles, ()) is None
        self.needs, self.memory = target.needs, target.memory or {}
        return target

    def run(self, rounds: int = 4) -> Counter[str]:
        """Let each machine measure its items, as often as the policy changes something; return the machines by type."""
        for _ in range(rounds):
            self.ask()
            self.measured |= {one.key[1] for one in self.machines()}
            self.now = Instant(self.now + 60.0)
        return self.types()

    def types(self) -> Counter[str]:
        """Return how many machines there are of each type."""
        return Counter(one.key[1] for one in self.machines())


SMALL, LARGE, FAST = offer("small", 1.0, 0.02), offer("large", 4.0, 0.16), offer("fast", 1.0, 0.06)
OFFERS = (SMALL, LARGE, FAST)


def test_the_first_items_run_on_one_machine_of_each_type() -> None:
    """Three types, four machines allowed: one of each, and nothing else before they are measured."""
    market = Market(OFFERS, {})

    market.ask()

    assert market.types() == {"small": 1, "large": 1, "fast": 1}


def test_then_all_machines_are_of_the_type_that_costs_least_an_item() -> None:
    """60 s on small and large, 10 s on fast: the type dearest by the hour and core is the cheapest by the item."""
    market = Market(OFFERS, {"small": 60.0, "large": 60.0, "fast": 10.0})

    assert market.run() == {"fast": 4}


def test_a_large_machine_is_compared_by_the_items_that_it_runs_at_once() -> None:
    """At 20 s an item, four at once for 0.16 USD/h cost less than one for 0.02 USD/h that takes 60 s."""
    market = Market(OFFERS, {"small": 60.0, "large": 20.0, "fast": 60.0})

    found = market.run()

    assert found["large"] == 4
    assert exploring_fleet.item_cost(LARGE, bag_rules.bag_of(market.job.runtime.settings), 20.0, math.inf) is not None


def test_losses_alone_reverse_the_choice() -> None:
    """Equal price and time; where a machine lasts half an item on average, items cost 3.2 times as much."""
    same = (offer("calm", 1.0, 0.10), offer("wild", 1.0, 0.09))
    times = {"calm": 1800.0, "wild": 1800.0}

    steady = Market(same, times, mttp_s={"calm": 24.0 * H, "wild": 24.0 * H}).run()
    lossy = Market(same, times, mttp_s={"calm": 24.0 * H, "wild": 900.0}).run()

    assert (steady, lossy) == ({"wild": 4}, {"calm": 4})


def test_the_decision_names_the_cost_of_an_item_on_each_type() -> None:
    """`windfall explain` shows cost and time of an item, and the types that were not chosen."""
    market = Market(OFFERS, {"small": 60.0, "large": 60.0, "fast": 10.0})
    market.ask()
    market.measured = {"small", "large", "fast"}

    decision = market.ask().decision

    assert decision is not None
    values = {one.name: one.value for one in decision.rationale}
    assert values["fast: cost of an item"] == pytest.approx(0.06 * 10.0 / H, rel=0.01)
    assert values["large: cost of an item"] == pytest.approx(0.04 * 60.0 / H, rel=0.01)
    assert "fast" in decision.choice
    assert set(decision.alternatives) == {"small", "large"}


def test_one_machine_at_a_time_tries_the_types_one_after_the_other() -> None:
    """With `num_nodes: 1` a measured type makes place for the next one, and the best one comes back."""
    market = Market(OFFERS, {"small": 60.0, "large": 60.0, "fast": 10.0}, bag_job(nodes=1))
    tried = []
    for _ in range(5):
        market.ask()
        assert sum(market.types().values()) == 1
        tried += list(market.types())
        market.measured |= market.types().keys()

    assert set(tried) == {"small", "large", "fast"}
    assert tried[-1] == "fast"


def test_few_items_are_not_spent_on_trying() -> None:
    """Ten items: at most one may explore, so the cheapest type by price runs all."""
    market = Market(OFFERS, {"small": 60.0, "large": 60.0, "fast": 10.0}, bag_job(10))

    assert market.run() == {"small": 4}


def test_a_machine_stays_if_its_replacement_costs_more_than_it_saves() -> None:
    """At the end of the bag the machines of dearer types run the last items."""
    market = Market(OFFERS, {"small": 60.0, "large": 60.0, "fast": 10.0})
    market.ask()
    market.measured, market.done = {"small", "large", "fast"}, 997

    market.ask()

    assert market.types() == {"small": 1, "large": 1, "fast": 1}


def test_a_type_that_is_sold_out_is_not_tried_and_the_next_best_takes_its_place() -> None:
    """Of the others the cheaper one; when it is sold again, machines change back."""
    market = Market(OFFERS, {"small": 60.0, "large": 80.0, "fast": 10.0}, full=frozenset({FAST.key}))

    assert market.run() == {"small": 4}


def test_a_type_is_given_up_whose_first_items_have_cost_more_than_an_item_of_the_best() -> None:
    """An item that never ends on one type keeps the bag from nothing."""
    market = Market(OFFERS, {"small": 60.0, "large": 60.0, "fast": 10.0})
    market.ask()
    market.measured = {"fast", "small"}

    market.ask()
    assert market.types() == {"small": 1, "large": 1, "fast": 1}
    market.now = Instant(market.now + 3600.0)
    market.ask()

    assert market.types() == {"fast": 3, "large": 1}


def test_a_deadline_decides_how_many_machines_run() -> None:
    """1,000 items of 10 s: an hour needs 3 machines of 1 core, half a day one; without a deadline as many as allowed."""
    times = {"small": 60.0, "large": 60.0, "fast": 10.0}

    def machines(deadline_h: float | None) -> int:
        limit = None if deadline_h is None else Seconds(deadline_h * H)
        market = Market((FAST,), times, bag_job(nodes=8, objective=Objective(deadline_s=limit)))
        return sum(market.run().values())

    assert [machines(None), machines(1.0), machines(12.0)] == [8, 3, 1]


def test_the_fleet_grows_when_the_bag_falls_behind() -> None:
    """After half of the time with a tenth of the items, twice as many machines and more are needed."""
    job = bag_job(nodes=8, objective=Objective(deadline_s=Seconds(H)))
    market = Market((FAST,), {"fast": 10.0}, job)
    market.run()
    market.now, market.done = Instant(NOW + H / 2.0), 100

    market.ask()

    assert market.types() == {"fast": 6}


def test_an_idle_machine_is_released_when_others_run_all_that_is_left() -> None:
    """Two items left, both running: the two machines without any leave."""
    market = Market((FAST,), {"fast": 10.0})
    market.run()
    market.done = 998
    running = {slot.id for slot in market.needs[:2]}
    view = market.machines()
    market.machines = lambda: tuple(replace(one, busy=one.slot in running) for one in view)  # type: ignore[method-assign]

    assert {slot.id for slot in market.ask().needs} == running


def test_what_was_measured_outlives_the_machines() -> None:
    """All machines are lost at once: no type is tried again."""
    market = Market(OFFERS, {"small": 60.0, "large": 60.0, "fast": 10.0})
    market.run()
    market.measured = set()

    market.ask()

    assert market.types() == {"fast": 4}


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"types_max": 0}, "types_max"), ({"margin": -1.0}, "margin"), ({"kinds": 2}, "types_max"), ({}, None)],
)
def test_settings_are_checked(settings: dict[str, float], says: str | None) -> None:
    """A wrong one is named; a wrong name gets the right ones."""
    found = exploring_fleet.check(settings)
    assert (found is None) if says is None else (found is not None and says in found)
