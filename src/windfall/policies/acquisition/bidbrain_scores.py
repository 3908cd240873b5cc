"""The expected cost of a unit of work of a fleet, with or without each allocation that could be bought: `bidbrain`'s equations.

The loops are compiled: in numpy a decision took most of its time to call functions on a few values each.  They are compiled
at the first decision, in seconds, and cached on disk.
"""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windfall.policies.acquisition.bidbrain import HOUR_S, Application, Floats, phi


class Allocations(NamedTuple):
    """Allocations in columns, one row each; a named tuple, as the compiled loops take it.

    Attributes:
        machines: how many each has.
        cores: of a machine.
        usd_per_hour: price of a machine, as it is billed in this period.
        left_s: what is left of the period that is paid or would be paid [s].
        evicted: odds of an eviction within it; 0 for machines that cannot be preempted.
        median_s: median time to eviction [s].
        refund: whether an eviction refunds the period.
        works: whether its machines do work; those that only keep state safe do not.
    """

    machines: Floats
    cores: Floats
    usd_per_hour: Floats
    left_s: Floats
    evicted: Floats
    median_s: Floats
    refund: NDArray[np.bool_]
    works: NDArray[np.bool_]

    def of(self, rows: NDArray[np.intp]) -> Allocations:
        """Return some of them."""
        return Allocations._make(column[rows] for column in self)

    @property
    def rate(self) -> float:
        """The work of all per second, overheads apart [cores]."""
        return float(self.machines * self.cores @ self.works)

    @property
    def stays(self) -> float:
        """The odds that none is evicted [1]."""
        return float(np.multiply.reduce(1.0 - self.evicted))


def cost_per_work(held: Allocations, app: Application) -> float:
    """Return the expected cost of a unit of work of a fleet that stays as it is [USD per core-second].

    Infinite for one that does no work.
    """
    return float(_cost_per_work(held, *_numbers(app)))


def with_each(held: Allocations, offered: Allocations, app: Application) -> Floats:
    """Return the cost of a unit of work of the fleet with each of the offered allocations [USD per core-second].

    Args:
        held: the fleet.
        offered: what could be bought, each by itself.
        app: the application.
    """
    found: Floats = _with_each(held, offered, *_numbers(app))
    return found


def without_each(held: Allocations, app: Application) -> Floats:
    """Return the cost of a unit of work of the fleet without each of its allocations [USD per core-second]."""
    found: Floats = _without_each(held, *_numbers(app))
    return found


class Outlook(NamedTuple):
    """What lies before a fleet's billing hours.

    Attributes:
        left_s: what is left of each allocation's; a whole one where none is paid ahead, or it has not begun [s].
        due: which allocations can leave now: those whose hour is about to end, or that pay none ahead.
        is_any_due: whether there is one.
        wake_s: until shortly before the first hour ends, a regular decision at the latest [s].
        machines: how many machines work.
        cores: theirs.
    """

    left_s: Floats
    due: NDArray[np.bool_]
    is_any_due: bool
    wake_s: float
    machines: float
    cores: float


class Leases(NamedTuple):
    """The numbers of allocations that decide when they are due, one row each.

    Attributes:
        machines, cores, works: as `Allocations`.
        started_s: when billing began [s]; NaN before.
        hour_s: what is paid at once [s].
        by_hour: whether that is paid ahead.
    """

    machines: Floats
    cores: Floats
    works: NDArray[np.bool_]
    started_s: Floats
    hour_s: Floats
    by_hour: NDArray[np.bool_]


def outlook(leases: Leases, now_s: float, renew_before_s: float, decide_every_s: float) -> Outlook:
    """Return what lies before a fleet's billing hours.

    Args:
        leases: its allocations.
        now_s: on the clock of `Leases.started_s` [s].
        renew_before_s: how long before an hour's end it is decided whether the allocation stays [s].
        decide_every_s: between two decisions [s].
    """
    return Outlook(*_outlook(leases, float(now_s), float(renew_before_s), float(decide_every_s)))


def _numbers(app: Application) -> tuple[float, float, float]:
    """Return lambda, sigma and phi's slope; whole numbers too as floats, which the loops are compiled for."""
    return float(app.eviction_s), float(app.change_s), float(app.loss_per_core)


# --------------------------------------------------------------------------------------------------------- compiled loops

# mypy: disable-error-code="no-untyped-def"

