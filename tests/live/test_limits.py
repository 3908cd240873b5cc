"""Where a job's machines stand: by its limits, on the local market, by the market's own books."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live import sleeping
from tests.live.rig import USD_PER_HOUR, Rig

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]
ZONES = {"zone-a": 360.0, "zone-b": 720.0, "zone-c": 1080.0, "zone-d": 1440.0}
MARKET = {
    "types": {"small": {"on_demand": USD_PER_HOUR}},
    "zones": list(ZONES),
    "prices": {"points": {f"small/{zone}": [[0, price]] for zone, price in ZONES.items()}},
}


def zones(rig: Rig, job_id: str) -> Counter[str]:
    """How many machines of a job were ever ordered in each zone."""
    place = f"file:{rig.state / 'market' / 'market.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(place, uri=True)) as database:
        found = database.execute("SELECT zone FROM machines WHERE job_id = ?", (job_id,)).fetchall()
    return Counter(zone for (zone,) in found)


def test_three_machines_stand_in_two_pools_and_none_where_the_job_excludes_it(new_rig: Callable[..., Rig]) -> None:
    """The cheapest zone is excluded; two machines fit in the next one, also when one of them is lost and bought again."""
    rig = new_rig(market=MARKET)
    rig.start_controller()
    job = {
        "name": "spread",
        "num_nodes": 3,
        "resources": {"infra": "local", "exclude": {"zone": "zone-a"}, "pool_max": 2},
        "envs": {"STEPS": "1000000", "STEP_S": "0.05"},
    }
    job_id = rig.submit(job, Path(sleeping.__file__))
    rig.until(lambda: zones(rig, job_id) == {"zone-b": 2, "zone-c": 1}, "they stand in two pools", 60.0)
    rig.until(lambda: all(one.started is not None for one in rig.stays(job_id)), "all have started", 60.0)
    dearest = max(rig.stays(job_id), key=lambda one: one.price)
    rig.take(dearest.machine_id, None)
    rig.until(lambda: zones(rig, job_id) == {"zone-b": 2, "zone-c": 2}, "the lost one is replaced where it stood", 60.0)
    assert rig.plan("spread")["chosen"]["offer"]["zone"] == "zone-b"
    rig.say("stop", job_id, "--now")
    rig.ended(job_id)
    assert set(zones(rig, job_id)) == {"zone-b", "zone-c"}
