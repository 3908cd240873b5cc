"""Bags on a real Slurm: ten runs whose daemons and machines are killed, and the table of a bag file that is one everywhere."""

from __future__ import annotations

import csv
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bags import bag_storm, short_item, witness
from tests.bags.witness import LogWatch, Plan
from tests.live.rig import Rig
from tests.slurm.conftest import StartSlurm
from tests.slurm.samplers import remains
from tests.slurm.test_kills_on_slurm import FAULTS, Storm
from tests.slurm.trainings import Training, bill, training

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]
ITEMS = 40
SEEDS = range(10)


def kill_runner(storm: Storm) -> str | None:
    """The process that runs a machine's items, or the one that waits for it."""
    return storm.kill("windfall.cli.item_process")


def kill_item(storm: Storm) -> str | None:
    """An item."""
    return storm.kill("train.py")


KINDS: dict[str, Callable[[Storm], str | None]] = {**FAULTS, "runner": kill_runner, "item": kill_item}


def slurm_job(plan: Plan, folder: Path, name: str, machines: int) -> dict[str, object]:
    """The job file of a bag of short items, with its code."""
    work = folder / "work"
    work.mkdir()
    shutil.copy(short_item.__file__, work / "train.py")
    job = bag_storm.bag_job(plan, folder / "notes", name, machines=machines, seconds="0.4", ranks=1)
    return {**job, "workdir": str(work), "resources": {"infra": "slurm/low"}}


def run_folder(run: Training) -> Path:
    """The store of the only bag of an installation."""
    (folder,) = (run.lab / "st" / "windfall" / "runs").glob("bag-*")
    return folder


def strike(storm: Storm, kind: str, limit_s: float = 60.0) -> None:
    """Do one fault as soon as there is something to strike, unless the bag has ended."""
    until = time.monotonic() + limit_s
    while storm.run.process.poll() is None and time.monotonic() < until:
        if (told := KINDS[kind](storm)) is not None:
            storm.done.append(told)
            return
        storm.pass_time(0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_kills_on_slurm_lose_no_item(seed: int, start_slurm: StartSlurm, tmp_path: Path) -> None:
    """Three kills by seed, Slurm's daemons among them: nothing committed is lost, changed or twice, and nothing is left."""
    cluster, chance = start_slurm(nodes=3, node_timeout_s=4), random.Random(f"slurm bags {seed}")
    kinds = [sorted(KINDS)[seed % len(KINDS)], *chance.sample(sorted(KINDS), 2)]
    plan = Plan(tuple(range(1, ITEMS + 1)), seed, chance.choice((1.0, 0.9)), chance.choice((None, 2)))
    began = time.monotonic()

    with training(cluster, tmp_path, slurm_job(plan, tmp_path, f"bag-{seed}", chance.choice((2, 3)))) as run:
        cluster.until((tmp_path / "notes").exists, "an item starts", 60.0)
        watch = LogWatch(run_folder(run))
        storm = Storm(cluster, run, chance)
        for kind in kinds:
            watch.look()
            storm.pass_time(chance.uniform(0.0, 3.0))
            strike(storm, kind)
        storm.settle(200.0)
        assert run.process.poll() == 0, run.printed
        cluster.until(lambda: cluster.run("squeue", "--noheader") == "", "the queue is empty", 40.0)
        cluster.until(lambda: not remains(cluster), f"nothing lives: {remains(cluster)}", 40.0)
        told, shown = bill(run), json.loads(run.ask("ps", f"bag-{seed}", "--json"))

    account = witness.add_up(watch.records(), plan)
    tries = witness.tries_of(tmp_path / "notes")
    witness.check_results(watch.folder, plan, account, tries)
    witness.check_share(plan, account, tries, shown["details"]["step"])
    witness.check_crowd(plan, tries)
    assert all(one["ended"] is not None for one in told), told
    print(
        f"seed {seed}: {'; '.join(storm.done)}; {len(account.done)} done, {account.records} records, "
        f"{ ({end.value: count for end, count in account.ends.items()}) }, {len(told)} machines, "
        f"{time.monotonic() - began:.0f} s"
    )


def results(text: str) -> dict[int, tuple[str, ...]]:
    """Parameter and results of each item of `windfall results`."""
    rows = list(csv.DictReader(text.splitlines()))
    return {int(row["item"]): (row["state"], row["x"], row["printed"], row["written"]) for row in rows}


def test_a_bag_has_one_table_on_local_and_on_slurm(start_slurm: StartSlurm, tmp_path: Path) -> None:
    """The same file with another `infra` gives the same rows, on machines of this host and on three nodes of Slurm."""
    plan = Plan(tuple(range(1, 31)), 11)
    (tmp_path / "slurm").mkdir()
    job = slurm_job(plan, tmp_path / "slurm", "same", 3)
    rig = Rig(tmp_path / "local")
    try:
        rig.start_controller()
        job_id = bag_storm.submit(rig, {**job, "resources": {"infra": "local"}})
        rig.ended(job_id)
        here = results(rig.say("results", "same"))
    finally:
        rig.close()
    (tmp_path / "slurm" / "notes").unlink()
    cluster = start_slurm(nodes=3)
    with training(cluster, tmp_path / "slurm", job) as run:
        run.until_done()
        there = results(run.ask("results", "same"))
        nodes = {one["machine_id"] for one in bill(run)}
        cluster.until(lambda: not remains(cluster), "nothing lives", 40.0)

    expected = {item: str(plan.value_of(item)) for item in range(30)}
    assert here == {item: ("done", str(item + 1), value, value) for item, value in expected.items()}
    assert here == there
    assert len(nodes) == 3
