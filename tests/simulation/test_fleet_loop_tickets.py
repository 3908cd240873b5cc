"""The toy runtime `tickets` in the fleet loop: each number once, paid by the meter, and the event engine's very history."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from tests.simulation.ticket_machines import TicketMachines
from tests.simulation.ticket_work import TicketWork
from tests.support import tickets
from windfall.jobs import Job
from windfall.market import BillingBasis, BillingRule
from windfall.simulation.engine_fleet import OWNER
from windfall.simulation.fleet_bill import FleetOutcome
from windfall.simulation.fleet_loop import FleetLoop
from windfall.simulation.market_meter import MeteredMachine
from windfall.simulation.scenario import MemorylessLifetimes
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import WALL_START
from windfall.simulation.world import ProviderMarket, SimulatedJob, World
from windfall.terms import Reliability, Seconds, WallTime

SEEDS = range(200)
QUICK = 40
CENT = 0.005
NUMBERS = 80
PREPARE_S = 20.0


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    """Runtime and policy, as another package brings them."""
    with tickets.installed():
        yield


@dataclass
class Scene:
    """A world of tickets that both can play."""

    job: Job
    markets: tuple[SimulatedMarket, ...]
    work_s: tuple[float, ...]


def scene(seed: int) -> Scene:
    """One type on demand, and in two zones as spot: prices move, machines are evicted without notice."""
    rng = random.Random(seed)
    firm = SimulatedMarket(
        "m4", "a", Reliability.RELIABLE, ValueSeries.constant(3.0), 3.0, Seconds(0.0), allocate_s=(15.0, 15.0)
    )
    given = tickets.QueueSettings(
        numbers=NUMBERS, price_max=1.8, tide_s=rng.choice([60.0, 200.0]), age_max_s=rng.choice([200.0, 800.0]),
        leave_s=1200.0,
    )  # fmt: skip
    work_s = tuple(rng.uniform(10.0, 60.0) for _ in range(NUMBERS))
    return Scene(tickets.job("job", given), (firm, *(_spot(rng, zone) for zone in "ab")), work_s)


def _spot(rng: random.Random, zone: str) -> SimulatedMarket:
    times = [0.0, *sorted(rng.uniform(100.0, 4000.0) for _ in range(6))]
    return SimulatedMarket(
        "m4", zone, Reliability.TRANSIENT, ValueSeries.of((at, rng.uniform(0.5, 2.0)) for at in times), 3.0, Seconds(0.0),
        eviction=MemorylessLifetimes((rng.choice([300.0, 1000.0]),)), refund=rng.random() < 0.5,
        billing=BillingRule(rng.choice(list(BillingBasis)), rng.choice([0.0, 60.0])), allocate_s=(15.0, 15.0),
    )  # fmt: skip


def by_loop(seed: int) -> tuple[FleetLoop, TicketWork, FleetOutcome]:
    """Play a scene in the fleet loop."""
    found = scene(seed)
    work = TicketWork(NUMBERS, found.work_s.__getitem__, PREPARE_S)
    slots = tickets.RULES.slots(found.job)
    loop = FleetLoop(found.job, tickets.queue, slots, found.markets, seed=seed, work=work, decide_every_s=math.inf)
    return loop, work, loop.play(1e6)


@pytest.mark.parametrize("seed", SEEDS[:QUICK])
def test_each_number_is_done_once_and_paid_by_the_meter(seed: int) -> None:
    """Whatever the market takes: every number once, and the cost of all machines is that of a meter on each."""
    loop, work, found = by_loop(seed)
    assert sorted(number for number, _ in work.made) == list(range(NUMBERS))
    assert found.finish_s is not None
    assert found.usd == pytest.approx(_metered_usd(loop, found.finish_s, scene(seed).markets), abs=CENT)


def _metered_usd(loop: FleetLoop, until_s: float, markets: tuple[SimulatedMarket, ...]) -> float:
    """Return the cost by the event engine's meter, one machine after the other."""
    usd, rows = 0.0, loop.rows
    for row, pool in enumerate(rows.pool):
        market, end_s = markets[pool], min(rows.end[row], until_s)
        if end_s >= rows.start[row]:
            started, ended = (WallTime(WALL_START + at_s) for at_s in (rows.start[row], end_s))
            one = MeteredMachine(OWNER, "job", started, rows.price[row], market.billing, market.prices)
            taken = rows.taken[row] and rows.end[row] < until_s
            usd += one.cost_usd(ended) - (one.free_usd(ended)[1] if taken and market.refund else 0.0)
    return usd


@pytest.mark.parametrize(
    "seed", [seed if seed < QUICK else pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS]
)
def test_it_plays_the_history_of_the_event_engine(seed: int) -> None:
    """The same numbers done in the same order, the same end, the same machines, and the same money to the cent."""
    given = scene(seed)
    runtime = partial(
        TicketMachines, numbers=NUMBERS, seed=seed, prepare_s=(PREPARE_S, PREPARE_S), work_s=given.work_s.__getitem__
    )
    world = World((ProviderMarket("sim", given.markets),), [SimulatedJob(given.job, runtime)], seed=seed)
    world.run()
    (provider,), (fleet,) = world.providers.values(), world.fleets.values()
    machines = fleet.runtime
    assert isinstance(machines, TicketMachines)
    _, work, found = by_loop(seed)
    assert [number for number, _ in work.made] == [number for number, _ in machines.made]
    assert found.finish_s == pytest.approx(fleet.finish_s, abs=1e-3)
    assert found.machine_hours == pytest.approx(fleet.billed_s / 3600.0, abs=1e-6)
    assert found.usd == pytest.approx(
        provider.meter.total_usd(OWNER, WallTime(WALL_START + world.timeline.time)), abs=CENT
    )


def test_histories_have_all_that_the_frame_offers() -> None:
    """Among them: a gang, machines let go by choice, retired slots, evictions; the clerk always on demand."""
    seen: Counter[str] = Counter()
    for seed in SEEDS[:QUICK]:
        loop, _, found = by_loop(seed)
        units = Counter(loop.rows.unit)
        seen["gangs"] += sum(count == 2 for count in units.values())
        seen["evictions"] += found.preemptions
        seen["slots"] = max(seen["slots"], len(set(loop.rows.slot)))
        seen["clerks"] += loop.rows.slot.count("clerk")
        for row, slot in enumerate(loop.rows.slot):
            assert (slot == "clerk") == (loop.rows.pool[row] == 0)
    assert seen["gangs"] > 40
    assert seen["evictions"] > 40
    assert seen["slots"] > 10
    assert seen["clerks"] > QUICK, "an old clerk is let go"
