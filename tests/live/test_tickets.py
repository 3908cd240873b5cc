"""A runtime of another package on the local market: clerk and takers that come and go, a gang, a controller that is killed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.rig import CENT, USD_PER_HOUR, Rig, replay
from tests.support import tickets, tickets_live
from windfall.fleet import DrainMachine, PlaceOrder
from windfall.storage.object_stores import open_store
from windfall.terms import Reliability

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]
NUMBERS = 150


def submit(rig: Rig, log: Path) -> str:
    """Submit a job of tickets, whose takers rise and fall every few seconds and are old after ten."""
    settings = {"numbers": NUMBERS, "takers_max": 3, "tide_s": 6.0, "age_max_s": 10.0, "leave_s": 20.0, "pair_from": 40}
    job = {
        "name": "tickets",
        "run": "true",
        "runtime": {"tickets": settings},
        "fleet": "queue",
        "resources": {"infra": "local", "use_spot": True},
        "envs": {"TICKET_LOG": str(log), "WORK_S": "0.3"},
    }
    return rig.submit(job, None)


@pytest.mark.usefixtures("tickets_installed")
def test_every_number_is_done_once_whatever_becomes_of_machines_and_controller(new_rig: Callable[..., Rig]) -> None:
    """Takers are taken with and without notice, the controller is killed; the log of the takers has each number once."""
    rig = new_rig(market={"types": {"small": {"on_demand": USD_PER_HOUR}}})
    rig.start_controller()
    log = rig.folder / "numbers.log"
    log.touch()
    job_id = submit(rig, log)
    done = lambda: len(log.read_text().splitlines())  # noqa: E731 - read at each look
    rig.until(lambda: done() >= 10, "numbers are done", 60.0)
    takers = [stay for stay in rig.stays(job_id) if stay.price < USD_PER_HOUR and stay.ended is None]
    rig.take(takers[0].machine_id, None)
    rig.until(lambda: done() >= 30, "the others go on", 60.0)
    rig.kill("controller", random.Random(1))
    rig.until(lambda: done() >= 45, "takers need no controller", 60.0)
    rig.start_controller()
    rig.until(lambda: done() >= 60, "numbers are done", 60.0)
    alive = [stay for stay in rig.stays(job_id) if stay.price < USD_PER_HOUR and stay.ended is None]
    rig.take(alive[-1].machine_id, 3.0)
    told = rig.ended(job_id, 150.0)

    assert told["phase"] == "done"
    logged = Counter(int(line.split()[0]) for line in log.read_text().splitlines())
    assert max(logged.values()) == 1
    # The taker that is killed without notice may die between its commit and its line.
    assert len(set(range(NUMBERS)) - set(logged)) <= 1
    counter = tickets_live.read(open_store(rig.run_url(job_id)))
    assert counter is not None
    assert sorted(counter.done) == list(range(NUMBERS))
    assert abs(told["details"]["money"]["settled_usd"] - rig.metered_usd(job_id)) < CENT
    rows = rig.rows(job_id)
    orders = [command.order for row in rows for command in row.commands if isinstance(command, PlaceOrder)]
    assert {order.offer.reliability for order in orders} == set(Reliability)
    assert any(order.gang and order.count_min == 2 for order in orders)
    assert any(isinstance(command, DrainMachine) for row in rows for command in row.commands)
    gangs = Counter(stay.token for stay in rig.stays(job_id))
    assert all(gangs[order.token] in {0, 2} for order in orders if order.gang), "a gang is bought whole"
    assert tickets.CLERK in {slot["name"] for slot in told["details"]["slots"]}
    with tickets.installed():
        replay(rows)
