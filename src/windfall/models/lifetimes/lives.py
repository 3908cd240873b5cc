"""Observed lives of machines: how long, whether the end was a loss, which were launched together, and of what kind."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windfall.errors import Misuse
from windfall.fleet import Lifetime
from windfall.models.lifetimes.law import Floats
from windfall.terms import WallTime

FOLDS = 5
HOURS_IN_BAND = 6
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True, eq=False, slots=True)
class Lives:
    """Lives of machines, one entry each.  Made by `lives_of`, which checks them.

    Attributes:
        duration_s: from the machine's start to its end, or to the last moment at which it was seen alive [s], > 0.
        lost: whether the end was a preemption.  False: stopped by its user or still running: it is censored, that is, known
            to have lived at least so long.
        batch: number of its launch batch.  Machines that were launched together share their fate (zone, hour, price), so that
            batches, not machines, are the independent observations.
        keys: what it was, by the name of the property: type, zone, hour, weekday.
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
        """The oldest age at which a machine was seen [s]."""
        return float(np.max(self.duration_s))

    def where(self, chosen: NDArray[np.bool_]) -> Lives:
        """Return some of them."""
        keys = {name: values[chosen] for name, values in self.keys.items()}
        return Lives(self.duration_s[chosen], self.lost[chosen], self.batch[chosen], keys)


def lives_of(
    duration_s: ArrayLike,
    lost: ArrayLike,
    *,
    batch: Sequence[str] | None = None,
    keys: Mapping[str, Sequence[str]] | None = None,
) -> Lives:
    """Check lives and return them.

    Args:
        duration_s: lengths [s].
        lost: whether each ended in a preemption.
        batch: name of each one's launch batch; by default each machine is a batch of its own.
        keys: properties by name, one word a machine.

    Raises:
        Misuse: nothing is there, a length is not above zero and finite, or the columns differ in length.
    """
    durations = np.asarray(duration_s, dtype=np.float64)
    if durations.ndim != 1 or not len(durations):
        raise Misuse("lifetimes: there are none; at least one machine's life is needed")
    wrong = ~(np.isfinite(durations) & (durations > 0))
    if np.any(wrong):
        row = int(np.argmax(wrong))
        raise Misuse(
            f"lifetimes: life {row + 1} is {durations[row]:g} s long; a life is a number of seconds above zero"
        )
    names = np.asarray(batch if batch is not None else np.arange(len(durations)).astype(str))
    words = {name: np.asarray(values, dtype=np.str_) for name, values in (keys or {}).items()}
    ends = np.asarray(lost, dtype=np.bool_)
    for what, column in (("ends", ends), ("batches", names), *words.items()):
        if len(column) != len(durations):
            raise Misuse(f"lifetimes: {len(durations)} lengths but {len(column)} {what}; each life needs one of each")
    return Lives(durations, ends, np.unique(names, return_inverse=True)[1].astype(np.int64), words)


def lives_from(rows: Iterable[Lifetime], now: WallTime, *, provider: str, utc_offset_s: float = 0.0) -> Lives:
    """Return the lives of one provider's machines, as the journal of an installation has them.

    Machines of a type and zone that began within the same minute are one batch.  Keys are type, zone, hour band and
    weekday of the launch.

    Args:
        rows: one a machine; those that ended otherwise than by a preemption, or that still run, are censored.
        now: until when running lives count.
        provider: whose machines; laws of different providers have nothing in common.
        utc_offset_s: of the region's local time, for hours and weekdays [s].

    Raises:
        Misuse: no machine of this provider has lived yet.
    """
    mine = [row for row in rows if row.provider == provider and (now if row.ended is None else row.ended) > row.began]
    local = [dt.datetime.fromtimestamp(row.began + utc_offset_s, tz=dt.UTC) for row in mine]
    return lives_of(
        [(now if row.ended is None else row.ended) - row.began for row in mine],
        [row.preempted and row.ended is not None for row in mine],
        batch=[f"{row.machine_type} {row.zone} {row.began // 60:.0f}" for row in mine],
        keys={
            "type": [row.machine_type for row in mine],
            "zone": [row.zone for row in mine],
            "hour": [hour_band(at.hour) for at in local],
            "weekday": [_WEEKDAYS[at.weekday()] for at in local],
        },
    )


def hour_band(hour: int) -> str:
    """Return the six hours of the day that an hour belongs to: `00-06`, `06-12`, `12-18` or `18-24`."""
    begin = hour // HOURS_IN_BAND * HOURS_IN_BAND
    return f"{begin:02d}-{begin + HOURS_IN_BAND:02d}"


def folds(lives: Lives, count: int = FOLDS) -> NDArray[np.int64]:
    """Return each life's fold: whole batches, the largest first, each to the fold that has the fewest losses so far.

    Returns:
        Numbers from 0; fewer folds than `count` where there are fewer batches.
    """
    found, index = np.unique(lives.batch, return_inverse=True)
    losses = np.bincount(index, weights=lives.lost)
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