_part: Final[Any] = functools.partial(njit, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compile for the other compiled functions alone: that takes less time."""
_phi: Final[Any] = _part(phi)


@_part
def _cost_usd(held, one):
    """Return the expected cost of an allocation until its period ends [USD] (equation 1)."""
    left_s, evicted = held.left_s[one], held.evicted[one]
    lost_s = 0.0 if held.refund[one] else min(held.median_s[one], left_s)
    billed_s = (1.0 - evicted) * left_s + evicted * lost_s
    return held.usd_per_hour[one] * held.machines[one] * billed_s / HOUR_S


@_part
def _useful_s(held, one):
    """Return how long an allocation could work, overheads apart [s]: omega of equation 2."""
    return min(held.median_s[one], held.left_s[one]) if held.evicted[one] > 0.5 else held.left_s[one]


@_part
def _rate(held, one):
    """Return the work of an allocation per second, overheads apart [cores]: k nu of equation 3."""
    return held.machines[one] * held.cores[one] if held.works[one] else 0.0


@_part
def _ratio(cost, work):
    return cost / work if work > 0.0 else np.inf


@_part
def _without(held, gone, eviction_s, change_s, loss_per_core):
    """Return the cost per work of the fleet without one allocation; with -1 of all of it."""
    stays = 1.0
    for one in range(len(held.machines)):
        stays *= 1.0 if one == gone else 1.0 - held.evicted[one]
    overhead_s = (1.0 - stays) * eviction_s + change_s
    cost = rate = work = 0.0
    for one in range(len(held.machines)):
        if one != gone:
            cost += _cost_usd(held, one)
            rate += _rate(held, one)
            work += _rate(held, one) * max(_useful_s(held, one) - overhead_s, 0.0)
    return _ratio(cost, work * _phi(rate, loss_per_core))


@njit(cache=True, error_model="numpy")
def _outlook(leases, now_s, renew_before_s, decide_every_s):
    count = len(leases.machines)
    left_s, due = np.empty(count), np.zeros(count, dtype=np.bool_)
    is_any_due, wake_s, machines, cores = False, decide_every_s, 0.0, 0.0
    for one in range(count):
        hour_s, started = leases.hour_s[one], not np.isnan(leases.started_s[one])
        paid = started and leases.by_hour[one]
        left_s[one] = hour_s - (now_s - leases.started_s[one]) % hour_s if paid else hour_s
        if leases.works[one]:
            machines += leases.machines[one]
            cores += leases.machines[one] * leases.cores[one]
            due[one] = started and (not paid or left_s[one] <= renew_before_s)
            is_any_due = is_any_due or due[one]
            if paid:
                next_s = left_s[one] - renew_before_s
                wake_s = min(wake_s, next_s if next_s > 0.0 else next_s + hour_s)
    return left_s, due, is_any_due, wake_s, machines, cores


@njit(cache=True, error_model="numpy")
def _cost_per_work(held, eviction_s, _change_s, loss_per_core):
    return _without(held, -1, eviction_s, 0.0, loss_per_core)


@njit(cache=True, error_model="numpy")
def _without_each(held, eviction_s, change_s, loss_per_core):
    found = np.empty(len(held.machines))
    for gone in range(len(found)):
        found[gone] = _without(held, gone, eviction_s, change_s, loss_per_core)
    return found


@njit(cache=True, error_model="numpy")
def _with_each(held, offered, eviction_s, change_s, loss_per_core):
    count = len(held.machines)
    rates, useful_s = np.empty(count), np.empty(count)
    stays, cost, rate = 1.0, 0.0, 0.0
    for one in range(count):
        stays *= 1.0 - held.evicted[one]
        cost += _cost_usd(held, one)
        rates[one], useful_s[one] = _rate(held, one), _useful_s(held, one)
        rate += rates[one]
    found = np.empty(len(offered.machines))
    for new in range(len(found)):
        overhead_s = (1.0 - stays * (1.0 - offered.evicted[new])) * eviction_s + change_s
        work = _rate(offered, new) * max(_useful_s(offered, new) - overhead_s, 0.0)
        for one in range(count):
            work += max(useful_s[one] - overhead_s, 0.0) * rates[one]
        new_rate = rate + _rate(offered, new)
        found[new] = _ratio(cost + _cost_usd(offered, new), work * _phi(new_rate, loss_per_core))
    return found
