"""How long machines live, where a model or a trace says it: tables of quantiles, and windows of availability.

A table has the ages by which i / 1024 of the machines are lost; its last age is such that the mean life of the oldest
cell is the law's own.  Machines that outlive all data are lost, in the simulation, at the mean rate of all before
(losses / life); whoever rests on it is told which share that is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from windfall.errors import Misuse
from windfall.extras import install
from windfall.fleet import Lifetime
from windfall.models.lifetimes.blended import Blended
from windfall.models.lifetimes.families import Bathtub, Exponential, GompertzMakeham, Weibull
from windfall.models.lifetimes.kaplan import KaplanMeier, kaplan_meier
from windfall.models.lifetimes.law import Curve
from windfall.models.lifetimes.lives import Lives as Observed
from windfall.models.lifetimes.lives import lives_from
from windfall.models.lifetimes.piecewise import Piecewise
from windfall.policies.saving.schedule_table import LOSSES_MIN
from windfall.simulation.scenario import Lives, Quantiles
from windfall.spelling import nearest
from windfall.terms import WallTime
from windfall.units import duration_text

CELLS = 1024
KAPLAN = KaplanMeier.name
_OLDEST_S = 89_398.235
_PUBLISHED = "published: fitted to 960 lives of Google's preemptible machines of 2019"
_NEVER_S = 1e9
PUBLIC: tuple[Curve, ...] = (
    Exponential(1.657e-5, observed_s=_OLDEST_S),
    Weibull(60_563.0, 0.7976, observed_s=_OLDEST_S),
    GompertzMakeham(8.601e-6, 2.536e-44, 940.2, observed_s=_OLDEST_S),
    Blended(88_416.0, 13_263.0, 2_140.5, end_at_s=_OLDEST_S, observed_s=_OLDEST_S),
    Bathtub(6.708e-5, 4_059.7, 2.6425e-6, 86_400.0, 1_146.5, 1.2201, observed_s=_OLDEST_S),
    Piecewise(
        (0.0, 539.044, 3420.727, 14_614.7, 86_462.32, 89_251.421),
        (1.3233e-4, 3.1639e-5, 1.3643e-5, 2.5332e-6, 9.3877e-4, 1.6001e-2),
        observed_s=_OLDEST_S,
    ),
)
"""Each law as `windfall lab fit` fits it to the public lives (501 preempted, 459 censored), where there are no own ones.

