"""The worker's save decisions in a kernel: the next insurance save and the emergency save.

A compiled copy of `core.save_requests`, `core.shutdown` and `policies.checkpointing.decision`, held equal to them by the
agreement tests.  The costs of a trial are constant, so one measurement of each gives its true value.  The rules themselves
are shared (`policies.checkpointing.rules`).  In all functions `w` is a record of `WORLD`, `s` one of `STATE`, `t` the
`KernelTables`.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

from windfall.models.costs import DEFAULT_STALL_S
from windfall.simulation import kernel_world as world
from windfall.simulation.kernel_world import (
    ADAPTIVE,
    EVERY_S,
    EVERY_STEPS,
    INJECTED,
    NEVER,
    NONE,
    OPTIMAL,
    STALLED,
    THESIS,
    TRAINING,
    YOUNG,
    part,
)


@part
def interval_steps(interval_s, step_s):
    """Return an interval in steps; 0 for none."""
    return 0 if interval_s == math.inf else world.insurance_step(0, interval_s, step_s)


@part
def constant_steps(w, s):
    """Return the interval of a machine's lifetime if it cannot change [steps]; 0 for no saves, `NONE` if it may change."""
    if w.policy == EVERY_STEPS:
        return int(w.every)
    if w.policy == EVERY_S:
        return interval_steps(w.every, s.step_s)
    if w.policy == NEVER:
        return 0
    if not s.known or w.policy in (OPTIMAL, INJECTED):
        return NONE
    s.stalls = s.uploads = s.commits = s.measured = True
    if w.policy == ADAPTIVE and w.learns and (_prior_covered(w, s) > 0.0 or s.announced):
        return NONE  # each loss changes the estimate of the notices
    return _learnt_steps(w, s)


@part
def _learnt_steps(w, s):
    """Return the interval of a policy that key the costs of saves."""
    s.estimate_key = NONE
    if w.policy != THESIS:
        return interval_steps(_default_interval_s(w, s), s.step_s)
    if world.thesis_fits(s.step_s, s.stall_s, s.upload_s, _expected_s(w, s)):
        return 0
    return interval_steps(world.thesis_interval_s(s.stall_s, w.mttp_s, w.restart_s), s.step_s)


@part
def first_steps(w, interval):
    """Return the step of a single machine's first save: not the first step if its length has to be measured before."""
    return interval if w.policy == EVERY_STEPS or interval == 0 else max(interval, 2)


@part
def completed(s, now_s):
    """Return the complete steps at an instant of the present phase."""
    if s.phase != TRAINING:
        return s.step
    step = s.step + int((now_s - s.since) / s.step_s)
    return step + (s.since + (step + 1 - s.step) * s.step_s <= now_s)


@part
def _earliest(w, s, step):
    if w.machines == 1:
        return step + 1
    return world.agreed_step(step, 0.0, s.step_s if s.measured else 0.0, 0.0, 0)


@part
def _measured(s):
    return s.stalls and s.uploads and s.commits


@part
def _default_interval_s(w, s):
    """Return the interval of the policy, or of the default rule, by the present estimates; infinite for none."""
    stall_s = s.stall_s if s.stalls else DEFAULT_STALL_S
    if w.policy == YOUNG:
        return world.young_interval_s(stall_s, w.mttp_s)
    if w.policy not in (ADAPTIVE, OPTIMAL):
        return s.interval_s
    key = s.stalls + 2 * s.uploads + 4 * s.commits + 8 * s.measured
    if s.estimate_key != key:
        s.estimate_key, s.estimated_s = key, _estimated_interval_s(w, s, stall_s)
    return s.estimated_s


@part
def _estimated_interval_s(w, s, stall_s):
    """Return the interval by the observed and the stated notices (`models.preemption_rates`)."""
    durable_s = stall_s + (s.upload_s if s.uploads else 0.0)
    losses = s.losses if w.learns else 0
    covered = s.announced if w.learns and _measured(s) and _fits(s, w.notice_s) else 0
    prior = _prior_covered(w, s)
    return world.estimated_interval_s(stall_s, w.mttp_s, w.restart_s, durable_s, losses, covered, w.prior_losses, prior)


@part
def _fits(s, notice_s):
    return world.fits(notice_s, s.step_s if s.measured else 0.0, s.stall_s, s.upload_s, 0.0)


