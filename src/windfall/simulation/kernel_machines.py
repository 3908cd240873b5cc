"""The machines of a trial in a kernel: ordered, started, ready, lost, replaced, billed.

A compiled copy of `core.orders` and `core.machines`, held equal to them by the agreement tests.  A slot has the machine
that trains or is awaited, and perhaps an old one: on notice, still running, its successor ordered.  The driver orders no
third one beside them.  It releases the old one once its successor is ready and the old one has released the run, or once
the successor has the run.  In all functions `w` is a record of `WORLD`, `s` one of `STATE`, `m` the `KernelMachines`.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Final

from windfall.simulation import random_draws
from windfall.simulation.kernel_world import part
from windfall.simulation.sampling import WINDOWS, lifetime_s, window, within

START: Final = 0
READY: Final = 1
END: Final = 2
GONE: Final = 3
TRAINED: Final = 4
NEXT: Final = 5
"""A slot's machine: the times of its start, readiness, notice (or end) and end; 1 once it has trained; the time of its
successor's order, while that is still ahead."""
OLD_START: Final = 6
OLD_GONE: Final = 7
OLD_IDLE: Final = 8
"""The old machine: its start; its preemption, infinite without an old machine; the start of its idle time after training."""
COLUMNS: Final = 9
MOST: Final = (1 << random_draws.SLOT_BITS) - 1
"""How many machines of a slot have draws of their own: a job that needs more is stuck, and the last one remains."""


@part
def order(w, s, m, slot, at_s):
    """Order the next machine of a slot."""
    number = m.numbers[slot] = m.numbers[slot] + 1
    row = m.slots[slot]
    which = random_draws.machine(slot, number)
    start_s = at_s + within(w.allocate_low, w.allocate_high, s.key, random_draws.ALLOCATE, which)
    if w.kind == WINDOWS:
        from_s, to_s = window(m.tables.values, w.length_s, s.offset_s + start_s)
        start_s, end_s = from_s - s.offset_s, to_s - s.offset_s
    else:
        end_s = start_s + lifetime_s(w.kind, m.tables.values, s.key, slot, number)
    if number >= MOST:
        s.stuck, end_s = True, math.inf
    row[START] = start_s
    row[READY] = start_s + within(w.prepare_low, w.prepare_high, s.key, random_draws.PREPARE, which)
    row[END] = row[GONE] = end_s
    if w.notice_s > 0.0 and random_draws.uniform(s.key, random_draws.ANNOUNCED, which) < w.announced_share:
        if w.ends_at_notice:
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
    """Return when the old machine is preempted or, before that, released; minus infinity without one."""
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
    """Release the leader's old machine: its successor has the run now, even if the old one never trained."""
    row = m.slots[0]
    if row[OLD_GONE] < math.inf:
        _bill(s, row[OLD_START], min(row[OLD_GONE], s.now))
        row[OLD_GONE] = math.inf


@part
def _makes_room(w, s, row, now_s):
    """Make room for the successor of a machine at its end; return whether it is ordered by now, at `row[NEXT]`."""
    old_leaves_s = _old_leaves(row)
    # On notice, its successor is ordered once the machine before it has left; ended before that one, it makes room at once.
    remains = row[GONE] > row[END] and w.at_notice and row[GONE] >= old_leaves_s
    row[NEXT] = max(row[END], old_leaves_s) if remains else row[GONE]
    if row[NEXT] > now_s:
        return False
    _old_left(s, row, row[NEXT])
    if remains:
        row[OLD_START], row[OLD_GONE] = row[START], row[GONE]
        row[OLD_IDLE] = max(row[END], s.released) if row[TRAINED] else math.inf
    else:
        _bill(s, row[START], row[GONE])
    return True


@part
def replace(w, s, m, now_s):
    """Order successors for all machines at their end by now, and for their successors."""
    for slot in range(w.machines):
        row = m.slots[slot]
        while row[END] <= now_s and _makes_room(w, s, row, now_s):
            order(w, s, m, slot, row[NEXT])
        _old_left(s, row, now_s)


@part
def gather(w, s, m):
    """Advance `s.now` until all machines are ready."""
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
    """Bill the remaining machines at the end of the job, `s.now`."""
    s.released = math.inf
    replace(w, s, m, s.now)
    for slot in range(w.machines):
        row = m.slots[slot]
        if row[OLD_GONE] < math.inf:
            s.billed_s += s.now - row[OLD_START]
        if row[START] < s.now:
            s.billed_s += min(row[GONE], s.now) - row[START]
            s.preemptions += row[GONE] <= s.now
