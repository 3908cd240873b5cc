"""Estimates of how machines of each kind are lost, pooled from all lifetimes of the installation: zone, type, provider.

Losses of a kind are memoryless with an unknown rate lambda.  On each level of the hierarchy lambda ~ Gamma(k, theta),
with mean time to preemption E[1 / lambda] = theta / (k - 1), as in `models.preemption_rates`; that module's prior is the root.
After n preemptions in a total lifetime of T on a level its estimate is

    MTTP = (kappa MTTP_above + T) / (kappa + n),    kappa = PRIOR_PREEMPTIONS = 1

that is, the level above counts as one preemption after its own MTTP: with many observations a level's own data decide,
with none its estimate equals the level above's.  Lifetimes that have not ended count until now, lifetimes that
ended without a preemption (released, stopped, failed) count in full, both without a preemption: they are censored.
This is the posterior mean of 1 / lambda for exponential lifetimes under independent right censoring.

The share of losses without notice is pooled in the same way: (s m_above + silent) / (s + n), with the strength s and the
mean of the provider's Beta prior (`preemption_rates.PreemptionPattern`) at the root.  The restart time is a mean that
shrinks in the same way: (R_above + sum) / (1 + count); there is no level above the provider, so that it is unknown where
none was measured.

Each lifetime counts once: the level above is estimated from its *other* observations (the type's other zones, the
provider's other types).

Source: conjugate Gamma model, e.g. Gelman et al., Bayesian Data Analysis, 3rd ed., section 2.6; MTTP "per combination
of VM type and region" from all jobs: thesis, section 5.2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping

from windfall.fleet import Lifetime, LifetimeSum
from windfall.models import preemption_rates
from windfall.structs import SameObject, Struct
from windfall.terms import Seconds, WallTime

ANY = ""
"""Placeholder in a rate's type or zone for all of them together; used for kinds that were never bought."""

Rate = tuple[str, str, str, Seconds, Seconds | None]
"""(provider, type, zone, MTTP, restart), as `fleet.EstimatesPooled` carries it."""


class RestartSample(Struct, frozen=True):
    """A measured time from a loss on a kind of machine to training again [s]."""

    provider: str
    machine_type: str
    zone: str
    restart_s: Seconds


class PooledEstimate(Struct, frozen=True):
    """The estimates for a kind of machine.

    Attributes:
        machine_type, zone: `ANY` for a level above.
        mttp_s: mean time to preemption, from a machine's start to its end [s].
        restart_s: from a loss to training again [s]; None if never measured on this provider.
        silent_share: share of losses without notice.
        lifetimes, preemptions: how many were observed.
    """

    provider: str
    machine_type: str
    zone: str
    mttp_s: Seconds
    restart_s: Seconds | None
    silent_share: float
    lifetimes: int
    preemptions: int

    @property
    def rate(self) -> Rate:
        """The row of `fleet.EstimatesPooled`."""
        return self.provider, self.machine_type, self.zone, self.mttp_s, self.restart_s


class _Sums(Struct, frozen=True):
    """The observations of a level."""

    lifetime_s: float = 0.0
    lifetimes: int = 0
    preemptions: int = 0
    announced: int = 0
    restart_s: float = 0.0
    restarts: int = 0

    def plus(self, other: _Sums, sign: int = 1) -> _Sums:
        return _Sums(
            self.lifetime_s + sign * other.lifetime_s,
            self.lifetimes + sign * other.lifetimes,
            self.preemptions + sign * other.preemptions,
            self.announced + sign * other.announced,
            self.restart_s + sign * other.restart_s,
            self.restarts + sign * other.restarts,
        )


class _LevelEstimate(Struct, frozen=True):
    """An estimate on its way down the levels."""

    mttp_s: float
    silent_share: float
    restart_s: float | None


def pool(
    lifetimes: Iterable[Lifetime], now: WallTime, restarts: Iterable[RestartSample] = ()
) -> tuple[PooledEstimate, ...]:
    """Return the estimates for each provider, type and zone that was ever observed, sorted, levels above first.

    Args:
        lifetimes: one row per machine; ended None: still running, censored at `now`.
        now: the time up to which running machines count, on the providers' wall clock.
        restarts: measured restart times.

    Example:
        Two preemptions in 5 h, all in one zone: (3 + 5) / (1 + 2) = 2.667 h, and the same for its type and provider.
        One more preemption after 1 h in a second zone of that type: (2.667 + 1) / (1 + 1) = 1.833 h there.
    """
    return pool_sums((_alone(row, now) for row in lifetimes), restarts)


def _alone(row: Lifetime, now: WallTime) -> LifetimeSum:
    lifetime_s = max((now if row.ended is None else row.ended) - row.started, 0.0)
    preempted = row.preempted and row.ended is not None
    announced = int(preempted and row.announced)
    return LifetimeSum(row.provider, row.machine_type, row.zone, 1, int(preempted), announced, Seconds(lifetime_s))


