"""The expected cost of a unit of work of a fleet, with or without each allocation that could be bought: `bidbrain`'s equations.

The loops are compiled: in numpy a decision took most of its time to call functions on a few values each.  They are compiled
at the first decision, in seconds, and cached on disk.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windfall.models import compiled_loops, price_evictions
from windfall.policies.acquisition import bidbrain
from windfall.policies.acquisition.bidbrain import HOUR_S, Application, Floats

Flags = NDArray[np.bool_]
Places = NDArray[np.intp]


class Held(NamedTuple):
    """The allocations of a fleet in columns, one row each; a named tuple, as the compiled loops take it.

    Attributes:
        machines: how many each has.
        cores: of a machine.
        usd_per_hour: price of a machine, as it is billed in this period.
        renewed_usd_per_hour: as it would be in the next one.
        started_s: when billing began [s]; NaN before.
        hour_s: the period that is paid at once [s].
        delta_usd: bid minus price now [USD/h].
        mttp_s: mean time to preemption, which counts where nothing is known of the prices [s].
        row: of the table of odds; -1 for none.
        refund: whether an eviction refunds the period.
        works: whether its machines do work and can be preempted; the others only keep state safe.
        by_hour: whether the period is paid ahead.
        too_dear: whether it will be billed at a price that nothing is bought at.
    """

    machines: Floats
    cores: Floats
    usd_per_hour: Floats
    renewed_usd_per_hour: Floats
    started_s: Floats
    hour_s: Floats
    delta_usd: Floats
    mttp_s: Floats
    row: Places
    refund: Flags
    works: Flags
    by_hour: Flags
    too_dear: Flags


class Offered(NamedTuple):
    """What could be bought, one row for each offer.

    Attributes:
        usd_per_hour: price of a machine now.
        hour_s, cores, mttp_s, refund: as `Held`.
        row: of the table of odds; -1 where there are no bids, or nothing is known of the prices.
    """

    usd_per_hour: Floats
    hour_s: Floats
    cores: Floats
    mttp_s: Floats
    row: Places
    refund: Flags


class BidOdds(NamedTuple):
    """The odds of an eviction by bid: `price_evictions.EvictionTable`; without any market for none."""

    deltas_usd: Floats
    evicted: Floats
    median_s: Floats


class Rules(NamedTuple):
    """What a search needs of the settings of BidBrain; the names are `bidbrain_policy.BidBrain`'s, and its application's."""

    eviction_s: float
    change_s: float
    loss_per_core: float
    cores: float
    cores_max: float
    machines_min: float
    machines_max: float
    purchases_max: int
    whole_hour: bool


class Outlook(NamedTuple):
    """What lies before a fleet's billing periods.

    Attributes:
        left_s: what is left of each allocation's; a whole one where none is paid ahead, or it has not begun [s].
        due: which allocations can leave now: those whose period is about to end, or that pay none ahead.
        is_any_due: whether there is one.
        wake_s: until shortly before the first period ends, a regular decision at the latest [s].
        machines: how many machines work.
        cores: theirs.
    """

    left_s: Floats
    due: Flags
    is_any_due: bool
    wake_s: float
    machines: float
    cores: float


class Purchases(NamedTuple):
    """What is bought, one after the other.

    Attributes:
        before, after: cost of a unit of work without and with all that is bought [USD per core-second]; infinite without work.
        stays: odds that none of what is held is evicted [1].
        offers: place of each offer.
        deltas: place of each bid's delta; -1 without bids.
        machines: how many.
    """

    before: float
    after: float
    stays: float
    offers: Places
    deltas: Places
    machines: Places


def outlook(held: Held, now_s: float, renew_before_s: float, decide_every_s: float) -> Outlook:
    """Return what lies before a fleet's billing periods.

    Args:
        held: the fleet.
        now_s: on the clock of `Held.started_s` [s].
        renew_before_s: how long before a period's end it is decided whether the allocation stays [s].
        decide_every_s: between two decisions [s].
    """
    return Outlook(*_outlook(held, float(now_s), float(renew_before_s), float(decide_every_s)))


def renewals(held: Held, found: Outlook, odds: BidOdds, rules: Rules) -> tuple[float, Floats]:
    """Return the cost of a unit of work if all that are due are renewed, and that without each allocation.

    Args:
        held: the fleet.
        found: its outlook.
        odds: by bid.
        rules: the settings.

    Returns:
        both [USD per core-second]; infinite for a fleet that does no work.
    """
    cost, without = _renewals(held, found.left_s, found.due, odds, rules)
    return float(cost), without


def purchases(held: Held, found: Outlook, market: tuple[Offered, Floats], odds: BidOdds, rules: Rules) -> Purchases:
    """Return what to buy: the allocation that lowers the cost of a unit of work most, and again, while one does.

    Args:
        held: the fleet.
        found: its outlook.
        market: what could be bought, and how many more machines there may be of each offer.
        odds: by bid.
        rules: the settings.
    """
    return Purchases(*_purchases(held, (found.left_s, found.machines, found.cores), market, odds, rules))


def rules_of(app: Application, *, whole_hour: bool = False) -> Rules:
    """Return the rules of an application, with no limit and nothing to buy."""
    return Rules(
        float(app.eviction_s),
        float(app.change_s),
        float(app.loss_per_core),
        0.0,
        math.inf,
        0.0,
        math.inf,
        0,
        whole_hour,
    )


# --------------------------------------------------------------------------------------------------------- compiled loops

# mypy: disable-error-code="no-untyped-def"

_part: Final[Any] = functools.partial(njit, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compile for the other compiled functions alone: that takes less time."""
_phi: Final[Any] = _part(bidbrain.phi)
_odds_at: Final[Any] = _part(price_evictions.odds_at)
_LN2: Final = math.log(2.0)


