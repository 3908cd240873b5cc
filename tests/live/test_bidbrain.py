"""One policy, two worlds: it has the same fleet on the local market, with real processes, and in the simulated one.

The market has one large machine, the cheapest per core, and as many small ones as anybody wants; so the best fleet of three
is a mix, beside the machine that cannot be preempted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.live.rig import USD_PER_HOUR, Rig
from tests.simulation.ticket_machines import TicketMachines
from tests.support import tickets
from windfall.jobs import Resources
from windfall.market import Machine
from windfall.simulation.engine_runtime import FleetCalls
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import Timeline
from windfall.simulation.world import ProviderMarket, SimulatedJob, World
from windfall.structs import replace
from windfall.terms import Reliability, Seconds

SMALL_USD, LARGE_USD = 900.0, 2880.0
BEST = {("small", Reliability.RELIABLE): 1, ("large", Reliability.TRANSIENT): 1, ("small", Reliability.TRANSIENT): 2}
SETTINGS = {"decide_every_s": 1.0, "machines_max": 3}
MARKET = {
    "types": {"small": {"on_demand": USD_PER_HOUR}, "large": {"on_demand": 4 * USD_PER_HOUR, "cpus": 4}},
    "zones": ["zone-a"],
    "capacity": {"large": 1},
    "prices": {"points": {"small/zone-a": [[0, SMALL_USD]], "large/zone-a": [[0, LARGE_USD]]}},
}
PRICES = {
    ("small", Reliability.RELIABLE): USD_PER_HOUR,
    ("small", Reliability.TRANSIENT): SMALL_USD,
    ("large", Reliability.TRANSIENT): LARGE_USD,
}


def _pool(kind: str, cpus: float, reliability: Reliability) -> SimulatedMarket:
    on_demand = cpus * USD_PER_HOUR
    price = {Reliability.RELIABLE: on_demand, Reliability.TRANSIENT: SMALL_USD if kind == "small" else LARGE_USD}
    series = ValueSeries.constant(price[reliability])
    few = ValueSeries.constant(1.0) if kind == "large" else None
    return SimulatedMarket(
        kind, "zone-a", reliability, series, on_demand, Seconds(0.0), cpus=cpus, capacity=few, memory_gib=4.0
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", ["bidbrain", pytest.param("mix", marks=pytest.mark.slow)])
def test_in_the_simulated_world(policy: str) -> None:
    """By the market's own list of what stands, the fleet is the mix; the job ends, and nothing is left."""
    stood: list[tuple[Machine, ...]] = []
    numbers = 400

    def machines(timeline: Timeline, calls: FleetCalls) -> TicketMachines:
        timeline.at(120.0, lambda: stood.append(world.providers["sim"].alive("job")))
        return TicketMachines(timeline, calls, numbers=numbers, seed=1)

    with tickets.installed():
        job = tickets.job("job", tickets.QueueSettings(numbers=numbers))
        job = replace(job, fleet=policy, fleet_settings=SETTINGS, resources=(Resources(memory_gib_min=4.0),))
        pools = [_pool(kind, cpus, one) for kind, cpus in (("small", 1.0), ("large", 4.0)) for one in Reliability]
        cheapest = ValueSeries.constant(SMALL_USD / 2.0)  # but too small for the job
        pools.append(
            replace(_pool("small", 8.0, Reliability.TRANSIENT), machine_type="tiny", prices=cheapest, memory_gib=2.0)
        )
        world = World((ProviderMarket("sim", tuple(pools)),), [SimulatedJob(job, partial(machines))], seed=1)
        world.run()
    assert Counter((one.machine_type, one.reliability) for one in stood[0]) == BEST
    (fleet,) = world.fleets.values()
    assert sorted(number for number, _ in fleet.runtime.made) == list(range(numbers))  # type: ignore[attr-defined]
    assert world.providers["sim"].alive("job") == ()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("tickets_installed")
@pytest.mark.parametrize("policy", ["bidbrain", "mix"])
def test_on_the_local_market(new_rig: Callable[..., Rig], policy: str) -> None:
    """By the market's own books the fleet is the same mix; every number is done once, and the bill is the meter's."""
    rig = new_rig(market=MARKET)
    rig.start_controller()
    log: Path = rig.folder / "numbers.log"
    log.touch()
    job = {
        "name": "tickets",
        "run": "true",
        "runtime": {"tickets": {"numbers": 120, "takers_max": 3}},
        "fleet": {policy: SETTINGS},
        "resources": {"infra": "local", "use_spot": True},
        "envs": {"TICKET_LOG": str(log), "WORK_S": "0.3"},
    }
    job_id = rig.submit(job, None)

    def alive() -> Counter[float]:
        return Counter(one.price for one in rig.stays(job_id) if one.started is not None and one.ended is None)

    best = Counter({PRICES[kind]: count for kind, count in BEST.items()})
    rig.until(lambda: alive() == best, "the mix stands", 60.0)
    choices = [json.loads(line)["choice"] for line in rig.say("explain", job_id, "--json").splitlines()]
    words = {
        "bidbrain": f"buy 1 large in zone-a at {LARGE_USD:g} USD/h",
        "mix": "1 large in zone-a + 2 small in zone-a",
    }
    assert words[policy] in choices
    ended = rig.ended(job_id, 150.0)
    assert ended["phase"] == "done"
    assert Counter(int(line.split()[0]) for line in log.read_text().splitlines()) == Counter(range(120))
    assert abs(ended["details"]["money"]["settled_usd"] - rig.metered_usd(job_id)) < 0.01
    assert all(one.ended is not None for one in rig.stays(job_id))
