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
from windfall.simulation.kernel_machines import COLUMNS, START, close, gather, order
from windfall.simulation.kernel_training import begin, walk
from windfall.simulation.kernel_world import INJECTED, STATE
from windfall.simulation.sampling import within

OUTCOMES: Final = 7
"""Finish, billed, redo, save, allocate, prepare [s], preemptions: the rows of what `run` fills, as in `outcomes.Trials`."""
FINE, STUCK, REFUSED = 0, 1, 2
"""A trial is over; needs too many machines; its policy gave an interval that is none."""
LATE: Final = 16
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
    "simulation.kernel_trial",
)


@njit
def _draw(w, s, key):
    s.step_s = within(w.step_s[0], w.step_s[1], key, chance.STEP, 0)
    s.stall_s = within(w.stall_s[0], w.stall_s[1], key, chance.STALL, 0)
    s.upload_s = within(w.upload_s[0], w.upload_s[1], key, chance.UPLOAD, 0)
    s.offset_s = w.start_s
    if math.isnan(w.start_s):
        s.offset_s = w.length_s * chance.uniform(key, chance.OFFSET, 0)
    s.now = s.redo_s = s.save_s = s.allocate_s = s.prepare_s = s.billed_s = 0.0
    s.preemptions = s.late = s.committed = s.saves = 0
    s.known, s.done, s.stuck = w.costs_known, False, False


@njit
def _asked(w, s, slots, ask):
    """Ask a user's policy for this machine's interval: return whether it gave one."""
    durable_s = s.stall_s + s.upload_s
    left_s = (w.steps - s.committed) * s.step_s
    s.interval_s = ask(s.now - slots[0, START], left_s, s.stall_s, durable_s, w.mttp_s, w.restart_s)
    return s.interval_s > 0.0


@njit
def trial(w, ask, key, s, slots, numbers, late, log):
    """Run one trial; what came of it stands in `s`.  Returns `FINE`, ..., and `late`, which may have grown."""
    _draw(w, s, key)
    numbers[:] = -1
    for slot in range(w.machines):
        order(w, s, key, slots, numbers, slot, 0.0)
    while not s.done:
        late = gather(w, s, key, slots, numbers, late)
        if w.policy == INJECTED and not _asked(w, s, slots, ask):
            return REFUSED, late
        begin(w, s, slots)
        walk(w, s, slots, numbers, log)
    late = close(w, s, key, slots, numbers, late)
    return STUCK if s.stuck else FINE, late


def digest() -> int:
    """Return the number of the kernels' sources."""
    found = hashlib.sha256()
    for name in _SOURCES:
        spec = importlib.util.find_spec(f"windfall.{name}")
        assert spec is not None and spec.origin is not None, "a module of ours has a file"
        found.update(Path(spec.origin).read_bytes())
    return int.from_bytes(found.digest()[:6], "little")


@functools.cache
def compiled() -> Callable[..., Any]:
    """Return `run`, from the cache on disk if it has these sources.

    `run(w, ask, seed, first, out, log)` runs a trial for each column of `out`, from number `first` on, and returns
    (status, how many saves the last one had).
    """
    version = digest()

    def run(w, ask, seed, first, out, log):
        if version < 0:  # never: `version` is here to be part of the cache's key
            return STUCK, version
        rows = np.zeros(1, STATE)
        s = rows[0]
        slots = np.zeros((w.machines, COLUMNS))
        numbers = np.zeros(w.machines, np.int64)
        late = np.empty((LATE, 2))
        for column in range(out.shape[1]):
            key = chance.key(np.uint64(seed), np.uint64(first + column))
            status, late = trial(w, ask, key, s, slots, numbers, late, log)
            if status != FINE:
                return status, column
            out[0, column], out[1, column], out[2, column] = s.now, s.billed_s, s.redo_s
            out[3, column], out[4, column], out[5, column] = s.save_s, s.allocate_s, s.prepare_s
            out[6, column] = s.preemptions
        return FINE, s.saves

    made: Callable[..., Any] = njit(cache=True, nogil=True)(run)
    return made
