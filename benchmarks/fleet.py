"""What a day of a fleet costs in the fast fleet loop: 100 machines that live two hours, a decision every two minutes."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable

from benchmarks.harness import Benchmark
from windfall.jobs import Job, Resources
from windfall.market import BillingBasis, BillingRule
from windfall.policies.acquisition.fleet_policy import fixed
from windfall.policies.layout import checkpoint_rules
from windfall.simulation.fleet_loop import FleetLoop
from windfall.simulation.scenario import MemorylessLifetimes
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.terms import Reliability, Seconds

LIMIT_MS = 30.0
MACHINES, HOURS = 100, 20
LIFE_S = 7200.0


def pools() -> tuple[SimulatedMarket, ...]:
    """Two zones of spot machines, billed at the price in effect, which changes every hour."""
    rng = random.Random(1)
    series = [ValueSeries.of((3600.0 * hour, rng.uniform(0.5, 2.0)) for hour in range(HOURS)) for _ in "ab"]
    return tuple(
        SimulatedMarket(
            "m4", zone, Reliability.TRANSIENT, prices, 3.0, Seconds(0.0), allocate_s=(60.0, 60.0),
            eviction=MemorylessLifetimes((LIFE_S,)), billing=BillingRule(BillingBasis.IN_EFFECT),
        )
        for zone, prices in zip("ab", series, strict=True)
    )  # fmt: skip


def history_ms() -> float:
    """How long one history takes, in processor time [ms]."""
    job = Job("job", "job", "ada", "memory://run", ("train",), (Resources(),), nodes=MACHINES)
    loop = FleetLoop(job, fixed, checkpoint_rules.slots(job), pools())
    gc.collect()
    began = time.process_time()
    found = loop.play(HOURS * 3600.0)
    took_s = time.process_time() - began
    assert found.machines > MACHINES * HOURS * 3600.0 / LIFE_S / 2, "machines come and go"
    return 1e3 * took_s


def fleet_day() -> Benchmark:
    """A history of 20 h with 100 machines takes at most 30 ms; the yardstick is that bound."""
    return Benchmark(
        name="fleet loop: 20 h of 100 machines vs 30 ms",
        ours=history_ms,
        yardstick=lambda: LIMIT_MS,
        target=1.0,
        at_most=True,
        unit="ms",
    )


def benchmarks() -> list[Callable[[], Benchmark]]:
    """What `python -m benchmarks fleet` measures."""
    return [fleet_day]
