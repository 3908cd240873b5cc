"""What to do with an item that lost a machine: run it on fewer machines, replenish the gang and run it again, or discard it.

An item wants n machines and needs the time T_n on them; where the program has run on m < n, T_m is measured too.  c is the
price of a machine, w the expected wait for a replacement, and a_i the age of machine i.  A gang ends with the first of its
machines, so during u seconds it survives with the product of S(a_i + u) / S(a_i); let q be the probability that a run of r
seconds on it is cut short, and h the expected time that it runs.  Expected cost and time until the item is done:

    from nothing:   C_0 = c (n h_0 + q_0 (n - 1) w) / (1 - q_0),     t_0 = (h_0 + q_0 w) / (1 - q_0)         r = T_n - saved
    replenish:      c k w + c n h + q (c (n - 1) w + C_0),           w + h + q (w + t_0)                       r = T_n - saved
    smaller:        c m h + q (c (m - 1) w + C_0),                   h + q (w + t_0)                           r = T_m
    discard:        0 if the items that run suffice for the completion target; else an item that waits takes its place:
                    c k w + (weight / mean weight) C_0',             w + t_0'                                 r = T, mean item

with k machines left.  Machines that wait are paid.  A save is of use on n machines only, as parallel programs restore it,
whereas a restart can be on fewer (section 4.5).  An item can be discarded only while the completion target stays within
reach.  The least cost wins among the actions that end in time; if none does, the run that ends first.

Processors of one machine take the place of machines where an item runs on one (`ItemLoss.on_one`): n and m count them, they
are lost together, so that none is left to wait (k = 0, and no n - 1 or m - 1), the wait w_m is that until m are free,
and the program reads its save itself, whatever their number: on m of them the same share of its work is left,

    smaller:        c m h + q C_0,                   w_m + h + q (w + t_0)                     r = T_m (1 - saved / T_n)

First order: a gang that is replenished counts as fresh from its second loss on, and machines are not lost while they wait.

Source: SciSpot (draft 2019), sections 4.4 (the three actions, the share of jobs that may fail) and 4.5, which name no rule to
choose by; the expectations are those of `planning.selection`, for machines of different ages.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.structs import Struct, replace

_HOUR_S = 3600.0
_POINTS = 48
"""Intervals of the integral of a gang's survival; its error is below 0.1 % for runs of hours."""


_TIE = 1e-9
"""Of options whose costs differ by no more than this share, rounding does not choose [1]."""


class MachineLifetimes(Protocol):
    """A law of lifetimes, such as `makespan.SurvivalTable`."""

    def at(self, ages_s: NDArray[np.float64], /) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return survival and its integral [s] at ages [s]."""
        ...


class MemorylessLosses(Struct, frozen=True):
    """Losses at a constant rate: a mean time to preemption [s], infinite for none."""

    mttp_s: float

    def at(self, ages_s: NDArray[np.float64], /) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return survival and its integral [s] at ages [s]."""
        if math.isinf(self.mttp_s):
            return np.ones_like(ages_s), ages_s
        survival = np.exp(-ages_s / self.mttp_s)
        return survival, self.mttp_s * (1.0 - survival)


class RecoveryAction(enum.StrEnum):
    """What to do with an item that lost a machine."""

    SMALLER = "restart smaller"
    REPLENISH = "replenish and restart"
    DISCARD = "discard"


class GangTime(Struct, frozen=True):
    """How long an item runs on some machines, or on some processors of one, as measured.

    Attributes:
        machines: how many machines; processors where `ItemLoss.on_one` is set.
        runtime_s: without a loss [s].
        wait_s: until they are free [s]; for the wanted number, `ItemLoss.wait_s` says it.
    """

    machines: float
    runtime_s: float
    wait_s: float = 0.0


