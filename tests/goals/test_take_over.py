"""A training with a goal of loss and time loses two of its three machines, and others take over: ten seeded runs, all real.

The numbers of the toy runtime `tickets` are the iterations: three large machines need 55 s of the 75 s that there are, after
some 10 s to start.  The large machines of zone a go at a drawn moment, with a notice as their price rises above that on demand,
or are killed without one; in every second run zone a then sells no more of them.  Only two fit into zone b.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.rig import USD_PER_HOUR, Rig, Stay
from tests.support import ticket_training, tickets, tickets_live
from windfall.events import Row
from windfall.fleet import PlaceOrder
from windfall.storage.object_stores import open_store
from windfall.terms import Reliability

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1800)]
LOSS, DEADLINE_S, TAKEOVER_S, NOTICE_S = 0.5, 75.0, 12.0, 3.0
SCALE, WORK_S = 120.0, {"small": 0.8, "large": 0.4}
SMALL_USD, LARGE_USD, ABOVE_USD = 900.0, 1400.0, 5400.0
LARGE_ON_DEMAND_USD = 1.4 * USD_PER_HOUR
RUNS, IN_TIME_MIN = 10, 9
HEARD_S = 5.0
"""From the end of a machine, or its notice, to the order of another, at most."""


@dataclass(frozen=True)
class TakeOver:
    """One run.

    Attributes:
        finished_s: from the submission to the end of the last machine.
        ordered_s: from the first loss or notice to the first order after it.
        before, after: machines of each kind and zone when the two went, and all that were bought afterwards.
        alone_s: when the one that was left would have reached the loss, by hand.
    """

    finished_s: float
    ordered_s: float
    before: Counter[str]
    after: Counter[str]
    alone_s: float


def market(closes_s: float | None) -> dict[str, object]:
    """Return two zones; large machines are not sold in the first one from a moment on, None for always."""
    first = [[0, LARGE_USD]] + ([] if closes_s is None else [[closes_s, ABOVE_USD]])
    return {
        "types": {"small": {"on_demand": USD_PER_HOUR}, "large": {"on_demand": LARGE_ON_DEMAND_USD}},
        "zones": ["zone-a", "zone-b"],
        "capacity": {"large": 2, "default": 8},
        "prices": {
            "points": {
                "small/zone-a": [[0, SMALL_USD]],
                "small/zone-b": [[0, SMALL_USD + 50.0]],
                "large/zone-a": first,
                "large/zone-b": [[0, LARGE_USD + 50.0]],
            }
        },
    }


def job(log: Path) -> dict[str, object]:
    """Return a job that is to reach a loss by a deadline."""
    settings = {"numbers": 5000, "takers_max": 8, "loss_scale": SCALE, "loss_goal": LOSS, "work_s": WORK_S}
    return {
        "name": "training",
        "run": "true",
        "runtime": {"tickets": settings},
        "fleet": {"spotdnn": {"takeover_s": TAKEOVER_S, "decide_every_s": 5.0}},
        "objective": {"loss": LOSS, "deadline": f"{DEADLINE_S:g}s"},
        "resources": {"infra": "local", "use_spot": True},
        "envs": {"TICKET_LOG": str(log), "WORK_S": "0.4"},
    }


def workers(rig: Rig, job_id: str) -> list[Stay]:
    """Return the machines of takers, by the market's books."""
    return [stay for stay in rig.stays(job_id) if stay.price not in {USD_PER_HOUR, LARGE_ON_DEMAND_USD}]


def run(rig: Rig, seed: int) -> TakeOver:
    """Run the job; two machines go meanwhile."""
    chance = random.Random(seed)
    goes_s, closes = chance.uniform(20.0, 32.0), seed % 2 == 0
    rig.start_controller()
    log = rig.folder / "numbers.log"
    log.touch()
    job_id = rig.submit(job(log), None)
    submitted = rig.rows(job_id)[0].wall_time
    if seed == 0:
        planned = rig.plan("training")["fleet"]["chosen"]
        assert Counter({key[1]: count for key, count in planned["counts"]}) == {"large": 3}

    def in_first() -> list[Stay]:
        return [one for one in workers(rig, job_id) if one.price == LARGE_USD and one.ended is None]

    if not closes:
        rig.until(lambda: rig.rows(job_id)[-1].wall_time - submitted >= goes_s, "the moment comes", 60.0)
        for stay in in_first():
            rig.take(stay.machine_id, None)
    told = rig.ended(job_id, 3.0 * DEADLINE_S)
    assert told["phase"] == "done"
    check_training(rig, job_id, log)
    rig.check(job_id, told, nodes=9)
    return seen(rig, job_id, submitted)


