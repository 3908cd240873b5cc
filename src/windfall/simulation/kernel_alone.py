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
from windfall.simulation.kernel_machines import MOST, order
from windfall.simulation.kernel_world import INJECTED
from windfall.simulation.sampling import WINDOWS, life_s, window, within


@njit
def alone(w):
    """Return whether no machine but one matters, and no notice."""
    return w.machines == 1 and (w.notice_s <= 0.0 or w.announced_share <= 0.0)


@njit
def _safe(s, interval):
    """Return whether every save is safe before the next one is handed over, `interval` steps later; 0: no saves."""
    return interval == 0 or s.upload_s < interval * s.step_s + s.stall_s


@njit
def _saves(left, first, interval):
    """Return how many saves there are in so many steps; none after the last one."""
    return 1 + (left - first - 1) // interval if 0 < interval and first < left else 0


@njit
def jump(w, s, m, ask):
    """Run the rest of a trial, from the order of the slot's machine at `s.now` on.

    Returns true at the end of the trial, whose sums are then complete; false where a life needs `kernel_training.walk`:
    the slot's machine is then the one in question, ordered at `s.now`.  A policy that answers badly is left to that too.
    """
    interval = constant_steps(w, s)
    if interval != ASKED and (interval < 0 or not _safe(s, interval)):
        return False
    steps, step_s, stall_s, upload_s, key = w.steps, s.step_s, s.stall_s, s.upload_s, s.key
    first = first_steps(w, interval)
    period_s = interval * step_s + stall_s
    per_s = 1.0 / period_s if period_s > 0.0 else 0.0
    now_s, base, number, preemptions = s.now, s.committed, m.numbers[0] - 1, s.preemptions
    redo_s, save_s, allocate_s, prepare_s, billed_s = s.redo_s, s.save_s, s.allocate_s, s.prepare_s, s.billed_s
    done = False
    while True:
        number += 1
        start_s = now_s + within(w.allocate_low, w.allocate_high, key, chance.ALLOCATE, number)
        if w.kind == WINDOWS:
            from_s, to_s = window(m.tables.values, w.length_s, s.offset_s + start_s)
            start_s, end_s = from_s - s.offset_s, to_s - s.offset_s
        else:
            end_s = start_s + life_s(w.kind, m.tables.values, key, 0, number)
        ready_s = start_s + within(w.prepare_low, w.prepare_high, key, chance.PREPARE, number)
        if number >= MOST:
            s.stuck, end_s = True, math.inf
        if end_s <= ready_s:
            allocate_s += start_s - now_s
            prepare_s += end_s - start_s
        else:
            if w.policy == INJECTED:
                left_s = (steps - base) * step_s
                s.interval_s = ask(ready_s - start_s, left_s, stall_s, stall_s + upload_s, w.mttp_s, w.restart_s)
                if not s.interval_s > 0.0:
                    break
                interval = interval_steps(s.interval_s, step_s)
                if not _safe(s, interval):
                    break
                first = first_steps(w, interval)
                period_s = interval * step_s + stall_s
                per_s = 1.0 / period_s
            allocate_s += start_s - now_s
            prepare_s += ready_s - start_s
            left, lived_s = steps - base, end_s - ready_s
            most = _saves(left, first, interval)
            last_s = left * step_s + most * stall_s
            if last_s <= lived_s:
                done = True
                save_s += most * stall_s
                now_s = ready_s + last_s
                billed_s += now_s - start_s
                break
            since_s = lived_s - first * step_s
            safe_s = since_s - stall_s - upload_s
            count = min(int(safe_s * per_s) + 1, most) if safe_s >= 0.0 else 0
            still_s = count * stall_s
            if count < most:
                begun_s = since_s - count * period_s
                still_s += min(max(begun_s, 0.0), stall_s)
                if count + 1 < most:
                    still_s += min(max(begun_s - period_s, 0.0), stall_s)
            kept = first + (count - 1) * interval if count > 0 else 0
            base += kept
            save_s += still_s
            redo_s += lived_s - still_s - kept * step_s
        billed_s += end_s - start_s
        preemptions += 1
        now_s = end_s
    s.now, s.committed, s.preemptions, s.done = now_s, base, preemptions, done
    s.redo_s, s.save_s, s.allocate_s, s.prepare_s, s.billed_s = redo_s, save_s, allocate_s, prepare_s, billed_s
    if not done:
        m.numbers[0] = number - 1
        order(w, s, m, 0, now_s)
    return done
