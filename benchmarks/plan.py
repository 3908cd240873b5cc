"""What a plan and a live decision over 500 offers cost, beside their bounds and beside the same scoring in bare numpy."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np

from benchmarks.harness import Benchmark
from windfall.fleet import Slot
from windfall.jobs import Job, Measurement, Resources, Work
from windfall.market import Offer
from windfall.policies.acquisition import ranking
from windfall.policies.acquisition.bidbrain import Application
from windfall.policies.acquisition.ranking import OfferMarket
from windfall.policies.planning import fleet_inputs, fleet_search, job_plan
from windfall.policies.planning.estimates import Knowledge
from windfall.policies.planning.fleet_course import FleetGoal
from windfall.structs import replace
from windfall.terms import Instant, Reliability, Seconds, Unit, WallTime

PLAN_S, DECISION_MS, FIRST_MS = 2.0, 20.0, 200.0
TYPES, ZONES, NODES = 50, 10, 4
NOW = WallTime(1e6)
SLOT = Slot("node-0", "node")


def market() -> tuple[tuple[Offer, ...], tuple[tuple[str, str, str, Seconds, Seconds | None], ...]]:
    """Offers of 50 types in 10 zones, no two alike, and how long each kind of machine lives."""
    rng = np.random.default_rng(1)
    offers, rates = [], []
    for kind, zone in itertools.product(range(TYPES), range(ZONES)):
        on_demand = 0.1 * (1 + kind)
        offers.append(
            Offer(
                "cloud", f"t{kind}", f"z{zone}", float(on_demand * rng.uniform(0.2, 0.6)), on_demand,
                Reliability.TRANSIENT, Seconds(120.0), NOW, cpus=2.0 + kind, memory_gib=8.0, startup_s=Seconds(60.0),
            )
        )  # fmt: skip
        rates.append(("cloud", f"t{kind}", f"z{zone}", Seconds(float(rng.uniform(3600.0, 36000.0))), None))
    return tuple(offers), tuple(rates)


OFFERS, RATES = market()
MEASURED = tuple(
    Measurement(
        "cloud", f"t{kind}", Unit.STEP, 1.0 + 0.1 * kind, Seconds(90.0), Seconds(60.0), 3, Seconds(2.0), 1_000_000_000,
        Seconds(20.0), Seconds(1.0), Seconds(30.0),
    )
    for kind in range(TYPES)
)  # fmt: skip


def job(number: int) -> Job:
    """A job of four machines and ten hours; nothing is known of it from an earlier one."""
    return Job(
        f"job-{number}",
        "job",
        "ada",
        "memory://run",
        ("train",),
        (Resources(),),
        nodes=NODES,
        work=Work(36e3, Unit.STEP),
    )


def plan_s(numbers: itertools.count[int]) -> float:
    """How long the plan of a new job takes, all offers estimated anew [s]."""
    new = job(next(numbers))
    began = time.perf_counter()
    found = job_plan.plan(new, OFFERS, RATES, MEASURED, NOW)
    took_s = time.perf_counter() - began
    assert len(found.alternatives) == job_plan.ALTERNATIVES_MAX
    return took_s


def moved_offers(number: int) -> tuple[Offer, ...]:
    """The offers after each price has moved."""
    return tuple(
        replace(offer, price_usd_per_hour=offer.price_usd_per_hour * (1.0 + 0.01 * ((number + place) % 7)))
        for place, offer in enumerate(OFFERS)
    )


def decision_ms(one: Job, numbers: itertools.count[int]) -> float:
    """How long the driver's choice takes when every price has moved [ms]."""
    moved = moved_offers(next(numbers))
    began = time.perf_counter()
    ranked = ranking.rank_for(one, SLOT, moved, RATES, MEASURED)
    chosen = ranking.choose(OfferMarket(ranked, {}, (), (), lambda _: True), NODES, Instant(0.0))
    took_s = time.perf_counter() - began
    assert sum(count for _, count in chosen.orders) == NODES
    return 1e3 * took_s


