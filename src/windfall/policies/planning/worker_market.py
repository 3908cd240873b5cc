"""The workers that a job can buy for its loss and deadline: offers as types of workers of `ProvisioningProblem`.

The plan and the fleet policy `spotdnn` both come here, so that what is planned is what is bought.

An offer is a type of worker of its own, as a machine type has other prices and quotas in other zones.  Of the offers of a
machine type, those are left out that are dearer than enough others.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from windfall.jobs import Job
from windfall.models.asp import AspModel
from windfall.policies.planning import nearest_limits
from windfall.policies.planning.fleet_course import Counts, Pools
from windfall.policies.planning.provisioning import ProvisioningProblem
from windfall.policies.planning.provisioning_answers import PlanSearch, exact
from windfall.policies.planning.sliding_window import sliding_window
from windfall.structs import Struct, replace

MARGIN: Final = 0.05


class WorkerMarket(Struct, frozen=True):
    """What workers can be bought.

    Attributes:
        pools: the offers; those that the runtime knows and that fit the job.
        held: workers of each offer that stay; shape (offers,).
        model: of the training, a type of worker for each offer.
        machines_max: that can work on the job.
        searched: how many offers there were, those included that are left out.
    """

    pools: Pools
    held: Counts
    model: AspModel
    machines_max: int
    searched: int


def market_of(model: AspModel, pools: Pools, held: Counts, machines_max: int) -> WorkerMarket | None:
    """Return the workers that a job can buy or has; None if there are none.

    Args:
        model: of the training; its types of workers are machine types.
        pools: the offers that fit the job, or that it holds machines of; limits include these.
        held: machines of each offer that stay; shape (offers,).
        machines_max: that can work on the job.
    """
    workers = {one.name: one for one in model.types}
    known = [place for place, key in enumerate(pools.keys) if key[1] in workers]
    by_price = sorted(known, key=lambda place: (pools.keys[place][1], pools.usd_per_hour[place], pools.keys[place]))
    room = dict.fromkeys(workers, machines_max)
    found = []
    for place in by_price:
        kind = pools.keys[place][1]
        if held[place] or (pools.limit[place] > 0 and room[kind] > 0):
            found.append(place)
            room[kind] -= int(pools.limit[place])
    if not found:
        return None
    rows = np.array(sorted(found), dtype=np.intp)
    chosen = pools.rows(rows)
    types = tuple(replace(workers[key[1]], name="/".join(map(str, key))) for key in chosen.keys)
    return WorkerMarket(chosen, held[rows], replace(model, types=types), machines_max, len(known))


def takeover_s(job: Job, market: WorkerMarket) -> float:
    """Return T_ohd, until a new worker trains: by the settings, or as long as the slowest offer is expected to take [s]."""
    given = job.fleet_settings.get("takeover_s")
    return float((market.pools.allocate_s + market.pools.prepare_s).max() if given is None else given)


def deadline_s(job: Job) -> float:
    """Return by when the training must be done, from the job's submission: what `max_duration` stops earlier is not [s]."""
    return min(job.objective.deadline_s or math.inf, nearest_limits.training_s(job))


def time_share(job: Job) -> float:
    """Return the share of the time left in which plans are done, so that one that runs as planned is not corrected at once."""
    return 1.0 / (1.0 + float(job.fleet_settings.get("margin", MARGIN)))


def problem_of(
    job: Job, market: WorkerMarket, *, loss: float, time_s: float, server_usd_per_hour: float
) -> ProvisioningProblem:
    """Return a job's goal on a market, from the start of its training and without existing workers.

    Args:
        job: with the settings of its fleet policy.
        market: what can be bought.
        loss: that is trained to.
        time_s: until then [s]; may be infinite.
        server_usd_per_hour: of the machines that keep the state.

    Raises:
        Misuse: as `ProvisioningProblem`.
    """
    room = np.clip(market.pools.limit - market.held, 0, market.machines_max)
    bounds = bool(job.fleet_settings.get("bounds", True))
    return ProvisioningProblem(
        model=market.model,
        quotas=tuple(room.tolist()),
        prices_usd_per_hour=tuple(market.pools.usd_per_hour.tolist()),
        existing=tuple(market.held.tolist()),
        loss=loss,
        time_s=time_s,
        server_usd_per_hour=server_usd_per_hour,
        lower=bounds,
        upper=bounds,
        workers_max=market.machines_max,
    )


def search_of(job: Job) -> PlanSearch:
    """Return how a job's workers are searched: by the sliding window, or exactly if its settings ask for that."""
    return exact if job.fleet_settings.get("exact") else sliding_window
