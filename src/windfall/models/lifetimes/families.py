"""The classical laws: exponential, Weibull, Gompertz-Makeham; and a bathtub with the reclaim at a provider's limit.

SciSpot's blended exponential: as printed (not a distribution) and normalised.

A piecewise constant hazard, with breaks chosen by the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from windfall.errors import Misuse
from windfall.models.lifetimes.lifetime_law import Floats, Law, ages
from windfall.models.lifetimes.observations import Lifetimes


@dataclass(frozen=True, slots=True)
class Exponential(Law):
    """Memoryless losses: S(t) = exp(-t rate).

    Attributes:
        rate_per_s: losses per second of lifetime [1/s], > 0; 1 / MTTP.
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
    """Early losses that decay, a constant floor, and the reclaim that starts at the provider's limit.

        h(t) = early exp(-t / early_time) + base + (shape / reclaim) ((t - limit) / reclaim)^(shape - 1) [t > limit]

    The three are competing risks: the first to strike ends the machine.  A hazard whose integral diverges always gives a
    proper distribution, without truncation or scaling.  Without a limit (infinite) the last part is absent.

    Source: SciSpot (section 3) describes three phases, infancy until about 3 h, a long quiet one, and the 24 h limit.
    Its equation 1 lets the last phase grow exponentially from the start; the machines behave differently: hardly any
    losses until the limit, and then all that are left within 50 minutes.

    Attributes:
        early_per_s: hazard of infancy at age 0, above the floor [1/s], >= 0.
        early_s: time in which infancy decays by a factor of e [s], > 0.
        base_per_s: the floor [1/s], >= 0.
        limit_s: the provider's limit of age [s], > 0; infinite if there is none.
        reclaim_s: how long the reclaim takes (the age past the limit that a share 1/e outlives) [s], > 0.
        reclaim_shape: how abruptly it starts, >= 1; 1: at once.
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
    def breakpoints_s(self) -> tuple[float, ...]:
        """The limit, where the reclaim starts."""
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


@dataclass(frozen=True, slots=True)
class BlendedAsPrinted:
    """Equation 1 of SciSpot, F(t) = A (1 - exp(-t / tau1) + exp((t - b) / tau2)), as it is printed.

    It is not a distribution: it exceeds 1 from some age (`whole_s`, 24.27 h with the constants of the authors' simulator,
    while a machine may last 24.83 h), and F(24 h) = 0.83 there leaves a sixth of the machines for the last minutes.
    It only serves to reproduce published numbers.  `normalised` is the distribution of the same shape.

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
        """Return F(t) as printed, without a bound at 1."""
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
        """Return f / (1 - F) [1/s]; infinite from `whole_s`."""
        left = 1.0 - self.cdf(age_s)
        with np.errstate(divide="ignore", over="ignore"):
            return np.where(left > 0, self.pdf(age_s) / np.where(left > 0, left, 1.0), math.inf)

    @property
    def whole_s(self) -> float:
        """The age at which F reaches 1 [s]; beyond it the formula has no meaning."""
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

    def expected_lifetime_s(self, until_s: float) -> float:
        """Return the papers' "expected lifetime" over [0, until]: G(until) - G(0) [s].

        Machines that outlive `until_s` contribute nothing to it, so that the bound decides: with the fit of all machines
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

    It is the mixture, with the weight `early_share`, of an exponential with mean tau1 and a mirrored one, tau2 before the
    end, both truncated to [0, end]: the three-parameter bathtub that is often fitted to these data is this law with other
    parameter names.

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
        """The share of machines lost in the first phase."""
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
        """Return log h(t); infinite from the end."""
        alive = self.log_survival(age_s)
        there = alive > -math.inf
        return np.where(there, self.log_density(age_s) - np.where(there, alive, 0.0), math.inf)


CANDIDATES_MAX = 240
"""The number of candidate ages, spread over the losses, for a change of the hazard."""
LOSSES_MIN = 5
"""The fewest losses in a segment of constant hazard."""


@dataclass(frozen=True, slots=True)
class Piecewise(Law):
    """Constant hazards between ages; the last one holds forever.

    Attributes:
        breaks_s: the age at which each segment starts [s], ascending, the first 0.
        rates_per_s: the hazard in each [1/s], >= 0.
    """

    name: ClassVar[str] = "piecewise"
    breaks_s: tuple[float, ...]
    rates_per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        assert self.breaks_s[0] == 0
        assert len(self.breaks_s) == len(self.rates_per_s)
        assert all(low < high for low, high in zip(self.breaks_s, self.breaks_s[1:], strict=False))
        assert min(self.rates_per_s) >= 0

    @property
    def breakpoints_s(self) -> tuple[float, ...]:
        """The ages at which the hazard changes."""
        return self.breaks_s[1:]

    def parameters(self) -> dict[str, float]:
        """Return the breaks and rates, numbered."""
        rates = {f"rate_{index}_per_s": rate for index, rate in enumerate(self.rates_per_s)}
        return rates | {f"break_{index}_s": age for index, age in enumerate(self.breaks_s) if index}

    def _sums(self) -> Floats:
        """Cumulative hazard at each break."""
        spent = np.diff(self.breaks_s) * np.asarray(self.rates_per_s[:-1])
        return np.concatenate([[0.0], np.cumsum(spent)])

    def _segment(self, age: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
        return np.searchsorted(self.breaks_s, age, side="right") - 1

    def log_survival(self, age_s: ArrayLike) -> Floats:
        """Return log S(t) = -(sum of rate x time spent in each segment)."""
        age = ages(age_s)
        segment = self._segment(age)
        since = age - np.asarray(self.breaks_s)[segment]
        rates = np.asarray(self.rates_per_s)[segment]
        return -(self._sums()[segment] + np.where(rates > 0, rates * since, 0.0))

    def log_hazard(self, age_s: ArrayLike) -> Floats:
        """Return log h(t); a break belongs to the segment that it starts."""
        with np.errstate(divide="ignore"):
            logs = np.log(np.asarray(self.rates_per_s))
        return np.asarray(logs[self._segment(ages(age_s))], dtype=np.float64)

    def _age_at(self, hazard: Floats) -> Floats:
        sums = self._sums()
        segment = np.maximum(np.searchsorted(sums, hazard, side="left") - 1, 0)
        rates = np.asarray(self.rates_per_s)[segment]
        moving = rates > 0
        more = (hazard - sums[segment]) / np.where(moving, rates, 1.0)
        here = np.asarray(self.breaks_s)[segment]
        return np.where(moving, here + more, np.where(hazard > sums[segment], math.inf, here))


def fit_piecewise(lifetimes: Lifetimes) -> Piecewise:
    """Fit a piecewise constant hazard to censored lifetimes, with as many segments as the data support.

    A segment with d losses in E seconds of lifetime has the rate d / E and the log-likelihood d log(d / E) - d.  Breaks
    are placed at ages of losses so that the sum over all segments, less 3/2 log(losses) for each break, is largest; the
    partition is optimal, by dynamic programming, not greedy.  The price of a break is the modified BIC's.

    Raises:
        Misuse: no lifetime ended in a loss.

    Source:
        Zhang and Siegmund, "A modified Bayes information criterion ...", Biometrics 63 (2007), leading term.
    """
    if not lifetimes.losses:
        raise Misuse("lifetimes: none ended in a preemption, so no hazard can be fitted; wait for the first loss")
    losses = np.sort(lifetimes.duration_s[lifetimes.lost])
    coarse = _candidates(losses)
    breaks = _near(losses, coarse, _best(lifetimes, losses, coarse).breaks_s)
    return _best(lifetimes, losses, breaks)


def _candidates(losses: Floats) -> Floats:
    """Ages at which the hazard may change: 0 and at most `CANDIDATES_MAX` ages of losses before the last."""
    return np.concatenate([[0.0], _spread(np.unique(losses[losses < losses[-1]]), CANDIDATES_MAX)])


def _near(losses: Floats, coarse: Floats, breaks: tuple[float, ...]) -> Floats:
    """Ages of losses between the candidates on both sides of each break: the second, finer search."""
    found = [coarse[:1]]
    every = np.unique(losses[losses < losses[-1]])
    for at in np.searchsorted(coarse, breaks[1:]):
        low, high = coarse[at - 1], coarse[min(at + 1, len(coarse) - 1)]
        found += [coarse[at : at + 1], _spread(every[(every >= low) & (every <= high)], CANDIDATES_MAX // 8)]
    return np.unique(np.concatenate(found))


def _spread(found: Floats, count: int) -> Floats:
    """At most `count` of the sorted numbers, evenly by rank."""
    return found if len(found) <= count else found[np.linspace(0, len(found) - 1, count).round().astype(int)]


def _best(lifetimes: Lifetimes, losses: Floats, breaks: Floats) -> Piecewise:
    """The best partition with breaks among these."""
    durations = np.sort(lifetimes.duration_s)
    before = np.concatenate([[0.0], np.cumsum(durations)])
    passed = np.searchsorted(durations, breaks, side="right")
    exposure = np.append(before[passed] + (len(durations) - passed) * breaks, before[-1])
    counted = np.append(np.searchsorted(losses, breaks, side="left"), len(losses))
    chosen = _partition(exposure, counted, price=1.5 * math.log(max(len(losses), 2)))
    lost = np.diff(np.append(counted[chosen], counted[-1]))
    lived = np.diff(np.append(exposure[chosen], exposure[-1]))
    return Piecewise(tuple(breaks[chosen].tolist()), tuple((lost / lived).tolist()), observed_s=lifetimes.oldest_s)


def _partition(exposure: Floats, counted: np.ndarray[tuple[int, ...], np.dtype[np.intp]], price: float) -> list[int]:
    """Indices of the candidates that start a segment in the best partition."""
    best = np.full(len(exposure), -math.inf)
    best[0] = 0.0
    came_from = np.zeros(len(exposure), dtype=int)
    enough = min(LOSSES_MIN, int(counted[-1]))
    for end in range(1, len(exposure)):
        lost = counted[end] - counted[:end]
        lived = exposure[end] - exposure[:end]
        fits = (lost >= enough) & (lived > 0)
        rate = np.where(fits, lost, 1) / np.where(fits, lived, 1.0)
        score = np.where(fits, best[:end] + lost * np.log(rate) - lost - price, -math.inf)
        came_from[end] = int(np.argmax(score))
        best[end] = score[came_from[end]]
    chosen = []
    at = len(exposure) - 1
    while at:
        at = int(came_from[at])
        chosen.append(at)
    return chosen[::-1]
