"""The interface of every lifetime law: survival, hazard, quantiles, remaining lifetime, and the range of the data.

A law is a frozen dataclass in seconds.  Its one primitive is the logarithm of the survival function,

    log S(t) = -H(t),    S(t) = P(T > t),    H the cumulative hazard,

from which everything else follows without loss of precision: the far tail (S = 1e-300) and the first seconds
(1 - S = 1e-12) are both exact.  A `Curve` has a survival function; a `Law` also has a hazard.  (Kaplan-Meier is a curve,
not a law.)

A fitted law records the oldest age in the data, `observed_s`.  Beyond it a law extrapolates, and the results of
`survival_answer` and `remaining` say so.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windfall.errors import Misuse
from windfall.units import duration_text

Floats = NDArray[np.float64]

_PANELS = (
    1e-9,
    1e-7,
    1e-5,
    1e-3,
    0.01,
    0.03,
    0.1,
    0.3,
    0.6,
    1.0,
    1.6,
    2.5,
    4.0,
    6.0,
    9.0,
    13.0,
    18.0,
    24.0,
    33.0,
    45.0,
)
"""Cumulative hazards between which survival is integrated; beyond the last one less than 3e-20 is alive."""
_NODES = 24
_AGE_MAX_S = 1e15
"""A machine that would outlive 30 million years counts as never lost."""


@dataclass(frozen=True, slots=True)
class SurvivalAnswer:
    """A probability, and whether the data support it.

    Attributes:
        value: the probability.
        extrapolated: the question reaches past the oldest observed age.
        note: a remark for the user; empty if there is none.
    """

    value: float
    extrapolated: bool
    note: str


@dataclass(frozen=True, slots=True)
class RemainingLifetime:
    """An expected remaining lifetime, with its bounds: E[min(T, until) - age | T > age].

    Attributes:
        mean_s: the mean [s].
        age_s: the machine's age [s].
        until_s: the age up to which lifetime is counted [s]; infinite: all of it.
        surviving_share: share of the machines of that age that outlive `until_s`; their lifetime counts up to then.
        extrapolated: the result depends on ages that were never observed.
        note: the bounds, for the user.
    """

    mean_s: float
    age_s: float
    until_s: float
    surviving_share: float
    extrapolated: bool
    note: str


@dataclass(frozen=True, slots=True)
class Curve(ABC):
    """A survival function on ages >= 0.

    Attributes:
        observed_s: the oldest age in the data it was fitted to [s]; infinite if it was given, not fitted.
    """

    name: ClassVar[str] = "curve"
    extrapolates: ClassVar[bool] = True
    """Whether it has a value for ages beyond the data."""

    observed_s: float = field(default=math.inf, kw_only=True)

    @property
    def end_s(self) -> float:
        """The age that no machine outlives [s]; infinite if there is none."""
        return math.inf

    @property
    def breakpoints_s(self) -> tuple[float, ...]:
        """Ages at which hazard or survival are not smooth [s], ascending."""
        return ()

    @abstractmethod
    def log_survival(self, age_s: ArrayLike) -> Floats:
        """Return log P(T > age), elementwise; -inf from `end_s`."""

    def parameters(self) -> dict[str, float]:
        """Return the parameters by name; the suffix is the unit: `_s` seconds, `_per_s` 1/seconds, none: a number."""
        return {item.name: float(getattr(self, item.name)) for item in fields(self) if item.name != "observed_s"}

    # ------------------------------------------------------------------------------------------------ derived from it

    def survival(self, age_s: ArrayLike) -> Floats:
        """Return S = P(T > age)."""
        return np.exp(self.log_survival(age_s))

    def cdf(self, age_s: ArrayLike) -> Floats:
        """Return F = P(T <= age)."""
        return -np.expm1(self.log_survival(age_s))

    def cumulative_hazard(self, age_s: ArrayLike) -> Floats:
        """Return H = -log S."""
        return -self.log_survival(age_s)

    def survival_from(self, age_s: float, until_s: ArrayLike) -> Floats:
        """Return P(T > until | T > age), for until >= age.

        Raises:
            Misuse: no machine reaches `age_s`.
        """
        return np.exp(np.minimum(self.log_survival(until_s) - self._reached(age_s), 0.0))

    def quantile(self, share: ArrayLike, *, age_s: float = 0.0) -> Floats:
        """Return the age [s] by which a share of the machines that reach `age_s` is lost; infinite if it never is.

        Args:
            share: in [0, 1].
            age_s: their age [s].

        Raises:
            Misuse: no machine reaches `age_s`.
        """
        already = -self._reached(age_s)
        with np.errstate(divide="ignore"):
            more = -np.log1p(-np.asarray(share, dtype=np.float64))
        return np.maximum(self._age_at(np.atleast_1d(already + more)).reshape(more.shape), age_s)

    def sample(self, uniforms: ArrayLike, *, age_s: float = 0.0) -> Floats:
        """Return ages at loss [s] by inverse transform, of machines that are `age_s` old now.

        Args:
            uniforms: independent draws from [0, 1), one per machine.
            age_s: their age [s].
        """
        return self.quantile(uniforms, age_s=age_s)

    def remaining(self, age_s: float = 0.0, *, until_s: float | None = None) -> RemainingLifetime:
        """Return the expected remaining lifetime of a machine, and its bounds.

        Args:
            age_s: its age [s].
            until_s: the age up to which lifetime is counted [s]; by default as far as law and data reach: the law's own
                end, or the oldest observed age if that is earlier.

        Raises:
            Misuse: no machine reaches `age_s`, or `until_s` comes before it.
        """
        alive = self._reached(age_s)
        inside = min(self.end_s, self.observed_s)
        if until_s is None:
            until_s = inside if age_s < inside or not self.extrapolates else self.end_s
            until_s = max(until_s, age_s)
        if until_s < age_s:
            raise Misuse(
                f"remaining lifetime counts from {duration_text(age_s)}: it cannot end at {duration_text(until_s)}"
            )
        surviving_share = float(np.exp(self.log_survival(until_s) - alive)) if until_s < math.inf else self._never()
        mean_s = math.inf if until_s == math.inf and surviving_share > 0 else self._area(age_s, until_s)
        extrapolated = self.observed_s < self.end_s and (age_s >= self.observed_s or until_s > self.observed_s)
        return RemainingLifetime(
            mean_s,
            age_s,
            until_s,
            surviving_share,
            extrapolated,
            self._bounds_text(age_s, until_s, surviving_share, extrapolated),
        )

    def survival_answer(self, until_s: float, *, age_s: float = 0.0) -> SurvivalAnswer:
        """Return P(T > until | T > age), and whether the data support it.

        Raises:
            Misuse: no machine reaches `age_s`.
        """
        value = float(self.survival_from(age_s, until_s))
        extrapolated = self.observed_s < min(self.end_s, until_s)
        return SurvivalAnswer(value, extrapolated, self._extrapolation_text() if extrapolated else "")

    # --------------------------------------------------------------------------------------------------------- inside

    def _reached(self, age_s: float) -> float:
        assert age_s >= 0, "ages are not negative"
        alive = float(self.log_survival(age_s))
        if alive == -math.inf:
            raise Misuse(
                f"no machine reaches an age of {duration_text(age_s)}: this law ends at {duration_text(self.end_s)}"
            )
        return alive

    def _never(self) -> float:
        """The share of machines that are never lost."""
        alive = float(np.exp(self.log_survival(_AGE_MAX_S)))
        return alive if alive > math.exp(-_PANELS[-1]) else 0.0

    def _age_at(self, hazard: Floats) -> Floats:
        """Return the age at which the cumulative hazard reaches given values, by bisection to full precision."""
        low = np.zeros_like(hazard)
        if self.end_s < math.inf:
            high = np.full_like(hazard, self.end_s)
        else:
            high = np.full_like(hazard, 60.0)
            while np.any(short := (self.cumulative_hazard(high) < hazard) & (high < _AGE_MAX_S)):
                high = np.where(short, high * 4, high)
        never = self.cumulative_hazard(high) < hazard
        for _ in range(64):
            middle = 0.5 * (low + high)
            below = self.cumulative_hazard(middle) < hazard
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.where(never, math.inf, high)

    def _area(self, start_s: float, end_s: float) -> float:
        """Return the integral of S(t) / S(start) over [start, end]: Gauss-Legendre between quantiles and breakpoints."""
        alive = float(self.log_survival(start_s))
        quantiles = self._age_at(np.asarray(_PANELS) - alive)
        inner = [age for age in (*quantiles, *self.breakpoints_s) if start_s < age < end_s]
        last = min(end_s, float(quantiles[-1]))
        if last == math.inf:
            return math.inf
        edges = np.unique(np.asarray([start_s, *(age for age in inner if age < last), last]))
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        half = 0.5 * np.diff(edges)
        ages = 0.5 * (edges[:-1] + edges[1:])[:, None] + half[:, None] * nodes
        return float(np.sum(half[:, None] * weights * np.exp(self.log_survival(ages) - alive)))

    def _extrapolation_text(self) -> str:
        seen = duration_text(self.observed_s)
        if not self.extrapolates:
            return f"no machine was observed beyond {seen}: there is no estimate for older ones"
        return f"no machine was observed beyond {seen}: beyond it the {self.name} law extrapolates"

    def _bounds_text(self, age_s: float, until_s: float, surviving_share: float, extrapolated: bool) -> str:
        since = f"from the age of {duration_text(age_s)}" if age_s else "from the start"
        if until_s == math.inf:
            text = f"the whole lifetime {since}"
        elif surviving_share > 0:
            until = f"the lifetime {since} to {duration_text(until_s)}"
            text = f"{until}; {_share_text(surviving_share)} last longer and count up to there"
        else:
            text = f"the whole lifetime {since}, which ends by {duration_text(until_s)}"
        return f"{text}; {self._extrapolation_text()}" if extrapolated else text


@dataclass(frozen=True, slots=True)
class Law(Curve):
    """A survival function with a hazard: a distribution that has a likelihood."""

    @abstractmethod
    def log_hazard(self, age_s: ArrayLike) -> Floats:
        """Return log h(age), h = f / S [1/s], elementwise."""

    def hazard(self, age_s: ArrayLike) -> Floats:
        """Return h = f / S [1/s]: the rate of loss of the machines of that age."""
        return np.exp(self.log_hazard(age_s))

    def log_density(self, age_s: ArrayLike) -> Floats:
        """Return log f(age)."""
        return self.log_hazard(age_s) + self.log_survival(age_s)

    def pdf(self, age_s: ArrayLike) -> Floats:
        """Return f [1/s]."""
        return np.exp(self.log_density(age_s))


def _share_text(share: float) -> str:
    return f"{100.0 * share:.0f} %" if share >= 0.005 else "less than 1 %"


def ages(age_s: ArrayLike) -> Floats:
    """Return ages as an array of non-negative floats."""
    found = np.asarray(age_s, dtype=np.float64)
    assert not np.any(found < 0), "ages are not negative"
    return found