class ItemLoss(Struct, frozen=True, eq=False):
    """An item that lost a machine.

    Attributes:
        times: on the number of machines that it wants, then on fewer, where measured.
        ages_s: of the machines that it still has [s].
        usd_per_hour: price of a machine.
        lifetimes: of machines.
        wait_s: expected time until a replacement runs [s].
        saved_s: what of its time on the wanted number of machines is saved [s].
        weight: of the item; the mean is in `BagShare`.
        time_left_s: until it must be done, for the bag to meet its deadline [s]; infinite: no deadline.
        pointless: why its metric makes a restart pointless (`planning.early_stopping`); empty: it does not.  It is run again
            all the same where it cannot be spared.
        on_one: whether its "machines" are processors of one machine, which is lost; then it has no ages.
    """

    times: tuple[GangTime, ...]
    ages_s: tuple[float, ...]
    usd_per_hour: float
    lifetimes: MachineLifetimes
    wait_s: float
    saved_s: float = 0.0
    weight: float = 1.0
    time_left_s: float = math.inf
    pointless: str = ""
    on_one: bool = False


class BagShare(Struct, frozen=True):
    """How far a bag is from its completion target; all in units of weight.

    Attributes:
        whole: all items.
        target: the share that must be done, 0 to 1.
        done: items that are done.
        running: items that run now, without the one that lost a machine.
        given_up: items that failed for good or were discarded.
        mean: of an item.
        mean_runtime_s: time of a mean item on the wanted number of machines [s]; None: as the item that lost a machine.
    """

    whole: float
    target: float
    done: float
    running: float
    given_up: float = 0.0
    mean: float = 1.0
    mean_runtime_s: float | None = None


class RecoveryOption(Struct, frozen=True):
    """An action with what it is expected to cost.

    Attributes:
        action: what is done.
        machines: on how many, or how many processors, the item then runs; 0: on none.
        usd: expected cost [USD].
        done_s: expected time until it is done, or until the item in its place is [s].
        possible: whether it can be chosen.
        reason: in words.
    """

    action: RecoveryAction
    machines: float
    usd: float
    done_s: float
    possible: bool
    reason: str


class RecoveryChoice(Struct, frozen=True):
    """The chosen action beside the others.

    Attributes:
        chosen: the option.
        options: all of them, in the order smaller (the measured sizes), replenish, discard.
        reason: why it was chosen.
    """

    chosen: RecoveryOption
    options: tuple[RecoveryOption, ...]
    reason: str


def choose(loss: ItemLoss, share: BagShare) -> RecoveryChoice:
    """Return what to do with an item that lost a machine.

    Args:
        loss: the item.
        share: of its bag.

    Raises:
        Misuse: a number makes no sense, or the lifetimes end before the machines' ages.

    Example:
        A job of 15 min on two machines at 0.24 USD/h, 20 min on one: 0.087 USD on the machine that is left, against 0.135 USD
        on two; if it must be done within 18 min, it is run again on two.
    """
    _check(loss, share)
    options = (*_smaller(loss), _replenish(loss), _discard(loss, share))
    if loss.pointless and options[-1].possible:
        return RecoveryChoice(options[-1], options, f"it is not run again: {loss.pointless}")
    found = _cheapest(options, loss.time_left_s)
    if not loss.pointless:
        return found
    why = f"{options[-1].reason}, so it runs again, though its metric would stop it: {loss.pointless}"
    return replace(found, reason=why)


def _cheapest(options: tuple[RecoveryOption, ...], time_left_s: float) -> RecoveryChoice:
    """Return the option that costs least of those that end in time; where none does, the one that ends first."""
    possible = [one for one in options if one.possible]
    in_time = [one for one in possible if one.done_s <= time_left_s]
    if in_time:
        least = min(one.usd for one in in_time)
        best = next(one for one in in_time if one.usd <= least * (1.0 + _TIE))
        cheaper = [one for one in possible if one.usd < best.usd * (1.0 - _TIE)]
        late = f"; {cheaper[0].action} would be cheaper, but too late" if cheaper else ""
        return RecoveryChoice(best, options, f"the least expected cost, {best.usd:.3g} USD{late}")
    # Discarding would not make it in time either, and would use up what is to spare.
    best = min((one for one in possible if one.action is not RecoveryAction.DISCARD), key=lambda one: one.done_s)
    return RecoveryChoice(best, options, "nothing is expected to end in time: this ends first")


