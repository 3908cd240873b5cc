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


def bag_job(items: int = 1000, *, nodes: int = 4, objective: Objective | None = None, cores: float = 1.0) -> Job:
    """Return a job with a bag, on spot machines."""
    bag = Bag(items, ("x",), ("rows",), 10_000, cores=cores)
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
    """`FleetView` of a market in which items take the given time on each type.

    Orders are filled at once, but for those of `awaited` slots; a machine whose slot is dropped is there until the policy is
    asked again.  At no time may there be more machines and orders than the job allows.
    """

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
    leaving: int = 0
    memory: Mapping[str, float] = field(default_factory=dict)
    now: Instant = NOW
    submitted: Instant = NOW
    since: dict[str, Instant] = field(default_factory=dict)
    starting: frozenset[str] = frozenset()
    times_s: tuple[float, float] = (0.0, 0.0)
    lost: frozenset[str] = frozenset()

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
            key = next((key for key in slot.wants if key in sold or slot.id in self.since), None)
            if key is not None and slot.id not in self.awaited | self.lost:
                since = self.since.setdefault(slot.id, self.now)
                step_s = self.item_s[key[1]] if key[1] in self.measured else None
                ready = slot.id not in self.starting
                one = FleetMachine(slot.id, slot.id, key, 0.1, since, None, ready, *self.times_s)
                found.append(replace(one, step_s=step_s, busy=self.busy) if ready else one)
        return tuple(found)

    def allocations(self) -> tuple[()]:
        return ()

    def refused(self) -> frozenset[OfferKey]:
        return self.full

    def spent_usd(self) -> float:
        return 0.0

    def ask(self) -> FleetTarget:
        """Carry out the policy's answer, and return it; machines that the last one dropped are gone afterwards."""
        rates = tuple(("sim", kind, "a", Seconds(mttp_s), None) for kind, mttp_s in self.mttp_s.items())
        estimates = FleetEstimates(rates, (), ReplacementTime(Seconds(60.0), Seconds(60.0)))
        target = exploring_fleet.fleet_of(self, estimates)
        slots = {slot.id: slot for slot in self.needs}
        assert fleet_policy.flaw(target, slots, (), bag_rules.RULES.roles, ()) is None
        dropped = [one for one in self.machines() if one.slot not in {slot.id for slot in target.needs}]
        wanted = [slot for slot in target.needs if slot.wants]
        assert len(wanted) + len(dropped) + self.leaving <= max(self.job.nodes, len(slots)), (
            "more machines than allowed"
        )
        self.needs, self.memory, self.leaving = target.needs, target.memory or {}, len(dropped)
        self.lost = frozenset()
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
    """60 s on small and large, 10 s on fast, the dearest by hour and core: 0.00033, 0.00067 and 0.00017 USD an item.

    At equal times it is not bought.
    """
    times = {"small": 60.0, "large": 60.0, "fast": 10.0}

    assert Market(OFFERS, times).run() == {"fast": 4}
    assert Market(OFFERS, {**times, "fast": 60.0}).run() == {"small": 4}


def test_a_large_machine_is_compared_by_the_items_that_it_runs_at_once() -> None:
    """At 20 s an item, four at once for 0.16 USD/h cost less than one for 0.02 USD/h that takes 60 s."""
    market = Market(OFFERS, {"small": 60.0, "large": 20.0, "fast": 60.0})

    found = market.run()

    assert found["large"] == 4
    assert exploring_fleet.item_cost(LARGE, bag_rules.bag_of(market.job.runtime.settings), 20.0, math.inf) is not None


def test_losses_alone_reverse_the_choice() -> None:
    """Equal times, and the cheaper type is chosen while it is lost as seldom; where it lasts for half an item it is not.

    With M = 900 s an item of 1800 s takes M (e^2 - 1) = 5750 s, 3.2 times as long.
    """
    offers = (offer("calm", 1.0, 0.10), offer("wild", 1.0, 0.09))
    times = {"calm": 1800.0, "wild": 1800.0}

    steady = Market(offers, times, mttp_s={"calm": 24.0 * H, "wild": 24.0 * H}).run()
    lossy = Market(offers, times, mttp_s={"calm": 24.0 * H, "wild": 900.0}).run()

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
    assert values["fast: price"] == 0.06
    assert values["fast: time of an item"] == 10.0
    assert values["large: items at once"] == 4.0
    assert values["fast: mean time to preemption"] > H
    assert decision.choice == "2 machines, new ones of fast: an item costs least there"
    assert set(decision.alternatives) == {"small", "large"}


def test_one_machine_at_a_time_tries_the_types_one_after_the_other() -> None:
    """With `num_nodes: 1` a measured type makes place for the next one, and the best one comes back."""
    market = Market(OFFERS, {"small": 60.0, "large": 60.0, "fast": 10.0}, bag_job(nodes=1))
    tried = []
    for _ in range(10):
        market.ask()
        tried += list(market.types())
        market.measured |= market.types().keys()

    assert tried == ["small", "large", *["fast"] * 4]


