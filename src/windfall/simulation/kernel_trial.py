"""A trial in a kernel, and many of them: the compiled entry points.

The kernels are a second, compiled implementation of the reducers' decisions; the agreement tests
(`tests/simulation/test_agreement.py`) hold them equal to the event engine, trial by trial.

`walker` and `jumper` compile the loops under a name with a digest of their sources: numba's cache on disk checks only the
file of the cached function, and would keep an old version of a rule in `policies.checkpointing.rules`.

The fast path of a trial: one machine, no notices, and an interval that is constant within a machine's lifetime.

A compiled implementation, held equal to the event engine by the agreement tests.  The only question is how many saves are
stored when the machine ends, so that each lifetime is one jump.  The loop is compiled for each kind of lifetimes, and all
repeated values are local numbers: a lifetime takes some nanoseconds (`python -m benchmarks kernels`), half of them draws.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from numba import njit

from windfall.simulation import random_draws
from windfall.simulation.kernel_machines import COLUMNS, MOST, OLD_GONE, START, close, gather, order
from windfall.simulation.kernel_saves import constant_steps, first_steps, interval_steps
from windfall.simulation.kernel_training import start_interval, walk
from windfall.simulation.kernel_world import (
    INJECTED,
    JUMPING,
    NONE,
    OVER,
    REFUSED,
    STAGE,
    STATE,
    STUCK,
    WALKING,
    KernelMachines,
    draw,
    part,
    read,
    write,
)
from windfall.simulation.random_draws import GOLDEN, UNIT, exponential_of, scaled_of, uniform_of
from windfall.simulation.sampling import MEMORYLESS, RECORDED, WINDOWS, quantile

# mypy: disable-error-code="no-untyped-def"


FAR: Final = 1e300
"""Time of a save that never happens, and lifetime of a machine that is never lost [s]."""
EQUAL_SHARE: Final = 1e-12
"""A machine that ends within this share of its time before a save is stored ends after it, as at the same instant."""
quick: Final[Any] = functools.partial(part, fastmath={"contract"})
"""Compiled with products and sums in one instruction, which rounds once instead of twice."""
_TO_LIFE: Final = np.uint64((int(GOLDEN) * (random_draws.LIFE << 60)) % 2**64)
_TO_ALLOCATE: Final = np.uint64((int(GOLDEN) * (random_draws.ALLOCATE << 60)) % 2**64)
_TO_PREPARE: Final = np.uint64((int(GOLDEN) * (random_draws.PREPARE << 60)) % 2**64)
"""Offsets from the state of a machine's number to those of its draws (`random_draws.state`)."""


@quick(forceinline=True)
def _steady(w, s, interval):
    """Return whether every save is stored before the next one starts, and the first save follows the same interval."""
    return interval == 0 or (s.upload_s <= interval * s.step_s and first_steps(w, interval) == interval)


@quick(forceinline=True)
def _pace(s, interval):
    """Return the time to the first save, between saves, its inverse, the stall, and the time to the first stored save [s]."""
    if interval == 0:
        return FAR, FAR, 0.5 / FAR, s.stall_s, FAR
    first_s = interval * s.step_s
    period_s = first_s + s.stall_s
    return first_s, period_s, (1.0 + EQUAL_SHARE) / period_s, s.stall_s, period_s + s.upload_s


@quick(forceinline=True)
def _lost(lived_s, pace):
    """Return the stored saves after `lived_s` of training short of the last step, and the stall of a save under way."""
    first_s, period_s, per_s, stall_s, safe_s = pace
    count = np.floor(max((lived_s - safe_s) * per_s + 1.0, 0.0))
    return count, min(max(lived_s - first_s - count * period_s, 0.0), stall_s)


@quick()
def _at_most(lived_s, left, step_s, interval, pace):
    """As `_lost`, of a lifetime long enough for all steps; the third value: whether it is for all saves too."""
    most = np.ceil(left / interval) - 1.0 if interval > 0 else 0.0
    if left * step_s + most * pace[3] <= lived_s:
        return most, 0.0, True
    count, stalled_s = _lost(lived_s, pace)
    return (count, stalled_s, False) if count < most else (most, 0.0, False)


@quick(forceinline=True)
def _drawn(low_s, unit_s, made_from):
    """As `sampling.within`."""
    return low_s + scaled_of(made_from, unit_s) if unit_s > 0.0 else low_s