def check_training(rig: Rig, job_id: str, log: Path) -> None:
    """By the takers' own log: each number once; the loss is that of the numbers, one by one."""
    counter = tickets_live.read(open_store(rig.run_url(job_id)))
    assert counter is not None
    assert counter.loss is not None
    assert counter.loss <= LOSS
    made = Counter(int(line.split()[0]) for line in log.read_text().splitlines())
    assert set(made.values()) == {1}
    assert set(made) <= set(counter.done)
    assert len(counter.done) - len(made) <= 1, "a commit whose answer was not heard"


def seen(rig: Rig, job_id: str, submitted: float) -> TakeOver:
    """Return what the market's books and the journal say of the run."""
    stays = workers(rig, job_id)
    gone = [one for one in stays if one.cause is not None and one.price == LARGE_USD][:2]
    assert len(gone) == 2, f"two machines go: {stays}"
    lost = min(min(one.told or one.ended or 0.0, one.ended or 0.0) for one in gone)
    orders = [row for row in rig.rows(job_id) if row.wall_time > lost and _orders_workers(row)]
    assert orders, "others are bought"
    ended = [one.ended for one in rig.stays(job_id)]
    return TakeOver(
        max(end for end in ended if end is not None) - submitted,
        orders[0].wall_time - lost,
        Counter(f"{one.price:g}" for one in stays if one.ordered < lost),
        Counter(f"{one.price:g}" for one in stays if one.ordered >= lost),
        _alone_s(rig, job_id, submitted, lost),
    )


def _orders_workers(row: Row) -> bool:
    return any(
        isinstance(one, PlaceOrder) and one.order.offer.reliability is Reliability.TRANSIENT for one in row.commands
    )


def _alone_s(rig: Rig, job_id: str, submitted: float, lost: float) -> float:
    """Return when one large machine would have reached the loss from where the training was."""
    losses = [
        fact.progress.loss
        for row in rig.rows(job_id)
        for fact in row.facts
        if row.wall_time <= lost and type(fact).__name__ == "ProgressObserved"
    ]
    loss = losses[-1] or ticket_training.START
    numbers = SCALE * (1.0 / (LOSS - ticket_training.FLOOR) - 1.0 / (loss - ticket_training.FLOOR))
    return lost - submitted + numbers * WORK_S["large"]


@pytest.mark.usefixtures("tickets_installed")
def test_the_goal_is_met_although_two_of_three_machines_go(new_rig: Callable[..., Rig]) -> None:
    """In nine of ten runs at least; others are ordered at once; the one that is left would have been late in all."""
    found = []
    for seed in range(RUNS):
        closes_s = random.Random(seed).uniform(20.0, 32.0) if seed % 2 == 0 else None
        rig = new_rig(market=market(closes_s), notice_s=NOTICE_S)
        with tickets.installed():  # here too, to feed the journal back
            one = run(rig, seed)
        rig.close()
        found.append(one)
        print(
            f"{seed}: {one.finished_s:.1f} of {DEADLINE_S:g} s, ordered after {one.ordered_s:.2f} s, {dict(one.before)} then "
            f"{dict(one.after)}, alone {one.alone_s:.0f} s",
            flush=True,
        )
    assert all(one.ordered_s <= HEARD_S for one in found)
    assert all(one.alone_s > DEADLINE_S for one in found)
    assert sum(one.finished_s <= DEADLINE_S for one in found) >= IN_TIME_MIN
    assert any(set(one.after) != set(one.before) for one in found), "another set than before"
