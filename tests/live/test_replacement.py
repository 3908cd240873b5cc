"""How a machine that is taken is replaced, by the market's own books."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live import sleeping
from tests.live.moments import coming, first_steps, seen_gone
from tests.live.rig import Rig

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]
SLACK_S = 1.5
"""How late a controller of this host hears, decides, and the market starts a machine, at most [s]."""
ENDLESS = {"name": "endless", "envs": {"STEPS": "1000000", "STEP_S": "0.05"}, "checkpoint": {"insure": "20 steps"}}


def replaced(rig: Rig, notice_s: float | None) -> str:
    """Train, take the machine, and wait until its successor trains; return the job."""
    rig.start_controller()
    job_id = rig.submit(ENDLESS, Path(sleeping.__file__))
    rig.until(lambda: rig.saved_step(job_id) > 0, "a step is saved", 90.0)
    rig.take(rig.stays(job_id)[0].machine_id, notice_s)
    rig.until(lambda: first_steps(rig, job_id) == 2, "its successor trains", 90.0)
    rig.until(lambda: rig.stays(job_id)[0].ended is not None, "the first is gone")
    return job_id


def test_the_successor_runs_before_the_old_machine_is_gone(new_rig: Callable[..., Rig]) -> None:
    """With a notice longer than allocation and boot it is up, and trains, before the old one's announced end."""
    rig = new_rig(allocation_s=0.5, notice_s=25.0)
    job_id = replaced(rig, 25.0)
    old, new = rig.stays(job_id)
    way = coming(rig, job_id, new, 1)

    assert old.ended is not None
    assert old.preemption_at is not None
    assert way.ready < old.ended, "it was ready while the old machine lived"
    assert way.started < old.ended
    assert way.first_step < old.preemption_at, "and the training went on before the old one would have been taken"
    assert old.told is not None
    assert new.ordered == pytest.approx(old.told, abs=SLACK_S), "it was ordered at the notice"


@pytest.mark.parametrize(("allocation_s", "notice_s"), [(5.0, 2.0), (3.0, None)])
def test_otherwise_the_gap_is_what_the_delay_leaves(
    allocation_s: float, notice_s: float | None, new_rig: Callable[..., Rig]
) -> None:
    """No machine lives for the allocation less the notice, and for nothing more than it takes to hear of it."""
    rig = new_rig(allocation_s=allocation_s, notice_s=notice_s or 0.0)
    job_id = replaced(rig, notice_s)
    old, new = rig.stays(job_id)
    assert old.ended is not None
    assert new.started is not None
    gap_s = new.started - old.ended

    assert new.started - new.ordered == pytest.approx(allocation_s, abs=SLACK_S)
    assert allocation_s - (notice_s or 0.0) <= gap_s <= allocation_s - (notice_s or 0.0) + SLACK_S
    if notice_s is None:
        assert seen_gone(rig, job_id, old.machine_id) - old.ended < SLACK_S
