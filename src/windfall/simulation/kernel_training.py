"""A spell of training in a kernel: from all machines ready to the loss of one, or to the last step.

`walk` goes from event to event; `jump` covers in one step what it can: a spell whose saves come at a constant interval,
each safe before the next is handed over.  In all functions `w` is a `World`, `s` a row of `STATE`; `log` takes the saves,
(machine, step, kind, committed), as far as it is long.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Final

from numba import njit

from windfall.simulation import kernel_asking as asking
from windfall.simulation import kernel_world as world
from windfall.simulation.kernel_machines import END, GONE
from windfall.simulation.kernel_world import NONE, STALLED, STILL, TRAINING

COMMIT: Final = 0
FINISH: Final = 1
MEASURE: Final = 2
SAVE: Final = 3
HANDOVER: Final = 4


@njit
def begin(w, s, slots):
    """Begin a spell at `s.now`, from the newest committed point; a worker that knows what earlier ones measured."""
    s.begun = s.since = s.now
    s.spell_save_s = 0.0
    s.base = s.step = s.anchor = s.committed
    s.phase, s.measured, s.emergency = TRAINING, False, False
    s.stalls = s.uploads = s.commits = s.known
    s.pending = s.held = s.active = s.queued = NONE
    s.commit_at = s.deadline = s.leave_at = math.inf
    s.noticed = s.leaving = s.counted = False
    if w.policy == world.EVERY_S:
        s.interval_s = w.every
    s.outer = _next_end(w, s.now, slots)
    if w.policy == world.OPTIMAL:
        left = (w.steps - s.base + w.unit - 1) // w.unit
        s.table, s.table_end = w.offsets[left], w.offsets[left + 1]
    asking.plan(w, s, s.now)


@njit
def _next_end(w, now_s, slots):
    least = math.inf
    for slot in range(w.machines):
        if slots[slot, END] > now_s:
            least = min(least, slots[slot, END])
    return least


@njit
def _next(w, s):
    """When the next event of the training or of an upload comes, and which."""
    at_s, what = s.commit_at, COMMIT
    if s.phase == TRAINING:
        last_s = s.since + (w.steps - s.step) * s.step_s
        if last_s < at_s:
            at_s, what = last_s, FINISH
        first_s = s.begun + s.step_s
        if not s.measured and first_s < at_s:
            at_s, what = first_s, MEASURE
        if s.pending != NONE and s.pending < w.steps:
            save_s = s.since + (s.pending - s.step) * s.step_s
            if save_s < at_s:
                at_s, what = save_s, SAVE
    elif s.phase == STALLED and s.since + s.stall_s < at_s:
        at_s, what = s.since + s.stall_s, HANDOVER
    return at_s, what


@njit
def walk(w, s, slots, numbers, log):
    """Train from `begin` on; `s.now` becomes the instant at which the run is let go, `s.done` says whether it is done."""
    while True:
        at_s, what = _next(w, s)
        outer_s = min(s.outer, s.deadline, s.leave_at)
        if outer_s < at_s:
            if _outer(w, s, outer_s, slots):
                break
        elif what == FINISH:
            s.now, s.done = at_s, True
            break
        elif what == COMMIT:
            if _commit(w, s, at_s, log):
                break
        elif what == MEASURE:
            s.measured = True
            asking.plan(w, s, at_s)
        elif what == SAVE:
            s.since, s.step, s.phase = at_s, s.pending, STALLED
        else:
            _hand_over(w, s, at_s, numbers, log)
    _settle(w, s)


@njit
def _settle(w, s):
    """Divide the spell's time: what is neither standing still nor kept was made for nothing."""
    if s.phase != TRAINING:
        s.save_s += s.now - s.since
        s.spell_save_s += s.now - s.since
    if s.done:
        return
    s.redo_s += s.now - s.begun - s.spell_save_s - (s.committed - s.base) * s.step_s


@njit
def _outer(w, s, at_s, slots):
    """A machine's life ends, it is gone, or it is time to leave: return whether the spell is over."""
    s.now = at_s
    if at_s == s.deadline:
        return True
    if at_s == s.leave_at:
        s.leave_at, s.leaving = math.inf, True
        return _leaves(s, at_s)
    for slot in range(w.machines):
        if slots[slot, END] == at_s:
            if slots[slot, GONE] == at_s:
                return True
            first = not s.noticed
            s.noticed = True
            s.deadline = min(s.deadline, slots[slot, GONE])
            remaining_s = s.deadline - at_s
            s.leaving = False
            s.leave_at = at_s + remaining_s - world.leave_margin_s(remaining_s)
            if first:
                asking.notice(w, s, at_s)
    s.outer = _next_end(w, at_s, slots)
    return False


@njit
def _leaves(s, now_s):
    """Whether the run is let go shortly before the end: nothing is on its way to the store that could arrive."""
    if s.active == NONE:
        return True
    rest_s = (s.upload_s if s.uploads else 0.0) - (now_s - s.active_begun)
    return s.stalls and s.uploads and s.commits and world.too_late(rest_s, s.deadline - now_s)


@njit
def _upload(s, now_s, place, step, last):
    s.active, s.active_step, s.active_last, s.active_begun = place, step, last, now_s
    s.commit_at = now_s + s.upload_s


@njit
def _hand_over(w, s, now_s, numbers, log):
    """A save lies on the local disk: it takes the uplink, waits for it, or takes the place of the one that waits."""
    s.save_s += now_s - s.since
    s.spell_save_s += now_s - s.since
    place, last = s.saves, s.emergency or s.counted
    if place < len(log):
        log[place, 0], log[place, 1], log[place, 2], log[place, 3] = numbers[0], s.step, s.emergency, 0
    s.saves += 1
    s.since, s.anchor, s.stalls, s.pending = now_s, s.step, True, NONE
    s.phase = STILL if s.emergency else TRAINING
    if s.active == NONE or (s.emergency and _must_yield(s, now_s)):
        s.queued = NONE
        _upload(s, now_s, place, s.step, last)
    else:
        s.queued, s.queued_step, s.queued_last = place, s.step, last
    asking.plan(w, s, now_s)


@njit
def _must_yield(s, now_s):
    upload_s = s.upload_s if s.uploads else 0.0
    rest_s = max(upload_s - (now_s - s.active_begun), 0.0)
    return world.must_yield(rest_s, upload_s, 0.0, s.deadline - now_s)


@njit
def _commit(w, s, now_s, log):
    """A save is safe: return whether the run is let go with it."""
    if s.active < len(log):
        log[s.active, 3] = 1
    s.now, s.committed, last = now_s, s.active_step, s.active_last
    s.uploads = True
    asking.plan(w, s, now_s)  # the upload is known before the commit is
    s.commits = s.known = True
    s.active, s.commit_at = NONE, math.inf
    if s.queued != NONE:
        place, s.queued = s.queued, NONE
        _upload(s, now_s, place, s.queued_step, s.queued_last)
    if last or (s.leaving and _leaves(s, now_s)):
        return True
    asking.plan(w, s, now_s)
    return False
