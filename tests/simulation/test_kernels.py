"""The kernels against closed forms, and what their callers may rely on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from windfall.errors import Infeasible, Misuse
from windfall.models import expected_runtime
from windfall.models.exact import makespan
from windfall.models.exact.finish_time import FixedIntervalRun, finish, mean_s
from windfall.models.exact.makespan import tabulate
from windfall.policies.checkpointing import rules
from windfall.simulation import engine, kernel_trial, kernels
from windfall.simulation.scenario import (
    AvailabilityWindows,
    DurationRange,
    LifetimeQuantiles,
    MemorylessLifetimes,
    RecordedLifetimes,
    Scenario,
    WorkerEstimates,
)
from windfall.simulation.simulated_policies import UserPolicy, load, scheduled
from windfall.structs import replace

TRIALS = 20_000
FAMILY = 0.01
NEVER_LOST = MemorylessLifetimes((math.inf,))


def job(**changes) -> Scenario:
    """An hour in steps of 1 s, a save of 2 s each 100 steps, machines that live for half an hour and come in 60 s."""
    plain = Scenario(
        steps=3600,
        step_s=DurationRange.of(1.0),
        stall_s=DurationRange.of(2.0),
        upload_s=DurationRange.of(0.0),
        allocate_s=DurationRange.of(60.0),
        prepare_s=DurationRange.of(0.0),
        lifetimes=MemorylessLifetimes((1800.0,)),
        notice_s=0.0,
        announced_share=0.0,
        policy="every:100steps",
        estimates=WorkerEstimates(1800.0, 1.0, 60.0),
    )
    return replace(plain, **changes)


def closed_forms():
    """(name, simulated, expected mean): cases in which the closed form's assumptions hold."""
    for interval, stall_s, mttp_s in ((100, 2.0, 1800.0), (40, 5.0, 900.0), (600, 30.0, 3000.0)):
        one = job(
            policy=f"every:{interval}steps", stall_s=DurationRange.of(stall_s), lifetimes=MemorylessLifetimes((mttp_s,))
        )
        fixed = FixedIntervalRun(3600.0, float(interval), stall_s, mttp_s, restart_s=60.0, start_s=60.0)
        yield f"finish {interval}", one, mean_s(fixed)
        hazard, saving = expected_runtime.Hazard(mttp_s), expected_runtime.Saving(float(interval), stall_s, 0.0, 1.0)
        yield (
            f"runtime {interval}",
            one,
            expected_runtime.expect(3600.0, hazard, saving, expected_runtime.Restart(60.0, 0.0)).wall_s,
        )
    spread = job(allocate_s=DurationRange(30.0, 90.0), prepare_s=DurationRange.of(0.0))
    yield "restart drawn", spread, mean_s(FixedIntervalRun(3600.0, 100.0, 2.0, 1800.0, 30.0, 90.0, start_s=60.0))
    yield "never saved", job(policy="never", steps=1800), 60.0 + expected_runtime.unsaved_s(1800.0, 1800.0, 60.0)
    yield (
        "one of three",
        job(machines=3, lifetimes=MemorylessLifetimes((5400.0,)), allocate_s=DurationRange.of(0.0)),
        mean_s(FixedIntervalRun(3600.0, 100.0, 2.0, 1800.0)),
    )
    yield "durable later", job(upload_s=DurationRange.of(50.0)), _by_schedule(50.0, 0.0, 100)
    yield (
        "prepared",
        job(upload_s=DurationRange.of(20.0), prepare_s=DurationRange.of(40.0)),
        _by_schedule(20.0, 40.0, 100),
    )


def _by_schedule(upload_s: float, prepare_s: float, interval: int) -> float:
    lifetimes = tabulate(lambda age_s: -age_s / 1800.0, until_s=400_000.0, cell_s=100.0)
    world = makespan.MakespanWorld(lifetimes, 2.0, 2.0 + upload_s, allocate_s=60.0, prepare_s=prepare_s)
    plan = makespan.schedule_of(3600, 1.0, prepare_s, lambda units: makespan.every(units, interval))
    return makespan.expect(world, plan).from_nothing_s


def test_means_are_those_of_the_closed_forms():
    """Family-wise 1 % (Bonferroni), seed fixed: means of simulated finish times are the exact expectations."""
    cases = list(closed_forms())
    limit = float(stats.norm.isf(FAMILY / 2.0 / len(cases)))
    for name, one, expected in cases:
        times = kernels.simulate(one, trials=TRIALS, seed=11).finish_s
        z = (times.mean() - expected) / (times.std(ddof=1) / math.sqrt(TRIALS))
        assert abs(z) < limit, (name, times.mean(), expected, z)


