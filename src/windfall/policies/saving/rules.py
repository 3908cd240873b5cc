"""When to save: the scalar rules, each one equation.

Only `math` is imported, all arguments are plain numbers and positional, so that the same lines run in the agent, in a
training script, in the simulation and in a compiled kernel.  Symbols: delta = time that a save holds the training up
[s], beta = time to bring it to the store [s], M = mean time to a loss [s], R = time from a loss to training again [s].
"""

from __future__ import annotations

import math


def young_interval_s(save_s: float, mttp_s: float) -> float:
    """Return Young's interval between saves: tau = sqrt(2 delta M).

    Args:
        save_s: delta, how long a save holds the training up [s], > 0.
        mttp_s: M, mean time to a loss [s], > 0.

    Returns:
        Compute time between two saves [s].

    Validity:
        First order in delta / M: within 5 % of the optimum for delta < M / 20; losses memoryless.

    Example:
        GPT-117M of the thesis, delta 2.55 s, M 3 h: 234.6 s, 51.0 steps of 4.6 s.

    Source:
        J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
    """
    return math.sqrt(2.0 * save_s * mttp_s)


def daly_interval_s(save_s: float, mttp_s: float, restart_s: float) -> float:
    """Return Daly's first-order interval: tau = sqrt(2 delta (M + R)) - delta.

    Args:
        save_s: delta [s], > 0.
        mttp_s: M [s], > 0.
        restart_s: R [s], >= 0.

    Returns:
        Compute time between the end of one save and the begin of the next [s]; never below 0.

    Validity:
        delta < (M + R) / 2, beyond which it would be negative; losses memoryless.

    Example:
        delta 2.55 s, M 10 800 s, R 136.5 s: 233.6 s.

    Source:
        J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006,
        first-order model; quoted by the thesis, section 4.1.
    """
    return max(math.sqrt(2.0 * save_s * (mttp_s + restart_s)) - save_s, 0.0)


def daly_higher_order_interval_s(save_s: float, mttp_s: float) -> float:
    """Return Daly's higher-order interval: tau = sqrt(2 delta M) (1 + x / 3 + x^2 / 9) - delta, x = sqrt(delta / 2M).

    Args:
        save_s: delta [s], > 0.
        mttp_s: M [s], > 0.

    Returns:
        Compute time between the end of one save and the begin of the next [s]; M where delta >= 2 M.

    Validity:
        Any delta; the restart time has no influence in this order.

    Example:
        delta 2.55 s, M 10 800 s: 233.0 s.

    Source:
        J. T. Daly, FGCS 22(3), 2006, equation 37.
    """
    if save_s >= 2.0 * mttp_s:
        return mttp_s
    x = math.sqrt(save_s / (2.0 * mttp_s))
    return math.sqrt(2.0 * save_s * mttp_s) * (1.0 + x / 3.0 + x * x / 9.0) - save_s


def thesis_interval_s(save_s: float, mttp_s: float, restart_s: float) -> float:
    """Return the thesis' interval: tau_opt = sqrt(2 delta (MTTP + R)).

    Args:
        save_s: delta, time to serialise the state and write it to the local disk [s], > 0.
        mttp_s: mean time to preemption [s], > 0.
        restart_s: R, time to get a machine again [s], >= 0.

    Returns:
        Time between two saves [s].

    Validity:
        Memoryless losses, delta much smaller than MTTP.  The thesis also prints sqrt(2 delta) (MTTP + R), which gives
        5447 steps instead of the published 51: a misprint.

    Example:
        delta 2.5495 s, MTTP 10 800 s, R 136.5 s: 236.1 s, which is 51 steps of 4.6 s (Table 6.2).

    Source:
        Thesis, equation 4.5.
    """
    return math.sqrt(2.0 * save_s * (mttp_s + restart_s))


def thesis_insurance_step(step: int, interval_s: float, step_s: float) -> int:
    """Return the next insurance step: i_ins = i + floor(tau_opt / T_step), at least the next step.

    Args:
        step: i, the present step.
        interval_s: tau_opt [s], >= 0.
        step_s: T_step, the running average of the step time [s], > 0.

    Returns:
        The step after which to save.

    Example:
        From step 0 with tau_opt 236.1 s: 51 for steps of 4.60001 s; with 653.1 s: 33 for steps of 19.75029 s.

    Source:
        Thesis, Algorithm 1, `calcInsuranceSaveStep`; 51 and 33 steps in section 6.3.2.
    """
    return step + max(math.floor(interval_s / step_s), 1)


def thesis_emergency_fits(step_s: float, save_s: float, backup_s: float, grace_s: float) -> bool:
    """Return whether an emergency save fits the notice: T_step + delta + beta < T_grace.

    Args:
        step_s: T_step, the step that has to be finished first [s].
        save_s: delta [s].
        backup_s: beta, the upload [s].
        grace_s: T_grace, from the notice to the machine's end [s].

    Example:
        GPT-117M: 4.6 + 2.55 + 13.0 = 20.15 < 30: fits.  GPT-1.3B: 19.75 + 19.5 + 69.25 = 108.5: does not.

    Source:
        Thesis, Algorithm 1, line (4), and section 5.2.
    """
    return step_s + save_s + backup_s < grace_s


def emergency_fits(
    remaining_s: float, rest_of_phase_s: float, snapshot_s: float, upload_s: float, commit_s: float
) -> bool:
    """Return whether an emergency save started now is committed in time: rest + snapshot + upload + commit < remaining.

    Differs from the thesis in that it counts what is left of the phase that cannot be interrupted (not always a whole
    step, and perhaps an evaluation), and the commit, without which an upload is worth nothing.

    Args:
        remaining_s: until the machine is taken [s].
        rest_of_phase_s: until every rank stands at the agreed step [s].
        snapshot_s: how long the save holds the script up [s].
        upload_s: of all parts [s].
        commit_s: manifest and record [s].

    Example:
        29 s left, 1.2 s of the step to go, 2.5 s snapshot, 13 s upload, 0.3 s commit: fits with 12 s to spare.
    """
    return rest_of_phase_s + snapshot_s + upload_s + commit_s < remaining_s


def adaptive_interval_s(stall_s: float, mttl_unannounced_s: float, restart_s: float, to_durable_s: float) -> float:
    """Return the corrected interval: tau = max(sqrt(2 delta (M + R)), time to durable).

    Against the thesis' rule: delta is only the time that the training stands still (the upload runs behind it), M the
    mean time to a loss that an emergency save does *not* cover, and no save is asked for before the last one is safe.

    Args:
        stall_s: delta [s], >= 0.
        mttl_unannounced_s: M [s], > 0.
        restart_s: R [s], >= 0.
        to_durable_s: from the begin of a save to its commit [s], >= 0.

    Returns:
        Time between two saves [s].

    Validity:
        Memoryless losses; a loss redoes half an interval plus the time to durable, which does not depend on the
        interval and therefore does not move the optimum.

    Example:
        delta 0.08 s, M 6 h (3 h, half of the losses unannounced), R 136.5 s, durable after 14 s: 59.0 s.

    Source:
        Thesis, equation 4.5, with the corrections above.
    """
    return max(math.sqrt(2.0 * stall_s * (mttl_unannounced_s + restart_s)), to_durable_s)
