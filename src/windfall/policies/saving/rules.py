"""When to save: the scalar rules, each one equation.

Only `math` is imported, all arguments are plain numbers and positional, so that the same lines run in the agent, in a
training script, in the simulation and in a compiled kernel.  Symbols: delta = time that a save holds the training up
[s], beta = time to bring it to the store [s], M = mean time to a loss [s], R = time from a loss to training again [s].
"""

from __future__ import annotations

import math

SAME = 1e-9
"""Quotients closer than this share of them are taken for equal."""
LEARN_AFTER_STEPS = 20
LEARN_AFTER_S = 5.0
"""The first save of a run comes after the longer of the two, if not earlier anyway: it shows what saving costs."""
MARGIN_STEPS = 2
MARGIN_S = 0.05
"""A request to several ranks lies at least so far ahead, and as much farther as the way to other machines takes."""
MISSES_MAX = 10
"""The margin doubles with each failed agreement, up to so many times."""
RENEW_SHARE = 0.1
"""A planned save is moved when it moves by more than this share of its distance from the last save."""
DOUBT_LOSSES = 1.0
"""So many losses that no notice covers are believed beside those that came: whatever came, insurance never ends."""
HEARSAY_SHARE = 0.005
"""What was only said of notices may make a long run so much longer, if it is wrong and every loss comes without."""
HEARSAY_SHORT_SHARE = 0.01
"""The same of a run that is just too short for its first save on hearsay."""
LEAVE_BEFORE_S = 1.0
"""The run is let go so long before an announced end, at most ..."""
LEAVE_SHARE = 0.2
"""... or this share of what is left at the announcement, so that the successor need not wait for the lease."""
RESERVE_SHARE = 0.5
"""So much of that time belongs to the release alone, also where an upload could still be in time."""


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
        The step after which to save.  An interval that is whole steps but for rounding counts as such: a mean of steps
        of 0.1 s that came out as 0.10000000000000002 s must not cost a step.

    Example:
        From step 0 with tau_opt 236.1 s: 51 for steps of 4.60001 s; with 653.1 s: 33 for steps of 19.75029 s.

    Source:
        Thesis, Algorithm 1, `calcInsuranceSaveStep`; 51 and 33 steps in section 6.3.2.
    """
    return step + max(math.floor(interval_s / step_s * (1.0 + SAME)), 1)


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


def uncovered_share(losses: float, covered: float) -> float:
    """Return the share of losses that no emergency save covers, in doubt more: u = (1 + n - c) / (1 + n).

    The posterior mean of a share whose prior is one loss without a sufficient notice.  Where nothing came every loss is
    taken for uncovered; where all were covered the doubt goes like 1 / n.

    Args:
        losses: n, how many there were, >= 0.
        covered: c, how many of them came with a notice in which an emergency save fits, at most n.

    Example:
        Nothing seen: 1.  Nine losses, all of them covered: 0.1; nine, of which three were silent: 0.4.
    """
    return (DOUBT_LOSSES + losses - covered) / (DOUBT_LOSSES + losses)


def hearsay_harms(longer_s: float, interval_s: float, stall_s: float, mttp_s: float) -> bool:
    """Return whether a longer interval would cost too much in a run in which nothing that is said of notices is true.

    A long run takes g(tau) = (e^((tau + delta) / M) - 1) / tau of its work: `HEARSAY_SHARE` more is too much.  A short one
    may end right behind the first of its longer intervals, with the save there for nothing, where the insured one saved in
    the middle: f(tau + delta) against the sum of f over the insured pieces, f(t) = e^(t / M) - 1; `HEARSAY_SHORT_SHARE`
    more is too much.

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
    if longer + math.log(-math.expm1(-longer)) - math.log(longer_s) > math.log1p(HEARSAY_SHARE) + log_insured:
        return True
    saves = math.floor(longer_s / interval_s)
    rest = (longer_s - saves * interval_s) / mttp_s
    nothing = math.exp(-longer)
    pieces = saves * (math.exp(insured - longer) - nothing) + math.exp(rest - longer) - nothing
    return 1.0 - nothing > (1.0 + HEARSAY_SHORT_SHARE) * pieces


