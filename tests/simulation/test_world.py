"""Several jobs in one world: they compete for its machines, and each pays what the meter says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.engine_world import scenario
from tests.simulation.test_market import pool
from tests.support.progress import observed
from windfall import codec
from windfall.core import ledger
from windfall.errors import Infeasible
from windfall.fleet import ProgressObserved
from windfall.jobs import Job, Recovery, Resources, Use, Work
from windfall.market import BillingBasis, BillingRule, MachineEndCause
from windfall.simulation import engine
from windfall.simulation.engine_fleet import OWNER, SimulatedFleet
from windfall.simulation.engine_runtime import Directives, FleetCalls
from windfall.simulation.market_evictions import NoticeShares
from windfall.simulation.sampling import Draws
from windfall.simulation.scenario import DurationRange, MemorylessLifetimes
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import WALL_START, Timeline
from windfall.simulation.world import ProviderMarket, SimulatedJob, World
from windfall.structs import replace
from windfall.terms import Outcome, Seconds, Unit, WallTime


def a_job(name: str, *, nodes: int = 1, steps: int = 4000, after_s: float = 0.0, trial: int = 0) -> SimulatedJob:
    """A checkpointed job of any machines that the world sells: steps of a second, a save each 200."""
    posed = scenario(steps=steps, machines=nodes, policy="every:200steps", prepare_s=DurationRange.of(30.0))
    job = Job(
        name,
        name,
        "ada",
        f"simulated://{name}",
        ("train",),
        (Resources(),),
        nodes=nodes,
        use=Use.SPOT,
        work=Work(float(steps), Unit.STEP),
        recovery=Recovery(unproductive_machines_max=10**9),
    )
    return SimulatedJob(
        job, engine.checkpoint_runtime(name, posed, Draws(posed, 1, trial), after_s=after_s), after_s=after_s
    )


def watched(world: World) -> list[str]:
    """Run a world to its end; return where more machines were alive than the market has."""
    exceeded = []
    markets = {(name, one.key): one for name, provider in world.providers.items() for one in provider._markets}
    while not all(fleet.over for fleet in world.fleets.values()):
        assert world.timeline.step(), "the jobs end"
        if world.timeline.next_at() == world.timeline.time:
            continue
        alive = [
            (name, (machine.machine_type, machine.zone, machine.reliability))
            for name, provider in world.providers.items()
            for job_id in world.fleets
            for machine in provider.alive(job_id)
        ]
        for key, market in markets.items():
            level = None if market.capacity is None else market.capacity.at(world.timeline.time)
            if level is not None and alive.count(key) > level:
                exceeded.append(f"{key}: {alive.count(key)} of {level} at {world.timeline.time}")
    world.run()
    return exceeded


def due_usd(fleet: SimulatedFleet, now: float) -> float:
    """What the job's own ledger says."""
    return float(ledger.totals(fleet.state.ledger, WallTime(WALL_START + now)).due_usd)


@st.composite
def markets(draw: st.DrawFn) -> tuple[ProviderMarket, ...]:
    """Two providers with one and two zones: floating prices, few machines, three billing rules, evictions of all kinds."""

    # While the minimum of a machine that has ended runs, the engine does not look at its floating price any more.
    floating = st.just(BillingRule(BillingBasis.IN_EFFECT))
    others = st.sampled_from([BillingBasis.PURCHASE, BillingBasis.STARTED_HOUR])
    rules = st.one_of(floating, st.builds(BillingRule, others, st.sampled_from([0.0, 60.0])))

    def one(zone: str) -> SimulatedMarket:
        prices = draw(st.lists(st.floats(0.5, 9.0), min_size=1, max_size=5))
        counts = draw(st.lists(st.integers(0, 4), min_size=0, max_size=5))
        return pool(
            tuple((1800.0 * at, price) for at, price in enumerate(prices)),
            zone=zone,
            notice_s=Seconds(draw(st.sampled_from([0.0, 30.0, 120.0]))),
            allocate_s=(5.0, 60.0),
            refund=draw(st.booleans()),
            billing=draw(rules),
            # From the tenth hour on there is room for everybody, so that every job ends.
            capacity=ValueSeries.of([*((2500.0 * at, float(n)) for at, n in enumerate(counts)), (36_000.0, 9.0)]),
            eviction=draw(st.sampled_from([None, MemorylessLifetimes((3000.0,)), MemorylessLifetimes((20_000.0,))])),
            notices=draw(st.sampled_from([NoticeShares(), NoticeShares(0.3, 0.3)])),
        )

    lag_s = draw(st.sampled_from([(0.0, 0.0), (60.0, 4000.0)]))
    return (ProviderMarket("north", (one("a"), one("b")), lag_s), ProviderMarket("south", (one("c"),)))


