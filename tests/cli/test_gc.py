"""`windfall gc`: what nobody needs is listed and given back, and nothing else is touched."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.live import eventually
from tests.support.shop import shop
from windfall.linux.clock import SystemClock
from windfall.market import BootSpec, MachineLifecycle, Order
from windfall.providers.local.local_provider import LocalProvider
from windfall.storage.database import open_database
from windfall.wiring_control import owner_tag


def test_only_machines_of_this_installation_that_no_job_needs_are_given_back(tmp_path: Path) -> None:
    """Two forgotten machines of ours go, one of somebody else's stays; without a yes nothing happens at all."""
    with shop(tmp_path) as made:
        made.job()
        assert made.say("plan", "job.yaml").returncode == 0
        clock = SystemClock()
        database = open_database(f"sqlite:///{made.state / 'controller.db'}", clock)
        owner = owner_tag(database)
        database.close()
        market = LocalProvider(str(made.state / "market"), clock)
        offer = market.offers()[0]
        boot = BootSpec((sys.executable, "-c", "import time; time.sleep(600)"))
        ours = market.order(Order("old-1", owner, "old", offer, 2, 2), boot).machine_ids
        theirs = market.order(Order("x-1", "somebody-else", "x", offer, 1, 1), boot).machine_ids

        asked = made.say("gc")
        given = made.say("gc", "--yes", "--json")

        def alive() -> set[str]:
            listed = [one for name in (owner, "somebody-else") for one in market.list(name)]
            return {one.machine_id for one in listed if one.lifecycle is not MachineLifecycle.GONE}

        # A released machine may need a moment to end.
        eventually(lambda: alive() == set(theirs), "ours end, and theirs stays")
        market.close()
        told = json.loads(given.stdout)

        assert (asked.returncode, given.returncode) == (2, 0), asked.stderr + given.stderr
        assert "--yes" in asked.stderr
        assert all(name in asked.stdout for name in ours)
        assert theirs[0] not in asked.stdout + given.stdout
        assert sorted(told["released"]) == sorted(ours)
        assert "nothing to release: every machine of this installation has a job" in made.say("gc").stdout
