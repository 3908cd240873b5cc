"""Fleets for a deadline with everything real: spot machines come and go by seeded prices, and every job is in time.

A minute of the paper is a second here: 50 s of work, changeovers of 12 s at most, 110 s until the deadline.  While the price
of spot is above that of on-demand, nothing is sold for it and its machines are taken after a notice of 3 s.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live import sleeping
from tests.live.rig import USD_PER_HOUR, Rig
from windfall.policies import policy_registry

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]
STEPS, STEP_S = 500, 0.1
CHANGEOVER_S, DEADLINE_S, NOTICE_S = 12.0, 110.0, 3.0
UP_USD, DOWN_USD = 900.0, 5400.0
UP_S, DOWN_S = 20.0, 20.0
"""Mean times that spot is available, and that it is not [s]."""
RUNS = [
    *((policy_registry.OPTIMAL_DEADLINE, seed) for seed in range(4)),
    *((policy_registry.UNIFORM_PROGRESS, seed) for seed in range(4, 7)),
    *((policy_registry.GREEDY_DEADLINE, seed) for seed in range(7, 10)),
]


def prices(seed: int) -> list[list[float]]:
    """Return seeded points [s, USD/h]: available and not, in turn."""
    chance, at_s, up, points = random.Random(seed), 0.0, True, []
    while at_s < 4.0 * DEADLINE_S:
        points.append([round(at_s, 3), UP_USD if up else DOWN_USD])
        at_s, up = at_s + 2.0 + chance.expovariate(1.0 / (UP_S if up else DOWN_S)), not up
    return points


@pytest.mark.parametrize(("fleet", "seed"), RUNS)
def test_the_deadline_is_kept_for_no_more_than_on_demand(new_rig: Callable[..., Rig], fleet: str, seed: int) -> None:
    """By the market's books: in time, cheaper than the same work on demand, and nothing stands afterwards."""
    check_run(new_rig, fleet, seed, nodes=1)


@pytest.mark.parametrize(
    ("fleet", "seed"), [(policy_registry.UNIFORM_PROGRESS, 11), (policy_registry.OPTIMAL_DEADLINE, 12)]
)
def test_two_nodes_keep_it_too(new_rig: Callable[..., Rig], fleet: str, seed: int) -> None:
    """They change together: both are spot or both are on demand."""
    check_run(new_rig, fleet, seed, nodes=2)


def check_run(new_rig: Callable[..., Rig], fleet: str, seed: int, *, nodes: int) -> None:
    """Run a job whose fleet is to keep its deadline, and check what the market's books say of it."""
    rig = new_rig(market={"zones": ["zone-a"], "prices": {"points": {"small/zone-a": prices(seed)}}}, notice_s=NOTICE_S)
    rig.start_controller()
    settings = {"changeover_s": CHANGEOVER_S, "available_s": UP_S, "unavailable_s": DOWN_S, "decide_every_s": 1.0,
                "step_s": STEP_S}  # fmt: skip
    job = {
        "name": "timely",
        "num_nodes": nodes,
        "envs": {"STEPS": str(STEPS), "STEP_S": str(STEP_S)},
        "work": {"steps": STEPS},
        "objective": {"deadline": f"{DEADLINE_S:g}s"},
        "spot_policy": "auto",
        "fleet": {fleet: settings},
        "checkpoint": {"insure": "20 steps"},
    }
    job_id = rig.submit(job, Path(sleeping.__file__))
    submitted = rig.rows(job_id)[0].wall_time
    told = rig.ended(job_id, 2.0 * DEADLINE_S)
    assert told["phase"] == "done"
    stays = rig.stays(job_id)
    finished = max(stay.ended for stay in stays if stay.ended is not None)
    kinds = ["on demand" if stay.price == USD_PER_HOUR else "spot" for stay in stays]
    usd, on_demand_usd = rig.metered_usd(job_id), nodes * (STEPS * STEP_S + CHANGEOVER_S) * USD_PER_HOUR / 3600.0
    print(f"{nodes} x {fleet} {seed}: {finished - submitted:.1f} s, {usd:.2f} of {on_demand_usd:.2f} USD, {kinds}")
    assert finished - submitted <= DEADLINE_S
    assert usd <= on_demand_usd
    assert "spot" in kinds
    rig.check(job_id, told, nodes=2 * nodes)  # beside each other only while one takes over from the other