def _check(loss: ItemLoss, share: BagShare) -> None:
    if not loss.times:
        raise Misuse("an item that lost a machine has no measured time: give its time on the machines that it wants")
    whole, sizes = loss.times[0], [one.machines for one in loss.times]
    left = len(loss.ages_s)
    if min(sizes) <= 0 or any(size >= whole.machines for size in sizes[1:]) or left >= (whole.machines, 1)[loss.on_one]:
        raise Misuse(
            f"an item on {whole.machines:g} machines with {left} left and times on {[f'{one:g}' for one in sizes]}: the "
            "wanted number comes first, the others are smaller, and at least one machine is lost"
        )
    if (
        min(one.runtime_s for one in loss.times) <= 0.0
        or loss.wait_s < 0.0
        or not 0.0 <= loss.saved_s < whole.runtime_s
    ):
        raise Misuse(
            f"a time of {whole.runtime_s:g} s, of which {loss.saved_s:g} s are saved, and a wait of {loss.wait_s:g} s: times "
            "are above 0, a wait is 0 or more, and less is saved than the item needs"
        )
    if not (0.0 <= share.target <= 1.0 and share.mean > 0.0):
        raise Misuse(
            f"a completion target of {share.target:g} and a mean weight of {share.mean:g}: from 0 to 1, above 0"
        )


def _smaller(loss: ItemLoss) -> list[RecoveryOption]:
    """Return one option for each measured size that the machines left suffice for."""
    again_usd, again_s = _from_nothing(loss, _left_s(loss))
    whole, found = loss.times[0], []
    for one in loss.times[1:]:
        if not loss.on_one and one.machines > len(loss.ages_s):
            continue
        kept = [0.0] if loss.on_one else _best(loss, one)
        runtime_s = one.runtime_s * (_left_s(loss) / whole.runtime_s if loss.on_one else 1.0)
        cut, held_s = _run(loss.lifetimes, kept, runtime_s)
        usd = _usd(loss, one.machines * held_s + cut * _waiting(loss, one.machines)) + _times(cut, again_usd)
        done_s = one.wait_s + held_s + _times(cut, loss.wait_s + again_s)
        when = f"after {one.wait_s:.0f} s" if one.wait_s else "at once"
        saved = _saved_text(loss) if loss.on_one else "from the start"
        reason = f"{when} on {one.machines:g} of {whole.machines:g}, {saved}, {100.0 * cut:.0f} % are lost again"
        found.append(RecoveryOption(RecoveryAction.SMALLER, one.machines, usd, done_s, True, reason))
    return found


def _replenish(loss: ItemLoss) -> RecoveryOption:
    whole, left = loss.times[0], len(loss.ages_s)
    again_usd, again_s = _from_nothing(loss, _left_s(loss))
    fresh = 1 if loss.on_one else round(whole.machines) - left
    ages_s = [*(age_s + loss.wait_s for age_s in loss.ages_s), *[0.0] * fresh]
    cut, held_s = _run(loss.lifetimes, ages_s, _left_s(loss))
    paid_s = left * loss.wait_s + whole.machines * held_s + cut * _waiting(loss, whole.machines)
    done_s = loss.wait_s + held_s + _times(cut, loss.wait_s + again_s)
    reason = (
        f"after {loss.wait_s:.0f} s on all {whole.machines:g}, {_saved_text(loss)}, {100.0 * cut:.0f} % are lost again"
    )
    usd = _usd(loss, paid_s) + _times(cut, again_usd)
    return RecoveryOption(RecoveryAction.REPLENISH, whole.machines, usd, done_s, True, reason)


