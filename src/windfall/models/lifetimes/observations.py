"""Observed lifetimes of machines, censored or not, and their survival without a law (Kaplan-Meier)."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windfall.errors import Misuse
from windfall.fleet import Lifetime
from windfall.models.lifetimes.lifetime_law import Curve, Floats, ages
from windfall.terms import WallTime

FOLDS = 5
HOURS_IN_BAND = 6
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True, eq=False, slots=True)
class Lifetimes:
    """Lifetimes of machines, one entry each.  Made by `lifetimes_of`, which checks them.

    Attributes:
        duration_s: from the machine's start to its end, or to the last time it was observed alive [s], > 0.
        lost: whether the end was a preemption.  False: stopped by its user or still running: it is censored, that is, known
            to have lasted at least this long.
        batch: number of its launch batch.  Machines that were launched together share their fate (zone, hour, price), so
            that batches, not machines, are the independent observations.
        keys: its properties by name: type, zone, hour, weekday.
    """

    duration_s: Floats
    lost: NDArray[np.bool_]
    batch: NDArray[np.int64]
    keys: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.duration_s)

    @property
    def losses(self) -> int:
        """How many ended in a preemption."""
        return int(np.count_nonzero(self.lost))

    @property
    def batches(self) -> int:
        """How many launch batches there are."""
        return len(np.unique(self.batch))

    @property
    def oldest_s(self) -> float:
        """The oldest age at which a machine was observed [s]."""
        return float(np.max(self.duration_s))

    def where(self, chosen: NDArray[np.bool_]) -> Lifetimes:
        """Return the chosen ones."""
        keys = {name: values[chosen] for name, values in self.keys.items()}
        return Lifetimes(self.duration_s[chosen], self.lost[chosen], self.batch[chosen], keys)


def lifetimes_of(
    duration_s: ArrayLike,
    lost: ArrayLike,
    *,
    batch: Sequence[str] | None = None,
    keys: Mapping[str, Sequence[str]] | None = None,
) -> Lifetimes:
    """Check lifetimes and return them.

    Args:
        duration_s: durations [s].
        lost: whether each ended in a preemption.
        batch: name of each one's launch batch; by default each machine is a batch of its own.
        keys: properties by name, one value per machine.

    Raises:
        Misuse: there are none, a duration is not finite and above zero, or the columns differ in length.
    """
    durations = np.asarray(duration_s, dtype=np.float64)
    if durations.ndim != 1 or not len(durations):
        raise Misuse("lifetimes: there are none; give at least one")
    wrong = ~(np.isfinite(durations) & (durations > 0))
    if np.any(wrong):
        row = int(np.argmax(wrong))
        raise Misuse(f"lifetimes: number {row + 1} is {durations[row]:g} s; a lifetime must be above 0 s and finite")
    names = np.asarray(batch if batch is not None else np.arange(len(durations)).astype(str))
    words = {name: np.asarray(values, dtype=np.str_) for name, values in (keys or {}).items()}
    ends = np.asarray(lost, dtype=np.bool_)
    for what, column in (("ends", ends), ("batches", names), *words.items()):
        if len(column) != len(durations):
            raise Misuse(
                f"lifetimes: {len(durations)} durations but {len(column)} {what}; each lifetime needs one of each"
            )
    return Lifetimes(durations, ends, np.unique(names, return_inverse=True)[1].astype(np.int64), words)


def observed_lifetimes(
    rows: Iterable[Lifetime], now: WallTime, *, provider: str, utc_offset_s: float = 0.0
) -> Lifetimes:
    """Return the lifetimes of one provider's machines from the journal of an installation.

    Machines of a type and zone that started within the same minute are one batch.  Keys are type, zone, hour band and
    weekday of the launch.

    Args:
        rows: one per machine; those that ended without a preemption, or still run, are censored.
        now: the time up to which running machines count.
        provider: whose machines; laws of different providers have nothing in common.
        utc_offset_s: of the region's local time, for hours and weekdays [s].

    Raises:
        Misuse: no machine of this provider has run yet.
    """
    mine = [row for row in rows if row.provider == provider and (now if row.ended is None else row.ended) > row.started]
    local = [dt.datetime.fromtimestamp(row.started + utc_offset_s, tz=dt.UTC) for row in mine]
    return lifetimes_of(
        [(now if row.ended is None else row.ended) - row.started for row in mine],
        [row.preempted and row.ended is not None for row in mine],
        batch=[f"{row.machine_type} {row.zone} {row.started // 60:.0f}" for row in mine],
        keys={
            "type": [row.machine_type for row in mine],
            "zone": [row.zone for row in mine],
            "hour": [hour_band(at.hour) for at in local],
            "weekday": [_WEEKDAYS[at.weekday()] for at in local],
        },
    )


def hour_band(hour: int) -> str:
    """Return the six-hour band of the day that an hour belongs to: `00-06`, `06-12`, `12-18` or `18-24`."""
    start = hour // HOURS_IN_BAND * HOURS_IN_BAND
    return f"{start:02d}-{start + HOURS_IN_BAND:02d}"


def folds(lifetimes: Lifetimes, count: int = FOLDS) -> NDArray[np.int64]:
    """Return each lifetime's fold: whole batches, the largest first, each to the fold with the fewest losses so far.

    Returns:
        Numbers from 0; fewer folds than `count` where there are fewer batches.
    """
    found, index = np.unique(lifetimes.batch, return_inverse=True)
    losses = np.bincount(index, weights=lifetimes.lost)
    sizes = np.bincount(index)
    filled = np.zeros((min(count, len(found)), 2))
    fold = np.zeros(len(found), dtype=np.int64)
    for batch in np.lexsort((np.arange(len(found)), -sizes, -losses)):
        least = int(np.lexsort((filled[:, 1], filled[:, 0]))[0])
        fold[batch] = least
        filled[least] += losses[batch], sizes[batch]
    return fold[index]


def uniforms(seed: int, count: int) -> Floats:
    """Return numbers uniform in (0, 1): the n-th depends on seed and n alone.

    Source:
        SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    state = np.uint64(seed % 2**64) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX_1)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX_2)
    state ^= state >> np.uint64(31)
    return ((state >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


@dataclass(frozen=True, slots=True)
class KaplanMeier(Curve):
    """The product-limit estimate: S(t) = product over losses at ages t_i <= t of (1 - d_i / n_i).

    n_i machines were alive and observed just before t_i, d_i of them were lost there; a machine that was stopped at t_i
    still counts as observed.  The estimate has steps and no hazard, and is undefined beyond the oldest observation.

    Attributes:
        ages_s: ages at which machines were lost [s], ascending.
        lost, at_risk: d_i and n_i.

    Source:
        Kaplan and Meier, J. Amer. Statist. Assoc. 53 (1958); the standard error is Greenwood's.
    """

    name: ClassVar[str] = "kaplan-meier"
    extrapolates: ClassVar[bool] = False
    ages_s: tuple[float, ...]
    lost: tuple[int, ...]
    at_risk: tuple[int, ...]

    @property
    def end_s(self) -> float:
        """The age of the last loss [s] if all machines were lost by then, else infinite, because it is unknown."""
        return self.ages_s[-1] if self.ages_s and self.lost[-1] == self.at_risk[-1] else math.inf

    def parameters(self) -> dict[str, float]:
        """Return an empty dictionary: the estimate has steps, not parameters."""
        return {}

    def steps(self) -> Floats:
        """Return S just after each of `ages_s`."""
        return np.exp(self._log_steps())

    def standard_error(self, age_s: ArrayLike) -> Floats:
        """Return Greenwood's standard error of S: S sqrt(sum of d / (n (n - d))) over losses up to that age."""
        lost, at_risk = np.asarray(self.lost, dtype=float), np.asarray(self.at_risk, dtype=float)
        left = at_risk - lost
        terms = np.where(left > 0, lost / (at_risk * np.where(left > 0, left, 1.0)), 0.0)
        sums = np.concatenate([[0.0], np.cumsum(terms)])
        passed = np.searchsorted(self.ages_s, ages(age_s), side="right")
        return np.asarray(self.survival(age_s) * np.sqrt(sums[passed]), dtype=np.float64)

    def log_survival(self, age_s: ArrayLike) -> Floats:
        """Return log S(t); beyond the oldest observation it is constant, as `survival_answer` notes."""
        known = np.concatenate([[0.0], self._log_steps()])
        return np.asarray(known[np.searchsorted(self.ages_s, ages(age_s), side="right")], dtype=np.float64)

    def _log_steps(self) -> Floats:
        lost, at_risk = np.asarray(self.lost, dtype=float), np.asarray(self.at_risk, dtype=float)
        with np.errstate(divide="ignore"):
            return np.cumsum(np.log1p(-lost / at_risk))

    def _age_at(self, hazard: Floats) -> Floats:
        found = np.searchsorted(-self._log_steps(), hazard, side="left")
        reached = np.append(np.asarray(self.ages_s), math.inf)[found]
        return np.where(hazard > 0, reached, 0.0)

    def _area(self, start_s: float, end_s: float) -> float:
        inner = [age for age in self.ages_s if start_s < age < end_s]
        edges = np.asarray([start_s, *inner, min(end_s, self.end_s)])
        alive = self.log_survival(edges[:-1]) - float(self.log_survival(start_s))
        return float(np.sum(np.diff(edges) * np.exp(alive)))


def kaplan_meier(lifetimes: Lifetimes) -> KaplanMeier:
    """Return the Kaplan-Meier estimate of lifetimes.

    Example:
        Lifetimes 1, 2 (stopped), 3, 3 and 5 s (stopped): S = 4/5 from 1 s, 4/5 x 1/3 from 3 s, unknown beyond 5 s.
    """
    found, lost = np.unique(lifetimes.duration_s[lifetimes.lost], return_counts=True)
    at_risk = len(lifetimes) - np.searchsorted(np.sort(lifetimes.duration_s), found, side="left")
    return KaplanMeier(
        tuple(found.tolist()),
        tuple(lost.tolist()),
        tuple(at_risk.tolist()),
        observed_s=lifetimes.oldest_s,
    )
