"""The fast fleet loop, a second implementation, agrees with the event engine to the cent and refuses what it leaves out."""

from __future__ import annotations

import random
from functools import partial

import pytest

from windfall.errors import Misuse
from windfall.fleet import MachineReported, MachineStatus, ProgressObserved, Report
from windfall.jobs import Job, Resources, Use
from windfall.market import BillingBasis, BillingRule
from windfall.policies.acquisition.fleet_policy import FleetEstimates, FleetTarget, FleetView, MachineDrain, fixed
from windfall.policies.layout import checkpoint_rules
from windfall.simulation.engine_fleet import OWNER
from windfall.simulation.engine_runtime import Directives, FleetCalls
from windfall.simulation.fleet_loop import FleetLoop
from windfall.simulation.fleet_market import FleetMarket, Purchase
from windfall.simulation.scenario import MemorylessLifetimes
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import WALL_START, Timeline
from windfall.simulation.world import ProviderMarket, SimulatedJob, World
from windfall.structs import replace
from windfall.terms import Instant, JobProgress, Outcome, Reliability, Seconds, Term, Unit, WallTime, WorkDone

HISTORIES = 200
HOUR_S = 3600.0
CENT = 0.005


class Standing:
    """`SimulatedRuntime` of machines that wait until a time, at which the job is done."""

    def __init__(self, timeline: Timeline, calls: FleetCalls, *, horizon_s: float) -> None:
        self.finish_s: float | None = None
        self.progress, self.machines = 0, 1
        self._timeline, self._calls = timeline, calls
        timeline.when(horizon_s, self._finish)

    def start(self, machine_id: str, slot: int, n: int) -> None:
        self.progress += 1
        self._say(machine_id)

    def notice(self, machine_id: str, left_s: float) -> None:
        """Nothing gives notice here."""

    def end(self, machine_id: str) -> None:
        """It held nothing."""

    def direct(self, directives: Directives) -> bool:
        return False

    def observe(self) -> ProgressObserved | None:
        if self.finish_s is None:
            return None
        work = WorkDone(1.0, Unit.ITEM)
        return ProgressObserved(Term(1), JobProgress(work, work, 0, Outcome.DONE))

    def _say(self, machine_id: str) -> None:
        self._calls.add(MachineReported(Report(machine_id, 1, "life", MachineStatus.WAITING), "direct", None))

    def _finish(self) -> None:
        self.finish_s = self._timeline.time
        self._say("nothing")
        self._calls.settle()


def pools(rng: random.Random) -> tuple[SimulatedMarket, ...]:
    """Two zones of spot machines whose prices move, and one on demand."""
    return (
        *(_spot(rng, zone) for zone in "ab"),
        _market("c", ValueSeries.constant(3.0), reliability=Reliability.RELIABLE),
    )


def _market(zone: str, prices: ValueSeries, **more: object) -> SimulatedMarket:
    given: dict[str, object] = {"reliability": Reliability.TRANSIENT, "allocate_s": (40.0, 40.0)} | more
    return SimulatedMarket("m4", zone, prices=prices, on_demand_usd_per_hour=3.0, notice_s=Seconds(0.0), **given)  # type: ignore[arg-type]


def _spot(rng: random.Random, zone: str) -> SimulatedMarket:
    times = [0.0, *sorted(rng.uniform(100.0, 6 * HOUR_S) for _ in range(rng.choice([0, 5, 20])))]
    return _market(
        zone,
        ValueSeries.of((at, rng.uniform(0.5, 2.0)) for at in times),
        eviction=rng.choice([None, MemorylessLifetimes((rng.choice([600.0, 4000.0]),))]),
        refund=rng.random() < 0.5,
        bid=rng.random() < 0.5,
        billing=BillingRule(rng.choice(list(BillingBasis)), rng.choice([0.0, 60.0])),
    )


def job(rng: random.Random) -> Job:
    """Some machines of any kind."""
    return Job(
        "job",
        "job",
        "ada",
        "memory://run",
        ("train",),
        (Resources(),),
        nodes=rng.randint(1, 6),
        use=rng.choice(list(Use)),
        max_price_usd_per_hour=rng.choice([None, None, 1.2, 1.8, 4.0]),
    )