def test_the_whole_distribution_is_the_exact_one():
    """Kolmogorov and Smirnov find no difference to the distribution by Fourier transform at 1 %."""
    times = np.sort(kernels.simulate(job(), trials=TRIALS, seed=12).finish_s)
    exact = finish(FixedIntervalRun(3600.0, 100.0, 2.0, 1800.0, restart_s=60.0, start_s=60.0))
    probes = exact.least + np.linspace(1.0, 6000.0, 200)
    below = np.array([exact.below(float(probe)) for probe in probes])
    assert np.abs(below - np.searchsorted(times, probes, side="right") / TRIALS).max() < 1.63 / math.sqrt(TRIALS)
    assert np.mean(times <= exact.least + 1e-6) == pytest.approx(exact.atom, abs=0.01)


def test_parts_of_the_time_add_up():
    """Work, redo, save, allocate and prepare are all of the wall time, in each trial."""
    one = job(
        prepare_s=DurationRange(5.0, 90.0),
        upload_s=DurationRange(1.0, 200.0),
        notice_s=30.0,
        announced_share=0.5,
        machines=2,
    )
    trials = kernels.simulate(one, trials=2000, seed=1)
    parts = trials.redo_s + trials.save_s + trials.allocate_s + trials.prepare_s + 3600.0
    assert np.allclose(parts, trials.finish_s, rtol=1e-9)
    assert (trials.redo_s > -1e-6).all()


def test_results_do_not_depend_on_cores_or_pieces():
    """The n-th trial of a seed is the same on one core, on four, and asked for alone."""
    one, four = (kernels.simulate(job(), trials=1001, seed=5, cores=cores).finish_s for cores in (1, 4))
    assert (one == four).all()
    assert kernels.simulate(job(), trials=1, seed=5, first=700).finish_s[0] == one[700]
    assert kernels.decisions(job(), seed=5, trial=700).finish_s == pytest.approx(one[700], rel=1e-12)


def test_progress_rises_to_the_end():
    """The progress callback gets the finished and all trials, at the end all of them."""
    calls = []
    kernels.simulate(job(), trials=1000, progress=lambda done, all_of_them: calls.append((done, all_of_them)))
    assert calls == sorted(calls)
    assert calls[-1] == (1000, 1000)


def test_a_quiet_world_is_plain_arithmetic():
    """Without losses: allocation, preparation, the work, and a save after each interval but the last."""
    one = kernels.decisions(job(lifetimes=NEVER_LOST, prepare_s=DurationRange.of(7.0)), seed=0, trial=0)
    assert one.finish_s == 60.0 + 7.0 + 3600.0 + 35 * 2.0
    assert one.billed_s == one.finish_s - 60.0
    assert [save.step for save in one.saves] == list(range(100, 3600, 100))


def test_a_loss_goes_back_to_the_newest_safe_point():
    """Lost after 250 s with saves after 100 and 200 steps: 46 s are made again, and one machine is taken."""
    one = kernels.decisions(job(lifetimes=RecordedLifetimes(((250.0,),))), seed=0, trial=0)
    assert one.redo_s == pytest.approx(250.0 - 200.0 - 2 * 2.0)
    assert one.allocate_s == 120.0
    assert one.preemptions == 1


def test_a_notice_that_suffices_saves_the_step_under_way():
    """Announced 30 s ahead, a step of 1 s and a save of 5 s: only the wait for the next machine is lost."""
    lifetimes = RecordedLifetimes(((280.5,),))
    one = kernels.decisions(
        job(policy="never", lifetimes=lifetimes, upload_s=DurationRange.of(3.0), notice_s=30.0, announced_share=1.0),
        seed=0,
        trial=0,
    )
    assert [(save.step, save.kind.value, save.committed) for save in one.saves] == [(251, "emergency", True)]
    assert one.redo_s == pytest.approx(0.0, abs=1e-9)
    assert one.save_s == pytest.approx(5.0)


def test_a_trace_bounds_lives_and_starts():
    """A machine starts with the window and ends with it; the trace begins again after its end."""
    one = kernels.decisions(
        job(steps=150, policy="never", lifetimes=AvailabilityWindows(((100.0, 200.0), (300.0, 900.0)), 1000.0, 0.0)),
        seed=0,
        trial=0,
    )
    assert one.preemptions == 1
    assert one.finish_s == 300.0 + 150.0
    assert one.allocate_s == 200.0


def test_unknown_costs_are_learnt_early():
    """Where nothing is known of saves, the first one comes after 20 steps."""
    quiet = job(
        lifetimes=NEVER_LOST, policy="adaptive", estimates=WorkerEstimates(1800.0, 1.0, 60.0, costs_known=False)
    )
    assert kernels.decisions(quiet, seed=0, trial=0).saves[0].step == 20
    known = replace(quiet, estimates=replace(quiet.estimates, costs_known=True))
    interval_s = rules.adaptive_interval_s(2.0, 1800.0, 60.0, 2.0)
    assert kernels.decisions(known, seed=0, trial=0).saves[0].step == math.floor(interval_s)