ZONE_A, ZONE_B = offer("small", 1.0, 0.25), replace(offer("small", 1.0, 0.30), zone="b")


def test_an_order_that_is_on_its_way_stays_though_a_cheaper_offer_is_back() -> None:
    """Withdrawn orders may have bought a machine all the same: two slots with open orders stay, whatever is sold."""
    market = Market((ZONE_A, ZONE_B), {"small": 1.0}, bag_job(nodes=2), full=frozenset({ZONE_A.key}))
    market.ask()
    ordered, market.full = market.needs, frozenset()
    market.awaited = frozenset(slot.id for slot in ordered)

    assert market.ask().needs == ordered
    market.full = frozenset({ZONE_B.key})
    assert market.ask().needs == ordered


def test_a_machine_that_starts_is_not_given_up_for_a_cheaper_zone() -> None:
    """Two machines lost where they are cheapest, two bought elsewhere, and before these are ready the first zone is open again.

    Fifty items of 1 s are left, and a start takes two minutes.
    """
    market = Market((ZONE_A, ZONE_B), {"small": 1.0}, bag_job(nodes=2), done=950)
    market.run()
    market.lost, market.full = frozenset(slot.id for slot in market.needs), frozenset({ZONE_A.key})
    market.since.clear()
    market.ask()
    market.full, market.starting = frozenset(), frozenset(slot.id for slot in market.needs)
    bought = market.machines()
    assert {one.key for one in bought} == {ZONE_B.key}

    assert {slot.id for slot in market.ask().needs} == {one.slot for one in bought}
    assert market.machines() == bought


def test_a_lost_machine_is_replaced_in_its_own_slot() -> None:
    """No new slot is opened beside one that has no machine: its order would be a second one."""
    market = Market((ZONE_A, ZONE_B), {"small": 1.0}, bag_job(nodes=2))
    market.run()
    before = {slot.id for slot in market.needs}
    market.lost, market.full = frozenset(before), frozenset({ZONE_A.key})

    assert {slot.id for slot in market.ask().needs} == before
    assert {slot.wants[0] for slot in market.needs} == {ZONE_B.key}


def test_no_replacement_is_ordered_before_the_machine_has_left() -> None:
    """All four of a type that has become dear are dropped, and four of the other one come once they are gone."""
    market = Market((offer("small", 1.0, 0.02), offer("fast", 1.0, 0.06)), {"small": 60.0, "fast": 30.0})
    assert market.run() == {"small": 4}
    market.offers = (offer("small", 1.0, 0.20), offer("fast", 1.0, 0.06))

    assert market.ask().needs == ()
    assert market.leaving == 4
    assert market.ask().needs == ()
    market.ask()
    assert market.types() == {"fast": 4}


def test_no_machine_is_bought_for_items_that_run_already() -> None:
    """Three items are left on a machine that runs four at once and on a small one: nothing is ordered."""
    market = Market(OFFERS, {"small": 60.0, "large": 60.0, "fast": 10.0})
    market.ask()
    market.measured, market.done = {"small", "large", "fast"}, 997

    for _ in range(3):
        assert market.ask().needs == market.needs
        assert market.types() == {"small": 1, "large": 1, "fast": 1}


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
    for _ in range(3):
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


def test_a_bag_without_items_has_a_machine_for_those_that_may_come() -> None:
    """All were lost after the last item known: one is bought, as for a bag that grows."""
    market = Market((FAST,), {"fast": 10.0})
    market.run()
    market.done, market.lost = 1000, frozenset(slot.id for slot in market.needs)

    market.ask()

    assert market.types() == {"fast": 1}


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


def test_a_type_with_a_quota_of_zero_is_not_tried() -> None:
    """No order for it would ever be placed, so that the bag would wait for its first item for ever."""
    times = {"small": 60.0, "large": 60.0, "fast": 10.0}
    market = Market(OFFERS, times, quotas=(Quota("fast", None, 0, 0),))

    market.ask()
    assert market.types() == {"small": 1, "large": 1}
    assert market.run() == {"small": 4}


def test_a_machine_whose_next_item_would_be_done_earlier_on_a_new_one_is_retired() -> None:
    """The decision is that of `fleet: by-age`; the machine stays in its slot until its successor is ready."""
    market = Market((FAST,), {"fast": 10.0})
    market.run()
    assert market.ask().releases == ()
    market.times_s = 9000.0, 6000.0

    target = market.ask()

    assert [one.deadline - market.now for one in target.releases] == [9000.0]
    assert {slot.id for slot in target.needs} == {one.slot for one in market.machines()}
    assert target.decision is not None
    assert (target.decision.policy, target.decision.alternatives) == ("explore", ("keep it",))
    market.busy = False
    assert market.ask().releases == ()
