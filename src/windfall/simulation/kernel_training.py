"""An interval of training in a kernel: from all machines ready until the run is released, or to the last step.

A compiled copy of `core.worker` over a script, held equal to it by the agreement tests.  `walk` goes from event to event:
the first step, which gives the length of a step; saves; commits; ends of machines.  In all functions `w` is a record of
`WORLD`, `s` one of `STATE`, `m` the `KernelMachines`; `log` receives the saves (machine, step, kind, committed), up to its
length.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Final

from windfall.simulation import kernel_saves
from windfall.simulation import kernel_world as world
from windfall.simulation.kernel_machines import END, GONE, TRAINED, taken_over
from windfall.simulation.kernel_world import NONE, STALLED, STILL, TRAINING, part

COMMIT: Final = 0
FINISH: Final = 1
MEASURE: Final = 2
SAVE: Final = 3
HANDOVER: Final = 4


@part
def start_interval(w, s, m):
    """Start an interval at `s.now`, from the newest committed checkpoint, with the measurements of the run's earlier ones."""
    s.started = s.since = s.now
    s.interval_save_s = 0.0
    s.base = s.step = s.anchor = s.committed
    s.phase, s.measured, s.emergency = TRAINING, False, False
    s.stalls = s.uploads = s.commits = s.known
    s.pending = s.held = s.active = s.queued = NONE
    s.commit_at = s.deadline = s.leave_at = s.released = math.inf
    s.noticed = s.counted = False
    s.estimate_key = NONE
    s.end_at = _next_end(w, m, s.now)
    for slot in range(w.machines):
        m.slots[slot, TRAINED] = 1.0
    taken_over(s, m)
    if w.policy == world.EVERY_S:
        s.interval_s = w.every
    elif w.policy == world.OPTIMAL:
        left = (w.steps - s.base + w.unit - 1) // w.unit
        s.table, s.table_end = m.tables.offsets[left], m.tables.offsets[left + 1]
    kernel_saves.plan(w, s, m.tables, s.now)


@part
def _next_end(w, m, now_s):
    least_s = math.inf
    for slot in range(w.machines):
        if m.slots[slot, END] > now_s:
            least_s = min(least_s, m.slots[slot, END])
    return least_s


@part
def _next(w, s):
    """Return the time and kind of the next event of the training or an upload."""
    at_s, what = s.commit_at, COMMIT
    if s.phase == TRAINING:
        last_s = s.since + (w.steps - s.step) * s.step_s
        if last_s < at_s:
            at_s, what = last_s, FINISH
        first_s = s.started + s.step_s
        if not s.measured and first_s < at_s:
            at_s, what = first_s, MEASURE
        if s.pending != NONE and s.pending < w.steps:
            save_s = s.since + (s.pending - s.step) * s.step_s
            if save_s < at_s:
                at_s, what = save_s, SAVE
    elif s.phase == STALLED and s.since + s.stall_s < at_s:
        at_s, what = s.since + s.stall_s, HANDOVER
    return at_s, what


@part
def walk(w, s, m, log):
    """Train from `start_interval` until the job is done (`s.done`) or the run is released, at `s.now`."""
    over = False
    while not over:
        at_s, what = _next(w, s)
        if min(s.end_at, s.deadline) < at_s:
            s.now = min(s.end_at, s.deadline)
            over = _machine_ends(w, s, m)
            continue
        s.now = at_s
        if what == FINISH:
            over = s.done = True
        elif what == COMMIT:
            over = _commit(w, s, m, log)
        elif what == MEASURE:
            s.measured = True
            over = _leaves(s)
            kernel_saves.plan(w, s, m.tables, s.now)
        elif what == SAVE:
            s.since, s.step, s.phase = s.now, s.pending, STALLED
        else:
            over = _hand_over(w, s, m, log)
    s.losses += not s.done
    _settle(s)