def bare_ms() -> float:
    """Scoring as many offers in bare numpy, the columns given: USD per work hour to first order, and the order [ms].

    It has saves, redo, restarts and speed, but no notices, billing rules, reasons or sources.
    """
    rng = np.random.default_rng(2)
    count = len(OFFERS)
    price, mttp_s, speed = (
        rng.uniform(0.1, 3.0, count),
        rng.uniform(3600.0, 36000.0, count),
        rng.uniform(1.0, 6.0, count),
    )
    repeats = 300
    began = time.perf_counter()
    for _ in range(repeats):
        mttl_s = mttp_s / NODES
        interval_s = np.sqrt(2.0 * 2.0 * mttl_s)
        work_s = 36e3 / speed
        losses = work_s / mttl_s
        wall_s = work_s + losses * (interval_s / 2.0 + 150.0) + work_s / interval_s * 2.0 + 150.0
        np.argsort(price * NODES * wall_s / 36e3)
    return 1e3 * (time.perf_counter() - began) / repeats


def plan_of_500() -> Benchmark:
    """A plan takes at most 2 s; the yardstick is that bound."""
    numbers = itertools.count()
    return Benchmark(
        name=f"plan over {len(OFFERS)} offers vs {PLAN_S:g} s",
        ours=lambda: plan_s(numbers),
        yardstick=lambda: PLAN_S,
        target=1.0,
        at_most=True,
        unit="s",
    )


def decision_of_500() -> Benchmark:
    """A live decision after all prices have moved takes at most 20 ms; the yardstick is that bound."""
    one, numbers = job(0), itertools.count()
    decision_ms(one, numbers)
    return Benchmark(
        name=f"live decision over {len(OFFERS)} offers vs {DECISION_MS:g} ms",
        ours=lambda: decision_ms(one, numbers),
        yardstick=lambda: DECISION_MS,
        target=1.0,
        at_most=True,
        unit="ms",
    )


def first_decision_of_500() -> Benchmark:
    """A job's first decision estimates every offer; bounded apart, so that nobody takes it for the others."""
    numbers = itertools.count(1000)
    return Benchmark(
        name=f"first decision of a job vs {FIRST_MS:g} ms",
        ours=lambda: decision_ms(job(next(numbers)), numbers),
        yardstick=lambda: FIRST_MS,
        target=1.0,
        at_most=True,
        unit="ms",
    )


def decision_scoring() -> Benchmark:
    """A live decision beside its arithmetic alone: what reasons, rationale and filters of each offer add."""
    one, numbers = job(0), itertools.count()
    decision_ms(one, numbers)
    return Benchmark(
        name="live decision vs its scoring in bare numpy",
        ours=lambda: decision_ms(one, numbers),
        yardstick=bare_ms,
        target=1000.0,
        at_most=True,
        unit="ms",
    )


def plan_scoring() -> Benchmark:
    """A plan beside the same arithmetic: what the estimates with their sources add."""
    numbers = itertools.count()
    return Benchmark(
        name="plan vs its scoring in bare numpy",
        ours=lambda: 1e3 * plan_s(numbers),
        yardstick=bare_ms,
        target=20_000.0,
        at_most=True,
        unit="ms",
    )


def mix_ms(one: Job, numbers: itertools.count[int]) -> float:
    """How long the search for a fleet of up to 64 machines takes when every price has moved [ms]."""
    moved = moved_offers(next(numbers))
    goal = FleetGoal(Application(100.0, 30.0, 1e-4), 1, 64, 0.3, 3600.0 * 1000.0)
    began = time.perf_counter()
    found = fleet_search.best(fleet_inputs.pools_of(one, moved, Knowledge(RATES, MEASURED), ()), goal)
    took_s = time.perf_counter() - began
    assert found is not None
    assert found.counts
    return 1e3 * took_s


def mix_of_500() -> Benchmark:
    """A live decision of `fleet: mix`, inputs and search, takes at most 20 ms; the yardstick is that bound."""
    one, numbers = job(0), itertools.count()
    mix_ms(one, numbers)
    return Benchmark(
        name=f"fleet: mix over {len(OFFERS)} offers vs {DECISION_MS:g} ms",
        ours=lambda: mix_ms(one, numbers),
        yardstick=lambda: DECISION_MS,
        target=1.0,
        at_most=True,
        unit="ms",
    )


def benchmarks() -> list[Callable[[], Benchmark]]:
    """What `python -m benchmarks plan` measures."""
    return [plan_of_500, decision_of_500, first_decision_of_500, decision_scoring, plan_scoring, mix_of_500]
