"""Whatever the scenario: time adds up, every second is billed once, and saves are what they claim to be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.engine_world import work_s
from windfall.errors import Infeasible
from windfall.simulation import engine, engine_fleet
from windfall.simulation.engine_fleet import OWNER
from windfall.simulation.outcomes import Trial
from windfall.simulation.scenario import (
    AvailabilityWindows,
    DurationRange,
    LifetimeModel,
    LifetimeQuantiles,
    MemorylessLifetimes,
    RecordedLifetimes,
    Scenario,
    WorkerEstimates,
)
from windfall.simulation.virtual_time import WALL_START
from windfall.simulation.world import World
from windfall.terms import WallTime

PRICE = 3600.0 * 1e3
"""USD per hour, so high that the meter's rounding to a millionth of a dollar is a nanosecond."""


def lengths(low_s: float, high_s: float) -> st.SearchStrategy[DurationRange]:
    """A range of lengths of time, or a constant."""
    return st.builds(
        lambda at, share: DurationRange(at, at * (1.0 + share)), st.floats(low_s, high_s), st.sampled_from([0.0, 0.3])
    )


def lifetimes() -> st.SearchStrategy[LifetimeModel]:
    """All four kinds."""
    some_s = st.floats(20.0, 600.0)
    several = st.lists(some_s, min_size=1, max_size=4)
    windows = st.lists(st.tuples(st.floats(1.0, 200.0), some_s), min_size=1, max_size=4)
    return st.one_of(
        several.map(lambda means: MemorylessLifetimes(tuple(means))),
        several.map(lambda ages: LifetimeQuantiles((0.0, *sorted(ages)))),
        st.lists(several, min_size=1, max_size=3).map(lambda rows: RecordedLifetimes(tuple(map(tuple, rows)))),
        windows.map(_windows),
    )


def _windows(gaps: list[tuple[float, float]]) -> AvailabilityWindows:
    at_s, up = 0.0, []
    for gap_s, long_s in gaps:
        up.append((at_s + gap_s, at_s + gap_s + long_s + 60.0))
        at_s = up[-1][1]
    return AvailabilityWindows(tuple(up), at_s + 10.0)


scenarios = st.builds(
    Scenario,
    steps=st.integers(1, 60),
    step_s=lengths(0.2, 5.0),
    stall_s=st.one_of(st.just(DurationRange.of(0.0)), lengths(0.01, 5.0)),
    upload_s=st.one_of(st.just(DurationRange.of(0.0)), lengths(0.01, 30.0)),
    allocate_s=lengths(0.0, 30.0),
    prepare_s=lengths(0.0, 30.0),
    lifetimes=lifetimes(),
    notice_s=st.sampled_from([0.0, 5.0, 30.0, 120.0]),
    announced_share=st.sampled_from([0.0, 0.5, 1.0]),
    policy=st.sampled_from(["adaptive", "thesis", "young-daly", "never", "every:1steps", "every:7steps", "every:20s"]),
    estimates=st.builds(
        WorkerEstimates, st.floats(20.0, 1000.0), st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 100.0), st.booleans()
    ),
    machines=st.integers(1, 4),
    price_usd_per_hour=st.just(PRICE),
    successor_at_notice=st.booleans(),
)


def _told(job: Scenario, number: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Trial, float] | None:
    """Return the outcome of a job, and its provider's meter reading [USD]; None if it would take for ever."""
    monkeypatch.setattr(engine_fleet, "MACHINES_WITHOUT_PROGRESS_MAX", 100)
    try:
        markets = engine.scenario_markets((job,))
        world = World(markets, (engine.scenario_job("job", job, markets, seed=11, trial=number, journal=False),))
        world.run()
    except Infeasible:
        return None
    meter = world.providers[job.provider].meter
    return engine.collected(world.fleets["job"]).trial, meter.total_usd(
        OWNER, WallTime(WALL_START + world.timeline.time)
    )


@settings(max_examples=60)
@given(job=scenarios, number=st.integers(0, 3))
def test_wall_time_is_divided_without_rest_and_every_second_is_billed(job: Scenario, number: int) -> None:
    """Work, redo, save, allocate, prepare add up to the finish; the bill is the meter's."""
    with pytest.MonkeyPatch.context() as patch:
        told = _told(job, number, patch)
    if told is None:
        return
    trial, metered_usd = told
    parts = (trial.redo_s, trial.save_s, trial.allocate_s, trial.prepare_s)
    assert all(part >= -1e-9 for part in parts)
    assert work_s(job, 11, number) + sum(parts) == pytest.approx(trial.finish_s, rel=1e-9, abs=1e-9)
    assert metered_usd == pytest.approx(trial.billed_s * PRICE / 3600.0, rel=1e-6, abs=1.0)
    _check_saves(job, trial)


def _check_saves(job: Scenario, trial: Trial) -> None:
    """A committed step is never saved again, machines follow one another, and standing still is paid for."""
    stored, machine = 0, 0
    for save in trial.saves:
        assert stored < save.step < job.steps
        assert save.machine >= machine
        machine = save.machine
        stored = save.step if save.committed else stored
    assert trial.save_s >= len(trial.saves) * job.stall_s.low_s - 1e-9
    assert (
        trial.billed_s >= job.machines * (trial.finish_s - trial.allocate_s) - trial.finish_s * 1e-9
        or trial.preemptions
    )


@settings(max_examples=15)
@given(job=scenarios, number=st.integers(0, 3))
def test_two_engines_in_turn_are_one(job: Scenario, number: int) -> None:
    """The same seed and trial give the same sums and saves, whatever ran in between."""
    with pytest.MonkeyPatch.context() as patch:
        first = _told(job, number, patch)
        _told(job, number + 1, patch)
        assert _told(job, number, patch) == first
