"""Made-up traces: machines with given lives, availability, prices.  Chance is handed in, so that a seed is one trace.

Lives come from any model through its inverse survival function: life = S^-1(U), U uniform in (0, 1).
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from windfall.market import MachineEndCause
from windfall.simulation.traces.trace_events import (
    ClockKind,
    Content,
    Count,
    Event,
    MachineEnded,
    MachineStarted,
    Price,
    SamplingKind,
    Series,
    TracedLifetime,
    TraceHeader,
    WatchedUntil,
)

InverseSurvival = Callable[[float], float]
"""From the probability of living longer to the life [s]; falls from S^-1(0) (the longest, may be inf) to S^-1(1)."""


def header(content: Content, step_s: float | None = None) -> TraceHeader:
    """Return the header of a made-up trace."""
    sampling = SamplingKind.CHANGES if step_s is None else SamplingKind.SAMPLES
    return TraceHeader("generated", (content,), ClockKind.START, sampling, step_s)


def _drawn(inverse: InverseSurvival, uniforms: Iterator[float]) -> float:
    uniform = next(uniforms)
    assert 0.0 < uniform < 1.0, "uniforms lie between 0 and 1"
    length_s = inverse(uniform)
    assert length_s >= 0.0, "an inverse survival function gives lengths of time"
    return length_s


def sample_lifetimes(
    inverse: InverseSurvival, uniforms: Iterable[float], series: Series, *, watched_s: float = math.inf
) -> Iterator[TracedLifetime]:
    """Yield one life for each uniform, all begun at 0.

    Args:
        inverse: of the model.
        uniforms: in (0, 1); as many as lives are wanted.
        series: type and zone of the machines.
        watched_s: nobody looked longer than this: longer lives are censored there [s].

    Example:
        exponential of mean 3600 s: `sample_lifetimes(lambda u: -3600 * math.log(u), uniforms, series)`
    """
    stream = iter(uniforms)
    for number in range(1, 1 << 62):
        try:
            lifetime_s = _drawn(inverse, stream)
        except StopIteration:
            return
        end = MachineEndCause.PREEMPTED if lifetime_s <= watched_s else None
        yield TracedLifetime(0.0, series, min(lifetime_s, watched_s), end, f"m{number}")


def slot(
    inverse: InverseSurvival,
    uniforms: Iterable[float],
    series: Series,
    *,
    horizon_s: float,
    replaced_after_s: float = 0.0,
) -> Iterator[Event]:
    """Yield one machine after the other in a slot: each is taken after its life, the next comes after a while.

    Args:
        inverse: of the model of lives.
        uniforms: in (0, 1); one for each machine that comes before the horizon.
        series: type and zone of the machines.
        horizon_s: where the trace ends [s].
        replaced_after_s: from a loss until the next machine is there [s].
    """
    stream, at_s, number = iter(uniforms), 0.0, 0
    while at_s < horizon_s:
        number += 1
        name = f"m{number}"
        yield MachineStarted(at_s, series, name)
        at_s += _drawn(inverse, stream)
        if at_s <= horizon_s:
            yield MachineEnded(at_s, series, name)
        at_s += replaced_after_s
    yield WatchedUntil(horizon_s, series, Content.MACHINES)


def availability(
    up: InverseSurvival,
    down: InverseSurvival,
    uniforms: Iterable[float],
    series: Series,
    *,
    machines: int = 1,
    horizon_s: float,
) -> Iterator[Event]:
    """Yield how many of some machines can be had, each up and down in turns, independently; all begin up.

    Args:
        up: of the model of how long a machine is up.
        down: of the model of how long it is away.
        uniforms: in (0, 1); drawn in the order of time, ties by the machine's number.
        series: type and zone.
        machines: how many are wanted.
        horizon_s: where the trace ends [s].

    Note:
        The share of time up tends to E[up] / (E[up] + E[down]) (renewal theorem).
    """
    stream = iter(uniforms)
    turns = [(_drawn(up, stream), number, True) for number in range(machines)]
    heapq.heapify(turns)
    count = machines
    yield Count(0.0, series, count)
    while turns and turns[0][0] <= horizon_s:
        at_s, number, was_up = heapq.heappop(turns)
        count += -1 if was_up else 1
        yield Count(at_s, series, count)
        heapq.heappush(turns, (at_s + _drawn(down if was_up else up, stream), number, not was_up))
    yield WatchedUntil(horizon_s, series, Content.COUNTS)


@dataclass(frozen=True, slots=True)
class PriceModel:
    """A spot price that returns to its mean, with spikes.

    The logarithm of the price is an Ornstein-Uhlenbeck process around log(mean) - sigma^2 / 2 with standard deviation
    sigma and memory tau, so that the mean price without spikes is `mean_usd_per_hour`; spikes come as a Poisson process
    and multiply it while they last.

    Attributes:
        mean_usd_per_hour: of the price without spikes [USD/h].
        sigma: standard deviation of its logarithm in the long run [1].
        memory_s: time after which 1/e of a deviation is left [s].
        spikes_per_day: how often a spike begins [1/day].
        spike_factor: by how much it multiplies the price [1].
        spike_s: mean length of a spike, exponential [s].
        cap_usd_per_hour: the price is never higher: what a bid may be at most [USD/h].
        step_s: time between two prices [s].
    """

    mean_usd_per_hour: float
    sigma: float = 0.15
    memory_s: float = 6 * 3600.0
    spikes_per_day: float = 0.5
    spike_factor: float = 6.0
    spike_s: float = 1800.0
    cap_usd_per_hour: float = math.inf
    step_s: float = 300.0

    def __post_init__(self) -> None:
        """Check that it can be."""
        lengths = (self.mean_usd_per_hour, self.memory_s, self.spike_s, self.step_s, self.spike_factor)
        assert all(0.0 < value < math.inf for value in lengths), "these are above 0"
        assert self.sigma >= 0.0, "a standard deviation is not negative"
        assert self.spikes_per_day >= 0.0, "a rate is not negative"


def prices(model: PriceModel, stream: random.Random, series: Series, *, horizon_s: float) -> Iterator[Event]:
    """Yield a price each step.

    The step is exact at any length: x' = x exp(-dt/tau) + sigma sqrt(1 - exp(-2 dt/tau)) N(0, 1).

    Args:
        model: its parameters.
        stream: of chance, seeded by the caller.
        series: type and zone.
        horizon_s: where the trace ends [s].

    Source:
        Gillespie, Exact numerical simulation of the Ornstein-Uhlenbeck process, Phys. Rev. E 54 (1996), equation 1.9.
    """
    fade = math.exp(-model.step_s / model.memory_s)
    kick = model.sigma * math.sqrt(1.0 - fade * fade)
    begins = 1.0 - math.exp(-model.spikes_per_day * model.step_s / 86_400.0)
    deviation, spike_until_s = stream.gauss(0.0, model.sigma), -1.0
    for step in range(math.ceil(horizon_s / model.step_s)):
        at_s = step * model.step_s
        if stream.random() < begins:
            spike_until_s = max(spike_until_s, at_s + stream.expovariate(1.0 / model.spike_s))
        calm = model.mean_usd_per_hour * math.exp(deviation - model.sigma**2 / 2.0)
        factor = model.spike_factor if at_s < spike_until_s else 1.0
        yield Price(at_s, series, round(min(calm * factor, model.cap_usd_per_hour), 6))
        deviation = deviation * fade + kick * stream.gauss(0.0, 1.0)
    yield WatchedUntil(horizon_s, series, Content.PRICES)
