"""Which machine types, zones, hours and weekdays have a law of their own.

For each value of a property there are three laws to choose from: the **pooled** one of all machines; the pooled one **scaled**,
its hazard before the provider's limit multiplied by one number; one of its **own**, all parameters fitted to its lives.

The rule: a value that has fewer than 30 losses, or losses in fewer than 5 launch batches, is pooled.  Else scaling is taken
if it surely predicts held-out lives better than the pooled law, and own parameters if they surely do so better than what was
taken until then.  Surely: the lower end of the paired bootstrap over batches is above 0, at 2.5 % divided by the number of
values that are asked about, because who asks about many values finds one by luck.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.models.lifetimes import fitting
from windfall.models.lifetimes.choosing import FAMILIES, LEVEL, LOSSES_MIN, Comparison, Fit, bootstrap
from windfall.models.lifetimes.families import Bathtub, Exponential
from windfall.models.lifetimes.fitting import Bounds
from windfall.models.lifetimes.law import Floats, Law
from windfall.models.lifetimes.lives import Lives, folds

GROUP_LOSSES_MIN = 30
GROUP_BATCHES_MIN = 5
SCALE_PRIOR_LOSSES = 1.0
"""How many losses as expected the prior of a scaled hazard weighs."""


class How(enum.StrEnum):
    """How the law of a group is related to that of all machines."""

    POOLED = "pooled"
    SCALED = "scaled"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Group:
    """One value of a property of machines, and the law that speaks for it.

    Attributes:
        key, value: such as `zone`, `us-east1-b`.
        lives, losses, batches: what it rests on; batches are those with losses.
        law: the law.
        how: whether it is the pooled one, scaled, or its own.
        comparisons: what was compared for it.
        reason: why.
    """

    key: str
    value: str
    lives: int
    losses: int
    batches: int
    law: Law
    how: How
    comparisons: tuple[Comparison, ...]
    reason: str


def fit_groups(fit: Fit, key: str) -> tuple[Group, ...]:
    """Return the law that speaks for each value of a property; the most losses first.

    Raises:
        Misuse: the lives have no such property.
    """
    if key not in fit.lives.keys:
        known = ", ".join(sorted(fit.lives.keys)) or "none"
        raise Misuse(f"lifetimes: no property {key!r} to group by; there is: {known}")
    values = fit.lives.keys[key]
    counts = {str(value): int(np.count_nonzero(fit.lives.lost & (values == value))) for value in np.unique(values)}
    asked = sum(count >= GROUP_LOSSES_MIN for count in counts.values())
    names = sorted(counts, key=lambda value: (-counts[value], value))
    return tuple(_group(fit, key, value, level=LEVEL / max(asked, 1)) for value in names)


def scaled(law: Law, lives: Lives) -> Law | None:
    """Return a law with its hazard before the limit in proportion to what these lives saw; None if it has no such form.

    The factor is (1 + d) / (1 + e): d losses before the limit, e of them expected under the law; the ones are a prior of one
    loss as expected.
    """
    if isinstance(law, Exponential):
        factor = _factor(lives.losses, float(np.sum(law.cumulative_hazard(lives.duration_s))))
        return dataclasses.replace(law, rate_per_s=law.rate_per_s * factor)
    if isinstance(law, Bathtub):
        until_s = np.minimum(lives.duration_s, law.limit_s)
        lost = int(np.count_nonzero(lives.lost & (lives.duration_s <= law.limit_s)))
        factor = _factor(lost, float(np.sum(law.cumulative_hazard(until_s))))
        return dataclasses.replace(law, early_per_s=law.early_per_s * factor, base_per_s=law.base_per_s * factor)
    return None


def _factor(lost: int, expected: float) -> float:
    return (SCALE_PRIOR_LOSSES + lost) / (SCALE_PRIOR_LOSSES + expected)


def _group(fit: Fit, key: str, value: str, *, level: float) -> Group:
    mine = fit.lives.keys[key] == value
    lives = fit.lives.where(mine)
    batches = len(np.unique(lives.batch[lives.lost]))

    def group(law: Law, how: How, comparisons: tuple[Comparison, ...], reason: str) -> Group:
        return Group(key, value, len(lives), lives.losses, batches, law, how, comparisons, reason)

    if lives.losses < GROUP_LOSSES_MIN or batches < GROUP_BATCHES_MIN or not fit.chosen.fold_laws:
        return group(fit.law, How.POOLED, (), f"losses in few batches ({lives.losses} in {batches})")
    own = _own_fitter(fit)
    held = {
        How.POOLED: _held_out(fit, mine, lambda _, pooled: pooled),
        How.SCALED: _held_out(fit, mine, lambda train, pooled: scaled(pooled, train) or pooled),
        How.OWN: _held_out(fit, mine, lambda train, pooled: own(train) if train.losses >= LOSSES_MIN else pooled),
    }
    taken, made = How.POOLED, []
    for how in (How.SCALED, How.OWN):
        gains = held[how] - held[taken]
        made.append(bootstrap(gains, lives.batch, better=how.value, worse=taken.value, seed=fit.seed, level=level))
        taken = how if made[-1].sure else taken
    laws: dict[How, Callable[[], Law | None]] = {
        How.POOLED: lambda: fit.law,
        How.SCALED: lambda: scaled(fit.law, lives),
        How.OWN: lambda: own(lives),
    }
    reason = "nothing else surely predicts it better" if taken is How.POOLED else "surely predicts it better"
    return group(laws[taken]() or fit.law, taken, tuple(made), reason)


def _own_fitter(fit: Fit) -> Callable[[Lives], Law]:
    limit_s = fit.law.limit_s if isinstance(fit.law, Bathtub) else None
    bounds = Bounds(limit_s=limit_s, end_s=fit.lives.oldest_s)
    fitter = dict(FAMILIES)[fit.law.name]
    return lambda lives: fitter(lives, bounds)


def _held_out(fit: Fit, mine: NDArray[np.bool_], choose: Callable[[Lives, Law], Law]) -> Floats:
    """Each of a group's lives' log-likelihood under a law that saw none of its fold."""
    fold = folds(fit.lives)
    found = np.zeros(len(fit.lives))
    for index, pooled in enumerate(fit.chosen.fold_laws):
        out = mine & (fold == index)
        law = choose(fit.lives.where(mine & (fold != index)), pooled)
        found[out] = fitting.log_likelihoods(law, fit.lives.where(out))
    return found[mine]
