"""SciSpot's blended exponential: as printed (no distribution) and normalised."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from windfall.models.lifetimes.law import Floats, Law, ages


@dataclass(frozen=True, slots=True)
class BlendedAsPrinted:
    """Equation 1 of SciSpot, F(t) = A (1 - exp(-t / tau1) + exp((t - b) / tau2)), as it is printed.

    It is no distribution: it grows beyond 1 at some age (`whole_s`, 24.27 h with the constants of the authors' simulator,
    while a machine may live 24.83 h), and F(24 h) = 0.83 there leaves a sixth of the machines for the last minutes.
    It serves to reproduce published numbers; nothing else uses it.  `normalised` is the distribution of the same shape.

    Attributes:
        a: the scale A.
        b_s: "activation time of the second process" [s].
        tau1_s, tau2_s: time constants of the first and the last phase [s].

    Example:
        A = 0.4137, b = 24 h, tau1 = 0.9 h, tau2 = 0.76 h (the authors' simulator): F(24 h) = 0.827, F = 1 at 24.27 h.

    Source:
        SciSpot, draft 2019, equation 1; arXiv 1911.05160.
    """

    name: ClassVar[str] = "blended-as-printed"
    a: float
    b_s: float
    tau1_s: float
    tau2_s: float

    def cdf(self, age_s: ArrayLike) -> Floats:
        """Return F(t) as printed; it is not held below 1."""
        age = ages(age_s)
        with np.errstate(over="ignore"):
            return self.a * (-np.expm1(-age / self.tau1_s) + np.exp((age - self.b_s) / self.tau2_s))

    def pdf(self, age_s: ArrayLike) -> Floats:
        """Return F'(t) [1/s]."""
        age = ages(age_s)
        with np.errstate(over="ignore"):
            early, late = np.exp(-age / self.tau1_s), np.exp((age - self.b_s) / self.tau2_s)
            return self.a * (early / self.tau1_s + late / self.tau2_s)

    def hazard(self, age_s: ArrayLike) -> Floats:
        """Return f / (1 - F) [1/s]; infinite from `whole_s` on."""
        left = 1.0 - self.cdf(age_s)
        with np.errstate(divide="ignore", over="ignore"):
            return np.where(left > 0, self.pdf(age_s) / np.where(left > 0, left, 1.0), math.inf)

    @property
    def whole_s(self) -> float:
        """The age at which F reaches 1 [s]; beyond it the formula means nothing."""
        low, high = 0.0, self.b_s + self.tau2_s * (abs(math.log(self.a)) + 1.0)
        for _ in range(200):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.cdf(middle) < 1 else (low, middle)
        return high

    def moment_s(self, age_s: ArrayLike) -> Floats:
        """Return G(t), an antiderivative of t f(t) [s].

        G(t) = -A (t + tau1) exp(-t / tau1) + A (t - tau2) exp((t - b) / tau2).
        """
        age = ages(age_s)
        early, late = np.exp(-age / self.tau1_s), np.exp((age - self.b_s) / self.tau2_s)
        return self.a * ((age - self.tau2_s) * late - (age + self.tau1_s) * early)

    def expected_life_s(self, until_s: float) -> float:
        """Return the papers' "expected lifetime" over [0, until]: G(until) - G(0) [s].

        The machines that outlive `until_s` count as nothing in it, so that the bound decides: with the fit of all machines
        5.7 h until 24 h, 16.7 h until the last observation.
        """
        return float(self.moment_s(until_s) - self.moment_s(0.0))

    def normalised(self, end_s: float, *, observed_s: float = math.inf) -> Blended:
        """Return the distribution of the same shape on [0, end]: (F(t) - F(0)) / (F(end) - F(0))."""
        return Blended(self.b_s, self.tau1_s, self.tau2_s, end_at_s=end_s, observed_s=observed_s)


@dataclass(frozen=True, slots=True)
class Blended(Law):
    """SciSpot's blended exponential, normalised to end with certainty at a given age.

        F(t) = (F1(t) - F1(0)) / (F1(end) - F1(0)),    F1 = equation 1;  its factor A cancels.

    It is the mixture, with the weight `early_share`, of an exponential with mean tau1 and of a mirrored one, tau2 before the
    end, both cut to [0, end]: the bathtub of three parameters that is often fitted to these data is this law with other
    names for its parameters.

    Attributes:
        b_s: where the last phase becomes as large as the first [s].
        tau1_s, tau2_s: time constants of the first and the last phase [s], > 0.
        end_at_s: the age that no machine outlives [s], > 0.
    """

    name: ClassVar[str] = "blended"
    b_s: float
    tau1_s: float
    tau2_s: float
    end_at_s: float

    def __post_init__(self) -> None:
        assert min(self.tau1_s, self.tau2_s, self.end_at_s) > 0

    @property
    def end_s(self) -> float:
        """The age that no machine outlives [s]."""
        return self.end_at_s

    @property
    def _log_weights(self) -> tuple[float, float]:
        """Logarithms of the unscaled masses of the two phases."""
        early = math.log(-math.expm1(-self.end_at_s / self.tau1_s))
        late = (self.end_at_s - self.b_s) / self.tau2_s + math.log(-math.expm1(-self.end_at_s / self.tau2_s))
        return early, late

    @property
    def early_share(self) -> float:
        """Share of machines that the first phase takes."""
        early, late = self._log_weights
        return math.exp(early - float(np.logaddexp(early, late)))

    @classmethod
    def mixed(cls, early_share: float, tau1_s: float, tau2_s: float, *, end_s: float, observed_s: float) -> Blended:
        """Make it from the share of the first phase, in (0, 1), instead of b."""
        odds = math.log(early_share) - math.log1p(-early_share)
        both = math.log(-math.expm1(-end_s / tau2_s)) - math.log(-math.expm1(-end_s / tau1_s))
        b_s = end_s + tau2_s * (odds + both)
        return cls(b_s, tau1_s, tau2_s, end_at_s=end_s, observed_s=observed_s)

    def log_survival(self, age_s: ArrayLike) -> Floats:
        """Return log S(t), to full precision up to the end."""
        age = np.minimum(ages(age_s), self.end_at_s)
        left = self.end_at_s - age
        with np.errstate(divide="ignore"):
            early = -age / self.tau1_s + np.log(-np.expm1(-left / self.tau1_s))
            late = (self.end_at_s - self.b_s) / self.tau2_s + np.log(-np.expm1(-left / self.tau2_s))
        return np.minimum(np.logaddexp(early, late) - float(np.logaddexp(*self._log_weights)), 0.0)

    def log_density(self, age_s: ArrayLike) -> Floats:
        """Return log f(t); -inf beyond the end."""
        age = ages(age_s)
        inside = np.minimum(age, self.end_at_s)
        early = -inside / self.tau1_s - math.log(self.tau1_s)
        late = (inside - self.b_s) / self.tau2_s - math.log(self.tau2_s)
        found = np.logaddexp(early, late) - float(np.logaddexp(*self._log_weights))
        return np.where(age <= self.end_at_s, found, -math.inf)

    def log_hazard(self, age_s: ArrayLike) -> Floats:
        """Return log h(t); infinite from the end on."""
        alive = self.log_survival(age_s)
        there = alive > -math.inf
        return np.where(there, self.log_density(age_s) - np.where(there, alive, 0.0), math.inf)