@part
def _settle(s):
    """Account for the interval's time: what is neither stalled nor stored is redo."""
    s.released = s.now
    if s.phase != TRAINING:
        s.save_s += s.now - s.since
        s.interval_save_s += s.now - s.since
    if not s.done:
        s.redo_s += s.now - s.started - s.interval_save_s - (s.committed - s.base) * s.step_s


@part
def _release(s):
    """Release the run: its record keeps the costs of saves."""
    s.known = s.known or (s.stalls and s.uploads and s.commits)
    s.announced += s.noticed
    return True


@part
def _machine_ends(w, s, m):
    """End a machine's lifetime or its notice; return whether the interval is over."""
    leader = m.slots[0]
    if leader[END] == leader[GONE] == s.now:  # it can report nothing any more
        return True
    if s.now == s.deadline:
        return _deadline(s, m)
    for slot in range(w.machines):
        row = m.slots[slot]
        if row[END] != s.now:
            continue
        if row[GONE] == s.now:
            return _release(s)
        first = not s.noticed
        s.noticed = True
        s.deadline = min(s.deadline, row[GONE])
        s.leave_at = s.deadline - world.release_margin_s(s.deadline - s.now)
        if first:
            kernel_saves.notice(w, s, s.now)
    s.end_at = _next_end(w, m, s.now)
    return False


@part
def _deadline(s, m):
    """Handle the announced end, the last moment to release the run."""
    return _leaves(s) or m.slots[0, GONE] == s.now or _release(s)


@part
def _leaves(s):
    """Release the run near its end if no upload under way can still arrive; return whether it did."""
    if s.now < s.leave_at:
        return False
    if s.active != NONE:
        rest_s = (s.upload_s if s.uploads else 0.0) - (s.now - s.active_since)
        measured = s.stalls and s.uploads and s.commits
        if not world.releases_now(measured, rest_s, s.deadline - s.now, s.deadline - s.leave_at):
            return False
    return _release(s)


@part
def _upload(s, place, step, last):
    s.active, s.active_step, s.active_last, s.active_since = place, step, last, s.now
    s.commit_at = s.now + s.upload_s


@part
def _hand_over(w, s, m, log):
    """Handle a save on the local disk: it takes the uplink, waits for it, or replaces the waiting one."""
    s.save_s += s.now - s.since
    s.interval_save_s += s.now - s.since
    place, last = s.saves, s.emergency or s.counted
    if place < len(log):
        log[place, 0], log[place, 1], log[place, 2], log[place, 3] = m.numbers[0], s.step, s.emergency, 0
    s.saves += 1
    s.since, s.anchor, s.stalls, s.pending = s.now, s.step, True, NONE
    s.phase = STILL if last else TRAINING
    if s.active == NONE or (s.emergency and _must_yield(s)):
        s.queued = NONE
        _upload(s, place, s.step, last)
    else:
        s.queued, s.queued_step, s.queued_last = place, s.step, last
    if _leaves(s):
        return True
    kernel_saves.plan(w, s, m.tables, s.now)
    return False


@part
def _must_yield(s):
    upload_s = s.upload_s if s.uploads else 0.0
    rest_s = max(upload_s - (s.now - s.active_since), 0.0)
    return world.must_yield(rest_s, upload_s, 0.0, s.deadline - s.now)


@part
def _commit(w, s, m, log):
    """Commit a save; return whether the run is released with it."""
    if s.active < len(log):
        log[s.active, 3] = 1
    s.committed, last = s.active_step, s.active_last
    s.uploads = True
    kernel_saves.plan(w, s, m.tables, s.now)  # the upload is measured before the commit
    s.known = s.known or s.commits  # a checkpoint's record is written before its own commit is measured
    s.active, s.commit_at = NONE, math.inf
    if s.queued != NONE:
        place, s.queued = s.queued, NONE
        _upload(s, place, s.queued_step, s.queued_last)
    if not last and _leaves(s):  # decided with the upload, as is the record of this release
        return True
    s.commits = True
    if last:
        return _release(s)
    if _leaves(s):
        return True
    kernel_saves.plan(w, s, m.tables, s.now)
    return False