@settings(max_examples=40, deadline=None)
@given(opened=markets(), seed=st.integers(0, 3))
def test_jobs_compete_within_the_capacity_and_pay_what_the_meter_says(
    opened: tuple[ProviderMarket, ...], seed: int
) -> None:
    """Each job's ledger, from listings and bills alone, adds up to the meters; the engine's hours are the ledger's."""
    jobs = [a_job("one"), a_job("two", nodes=2, trial=1), a_job("late", after_s=3000.0, trial=2)]
    world = World(opened, jobs, seed=seed)

    assert watched(world) == []
    now = world.timeline.time
    metered_usd = sum(
        provider.meter.total_usd(OWNER, WallTime(WALL_START + now)) for provider in world.providers.values()
    )
    for fleet in world.fleets.values():
        assert engine.collected(fleet).trial.finish_s > 4000.0
    assert sum(due_usd(fleet, now) for fleet in world.fleets.values()) == pytest.approx(metered_usd, abs=0.005)
    for fleet in world.fleets.values():
        sums = ledger.totals(fleet.state.ledger, WallTime(WALL_START + now))
        hours = sums.hours
        assert sums.estimated_usd == pytest.approx(sums.settled_usd, abs=0.005)
        assert hours == pytest.approx(fleet.billed_s / 3600.0, abs=1e-5)


@settings(max_examples=10, deadline=None)
@given(opened=markets())
def test_the_same_seed_is_the_same_world_to_the_byte(opened: tuple[ProviderMarket, ...]) -> None:
    """All journals of all jobs."""

    def lines(seed: int) -> list[str]:
        world = World(opened, [a_job("one"), a_job("two", nodes=2, trial=1)], seed=seed)
        world.run()
        found = [engine.collected(fleet) for fleet in world.fleets.values()]
        return [codec.row_to_line(row) for one in found for row in (*one.job_rows, *one.run_rows)]

    assert lines(1) == lines(1)


def test_two_jobs_share_one_machine_one_after_the_other() -> None:
    """A market of one: the second job's order is refused until the first is done."""
    markets = (ProviderMarket("north", (pool(capacity=ValueSeries.constant(1.0)),)),)
    world = World(markets, [a_job("first"), a_job("second", after_s=10.0)])

    assert watched(world) == []
    first, second = (engine.collected(fleet) for fleet in world.fleets.values())
    assert second.trial.finish_s > first.trial.finish_s + 4000.0
    assert sum("no more m4 in a now" in codec.row_to_line(row) for row in second.job_rows) > 0


def test_a_job_buys_the_zone_that_is_cheaper_when_it_buys() -> None:
    """Prices cross after an hour, the first machine ends after two: its successor comes from the other zone."""
    pools = (
        pool(((0.0, 1.0), (3600.0, 5.0)), zone="a", eviction=MemorylessLifetimes((7200.0,))),
        pool(((0.0, 3.0), (3600.0, 2.0)), zone="b"),
    )
    for seed in range(8):
        world = World((ProviderMarket("north", pools),), [a_job("one", steps=40_000)], seed=seed)
        world.run()
        found = engine.collected(world.fleets["one"])
        lines = [codec.row_to_line(row) for row in found.job_rows]
        bought = [line for line in lines if '"PlaceOrder"' in line]
        if found.trial.preemptions and found.trial.finish_s > 12_000.0 and len(bought) > 1:
            ends_s = next(row.wall_time - WALL_START for row in found.job_rows if _lost(codec.row_to_line(row)))
            if ends_s > 4300.0:
                assert '"zone":"b"' in bought[1].partition('"PlaceOrder"')[2]
                return
    pytest.fail("no seed lost its first machine after the prices crossed")


