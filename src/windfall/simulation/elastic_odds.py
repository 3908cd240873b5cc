"""What an elastic training does over a series of machines, beside a restart from a checkpoint and a fixed shape, and its cost.

The policy is the one that live trainings ask (`shape_policy.decide`).  All arms have the same machines, and pay each of them at
all times, also while it is idle.  Every change is charged its mean cost over which machines are lost, of every stage.

**Fixed shape** trains only while it has all of its machines; a spare takes a place, and with too few machines it waits, then
starts again.  The shape is the one that trains most over the series, chosen afterwards.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

import numpy as np

from windfall.errors import Misuse
from windfall.models.elastic_profile import ElasticTraining
from windfall.models.shape_costs import BoundedCosts, PublishedCosts
from windfall.models.shapes import IDLE, Shape
from windfall.policies.shapes.shape_policy import INTERVAL_S
from windfall.simulation.shape_replay import Choice, Replayed, deciding, play, play_checkpoints, play_free
from windfall.simulation.value_series import ValueSeries
from windfall.structs import Struct

HOUR_S = 3_600.0
FOLLOWING, FASTEST, RESTARTING = "shapes that follow", "fastest shape of now", "restart from checkpoint"
FIXED, FREE = "fixed shape", "if changes were free"


class ElasticTerms(Struct, frozen=True):
    """On what terms a training is played.

    Attributes:
        interval_s: of the series [s].
        look_ahead: intervals that plans look; None: as far as counts last.
        usd_per_hour: of a machine.
        reliable_usd_per_hour: of the machine that keeps states, which only the elastic arms need.
        samples: until the training ends; None: with the series.
    """

    interval_s: float = INTERVAL_S
    look_ahead: int | None = None
    usd_per_hour: float = 0.0
    reliable_usd_per_hour: float = 0.0
    samples: float | None = None


class ElasticArm(Struct, frozen=True):
    """What one way to train comes to.

    Attributes:
        name: of the arm.
        shape: of a fixed one; `IDLE` otherwise.
        samples: trained.
        time_s: until the training or the series ends [s].
        finished: whether all samples are trained; with none asked for, whether any is.
        machine_hours: paid.
        cost_usd: of all machines.
        changes: of the shape.
        idle_s: time in which nothing could be trained [s].
    """

    name: str
    shape: Shape
    samples: float
    time_s: float
    finished: bool
    machine_hours: float
    cost_usd: float
    changes: int
    idle_s: float

    @property
    def usd_per_million(self) -> float:
        """Cost of a million samples; infinite if none is trained [USD]."""
        return 1e6 * self.cost_usd / self.samples if self.samples else math.inf


def arms(counts: Sequence[int], training: ElasticTraining, terms: ElasticTerms) -> tuple[ElasticArm, ...]:
    """Return what each way to train comes to on a series of machines.

    Raises:
        Misuse: the series is empty.
    """
    if not counts:
        raise Misuse("a series of machines without an interval: pass one that lasts at least one interval")
    speeds, times, interval_s = training.speeds, training.times, terms.interval_s
    charged = PublishedCosts(times, speeds)
    now = play(counts, charged, lambda seen: speeds.best(seen.now), interval_s)
    shape, fixed = _fixed(counts, training, charged, interval_s)
    restarting = play_checkpoints(counts, speeds, times, interval_s=interval_s)
    free = play_free(counts, speeds, interval_s)
    return (
        following(counts, training, terms),
        _arm(FASTEST, now, counts, terms, reliable=True),
        _arm(RESTARTING, restarting, counts, terms),
        _arm(FIXED, fixed, counts, terms, shape=shape),
        _arm(FREE, free, counts, terms),
    )


def following(counts: Sequence[int], training: ElasticTraining, terms: ElasticTerms) -> ElasticArm:
    """Return what an elastic training comes to on a series of at least one interval."""
    speeds, times, interval_s = training.speeds, training.times, terms.interval_s
    choose = deciding(BoundedCosts(times, speeds), terms.look_ahead, interval_s)
    run = play(counts, PublishedCosts(times, speeds), choose, interval_s)
    return _arm(FOLLOWING, run, counts, terms, reliable=True)


def _fixed(
    counts: Sequence[int], training: ElasticTraining, charged: PublishedCosts, interval_s: float
) -> tuple[Shape, Replayed]:
    """Return the fixed shape that trains most, among the fastest of each number of machines."""
    candidates = sorted({training.speeds.best(count) for count in set(counts)} - {IDLE}) or [IDLE]
    found = {shape: play(counts, charged, _only(shape), interval_s) for shape in candidates}
    best = max(candidates, key=lambda shape: sum(found[shape].samples))
    return best, found[best]


def _only(shape: Shape) -> Choice:
    """Return the policy that trains in a shape or not at all."""
    return lambda seen: shape if seen.now >= shape.machines else IDLE


def _arm(
    name: str, run: Replayed, counts: Sequence[int], terms: ElasticTerms, *, reliable: bool = False, shape: Shape = IDLE
) -> ElasticArm:
    total = list(itertools.accumulate(run.samples))
    wanted = terms.samples
    ended = bisect.bisect_left(total, wanted) if wanted is not None else len(total)
    whole = min(ended, len(total))
    part = 0.0
    if wanted is not None and ended < len(total):
        before = total[ended - 1] if ended else 0.0
        # A change is paid first in its interval, and then samples are trained evenly.
        trains_s = run.samples[ended] / run.rates[ended]
        part = (terms.interval_s - trains_s + (wanted - before) / run.rates[ended]) / terms.interval_s
    held = sum(counts[:whole]) + (counts[whole] * part if part else 0.0)
    time_s = (whole + part) * terms.interval_s
    hours = held * terms.interval_s / HOUR_S
    cost_usd = hours * terms.usd_per_hour + (time_s / HOUR_S * terms.reliable_usd_per_hour if reliable else 0.0)
    samples = total[-1] if wanted is None or ended >= len(total) else wanted
    idle = sum(rate == 0.0 for rate in run.rates[:whole])
    return ElasticArm(
        name=name,
        shape=shape,
        samples=samples,
        time_s=time_s,
        finished=samples > 0.0 if wanted is None else ended < len(total),
        machine_hours=hours,
        cost_usd=cost_usd,
        changes=sum(one != other for one, other in itertools.pairwise(run.shapes[: whole + 1])),
        idle_s=idle * terms.interval_s,
    )


# ------------------------------------------------------------------------------------------------------ series of machines


def counted(series: ValueSeries, most: int, interval_s: float) -> tuple[int, ...]:
    """Return the machines of each interval of a series of counts, at most `most`.

    An interval has the fewest machines that it holds at any time, as one that ends in it is not there for the whole of it.
    """
    first_s, last_s = float(series.times_s[0]), float(series.times_s[-1])
    counts = []
    for number in range(max(math.ceil((last_s - first_s) / interval_s), 1)):
        begins_s = first_s + number * interval_s
        ends_s = math.nextafter(begins_s + interval_s, -math.inf)
        least = min((series.at(begins_s), *(value for _, value in series.moves(begins_s, ends_s))))
        counts.append(min(int(least), most))
    return tuple(counts)


def drawn_counts(
    wanted: int, intervals: int, seed: int, *, mttp_s: float, wait_s: float, interval_s: float
) -> tuple[int, ...]:
    """Return machines that are lost and replaced without memory.

    Args:
        wanted: how many the training has at first, and orders again after each loss.
        intervals: how many.
        seed: of the draws.
        mttp_s: mean time to the preemption of a machine [s].
        wait_s: mean time from an order to its machine [s].
        interval_s: of the series [s].
    """
    if wanted < 1 or intervals < 1 or not (mttp_s > 0.0 and wait_s > 0.0):
        raise Misuse("machines are drawn for 1 machine or more, 1 interval or more, and times above 0")
    rng = np.random.default_rng(seed)
    lost, returned = (-math.expm1(-interval_s / mean_s) for mean_s in (mttp_s, wait_s))
    counts, now = [wanted], wanted
    for _ in range(intervals - 1):
        gone = int(rng.binomial(now, lost))
        now += int(rng.binomial(wanted - now, returned)) - gone
        counts.append(now)
    return tuple(counts)
