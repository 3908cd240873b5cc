"""Whole installations under kill -9: same weights, same bill as the market's meter, nothing left behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.rig import Rig, storm
from tests.real import training_plain
from tests.storage.databases import Postgres

pytestmark = [pytest.mark.real, pytest.mark.timeout(420)]
SCRIPT = Path(training_plain.__file__)
KINDS = ("controller", "market", "keeper", "supervisor", "agent", "machine")
SHORT, LONG = 120, 240
STEP_S = 0.05


def job(name: str, steps: int) -> dict[str, object]:
    """A job whose weights depend on every step; it saves each second."""
    return {
        "name": name,
        "envs": {"STEPS": str(steps), "STEP_S": str(STEP_S), "STARTS": "starts.txt"},
        "work": {"steps": steps},
        "checkpoint": {"insure": "20 steps"},
    }


def check(rig: Rig, job_id: str, steps: int, told: dict[str, Any]) -> None:
    assert told["phase"] == "done", f"killed {rig.killed}: {told['message']}\n{rig.log()}"
    assert rig.result(told) == training_plain.undisturbed(steps), f"other weights; killed {rig.killed}"
    rig.check(job_id, told)


@pytest.mark.parametrize("kind", ["controller", "machine"])
def test_a_job_survives_the_death_of(kind: str, new_rig: Callable[..., Rig]) -> None:
    """Controller or machine killed amid the training: the weights of an undisturbed run, the meter's bill, nothing left."""
    rig, chance = new_rig(), random.Random(kind)
    rig.start_controller()
    job_id = rig.submit(job("short", SHORT), SCRIPT)
    rig.until(lambda: bool((rig.job(job_id) or {"details": {}})["details"].get("saved_step")), "a step is saved")
    storm(rig, job_id, [kind], chance, pause_s=(0.0, 0.5), server=None)
    told = rig.ended(job_id)

    assert rig.killed == [kind]
    assert len(rig.stays(job_id)) == (2 if kind == "machine" else 1)
    check(rig, job_id, SHORT, told)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_job_survives_kills_of_everything(seed: int, new_rig: Callable[..., Rig]) -> None:
    """Each kind of process killed at a drawn moment, some under preemptions with notice: same weights, same bill."""
    rig, chance = new_rig(), random.Random(f"live storm {seed}")
    rig.start_controller()
    inject = f"mttp=15s,seed={seed},notice=8s" if seed % 3 == 0 else None
    job_id = rig.submit(job(f"storm-{seed}", LONG), SCRIPT, inject)
    kinds = list(KINDS)
    chance.shuffle(kinds)
    storm(rig, job_id, kinds, chance, pause_s=(0.5, 4.0), server=None)
    told = rig.ended(job_id, 300.0)

    check(rig, job_id, LONG, told)


@pytest.mark.slow
def test_a_job_survives_the_death_of_its_controllers_database(new_rig: Callable[..., Rig], server: Postgres) -> None:
    """The PostgreSQL server killed again and again under a team's controller, which is killed too."""
    rig, chance = new_rig(database=server.make("live")), random.Random("live postgres")
    rig.start_controller()
    job_id = rig.submit(job("postgres", LONG), SCRIPT, "mttp=20s,seed=3,notice=8s")
    kinds = ["postgres", "controller", "postgres", "machine", "postgres"]
    storm(rig, job_id, kinds, chance, pause_s=(0.5, 4.0), server=server)
    told = rig.ended(job_id, 300.0)

    assert "postgres" in rig.killed
    check(rig, job_id, LONG, told)
