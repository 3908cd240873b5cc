"""When to save: the scalar rules, each one equation.

The module imports only `math`, and all arguments are plain positional numbers, so that the same lines run in the agent,
in a training script, in the simulation and in a compiled kernel.  Symbols: delta = time that a save stalls the training
[s], beta = time to upload it to the store [s], M = mean time to a loss [s], R = time from a loss to training again [s].
"""

from __future__ import annotations

import math

EQUAL_SHARE = 1e-9
"""Quotients that differ by less than this share count as equal."""
LEARN_AFTER_STEPS = 20
LEARN_AFTER_S = 5.0
"""The first save of a run comes at the latest after the longer of the two: it shows what saving costs."""
MARGIN_STEPS = 2
MARGIN_S = 0.05
"""A request to several ranks lies at least this far ahead, plus the network latency to other machines."""
MISSES_MAX = 10
"""The margin doubles with each failed agreement, at most this many times."""
MOVE_SHARE = 0.1
"""A planned save is moved if it would move by more than this share of its distance from the last save."""
PRIOR_UNCOVERED = 1.0
"""How many losses that no notice covers are assumed beside the observed ones, so that insurance saves never stop."""
PRIOR_COST_SHARE = 0.005
"""The share by which an unconfirmed prior on notices may lengthen a long run if it is wrong and every loss is silent."""
PRIOR_COST_SHARE_SHORT = 0.01
"""The same for a run that is just too short for its first save under that prior."""
RELEASE_BEFORE_S = 1.0
"""The run is released at most this long before an announced end ..."""
RELEASE_SHARE = 0.2
"""... or this share of the time left at the announcement, so that the successor does not have to wait for the lease."""
RESERVE_SHARE = 0.5
"""The share of that time reserved for the release alone, even if an upload could still finish in time."""