@part
def _prior_covered(w, s):
    """Return how many of the stated losses have a sufficient notice; observed notices outweigh stated ones."""
    if not _measured(s):
        return 0.0
    notice_s = w.notice_s if w.learns and s.announced else w.grace_s
    return w.prior_announced if _fits(s, notice_s) else 0.0


@part
def _expected_s(w, s):
    """Return the expected notice: as given, else as observed, else as usual for the provider."""
    return w.notice_s if w.learns and s.announced and not w.grace_given else w.grace_s


@part
def _scheduled(w, s, t, interval_s):
    """Return the next save of the table, nearest to the work of the last one; `NONE` if the table has no more."""
    unit_s = w.unit * s.step_s
    done = (s.anchor - s.base) / w.unit
    work = world.scheduled_work_s(done, t.flat[s.table : s.table_end], math.inf, interval_s / unit_s)
    if work == math.inf:
        return NONE
    return max(world.scheduled_step(s.base, work * unit_s, s.step_s), s.anchor + 1)


@part
def _next_save(w, s, t):
    """Return the step of the next insurance save, even if it is too late to request it; `NONE` without one."""
    if w.policy == EVERY_STEPS:
        return s.anchor + int(w.every)
    if not s.measured or w.policy == NEVER:
        return NONE
    if w.policy == THESIS:
        return _next_thesis_save(w, s)
    return _next_timed_save(w, s, t)


@part
def _next_timed_save(w, s, t):
    interval_s = _default_interval_s(w, s)
    if w.policy == OPTIMAL:
        step = _scheduled(w, s, t, interval_s)
        if step == NONE:
            return NONE
    elif interval_s == math.inf:
        return NONE
    else:
        step = world.insurance_step(s.anchor, interval_s, s.step_s)
    if w.policy in (ADAPTIVE, OPTIMAL) and not s.stalls and s.anchor == s.base:
        return min(step, world.learning_step(s.anchor, s.step_s))
    return step


@part
def _next_thesis_save(w, s):
    upload_s = s.upload_s if s.uploads else 0.0
    if _measured(s) and world.thesis_fits(s.step_s, s.stall_s, upload_s, _expected_s(w, s)):
        return NONE
    if s.held == s.anchor:
        return s.held_step
    interval_s = world.thesis_interval_s(s.stall_s if s.stalls else DEFAULT_STALL_S, w.mttp_s, w.restart_s)
    return world.insurance_step(s.anchor, interval_s, s.step_s)


@part
def plan(w, s, t, now_s):
    """Publish, move or withdraw the next insurance save (`core.save_requests.plan`)."""
    if s.noticed or s.queued != NONE or s.phase != TRAINING:
        return
    target = _next_save(w, s, t)
    if target == NONE:
        s.pending = NONE
        return
    step = completed(s, now_s)
    earliest = _earliest(w, s, step)
    target = max(target, earliest)
    if s.pending != NONE:
        if not world.worth_moving(target, s.pending, s.anchor):
            return
        if s.pending <= (earliest if w.machines > 1 else step):
            return
    s.pending, s.emergency = target, False
    s.held, s.held_step = s.anchor, target


@part
def notice(w, s, now_s):
    """Request an emergency save if it fits (`core.shutdown`, at the announcement)."""
    remaining_s = s.deadline - now_s
    step = completed(s, now_s)
    target = _earliest(w, s, step)
    step_s = s.step_s if s.measured else 0.0
    stall_s, upload_s = s.stall_s if s.stalls else 0.0, s.upload_s if s.uploads else 0.0
    if w.policy == THESIS:
        fit = world.thesis_fits(step_s, s.stall_s if s.stalls else DEFAULT_STALL_S, upload_s, remaining_s)
    else:
        if s.phase == STALLED:
            rest_s = world.time_to_step_s(target - step, step_s, stall_s, now_s - s.since, False)
        else:
            elapsed_s = now_s - s.since - (step - s.step) * s.step_s
            rest_s = world.time_to_step_s(target - step, step_s, step_s, elapsed_s, True)
        fit = world.fits(remaining_s, rest_s, stall_s, upload_s, 0.0)
    if not fit and (_measured(s) or remaining_s <= 0.0):
        return
    if s.phase == STALLED or (w.machines > 1 and s.pending != NONE and s.pending <= target):
        s.counted = True  # the save under way is the last one
    else:
        s.pending, s.emergency = target, True