@quick(inline="always")
def _life(kind, values, made_from, which):
    """As `sampling.lifetime_s`."""
    if kind == MEMORYLESS:
        turns = values.shape[1]
        mean_s = values[0, np.uint64(which % turns)] if turns > 1 else values[0, 0]
        return min(mean_s, FAR) * exponential_of(made_from)
    if kind == RECORDED:
        return values[0, np.uint64(min(which, values.shape[1] - 1))]
    return quantile(values, uniform_of(made_from))


@quick(inline="always")
def _open(windows, length_s, turn_s, turn, at_s):
    """Return the first window that ends after an instant, searching from an earlier one: (turn_s, turn)."""
    while turn_s + windows[turn, 1] <= at_s:
        turn += np.uint64(1)
        if turn == np.uint64(len(windows)):
            turn_s, turn = turn_s + length_s, np.uint64(0)
    return turn_s, turn


@quick(forceinline=True)
def _answered(w, s, answer_s):
    """Return the interval of a user's policy in steps; `NONE` if it is invalid or cannot be jumped over."""
    interval = interval_steps(answer_s, s.step_s) if answer_s > 0.0 else NONE
    return interval if interval != NONE and _steady(w, s, interval) else NONE


@quick(inline="always")
def _jump(kind, w, s, values, ask, interval):  # noqa: PLR0917 - flat, for speed
    """Run the rest of a trial from the loss at `s.now`, as far as machines can be jumped over; return whether it is done."""
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
    stalled_s = lifetimes_s = allocate_s = prepare_s = 0.0
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
            lifetime_s = now_s - start_s
        else:
            lifetime_s = _life(kind, values, made_from + _TO_LIFE, which)
        lived_s, whole_s = lifetime_s - prepared_s, left * step_s
        if ask is not None and lived_s > 0.0:
            answer_s = ask(prepared_s, whole_s, stall_s, durable_s, mttp_s, restart_s)
            if answer_s != answered_s:
                answered_s, interval = answer_s, _answered(w, s, answer_s)
                if interval == NONE:
                    which -= 1
                    break
                pace, interval_f = _pace(s, interval), float(interval)
        if lived_s < whole_s:
            count, stall_s_left = _lost(lived_s, pace)
        else:
            count, stall_s_left, done = _at_most(lived_s, left, step_s, interval, pace)
            if done:
                lifetime_s = prepared_s + whole_s + count * stall_s
        saves, stalled_s = saves + count, stalled_s + stall_s_left
        allocate_s += waited_s
        prepare_s += min(prepared_s, lifetime_s)
        lifetimes_s += lifetime_s
        if done:
            break
        left -= count * interval_f
    _add(
        s,
        (saves * stall_s + stalled_s, allocate_s, prepare_s, lifetimes_s),
        (steps if done else steps - int(left), which, done),
    )
    return done


@quick(forceinline=True)
def _add(s, parts, counts):
    """Add the machines that were jumped over: time that no part explains is redo."""
    save_s, allocate_s, prepare_s, lifetimes_s = parts
    base, last, done = counts
    lost = last - s.last - done
    if lost > 0:
        s.redo_s += lifetimes_s - save_s - prepare_s - (base - s.committed) * s.step_s
    s.now += lifetimes_s + allocate_s
    s.committed, s.last, s.done = base, last, done
    s.preemptions += lost
    s.save_s, s.allocate_s, s.prepare_s = s.save_s + save_s, s.allocate_s + allocate_s, s.prepare_s + prepare_s
    s.billed_s += lifetimes_s


def jumps(kind, version):
    """Return the loop over trials for a kind of lifetimes, to be compiled.

    It runs each row of `rows` that is `JUMPING` to its end, or as far as machines can be jumped over: then the row is
    `WALKING`, and its next machine is for `kernel_trial`, or its policy gave an invalid interval.
    """

    def jump(w, values, ask, number, rows):
        if version < 0:  # never true: `version` is part of the cache's key
            return
        s = np.zeros(1, STATE)[0]
        stream, first = random_draws.stream(number[0]), number[1]
        for place in range(len(rows)):
            if rows[place, STAGE] != JUMPING:
                continue
            s.key = random_draws.key_of(stream, first + place)
            draw(w, s)
            read(s, rows, place)
            interval = 0 if ask is not None else constant_steps(w, s)
            done = interval != NONE and _steady(w, s, interval) and _jump(kind, w, s, values, ask, interval)
            write(s, rows, place, OVER if done else WALKING)

    return jump


# mypy: disable-error-code="no-untyped-def"


