"""Monte Carlo in compiled loops: the same world as the event engine's, trial by trial, on all cores.

The kernels are compiled once and kept on disk, beside the package or, where that cannot be written, in the user's cache
(numba's `NUMBA_CACHE_DIR` names another place).  A trial is a function of (seed, number) alone, so that what comes out
does not depend on how many cores there are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Final

import numpy as np
from numba import cfunc, float64, njit
from numba.core.errors import NumbaError

from windfall.errors import Infeasible, Misuse
from windfall.simulation import kernel_trial as kernel
from windfall.simulation.kernel_rows import JUMPING, OUTCOMES, OVER, REFUSED, STAGE, STUCK, WALKING, rows_of
from windfall.simulation.kernel_world import numbers_of
from windfall.simulation.outcomes import Saved, Trial, Trials
from windfall.simulation.policies import ARGUMENTS, Injected, plan_of
from windfall.simulation.sampling import pack
from windfall.simulation.scenario import Scenario
from windfall.terms import SaveKind

Progress = Callable[[int, int], None]
"""Told how many trials of how many are done."""
PIECES: Final = 200
"""The trials are handed out in so many pieces ..."""
PIECE: Final = 500
"""... or in more, of so many trials: who is asked to stop ends its piece first."""
PIECES_OF_CORE, PIECE_JUMPED = 8, 4096
"""Where trials take no time there are fewer: so many for each core, or more, of so many trials."""
SAVES: Final = 4096
_SIGNATURE: Final = float64(*(float64,) * len(ARGUMENTS))


def simulate(
    scenario: Scenario,
    *,
    trials: int,
    seed: int = 0,
    first: int = 0,
    policy: Injected | None = None,
    progress: Progress | None = None,
    cores: int | None = None,
) -> Trials:
    """Run many trials.

    Args:
        scenario: what is simulated.
        trials: how many, at least 1.
        seed: of all chance, 0 or more.
        first: number of the first trial.
        policy: a user's own instead of the scenario's; it is compiled first.
        progress: told now and then how far it is.
        cores: on how many; None: on all that this process may use.

    Raises:
        Misuse: the policy cannot be compiled, or gives an interval that is none.
        Infeasible: the job needs a million machines.
    """
    if trials < 1 or seed < 0 or first < 0:
        raise Misuse(f"{trials} trials from {first} on with seed {seed}: at least one trial, and no negative number")
    w, tables = numbers_of(scenario, plan_of(scenario, policy))
    known, lone, log = scenario.believed.costs_known, _alone(scenario), np.empty((0, 4), np.int64)
    out = np.empty((OUTCOMES, trials))

    def run(begin: int, end: int) -> int:
        number, rows = (seed, first + begin), rows_of(end - begin, known, JUMPING if lone else WALKING)
        while True:
            if lone:
                kernel.jumper(int(w["kind"]))(w, tables.values, policy and _asks(policy), number, rows)
            if (rows[:, STAGE] == OVER).all():
                break
            kernel.walker()(w, tables, _asks(policy), number, rows, log, lone)
            _check(rows[:, STAGE].max(), policy)
        out[:, begin:end] = rows[:, :OUTCOMES].T
        return end - begin

    cores = cores or len(os.sched_getaffinity(0))
    size = min(-(-trials // PIECES), PIECE)
    if _jumps(scenario):
        size = max(size, min(trials // (PIECES_OF_CORE * cores), PIECE_JUMPED))
    pieces = [(begin, min(begin + size, trials)) for begin in range(0, trials, size)]
    _in_pieces(run, pieces, cores, progress)
    return Trials(*out)


def decisions(scenario: Scenario, *, seed: int, trial: int, policy: Injected | None = None) -> Trial:
    """Run one trial and tell every save; arguments and errors as in `simulate`."""
    w, tables = numbers_of(scenario, plan_of(scenario, policy))
    log = np.zeros((SAVES, 4), np.int64)
    while True:
        rows = rows_of(1, scenario.believed.costs_known, WALKING)
        saves = kernel.walker()(w, tables, _asks(policy), (seed, trial), rows, log, False)
        _check(rows[0, STAGE], policy)
        if saves <= len(log):
            break
        log = np.zeros((saves, 4), np.int64)
    kinds = (SaveKind.INSURANCE, SaveKind.EMERGENCY)
    made = tuple(
        Saved(int(machine), int(step), kinds[kind], bool(committed)) for machine, step, kind, committed in log[:saves]
    )
    finish_s, billed_s, redo_s, save_s, allocate_s, prepare_s, preemptions = (
        float(value) for value in rows[0, :OUTCOMES]
    )
    return Trial(finish_s, billed_s, redo_s, save_s, allocate_s, prepare_s, int(preemptions), made)


def compiles(scenario: Scenario | None = None) -> bool:
    """Return whether the next `simulate` compiles first, some seconds once for each installation.

    Args:
        scenario: what will be simulated; None: one that needs all there is.
    """
    if scenario is None or not _jumps(scenario):
        return not kernel.kept(kernel.walker())
    return not kernel.kept(kernel.jumper(pack(scenario.lives).kind))


def _alone(scenario: Scenario) -> bool:
    """Whether there is one machine at a time, and no notice."""
    return scenario.machines == 1 and (scenario.notice_s <= 0.0 or scenario.announced_share <= 0.0)


def _jumps(scenario: Scenario) -> bool:
    """Whether machines are jumped over from the first one on, as long as no save overtakes another."""
    taught = scenario.policy.startswith("every:") or scenario.policy == "never" or scenario.believed.costs_known
    return _alone(scenario) and taught and scenario.policy != "optimal"


def _check(stage: float, policy: Injected | None) -> None:
    if stage == STUCK:
        raise Infeasible(
            "the job does not finish on these machines: it lost a million of them, so short are their lives"
        )
    if stage == REFUSED:
        name = "the policy" if policy is None else f"policy {policy.name}"
        raise Misuse(f"{name} gave an interval that is none: return seconds above 0, infinity to never save")


# ---------------------------------------------------------------------------------------------------------- all cores


def _in_pieces(
    run: Callable[[int, int], int], pieces: list[tuple[int, int]], cores: int, progress: Progress | None
) -> None:
    """Do a first piece alone, which compiles what is not compiled yet, and the others on all cores."""
    first, *others = pieces
    trials, done = pieces[-1][1], run(*first)
    tell = progress if progress is not None else _nobody
    tell(done, trials)
    if cores == 1:
        for piece in others:
            done += run(*piece)
            tell(done, trials)
        return
    with ThreadPoolExecutor(cores) as pool:
        running = [pool.submit(run, *piece) for piece in others]
        try:
            for each in as_completed(running):
                done += each.result()
                tell(done, trials)
        finally:
            pool.shutdown(cancel_futures=True)


def _nobody(done: int, trials: int) -> None:
    del done, trials


# ----------------------------------------------------------------------------------------------------- a user's policy


@functools.cache
def _asks(policy: Injected | None) -> Any:
    """Return a policy as the kernels call it.

    Raises:
        Misuse: numba cannot compile it.
    """
    if policy is None:
        return cfunc(_SIGNATURE, cache=True)(_silent)
    try:
        inner = njit(_SIGNATURE, error_model="numpy")(policy.interval_s)
    except NumbaError as error:
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
        raise Misuse(
            f"policy {policy.name} cannot be compiled: use numbers, `math` and `if` alone, and return a number "
            f"(the compiler says: {why})"
        ) from error

    def ask(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s):  # type: ignore[no-untyped-def]  # noqa: PLR0917
        return inner(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s)

    return cfunc(_SIGNATURE)(ask)


def _silent(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    return age_s + work_left_s + stall_s + durable_s + mttp_s + restart_s
