"""The shortest way through a trial: one machine, no notices, and an interval that stays the same within a machine's life.

Nothing is decided then but how many saves are safe when the machine goes, so that each life is one jump.  The loop is
compiled for each kind of lives by itself, and all that it uses again stands in local numbers: a life takes some
nanoseconds (`python -m benchmarks kernels`), and half of that are its draws.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import math
from typing import Any, Final

import numpy as np

from windfall.simulation import chance
from windfall.simulation.chance import GOLDEN, UNIT, exponential_of, scaled_of, uniform_of
from windfall.simulation.kernel_asking import constant_steps, first_steps, interval_steps
from windfall.simulation.kernel_machines import MOST
from windfall.simulation.kernel_rows import JUMPING, OVER, STAGE, WALKING, draw, read, write
from windfall.simulation.kernel_world import NONE, STATE, part
from windfall.simulation.sampling import MEMORYLESS, RECORDED, WINDOWS, quantile

FAR: Final = 1e300
"""When a machine saves that never saves, and goes that stays [s]."""
SAME: Final = 1e-12
"""A machine that goes within this share of its time before a save is safe goes after it, as at the same instant."""
quick: Final[Any] = functools.partial(part, fastmath={"contract"})
"""Compiled with products and sums in one instruction, which rounds once instead of twice."""
_TO_LIFE: Final = np.uint64((int(GOLDEN) * (chance.LIFE << 60)) % 2**64)
_TO_ALLOCATE: Final = np.uint64((int(GOLDEN) * (chance.ALLOCATE << 60)) % 2**64)
_TO_PREPARE: Final = np.uint64((int(GOLDEN) * (chance.PREPARE << 60)) % 2**64)
"""From the state of a machine's number to those of its draws (`chance.state`)."""


@quick(forceinline=True)
def _steady(w, s, interval):
    """Return whether every save is safe before the training for the next one is over, and the first save no exception."""
    return interval == 0 or (s.upload_s <= interval * s.step_s and first_steps(w, interval) == interval)


@quick(forceinline=True)
def _pace(s, interval):
    """Return training until the first save, from save to save, its inverse, the stall, until the first save is safe [s]."""
    if interval == 0:
        return FAR, FAR, 0.5 / FAR, s.stall_s, FAR
    first_s = interval * s.step_s
    period_s = first_s + s.stall_s
    return first_s, period_s, (1.0 + SAME) / period_s, s.stall_s, period_s + s.upload_s


@quick(forceinline=True)
def _lost(lived_s, pace):
    """How many saves are safe after so much of training, short of the last step, and how long the next one held it up."""
    first_s, period_s, per_s, stall_s, safe_s = pace
    count = np.floor(max((lived_s - safe_s) * per_s + 1.0, 0.0))
    return count, min(max(lived_s - first_s - count * period_s, 0.0), stall_s)


@quick()
def _at_most(lived_s, left, step_s, interval, pace):
    """As `_lost`, of a life that is long enough for all steps but perhaps not for all saves; the third: if it is for all."""
    most = np.ceil(left / interval) - 1.0 if interval > 0 else 0.0
    if left * step_s + most * pace[3] <= lived_s:
        return most, 0.0, True
    count, still_s = _lost(lived_s, pace)
    return (count, still_s, False) if count < most else (most, 0.0, False)


@quick(forceinline=True)
def _drawn(low_s, unit_s, made_from):
    """As `sampling.within`."""
    return low_s + scaled_of(made_from, unit_s) if unit_s > 0.0 else low_s


@quick(inline="always")
def _life(kind, values, made_from, which):
    """As `sampling.life_s`."""
    if kind == MEMORYLESS:
        turns = values.shape[1]
        mean_s = values[0, np.uint64(which % turns)] if turns > 1 else values[0, 0]
        return min(mean_s, FAR) * exponential_of(made_from)
    if kind == RECORDED:
        return values[0, np.uint64(min(which, values.shape[1] - 1))]
    return quantile(values, uniform_of(made_from))


@quick(inline="always")
def _open(windows, length_s, turn_s, turn, at_s):
    """Return which window is the first that ends after an instant, from a window that is not later: (turn_s, turn)."""
    while turn_s + windows[turn, 1] <= at_s:
        turn += np.uint64(1)
        if turn == np.uint64(len(windows)):
            turn_s, turn = turn_s + length_s, np.uint64(0)
    return turn_s, turn


@quick(forceinline=True)
def _answered(w, s, answer_s):
    """Return the interval of a user's policy in steps; `NONE` if it gave none, or one that cannot be jumped over."""
    interval = interval_steps(answer_s, s.step_s) if answer_s > 0.0 else NONE
    return interval if interval != NONE and _steady(w, s, interval) else NONE