def _saved_text(loss: ItemLoss) -> str:
    return f"with {loss.saved_s:.0f} s saved" if loss.saved_s else "from the start"


def _waiting(loss: ItemLoss, machines: float) -> float:
    """Return for how long the machines of a gang that are not lost wait, together [s]."""
    return 0.0 if loss.on_one else (machines - 1) * loss.wait_s


def _discard(loss: ItemLoss, share: BagShare) -> RecoveryOption:
    spare = share.whole * (1.0 - share.target) - share.given_up
    if loss.weight > spare + 1e-9:
        target = f"the completion target of {100.0 * share.target:g} %"
        reason = f"{target} leaves {max(spare, 0.0):g} to spare, and its weight is {loss.weight:g}"
        return RecoveryOption(RecoveryAction.DISCARD, 0, math.inf, math.inf, False, reason)
    lacking = share.whole * share.target - share.done - share.running
    if lacking <= 1e-9:
        reason = f"the items that run suffice for the completion target of {100.0 * share.target:g} %"
        return RecoveryOption(RecoveryAction.DISCARD, 0, 0.0, 0.0, True, reason)
    runtime_s = loss.times[0].runtime_s if share.mean_runtime_s is None else share.mean_runtime_s
    usd, done_s = _from_nothing(loss, runtime_s)
    usd = _usd(loss, len(loss.ages_s) * loss.wait_s) + loss.weight / share.mean * usd
    reason = f"an item that waits takes its place: the completion target still lacks {lacking:g}"
    return RecoveryOption(RecoveryAction.DISCARD, 0, usd, loss.wait_s + done_s, True, reason)


def _left_s(loss: ItemLoss) -> float:
    return loss.times[0].runtime_s - loss.saved_s


def _from_nothing(loss: ItemLoss, runtime_s: float) -> tuple[float, float]:
    """Return expected cost [USD] and time [s] of a run on fresh machines, again after each loss; infinite if none lasts."""
    machines = loss.times[0].machines
    cut, held_s = _run(loss.lifetimes, [0.0] * (1 if loss.on_one else round(machines)), runtime_s)
    if cut >= 1.0:
        return math.inf, math.inf
    paid_s = machines * held_s + cut * _waiting(loss, machines)
    return _usd(loss, paid_s) / (1.0 - cut), (held_s + cut * loss.wait_s) / (1.0 - cut)


def _best(loss: ItemLoss, one: GangTime) -> list[float]:
    """Return the ages of the machines left that most probably last for a run."""
    ages_s = np.asarray(loss.ages_s)
    now, then = loss.lifetimes.at(ages_s)[0], loss.lifetimes.at(ages_s + one.runtime_s)[0]
    lasts = np.where(now > 0.0, then / np.where(now > 0.0, now, 1.0), 0.0)
    return [float(ages_s[place]) for place in np.argsort(-lasts, kind="stable")[: round(one.machines)]]


def _run(lifetimes: MachineLifetimes, ages_s: Sequence[float], runtime_s: float) -> tuple[float, float]:
    """Return the probability that a gang's run is cut short, and the expected time that it runs [s]."""
    steps_s = np.linspace(0.0, runtime_s, _POINTS + 1)
    kinds, counts = np.unique(np.asarray(ages_s), return_counts=True)
    survival = lifetimes.at((kinds[:, None] + steps_s).ravel())[0].reshape(len(kinds), -1)
    if np.any(survival[:, 0] <= 0.0):
        return 1.0, 0.0
    alive = np.prod((survival / survival[:, :1]) ** counts[:, None], axis=0)
    return float(1.0 - alive[-1]), float(np.trapezoid(alive, steps_s))


def _usd(loss: ItemLoss, machine_s: float) -> float:
    return loss.usd_per_hour * machine_s / _HOUR_S


def _times(share: float, value: float) -> float:
    """Return the product, which is 0 for a share of 0 even where the value is infinite."""
    return share * value if share > 0.0 else 0.0
