"""A job that any number of machines can work on: its speed, its pauses, and what the end of a machine costs."""

from __future__ import annotations

import math

import pytest

from windfall.fleet import Slot
from windfall.policies.acquisition.bidbrain import Application
from windfall.simulation.elastic_work import ElasticWork, Survival
from windfall.terms import Outcome

FREE = Application(eviction_s=0.0, change_s=0.0, loss_per_core=0.0)
WORKER = Slot("w", "worker")


def work(core_s: float, app: Application = FREE, survival: Survival | None = None) -> ElasticWork:
    return ElasticWork(core_s, app, survival or Survival(), "server")


def ends_s(job: ElasticWork) -> float:
    """Play to the end, and return when it was [s]."""
    end = job.next_s()
    job.play(end)
    assert job.progress is not None
    assert job.progress.outcome is Outcome.DONE
    return end


def test_two_machines_are_as_fast_as_their_cores() -> None:
    """Eight cores and four do 1,200 core-seconds in 100 s; a machine for the state does no work."""
    job = work(1200.0)
    job.start(0, Slot("s", "server"), 64.0, 0.0)
    assert math.isinf(job.next_s())
    job.start(1, WORKER, 8.0, 0.0)
    job.start(2, WORKER, 4.0, 0.0)
    assert ends_s(job) == pytest.approx(100.0)


def test_cores_lose_to_each_other() -> None:
    """Eleven cores at 1 % a core beyond the first do nine tenths of their work."""
    job = work(990.0, Application(0.0, 0.0, 0.01))
    job.start(0, WORKER, 11.0, 0.0)
    assert ends_s(job) == pytest.approx(100.0)


def test_a_change_stops_the_job_and_an_eviction_stops_it_longer() -> None:
    """10 s at the start, 30 s at the eviction; nothing is lost."""
    job = work(1000.0, Application(eviction_s=30.0, change_s=10.0, loss_per_core=0.0))
    job.start(0, WORKER, 10.0, 0.0)
    job.start(1, WORKER, 10.0, 0.0)
    job.end(1, 35.0, taken=True)
    assert job.done == pytest.approx(500.0)
    assert ends_s(job) == pytest.approx(35.0 + 30.0 + 50.0)
    assert (job.evictions, job.redone) == (1, 0.0)


def test_with_checkpoints_an_eviction_loses_what_is_not_saved() -> None:
    """Saved each 40 s of work; taken after 100 s: 20 s of work are done again, after a restart of 60 s."""
    job = work(2000.0, survival=Survival(checkpoint_s=40.0, restart_s=60.0))
    job.start(0, WORKER, 10.0, 0.0)
    job.start(1, WORKER, 10.0, 0.0)
    job.play(160.0)
    assert job.done == pytest.approx(2000.0)
    job = work(4000.0, survival=Survival(checkpoint_s=40.0, restart_s=60.0))
    job.start(0, WORKER, 10.0, 0.0)
    job.start(1, WORKER, 10.0, 0.0)
    job.play(100.0)
    job.end(0, 160.0, taken=True)
    job.end(1, 160.0, taken=True)
    assert (job.evictions, job.redone) == (1, pytest.approx(400.0))
    assert job.done == pytest.approx(1600.0)
    assert math.isinf(job.next_s())


def test_a_release_saves_first_and_loses_nothing() -> None:
    """With checkpoints a machine that is released costs the restart alone."""
    job = work(2000.0, survival=Survival(checkpoint_s=40.0, restart_s=60.0))
    job.start(0, WORKER, 10.0, 0.0)
    job.end(0, 90.0, taken=False)
    assert (job.done, job.redone, job.evictions) == (pytest.approx(300.0), 0.0, 0)


def test_checkpoints_slow_the_job() -> None:
    """By 17 % of its time."""
    job = work(1000.0, survival=Survival(slowdown=1.17))
    job.start(0, WORKER, 10.0, 0.0)
    assert ends_s(job) == pytest.approx(117.0)
