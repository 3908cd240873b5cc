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


def test_a_budget_ends_a_run_with_its_state_saved_and_is_not_exceeded(new_rig: Callable[..., Rig]) -> None:
    """No save was made before: the one at the end is the budget's own, and the machine's meter stays below the budget."""
    rig = new_rig()
    rig.start_controller()
    budget_usd = 22.0  # 15 s of training at 0.25 USD/s; the rest is the reserve for the last save and the release
    job = {
        "name": "thrifty",
        "resources": {"infra": "local/zone-a"},
        "objective": {"budget_usd": budget_usd},
        "checkpoint": {"insure": "never", "save_timeout": "12s"},
        "envs": {"STEPS": "1000000", "STEP_S": "0.05"},
    }
    job_id = rig.submit(job, Path(sleeping.__file__))
    told = rig.ended(job_id)
    assert (told["phase"], told["exit_code"]) == ("stopped", 4)
    assert "stopped at the budget" in told["message"]
    assert rig.saved_step(job_id) > 10
    assert 0.25 < rig.metered_usd(job_id) < budget_usd
    rig.check(job_id, told)
