"""A trial in a kernel, and many of them: the compiled entry points.

They are made by `compiled`, which numbers its kernels by their sources: numba's cache on disk looks only at the file of
the function that it keeps, and would go on using a rule of `policies.saving.rules` that has changed since.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import hashlib
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numba import float64, njit, types

from windfall.simulation import chance
from windfall.simulation.kernel_alone import alone, jump
from windfall.simulation.kernel_machines import COLUMNS, OLD_GONE, START, close, gather, order
from windfall.simulation.kernel_training import begin, walk
from windfall.simulation.kernel_world import INJECTED, STATE, Machines
from windfall.simulation.sampling import within

OUTCOMES: Final = 7
"""Finish, billed, redo, save, allocate, prepare [s], preemptions: the columns of what `run` fills, as in `outcomes.Trials`."""
FINE, STUCK, REFUSED = 0, 1, 2
"""A trial is over; needs too many machines; its policy gave an interval that is none."""
ASK: Final = types.FunctionType(float64(*(float64,) * 6))
"""A user's policy as a kernel takes it: a pointer, so that the kernel is not compiled again for each."""
_SOURCES: Final = (
    "policies.saving.rules",
    "simulation.chance",
    "simulation.sampling",
    "simulation.kernel_world",
    "simulation.kernel_asking",
    "simulation.kernel_machines",
    "simulation.kernel_training",
    "simulation.kernel_alone",
    "simulation.kernel_trial",
)


@njit
def draw(w, s):
    """Draw what is drawn once in a trial, and begin it."""
    s.step_s = within(w.step_low, w.step_high, s.key, chance.STEP, 0)
    s.stall_s = within(w.stall_low, w.stall_high, s.key, chance.STALL, 0)
    s.upload_s = within(w.upload_low, w.upload_high, s.key, chance.UPLOAD, 0)
    s.offset_s = w.start_s
    if math.isnan(w.start_s):
        s.offset_s = w.length_s * chance.uniform(s.key, chance.OFFSET, 0)
    s.now = s.redo_s = s.save_s = s.allocate_s = s.prepare_s = s.billed_s = s.let_go = 0.0
    s.preemptions = s.committed = s.saves = 0
    s.last = -1
    s.known, s.done, s.stuck = w.costs_known, False, False


@njit
def _asked(w, s, m, ask):
    """Ask a user's policy for this machine's interval: return whether it gave one."""
    left_s = (w.steps - s.committed) * s.step_s
    age_s = s.now - m.slots[0, START]
    s.interval_s = ask(age_s, left_s, s.stall_s, s.stall_s + s.upload_s, w.mttp_s, w.restart_s)
    return s.interval_s > 0.0


@njit
def _train(w, ask, s, m, log):
    """Wait for all machines, and train until one is lost or the job is done: return whether the policy answered well."""
    gather(w, s, m)
    if w.policy == INJECTED and not _asked(w, s, m, ask):
        return False
    begin(w, s, m)
    walk(w, s, m, log)
    return True


@njit
def _alone(w, ask, s, m, log):
    """The rest of a trial of one machine without notices, which cannot be jumped over: jump again where that is possible."""
    m.slots[0, OLD_GONE] = math.inf
    while True:
        m.numbers[0] = s.last
        order(w, s, m, 0, s.now)
        if not _train(w, ask, s, m, log):
            return REFUSED
        s.billed_s += s.now - m.slots[0, START]
        s.last = m.numbers[0]
        s.preemptions += not s.done
        if s.done or jump(w, s, m.tables.values, ask):
            return FINE


@njit
def _together(w, ask, s, m, log):
    """A trial of any kind."""
    for slot in range(w.machines):
        m.numbers[slot] = -1
        m.slots[slot, OLD_GONE] = math.inf
        order(w, s, m, slot, 0.0)
    while not s.done:
        if not _train(w, ask, s, m, log):
            return REFUSED
    close(w, s, m)
    return FINE


def digest() -> int:
    """Return the number of the kernels' sources."""
    found = hashlib.sha256()
    for name in _SOURCES:
        spec = importlib.util.find_spec(f"windfall.{name}")
        assert spec is not None, "a module of ours can be found"
        assert spec.origin is not None, "... and has a file"
        found.update(Path(spec.origin).read_bytes())
    return int.from_bytes(found.digest()[:6], "little")


@functools.cache
def compiled() -> Callable[..., Any]:
    """Return `run`, from the cache on disk if it has these sources.

    `run(w, tables, ask, (seed, first), (out, log))` runs a trial for each row of `out`, from number `first` on, and
    returns (status, how many saves the last one had).
    """
    version = digest()

    def run(w, tables, ask, number, results):
        if version < 0:  # never: `version` is here to be part of the cache's key
            return STUCK, 0
        s = np.zeros(1, STATE)[0]
        m = Machines(np.zeros((w.machines, COLUMNS)), np.zeros(w.machines, np.int64), tables)
        seed, first = number
        out, log = results
        lone = alone(w) and len(log) == 0
        for place in range(len(out)):
            s.key = chance.key(seed, first + place)
            draw(w, s)
            if not lone:
                status = _together(w, ask, s, m, log)
            elif jump(w, s, tables.values, ask):
                status = FINE
            else:
                status = _alone(w, ask, s, m, log)
            if status != FINE or s.stuck:
                return max(status, STUCK), 0
            out[place, 0], out[place, 1], out[place, 2], out[place, 3] = s.now, s.billed_s, s.redo_s, s.save_s
            out[place, 4], out[place, 5], out[place, 6] = s.allocate_s, s.prepare_s, s.preemptions
        return FINE, s.saves

    # The file that numba keeps it in is called so: whether these sources are compiled can be seen (`kernels.compiles`).
    run.__qualname__ = f"run_{version:012x}"
    made: Callable[..., Any] = njit(cache=True, nogil=True, error_model="numpy")(run)
    return made
