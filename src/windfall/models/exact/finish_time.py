"""Distribution of the finish time and cost of a run with a fixed interval, without sampling.

Memoryless losses, W work, tau interval, delta stall, M mean time to a loss, R from a loss to training again (a constant
or uniform over a range; no loss occurs in it).  The run is n = ceil(W / tau) - 1 segments of w = tau + delta and a last
one, without a save if the run ends with its work.  A segment is repeated until it survives: the number of losses in it is
geometric with success e^(-w/M), each costs X = (a lifetime that ends within w) + R, and the time beyond the bare run is
the sum over all segments.  With

    f_w(z) = E[z^X],  q = 1 - e^(-w/M):      E[z^extra] = ((1 - q) / (1 - q f_w(z)))^n (1 - q') / (1 - q' f_w'(z))

so one Fourier transform of f on a lattice, powers, and one transform back give the distribution.  The mass of X is
split between the two lattice points around it so that its mean is kept: the mean of the result equals the closed form
n (M + R) (e^(w/M) - 1) + ... (Daly, FGCS 22(3), 2006, equation 13), up to rounding.  The lattice is so long that the mass
that wraps around it is below 1e-12, and a cell is about a thousandth of the standard deviation.

The atom of a run without any loss, e^(-(n w + w') / M), is stored separately, because it is a jump of the distribution.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Infeasible, Misuse
from windfall.models.expected_runtime import unsaved_s
from windfall.structs import Struct, replace

Array = NDArray[np.float64]
CELLS = 1 << 15
SPREADS = 36.0
"""How many standard deviations beyond the mean the lattice reaches: the slowest tail, for a single segment that hardly
ever survives, is exponential, and e^-36 is 2e-16."""
ROUNDING = 1e-9
"""Work within this share of a whole number of intervals ends with the last of them: no save comes there."""
LOSSES_MAX = 1e9
"""A run with more expected losses than this does not end and is refused."""


class FixedIntervalRun(Struct, frozen=True):
    """A run with a fixed interval under memoryless losses.

    Attributes:
        work_s: W [s].
        interval_s: tau, work between two saves [s]; infinite for none.
        stall_s: delta [s].
        mttp_s: M, mean time to a loss that redoes work [s].
        restart_s: R, or its lower bound [s].
        restart_most_s: the upper bound if R is uniform over a range [s]; None: R is constant.
        start_s: time before the training starts [s].
        saves_at_end: whether a save follows the end of the work.
    """

    work_s: float
    interval_s: float
    stall_s: float
    mttp_s: float
    restart_s: float = 0.0
    restart_most_s: float | None = None
    start_s: float = 0.0
    saves_at_end: bool = False

    def __post_init__(self) -> None:
        lengths = (self.work_s, self.stall_s, self.restart_s, self.start_s)
        if any(not math.isfinite(length) or length < 0.0 for length in lengths):
            raise Misuse("work, stall, restart and start must be durations in seconds, 0 or more")
        if not (self.interval_s > 0.0 and self.mttp_s > 0.0):
            raise Misuse("the interval and the mean time to a loss must be positive durations in seconds")
        if self.restart_most_s is not None and self.restart_most_s < self.restart_s:
            raise Misuse(
                f"a restart takes at least {self.restart_s:g} s and at most {self.restart_most_s:g} s: swap them"
            )

    @property
    def segments(self) -> tuple[tuple[int, float], ...]:
        """(how many, how long [s]) of the equal segments, and the last one."""
        saves = 0 if math.isinf(self.interval_s) else max(math.ceil(self.work_s / self.interval_s - ROUNDING) - 1, 0)
        last_s = self.work_s - saves * self.interval_s if saves else self.work_s
        last_s += self.stall_s if self.saves_at_end else 0.0
        return ((saves, self.interval_s + self.stall_s), (1, last_s)) if saves else ((1, last_s),)

    @property
    def least_s(self) -> float:
        """How long the run takes without any loss [s]."""
        return self.start_s + math.fsum(count * length_s for count, length_s in self.segments)

    @property
    def restart_mean_s(self) -> float:
        """Mean of R [s]."""
        return self.restart_s if self.restart_most_s is None else (self.restart_s + self.restart_most_s) / 2.0


class Distribution(Struct, frozen=True, eq=False):
    """The distribution of a duration or an amount of money.

    Attributes:
        least: the smallest value; it alone has the probability `atom`.
        cell: lattice spacing of the values above it.
        masses: probabilities of `least` + 0, cell, 2 cell, ..., without the atom.
    """

    least: float
    atom: float
    cell: float
    masses: Array

    def mean(self) -> float:
        """Return the expectation."""
        return self.least + self.cell * float(self.masses @ np.arange(len(self.masses)))

    def deviation(self) -> float:
        """Return the standard deviation."""
        places = np.arange(len(self.masses))
        added = float(self.masses @ places)
        return self.cell * math.sqrt(max(float(self.masses @ (places.astype(np.float64) ** 2)) - added * added, 0.0))

    def quantile(self, probability: float) -> float:
        """Return the value that is not exceeded with this probability.

        Args:
            probability: strictly between 0 and 1.
        """
        if not 0.0 < probability < 1.0:
            raise Misuse(
                f"the probability of a quantile is {probability:g}: give a number between 0 and 1, 0.9 for the P90"
            )
        if probability <= self.atom:
            return self.least
        edges, sums = self._edges()
        return self.least + self.cell * float(np.interp(probability, sums, edges))

    def below(self, value: float) -> float:
        """Return the probability that a value is not exceeded; for a deadline: to be done in time."""
        if value < self.least:
            return 0.0
        edges, sums = self._edges()
        return min(float(np.interp((value - self.least) / self.cell, edges, sums)), 1.0)

    def times(self, factor: float) -> Distribution:
        """Return the distribution of a multiple: seconds to USD by the price of a second."""
        return replace(self, least=self.least * factor, cell=self.cell * factor)

    def _edges(self) -> tuple[Array, Array]:
        """The cells' ends, and the probability up to each: a lattice point's mass lies half to either side of it."""
        edges = np.maximum(np.arange(len(self.masses) + 1) - 0.5, 0.0)
        return edges, self.atom + np.concatenate(([0.0], np.cumsum(np.maximum(self.masses, 0.0))))


def mean_s(run: FixedIntervalRun) -> float:
    """Return the closed form of the expected time [s]: the start, and (M + R) (e^(w/M) - 1) of each segment."""
    return run.start_s + math.fsum(
        count * unsaved_s(length_s, run.mttp_s, run.restart_mean_s) for count, length_s in run.segments
    )


def deviation_s(run: FixedIntervalRun) -> float:
    """Return the closed form of the standard deviation of the time [s]."""
    return math.sqrt(math.fsum(count * _moments(run, length_s)[1] for count, length_s in run.segments))


def finish(run: FixedIntervalRun, cells: int = CELLS) -> Distribution:
    """Return the distribution of the time that a run takes [s].

    Args:
        run: the run.
        cells: of the lattice; a power of two.

    Raises:
        Infeasible: the run is expected to lose more than `LOSSES_MAX` machines.

    Example:
        W 450 000 s, tau 250 s, delta 13 s, M 10 800 s, R uniform over 80 to 120 s, a save at the end: mean 483 648.30 s.

    Source:
        The compound distribution of a renewal argument; Daly, FGCS 22(3), 2006, has its mean.
    """
    expected = math.fsum(count * math.expm1(min(length_s / run.mttp_s, 700.0)) for count, length_s in run.segments)
    if expected > LOSSES_MAX:
        raise Infeasible(
            f"with a loss every {run.mttp_s:g} s and a save every {run.interval_s:g} s this run does not end: save more often"
        )
    if expected == 0.0:
        return Distribution(run.least_s, 1.0, 1.0, np.zeros(1))
    span_s = mean_s(run) - run.least_s + SPREADS * deviation_s(run)
    longest_s = max(length_s for _, length_s in run.segments)
    span_s = max(span_s, 4.0 * (longest_s + max(run.restart_s, run.restart_most_s or 0.0)))
    cell_s = span_s / cells
    transform = np.ones(cells // 2 + 1, dtype=np.complex128)
    for count, length_s in run.segments:
        lost = -math.expm1(-length_s / run.mttp_s)
        steps = np.fft.rfft(_lost(run, length_s, cell_s, cells))
        transform *= ((1.0 - lost) / (1.0 - lost * steps)) ** count
    masses = np.fft.irfft(transform, cells)
    atom = math.exp(-(run.least_s - run.start_s) / run.mttp_s)
    masses[0] -= atom
    return Distribution(run.least_s, atom, cell_s, masses)


def cost(run: FixedIntervalRun, price_usd_per_hour: float, *, billed_restart_s: float | None = None) -> Distribution:
    """Return the distribution of a run's cost [USD]: price x billed time.

    Args:
        run: the run.
        price_usd_per_hour: of its machines together [USD/h].
        billed_restart_s: the billed part of a restart [s]: the preparation of the next machine, without the wait for it;
            by default all of it.
    """
    billed = run if billed_restart_s is None else replace(run, restart_s=billed_restart_s, restart_most_s=None)
    return finish(billed).times(price_usd_per_hour / 3600.0)


def _moments(run: FixedIntervalRun, length_s: float) -> tuple[float, float]:
    """Mean and variance of the time that losses add to one segment [s, s^2]."""
    ratio, mttp_s = length_s / run.mttp_s, run.mttp_s
    if ratio == 0.0:
        return 0.0, 0.0
    lost, lived = -math.expm1(-ratio), math.exp(-ratio)
    mean_s = mttp_s - length_s * lived / lost
    square = 2.0 * mttp_s * mttp_s - lived / lost * (length_s * length_s + 2.0 * mttp_s * length_s)
    spread = max(square - mean_s * mean_s, 0.0)
    if run.restart_most_s is not None:
        spread += (run.restart_most_s - run.restart_s) ** 2 / 12.0
    mean_s += run.restart_mean_s
    losses = math.expm1(ratio)
    return losses * mean_s, losses * spread + losses * (1.0 + losses) * mean_s * mean_s


def _lost(run: FixedIntervalRun, length_s: float, cell_s: float, cells: int) -> Array:
    """Distribution of the time that one loss costs, on the lattice: a lifetime truncated at `length_s`, and a restart.

    With H the integral of the distribution function F, a lattice point k has H((k + 1) c) - 2 H(k c) + H((k - 1) c)
    over c: the mass within a cell is assigned to its ends so that the mean is kept.
    """
    most_s = run.restart_s if run.restart_most_s is None else run.restart_most_s
    points = min(math.ceil((length_s + most_s) / cell_s) + 3, cells)
    at_s = cell_s * (np.arange(points + 1, dtype=np.float64) - 1.0)
    if most_s > run.restart_s:
        twice = _second(at_s - run.restart_s, length_s, run.mttp_s) - _second(at_s - most_s, length_s, run.mttp_s)
        once = twice / (most_s - run.restart_s)
    else:
        once = _first(at_s - run.restart_s, length_s, run.mttp_s)
    masses = np.zeros(cells)
    masses[: points - 1] = (once[2:] - 2.0 * once[1:-1] + once[:-2]) / cell_s
    return masses


def _first(at_s: Array, length_s: float, mttp_s: float) -> Array:
    """Integral of the distribution function of a lifetime that ends within `length_s`, from 0 [s]."""
    inside = np.clip(at_s, 0.0, length_s)
    part = inside + mttp_s * np.expm1(-inside / mttp_s)
    return np.asarray(part / -math.expm1(-length_s / mttp_s) + np.maximum(at_s - length_s, 0.0))


def _second(at_s: Array, length_s: float, mttp_s: float) -> Array:
    """Integral of `_first`, from 0 [s^2]."""
    inside, beyond = np.clip(at_s, 0.0, length_s), np.maximum(at_s - length_s, 0.0)
    part = inside * inside / 2.0 - mttp_s * inside - mttp_s * mttp_s * np.expm1(-inside / mttp_s)
    whole_s = _first(np.array([length_s]), length_s, mttp_s)[0]
    return np.asarray(part / -math.expm1(-length_s / mttp_s) + beyond * whole_s + beyond * beyond / 2.0)
