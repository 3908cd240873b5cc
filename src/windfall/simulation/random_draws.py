"""Addressed chance: each draw of a simulation is a function of (seed, trial, what, which), and of no other draw.

So the event engine and the kernels meet the same world in whatever order they draw, trials can run on any core, and each can
be replayed on its own.  The function is the finaliser of SplitMix64 applied twice.  (A counter-based generator of a library
would do the same; none can be created inside a compiled loop.)

Source: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numba import float64, njit, uint64

GOLDEN: Final[Any] = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final[Any] = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final[Any] = np.uint64(0x94D049BB133111EB)
_R30: Final[Any] = np.uint64(30)
_R27: Final[Any] = np.uint64(27)
_R31: Final[Any] = np.uint64(31)
_R11: Final[Any] = np.uint64(11)
UNIT: Final = 1.0 / 9007199254740992.0
_ONE: Final[Any] = np.uint64(1)
_LOW: Final[Any] = np.uint64(255)

STEP: Final = 0
STALL: Final = 1
UPLOAD: Final = 2
OFFSET: Final = 3
"""Draws made once per trial; `which` is 0."""
LIFE: Final = 4
ALLOCATE: Final = 5
PREPARE: Final = 6
ANNOUNCED: Final = 7
"""Draws made for each machine; `which` is `machine(slot, n)`."""
SLOT_BITS: Final = 20


@njit(uint64(uint64), cache=True, forceinline=True)
def _mix(value: Any) -> Any:
    value = (value ^ (value >> _R30)) * _FIRST
    value = (value ^ (value >> _R27)) * _SECOND
    return value ^ (value >> _R31)


@njit(uint64(uint64), cache=True, forceinline=True)
def stream(seed: int) -> Any:
    """Return the base of a seed's keys; the seed from 0 to 2^64 - 1."""
    return _mix(seed + GOLDEN)


@njit(uint64(uint64, uint64), cache=True, forceinline=True)
def key_of(made_from: Any, trial: int) -> Any:
    """Return the key of a trial of a `stream`."""
    return _mix(made_from + GOLDEN * (trial + _ONE))


@njit(uint64(uint64, uint64), cache=True)
def key(seed: int, trial: int) -> Any:
    """Return the key of a trial; both from 0 to 2^64 - 1."""
    return key_of(stream(seed), trial)


@njit("uint64(uint64, int64, int64)", cache=True, forceinline=True)
def state(trial_key: int, what: int, which: int) -> Any:
    """Return the state of the draw at an address of a trial; the next machine's is `GOLDEN` farther.

    Args:
        trial_key: as `key` returned it.
        what: `STEP`, ..., `ANNOUNCED`.
        which: 0, or a machine's number.
    """
    address: Any = (np.uint64(what) << np.uint64(60)) | np.uint64(which)
    return trial_key + GOLDEN * (address + _ONE)


@njit(float64(uint64, float64), cache=True, forceinline=True)
def scaled_of(made_from: Any, unit: float) -> float:
    """Return the draw of a `state`: uniform on [0, 2^53 unit), in steps of `unit`."""
    draw: float = np.int64(_mix(made_from) >> _R11) * unit
    return draw


@njit(float64(uint64), cache=True, forceinline=True)
def uniform_of(made_from: Any) -> float:
    """Return the draw of a `state`: uniform on [0, 1), in steps of 2^-53."""
    draw: float = scaled_of(made_from, UNIT)
    return draw


@njit("float64(uint64, int64, int64)", cache=True)
def uniform(trial_key: int, what: int, which: int) -> float:
    """Return the uniform draw at an address; arguments as of `state`."""
    draw: float = uniform_of(state(trial_key, what, which))
    return draw


_LAYERS: Final = 256
_TAIL: Final = 7.69711747013104972
"""Where the lowest layer's tail begins, for 256 layers (Marsaglia and Tsang, 2000, section 4)."""


def _layers() -> tuple[Any, Any]:
    """Return the right edge of each layer under e^-x, the widest first and 0 last, and e^-x there."""
    area = (_TAIL + 1.0) * math.exp(-_TAIL)
    edges = [area / math.exp(-_TAIL), _TAIL]
    while len(edges) < _LAYERS:
        edges.append(-math.log(area / edges[-1] + math.exp(-edges[-1])))
    edges.append(0.0)
    at = np.array(edges)
    return at, np.exp(-at)


_EDGES, _HEIGHTS = _layers()
_SCALED: Final[Any] = _EDGES * UNIT


_TERMS: Final = 13
"""Of the series of e^-x within a layer, none wider than 0.76: good to 5e-12, and without a call, which would cost the
loops around it their registers."""


@njit(float64(float64), cache=True, forceinline=True)
def _small_exp(x: float) -> float:
    value = 1.0
    for term in range(_TERMS - 1, 0, -1):
        value = 1.0 - value * x / term
    return value


@njit(float64(uint64), cache=True, forceinline=True)
def exponential_of(made_from: Any) -> float:
    """Return the draw of a `state`: exponential with mean 1.

    By the ziggurat, in one pass 98.9 % of the time: this call dominates a trial of many lifetimes.  The tail of an
    exponential is an exponential again.

    Source: G. Marsaglia, W. W. Tsang, "The ziggurat method for generating random variables", J. Stat. Softw. 5(8), 2000.
    """
    from_x = 0.0
    while True:
        drawn = _mix(made_from)
        layer = np.int64(drawn & _LOW)
        x: float = np.int64(drawn >> _R11) * _SCALED[layer]
        if x < _EDGES[layer + 1]:
            return from_x + x
        made_from = drawn + GOLDEN
        if layer == 0:
            from_x += _TAIL
            continue
        height = _HEIGHTS[layer] + uniform_of(made_from) * (_HEIGHTS[layer + 1] - _HEIGHTS[layer])
        if height < _HEIGHTS[layer + 1] * _small_exp(x - _EDGES[layer + 1]):
            return from_x + x
        made_from += GOLDEN


@njit("float64(uint64, int64, int64)", cache=True)
def exponential(trial_key: int, what: int, which: int) -> float:
    """Return the exponential draw at an address; arguments as of `state`."""
    draw: float = exponential_of(state(trial_key, what, which))
    return draw


@njit("int64(int64, int64)", cache=True)
def machine(slot: int, n: int) -> int:
    """Return the number of the n-th machine, from 0, of a slot."""
    return (slot << SLOT_BITS) | n
