"""What the plan says of a job that can use more or fewer machines is what it gets, on the local market and simulated.

Two large machines are allowed in one pool, and the job can use three: so the best fleet is two large ones and a small one,
beside the machine that cannot be preempted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.live.rig import USD_PER_HOUR, Rig
from tests.simulation.ticket_machines import TicketMachines
from tests.support import tickets
from windfall.jobs import BuyingLimits, Work
from windfall.market import Machine
from windfall.policies.planning import fleet_plan
from windfall.simulation.engine_runtime import FleetCalls
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import Timeline
from windfall.simulation.world import ProviderMarket, SimulatedJob, World
from windfall.structs import replace
from windfall.terms import Reliability, Seconds, Unit, WallTime

SMALL_USD, LARGE_USD = 900.0, 2880.0
PLANNED = {("large", "transient"): 2, ("small", "transient"): 1}
MARKET = {
    "types": {"small": {"on_demand": USD_PER_HOUR}, "large": {"on_demand": 4 * USD_PER_HOUR, "cpus": 4}},
    "zones": ["zone-a"],
    "prices": {"points": {"small/zone-a": [[0, SMALL_USD]], "large/zone-a": [[0, LARGE_USD]]}},
}
PRICES = {("small", "reliable"): USD_PER_HOUR, ("small", "transient"): SMALL_USD, ("large", "transient"): LARGE_USD}
STANDS = {("small", "reliable"): 1, **PLANNED}
CORE_S = 600.0
"""What the runtime believes of a number: long work, for which a third machine pays although it must prepare first."""


def _pool(kind: str, cpus: float, reliability: Reliability) -> SimulatedMarket:
    on_demand = cpus * USD_PER_HOUR
    price = {Reliability.RELIABLE: on_demand, Reliability.TRANSIENT: SMALL_USD if kind == "small" else LARGE_USD}
    return SimulatedMarket(
        kind, "zone-a", reliability, ValueSeries.constant(price[reliability]), on_demand, Seconds(0.0), cpus=cpus
    )


def test_in_the_simulated_world() -> None:
    """By the market's own list the planned fleet stands."""
    stood: list[tuple[Machine, ...]] = []
    numbers = 400

    def machines(timeline: Timeline, calls: FleetCalls) -> TicketMachines:
        timeline.at(120.0, lambda: stood.append(world.providers["sim"].alive("job")))
        return TicketMachines(timeline, calls, numbers=numbers, seed=1)

    with tickets.installed():
        job = tickets.job("job", tickets.QueueSettings(numbers=numbers, core_s=CORE_S))
        job = replace(job, fleet="mix", limits=BuyingLimits(pool_machines_max=2), work=Work(float(numbers), Unit.STEP))
        pools = [_pool(kind, cpus, one) for kind, cpus in (("small", 1.0), ("large", 4.0)) for one in Reliability]
        world = World((ProviderMarket("sim", tuple(pools)),), [SimulatedJob(job, partial(machines))], seed=1)
        scaling = tickets.RULES.scaling
        assert scaling is not None
        planned = fleet_plan.plan(job, scaling(job), world.providers["sim"].offers(), (), WallTime(0.0)).fleet
        world.run()
    assert planned is not None
    assert {(key[1], key[3].value): count for key, count in planned.chosen.counts} == PLANNED
    assert Counter((one.machine_type, one.reliability.value) for one in stood[0]) == STANDS


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("tickets_installed")
def test_on_the_local_market(new_rig: Callable[..., Rig]) -> None:
    """`windfall plan` names the fleet with its odds; `windfall run` has it, by the market's own books, and finishes."""
    rig = new_rig(market=MARKET)
    rig.start_controller()
    log: Path = rig.folder / "numbers.log"
    log.touch()
    job = {
        "name": "planned",
        "run": "true",
        "runtime": {"tickets": {"numbers": 90, "takers_max": 3, "core_s": CORE_S}},
        "fleet": "mix",
        "work": {"steps": 90},
        "resources": {"infra": "local", "use_spot": True, "pool_max": 2},
        "envs": {"TICKET_LOG": str(log), "WORK_S": "0.3"},
    }
    job_id = rig.submit(job, None)

    def alive() -> Counter[float]:
        return Counter(one.price for one in rig.stays(job_id) if one.started is not None and one.ended is None)

    rig.until(lambda: alive() == {PRICES[kind]: count for kind, count in STANDS.items()}, "the plan stands", 60.0)
    plan = rig.plan("planned")
    fleets = plan["fleet"]
    assert {(kind, spot): count for (_, kind, _, spot), count in fleets["chosen"]["counts"]} == PLANNED
    assert (fleets["reliable"][1], fleets["reliable_machines"]) == ("small", 1)
    assert plan["odds"]["cost_usd"]["p50"] <= plan["odds"]["cost_usd"]["p90"]
    text = rig.say("plan", str(rig.folder / "work-planned" / "job.yaml"), "--all")
    assert "2 large in zone-a + 1 small in zone-a, and 1 small in zone-a on demand for the state" in " ".join(
        text.split()
    )
    assert [line for line in text.splitlines() if len(line) > 80 and str(rig.folder) not in line] == []
    assert rig.ended(job_id, 150.0)["phase"] == "done"
    assert Counter(int(line.split()[0]) for line in log.read_text().splitlines()) == Counter(range(90))
    print(text)