@quick(inline="always")
def _jump(kind, w, s, values, ask, interval):  # noqa: PLR0917 - flat, for speed
    """Run the rest of a trial, whose last machine was lost at `s.now`, or as far as machines can be jumped over."""
    steps, step_s, stall_s, durable_s = w.steps, s.step_s, s.stall_s, s.stall_s + s.upload_s
    mttp_s, restart_s, length_s = w.mttp_s, w.restart_s, w.length_s
    wait_s, wait_unit_s = w.allocate_low, (w.allocate_high - w.allocate_low) * UNIT
    boot_s, boot_unit_s = w.prepare_low, (w.prepare_high - w.prepare_low) * UNIT
    pace, interval_f, answered_s = _pace(s, interval), float(interval), math.nan
    which, done = s.last, False
    made_from = s.key + GOLDEN * np.uint64(which + 1)
    turn, turn_s, now_s = np.uint64(0), 0.0, 0.0
    if kind == WINDOWS:
        now_s = s.now + s.offset_s
        turn_s = math.floor(now_s / length_s) * length_s
    left, saves = float(steps - s.committed), 0.0
    still_s = lives_s = allocate_s = prepare_s = 0.0
    while which < MOST:
        made_from += GOLDEN
        which += 1
        waited_s = _drawn(wait_s, wait_unit_s, made_from + _TO_ALLOCATE)
        prepared_s = _drawn(boot_s, boot_unit_s, made_from + _TO_PREPARE)
        if kind == WINDOWS:
            turn_s, turn = _open(values, length_s, turn_s, turn, now_s + waited_s)
            start_s = max(now_s + waited_s, turn_s + values[turn, 0])
            waited_s = start_s - now_s
            now_s = turn_s + values[turn, 1]
            life_s = now_s - start_s
        else:
            life_s = _life(kind, values, made_from + _TO_LIFE, which)
        lived_s, whole_s = life_s - prepared_s, left * step_s
        if ask is not None and lived_s > 0.0:
            answer_s = ask(prepared_s, whole_s, stall_s, durable_s, mttp_s, restart_s)
            if answer_s != answered_s:
                answered_s, interval = answer_s, _answered(w, s, answer_s)
                if interval == NONE:
                    which -= 1
                    break
                pace, interval_f = _pace(s, interval), float(interval)
        if lived_s < whole_s:
            count, held_s = _lost(lived_s, pace)
        else:
            count, held_s, done = _at_most(lived_s, left, step_s, interval, pace)
            if done:
                life_s = prepared_s + whole_s + count * stall_s
        saves, still_s = saves + count, still_s + held_s
        allocate_s += waited_s
        prepare_s += min(prepared_s, life_s)
        lives_s += life_s
        if done:
            break
        left -= count * interval_f
    _add(
        s,
        (saves * stall_s + still_s, allocate_s, prepare_s, lives_s),
        (steps if done else steps - int(left), which, done),
    )
    return done


@quick(forceinline=True)
def _add(s, parts, counts):
    """Take in the machines that were jumped over: what no part explains was made again."""
    save_s, allocate_s, prepare_s, lives_s = parts
    base, last, done = counts
    lost = last - s.last - done
    if lost > 0:
        s.redo_s += lives_s - save_s - prepare_s - (base - s.committed) * s.step_s
    s.now += lives_s + allocate_s
    s.committed, s.last, s.done = base, last, done
    s.preemptions += lost
    s.save_s, s.allocate_s, s.prepare_s = s.save_s + save_s, s.allocate_s + allocate_s, s.prepare_s + prepare_s
    s.billed_s += lives_s


def jumps(kind, version):
    """Return the loop over trials for a kind of lives, to be compiled.

    It runs each row of `rows` that is `JUMPING` to its end, or as far as machines can be jumped over: then it is
    `WALKING`, its next machine for `kernel_trial`, or its policy answers badly.
    """

    def jump(w, values, ask, number, rows):
        if version < 0:  # never: `version` is here to be part of the cache's key
            return
        s = np.zeros(1, STATE)[0]
        stream, first = chance.stream(number[0]), number[1]
        for place in range(len(rows)):
            if rows[place, STAGE] != JUMPING:
                continue
            s.key = chance.key_of(stream, first + place)
            draw(w, s)
            read(s, rows, place)
            interval = 0 if ask is not None else constant_steps(w, s)
            done = interval != NONE and _steady(w, s, interval) and _jump(kind, w, s, values, ask, interval)
            write(s, rows, place, OVER if done else WALKING)

    return jump