_SOURCES: Final = (
    "policies.checkpointing.rules",
    "simulation.random_draws",
    "simulation.sampling",
    "simulation.kernel_world",
    "simulation.kernel_saves",
    "simulation.kernel_machines",
    "simulation.kernel_training",
    "simulation.kernel_world",
    "simulation.kernel_trial",
    "simulation.kernel_trial",
)


@part
def _asked(w, s, m, ask):
    """Ask a user's policy for this machine's interval; return whether it is valid."""
    left_s = (w.steps - s.committed) * s.step_s
    age_s = s.now - m.slots[0, START]
    s.interval_s = ask(age_s, left_s, s.stall_s, s.stall_s + s.upload_s, w.mttp_s, w.restart_s)
    return s.interval_s > 0.0


@part
def _train(w, ask, s, m, log):
    """Wait for all machines, and train until one is lost or the job is done; return whether the policy gave an interval."""
    gather(w, s, m)
    if w.policy == INJECTED and not _asked(w, s, m, ask):
        return False
    start_interval(w, s, m)
    walk(w, s, m, log)
    return True


@part
def _walk_alone(w, ask, s, m, log):
    """Run the next machine of a trial with one machine and no notices, where it cannot be jumped over."""
    m.slots[0, OLD_GONE] = math.inf
    m.numbers[0] = s.last
    order(w, s, m, 0, s.now)
    if not _train(w, ask, s, m, log):
        return REFUSED
    s.billed_s += s.now - m.slots[0, START]
    s.last = m.numbers[0]
    s.preemptions += not s.done
    return _stage(s, JUMPING)


@part
def _stage(s, more):
    """Return the stage of a trial: stuck, over, or `more`."""
    return STUCK if s.stuck else OVER if s.done else more


@part
def _together(w, ask, s, m, log):
    """Run a trial of any kind."""
    for slot in range(w.machines):
        m.numbers[slot] = -1
        m.slots[slot, OLD_GONE] = math.inf
        order(w, s, m, slot, 0.0)
    while not s.done:
        if not _train(w, ask, s, m, log):
            return REFUSED
    close(w, s, m)
    return _stage(s, OVER)


@functools.cache
def digest() -> int:
    """Return the digest of the kernels' sources."""
    found = hashlib.sha256()
    for name in _SOURCES:
        spec = importlib.util.find_spec(f"windfall.{name}")
        assert spec is not None, "the module exists"
        assert spec.origin is not None, "the module has a file"
        found.update(Path(spec.origin).read_bytes())
    return int.from_bytes(found.digest()[:6], "little")


def walks(version):
    """Return the loop over trials that runs each `WALKING` row, to be compiled.

    It runs a row to its end or, with `lone`, over one machine, and the row is `JUMPING` again.  The loop returns the number
    of saves of the last row.
    """

    def walk(w, tables, ask, number, rows, log, lone):  # noqa: PLR0917 - flat, for speed
        if version < 0:  # never true: `version` is part of the cache's key
            return 0
        s = np.zeros(1, STATE)[0]
        m = KernelMachines(np.zeros((w.machines, COLUMNS)), np.zeros(w.machines, np.int64), tables)
        seed, first = number
        for place in range(len(rows)):
            if rows[place, STAGE] != WALKING:
                continue
            s.key = random_draws.key(seed, first + place)
            draw(w, s)
            read(s, rows, place)
            stage = _walk_alone(w, ask, s, m, log) if lone else _together(w, ask, s, m, log)
            write(s, rows, place, stage)
        return s.saves

    return walk


@functools.cache
def walker() -> Any:
    """Return `walks`, compiled, from the cache on disk if it has these sources."""
    loop = _named(walks(digest()))  # type: ignore[no-untyped-call]
    return njit(cache=True, nogil=True, error_model="numpy")(loop)


@functools.cache
def jumper(kind: int) -> Any:
    """Return `kernel_alone.jumps` for a kind of lifetimes, compiled, from the cache on disk if it has these sources."""
    loop = _named(jumps(kind, digest()), kind)  # type: ignore[no-untyped-call]
    return njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(loop)


def _named(loop: Any, kind: int = 0) -> Any:
    """Name a loop by its sources, which names its file in numba's cache; `is_compiled` looks for that file."""
    loop.__qualname__ = f"{loop.__name__}{kind}_{digest():012x}"
    return loop


def is_compiled(made: Any) -> bool:
    """Return whether a loop is compiled, in this process or on disk."""
    if made.signatures or not made.stats.cache_path:
        return bool(made.signatures)
    return any(Path(made.stats.cache_path).glob(f"*.{made.py_func.__qualname__}-*.nbc"))
