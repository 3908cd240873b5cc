"""The classical laws: exponential, Weibull, Gompertz-Makeham; and a bathtub with the reclaim at a provider's limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from windfall.models.lifetimes.law import Floats, Law, ages


@dataclass(frozen=True, slots=True)
class Exponential(Law):
    """Memoryless losses: S(t) = exp(-t rate).

    Attributes:
        rate_per_s: losses per second of life [1/s], > 0; 1 / MTTP.
    """

    name: ClassVar[str] = "exponential"
    rate_per_s: float

    def __post_init__(self) -> None:
        assert self.rate_per_s > 0

    def log_survival(self, age_s: ArrayLike) -> Floats:
        """Return log S(t) = -rate t."""
        return -self.rate_per_s * ages(age_s)

    def log_hazard(self, age_s: ArrayLike) -> Floats:
        """Return log h(t) = log rate."""
        return np.full(np.shape(age_s), math.log(self.rate_per_s))

    def _age_at(self, hazard: Floats) -> Floats:
        return hazard / self.rate_per_s


@dataclass(frozen=True, slots=True)
class Weibull(Law):
    """A hazard that rises or falls as a power of age: S(t) = exp(-(t / scale)^shape).

    Attributes:
        scale_s: the age that a share 1/e outlives [s], > 0.
        shape: below 1 the hazard falls with age, at 1 it is constant, above 1 it rises; > 0.
    """

    name: ClassVar[str] = "weibull"
    scale_s: float
    shape: float

    def __post_init__(self) -> None:
        assert self.scale_s > 0
        assert self.shape > 0

    def log_survival(self, age_s: ArrayLike) -> Floats:
        """Return log S(t) = -(t / scale)^shape."""
        with np.errstate(over="ignore"):
            return -np.power(ages(age_s) / self.scale_s, self.shape)

    def log_hazard(self, age_s: ArrayLike) -> Floats:
        """Return log h(t) = log(shape / scale) + (shape - 1) log(t / scale); infinite at 0 where shape < 1."""
        constant = math.log(self.shape / self.scale_s)
        if self.shape == 1:
            return np.full(np.shape(age_s), constant)
        with np.errstate(divide="ignore"):
            return constant + (self.shape - 1) * np.log(ages(age_s) / self.scale_s)

    def log_density(self, age_s: ArrayLike) -> Floats:
        """Return log f(t)."""
        return self.log_hazard(age_s) + self.log_survival(age_s)

    def _age_at(self, hazard: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return self.scale_s * np.power(hazard, 1 / self.shape)


@dataclass(frozen=True, slots=True)
class GompertzMakeham(Law):
    """A constant hazard and one that grows exponentially with age: h(t) = base + growth_0 exp(t / growth_time).

    H(t) = base t + growth_0 growth_time (exp(t / growth_time) - 1).  SciSpot's notation: lambda = base, alpha = growth_0,
    beta = 1 / growth_time.

    Attributes:
        base_per_s: the constant part [1/s], >= 0.
        ageing_per_s: the growing part at age 0 [1/s], > 0; may be as small as 1e-300.
        growth_s: time in which the growing part becomes e times larger [s], > 0.
    """

    name: ClassVar[str] = "gompertz-makeham"
    base_per_s: float
    ageing_per_s: float
    growth_s: float

    def __post_init__(self) -> None:
        assert self.base_per_s >= 0
        assert self.ageing_per_s > 0
        assert self.growth_s > 0

    def log_survival(self, age_s: ArrayLike) -> Floats:
        """Return log S(t) = -H(t)."""
        age = ages(age_s)
        log_scale = math.log(self.ageing_per_s) + math.log(self.growth_s)
        exponent = age / self.growth_s
        early = math.exp(log_scale) * np.expm1(np.minimum(exponent, 1.0))
        with np.errstate(over="ignore"):  # exp(t / growth) alone overflows long before the product with 1e-300 does
            late = np.exp(log_scale + exponent) - math.exp(log_scale)
        hazard = self.base_per_s * age + np.where(exponent <= 1.0, early, late)
        return np.negative(hazard)

    def log_hazard(self, age_s: ArrayLike) -> Floats:
        """Return log h(t)."""
        with np.errstate(divide="ignore"):
            base = np.log(self.base_per_s)
        return np.logaddexp(base, math.log(self.ageing_per_s) + ages(age_s) / self.growth_s)


@dataclass(frozen=True, slots=True)
class Bathtub(Law):
    """Early losses that die away, a floor of losses, and the reclaim that begins at the provider's limit.

        h(t) = early exp(-t / early_time) + base + (shape / reclaim) ((t - limit) / reclaim)^(shape - 1) [t > limit]

    The three are competing risks: whichever strikes first ends the machine.  A hazard whose integral diverges is always a
    proper distribution, so that nothing has to be cut or scaled.  Without a limit (infinite) the last part is absent.

    Where it comes from: SciSpot (section 3) describes three phases, infancy until about 3 h, a long quiet one, and the
    24 h limit.  Its equation 1 lets the last phase grow exponentially from the start; the machines show something
    else: hardly anything until the limit, and then all that are left within 50 minutes.

    Attributes:
        early_per_s: hazard of infancy at age 0, above the floor [1/s], >= 0.
        early_s: time in which infancy dies away by e [s], > 0.
        base_per_s: the floor [1/s], >= 0.
        limit_s: the provider's limit of age [s], > 0; infinite if there is none.
        reclaim_s: how long the reclaim takes (the age past the limit that a share 1/e outlives) [s], > 0.
        reclaim_shape: how abruptly it begins, >= 1; at 1 at once.
    """

    name: ClassVar[str] = "bathtub"
    early_per_s: float
    early_s: float
    base_per_s: float
    limit_s: float = math.inf
    reclaim_s: float = 1.0
    reclaim_shape: float = 1.0

    def __post_init__(self) -> None:
        assert self.early_per_s >= 0
        assert self.base_per_s >= 0
        assert min(self.early_s, self.limit_s, self.reclaim_s) > 0
        assert self.reclaim_shape >= 1

    @property
    def kinks_s(self) -> tuple[float, ...]:
        """The limit, where the reclaim begins."""
        return (self.limit_s,) if self.limit_s < math.inf else ()

    def parameters(self) -> dict[str, float]:
        """Return the parameters; those of the reclaim only if there is a limit."""
        found = {"early_per_s": self.early_per_s, "early_s": self.early_s, "base_per_s": self.base_per_s}
        if self.limit_s == math.inf:
            return found
        reclaim = {"limit_s": self.limit_s, "reclaim_s": self.reclaim_s, "reclaim_shape": self.reclaim_shape}
        return found | reclaim

    def log_survival(self, age_s: ArrayLike) -> Floats:
        """Return log S(t), the sum of the three."""
        age = ages(age_s)
        infancy = -self.early_per_s * self.early_s * np.expm1(-age / self.early_s)
        past = np.maximum(age - self.limit_s, 0.0) / self.reclaim_s
        with np.errstate(over="ignore"):
            return -(infancy + self.base_per_s * age + past**self.reclaim_shape)

    def log_hazard(self, age_s: ArrayLike) -> Floats:
        """Return log h(t); -inf where floor and infancy are zero."""
        age = ages(age_s)
        steady = self.early_per_s * np.exp(-age / self.early_s) + self.base_per_s
        past = np.maximum(age - self.limit_s, 0.0) / self.reclaim_s
        with np.errstate(divide="ignore", over="ignore"):
            reclaim = self.reclaim_shape / self.reclaim_s * past ** (self.reclaim_shape - 1)
            return np.log(steady + np.where(age > self.limit_s, reclaim, 0.0))
