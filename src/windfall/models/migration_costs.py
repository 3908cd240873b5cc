"""What a change of shape costs on average, exactly: over all machines that could be the lost ones.

The n lost machines are any n of N with equal probability.  Costs depend on how many survivors each stage has, so the mean is a
sum over counts and not over machines: weights are coefficients of products of polynomials in x, the power counting losses.

Where machines lack equally much of a new stage, the one first in order is placed there: first by pipeline, then by stage.

Source: as `migrations`; the published program draws 10,000 samples of the lost machines in place of the sum.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from windfall.errors import Misuse
from windfall.models.migrations import PARAMETER_BYTES, MigrationTimes
from windfall.models.shapes import IDLE, Floats, Shape
from windfall.structs import Struct


class CostSpread(Struct, frozen=True):
    """The cost of one change of shape over all that can be lost [s]."""

    mean_s: float
    least_s: float
    most_s: float


FREE = CostSpread(0.0, 0.0, 0.0)


def migration_cost(times: MigrationTimes, source: Shape, machines: int, lost: int, target: Shape) -> CostSpread:
    """Return what it costs to change the shape while `lost` of `machines` vanish.

    Args:
        times: of the model.
        source: the shape until now; `IDLE`: nothing is trained yet.
        machines: how many there were, spares among them.
        lost: how many of these vanish.
        target: the shape from now on; `IDLE` costs nothing.

    Raises:
        Misuse: the source needs more machines than there were, or more are lost than there were.
    """
    if not 0 <= lost <= machines or source.machines > machines:
        raise Misuse(
            f"{lost} of {machines} machines lost, shape {source}: it needs at most {machines}, of which some vanish"
        )
    if target == IDLE:
        return FREE
    if source.stages == target.stages:
        return _same_depth(times, source, machines, lost, target)
    return _repartition(times, source, machines, lost, target)


def adds(source: Shape, lost: int, target: Shape) -> bool:
    """Return whether machines are added: the target is larger than the source without the lost ones."""
    return target.machines > source.machines - lost


# ------------------------------------------------------------------------------------------------------- the same depth


@cache
def _powers(replicas: int, low: int, high: int, size: int) -> tuple[float, ...]:
    """Return the polynomial of a stage that loses between `low` and `high` of its replicas."""
    return tuple(float(math.comb(replicas, x)) if low <= x <= min(high, replicas) else 0.0 for x in range(size))


def _times(left: Floats, right: Floats) -> Floats:
    return np.convolve(left, right)[: len(left)]


def _power(base: Floats, exponent: int) -> Floats:
    found = np.zeros(len(base))
    found[0] = 1.0
    for _ in range(exponent):
        found = _times(found, base)
    return found


def _same_depth(times: MigrationTimes, source: Shape, machines: int, lost: int, target: Shape) -> CostSpread:
    if lost == 0 and source == target:
        return FREE
    restart_s = times.restart_s(target, adding=adds(source, lost, target))
    outcomes = _outcomes(
        tuple(times.state_s(held) for held in times.stage_parameters(source.stages)),
        source.pipelines,
        machines - source.machines,
        lost,
        target.pipelines,
    )
    intra_s = times.intra_s(target)
    total = math.comb(machines, lost)
    priced = [(weight, intra_s if moved_s is None else moved_s + restart_s) for weight, moved_s in outcomes]
    costs = [cost for _, cost in priced]
    return CostSpread(math.fsum(weight * cost for weight, cost in priced) / total, min(costs), max(costs))


@cache
def _outcomes(
    state_s: tuple[float, ...], replicas: int, spares: int, lost: int, wanted: int
) -> tuple[tuple[float, float | None], ...]:
    """Return how many ways there are to each time that states move; None: no stage is short."""
    size = lost + 1
    kinds = sorted({(seconds, place == len(state_s) - 1) for place, seconds in enumerate(state_s)})
    found: dict[tuple[float, float, bool], Floats] = {(0.0, 0.0, False): np.array(_powers(spares, 0, spares, size))}
    for seconds, last in kinds:
        count = sum(1 for place, held in enumerate(state_s) if (held, place == len(state_s) - 1) == (seconds, last))
        options = _options(replicas, wanted, count, size, last=last)
        grown: dict[tuple[float, float, bool], Floats] = {}
        for (longest_s, serial_s, short), ways in found.items():
            for gone, is_short, option in options:
                product = _times(ways, option)
                if product.any():
                    key = (
                        max(longest_s, seconds) if is_short else longest_s,
                        serial_s + gone * seconds,
                        short or is_short,
                    )
                    grown[key] = grown[key] + product if key in grown else product
        found = grown
    merged: dict[float | None, float] = {}
    for (longest_s, serial_s, short), ways in found.items():
        if ways[lost]:
            moved_s = max(longest_s, serial_s) if short else None
            merged[moved_s] = merged.get(moved_s, 0.0) + float(ways[lost])
    return tuple((weight, moved_s) for moved_s, weight in merged.items())


def _options(replicas: int, wanted: int, count: int, size: int, *, last: bool) -> list[tuple[int, bool, Floats]]:
    """Return what can become of `count` equal stages: how many are lost, whether any is short, and the ways to it."""
    gone_from = replicas - 1 if last and wanted > 1 else replicas
    short_from = min(max(replicas - wanted + 1, 0), gone_from)
    kept, thin, gone = (
        np.array(_powers(replicas, low, high, size))
        for low, high in ((0, short_from - 1), (short_from, gone_from - 1), (gone_from, replicas))
    )
    found = []
    for number in range(count + 1):
        ways = math.comb(count, number) * _power(gone, number)
        rest = count - number
        whole = _power(kept, rest)
        found.append((number, number > 0, _times(ways, whole)))
        found.append((number, True, _times(ways, _power(kept + thin, rest) - whole)))
    return [option for option in found if option[2].any()]


# --------------------------------------------------------------------------------------------------------- other depths


def _repartition(times: MigrationTimes, source: Shape, machines: int, lost: int, target: Shape) -> CostSpread:
    parameters = times.stage_parameters(target.stages)
    fixed_s = times.restart_s(target, adding=adds(source, lost, target))
    if target.pipelines > 1:
        fixed_s += max(times.state_s(held) for held in parameters)
    if source == IDLE:
        lacked = parameters if times.every_stage else (0.0,)
        placed_s = times.placed_s(lacked)
        return CostSpread(placed_s + fixed_s, placed_s + fixed_s, placed_s + fixed_s)
    mean, least, most = _placements(
        times.lacking(source.stages, target.stages),
        np.array(parameters),
        source.pipelines,
        machines,
        lost,
        np.array(times.link.sizes_bytes),
        np.array(times.link.times_s),
        float((1 + times.states) * PARAMETER_BYTES),
        times.every_stage,
    )
    return CostSpread(mean + fixed_s, least + fixed_s, most + fixed_s)


@njit(cache=True, nogil=True)
def _link_s(size: float, sizes: Any, times: Any) -> float:
    place = np.searchsorted(sizes, size)
    if place == 0:
        return float(times[0])
    if place == len(sizes):
        return float(size / sizes[-1] * times[-1])
    low, high = sizes[place - 1], sizes[place]
    return float(times[place - 1] + (times[place] - times[place - 1]) * (size - low) / (high - low))


@njit(cache=True, nogil=True)
def _ways(machines: int, lost: int) -> Any:
    """Return the binomial coefficients of up to `machines` over up to `lost`."""
    found = np.zeros((machines + 1, lost + 1))
    found[:, 0] = 1.0
    for n in range(1, machines + 1):
        for k in range(1, lost + 1):
            found[n, k] = found[n - 1, k - 1] + found[n - 1, k]
    return found


@njit(cache=True, nogil=True)
def _placements(  # noqa: PLR0917 - a compiled loop takes arrays by position
    lacking: Any, whole: Any, replicas: int, machines: int, lost: int, sizes: Any, times: Any, scale: float, every: bool
) -> tuple[float, float, float]:
    """Return mean, least and most of the time in which new stages get what they lack, over all lost machines.

    The placement asks of one machine after another whether it is left, and only then do the ways part: what was not asked
    is any set of the remaining ones.
    """
    new, old = lacking.shape
    ways, upto = _ways(machines, lost), np.zeros(old, np.int64)
    frames = new + lost + 1
    at, of = np.zeros(frames, np.int64), np.zeros(frames, np.int64)
    total_at, last_at, vanished = np.zeros(frames), np.zeros(frames), np.zeros(frames, np.bool_)
    depth, j, gone, total, last = 0, 0, 0, 0.0, 0.0
    mean, least, most = 0.0, np.inf, -np.inf
    while True:
        while j < new:
            best = -1
            for s in range(old):
                if upto[s] < replicas and (
                    best < 0 or lacking[j, s] < lacking[j, best]
                    or (lacking[j, s] == lacking[j, best] and upto[s] < upto[best])
                ):  # fmt: skip
                    best = s
            if best < 0:
                total += whole[j]
            else:
                at[depth], of[depth], total_at[depth], last_at[depth], vanished[depth] = j, best, total, last, False
                depth += 1
                upto[best] += 1
                total += lacking[j, best]
                last = lacking[j, best]
            j += 1
        weight = ways[machines - depth, lost - gone]
        if weight > 0.0:
            cost = _link_s((total if every else last) * scale, sizes, times)
            mean += weight * cost
            least, most = min(least, cost), max(most, cost)
        while depth > 0:
            if not vanished[depth - 1] and gone < lost:
                vanished[depth - 1] = True
                gone += 1
                j, total, last = at[depth - 1], total_at[depth - 1], last_at[depth - 1]
                break
            gone -= vanished[depth - 1]
            depth -= 1
            upto[of[depth]] -= 1
        if depth == 0:
            return mean / ways[machines, lost], least, most
