"""The shortest way through a trial: one machine, no notices, and an interval that stays the same within a machine's life.

Nothing is decided then but how many saves are safe when the machine goes, so that each life is one jump.  All that is
used again stands in local variables: this loop is what `python -m benchmarks kernels` measures.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

from numba import njit

from windfall.simulation import chance
from windfall.simulation.kernel_asking import ASKED, constant_steps, first_steps, interval_steps
from windfall.simulation.kernel_machines import MOST
from windfall.simulation.kernel_world import NONE
from windfall.simulation.sampling import WINDOWS, life_s, window, within


@njit(error_model="numpy")
def alone(w):
    """Return whether no machine but one matters, and no notice."""
    return w.machines == 1 and (w.notice_s <= 0.0 or w.announced_share <= 0.0)


@njit(error_model="numpy")
def _safe(s, interval):
    """Return whether every save is safe before the next one is handed over, `interval` steps later; 0: no saves."""
    return interval == 0 or s.upload_s < interval * s.step_s + s.stall_s


@njit(error_model="numpy")
def _saves(left, first, interval):
    """Return how many saves there are in so many steps; none after the last one."""
    return 1 + (left - first - 1) // interval if interval > 0 and first < left else 0


@njit(error_model="numpy")
def _lost(lived_s, pace):
    """How many saves are safe after so much of training, short of the last step, and how long the ranks stood still.

    `pace`: training until the first save, from save to save, its inverse, the stall, the upload.  Without saves the
    first one is infinitely far.
    """
    first_s, period_s, per_s, stall_s, upload_s = pace
    since_s = lived_s - first_s
    safe_s = since_s - stall_s - upload_s
    count = int(safe_s * per_s) + 1 if safe_s >= 0.0 else 0
    begun_s = since_s - count * period_s
    still_s = min(max(begun_s, 0.0), stall_s) + min(max(begun_s - period_s, 0.0), stall_s)
    return count, count * stall_s + still_s


@njit(error_model="numpy")
def _pace(w, s, interval):
    """Return the steps to the first save and from save to save, and the same in seconds for `_lost`."""
    if interval == 0:
        return 0, 0, (math.inf, math.inf, 0.0, s.stall_s, s.upload_s)
    first, period_s = first_steps(w, interval), interval * s.step_s + s.stall_s
    return first, interval, (first * s.step_s, period_s, 1.0 / period_s, s.stall_s, s.upload_s)


@njit(error_model="numpy")
def _at_most(lived_s, left, step_s, saving):
    """As `_lost`, of a life that is long enough for all steps but perhaps not for all saves; -1 if it is for all."""
    first, interval, pace = saving
    most = _saves(left, first, interval)
    if left * step_s + most * pace[3] <= lived_s:
        return -1, most * pace[3]
    count, still_s = _lost(lived_s, pace)
    return (count, still_s) if count < most else (most, most * pace[3])


@njit(error_model="numpy")
def jump(w, s, values, ask):
    """Run the rest of a trial, whose last machine was lost at `s.now`, or as far as machines can be jumped over.

    Returns whether the trial is over; if not, the next machine needs `kernel_training.walk`, or its policy answers badly.
    """
    interval = constant_steps(w, s)
    if interval != ASKED and (interval < 0 or not _safe(s, interval)):
        return False
    asked = interval == ASKED
    first, interval, pace = _pace(w, s, 0 if asked else interval)
    kind, key, step_s, steps = w.kind, s.key, s.step_s, w.steps
    allocate_low, allocate_high, prepare_low, prepare_high = (
        w.allocate_low,
        w.allocate_high,
        w.prepare_low,
        w.prepare_high,
    )
    offset_s, length_s = s.offset_s, w.length_s
    now_s, base, number, done = s.now, s.committed, s.last, False
    save_s, allocate_s, prepare_s = 0.0, 0.0, 0.0
    while number < MOST:
        start_s = now_s + within(allocate_low, allocate_high, key, chance.ALLOCATE, number + 1)
        if kind == WINDOWS:
            from_s, to_s = window(values, length_s, offset_s + start_s)
            start_s, end_s = from_s - offset_s, to_s - offset_s
        else:
            end_s = start_s + life_s(kind, values, key, 0, number + 1)
        ready_s = start_s + within(prepare_low, prepare_high, key, chance.PREPARE, number + 1)
        lived_s, whole_s = end_s - ready_s, (steps - base) * step_s
        if asked and lived_s > 0.0:
            interval = _answer(w, s, ask, (ready_s - start_s, whole_s))
            if interval < 0 or not _safe(s, interval):
                break
            first, interval, pace = _pace(w, s, interval)
        number += 1
        allocate_s += start_s - now_s
        prepare_s += min(ready_s, end_s) - start_s
        now_s = end_s
        if lived_s > 0.0:
            if lived_s < whole_s:
                count, still_s = _lost(lived_s, pace)
            else:
                count, still_s = _at_most(lived_s, steps - base, step_s, (first, interval, pace))
            save_s += still_s
            if count < 0:
                done, now_s = True, ready_s + whole_s + still_s
                break
            base += first + (count - 1) * interval if count > 0 else 0
    _add(s, now_s - s.now, (save_s, allocate_s, prepare_s), (steps if done else base, number - s.last, done))
    s.last = number
    return done


@njit(error_model="numpy")
def _answer(w, s, ask, machine):
    """The interval that a user's policy wants for a machine of this age with so much work left; `NONE` for nonsense."""
    age_s, left_s = machine
    s.interval_s = ask(age_s, left_s, s.stall_s, s.stall_s + s.upload_s, w.mttp_s, w.restart_s)
    return interval_steps(s.interval_s, s.step_s) if s.interval_s > 0.0 else NONE


@njit(error_model="numpy")
def _add(s, took_s, parts, counts):
    """Take in the machines that were jumped over: what no part explains was made again."""
    save_s, allocate_s, prepare_s = parts
    base, machines, done = counts
    if machines > done:
        kept_s = (base - s.committed) * s.step_s
        s.redo_s += took_s - save_s - allocate_s - prepare_s - kept_s
    s.now += took_s
    s.committed, s.done = base, done
    s.preemptions += machines - done
    s.save_s, s.allocate_s, s.prepare_s = s.save_s + save_s, s.allocate_s + allocate_s, s.prepare_s + prepare_s
    s.billed_s += took_s - allocate_s
