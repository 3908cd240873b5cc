"""Kernel and event engine are one world: the same saves, the same times, trial by trial."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulation import agreement
from windfall.simulation import kernels, sampling

QUICK, ALL, BATCH = 60, 10_000, 250


LAST_INSTANT = (343, 478)
"""Worlds in which a machine is wanted less than a microsecond before its window closes."""
LAST_MOMENT = (7191, 9329)
"""Worlds in which two machines are gone at one announced moment, and in which an upload ends with the machine."""


def disagreements(numbers: range | tuple[int, ...]) -> list[str]:
    found = []
    for number in numbers:
        apart = agreement.differences(number)
        if apart:
            found.append(f"python -m tests.simulation.agreement {number}\n  " + "\n  ".join(apart))
    return found


def test_kernel_and_engine_make_the_same_saves_at_the_same_times():
    """Decision by decision, in random worlds of all policies, kinds of lifetimes, notices and numbers of machines."""
    assert not disagreements(range(QUICK))


@pytest.mark.trial("E2")
def test_no_machine_is_had_in_the_last_instant_of_its_window():
    """The engine's wall clock cannot tell such a window from a closed one; the kernel would be billed a notice more."""
    assert sampling.window(np.array([(0.0, 10.0), (20.0, 30.0)]), 40.0, 10.0 - 1e-7) == (20.0, 30.0)
    assert sampling.window(np.array([(0.0, 10.0), (20.0, 30.0)]), 40.0, 10.0 - 1e-5) == (10.0 - 1e-5, 10.0)
    assert not disagreements(LAST_INSTANT)


def test_what_is_learned_at_the_last_moment_is_the_same():
    """Machines that are gone at one moment are one loss; a commit with which the run is let go is measured too late."""
    assert not disagreements(LAST_MOMENT)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("begin", range(0, ALL, BATCH))
def test_kernel_and_engine_agree_in_ten_thousand_worlds(begin):
    """The same in all of ten thousand, 250 at a time."""
    assert not disagreements(range(begin, begin + BATCH))


def test_the_worlds_are_worth_comparing():
    """Many of the random worlds lose machines and make saves, some of them emergency saves and lost ones."""
    trials = [agreement.bearable(number)[1] for number in range(QUICK)]
    assert sum(trial.preemptions > 0 for trial in trials) > 0.5 * QUICK
    assert sum(any(save.committed for save in trial.saves) for trial in trials) > 0.4 * QUICK
    assert sum(any(not save.committed for save in trial.saves) for trial in trials) > 0.1 * QUICK
    assert sum(any(save.kind.value == "emergency" for save in trial.saves) for trial in trials) > 0.05 * QUICK


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("begin", "end"), [(0, QUICK), pytest.param(QUICK, 1_000, marks=pytest.mark.slow)])
def test_jumping_over_lives_and_walking_through_them_come_to_the_same(begin, end):
    """A trial of many, which jumps where it can, has the times of the one that tells its saves, which never does."""
    for number in range(begin, end):
        one, walked = agreement.bearable(number)
        jumped = kernels.simulate(one.scenario, trials=1, seed=one.seed, first=one.trial, policy=one.policy)
        for name in ("finish_s", "billed_s", "redo_s", "save_s", "allocate_s", "prepare_s", "preemptions"):
            apart = abs(float(getattr(jumped, name)[0]) - getattr(walked, name))
            assert apart <= 1e-6 * max(walked.finish_s, 1.0), (number, name)
