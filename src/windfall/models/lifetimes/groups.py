"""Choose a law for each machine type, zone, hour band and weekday: the common one or one of its own.

For each value of a property there are three laws to choose from: the **pooled** one of all machines; the pooled one
**scaled**, its hazard before the provider's limit multiplied by one number; one of its **own**, all parameters fitted to
its lifetimes.

The rule: a value with fewer than 30 losses, or losses in fewer than 5 launch batches, is pooled.  Otherwise scaling is
chosen if it predicts held-out lifetimes significantly better than the pooled law, and own parameters if they do so
significantly better than the choice so far.  Significantly: the lower end of the paired bootstrap over batches is above
0, at 2.5 % divided by the number of values tested, because a test of many values finds one by chance.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.models.lifetimes import maximum_likelihood
from windfall.models.lifetimes.families import Bathtub, Exponential
from windfall.models.lifetimes.lifetime_law import Floats, Law
from windfall.models.lifetimes.maximum_likelihood import Bounds
from windfall.models.lifetimes.model_selection import FAMILIES, LEVEL, LOSSES_MIN, Comparison, Fit, bootstrap
from windfall.models.lifetimes.observations import Lifetimes, folds

GROUP_LOSSES_MIN = 30
GROUP_BATCHES_MIN = 5
SCALE_PRIOR_LOSSES = 1.0
"""The weight of the prior of a scaled hazard, in losses as expected."""


class GroupLawKind(enum.StrEnum):
    """How a group's law relates to the law of all machines."""

    POOLED = "pooled"
    SCALED = "scaled"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Group:
    """One value of a property of machines, and its law.

    Attributes:
        key, value: such as `zone`, `us-east1-b`.
        lifetimes, losses, batches: how many there are; batches are those with losses.
        law: the law.
        kind: whether it is the pooled one, scaled, or its own.
        comparisons: the comparisons that led to it.
        reason: why it was chosen.
    """

    key: str
    value: str
    lifetimes: int
    losses: int
    batches: int
    law: Law
    kind: GroupLawKind
    comparisons: tuple[Comparison, ...]
    reason: str


def fit_groups(fit: Fit, key: str) -> tuple[Group, ...]:
    """Return the law for each value of a property; the value with the most losses first.

    Raises:
        Misuse: the lifetimes have no such property.
    """
    if key not in fit.lifetimes.keys:
        known = ", ".join(sorted(fit.lifetimes.keys)) or "none"
        raise Misuse(f"lifetimes: there is no property {key!r} to group by; use one of: {known}")
    values = fit.lifetimes.keys[key]
    counts = {str(value): int(np.count_nonzero(fit.lifetimes.lost & (values == value))) for value in np.unique(values)}
    asked = sum(count >= GROUP_LOSSES_MIN for count in counts.values())
    names = sorted(counts, key=lambda value: (-counts[value], value))
    return tuple(_group(fit, key, value, level=LEVEL / max(asked, 1)) for value in names)


def scaled(law: Law, lifetimes: Lifetimes) -> Law | None:
    """Return a law with its hazard before the limit scaled to these lifetimes; None if the law cannot be scaled.

    The factor is (1 + d) / (1 + e): d losses before the limit, e of them expected under the law; the ones are a prior of
    one loss as expected.
    """
    if isinstance(law, Exponential):
        factor = _factor(lifetimes.losses, float(np.sum(law.cumulative_hazard(lifetimes.duration_s))))
        return dataclasses.replace(law, rate_per_s=law.rate_per_s * factor)
    if isinstance(law, Bathtub):
        until_s = np.minimum(lifetimes.duration_s, law.limit_s)
        lost = int(np.count_nonzero(lifetimes.lost & (lifetimes.duration_s <= law.limit_s)))
        factor = _factor(lost, float(np.sum(law.cumulative_hazard(until_s))))
        return dataclasses.replace(law, early_per_s=law.early_per_s * factor, base_per_s=law.base_per_s * factor)
    return None


def _factor(lost: int, expected: float) -> float:
    return (SCALE_PRIOR_LOSSES + lost) / (SCALE_PRIOR_LOSSES + expected)


def _group(fit: Fit, key: str, value: str, *, level: float) -> Group:
    mine = fit.lifetimes.keys[key] == value
    lifetimes = fit.lifetimes.where(mine)
    batches = len(np.unique(lifetimes.batch[lifetimes.lost]))

    def group(law: Law, kind: GroupLawKind, comparisons: tuple[Comparison, ...], reason: str) -> Group:
        return Group(key, value, len(lifetimes), lifetimes.losses, batches, law, kind, comparisons, reason)

    if lifetimes.losses < GROUP_LOSSES_MIN or batches < GROUP_BATCHES_MIN or not fit.chosen.fold_laws:
        return group(fit.law, GroupLawKind.POOLED, (), f"too few losses or batches ({lifetimes.losses} in {batches})")
    own = _own_fitter(fit)
    held = {
        GroupLawKind.POOLED: _held_out(fit, mine, lambda _, pooled: pooled),
        GroupLawKind.SCALED: _held_out(fit, mine, lambda train, pooled: scaled(pooled, train) or pooled),
        GroupLawKind.OWN: _held_out(
            fit, mine, lambda train, pooled: own(train) if train.losses >= LOSSES_MIN else pooled
        ),
    }
    taken, made = GroupLawKind.POOLED, []
    for kind in (GroupLawKind.SCALED, GroupLawKind.OWN):
        gains = held[kind] - held[taken]
        made.append(bootstrap(gains, lifetimes.batch, better=kind.value, worse=taken.value, seed=fit.seed, level=level))
        taken = kind if made[-1].sure else taken
    laws: dict[GroupLawKind, Callable[[], Law | None]] = {
        GroupLawKind.POOLED: lambda: fit.law,
        GroupLawKind.SCALED: lambda: scaled(fit.law, lifetimes),
        GroupLawKind.OWN: lambda: own(lifetimes),
    }
    reason = (
        "no other law predicts it significantly better"
        if taken is GroupLawKind.POOLED
        else "predicts it significantly better"
    )
    return group(laws[taken]() or fit.law, taken, tuple(made), reason)


def _own_fitter(fit: Fit) -> Callable[[Lifetimes], Law]:
    limit_s = fit.law.limit_s if isinstance(fit.law, Bathtub) else None
    bounds = Bounds(limit_s=limit_s, end_s=fit.lifetimes.oldest_s)
    fitter = dict(FAMILIES)[fit.law.name]
    return lambda lifetimes: fitter(lifetimes, bounds)


def _held_out(fit: Fit, mine: NDArray[np.bool_], choose: Callable[[Lifetimes, Law], Law]) -> Floats:
    """The log-likelihood of each of a group's lifetimes under a law fitted without its fold."""
    fold = folds(fit.lifetimes)
    found = np.zeros(len(fit.lifetimes))
    for index, pooled in enumerate(fit.chosen.fold_laws):
        out = mine & (fold == index)
        law = choose(fit.lifetimes.where(mine & (fold != index)), pooled)
        found[out] = maximum_likelihood.log_likelihoods(law, fit.lifetimes.where(out))
    return found[mine]
