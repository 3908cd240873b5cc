"""The toy runtime `tickets` in the event engine: a clerk, takers and a gang do each number once, paid to the cent."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from tests.simulation.ticket_machines import TicketMachines
from tests.support import tickets
from windfall import codec
from windfall.core import driver
from windfall.fleet import DrainMachine, JobPhase, PlaceOrder
from windfall.market import MachineEndCause
from windfall.simulation.engine_fleet import OWNER, SimulatedFleet
from windfall.simulation.scenario import MemorylessLifetimes
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import WALL_START
from windfall.simulation.world import ProviderMarket, SimulatedJob, World
from windfall.terms import Reliability, Seconds, WallTime

SEEDS = range(20)
CENT = 0.005


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    """Runtime and policy, as another package brings them."""
    with tickets.installed():
        yield


def pools(rng: random.Random) -> tuple[SimulatedMarket, ...]:
    """One type on demand, and in two zones as spot: prices move, capacity falls, machines are evicted with notice."""
    firm = SimulatedMarket("m4", "a", Reliability.RELIABLE, ValueSeries.constant(3.0), 3.0, Seconds(0.0))
    return (firm, *(_spot(rng, zone) for zone in "ab"))


def _spot(rng: random.Random, zone: str) -> SimulatedMarket:
    times = [0.0, *sorted(rng.uniform(100.0, 4000.0) for _ in range(6))]
    prices = ValueSeries.of((at, rng.uniform(0.5, 2.0)) for at in times)
    capacity = ValueSeries.of((at, float(rng.choice([1, 2, 4, 8]))) for at in times)
    return SimulatedMarket(
        "m4", zone, Reliability.TRANSIENT, prices, 3.0, Seconds(rng.choice([0.0, 30.0, 120.0])),
        capacity=capacity, eviction=MemorylessLifetimes((rng.choice([300.0, 1000.0]),)), refund=rng.random() < 0.5,
    )  # fmt: skip


@functools.cache
def world(seed: int, numbers: int = 80) -> tuple[World, SimulatedFleet]:
    """A world with one job of tickets, played to its end and billed."""
    rng = random.Random(seed)
    given = tickets.QueueSettings(
        numbers=numbers, price_max=1.8, tide_s=rng.choice([60.0, 200.0]), age_max_s=rng.choice([200.0, 800.0])
    )
    runtime = partial(TicketMachines, numbers=numbers, seed=seed)
    market = ProviderMarket("sim", pools(rng), (0.0, 30.0))
    found = World((market,), [SimulatedJob(tickets.job("job", given), runtime)], seed=seed)
    found.run()
    (fleet,) = found.fleets.values()
    fleet.bill()
    return found, fleet


@pytest.mark.parametrize("seed", SEEDS)
def test_each_number_is_done_once_and_paid_by_the_meter(seed: int) -> None:
    """Whatever the market takes: every number once, nothing left running, the bill that of the market's own meter."""
    found, fleet = world(seed)
    machines = fleet.runtime
    assert isinstance(machines, TicketMachines)
    assert sorted(number for number, _ in machines.made) == list(range(80))
    assert driver.phase(fleet.state) is JobPhase.DONE
    (provider,) = found.providers.values()
    assert (provider.alive("job"), provider.meter.running) == ((), frozenset())
    money = driver.summary(fleet.state, fleet.state.now).money
    metered = provider.meter.total_usd(OWNER, WallTime(WALL_START + found.timeline.time))
    assert money.settled_usd == pytest.approx(metered, abs=CENT)
    assert (money.unsettled, money.unexplained_usd) == (0, 0.0)


def test_histories_have_all_that_the_frame_offers() -> None:
    """Among them: takers that come and go, gangs, machines let go by choice, evictions; the clerk always on demand."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        found, fleet = world(seed)
        assert fleet.rows is not None
        for row in fleet.rows.rows:
            for command in row.commands:
                if isinstance(command, PlaceOrder):
                    seen["gang" if command.order.gang else "order"] += 1
                    gang = command.order.gang
                    assert (command.order.count_min == command.order.count_max == 2) or not gang
                elif isinstance(command, DrainMachine):
                    seen[command.reason] += 1
        (provider,) = found.providers.values()
        for machine in provider.list(OWNER):
            seen[f"{machine.reliability} {machine.cause}"] += 1
        seen["slots"] = max(seen["slots"], fleet.state.slots_opened)
    print(dict(seen))
    assert seen["gang"] > 20
    assert seen["it is old"] > 20
    assert seen["the job no longer needs it"] > 20
    assert seen[f"{Reliability.TRANSIENT} {MachineEndCause.PREEMPTED}"] > 20
    assert seen["slots"] > 10


def test_a_clerk_is_never_on_a_machine_that_can_be_preempted() -> None:
    """What the slot asks for is what its machines are, in every row of the journal."""
    for seed in SEEDS[:10]:
        _, fleet = world(seed)
        assert fleet.rows is not None
        state = driver.initial_state()
        for row in fleet.rows.rows:
            state, _, _ = driver.react(state, row.at, row.facts)
            for unit in state.units.values():
                if unit.slot is not None:
                    wanted = state.slots[unit.slot].need.reliability
                    assert unit.machine.reliability is wanted


def test_the_same_seed_is_the_same_journal_to_the_byte() -> None:
    """Another seed is another history."""
    first, again, other = (_journal(seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def _journal(seed: int) -> list[str]:
    _, fleet = world.__wrapped__(seed)
    assert fleet.rows is not None
    return [codec.row_to_line(row) for row in fleet.rows.rows]
