"""What a seed of the tickets storm draws once: the job, the markets, and what will go wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.support import tickets
from windfall.control.provider_calls import PollingPace
from windfall.jobs import Checkpointing, Job, Use
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.terms import Reliability, Seconds

OWNER, JOB = "storm", "job"
SILENT_S = 20.0
SAVE_S = 30.0
"""How long a machine whose slot is retired may take to hand over [s]."""
PACE = PollingPace(
    turn_s=Seconds(4.0), list_s=Seconds(4.0), offers_s=Seconds(12.0), bill_s=Seconds(60.0), settle_s=Seconds(10.0),
    run_s=Seconds(1e9), estimates_s=Seconds(1e9), silent_after_s=Seconds(SILENT_S),
)  # fmt: skip
TAKER_FATES = (
    *("vanish", "honest", "honest", "honest", "early", "never", "withdrawn", "flutter", "hint", "zombie", "stopped"),
    *("half", "direct cut", "clerk cut", "both cut", "unacknowledged", "stops itself", "none"),
)
CLERK_FATES = ("breaks", "zombie", "stopped", "direct cut", "clerk cut", "none", "none")


@dataclass(frozen=True)
class TicketScene:
    """One seed.

    Attributes:
        quiet: nothing goes wrong but what the market is meant to do.
        given: the settings of runtime and policy.
        life_s: mean of the time after which a fate strikes a machine [s].
        work_s: how long a number takes [s].
        dry: (from, to, zone): the zone has no machine that can be preempted meanwhile.
        outage_s, outage_at: how long no controller comes back, once; 0 for never.
        stale: listings may miss a machine once.
        busy: chance of a fault per call that changes something [1].
        calm_s: when the faults stop [s].
        scheduled: for the ports of the fleet storm; there are no schedules here.
    """

    seed: int
    quiet: bool
    job: Job
    given: tickets.QueueSettings
    markets: tuple[SimulatedMarket, ...]
    life_s: float
    work_s: tuple[float, float]
    dry: tuple[tuple[float, float, str], ...]
    outage_s: float
    outage_at: float
    stale: bool
    busy: float
    calm_s: float
    bill_lag_s: tuple[float, float]
    scheduled: bool = False


def _spot(rng: random.Random, zone: str) -> SimulatedMarket:
    baseline = rng.uniform(2.0, 4.0)
    times = [0.0, *sorted(rng.uniform(20.0, 250.0) for _ in range(rng.choice([0, 2, 4])))]
    least_s = rng.choice([1.0, 5.0])
    return SimulatedMarket(
        "m4", zone, Reliability.TRANSIENT, ValueSeries.of((at, baseline * rng.uniform(0.2, 0.7)) for at in times),
        on_demand_usd_per_hour=baseline, allocate_s=(least_s, least_s * rng.uniform(1.0, 4.0)),
        startup_s=rng.choice([None, Seconds(2 * least_s)]), notice_s=Seconds(rng.choice([0.0, 10.0, 30.0])),
        bid=rng.random() < 0.3, refund=rng.random() < 0.4, failed_to_start=rng.choice([0.0, 0.0, 0.15]),
    )  # fmt: skip


def _firm(rng: random.Random, zone: str) -> SimulatedMarket:
    price = rng.uniform(2.0, 4.0)
    return SimulatedMarket(
        "m4", zone, Reliability.RELIABLE, ValueSeries.constant(price), price, Seconds(0.0), allocate_s=(1.0, 10.0)
    )


def draw(seed: int) -> TicketScene:
    """Draw everything."""
    rng = random.Random(f"tickets scene {seed}")
    given = tickets.QueueSettings(
        numbers=rng.randint(15, 50),
        takers_max=rng.choice([1, 2, 3]),
        numbers_per_taker=rng.choice([5, 15]),
        price_max=rng.choice([1.0, 1.6, 9.0]),
        tide_s=rng.choice([25.0, 40.0, 80.0]),
        pair_from=rng.choice([3, 10, 30]),
        age_max_s=rng.choice([40.0, 80.0, 400.0]),
        leave_s=rng.choice([40.0, 90.0]),
    )
    job = tickets.job(
        JOB, given, use=rng.choice(list(Use)), checkpointing=Checkpointing(save_timeout_s=Seconds(SAVE_S))
    )
    spots = tuple(_spot(rng, zone) for zone in "ab")
    dry = [(at, at + rng.uniform(10.0, 60.0), rng.choice("ab")) for at in [rng.uniform(0.0, 100.0) for _ in range(2)]]
    return TicketScene(
        seed=seed,
        quiet=rng.random() < 0.05,
        job=job,
        given=given,
        markets=(*spots, *(_firm(rng, zone) for zone in "ab")),
        life_s=rng.choice([30.0, 60.0, 120.0]),
        work_s=rng.choice([(2.0, 8.0), (5.0, 20.0)]),
        dry=tuple(dry[: rng.choice([0, 1, 2])]),
        outage_s=rng.choice([0.0, 0.0, 30.0, 200.0]),
        outage_at=rng.uniform(5.0, 100.0),
        stale=rng.random() < 0.6,
        busy=rng.choice([0.02, 0.1, 0.25]),
        calm_s=rng.uniform(80.0, 200.0),
        bill_lag_s=(0.0, rng.choice([0.0, 30.0])),
    )