Source: lives published with SciSpot (arXiv 1911.05160)."""
NAMES = (*(law.name for law in PUBLIC), KAPLAN)


@dataclass(frozen=True, slots=True)
class Living:
    """How long machines live.

    Attributes:
        lives: as the simulation draws them.
        mttp_s: mean life [s], which is what machines believe; of lives that were censored, life / losses.
        source: in words.
        known_until_s: the oldest age that the data reach [s]; infinite if nothing was fitted.
        notes: what to tell of it, each a sentence.
    """

    lives: Lives
    mttp_s: float
    source: str
    known_until_s: float = math.inf
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Priced:
    """What a machine costs, as a trace says it.

    Attributes:
        usd_per_hour: its mean price over time.
        source: in words.
    """

    usd_per_hour: float
    source: str


def by_model(
    name: str, rows: Iterable[Lifetime], *, provider: str, now: WallTime, mttp_s: float | None = None
) -> Living:
    """Return the lives that a law of lifetimes gives.

    Its parameters are fitted to the installation's own machines of that provider, of all types and zones, if at least
    `LOSSES_MIN` of them were lost; otherwise those of the public lives are used.

    Args:
        name: of the law.
        rows: all machines of the installation.
        provider: whose machines count.
        now: until when machines that still run have lived.
        mttp_s: stretch the law's ages so that its mean life is this [s]; None: as it is.

    Raises:
        Misuse: there is no such law, or no lives to estimate it from.
    """
    if name not in NAMES:
        raise Misuse(f"--model: there is no law of lifetimes called {name!r}; {nearest(name, NAMES)}")
    mine = [row for row in rows if row.provider == provider]
    losses = sum(row.preempted and row.ended is not None for row in mine)
    if losses < LOSSES_MIN:
        if name == KAPLAN:
            raise Misuse(
                f"--model {KAPLAN} has no parameters that could be given: it needs {LOSSES_MIN} machines of {provider} that "
                f"were lost, and {losses} were; name a law, or give lives by --trace"
            )
        curve = next(law for law in PUBLIC if law.name == name)
        source = f"{_PUBLISHED} (this installation lost {losses} of {provider}, fewer than {LOSSES_MIN})"
    else:
        observed = lives_from(mine, now, provider=provider)
        if name == KAPLAN:
            return by_lives(observed, f"this installation's machines of {provider}", mttp_s)
        curve = _fitted(name, observed)
        source = f"measured: {name} fitted to {len(observed)} machines of {provider}, {observed.losses} preempted"
    return _living(curve, source, mttp_s)


def by_lives(observed: Observed, what: str, mttp_s: float | None = None) -> Living:
    """Return the lives that were observed, by Kaplan and Meier: machines that were stopped count as long as they lived.

    Args:
        observed: at least one of them lost.
        what: where they come from.
        mttp_s: as in `by_model`.

    Raises:
        Misuse: no machine was lost.
    """
    if not observed.losses:
        raise Misuse(f"{what}: none of its {len(observed)} machines was preempted; nothing can be said of losses")
    source = f"measured: {what}, {len(observed)} machines, {observed.losses} preempted"
    rate = observed.losses / float(np.sum(observed.duration_s))
    return _living(kaplan_meier(observed), source, mttp_s, tail_per_s=rate)


def _fitted(name: str, observed: Observed) -> Curve:
    """Fit one law.

    Raises:
        Misuse: scipy is not installed.
    """
    try:
        from windfall.models.lifetimes import choosing  # noqa: PLC0415 - needs scipy, an extra
        from windfall.models.lifetimes.fitting import Bounds  # noqa: PLC0415
    except ImportError as error:
        raise Misuse(f"--model: a fit needs scipy: {install('lab')}") from error
    return dict(choosing.FAMILIES)[name](observed, Bounds())


def _living(curve: Curve, source: str, mttp_s: float | None, *, tail_per_s: float = 0.0) -> Living:
    ages_s, beyond = _quantiles(curve, tail_per_s)
    mean_s = _mean_s(ages_s)
    stretch = 1.0 if mttp_s is None else mttp_s / mean_s
    known_s = curve.observed_s * stretch
    notes = []
    if mttp_s is not None:
        source = f"{source}; stretched to the mean life that you gave"
    if beyond > 0.0:
        notes.append(
            f"{beyond:.0%} of the machines outlived all data, {duration_text(curve.observed_s)}: they are lost at the mean "
            "rate of all before"
        )
    table = Quantiles(tuple(float(age) * stretch for age in ages_s), known_s, curve.name)
    return Living(table, mean_s * stretch, source, known_s, tuple(notes))


def _quantiles(curve: Curve, tail_per_s: float) -> tuple[Sequence[float], float]:
    """Return the ages of a table, and which share outlives the data where the curve says nothing beyond them."""
    shares = np.arange(CELLS) / CELLS
    ages_s = np.atleast_1d(curve.quantile(shares))
    unknown = ~np.isfinite(ages_s)
    beyond = 0.0
    if np.any(unknown) or not curve.extrapolates:
        beyond = float(np.mean(unknown)) if tail_per_s else 0.0
        first = int(np.argmax(unknown)) if np.any(unknown) else CELLS
        if tail_per_s and first < CELLS:
            # S(t) = S(oldest) e^(-rate (t - oldest)) beyond the oldest age.
            left = 1.0 - shares[first - 1] if first else 1.0
            ages_s[first:] = curve.observed_s - np.log((1.0 - shares[first:]) / left) / tail_per_s
    last_s = float(ages_s[-1])
    if not math.isfinite(last_s):
        return [*map(float, ages_s), math.inf], beyond
    rest_s = 1.0 / tail_per_s if beyond else _rest_s(curve, last_s)
    return [*map(float, ages_s), last_s + 2.0 * rest_s], beyond


def _rest_s(curve: Curve, age_s: float) -> float:
    """Mean remaining life of the oldest cell [s]."""
    if age_s >= curve.end_s:
        return 0.0
    return min(curve.remaining(age_s, until_s=max(curve.end_s, age_s)).mean_s, _NEVER_S)


def _mean_s(ages_s: Sequence[float]) -> float:
    """Mean of a table's lives [s]; machines that are never lost count as `_NEVER_S`."""
    known = np.minimum(np.asarray(ages_s), _NEVER_S)
    return float(np.mean((known[:-1] + known[1:]) / 2.0))
