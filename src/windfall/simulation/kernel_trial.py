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
from windfall.simulation.kernel_machines import COLUMNS, OLD_GONE, START, close, gather, order, replace
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
def _draw(w, s):
    s.step_s = within(w.step_low, w.step_high, s.key, chance.STEP, 0)
    s.stall_s = within(w.stall_low, w.stall_high, s.key, chance.STALL, 0)
    s.upload_s = within(w.upload_low, w.upload_high, s.key, chance.UPLOAD, 0)
    s.offset_s = w.start_s
    if math.isnan(w.start_s):
        s.offset_s = w.length_s * chance.uniform(s.key, chance.OFFSET, 0)
    s.now = s.redo_s = s.save_s = s.allocate_s = s.prepare_s = s.billed_s = s.let_go = 0.0
    s.preemptions = s.committed = s.saves = 0
    s.known, s.done, s.stuck = w.costs_known, False, False


@njit
def _asked(w, s, m, ask):
    """Ask a user's policy for this machine's interval: return whether it gave one."""
    left_s = (w.steps - s.committed) * s.step_s
    age_s = s.now - m.slots[0, START]
    s.interval_s = ask(age_s, left_s, s.stall_s, s.stall_s + s.upload_s, w.mttp_s, w.restart_s)
    return s.interval_s > 0.0


@njit
def trial(w, ask, s, m, log):
    """Run one trial, of which `s.key` is set; what comes of it stands in `s`.  Returns `FINE`, ..."""
    _draw(w, s)
    m.numbers[:] = -1
    m.slots[:, OLD_GONE] = math.inf
    for slot in range(w.machines):
        order(w, s, m, slot, 0.0)
    lone = alone(w) and len(log) == 0
    while not s.done:
        if lone:
            if jump(w, s, m, ask):
                return STUCK if s.stuck else FINE
        gather(w, s, m)
        if w.policy == INJECTED and not _asked(w, s, m, ask):
            return REFUSED
        begin(w, s, m)
        walk(w, s, m, log)
        replace(w, s, m, s.now)
    close(w, s, m)
    return STUCK if s.stuck else FINE


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
        for place in range(len(out)):
            s.key = chance.key(np.uint64(seed), np.uint64(first + place))
            status = trial(w, ask, s, m, log)
            if status != FINE:
                return status, 0
            row = out[place]
            row[0], row[1], row[2], row[3] = s.now, s.billed_s, s.redo_s, s.save_s
            row[4], row[5], row[6] = s.allocate_s, s.prepare_s, s.preemptions
        return FINE, s.saves

    made: Callable[..., Any] = njit(cache=True, nogil=True)(run)
    return made
