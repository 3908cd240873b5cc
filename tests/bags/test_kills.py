"""Bags under kill -9: no result that was committed is lost, changed or half, none counts twice, and nothing is left behind."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from tests.bags.bag_storm import KINDS, Storm, bag_job, check, run_folder, submit
from tests.bags.witness import LogWatch, Plan
from tests.live.rig import Rig

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(420)]
ITEMS, SEEDS = 40, range(40)


def drawn(chance: random.Random, seed: int) -> tuple[Plan, int, str, int]:
    """A bag, the number of its machines, the time of an item, and how many ranks each has."""
    finish = chance.choice((1.0, 0.9))
    bad = 0 if finish == 1.0 else chance.choice((0, 3))
    xs = [*range(1, ITEMS - bad + 1), *range(-bad, 0)]
    chance.shuffle(xs)
    plan = Plan(tuple(xs), seed, finish, chance.choice((None, None, 1, 3)), retries=3 if bad else 6)
    return plan, chance.choice((2, 3)), chance.choice(("0.2", "0.6")), chance.choice((1, 2))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bag_survives_kills_of_everything(seed: int, new_rig: Callable[..., Rig]) -> None:
    """Four kills by seed, of controller, machine, agent, runner, item or rank, or machines taken: every promise holds."""
    rig, chance, began = new_rig(), random.Random(f"bag kills {seed}"), time.monotonic()
    plan, machines, seconds, ranks = drawn(chance, seed)
    kinds = [kind for kind in KINDS if ranks > 1 or kind != "rank"]
    kinds = [kinds[seed % len(kinds)], *chance.sample(kinds, 3)]
    notes = rig.folder / "notes"
    rig.start_controller()
    job_id = submit(rig, bag_job(plan, notes, f"kills-{seed}", machines=machines, seconds=seconds, ranks=ranks))
    storm = Storm(rig, job_id, chance, LogWatch(run_folder(rig, job_id)))

    rig.until(lambda: notes.exists() or storm.is_over(), "the first item starts")
    for kind in kinds:
        storm.pass_time(chance.uniform(0.0, 2.0))
        storm.strike(kind)
    told = rig.ended(job_id, 240.0)

    assert told["phase"] == "done", f"killed {rig.killed}: {told['message']}\n{rig.log()}"
    account = check(rig, job_id, plan, told, notes, storm.watch)
    rig.check(job_id, told, nodes=machines)
    print(
        f"seed {seed}: {dict(storm.kills)}; {len(account.done)} done of {ITEMS}, must {plan.must_finish}, at once "
        f"{plan.at_once}; ends { ({end.value: count for end, count in account.ends.items()}) }; {account.records} records; "
        f"{len(rig.stays(job_id))} machines; gone within {max(storm.orphans_s, default=0.0):.2f} s; "
        f"{time.monotonic() - began:.0f} s"
    )
