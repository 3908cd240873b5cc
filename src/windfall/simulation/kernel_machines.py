"""The machines of a trial in a kernel: ordered, started, ready, lost, replaced, billed.

A slot's row in `slots` is what is waited for or trains: when it starts, is ready, and ends; when it is gone; when its
successor is ordered.  In all functions `w` is a `World`, `s` a row of `STATE`, `key` a trial's key of chance.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numba import njit

from windfall.simulation import chance
from windfall.simulation.sampling import WINDOWS, life_s, window, within

START: Final = 0
READY: Final = 1
END: Final = 2
GONE: Final = 3
NEXT: Final = 4
COLUMNS: Final = 5
MOST: Final = (1 << chance.SLOT_BITS) - 1
"""So many machines of a slot have a chance of their own: a job that needs more has no end, and the last one stays."""


@njit
def order(w, s, key, slots, numbers, slot, at_s):
    """Order the next machine of a slot; `numbers[slot]` counts them."""
    number = numbers[slot] = numbers[slot] + 1
    which = chance.machine(slot, number)
    start_s = at_s + within(w.allocate_s[0], w.allocate_s[1], key, chance.ALLOCATE, which)
    if w.kind == WINDOWS:
        from_s, to_s = window(w.values, w.length_s, s.offset_s + start_s)
        start_s, end_s = from_s - s.offset_s, to_s - s.offset_s
    else:
        end_s = start_s + life_s(w.kind, w.values, key, slot, number)
    if number >= MOST:
        s.stuck, end_s = True, math.inf
    announced = w.notice_s > 0.0 and chance.uniform(key, chance.ANNOUNCED, which) < w.announced_share
    row = slots[slot]
    row[START] = start_s
    row[READY] = start_s + within(w.prepare_s[0], w.prepare_s[1], key, chance.PREPARE, which)
    row[END] = end_s
    row[GONE] = end_s + w.notice_s if announced else end_s
    row[NEXT] = end_s if announced and w.successor_at_notice else row[GONE]


@njit
def _taken(s, row, now_s, late):
    """Bill a machine whose life is over; one that is not gone yet is kept in `late`, for the job may be done before."""
    if row[GONE] <= now_s:
        s.billed_s += row[GONE] - row[START]
        s.preemptions += 1
        return late
    if s.late == len(late):
        late = _flushed(s, now_s, late)
    late[s.late, 0], late[s.late, 1] = row[START], row[GONE]
    s.late += 1
    return late


@njit
def _flushed(s, now_s, late):
    kept = 0
    for place in range(s.late):
        if late[place, 1] <= now_s:
            s.billed_s += late[place, 1] - late[place, 0]
            s.preemptions += 1
        else:
            late[kept] = late[place]
            kept += 1
    s.late = kept
    if 2 * kept <= len(late):
        return late
    longer = np.empty((2 * len(late), 2))
    longer[:kept] = late[:kept]
    return longer


@njit
def replace(w, s, key, slots, numbers, now_s, late):
    """Order successors for all machines whose life is over by now, and for theirs."""
    for slot in range(w.machines):
        row = slots[slot]
        while row[END] <= now_s and row[NEXT] <= now_s:
            late = _taken(s, row, now_s, late)
            order(w, s, key, slots, numbers, slot, row[NEXT])
    return late


@njit
def gather(w, s, key, slots, numbers, late):
    """Wait until all machines are ready, from `s.now` on, which becomes the instant of it."""
    while True:
        late = replace(w, s, key, slots, numbers, s.now, late)
        ready_s, next_s, missing, over = s.now, math.inf, False, False
        for slot in range(w.machines):
            row = slots[slot]
            if row[END] <= s.now:  # on notice, its successor not ordered yet
                missing = over = True
                next_s = min(next_s, row[NEXT])
                continue
            ready_s = max(ready_s, row[READY])
            next_s = min(next_s, row[END])
            if row[START] > s.now:
                missing = True
                next_s = min(next_s, row[START])
        if ready_s <= s.now and not over:
            return late
        at_s = next_s if over else min(next_s, ready_s)
        if missing:
            s.allocate_s += at_s - s.now
        else:
            s.prepare_s += at_s - s.now
        s.now = at_s


@njit
def close(w, s, key, slots, numbers, late):
    """Bill what is left at the end of the job, `s.now`."""
    late = replace(w, s, key, slots, numbers, s.now, late)
    for place in range(s.late):
        s.billed_s += min(late[place, 1], s.now) - late[place, 0]
        s.preemptions += late[place, 1] <= s.now
    for slot in range(w.machines):
        row = slots[slot]
        if row[START] < s.now:
            s.billed_s += min(row[GONE], s.now) - row[START]
            s.preemptions += row[GONE] <= s.now
    return late