def test_the_optimal_schedule_is_walked_and_best():
    """The first saves are those of the schedule, and on early deaths it beats the default rule."""
    ages = [-5000.0 * math.log1p(-u) ** 1 if u < 0.3 else 2000.0 + 60_000.0 * (u - 0.3) for u in np.linspace(0, 1, 101)]
    young = job(policy="optimal", lifetimes=LifetimeQuantiles(tuple(np.maximum.accumulate(ages).tolist())))
    one = kernels.decisions(replace(young, lifetimes=NEVER_LOST), seed=0, trial=0)
    assert tuple(save.step for save in one.saves) == scheduled(replace(young, lifetimes=NEVER_LOST)).steps(3600)
    best = kernels.simulate(young, trials=TRIALS, seed=2).finish_s
    usual = kernels.simulate(replace(young, policy="every:100steps"), trials=TRIALS, seed=2).finish_s
    assert best.mean() < usual.mean()


# ---------------------------------------------------------------------------------------------------- a user's policy


def test_a_users_policy_is_what_an_interval_is():
    """A function that always returns 100 s makes the saves of `every:100s`."""

    def hundred(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s):
        return 100.0

    ours = kernels.simulate(job(), trials=500, policy=UserPolicy("hundred", hundred)).finish_s
    theirs = kernels.simulate(job(policy="every:100s"), trials=500).finish_s
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_a_users_policy_is_asked_for_each_machine_with_its_age_and_work():
    """Half of the work left, each time: 1800 steps, and 900 after a loss beyond that save."""

    def half(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s):
        return work_left_s / 2.0 + 0.0 * age_s

    one = kernels.decisions(
        job(lifetimes=RecordedLifetimes(((2000.0,),))), seed=0, trial=0, policy=UserPolicy("half", half)
    )
    assert [save.step for save in one.saves] == [1800, 2700]


def test_a_policy_is_loaded_from_a_file(tmp_path):
    """`FILE.py:FUNCTION` is the user's function."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import math\n\ndef mine(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s):\n"
        "    return math.sqrt(2 * stall_s * mttp_s)\n"
    )
    policy = load(f"{file}:mine")
    assert kernels.simulate(job(), trials=10, policy=policy).finish_s.shape == (10,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def other(a, b, c, d, e, f): return 1.0", "no function 'mine'"),
        ("def mine(a): return 1.0", "wrong arguments"),
        ("1 / 0", "does not run: ZeroDivisionError"),
        ("def mine(", "does not run: SyntaxError"),
        ("def mine(a, b, c, d, e, f): return 'often'", "cannot be compiled"),
        ("def mine(a, b, c, d, e, f): return open('x')", "cannot be compiled"),
        ("def mine(a, b, c, d, e, f): return -1.0 * a", "invalid interval"),
        ("def mine(a, b, c, d, e, f): return 0.0 / (a - a)", "invalid interval"),
    ],
)
def test_a_bad_policy_is_one_clear_sentence(tmp_path, text, says):
    """The error in a user's file is one sentence."""
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(Misuse, match=says) as error:
        kernels.simulate(job(), trials=10, policy=load(f"{file}:mine"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["mine", "missing.py:mine", "mine.txt:mine", "mine.py:"])
def test_what_names_no_policy_is_refused(text):
    """A policy is named by a file and a function that are there."""
    with pytest.raises(Misuse):
        load(text)


def test_a_job_that_cannot_finish_says_so():
    """Machines that die before their first save is safe: a sentence, not an endless loop."""
    with pytest.raises(Infeasible, match="does not finish"):
        kernels.simulate(job(lifetimes=LifetimeQuantiles((50.0, 90.0))), trials=1)


def test_kernels_of_other_sources_are_not_taken_for_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a release that changed a rule the user is told again that it compiles; before it, a cache on disk is enough."""
    kernels.simulate(job(), trials=1)
    kernel_trial.jumper.cache_clear()
    try:
        assert not kernels.compiles(job())
        kernel_trial.jumper.cache_clear()
        monkeypatch.setattr(kernel_trial, "digest", lambda: 1)
        assert kernels.compiles(job())
    finally:
        kernel_trial.jumper.cache_clear()


@pytest.mark.trial("E2")
@pytest.mark.parametrize("notice_s", [0.0, 30.0, 120.0])
def test_a_life_ends_when_it_ends_however_early_that_is_announced(notice_s):
    """A machine that lives for 100 s trains for 100 s, or not at all if its notice comes at its start."""
    lifetimes, slow = RecordedLifetimes(((100.0,),)), DurationRange.of(1000.0)
    one = job(steps=300, policy="never", lifetimes=lifetimes, upload_s=slow, notice_s=notice_s, announced_share=1.0)
    one = replace(one, successor_at_notice=False)
    for found in (kernels.decisions(one, seed=0, trial=0), engine.history(one, seed=0, trial=0, journal=False).trial):
        assert found.preemptions == 1
        assert found.finish_s == pytest.approx(60.0 + 100.0 + 60.0 + 300.0)
        assert found.redo_s == pytest.approx(100.0 if notice_s < 100.0 else 0.0)
        assert found.billed_s == pytest.approx(100.0 + 300.0)
