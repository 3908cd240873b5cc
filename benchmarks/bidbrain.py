"""What a decision of BidBrain costs: 10 offers x 20 bid deltas, with 10 held allocations, in the fast fleet loop's view."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from benchmarks.harness import Benchmark
from windfall.fleet import Slot
from windfall.jobs import Job, Resources, Use
from windfall.market import BillingBasis, BillingRule, OfferKey
from windfall.models.price_evictions import EvictionTable
from windfall.policies.acquisition import bidbrain_policy
from windfall.policies.acquisition.bidbrain import Application
from windfall.policies.acquisition.bidbrain_policy import BidBrain
from windfall.policies.acquisition.fleet_policy import FleetEstimates, FleetTarget, FleetView
from windfall.simulation.elastic_work import ElasticWork, Survival
from windfall.simulation.fleet_loop import FleetLoop
from windfall.simulation.fleet_market import SOURCE
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.terms import Reliability, Seconds

LIMIT_MS = 0.3
OFFERS, DELTAS, HELD, PER_ALLOCATION = 10, 20, 10, 18
REPEATS = 300
APP = Application(eviction_s=60.0, change_s=30.0, loss_per_core=1e-5)


def market() -> tuple[tuple[SimulatedMarket, ...], EvictionTable]:
    """Ten types of one zone with bids, and what is known of their evictions."""
    rng = np.random.default_rng(1)
    pools = tuple(
        SimulatedMarket(
            f"m{number}", "a", Reliability.TRANSIENT, ValueSeries.constant(0.1 + 0.01 * number), 0.5, Seconds(0.0),
            bid=True, refund=True, billing=BillingRule(BillingBasis.STARTED_HOUR), cpus=4.0, allocate_s=(0.0, 0.0),
        )
        for number in range(OFFERS)
    )  # fmt: skip
    rows: dict[OfferKey, int] = {
        (SOURCE, pool.machine_type, pool.zone, pool.reliability): row for row, pool in enumerate(pools)
    }
    evicted = np.sort(rng.uniform(0.0, 0.5, (OFFERS, DELTAS, 61)), axis=2)
    return pools, EvictionTable(rows, np.geomspace(1e-4, 0.4, DELTAS), evicted, np.full_like(evicted, 1800.0))


def held() -> tuple[FleetView, FleetEstimates]:
    """The view and the estimates of a decision while ten allocations are held."""
    seen: list[tuple[FleetView, FleetEstimates]] = []
    pools, table = market()
    settings = BidBrain(APP, "worker", 4.0 * PER_ALLOCATION, 4.0 * HELD * PER_ALLOCATION)
    buys = bidbrain_policy.policy(settings)

    def decide(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
        seen.append((view, estimates))
        return buys(view, estimates)

    job = Job("job", "job", "ada", "memory://run", ("train",), (Resources(),), use=Use.AUTO)
    needs = tuple(Slot(f"s-{number}", "server", Reliability.RELIABLE) for number in range(0))
    work = ElasticWork(1e9, APP, Survival())
    loop = FleetLoop(job, decide, needs, pools, work=work, decide_every_s=math.inf, evictions=table)
    loop.play(1900.0)
    assert len(loop.allocations()) == HELD, "ten purchases of one decision each"
    return seen[-1]


def decision_ms(case: tuple[FleetView, FleetEstimates]) -> float:
    """How long a decision takes that finds nothing to release and looks at every candidate, in processor time [ms]."""
    view, estimates = case
    more = 4.0 * (HELD + 1) * PER_ALLOCATION
    decide = bidbrain_policy.policy(BidBrain(APP, "worker", 4.0 * PER_ALLOCATION, more))
    began = time.process_time()
    for _ in range(REPEATS):
        decide(view, estimates)
    return 1e3 * (time.process_time() - began) / REPEATS


def bare_ms() -> float:
    """The same scoring in bare numpy: equations 1 to 4 over 200 candidates and 10 allocations, the columns given [ms]."""
    rng = np.random.default_rng(2)
    count, left_s = OFFERS * DELTAS, np.full(HELD, 1800.0)
    held_beta, held_usd = rng.uniform(0.0, 0.3, HELD), rng.uniform(0.1, 0.2, HELD)
    beta, usd, rate = rng.uniform(0.0, 0.5, count), rng.uniform(0.1, 0.2, count), PER_ALLOCATION * 4.0
    began = time.process_time()
    for _ in range(REPEATS):
        overhead = (1.0 - np.prod(1.0 - held_beta) * (1.0 - beta)) * 60.0 + 30.0
        work = np.maximum(left_s - overhead[:, None], 0.0) @ np.full(HELD, rate)
        work += rate * np.maximum(np.where(beta > 0.5, 1800.0, 3600.0) - overhead, 0.0)
        work *= 1.0 - 1e-5 * (rate * (HELD + 1) - 1.0)
        cost = (held_usd * PER_ALLOCATION * (1.0 - held_beta) * left_s).sum() + usd * PER_ALLOCATION * (
            1.0 - beta
        ) * 3600.0
        int(np.argmin(cost / work))
    return 1e3 * (time.process_time() - began) / REPEATS


def bidbrain_decision() -> Benchmark:
    """A decision takes at most 0.3 ms; the yardstick is that bound."""
    case = held()
    return Benchmark(
        name=f"BidBrain: {OFFERS} offers x {DELTAS} bids x {HELD} held vs {LIMIT_MS} ms",
        ours=lambda: decision_ms(case),
        yardstick=lambda: LIMIT_MS,
        target=1.0,
        at_most=True,
        unit="ms",
    )


def bidbrain_scoring() -> Benchmark:
    """The same decision beside its arithmetic alone, in bare numpy: what reading the fleet and the offers adds."""
    case = held()
    return Benchmark(
        name="BidBrain: a decision vs its equations in bare numpy",
        ours=lambda: decision_ms(case),
        yardstick=bare_ms,
        target=12.0,
        at_most=True,
        unit="ms",
    )


def benchmarks() -> list[Callable[[], Benchmark]]:
    """What `python -m benchmarks bidbrain` measures."""
    return [bidbrain_decision, bidbrain_scoring]
