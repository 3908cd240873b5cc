"""The expected course of a run with a fleet, where a job can use more or fewer machines.

A fleet has n_i machines of offer i (nu_i cores, price p_i, mean time M_i from a machine's start to its preemption), and
machines that only keep the state safe and cost R together.  A lost machine is replaced: the allocation a_i is not billed, the
preparation b_i is.  With memoryless lifetimes a slot is billed for a share M / (M + a) of the time and works for a share
M exp(-b / M) / (M + a), because a machine may be lost while it prepares.  With C the cores that work on average, Q the price of
what is billed, R included, and Lambda the losses per second:

    speed = phi(C) C exp(-Lambda (lambda + sigma))         core-seconds of work per second
    cost  = Q (work / speed + b),    finish = a + b + work / speed

A loss stops all machines for lambda, and the replacement that joins for sigma; stops overlap, and the time in which none lasts
has that share.  phi is the share of its work that a fleet of this size does.  These are Proteus' equations 2 to 4 in the
long run: there an eviction falls into a billing hour with odds beta; here, where billing is by the second, losses come at a
rate.  Hours that are paid ahead and refunds are `bidbrain`'s.  A stop is counted as if the lost machine worked meanwhile, so
cost and finish are a little too high (`tests/simulation/test_fleet_odds.py` says by how much).

Source: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic resource markets", EuroSys
2017, section 4, equations 2 to 4; the long run is ours.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from windfall.market import OfferKey
from windfall.policies.acquisition.bidbrain import HOUR_S, Application, Floats, efficiency
from windfall.structs import Struct

Counts = NDArray[np.int64]


class Pools(Struct, frozen=True):
    """What fleets can be made of, in columns: one row for each offer.

    Attributes:
        keys: of the offers.
        cores: of a machine.
        usd_per_hour: of a machine; 0 for capacity that is paid for anyway.
        mttp_s: mean time to preemption; infinite for machines that cannot be preempted [s].
        allocate_s, prepare_s: from an order to the start, and from there to the first work [s].
        limit: the most machines of it.
    """

    keys: tuple[OfferKey, ...]
    cores: Floats
    usd_per_hour: Floats
    mttp_s: Floats
    allocate_s: Floats
    prepare_s: Floats
    limit: Counts

    def rows(self, rows: NDArray[np.intp]) -> Pools:
        """Return some of the rows."""
        columns = (getattr(self, name)[rows] for name in self.__struct_fields__[1:])
        return Pools(tuple(self.keys[row] for row in rows), *columns)


class FleetGoal(Struct, frozen=True):
    """What a fleet is for.

    Attributes:
        app: what losses and changes cost, and how the work of many cores falls behind.
        machines_min, machines_max: that can work on the job.
        reliable_usd_per_hour: of all machines that keep the state safe.
        work_core_s: the work [core-seconds]; None if unknown: fleets are then compared by what a core-hour of work costs.
        deadline_s, budget_usd: None for none.
        reserve_s: for how long the budget must bear all machines after the work: the last save and the release [s].
        fastest: minimize the time instead of the cost.
    """

    app: Application
    machines_min: int
    machines_max: int
    reliable_usd_per_hour: float = 0.0
    work_core_s: float | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    reserve_s: float = 0.0
    fastest: bool = False


class FleetCourse(Struct, frozen=True):
    """The expected course of a run with a fleet.

    Attributes:
        counts: (offer, machines), the most expensive part first; empty for no fleet.
        usd_per_hour: of the fleet while all of it stands, machines that keep the state safe included.
        speed_cores: core-seconds of work per second, losses and stops included.
        cores: of the machines that work, while all of them stand.
        usd_per_work_core_hour: what an hour of one core's work costs, losses and stops included.
        losses_per_hour: of machines.
        working_share: of the time in which the fleet is not stopped by losses and changes.
        prepare_s: of the machine that takes longest to prepare [s].
        cost_usd, finish_s: None if the work is unknown.
        budget_usd: the cost and what a budget holds in reserve; None if the work is unknown.
    """

    counts: tuple[tuple[OfferKey, int], ...]
    usd_per_hour: float
    cores: float
    speed_cores: float
    usd_per_work_core_hour: float
    losses_per_hour: float
    working_share: float
    prepare_s: float
    cost_usd: float | None
    finish_s: float | None
    budget_usd: float | None


class FleetChange(Struct, frozen=True):
    """What it costs to change a fleet that runs.

    Attributes:
        usd: for machines that prepare, and for all while they stop.
        stop_s: how long all stop [s].
        margin: the share of what is left that a change must gain [1].
    """

    usd: float
    stop_s: float
    margin: float


class FleetRates(Struct, frozen=True):
    """What one machine of each offer adds to a fleet, losses and replacements included, in columns."""

    cores: Floats
    usd_per_hour: Floats
    losses_per_s: Floats
    start_s: Floats
    prepare_s: Floats


class FleetSums(Struct, frozen=True):
    """Sums of fleets, as arrays of any one shape."""

    machines: NDArray[np.float64]
    cores: Floats
    usd_per_hour: Floats
    losses_per_s: Floats
    start_s: Floats
    prepare_s: Floats


def counts_of(pools: Pools, fleet: FleetCourse) -> Counts:
    """Return how many machines of each offer a fleet has; those of offers that are not among these are left out."""
    found = dict(fleet.counts)
    return np.array([found.get(key, 0) for key in pools.keys], dtype=np.int64)


def course(pools: Pools, counts: Counts, goal: FleetGoal) -> FleetCourse:
    """Return the expected course of a run with a fleet of these counts."""
    fleet = sums_of(rates_of(pools), counts)
    speed, share = _speed(fleet, goal)
    cost, finish = _outcome(fleet, goal)
    known = goal.work_core_s is not None
    full = float(counts @ pools.usd_per_hour) + goal.reliable_usd_per_hour
    order = sorted(np.flatnonzero(counts), key=lambda row: (-counts[row] * pools.usd_per_hour[row], pools.keys[row]))
    return FleetCourse(
        counts=tuple((pools.keys[row], int(counts[row])) for row in order),
        usd_per_hour=full,
        cores=float(counts @ pools.cores),
        speed_cores=float(speed),
        usd_per_work_core_hour=float(fleet.usd_per_hour + goal.reliable_usd_per_hour) / float(speed)
        if speed > 0.0
        else math.inf,
        losses_per_hour=float(fleet.losses_per_s) * HOUR_S,
        working_share=float(share),
        prepare_s=float(fleet.prepare_s),
        cost_usd=float(cost) if known else None,
        finish_s=float(finish) if known else None,
        budget_usd=float(cost + _reserve_usd(fleet, goal)) if known else None,
    )


def misses(fleet: FleetCourse, goal: FleetGoal) -> bool:
    """Whether a fleet misses the deadline or the budget; what is not known is not missed."""
    late = goal.deadline_s is not None and fleet.finish_s is not None and fleet.finish_s > goal.deadline_s
    dear = goal.budget_usd is not None and fleet.budget_usd is not None and fleet.budget_usd > goal.budget_usd
    return late or dear


def change_pays(before: FleetCourse, after: FleetCourse, goal: FleetGoal, change: FleetChange) -> bool:
    """Whether to change a fleet that runs: only if that gains more than it costs, so that machines do not come and go.

    It pays to meet a limit that the fleet misses.  Otherwise the gain over the work that is left (of unknown work: over an
    hour's) must exceed the cost of the change, and `change.margin` of what is left.
    """
    if misses(before, goal) != misses(after, goal):
        return misses(before, goal)
    if not math.isfinite(before.usd_per_work_core_hour):
        return math.isfinite(after.usd_per_work_core_hour)
    hours = goal.work_core_s / HOUR_S if goal.work_core_s is not None else before.speed_cores
    if goal.fastest:
        slow_s, fast_s = (HOUR_S * hours / one.speed_cores for one in (before, after))
        return slow_s - fast_s > max(change.stop_s, change.margin * slow_s)
    left_usd, then_usd = (hours * one.usd_per_work_core_hour for one in (before, after))
    return left_usd - then_usd > max(change.usd, change.margin * left_usd)


def change_between(pools: Pools, before: Counts, after: Counts, goal: FleetGoal, margin: float) -> FleetChange:
    """Return what it costs to make one fleet of another: new machines prepare while the old ones work, then all stop."""
    new = np.maximum(after - before, 0)
    prepare_usd = float(new @ (pools.usd_per_hour * pools.prepare_s)) / HOUR_S
    stop_usd = goal.app.change_s / HOUR_S * (float(after @ pools.usd_per_hour) + goal.reliable_usd_per_hour)
    return FleetChange(prepare_usd + stop_usd, goal.app.change_s, margin)


def rates_of(pools: Pools) -> FleetRates:
    """Return what one machine of each offer adds to a fleet."""
    lost = np.isfinite(pools.mttp_s)
    mttp_s = np.where(lost, pools.mttp_s, 1.0)
    cycle_s = mttp_s + pools.allocate_s
    ready = np.exp(-pools.prepare_s / mttp_s)
    up = np.where(lost, mttp_s * ready / cycle_s, 1.0)
    billed = np.where(lost, mttp_s / cycle_s, 1.0)
    losses = np.where(lost, ready / cycle_s, 0.0)  # of machines that work: the others stop no work
    start_s = pools.allocate_s + pools.prepare_s
    return FleetRates(pools.cores * up, pools.usd_per_hour * billed, losses, start_s, pools.prepare_s)


def sums_of(rates: FleetRates, counts: Counts) -> FleetSums:
    """Return the sums of fleets; the last axis of `counts` is the offer."""
    used = counts > 0
    return FleetSums(
        counts.sum(axis=-1).astype(np.float64),
        counts @ rates.cores,
        counts @ rates.usd_per_hour,
        counts @ rates.losses_per_s,
        np.max(np.where(used, rates.start_s, 0.0), axis=-1, initial=0.0),
        np.max(np.where(used, rates.prepare_s, 0.0), axis=-1, initial=0.0),
    )


def _speed(fleet: FleetSums, goal: FleetGoal) -> tuple[Floats, Floats]:
    """Return the work per second [core-seconds] and the share of the time in which the fleet works."""
    share = np.exp(-fleet.losses_per_s * (goal.app.eviction_s + goal.app.change_s))
    return efficiency(fleet.cores, goal.app) * fleet.cores * share, share


def _outcome(fleet: FleetSums, goal: FleetGoal) -> tuple[Floats, Floats]:
    """Return cost [USD] and finish [s]; where the work is unknown, of an hour of one core's work, starts left out."""
    speed, _ = _speed(fleet, goal)
    work = HOUR_S if goal.work_core_s is None else goal.work_core_s
    works = np.full(np.shape(speed), np.inf)
    np.divide(work, speed, out=works, where=speed > 0.0)
    usd_per_s = (fleet.usd_per_hour + goal.reliable_usd_per_hour) / HOUR_S
    if goal.work_core_s is None:
        return _product(usd_per_s, works), works
    return _product(usd_per_s, works + fleet.prepare_s), works + fleet.start_s


def _reserve_usd(fleet: FleetSums, goal: FleetGoal) -> Floats:
    return (fleet.usd_per_hour + goal.reliable_usd_per_hour) * (goal.reserve_s / HOUR_S)


def _product(usd_per_s: Floats, took_s: Floats) -> Floats:
    """Return a cost; one that takes for ever is infinite, however cheap."""
    return np.where(np.isfinite(took_s), usd_per_s * np.where(np.isfinite(took_s), took_s, 0.0), np.inf)


def score_of(fleet: FleetSums, goal: FleetGoal) -> tuple[Floats, ...]:
    """Return by what fleets are compared, in this order.

    Machines too many or too few, how far deadline and budget are missed, the goal (cost or finish), the other of the two.
    """
    cost, finish = _outcome(fleet, goal)
    few = np.maximum(goal.machines_min - fleet.machines, 0.0)
    many = np.maximum(fleet.machines - goal.machines_max, 0.0)
    missed = np.zeros(np.shape(cost))
    if goal.work_core_s is not None:
        for value, limit in ((finish, goal.deadline_s), (cost + _reserve_usd(fleet, goal), goal.budget_usd)):
            if limit is not None:
                missed = missed + np.maximum(value / max(limit, 1e-9) - 1.0, 0.0)
    return (few + many, missed, finish, cost) if goal.fastest else (few + many, missed, cost, finish)
