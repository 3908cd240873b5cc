"""What users do to bags that run: stop and resume, Ctrl-C, two at once; and machines that are too few, or leave too soon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bags import bag_storm, witness
from tests.bags.bag_storm import bag_job, check, run_folder, submit
from tests.bags.witness import LogWatch, Plan
from tests.live.rig import OVER, WINDFALL, Rig
from windfall.bags import ItemEnd

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(240)]
ITEMS = 12


def ended_well(rig: Rig, job_id: str, plan: Plan, notes: Path, *, machines: int) -> witness.Account:
    """Wait for the end of a bag, and check all promises."""
    watch = LogWatch(run_folder(rig, job_id))
    told = rig.ended(job_id)
    assert told["phase"] == "done", f"{told['message']}\n{rig.log()}"
    account = check(rig, job_id, plan, told, notes, watch)
    rig.check(job_id, told, nodes=machines)
    return account


def started(rig: Rig, file: Path, *words: str) -> subprocess.Popen[str]:
    """`windfall run` in the background."""
    environment = rig.environment() | {"XDG_STATE_HOME": str(rig.folder)}
    return subprocess.Popen(
        [*WINDFALL, "run", str(file), "-y", *words], cwd=rig.folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.mark.parametrize("phase", [0, ITEMS // 2, ITEMS - 1], ids=["before the first", "in the middle", "at the last"])
def test_a_bag_that_is_stopped_continues_where_it_was(phase: int, new_rig: Callable[..., Rig]) -> None:
    """`windfall stop` releases its machines, and `windfall resume` runs what is missing, nothing twice."""
    rig, plan = new_rig(), Plan(tuple(range(1, ITEMS + 1)), phase)
    notes = rig.folder / "notes"
    rig.start_controller()
    job_id = submit(rig, bag_job(plan, notes, "stopped", machines=1, seconds="0.4", ranks=1))
    log = LogWatch(run_folder(rig, job_id))

    def ends() -> int:
        return notes.read_text().count("end") if notes.exists() else 0

    rig.until(lambda: ends() >= phase, "so many items have ended")
    rig.say("stop", job_id)
    rig.until(lambda: (rig.job(job_id) or {}).get("phase") in OVER, "the bag has stopped")
    rig.until(lambda: not rig.processes("machine", "keeper"), "its machines are gone")
    log.look()
    before = sum(one.end is ItemEnd.DONE for record in log.records() for _, one in record.outcomes)
    assert before == ends(), "an item that has ended does not count"
    if before < ITEMS:  # the last one may end while it is being stopped
        assert (rig.job(job_id) or {})["phase"] == "stopped"
        rig.say("resume", job_id, "-d")

    account = ended_well(rig, job_id, plan, notes, machines=1)
    assert account.ends[ItemEnd.DONE] == ITEMS
    assert len(witness.tries_of(notes)) == ITEMS, "an item that had ended ran again"


def test_two_bags_at_once_do_not_meet(new_rig: Callable[..., Rig]) -> None:
    """Each of two bags on one installation has its own items, results and bill."""
    rig = new_rig()
    plans = [Plan(tuple(range(first, first + ITEMS)), first) for first in (1, 500)]
    rig.start_controller()
    jobs = []
    for number, plan in enumerate(plans):
        notes = rig.folder / f"notes-{number}"
        job = bag_job(plan, notes, f"two-{number}", machines=1, seconds="0.2", ranks=1)
        jobs.append((submit(rig, job), plan, notes))
    for job_id, _, _ in jobs:
        rig.ended(job_id)
    for job_id, plan, notes in jobs:
        ended_well(rig, job_id, plan, notes, machines=1)


def test_the_same_file_submitted_twice_at_once_is_two_bags(new_rig: Callable[..., Rig]) -> None:
    """Both end, and both have the whole table."""
    rig, plan = new_rig(), Plan(tuple(range(1, 7)), 3)
    rig.start_controller()
    job = bag_job(plan, rig.folder / "notes", "twice", machines=1, seconds="0.2", ranks=1)
    file = bag_storm.write(rig.folder / "work", job)
    both = [started(rig, file, "-d", "--json") for _ in range(2)]
    printed = [process.communicate(timeout=90)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    ids = {json.loads(text.splitlines()[-1])["job_id"] for text in printed}
    tables = []
    for job_id in sorted(ids):
        assert rig.ended(job_id)["phase"] == "done"
        tables.append([json.loads(line) for line in rig.say("results", job_id, "--json").splitlines()])

    assert len(ids) == 2
    expected = [(plan.value_of(item),) * 2 for item in range(6)]
    assert [[(row["printed"], row["written"]) for row in table] for table in tables] == [expected] * 2


def test_ctrl_c_of_the_follower_leaves_the_bag_alone(new_rig: Callable[..., Rig]) -> None:
    """`windfall run` ends, and the bag runs to its end."""
    rig, plan = new_rig(), Plan(tuple(range(1, ITEMS + 1)), 5)
    notes = rig.folder / "notes"
    rig.start_controller()
    job = bag_job(plan, notes, "interrupted", machines=1, seconds="0.4", ranks=1)
    follower = started(rig, bag_storm.write(rig.folder / "work", job))
    rig.until(notes.exists, "an item starts")
    os.killpg(follower.pid, signal.SIGINT)
    printed, _ = follower.communicate(timeout=30)
    (job_id,) = [path.name for path in (rig.state / "runs").glob("interrupted-*")]

    assert "Traceback" not in printed
    assert "interrupted" in printed
    ended_well(rig, job_id, plan, notes, machines=1)


def test_a_bag_runs_on_the_machines_that_there_are(new_rig: Callable[..., Rig]) -> None:
    """With one machine in the market, a bag that asks for two is done by one, and the other costs nothing."""
    rig, plan = new_rig(market={"capacity": 1, "zones": ["zone-a"], "prices": {}}), Plan(tuple(range(1, 7)), 6)
    notes = rig.folder / "notes"
    rig.start_controller()
    job_id = submit(rig, bag_job(plan, notes, "few", machines=2, seconds="0.2", ranks=1))

    ended_well(rig, job_id, plan, notes, machines=1)
    assert len([stay for stay in rig.stays(job_id) if stay.started is not None]) == 1


def test_an_item_longer_than_its_machines_notice_runs_again(new_rig: Callable[..., Rig]) -> None:
    """It is given back before the machine ends, its result counts once, and what is short uses the rest of the notice."""
    rig, plan = new_rig(), Plan((1, 2), 7)
    notes = rig.folder / "notes"
    rig.start_controller()
    job_id = submit(rig, bag_job(plan, notes, "long", machines=1, seconds="8", ranks=1))
    rig.until(lambda: notes.exists() and "start" in notes.read_text(), "an item runs")
    (stay,) = rig.stays(job_id)
    rig.take(stay.machine_id, 4.0)

    account = ended_well(rig, job_id, plan, notes, machines=1)
    assert account.ends[ItemEnd.LOST] == 0
    assert account.ends[ItemEnd.RETURNED] >= 1
    assert [one.ended is None for one in witness.tries_of(notes)] == [True, False, False]
