"""BidBrain's arithmetic: the expected cost of a unit of work of a fleet, with or without each allocation that could be bought.

An allocation is a number of machines of one type, bought at one time with one bid, and billed in periods (an hour in 2016).
With beta its odds of an eviction before its period ends, P its price, k its machines, t the time left of the period:

    (1)  C = sum_i (1 - beta_i) P_i k_i t_i                    an evicted machine's period is free
    (2)  u_i = omega_i - (1 - prod_j (1 - beta_j)) lambda - sigma
    (3)  W = phi sum_i k_i nu_i u_i
    (4)  E = C / W

omega is t, or the median time to eviction where an eviction is more likely than not; lambda what an eviction costs every
machine, sigma what a change of the fleet does, nu the cores of a machine.  phi falls with the fleet: as one scalar, which is
how the paper prints it, every allocation cheaper than the average would be bought without end, so its first-order coefficient
is applied to the cores of the fleet (`Application`).  Where evictions refund nothing, (1) has the cost until the
median time to eviction instead of 0.

Source: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic resource markets", EuroSys
2017, section 4, equations 1 to 4.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from windfall.structs import Struct

Floats = NDArray[np.float64]
HOUR_S = 3600.0


class Application(Struct, frozen=True):
    """How an application reacts to changes of its fleet.

    Attributes:
        eviction_s: lambda: how long no machine makes progress after an eviction [s].
        change_s: sigma: how long none does after machines were added or released [s].
        loss_per_core: how much of the fleet's work each core beyond the first costs; phi = 1 - loss_per_core (cores - 1),
            and not below `EFFICIENCY_MIN`.  The paper gives neither its value nor how it depends on unlike machines.
    """

    eviction_s: float
    change_s: float
    loss_per_core: float


EFFICIENCY_MIN = 1e-3
"""No fleet counts as less efficient than this: phi as a straight line would fall below zero."""


class Allocations(Struct, frozen=True, dict=True):
    """Allocations in columns, one row each; what follows from them is computed once.

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

    @cached_property
    def costs_usd(self) -> Floats:
        """The expected cost of each allocation until its period ends [USD] (equation 1)."""
        lost_s = np.where(self.refund, 0.0, np.minimum(self.median_s, self.left_s))
        billed_s = (1.0 - self.evicted) * self.left_s + self.evicted * lost_s
        return self.usd_per_hour * self.machines * billed_s / HOUR_S

    @cached_property
    def useful_s(self) -> Floats:
        """How long each could work, overheads apart [s]: omega of equation 2."""
        return np.where(self.evicted > 0.5, np.minimum(self.median_s, self.left_s), self.left_s)

    @cached_property
    def rates(self) -> Floats:
        """The work of each per second, overheads apart [cores]: k nu of equation 3."""
        return np.where(self.works, self.machines * self.cores, 0.0)

    # The ufuncs' own reductions: the functions around them take longer than the few values of a decision.

    @cached_property
    def cost_usd(self) -> float:
        """The expected cost of all [USD]."""
        return float(np.add.reduce(self.costs_usd))

    @cached_property
    def rate(self) -> float:
        """The work of all per second, overheads apart [cores]."""
        return float(np.add.reduce(self.rates))

    @cached_property
    def stays(self) -> float:
        """The odds that none is evicted [1]."""
        return float(np.multiply.reduce(1.0 - self.evicted))


def cost_per_work(held: Allocations, app: Application) -> float:
    """Return the expected cost of a unit of work of a fleet that stays as it is [USD per core-second].

    Infinite for one that does no work.
    """
    overhead_s = (1.0 - held.stays) * app.eviction_s
    work = held.rates @ np.maximum(held.useful_s - overhead_s, 0.0) * efficiency(held.rate, app)
    return float(held.cost_usd / work) if work > 0.0 else math.inf


def with_each(held: Allocations, offered: Allocations, app: Application) -> Floats:
    """Return the cost of a unit of work of the fleet with each of the offered allocations [USD per core-second].

    Args:
        held: the fleet.
        offered: what could be bought, each by itself.
        app: the application.
    """
    stay = held.stays * (1.0 - offered.evicted)
    overhead_s = (1.0 - stay) * app.eviction_s + app.change_s
    held_s = np.maximum(held.useful_s - overhead_s[:, None], 0.0)
    rates = offered.rates
    work = held_s @ held.rates + rates * np.maximum(offered.useful_s - overhead_s, 0.0)
    work *= efficiency(held.rate + rates, app)
    cost = held.cost_usd + offered.costs_usd
    return _ratios(cost, work)


def without_each(held: Allocations, app: Application) -> Floats:
    """Return the cost of a unit of work of the fleet without each of its allocations [USD per core-second]."""
    others = ~np.eye(len(held.machines), dtype=np.bool_)
    stay = np.multiply.reduce(np.where(others, 1.0 - held.evicted, 1.0), axis=1)
    overhead_s = (1.0 - stay) * app.eviction_s + app.change_s
    rates = held.rates
    useful_s = np.maximum(held.useful_s - overhead_s[:, None], 0.0)
    work = np.add.reduce(np.where(others, rates * useful_s, 0.0), axis=1) * efficiency(others @ rates, app)
    cost = others @ held.costs_usd
    return _ratios(cost, work)


def _ratios(cost: Floats, work: Floats) -> Floats:
    found = np.full(len(cost), np.inf)
    np.divide(cost, work, out=found, where=work > 0.0)
    return found


def efficiency(cores: Floats | float, app: Application) -> Floats:
    """Return phi: the share of its work that a fleet of this many cores does [1]."""
    return np.maximum(1.0 - app.loss_per_core * np.maximum(cores - 1.0, 0.0), EFFICIENCY_MIN)
