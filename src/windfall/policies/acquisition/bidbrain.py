"""BidBrain's equations, and phi: the expected cost of a unit of work of a fleet (computed in `bidbrain_scores`).

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


def efficiency(cores: Floats | float, app: Application) -> Floats:
    """Return phi: the share of its work that a fleet of this many cores does [1]."""
    return phi(cores, app.loss_per_core)


def phi(cores: Floats | float, loss_per_core: float) -> Floats:
    """Return `efficiency`, of plain numbers: numba compiles it."""
    return np.maximum(1.0 - loss_per_core * np.maximum(cores - 1.0, 0.0), EFFICIENCY_MIN)
