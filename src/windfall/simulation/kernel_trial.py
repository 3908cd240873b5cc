"""A trial in a kernel, and many of them: the compiled entry points.

`walker` and `jumper` make them, named by a digest of their sources: numba's cache on disk looks only at the file of
the function that it keeps, and would go on using a rule of `policies.saving.rules` that has changed since.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import hashlib
import importlib.util
import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from numba import njit

from windfall.simulation import chance
from windfall.simulation.kernel_alone import jumps
from windfall.simulation.kernel_machines import COLUMNS, OLD_GONE, START, close, gather, order
from windfall.simulation.kernel_rows import JUMPING, OVER, REFUSED, STAGE, STUCK, WALKING, draw, read, write
from windfall.simulation.kernel_training import begin, walk
from windfall.simulation.kernel_world import INJECTED, STATE, Machines, part

_SOURCES: Final = (
    "policies.saving.rules",
    "simulation.chance",
    "simulation.sampling",
    "simulation.kernel_world",
    "simulation.kernel_asking",
    "simulation.kernel_machines",
    "simulation.kernel_training",
    "simulation.kernel_rows",
    "simulation.kernel_alone",
    "simulation.kernel_trial",
)


@part
def _asked(w, s, m, ask):
    """Ask a user's policy for this machine's interval: return whether it gave one."""
    left_s = (w.steps - s.committed) * s.step_s
    age_s = s.now - m.slots[0, START]
    s.interval_s = ask(age_s, left_s, s.stall_s, s.stall_s + s.upload_s, w.mttp_s, w.restart_s)
    return s.interval_s > 0.0


@part
def _train(w, ask, s, m, log):
    """Wait for all machines, and train until one is lost or the job is done: return whether the policy answered well."""
    gather(w, s, m)
    if w.policy == INJECTED and not _asked(w, s, m, ask):
        return False
    begin(w, s, m)
    walk(w, s, m, log)
    return True


@part
def _walk_alone(w, ask, s, m, log):
    """The next machine of a trial of one machine without notices, which cannot be jumped over."""
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
    """Whether a trial is stuck, over, or has more to do."""
    return STUCK if s.stuck else OVER if s.done else more


@part
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
    return _stage(s, OVER)


@functools.cache
def digest() -> int:
    """Return the number of the kernels' sources."""
    found = hashlib.sha256()
    for name in _SOURCES:
        spec = importlib.util.find_spec(f"windfall.{name}")
        assert spec is not None, "a module of ours can be found"
        assert spec.origin is not None, "... and has a file"
        found.update(Path(spec.origin).read_bytes())
    return int.from_bytes(found.digest()[:6], "little")


def walks(version):
    """Return the loop over trials that runs each row which is `WALKING`, to be compiled.

    To its end, or, with `lone`, over one machine: the next is `JUMPING`.  It returns how many saves the last one had.
    """

    def walk(w, tables, ask, number, rows, log, lone):  # noqa: PLR0917 - flat, for speed
        if version < 0:  # never: `version` is here to be part of the cache's key
            return 0
        s = np.zeros(1, STATE)[0]
        m = Machines(np.zeros((w.machines, COLUMNS)), np.zeros(w.machines, np.int64), tables)
        seed, first = number
        for place in range(len(rows)):
            if rows[place, STAGE] != WALKING:
                continue
            s.key = chance.key(seed, first + place)
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
    """Return `kernel_alone.jumps` for a kind of lives, compiled, from the cache on disk if it has these sources."""
    loop = _named(jumps(kind, digest()), kind)  # type: ignore[no-untyped-call]
    return njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(loop)


def _named(loop: Any, kind: int = 0) -> Any:
    """Name a loop by its sources, and so the file that numba keeps it in: whether it is compiled can be seen."""
    loop.__qualname__ = f"{loop.__name__}{kind}_{digest():012x}"
    return loop


def kept(made: Any) -> bool:
    """Return whether a loop is compiled, in this process or on disk."""
    if made.signatures or not made.stats.cache_path:
        return bool(made.signatures)
    return any(Path(made.stats.cache_path).glob(f"*.{made.py_func.__qualname__}-*.nbc"))
