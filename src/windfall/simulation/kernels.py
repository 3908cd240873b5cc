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
from pathlib import Path
from typing import Any, Final

import numpy as np
from numba import cfunc, float64, njit
from numba.core.errors import NumbaError

from windfall.errors import Infeasible, Misuse
from windfall.simulation import kernel_trial as kernel
from windfall.simulation.kernel_world import numbers_of
from windfall.simulation.outcomes import Saved, Trial, Trials
from windfall.simulation.policies import ARGUMENTS, Injected, plan_of
from windfall.simulation.scenario import Scenario
from windfall.terms import SaveKind

Progress = Callable[[int, int], None]
"""Told how many trials of how many are done."""
CHUNKS: Final = 200
"""The trials are handed out in so many pieces ..."""
PIECE: Final = 500
"""... or in more, of so many trials: who is asked to stop ends its piece first."""
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
    ask = _asks(policy)
    w, tables = numbers_of(scenario, plan_of(scenario, policy))
    out, log = np.empty((trials, kernel.OUTCOMES)), np.empty((0, 4), np.int64)

    def run(begin: int, end: int) -> int:
        _check(kernel.compiled()(w, tables, ask, (seed, first + begin), (out[begin:end], log))[0], policy)
        return end - begin

    _in_chunks(run, trials, cores or len(os.sched_getaffinity(0)), progress)
    return Trials(*np.ascontiguousarray(out.T))


def decisions(scenario: Scenario, *, seed: int, trial: int, policy: Injected | None = None) -> Trial:
    """Run one trial and tell every save; arguments and errors as in `simulate`."""
    ask = _asks(policy)
    w, tables = numbers_of(scenario, plan_of(scenario, policy))
    out, log = np.empty((1, kernel.OUTCOMES)), np.zeros((SAVES, 4), np.int64)
    while True:
        status, saves = kernel.compiled()(w, tables, ask, (seed, trial), (out, log))
        _check(status, policy)
        if saves <= len(log):
            break
        log = np.zeros((saves, 4), np.int64)
    kinds = (SaveKind.INSURANCE, SaveKind.EMERGENCY)
    made = tuple(
        Saved(int(machine), int(step), kinds[kind], bool(committed)) for machine, step, kind, committed in log[:saves]
    )
    finish_s, billed_s, redo_s, save_s, allocate_s, prepare_s, preemptions = (float(value) for value in out[0])
    return Trial(finish_s, billed_s, redo_s, save_s, allocate_s, prepare_s, int(preemptions), made)


def compiles() -> bool:
    """Return whether the next `simulate` compiles first, half a minute once for each installation."""
    made: Any = kernel.compiled()
    if made.signatures:
        return False
    kept = Path(made.stats.cache_path) if made.stats.cache_path else None
    return kept is None or not any(kept.glob(f"{Path(kernel.__file__).stem}.{made.py_func.__qualname__}-*.nbc"))


def _check(status: int, policy: Injected | None) -> None:
    if status == kernel.STUCK:
        raise Infeasible(
            "the job does not finish on these machines: it lost a million of them, so short are their lives"
        )
    if status == kernel.REFUSED:
        name = "the policy" if policy is None else f"policy {policy.name}"
        raise Misuse(f"{name} gave an interval that is none: return seconds above 0, infinity to never save")


# ---------------------------------------------------------------------------------------------------------- all cores


def _in_chunks(run: Callable[[int, int], int], trials: int, cores: int, progress: Progress | None) -> None:
    """Do a first piece alone, which compiles what is not compiled yet, and the others on all cores."""
    size = min(-(-trials // CHUNKS), PIECE)
    pieces = ((begin, min(begin + size, trials)) for begin in range(0, trials, size))
    done = run(*next(pieces))
    tell = progress if progress is not None else _nobody
    tell(done, trials)
    if cores == 1:
        for piece in pieces:
            done += run(*piece)
            tell(done, trials)
        return
    with ThreadPoolExecutor(cores) as pool:
        running = [pool.submit(run, *piece) for piece in pieces]
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