def longest_interval_s(interval_s: float, stall_s: float, mttp_s: float) -> float:
    """Return how long an interval may become on hearsay, by bisection: the longest that `hearsay_harms` lets pass.

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
    while not hearsay_harms(high_s, interval_s, stall_s, mttp_s):
        high_s *= 2.0
    for _ in range(40):
        middle_s = 0.5 * (low_s + high_s)
        if hearsay_harms(middle_s, interval_s, stall_s, mttp_s):
            high_s = middle_s
        else:
            low_s = middle_s
    return low_s


def believed_interval_s(  # noqa: PLR0917 - plain numbers, for a kernel
    stall_s: float,
    mttp_s: float,
    restart_s: float,
    to_durable_s: float,
    losses: float,
    covered: float,
    said_losses: float,
    said_covered: float,
) -> float:
    """Return the corrected interval against the losses that no emergency save covers, by what came and what was said.

    What came counts as it came (`uncovered_share`).  What was said, a provider's rule or a grace period, counts like
    `said_losses` more, as long as it cannot do harm (`longest_interval_s`): skipping insurance needs evidence.

    Args:
        stall_s: delta [s], >= 0.
        mttp_s: M, mean time to any loss [s], > 0.
        restart_s: R [s], >= 0.
        to_durable_s: from the begin of a save to its commit [s], >= 0.
        losses: that the run has had.
        covered: how many of them came with a notice in which an emergency save fits.
        said_losses: how many observed losses the word of others weighs.
        said_covered: how many of those it promises a sufficient notice for.

    Returns:
        Time between two saves [s].

    Example:
        delta 0.08 s, M 3 h, R 136.5 s, durable after 14 s.  Nothing came, nothing was said: 41.8 s.  Nine losses, all
        covered: 131.5 s.

    Source:
        `adaptive_interval_s`, with the beliefs above.
    """
    share = uncovered_share(losses, covered)
    shown_s = adaptive_interval_s(stall_s, mttp_s / share, restart_s, to_durable_s)
    share = uncovered_share(losses + said_losses, covered + said_covered)
    said_s = adaptive_interval_s(stall_s, mttp_s / share, restart_s, to_durable_s)
    if said_s <= shown_s:
        return shown_s
    insured_s = adaptive_interval_s(stall_s, mttp_s, restart_s, to_durable_s)
    return max(shown_s, min(said_s, longest_interval_s(insured_s, stall_s, mttp_s)))


def scheduled_work_s(done_s: float, saves_at_s: tuple[float, ...], known_s: float, interval_s: float) -> float:
    """Return the work done at which a schedule saves next [s]; infinite if it has no further save.

    A save counts for the point of the schedule that it is nearest to: the next one is the first p_k with
    (p_(k-1) + p_k) / 2 > done, p_(-1) = 0.  So neither a pace that has changed a little nor a save of the user's own
    a little earlier makes a second save follow at once.

    Args:
        done_s: work done at the last save, since the schedule begins [s].
        saves_at_s: p, work done at which to save, rising [s]; an array in a kernel.
        known_s: work done up to which the schedule is trusted [s].
        interval_s: between two saves beyond that, and after its last point [s].

    Example:
        Saves at 1080 s and 2280 s, known to 3600 s, else every 600 s: after 0 s the next is at 1080 s, after 1000 s at
        2280 s, after 2280 s at 3600 s, after 3600 s at 4200 s.
    """
    if done_s < known_s:
        low, high = 0, len(saves_at_s)
        while low < high:
            middle = (low + high) // 2
            before_s = saves_at_s[middle - 1] if middle > 0 else 0.0
            if (before_s + saves_at_s[middle]) / 2.0 > done_s * (1.0 + SAME):
                high = middle
            else:
                low = middle + 1
        if low < len(saves_at_s):
            return saves_at_s[low]
    return max(known_s, done_s + interval_s)


def scheduled_step(from_step: int, work_s: float, step_s: float) -> int:
    """Return the step that is nearest to an amount of work done since `from_step`.

    Args:
        from_step: where the schedule begins.
        work_s: work done since then [s], finite, >= 0.
        step_s: mean time of a step [s], > 0.

    Example:
        1080 s of work from step 100 on, steps of 4.6 s: step 335.
    """
    return from_step + math.floor(work_s / step_s + 0.5)


def learning_step(anchor_step: int, step_s: float) -> int:
    """Return the step of a run's first save, made early because nothing is known of what saving costs.

    Args:
        anchor_step: where the run begins.
        step_s: mean time of a step [s], > 0.

    Example:
        Steps of 0.1 s from step 0 on: 50; steps of 4.6 s: 20.
    """
    return anchor_step + max(LEARN_AFTER_STEPS, math.ceil(LEARN_AFTER_S / step_s))


def time_to_step_s(steps: int, step_s: float, phase_s: float, elapsed_s: float, in_step: bool) -> float:
    """Return how long a rank that is in an uninterruptible phase needs until `steps` more steps are complete [s].

    Args:
        steps: how many, > 0.
        step_s: of one [s].
        phase_s: how long the phase takes [s].
        elapsed_s: how long it has lasted [s].
        in_step: whether the phase is itself one of the steps.

    Example:
        Half a second into a step of 2 s, two steps wanted: 3.5 s; 10 s into an evaluation of 30 s: 24 s.
    """
    return max(phase_s - elapsed_s, 0.0) + (steps - 1 if in_step else steps) * step_s


def agreed_step(step: int, since_s: float, step_s: float, link_s: float, misses: int) -> int:
    """Return the first step at which several ranks can still be asked to save.

    Args:
        step: complete steps of the fastest rank, as last seen.
        since_s: how long ago that was [s].
        step_s: mean time of a step [s]; 0 if none was measured.
        link_s: to the farthest machine and back [s].
        misses: agreements that failed in a row.

    Example:
        Just seen at step 100, steps of 4.6 s: 102; steps of 10 ms: 105.
    """
    moved, margin = 0, MARGIN_STEPS
    if step_s > 0.0:
        moved = math.ceil(max(since_s, 0.0) / step_s)
        margin = max(margin, math.ceil((MARGIN_S + link_s) / step_s))
    return step + moved + margin * (1 << min(misses, MISSES_MAX))


def worth_moving(step: int, pending_step: int, anchor_step: int) -> bool:
    """Return whether a planned save moves so far that the script is asked anew.

    Args:
        step: where it would be asked for now.
        pending_step: where it is asked for.
        anchor_step: the last save.

    Example:
        Planned 100 steps after the last save: moved by 11 steps, not by 10.
    """
    return abs(step - pending_step) > max(1, RENEW_SHARE * max(pending_step - anchor_step, 1))


def leave_margin_s(remaining_s: float) -> float:
    """Return how long before an announced end the run is let go [s].

    Args:
        remaining_s: from the announcement to the end [s].

    Example:
        120 s before: 1 s; 2 s before: 0.4 s.
    """
    return min(LEAVE_BEFORE_S, LEAVE_SHARE * max(remaining_s, 0.0))


def lets_go(measured: float, rest_s: float, remaining_s: float, margin_s: float) -> bool:
    """Return whether the run is let go now, so near an announced end, although a save is under way.

    Half of the margin is kept for the release: a run that nobody released costs its successor the whole lease.  A save that
    is expected within half of what is left even then, or was expected no longer ago, still goes on.

    Args:
        measured: whether a whole save was ever measured; without, nothing says that this one will be in time.
        rest_s: what is left of upload and commit, as expected; below 0 once they take longer [s].
        remaining_s: until the machine is taken [s].
        margin_s: how long before the end the run is let go where nothing is under way (`leave_margin_s`) [s].

    Example:
        margin 1 s: an unmeasured save is given up at once; with 0.4 s left one goes on that needs 0.1 s, not 0.3 s.
    """
    late = rest_s > 2.0 * max(remaining_s, LEAVE_BEFORE_S)
    in_reserve = remaining_s <= RESERVE_SHARE * margin_s
    return not measured or late or (in_reserve and abs(rest_s) > RESERVE_SHARE * remaining_s)


def lets_go_next_s(remaining_s: float, margin_s: float) -> float:
    """Return after which time `lets_go`, which has said no, is asked again [s]; its arguments mean the same.

    Example:
        margin 1 s: with 0.9 s left, after 0.4 s, where the reserve begins; with 0.4 s left, after 0.2 s.
    """
    reserve_s = RESERVE_SHARE * margin_s
    return remaining_s - (reserve_s if remaining_s > reserve_s else RESERVE_SHARE * remaining_s)


def must_yield(rest_s: float, upload_s: float, commit_s: float, remaining_s: float) -> bool:
    """Return whether an emergency save takes the uplink from the upload under way, because both would not be in time.

    Args:
        rest_s: what is left of the upload under way [s].
        upload_s: of the emergency save [s].
        commit_s: of either [s].
        remaining_s: until the machine is taken [s].
    """
    return rest_s + commit_s + upload_s + commit_s >= remaining_s
