"""What every law of lifetimes answers: survival, hazard, quantiles, the life that remains, and how far the data reach.

A law is a frozen dataclass in seconds.  Its one primitive is the logarithm of the survival function,

    log S(t) = -H(t),    S(t) = P(T > t),    H the cumulative hazard,

from which everything else follows without loss of digits: the far tail (S = 1e-300) and the first seconds (1 - S = 1e-12)
are both exact.  A `Curve` has a survival function; a `Law` has a hazard, too.  (Kaplan-Meier is a curve and no law.)

A law that was fitted remembers the oldest age that the data reached, `observed_s`.  Beyond it a law extrapolates; then
`ask` and `remaining` say so.
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
"""A machine that would outlive 30 million years is one that is never lost."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A probability, and whether the data bear it.

    Attributes:
        value: the probability.
        beyond: the question reaches past the oldest observed age.
        note: what to tell the user about it; empty if there is nothing to tell.
    """

    value: float
    beyond: bool
    note: str


@dataclass(frozen=True, slots=True)
class Remaining:
    """An expected remaining life, with its bounds: E[min(T, until) - age | T > age].

    Attributes:
        mean_s: the mean [s].
        age_s: how old the machine is [s].
        until_s: up to which age life is counted [s]; infinite: all of it.
        outliving: share of the machines of that age that are still there at `until_s`, whose life is counted until then.
        beyond: the answer rests on ages that were never observed.
        note: the bounds in words.
    """

    mean_s: float
    age_s: float
    until_s: float
    outliving: float
    beyond: bool
    note: str


@dataclass(frozen=True, slots=True)
class Curve(ABC):
    """A survival function on ages >= 0.

    Attributes:
        observed_s: the oldest age in the data it was fitted to [s]; infinite if it was given, not fitted.
    """

    name: ClassVar[str] = "curve"
    extrapolates: ClassVar[bool] = True
    """Whether it says anything about ages beyond the data."""

    observed_s: float = field(default=math.inf, kw_only=True)

    @property
    def end_s(self) -> float:
        """The age that no machine outlives [s]; infinite if there is none."""
        return math.inf

    @property
    def kinks_s(self) -> tuple[float, ...]:
        """Ages at which hazard or survival are not smooth [s], ascending."""
        return ()

    @abstractmethod
    def log_survival(self, age_s: ArrayLike) -> Floats:
        """Return log P(T > age), elementwise; -inf from `end_s` on."""

    def parameters(self) -> dict[str, float]:
        """Return the parameters by name; a name ends with its unit: `_s` seconds, `_per_s` 1/seconds, none: a number."""
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
            age_s: how old they are [s].

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
            uniforms: independent draws from [0, 1), one a machine.
            age_s: how old they are [s].
        """
        return self.quantile(uniforms, age_s=age_s)

    def remaining(self, age_s: float = 0.0, *, until_s: float | None = None) -> Remaining:
        """Return the expected remaining life of a machine, and its bounds.

        Args:
            age_s: how old it is [s].
            until_s: the age up to which life is counted [s]; by default as far as law and data reach: the law's own end, or
                the oldest observed age where that comes first.

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
                f"remaining life is counted from {duration_text(age_s)}: it cannot end at {duration_text(until_s)}"
            )
        outliving = float(np.exp(self.log_survival(until_s) - alive)) if until_s < math.inf else self._never()
        mean_s = math.inf if until_s == math.inf and outliving > 0 else self._area(age_s, until_s)
        beyond = self.observed_s < self.end_s and (age_s >= self.observed_s or until_s > self.observed_s)
        return Remaining(
            mean_s, age_s, until_s, outliving, beyond, self._bounds_text(age_s, until_s, outliving, beyond)
        )

    def ask(self, until_s: float, *, age_s: float = 0.0) -> Answer:
        """Return P(T > until | T > age), and whether the data bear it.

        Raises:
            Misuse: no machine reaches `age_s`.
        """
        value = float(self.survival_from(age_s, until_s))
        beyond = self.observed_s < min(self.end_s, until_s)
        return Answer(value, beyond, self._beyond_text() if beyond else "")

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
        """Share of machines that are never lost."""
        alive = float(np.exp(self.log_survival(_AGE_MAX_S)))
        return alive if alive > math.exp(-_PANELS[-1]) else 0.0

    def _age_at(self, hazard: Floats) -> Floats:
        """Return the age at which the cumulative hazard reaches given values: by bisection, to the last digits."""
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

    def _area(self, begin_s: float, end_s: float) -> float:
        """Return the integral of S(t) / S(begin) over [begin, end]: Gauss-Legendre between quantiles and kinks."""
        alive = float(self.log_survival(begin_s))
        quantiles = self._age_at(np.asarray(_PANELS) - alive)
        inner = [age for age in (*quantiles, *self.kinks_s) if begin_s < age < end_s]
        last = min(end_s, float(quantiles[-1]))
        if last == math.inf:
            return math.inf
        edges = np.unique(np.asarray([begin_s, *(age for age in inner if age < last), last]))
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        half = 0.5 * np.diff(edges)
        ages = 0.5 * (edges[:-1] + edges[1:])[:, None] + half[:, None] * nodes
        return float(np.sum(half[:, None] * weights * np.exp(self.log_survival(ages) - alive)))

    def _beyond_text(self) -> str:
        seen = duration_text(self.observed_s)
        if not self.extrapolates:
            return f"no machine was observed beyond {seen}: nothing is known of older ones"
        return (
            f"no machine was observed beyond {seen}: from there on this is what the {self.name} law says, not the data"
        )

    def _bounds_text(self, age_s: float, until_s: float, outliving: float, beyond: bool) -> str:
        since = f"from the age of {duration_text(age_s)}" if age_s else "from the start"
        if until_s == math.inf:
            text = f"all of life {since}"
        elif outliving > 0:
            until = f"life {since} up to {duration_text(until_s)}"
            text = f"{until}, which {_share_text(outliving)} outlive; theirs is counted until then"
        else:
            text = f"all of life {since}, which ends by {duration_text(until_s)}"
        return f"{text}; {self._beyond_text()}" if beyond else text


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
    return f"{share:.0%}" if share >= 0.005 else "less than 1%"


def ages(age_s: ArrayLike) -> Floats:
    """Return ages as an array of floats; they are not negative."""
    found = np.asarray(age_s, dtype=np.float64)
    assert not np.any(found < 0), "ages are not negative"
    return found
