"""The machines of a trial in a kernel: ordered, started, ready, lost, replaced, billed.

A slot has the machine that trains or is waited for, and perhaps an old one: on notice, not gone yet, its successor
ordered.  The driver orders no third one beside them, and gives the old one back once its successor is ready and it has
itself let the run go, or once its successor has the run (`core.orders`, `core.machines`).  In all functions `w` is a
record of `WORLD`, `s` one of `STATE`, `m` the `Machines`.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Final

from windfall.simulation import chance
from windfall.simulation.kernel_world import part
from windfall.simulation.sampling import WINDOWS, life_s, window, within

START: Final = 0
READY: Final = 1
END: Final = 2
GONE: Final = 3
TRAINED: Final = 4
NEXT: Final = 5
"""A slot's machine: when it starts, is prepared, hears of its end or is gone, is gone; 1 once it has trained; when its
successor is ordered, where that is still to come."""
OLD_START: Final = 6
OLD_GONE: Final = 7
OLD_IDLE: Final = 8
"""The old machine: when it started; when it is taken, infinite if there is none; from when on it is idle after training."""
COLUMNS: Final = 9
MOST: Final = (1 << chance.SLOT_BITS) - 1
"""So many machines of a slot have a chance of their own: a job that needs more has no end, and the last one stays."""


@part
def order(w, s, m, slot, at_s):
    """Order the next machine of a slot."""
    number = m.numbers[slot] = m.numbers[slot] + 1
    row = m.slots[slot]
    which = chance.machine(slot, number)
    start_s = at_s + within(w.allocate_low, w.allocate_high, s.key, chance.ALLOCATE, which)
    if w.kind == WINDOWS:
        from_s, to_s = window(m.tables.values, w.length_s, s.offset_s + start_s)
        start_s, end_s = from_s - s.offset_s, to_s - s.offset_s
    else:
        end_s = start_s + life_s(w.kind, m.tables.values, s.key, slot, number)
    if number >= MOST:
        s.stuck, end_s = True, math.inf
    row[START] = start_s
    row[READY] = start_s + within(w.prepare_low, w.prepare_high, s.key, chance.PREPARE, which)
    row[END] = row[GONE] = end_s
    if w.notice_s > 0.0 and chance.uniform(s.key, chance.ANNOUNCED, which) < w.announced_share:
        if w.to_notice:
            row[GONE] = end_s + w.notice_s
        else:
            row[END] = max(end_s - w.notice_s, start_s)
    row[TRAINED] = 0.0


@part
def _bill(s, start_s, gone_s):
    s.billed_s += gone_s - start_s
    s.preemptions += 1


@part
def _old_leaves(row):
    """When the old machine is taken or, before that, given back; minus infinity without one."""
    if row[OLD_GONE] == math.inf:
        return -math.inf
    back_s = max(row[READY], row[OLD_IDLE])
    return min(row[OLD_GONE], back_s) if back_s < row[GONE] else row[OLD_GONE]


@part
def _old_left(s, row, at_s):
    """Bill the old machine if it has left by an instant."""
    left_s = _old_leaves(row)
    if -math.inf < left_s <= at_s:
        _bill(s, row[OLD_START], left_s)
        row[OLD_GONE] = math.inf


@part
def taken_over(s, m):
    """Give back the leader's old machine: its successor has the run now, even if it never trained itself."""
    row = m.slots[0]
    if row[OLD_GONE] < math.inf:
        _bill(s, row[OLD_START], min(row[OLD_GONE], s.now))
        row[OLD_GONE] = math.inf


@part
def _succeeded(w, s, row, now_s):
    """Let a machine whose life is over make room: return whether its successor is ordered by now, at `row[NEXT]`."""
    old_leaves_s = _old_leaves(row)
    # On notice itself, it is followed once the machine before it has left; gone before that one, it makes room at once.
    stays = row[GONE] > row[END] and w.at_notice and row[GONE] >= old_leaves_s
    row[NEXT] = max(row[END], old_leaves_s) if stays else row[GONE]
    if row[NEXT] > now_s:
        return False
    _old_left(s, row, row[NEXT])
    if stays:
        row[OLD_START], row[OLD_GONE] = row[START], row[GONE]
        row[OLD_IDLE] = max(row[END], s.let_go) if row[TRAINED] else math.inf
    else:
        _bill(s, row[START], row[GONE])
    return True


@part
def replace(w, s, m, now_s):
    """Order successors for all machines whose life is over by now, and for theirs."""
    for slot in range(w.machines):
        row = m.slots[slot]
        while row[END] <= now_s and _succeeded(w, s, row, now_s):
            order(w, s, m, slot, row[NEXT])
        _old_left(s, row, now_s)


@part
def gather(w, s, m):
    """Wait until all machines are ready, from `s.now` on, which becomes the instant of it."""
    while True:
        replace(w, s, m, s.now)
        ready_s, next_s, missing, over = s.now, math.inf, False, False
        for slot in range(w.machines):
            row = m.slots[slot]
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
            return
        at_s = next_s if over else min(next_s, ready_s)
        if missing:
            s.allocate_s += at_s - s.now
        else:
            s.prepare_s += at_s - s.now
        s.now = at_s


@part
def close(w, s, m):
    """Bill what is left at the end of the job, `s.now`."""
    s.let_go = math.inf
    replace(w, s, m, s.now)
    for slot in range(w.machines):
        row = m.slots[slot]
        if row[OLD_GONE] < math.inf:
            s.billed_s += s.now - row[OLD_START]
        if row[START] < s.now:
            s.billed_s += min(row[GONE], s.now) - row[START]
            s.preemptions += row[GONE] <= s.now