def young_interval_s(save_s: float, mttp_s: float) -> float:
    """Return Young's interval between saves: tau = sqrt(2 delta M).

    Args:
        save_s: delta, how long a save stalls the training [s], > 0.
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
        Compute time between the end of one save and the start of the next [s]; never below 0.

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
        Compute time between the end of one save and the start of the next [s]; M where delta >= 2 M.

    Validity:
        Any delta; the restart time has no influence at this order.

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
        step: i, the current step.
        interval_s: tau_opt [s], >= 0.
        step_s: T_step, the running average of the step time [s], > 0.

    Returns:
        The step after which to save.  An interval that is a whole number of steps except for rounding counts as one:
        a mean step time of 0.1 s that was computed as 0.10000000000000002 s must not cost a step.

    Example:
        From step 0 with tau_opt 236.1 s: 51 for steps of 4.60001 s; with 653.1 s: 33 for steps of 19.75029 s.

    Source:
        Thesis, Algorithm 1, `calcInsuranceSaveStep`; 51 and 33 steps in section 6.3.2.
    """
    return step + max(math.floor(interval_s / step_s * (1.0 + EQUAL_SHARE)), 1)


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

    Unlike the thesis it counts the rest of the uninterruptible phase (not always a whole step, and perhaps an
    evaluation), and the commit, without which an upload is worth nothing.

    Args:
        remaining_s: until the machine is preempted [s].
        rest_of_phase_s: until every rank reaches the agreed step [s].
        snapshot_s: how long the save stalls the script [s].
        upload_s: of all shards [s].
        commit_s: manifest and record [s].

    Example:
        29 s left, 1.2 s of the step to go, 2.5 s snapshot, 13 s upload, 0.3 s commit: fits with 12 s to spare.
    """
    return rest_of_phase_s + snapshot_s + upload_s + commit_s < remaining_s


def adaptive_interval_s(stall_s: float, mttl_unannounced_s: float, restart_s: float, to_durable_s: float) -> float:
    """Return the corrected interval: tau = max(sqrt(2 delta (M + R)), time until committed).

    Compared with the thesis' rule: delta is only the time that the training stalls (the upload runs in the background),
    M the mean time to a loss that an emergency save does *not* cover, and no save is requested before the last one is
    durable.

    Args:
        stall_s: delta [s], >= 0.
        mttl_unannounced_s: M [s], > 0.
        restart_s: R [s], >= 0.
        to_durable_s: from the start of a save to its commit [s], >= 0.

    Returns:
        Time between two saves [s].

    Validity:
        Memoryless losses; a loss redoes half an interval plus the time until committed, which does not depend on the
        interval and therefore does not move the optimum.

    Example:
        delta 0.08 s, M 6 h (3 h, half of the losses unannounced), R 136.5 s, durable after 14 s: 59.0 s.

    Source:
        Thesis, equation 4.5, with the corrections above.
    """
    return max(math.sqrt(2.0 * stall_s * (mttl_unannounced_s + restart_s)), to_durable_s)


def uncovered_share(losses: float, covered: float) -> float:
    """Return a cautious share of losses that no emergency save covers: u = (1 + n - c) / (1 + n).

    The posterior mean of a share whose prior is one loss without a sufficient notice.  Without observations every loss
    counts as uncovered; if all were covered, the share falls as 1 / n.

    Args:
        losses: n, how many were observed, >= 0.
        covered: c, how many of them came with a notice in which an emergency save fits, at most n.

    Example:
        No observations: 1.  Nine losses, all of them covered: 0.1; nine, of which three were silent: 0.4.
    """
    return (PRIOR_UNCOVERED + losses - covered) / (PRIOR_UNCOVERED + losses)


def prior_too_costly(longer_s: float, interval_s: float, stall_s: float, mttp_s: float) -> bool:
    """Return whether a longer interval would cost too much if the prior on notices is wrong.

    A long run takes g(tau) = (e^((tau + delta) / M) - 1) / tau of its work: `PRIOR_COST_SHARE` more is too much.  A short
    run may end just after the first of its longer intervals, so that the save there is wasted, where the insured run
    saved in the middle: f(tau + delta) against the sum of f over the insured pieces, f(t) = e^(t / M) - 1;
    `PRIOR_COST_SHARE_SHORT` more is too much.

    Args:
        longer_s: between two saves [s], at least `interval_s`.
        interval_s: the interval that insures against every loss [s], > 0.
        stall_s: delta [s], >= 0.
        mttp_s: M, mean time to any loss, covered or not [s], > 0.

    Source:
        Daly, FGCS 22(3), 2006, equation 13: the expected time, with the restart time cancelled out.
    """
    insured, longer = (interval_s + stall_s) / mttp_s, (longer_s + stall_s) / mttp_s
    # ln g and f e^-longer: (e^x - 1) = e^x (1 - e^-x) does not overflow.
    log_insured = insured + math.log(-math.expm1(-insured)) - math.log(interval_s)
    if longer + math.log(-math.expm1(-longer)) - math.log(longer_s) > math.log1p(PRIOR_COST_SHARE) + log_insured:
        return True
    saves = math.floor(longer_s / interval_s)
    rest = (longer_s - saves * interval_s) / mttp_s
    nothing = math.exp(-longer)
    pieces = saves * (math.exp(insured - longer) - nothing) + math.exp(rest - longer) - nothing
    return 1.0 - nothing > (1.0 + PRIOR_COST_SHARE_SHORT) * pieces


def longest_interval_s(interval_s: float, stall_s: float, mttp_s: float) -> float:
    """Return the longest interval that `prior_too_costly` accepts, by bisection.

    Args:
        interval_s: the interval that insures against every loss [s], > 0.
        stall_s: delta [s], >= 0.
        mttp_s: M, mean time to any loss, covered or not [s], > 0.

    Validity:
        Memoryless losses.

    Example:
        delta 2.55 s, M 3 h, an interval of 236 s: 430 s; saves of 10 minutes every 36 minutes, M 1 h: 36.6 minutes.
    """
    if not 0.0 < interval_s < math.inf or mttp_s == math.inf:
        return interval_s
    low_s, high_s = interval_s, 2.0 * interval_s
    while not prior_too_costly(high_s, interval_s, stall_s, mttp_s):
        high_s *= 2.0
    for _ in range(40):
        middle_s = 0.5 * (low_s + high_s)
        if prior_too_costly(middle_s, interval_s, stall_s, mttp_s):
            high_s = middle_s
        else:
            low_s = middle_s
    return low_s


def estimated_interval_s(  # noqa: PLR0917 - plain numbers, for a kernel
    stall_s: float,
    mttp_s: float,
    restart_s: float,
    to_durable_s: float,
    losses: float,
    covered: float,
    prior_losses: float,
    prior_covered: float,
) -> float:
    """Return the corrected interval against losses that no emergency save covers, from observations and a prior.

    Observed losses count as they were (`uncovered_share`).  The prior, a provider's rule or a grace period, counts like
    `prior_losses` more observations while it cannot cost too much (`longest_interval_s`): skipping insurance saves needs
    evidence.

    Args:
        stall_s: delta [s], >= 0.
        mttp_s: M, mean time to any loss [s], > 0.
        restart_s: R [s], >= 0.
        to_durable_s: from the start of a save to its commit [s], >= 0.
        losses: how many the run has had.
        covered: how many of them came with a notice in which an emergency save fits.
        prior_losses: the weight of the prior, in observed losses.
        prior_covered: for how many of those the prior expects a sufficient notice.

    Returns:
        Time between two saves [s].

    Example:
        delta 0.08 s, M 3 h, R 136.5 s, durable after 14 s.  No losses, no prior: 41.8 s.  Nine losses, all
        covered: 131.5 s.

    Source:
        `adaptive_interval_s`, with the estimates above.
    """
    share = uncovered_share(losses, covered)
    observed_interval_s = adaptive_interval_s(stall_s, mttp_s / share, restart_s, to_durable_s)
    share = uncovered_share(losses + prior_losses, covered + prior_covered)
    prior_interval_s = adaptive_interval_s(stall_s, mttp_s / share, restart_s, to_durable_s)
    if prior_interval_s <= observed_interval_s:
        return observed_interval_s
    insured_interval_s = adaptive_interval_s(stall_s, mttp_s, restart_s, to_durable_s)
    return max(observed_interval_s, min(prior_interval_s, longest_interval_s(insured_interval_s, stall_s, mttp_s)))


def scheduled_work_s(done_s: float, saves_at_s: tuple[float, ...], known_s: float, interval_s: float) -> float:
    """Return the work done at which a schedule saves next [s]; infinite if it has no further save.

    A save counts for the nearest entry of the schedule: the next one is the first p_k with
    (p_(k-1) + p_k) / 2 > done, p_(-1) = 0.  So neither a slightly changed pace nor a save of the user's own shortly
    before makes a second save follow at once.

    Args:
        done_s: work done at the last save, from the start of the schedule [s].
        saves_at_s: p, work done at which to save, ascending [s]; an array in a kernel.
        known_s: work done up to which the schedule is trusted [s].
        interval_s: between two saves beyond that, and after its last entry [s].

    Example:
        Saves at 1080 s and 2280 s, known to 3600 s, else every 600 s: after 0 s the next is at 1080 s, after 1000 s at
        2280 s, after 2280 s at 3600 s, after 3600 s at 4200 s.
    """
    if done_s < known_s:
        low, high = 0, len(saves_at_s)
        while low < high:
            middle = (low + high) // 2
            before_s = saves_at_s[middle - 1] if middle > 0 else 0.0
            if (before_s + saves_at_s[middle]) / 2.0 > done_s * (1.0 + EQUAL_SHARE):
                high = middle
            else:
                low = middle + 1
        if low < len(saves_at_s):
            return saves_at_s[low]
    return max(known_s, done_s + interval_s)


def scheduled_step(from_step: int, work_s: float, step_s: float) -> int:
    """Return the step nearest to an amount of work done since `from_step`.

    Args:
        from_step: where the schedule starts.
        work_s: work done since then [s], finite, >= 0.
        step_s: mean time of a step [s], > 0.

    Example:
        1080 s of work from step 100, steps of 4.6 s: step 335.
    """
    return from_step + math.floor(work_s / step_s + 0.5)


def learning_step(anchor_step: int, step_s: float) -> int:
    """Return the step of a run's first save, made early to measure what saving costs.

    Args:
        anchor_step: where the run starts.
        step_s: mean time of a step [s], > 0.

    Example:
        From step 0, steps of 0.1 s: 50; steps of 4.6 s: 20.
    """
    return anchor_step + max(LEARN_AFTER_STEPS, math.ceil(LEARN_AFTER_S / step_s))


def time_to_step_s(steps: int, step_s: float, phase_s: float, elapsed_s: float, in_step: bool) -> float:
    """Return how long a rank in an uninterruptible phase needs until `steps` more steps are complete [s].

    Args:
        steps: how many, > 0.
        step_s: of one [s].
        phase_s: how long the phase takes [s].
        elapsed_s: how long it has lasted [s].
        in_step: whether the phase is itself one of the steps.

    Example:
        Half a second into a step of 2 s, two steps needed: 3.5 s; 10 s into an evaluation of 30 s: 24 s.
    """
    return max(phase_s - elapsed_s, 0.0) + (steps - 1 if in_step else steps) * step_s


def agreed_step(step: int, since_s: float, step_s: float, latency_s: float, misses: int) -> int:
    """Return the first step at which several ranks can still agree to save.

    Args:
        step: complete steps of the fastest rank, as last observed.
        since_s: how long ago that was [s].
        step_s: mean time of a step [s]; 0 if none was measured.
        latency_s: round trip to the farthest machine [s].
        misses: agreements that failed in a row.

    Example:
        Just observed at step 100, steps of 4.6 s: 102; steps of 10 ms: 105.
    """
    moved, margin = 0, MARGIN_STEPS
    if step_s > 0.0:
        moved = math.ceil(max(since_s, 0.0) / step_s)
        margin = max(margin, math.ceil((MARGIN_S + latency_s) / step_s))
    return step + moved + margin * (1 << min(misses, MISSES_MAX))


def worth_moving(step: int, pending_step: int, anchor_step: int) -> bool:
    """Return whether a planned save has moved so far that a new request to the script is worthwhile.

    Args:
        step: the step for the save as planned now.
        pending_step: the step of the pending request.
        anchor_step: the last save.

    Example:
        Planned 100 steps after the last save: moved by 11 steps, not by 10.
    """
    return abs(step - pending_step) > max(1, MOVE_SHARE * max(pending_step - anchor_step, 1))


def release_margin_s(remaining_s: float) -> float:
    """Return how long before an announced end the run is released [s].

    Args:
        remaining_s: from the announcement to the end [s].

    Example:
        120 s before: 1 s; 2 s before: 0.4 s.
    """
    return min(RELEASE_BEFORE_S, RELEASE_SHARE * max(remaining_s, 0.0))


def releases_now(measured: float, rest_s: float, remaining_s: float, margin_s: float) -> bool:
    """Return whether to release the run now, close to an announced end, although a save is in progress.

    Half of the margin is kept for the release, because without a release the successor waits for the whole lease.  Within
    that half, a save continues only if its expected end is within half of the remaining time, ahead or past.

    Args:
        measured: whether a complete save was ever measured; without one nothing shows that this save will be in time.
        rest_s: expected rest of upload and commit [s]; negative once they take longer than expected.
        remaining_s: until the machine is preempted [s].
        margin_s: how long before the end the run is released if no save is in progress (`release_margin_s`) [s].

    Example:
        margin 1 s: an unmeasured save is abandoned at once; with 0.4 s left a save that needs 0.1 s continues, one that
        needs 0.3 s does not.
    """
    late = rest_s > 2.0 * max(remaining_s, RELEASE_BEFORE_S)
    in_reserve = remaining_s <= RESERVE_SHARE * margin_s
    return not measured or late or (in_reserve and abs(rest_s) > RESERVE_SHARE * remaining_s)


def release_recheck_s(remaining_s: float, margin_s: float) -> float:
    """Return when to call `releases_now` again after it returned False [s]; the arguments are the same.

    Example:
        margin 1 s: with 0.9 s left, after 0.4 s, where the reserve starts; with 0.4 s left, after 0.2 s.
    """
    reserve_s = RESERVE_SHARE * margin_s
    return remaining_s - (reserve_s if remaining_s > reserve_s else RESERVE_SHARE * remaining_s)


def must_yield(rest_s: float, upload_s: float, commit_s: float, remaining_s: float) -> bool:
    """Return whether the running upload yields the uplink to an emergency save, because both would not be in time.

    Args:
        rest_s: rest of the running upload [s].
        upload_s: of the emergency save [s].
        commit_s: of either [s].
        remaining_s: until the machine is preempted [s].
    """
    return rest_s + commit_s + upload_s + commit_s >= remaining_s