def pool_sums(sums: Iterable[LifetimeSum], restarts: Iterable[RestartSample] = ()) -> tuple[PooledEstimate, ...]:
    """Return the same from sums over lifetimes of one kind, which a database makes faster than this.

    Args:
        sums: of each kind, in any number of parts.
        restarts: measured restart times.
    """
    levels: dict[tuple[str, str, str], _Sums] = {}
    for part in sums:
        seen = _Sums(part.lifetime_s, part.lifetimes, part.preemptions, part.announced)
        _add(levels, (part.provider, part.machine_type, part.zone), seen)
    for restart in restarts:
        key = (restart.provider, restart.machine_type, restart.zone)
        _add(levels, key, _Sums(restart_s=restart.restart_s, restarts=1))
    return tuple(_pooled(key, levels) for key in sorted(levels))


def pattern_or_default(provider: str) -> preemption_rates.PreemptionPattern:
    """Return a provider's preemption pattern; with even odds of a notice if the provider is unknown."""
    return preemption_rates.preemption_pattern(provider if provider in preemption_rates.providers() else "local")


def look_up(rates: Iterable[Rate], provider: str, machine_type: str, zone: str) -> Rate | None:
    """Return the rate of the narrowest known level: zone, type, provider; None if the provider was never used."""
    known = _by_key(SameObject(rates)) if isinstance(rates, tuple) else {rate[:3]: rate for rate in rates}
    for key in ((provider, machine_type, zone), (provider, machine_type, ANY), (provider, ANY, ANY)):
        if key in known:
            return known[key]
    return None


@functools.lru_cache(maxsize=16)
def _by_key(rates: SameObject[tuple[Rate, ...]]) -> Mapping[tuple[str, str, str], Rate]:
    """Return rates by their key: all offers of a ranking look them up in the same ones."""
    return {rate[:3]: rate for rate in rates.value}


def mttp_and_restart(
    rates: Iterable[Rate], provider: str, machine_type: str, zone: str, machines: int
) -> tuple[Seconds | None, Seconds | None]:
    """Return the estimates that a job's machine gets: mean time to any loss, and restart time [s].

    Any loss stops all `machines` that train together, so that saves are planned for MTTP / n.

    Args:
        rates: the pooled estimates.
        provider: of the machine, with its type and zone.
        machine_type: of the machine.
        zone: of the machine.
        machines: n.

    Returns:
        (None, None) if there is no estimate beyond what the machine knows itself.
    """
    rate = look_up(rates, provider, machine_type, zone)
    return (None, None) if rate is None else (Seconds(rate[3] / machines), rate[4])


def _add(levels: dict[tuple[str, str, str], _Sums], key: tuple[str, str, str], seen: _Sums) -> None:
    provider, machine_type, zone = key
    for level in {(provider, ANY, ANY), (provider, machine_type, ANY), (provider, machine_type, zone)}:
        levels[level] = levels.get(level, _Sums()).plus(seen)


def _pooled(key: tuple[str, str, str], levels: dict[tuple[str, str, str], _Sums]) -> PooledEstimate:
    provider, machine_type, zone = key
    pattern = pattern_or_default(provider)
    strength = pattern.unannounced + pattern.announced
    estimate = _LevelEstimate(preemption_rates.PRIOR_MTTP_S, pattern.unannounced / strength, None)
    path = [(provider, ANY, ANY), (provider, machine_type, ANY), (provider, machine_type, zone)]
    path = path[: 1 + bool(machine_type) + bool(zone)]
    for here, below in zip(path, [*path[1:], None], strict=True):
        seen = levels[here] if below is None else levels[here].plus(levels[below], -1)
        estimate = _learn(estimate, seen, strength)
    return PooledEstimate(
        provider=provider,
        machine_type=machine_type,
        zone=zone,
        mttp_s=Seconds(estimate.mttp_s),
        restart_s=None if estimate.restart_s is None else Seconds(estimate.restart_s),
        silent_share=estimate.silent_share,
        lifetimes=levels[key].lifetimes,
        preemptions=levels[key].preemptions,
    )


def _learn(above: _LevelEstimate, seen: _Sums, strength: float) -> _LevelEstimate:
    weight = preemption_rates.PRIOR_PREEMPTIONS
    silent = seen.preemptions - seen.announced
    restart_s = above.restart_s
    if seen.restarts:
        before = () if restart_s is None else (restart_s,)
        restart_s = math.fsum((*before, seen.restart_s)) / (len(before) + seen.restarts)
    return _LevelEstimate(
        (weight * above.mttp_s + seen.lifetime_s) / (weight + seen.preemptions),
        (strength * above.silent_share + silent) / (strength + seen.preemptions),
        restart_s,
    )
