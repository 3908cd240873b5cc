"""Monte Carlo in compiled loops, on all cores: the same world as the event engine's, trial by trial.

The kernels are a second, compiled implementation of the reducers' decisions; the agreement tests hold the two equal.  They
are compiled once and cached on disk, beside the package or, where that is not writable, in the user's cache (numba's
`NUMBA_CACHE_DIR` names another place).  A trial is a function of (seed, number) alone, so that the result does not depend
on the number of cores.
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
from windfall.policies.checkpointing import decision
from windfall.simulation import kernel_trial as kernel
from windfall.simulation.kernel_world import (
    JUMPING,
    OUTCOMES,
    OVER,
    REFUSED,
    STAGE,
    STUCK,
    WALKING,
    numbers_of,
    rows_of,
)
from windfall.simulation.outcomes import SimulatedSave, Trial, Trials
from windfall.simulation.sampling import pack
from windfall.simulation.scenario import Scenario
from windfall.simulation.simulated_policies import ARGUMENTS, UserPolicy, kernel_plan, named_rule
from windfall.terms import SaveKind

Progress = Callable[[int, int], None]
"""Called with the number of finished trials and of all trials."""
PIECES: Final = 200
"""The trials are split into this many pieces ..."""
PIECE: Final = 500
"""... or into more pieces, of this many trials, so that an interrupted simulation stops soon."""
PIECES_OF_CORE, PIECE_JUMPED = 8, 4096
"""For fast trials there are fewer pieces: this many per core, or more, of this many trials."""
SAVES: Final = 4096
_SIGNATURE: Final = float64(*(float64,) * len(ARGUMENTS))


def simulate(
    scenario: Scenario,
    *,
    trials: int,
    seed: int = 0,
    first: int = 0,
    policy: UserPolicy | None = None,
    progress: Progress | None = None,
    cores: int | None = None,
) -> Trials:
    """Run many trials.

    Args:
        scenario: what is simulated.
        trials: how many, at least 1.
        seed: of all chance, 0 or more.
        first: number of the first trial.
        policy: a user's own, in place of the scenario's; it is compiled first.
        progress: called from time to time.
        cores: how many to use; None: all that this process may use.

    Raises:
        Misuse: the policy cannot be compiled, or gives an invalid interval.
        Infeasible: the job needs a million machines.
    """
    if trials < 1 or seed < 0 or first < 0:
        raise Misuse(
            f"cannot simulate {trials} trials from number {first} with seed {seed}: give at least 1 trial, and no "
            "negative numbers"
        )
    policy = policy or named_rule(scenario)
    w, tables = numbers_of(scenario, kernel_plan(scenario, policy))
    known, lone, log = scenario.estimates.costs_known, _alone(scenario), np.empty((0, 4), np.int64)
    out = np.empty((OUTCOMES, trials))

    def run(start: int, end: int) -> int:
        number, rows = (seed, first + start), rows_of(end - start, known, JUMPING if lone else WALKING)
        while True:
            if lone:
                kernel.jumper(int(w["kind"]))(w, tables.values, policy and _compiled_policy(policy), number, rows)
            if (rows[:, STAGE] == OVER).all():
                break
            kernel.walker()(w, tables, _compiled_policy(policy), number, rows, log, lone)
            _check(rows[:, STAGE].max(), policy)
        out[:, start:end] = rows[:, :OUTCOMES].T
        return end - start

    cores = cores or len(os.sched_getaffinity(0))
    size = min(-(-trials // PIECES), PIECE)
    if _jumps(scenario):
        size = max(size, min(trials // (PIECES_OF_CORE * cores), PIECE_JUMPED))
    pieces = [(start, min(start + size, trials)) for start in range(0, trials, size)]
    _in_pieces(run, pieces, cores, progress)
    return Trials(*out)


def decisions(scenario: Scenario, *, seed: int, trial: int, policy: UserPolicy | None = None) -> Trial:
    """Run one trial and return it with all its saves; arguments and errors as in `simulate`."""
    policy = policy or named_rule(scenario)
    w, tables = numbers_of(scenario, kernel_plan(scenario, policy))
    log = np.zeros((SAVES, 4), np.int64)
    while True:
        rows = rows_of(1, scenario.estimates.costs_known, WALKING)
        saves = kernel.walker()(w, tables, _compiled_policy(policy), (seed, trial), rows, log, False)
        _check(rows[0, STAGE], policy)
        if saves <= len(log):
            break
        log = np.zeros((saves, 4), np.int64)
    kinds = (SaveKind.INSURANCE, SaveKind.EMERGENCY)
    made = tuple(
        SimulatedSave(int(machine), int(step), kinds[kind], bool(committed))
        for machine, step, kind, committed in log[:saves]
    )
    finish_s, billed_s, redo_s, save_s, allocate_s, prepare_s, preemptions = (
        float(value) for value in rows[0, :OUTCOMES]
    )
    return Trial(finish_s, billed_s, redo_s, save_s, allocate_s, prepare_s, int(preemptions), made)


def compiles(scenario: Scenario | None = None) -> bool:
    """Return whether the next `simulate` compiles first: some seconds, once per installation.

    Args:
        scenario: what will be simulated; None: one that needs every kernel.
    """
    if scenario is None or not _jumps(scenario):
        return not kernel.is_compiled(kernel.walker())
    return not kernel.is_compiled(kernel.jumper(pack(scenario.lifetimes).kind))


def _alone(scenario: Scenario) -> bool:
    """Return whether there is one machine at a time, and no notice."""
    return scenario.machines == 1 and (scenario.notice_s <= 0.0 or scenario.announced_share <= 0.0)


def _jumps(scenario: Scenario) -> bool:
    """Return whether machines are jumped over from the first one on, while no save overtakes another."""
    policy = decision.saving_policy(scenario.policy)
    costs_given = policy in (decision.EVERY, decision.NEVER) or scenario.estimates.costs_known
    return _alone(scenario) and costs_given and not policy.scheduled


def _check(stage: float, policy: UserPolicy | None) -> None:
    if stage == STUCK:
        raise Infeasible(
            "the job does not finish on these machines: it lost a million of them; save more often, or use machines that "
            "live longer"
        )
    if stage == REFUSED:
        name = "the policy" if policy is None else f"policy {policy.name}"
        raise Misuse(f"{name} gave an invalid interval: return seconds above 0, or infinity to never save")


# ---------------------------------------------------------------------------------------------------------- all cores


def _in_pieces(
    run: Callable[[int, int], int], pieces: list[tuple[int, int]], cores: int, progress: Progress | None
) -> None:
    """Run the first piece alone, which compiles what is not compiled yet, and the others on all cores."""
    first, *others = pieces
    trials, done = pieces[-1][1], run(*first)
    notify = progress if progress is not None else _ignore
    notify(done, trials)
    if cores == 1:
        for piece in others:
            done += run(*piece)
            notify(done, trials)
        return
    with ThreadPoolExecutor(cores) as pool:
        running = [pool.submit(run, *piece) for piece in others]
        try:
            for each in as_completed(running):
                done += each.result()
                notify(done, trials)
        finally:
            pool.shutdown(cancel_futures=True)


def _ignore(done: int, trials: int) -> None:
    del done, trials


# ----------------------------------------------------------------------------------------------------- a user's policy


@functools.cache
def _compiled_policy(policy: UserPolicy | None) -> Any:
    """Return a policy as a C function for the kernels.

    Raises:
        Misuse: numba cannot compile it.
    """
    if policy is None:
        return cfunc(_SIGNATURE, cache=True)(_unused)
    try:
        inner = njit(_SIGNATURE, error_model="numpy")(policy.interval_s)
    except NumbaError as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
        raise Misuse(
            f"policy {policy.name} cannot be compiled: use only numbers, `math` and `if`, and return a number "
            f"(numba: {reason})"
        ) from error

    def ask(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s):  # type: ignore[no-untyped-def]  # noqa: PLR0917
        return inner(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s)

    return cfunc(_SIGNATURE)(ask)


def _unused(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    return age_s + work_left_s + stall_s + durable_s + mttp_s + restart_s