@pytest.mark.parametrize("tens", range(10))
def test_it_agrees_with_the_event_engine_to_the_cent(tens: int) -> None:
    """Two hundred histories of the fixed policy, half of the markets with bids: the same machines, ends and money."""
    for seed in range(tens, HISTORIES, 10):
        rng = random.Random(seed)
        markets, task, horizon_s = pools(rng), job(rng), rng.uniform(1.0, 6.0) * HOUR_S
        runtime = partial(Standing, horizon_s=horizon_s)
        world = World((ProviderMarket("sim", markets),), [SimulatedJob(task, runtime, journal=False)], seed=seed)
        world.run()
        (provider,), (fleet,) = world.providers.values(), world.fleets.values()
        metered = provider.meter.total_usd(OWNER, WallTime(WALL_START + world.timeline.time))
        found = FleetLoop(task, fixed, checkpoint_rules.slots(task), markets, seed=seed).play(horizon_s)
        assert found.preemptions == fleet.preemptions, seed
        assert found.machine_hours == pytest.approx(fleet.billed_s / HOUR_S, abs=1e-6), seed
        assert found.usd == pytest.approx(metered, abs=CENT), seed


def test_a_policy_that_lets_go_by_choice_has_one_machine_all_along() -> None:
    """Its new machine starts before the old one ends: every hour another, none missing."""

    def hourly(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
        old = [one for one in view.machines() if one.started is not None and view.now - one.started >= HOUR_S]
        return FleetTarget(
            view.needs, tuple(MachineDrain(one.machine_id, Instant(view.now + 1200.0), "old") for one in old)
        )

    task = replace(job(random.Random(1)), nodes=1, use=Use.ON_DEMAND)
    market = _market("c", ValueSeries.constant(3.6), reliability=Reliability.RELIABLE)
    found = FleetLoop(task, hourly, checkpoint_rules.slots(task), (market,)).play(4 * HOUR_S)
    assert (found.machines, found.preemptions) == (4, 0)
    assert found.machine_hours == pytest.approx(4.0 - 40.0 / HOUR_S)
    assert found.usd == pytest.approx(3.6 * found.machine_hours)


@pytest.mark.parametrize("more", [{"capacity": ValueSeries.constant(1.0)}, {"quota": 1}, {"failed_to_start": 0.1}])
def test_what_it_leaves_out_it_refuses(more: dict[str, object]) -> None:
    """A history that would be wrong is not played."""
    task = job(random.Random(1))
    with pytest.raises(Misuse, match="use the event engine"):
        FleetLoop(task, fixed, checkpoint_rules.slots(task), (_market("a", ValueSeries.constant(1.0), **more),))


def test_among_the_histories_orders_are_refused_and_machines_outbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """What agrees to the cent includes both; and no market for a job is a sentence, whatever the job would pay."""
    refused = outbid = 0
    buy = FleetMarket.buy

    def counted(market: FleetMarket, place: int, count: int, now_s: float, bid: float | None) -> list[Purchase]:
        nonlocal refused
        bought = buy(market, place, count, now_s, bid)
        refused += not bought
        return bought

    monkeypatch.setattr(FleetMarket, "buy", counted)
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        markets, task, horizon_s = pools(rng), job(rng), rng.uniform(1.0, 6.0) * HOUR_S
        loop = FleetLoop(task, fixed, checkpoint_rules.slots(task), markets, seed=seed)
        loop.play(horizon_s)
        bids = [market.bid and market.eviction is None for market in markets]
        rows = zip(loop.rows.pool, loop.rows.taken, loop.rows.end, strict=True)
        outbid += sum(bids[place] and taken and end_s < horizon_s for place, taken, end_s in rows)
    print(f"{refused} orders refused for the price, {outbid} machines outbid")
    assert refused > 50
    assert outbid > 20
    poor = replace(job(random.Random(1)), resources=(Resources(cpus_min=64.0),), max_price_usd_per_hour=0.1)
    with pytest.raises(Misuse, match="add one that fits the job"):
        FleetLoop(poor, fixed, checkpoint_rules.slots(poor), pools(random.Random(1))).play(HOUR_S)


def test_a_slot_that_is_named_twice_is_refused() -> None:
    """As in the driver, which fails the job: its machine would be counted twice and bought once."""
    task, markets = job(random.Random(1)), pools(random.Random(1))
    twice = FleetTarget(checkpoint_rules.slots(task) * 2)
    with pytest.raises(Misuse, match="named a slot twice"):
        FleetLoop(task, lambda _view, _estimates: twice, checkpoint_rules.slots(task), markets).play(HOUR_S)