@_part
def _chances(row, delta_usd, mttp_s, ahead_s, odds):
    """Return the odds of an eviction within a time and the median time to it [s]: by the bid, or by the lifetimes."""
    if row >= 0:
        return _odds_at(odds.deltas_usd, odds.evicted[row], odds.median_s[row], delta_usd, ahead_s)
    return 1.0 - math.exp(-ahead_s / mttp_s), _LN2 * mttp_s


@_part
def _cost_usd(usd_per_hour, machines, period, refund):
    """Return the expected cost of an allocation until its period ends [USD] (equation 1)."""
    left_s, evicted, median_s = period
    lost_s = 0.0 if refund else min(median_s, left_s)
    billed_s = (1.0 - evicted) * left_s + evicted * lost_s
    return usd_per_hour * machines * billed_s / HOUR_S


@_part
def _useful_s(period):
    """Return how long an allocation could work, overheads apart [s]: omega of equation 2."""
    left_s, evicted, median_s = period
    return min(median_s, left_s) if evicted > 0.5 else left_s


@_part
def _ratio(cost, work):
    return cost / work if work > 0.0 else np.inf


class _Terms(NamedTuple):
    """What the allocations of a fleet add to equations 1 to 3, one row each: stays, cost, k nu and omega."""

    stays: Floats
    cost_usd: Floats
    rate: Floats
    useful_s: Floats


@_part
def _terms(held, left_s, renewed, known, more):
    """Return the terms of a fleet, those that are renewed as in their next period, and room for some more rows."""
    odds, rules = known
    count = len(held.machines) + more
    found = _Terms(np.ones(count), np.zeros(count), np.zeros(count), np.zeros(count))
    for one in range(len(held.machines)):
        period_s = held.hour_s[one] if renewed[one] else left_s[one]
        usd_per_hour = held.renewed_usd_per_hour[one] if renewed[one] else held.usd_per_hour[one]
        evicted, median_s = 0.0, np.inf
        if held.works[one]:
            ahead_s = HOUR_S if rules.whole_hour else period_s
            evicted, median_s = _chances(held.row[one], held.delta_usd[one], held.mttp_s[one], ahead_s, odds)
        period = period_s, evicted, median_s
        found.stays[one] = 1.0 - evicted
        found.cost_usd[one] = _cost_usd(usd_per_hour, held.machines[one], period, held.refund[one])
        found.rate[one] = held.machines[one] * held.cores[one] if held.works[one] else 0.0
        found.useful_s[one] = _useful_s(period)
    return found


@_part
def _without(terms, count, gone, change_s, rules):
    """Return the cost per work of the first allocations without one of them; with -1 of all."""
    stays = 1.0
    for one in range(count):
        stays *= 1.0 if one == gone else terms.stays[one]
    overhead_s = (1.0 - stays) * rules.eviction_s + change_s
    cost = rate = work = 0.0
    for one in range(count):
        if one != gone:
            cost += terms.cost_usd[one]
            rate += terms.rate[one]
            work += terms.rate[one] * max(terms.useful_s[one] - overhead_s, 0.0)
    return _ratio(cost, work * _phi(rate, rules.loss_per_core))


@compiled_loops.cached(bidbrain, price_evictions)
def _outlook(held, now_s, renew_before_s, decide_every_s):
    count = len(held.machines)
    left_s, due = np.empty(count), np.zeros(count, dtype=np.bool_)
    is_any_due, wake_s, machines, cores = False, decide_every_s, 0.0, 0.0
    for one in range(count):
        hour_s, started = held.hour_s[one], not np.isnan(held.started_s[one])
        paid = started and held.by_hour[one]
        left_s[one] = hour_s - (now_s - held.started_s[one]) % hour_s if paid else hour_s
        if held.works[one]:
            machines += held.machines[one]
            cores += held.machines[one] * held.cores[one]
            due[one] = started and (not paid or left_s[one] <= renew_before_s)
            is_any_due = is_any_due or due[one]
            if paid:
                next_s = left_s[one] - renew_before_s
                wake_s = min(wake_s, next_s if next_s > 0.0 else next_s + hour_s)
    return left_s, due, is_any_due, wake_s, machines, cores


