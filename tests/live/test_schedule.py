"""Saves by schedule with everything real: recorded lives, a controller that fits them, a machine that follows its table."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live import sleeping
from tests.live.rig import Rig, replay
from windfall.core.replay import explain
from windfall.core.replay import replay as differences
from windfall.events import ScheduleAssigned
from windfall.fleet import Lifetime, ScheduleComputed
from windfall.linux.clock import SystemClock
from windfall.storage.database import open_database
from windfall.terms import WallTime

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]
JOB = {"name": "planned", "envs": {"STEPS": "100000", "STEP_S": "0.02"}, "checkpoint": {"insure": "optimal"}}


def record(rig: Rig, count: int) -> None:
    """Lives of earlier machines, as an installation of some weeks has them: lost within an hour in the mean."""
    chance, now = random.Random(4), time.time()
    lives = []
    for number in range(count):
        started = now - 1e6 + 600.0 * number
        ended = started + 1.0 + chance.expovariate(1.0 / 3_600.0)
        lives.append(
            Lifetime(f"old-{number}", "local", "small", "zone-a", WallTime(started), WallTime(ended), True, False)
        )
    with contextlib.closing(open_database(f"sqlite:///{rig.state / 'controller.db'}", SystemClock())) as database:
        database.put_lifetimes(database.acquire("the weeks before"), lives)


def decisions(rig: Rig, job_id: str) -> str:
    """What the machine decided, in words; nothing before its first save."""
    return "\n".join(explain(rig.run_rows(job_id))) if rig.saved_step(job_id) else ""


def test_a_machine_saves_by_a_schedule_of_its_installations_lives(new_rig: Callable[..., Rig]) -> None:
    """From the first measured save to saves by the table; controller and machine say what it rests on, and replay agrees."""
    rig = new_rig()
    record(rig, 60)
    rig.start_controller()
    job_id = rig.submit(JOB, Path(sleeping.__file__))
    rig.until(lambda: "by the schedule: based on 60 losses" in decisions(rig, job_id), "a save by the schedule", 150.0)

    made, *later = [fact for row in rig.rows(job_id) for fact in row.facts if isinstance(fact, ScheduleComputed)]
    given = [fact for row in rig.run_rows(job_id) for fact in row.facts if isinstance(fact, ScheduleAssigned)]
    assert made.trusted
    assert all(one.reason for one in later), "none is made anew without a reason"
    assert len(later) < 5, [one.reason for one in later]
    assert given[0] == made.schedule
    assert made.schedule.table.saves_at_s
    assert "saves; based on 60 losses" in rig.say("explain", job_id)
    replay(rig.rows(job_id))
    assert differences(rig.run_rows(job_id)) == []


def test_too_few_lives_leave_the_default_rule_and_say_so(new_rig: Callable[..., Rig]) -> None:
    """The user reads it in the controller's decisions and in the machine's."""
    rig = new_rig()
    record(rig, 7)
    rig.start_controller()
    job_id = rig.submit(JOB, Path(sleeping.__file__))
    words = "because it is based on 7 losses, fewer than 20: the default rule decides"
    rig.until(lambda: words in decisions(rig, job_id), "the reason", 120.0)
    assert f"no schedule for {rig.stays(job_id)[0].machine_id}: the fit of lifetimes is not used, {words}" in rig.say(
        "explain", job_id
    )