def _lost(line: str) -> bool:
    return f'"cause":"{MachineEndCause.PREEMPTED.value}"' in line


def test_a_world_without_a_machine_to_buy_says_so() -> None:
    """Capacity 0 for ever: the job waits, and the simulation says that it never ends."""
    markets = (ProviderMarket("north", ()),)
    with pytest.raises(Infeasible, match="one is not done"):
        World(markets, [a_job("one")]).run()


# --------------------------------------------------------------------------------------------------- another runtime


class Counting:
    """A runtime that is nothing like a checkpointed run: each machine counts a second at a time, nothing is ever saved."""

    def __init__(self, timeline: Timeline, calls: FleetCalls, wanted: int) -> None:
        self.finish_s: float | None = None
        self.progress, self.machines, self.wanted = 0, 1, wanted
        self.directed, self.noticed = 0, 0
        self._timeline, self._calls = timeline, calls
        self._alive: set[str] = set()
        self._seen = -1

    def start(self, machine_id: str, slot: int, n: int) -> None:
        del slot, n
        self._alive.add(machine_id)
        self._timeline.at(100.0, lambda: self._count(machine_id))

    def _count(self, machine_id: str) -> None:
        if machine_id in self._alive and self.finish_s is None:
            self.progress += 1
            if self.progress == self.wanted:
                self.finish_s = self._timeline.time
                self._calls.add(observed(Outcome.DONE, 1, None, 0, 0))
            self._timeline.at(100.0, lambda: self._count(machine_id))
            self._calls.settle()

    def notice(self, machine_id: str, left_s: float) -> None:
        del machine_id, left_s
        self.noticed += 1

    def end(self, machine_id: str) -> None:
        self._alive.discard(machine_id)

    def direct(self, directives: Directives) -> bool:
        self.directed += len(directives())
        return False

    def observe(self) -> ProgressObserved | None:
        return None


def test_another_runtime_needs_no_other_market() -> None:
    """The counting one runs on machines that are bought, warned, lost and replaced as always, and its bill is the meter's."""
    market = pool(eviction=MemorylessLifetimes((900.0,)), notice_s=Seconds(50.0))
    made: list[Counting] = []

    def make(timeline: Timeline, calls: FleetCalls) -> Counting:
        made.append(Counting(timeline, calls, 40))
        return made[-1]

    world = World((ProviderMarket("north", (market,)),), [replace(a_job("count"), runtime=make)])
    world.run()
    fleet, (runtime,) = world.fleets["count"], made
    fleet.bill()

    assert runtime.progress == 40
    assert runtime.finish_s is not None
    assert runtime.noticed == fleet.preemptions > 1
    assert runtime.directed > 0
    metered_usd = world.providers["north"].meter.total_usd(OWNER, WallTime(WALL_START + world.timeline.time))
    assert due_usd(fleet, world.timeline.time) == pytest.approx(metered_usd, abs=0.005)


@pytest.mark.parametrize("basis", [BillingBasis.IN_EFFECT, BillingBasis.STARTED_HOUR])
def test_a_driver_learns_every_price_of_a_long_life(basis: BillingBasis) -> None:
    """Six hours on one machine: each change of the price reaches its ledger, long before the listing at its end."""
    points = tuple((1500.0 * number, 1.0 + number * 7 % 5) for number in range(20))
    market = pool(points, allocate_s=(5.0, 60.0), billing=BillingRule(basis))
    world = World((ProviderMarket("north", (market,), (0.0, 0.0)),), [a_job("one", steps=21_600)], seed=1)
    watched(world)
    (fleet,) = world.fleets.values()

    now = WallTime(WALL_START + world.timeline.time)
    sums = ledger.totals(fleet.state.ledger, now)
    assert sums.hours > 6.0
    assert sums.estimated_usd == pytest.approx(world.providers["north"].meter.total_usd(OWNER, now), abs=0.005)