@compiled_loops.cached(bidbrain, price_evictions)
def _renewals(held, left_s, due, odds, rules):
    count = len(held.machines)
    terms = _terms(held, left_s, due, (odds, rules), 0)
    without = np.empty(count)
    for gone in range(count):
        without[gone] = _without(terms, count, gone, rules.change_s, rules)
    return _without(terms, count, -1, 0.0, rules), without


@_part
def _with_one(terms, sums, new, rules):
    """Return the cost per work with one more allocation; `sums` are of the terms: count, stays, cost, rate."""
    (count, stays, cost, rate), (machines, cores, usd_per_hour, refund, period) = sums, new
    overhead_s = (1.0 - stays * (1.0 - period[1])) * rules.eviction_s + rules.change_s
    new_rate = machines * cores
    work = new_rate * max(_useful_s(period) - overhead_s, 0.0)
    for one in range(count):
        work += max(terms.useful_s[one] - overhead_s, 0.0) * terms.rate[one]
    new_cost = cost + _cost_usd(usd_per_hour, machines, period, refund)
    return _ratio(new_cost, work * _phi(rate + new_rate, rules.loss_per_core))


@_part
def _machines(offered, place, limits, rules):
    """Return of how many machines an allocation of an offer is; 0 if none fits."""
    (rooms, room, machines), cores = limits, offered.cores[place]
    if cores > room or rooms[place] < 1.0:
        return 0.0
    return min(max(math.floor(min(room, rules.cores) / cores), 1.0), rooms[place], machines)


@_part
def _best(terms, count, limits, offered, known):
    """Return the cost per work with the best allocation that can be bought, its offer and delta, and its machines.

    Of equal ones the first counts: those without bids come before the others.
    """
    odds, rules = known
    stays, cost, rate = 1.0, 0.0, 0.0
    for one in range(count):
        stays *= terms.stays[one]
        cost += terms.cost_usd[one]
        rate += terms.rate[one]
    sums = count, stays, cost, rate
    best, found = np.inf, (-1, -1, 0.0)
    for with_bids in (False, True):
        for place in range(len(offered.cores)):
            row = offered.row[place]
            size = _machines(offered, place, limits, rules)
            if (row >= 0) == with_bids and size > 0.0:
                left_s = offered.hour_s[place]
                ahead_s = HOUR_S if rules.whole_hour else left_s
                for delta in range(len(odds.deltas_usd) if with_bids else 1):
                    delta_usd = odds.deltas_usd[delta] if with_bids else 0.0
                    evicted, median_s = _chances(row, delta_usd, offered.mttp_s[place], ahead_s, odds)
                    period = left_s, evicted, median_s
                    new = size, offered.cores[place], offered.usd_per_hour[place], offered.refund[place], period
                    value = _with_one(terms, sums, new, rules)
                    if value < best or found[0] < 0:
                        best, found = value, (place, delta if with_bids else -1, size)
    return best, found


@_part
def _add(terms, count, offered, bought, known):
    """Put a bought allocation into the terms."""
    (place, delta, machines), (odds, rules) = bought, known
    left_s = offered.hour_s[place]
    delta_usd = odds.deltas_usd[delta] if delta >= 0 else 0.0
    ahead_s = HOUR_S if rules.whole_hour else left_s
    evicted, median_s = _chances(offered.row[place], delta_usd, offered.mttp_s[place], ahead_s, odds)
    period = left_s, evicted, median_s
    terms.stays[count] = 1.0 - evicted
    terms.cost_usd[count] = _cost_usd(offered.usd_per_hour[place], machines, period, offered.refund[place])
    terms.rate[count], terms.useful_s[count] = machines * offered.cores[place], _useful_s(period)


@compiled_loops.cached(bidbrain, price_evictions)
def _purchases(held, outlook, market, odds, rules):
    (left_s, working, cores), (offered, rooms), known = outlook, market, (odds, rules)
    count, most = len(held.machines), rules.purchases_max
    terms = _terms(held, left_s, np.zeros(count, dtype=np.bool_), known, most)
    before = cost = _without(terms, count, -1, 0.0, rules)
    stays, rooms = np.prod(terms.stays[:count]), rooms.copy()
    offers, deltas, machines = np.empty(most, np.intp), np.empty(most, np.intp), np.empty(most, np.intp)
    bought = 0
    while bought < most and rules.machines_max - working >= 1.0:
        limits = rooms, rules.cores_max - cores, rules.machines_max - working
        value, found = _best(terms, count + bought, limits, offered, known)
        if found[0] < 0 or not value < (cost if working >= rules.machines_min else np.inf):
            break
        _add(terms, count + bought, offered, found, known)
        offers[bought], deltas[bought], machines[bought] = found
        working, cores, cost = working + found[2], cores + found[2] * offered.cores[found[0]], value
        rooms[found[0]] -= found[2]
        bought += 1
    return before, cost, stays, offers[:bought], deltas[:bought], machines[:bought]
