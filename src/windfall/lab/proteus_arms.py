"""Proteus and what it is compared with, each playing one job in a world: who buys, and how the job survives.

| arm | buys | survives |
|---|---|---|
| on-demand | 64 machines of c4.2xlarge on demand | - |
| standard+checkpoint | the cheapest per core at the on-demand bid, 512 cores | checkpoints |
| standard+agileml | the same, and three machines on demand | parameter server in tiers |
| bidbrain+checkpoint | BidBrain | checkpoints |
| proteus | BidBrain, and three machines on demand | parameter server in tiers |
| just-above | the cheapest per core just above its price, and three on demand | parameter server in tiers |
| greedy | the cheapest per core in each hour, and three on demand | parameter server in tiers |
| omniscient | BidBrain that knows the fate of each bid, and three on demand | parameter server in tiers |

The work is what 64 machines of 8 cores do in the job's hours.  Jobs come in sequence, so a job is not charged for what is
left of its last hours.

Source: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic resource markets", EuroSys
2017, section 6.3.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from windfall.fleet import Slot
from windfall.jobs import Job, Resources, Use
from windfall.lab import proteus_worlds as worlds
from windfall.lab.proteus_worlds import C4, SERVER_KIND, PriceWorld
from windfall.market import OfferKey
from windfall.models.price_evictions import EvictionTable, KnownPrices
from windfall.policies.acquisition import bidbrain_policy, standard_bids
from windfall.policies.acquisition.bidbrain import Application, efficiency
from windfall.policies.acquisition.bidbrain_policy import BidBrain
from windfall.policies.acquisition.fleet_policy import FleetPolicy, fixed
from windfall.policies.acquisition.standard_bids import StandardBids
from windfall.simulation.elastic_work import ElasticWork, Survival
from windfall.simulation.fleet_bill import FleetOutcome
from windfall.simulation.fleet_loop import FleetLoop
from windfall.simulation.fleet_market import SOURCE
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.virtual_time import WALL_START
from windfall.structs import Struct, replace
from windfall.terms import Instant, Reliability

HOUR_S: Final = 3600.0
MACHINES: Final = 64
CORES: Final = float(MACHINES * C4.cores)
ON_DEMAND, STANDARD_CHECKPOINT, STANDARD_AGILEML = "on-demand", "standard+checkpoint", "standard+agileml"
BIDBRAIN_CHECKPOINT, PROTEUS, JUST_ABOVE = "bidbrain+checkpoint", "proteus", "just-above"
GREEDY, OMNISCIENT = "greedy", "omniscient"
ARMS: Final = (
    ON_DEMAND, STANDARD_CHECKPOINT, STANDARD_AGILEML, BIDBRAIN_CHECKPOINT, PROTEUS, JUST_ABOVE, GREEDY, OMNISCIENT,
)  # fmt: skip
LONGEST: Final = 6.0
"""A history is given up after this many times the job's hours; the run then counts as not finished."""
_WORKER, _SERVER = "worker", "server"
_JOB = Job("proteus", "proteus", "lab", "memory:///proteus", ("true",), (Resources(),), use=Use.AUTO)


class Choices(Struct, frozen=True):
    """The constants that the paper does not print.

    Attributes:
        eviction_s, change_s: lambda and sigma of the parameter server in tiers [s].
        loss_per_core: phi's slope (`bidbrain.Application`); applies to every arm's work.
        servers: machines on demand that keep the state (the paper: 3).
        allocation_cores: of one of BidBrain's purchases.
        cores_max: of BidBrain's fleet (the paper saw 189 machines of 4 or 8 cores).
        purchases_max: purchases of one decision of BidBrain.
        delta_usd: lowest and highest bid delta; the paper prints two lower ends, 1e-5 and 1e-4 [USD/h].
        deltas: how many bid deltas, at equal ratios.
        whole_hour: BidBrain takes the odds of the whole hour, as the paper does.
        price_max: BidBrain buys and keeps nothing above this share of the on-demand price; the paper states no limit [1].
        above_usd: bid delta of the arm just above the market [USD/h].
        slowdown: of a job with checkpoints (the paper: 17 %) [1].
        checkpoint_s, restart_s: interval of checkpoints, and a restart from one [s].
        startup_s: from an order to a machine that works, not billed [s].
    """

    eviction_s: float = 60.0
    change_s: float = 30.0
    loss_per_core: float = 2e-4
    servers: int = 3
    allocation_cores: float = 64.0
    cores_max: float = 1024.0
    purchases_max: int = 4
    delta_usd: tuple[float, float] = (1e-4, 0.4)
    deltas: int = 20
    whole_hour: bool = False
    price_max: float = 1.0
    above_usd: float = 1e-4
    slowdown: float = 1.17
    checkpoint_s: float = 900.0
    restart_s: float = 300.0
    startup_s: float = 0.0

    def deltas_usd(self) -> NDArray[np.float64]:
        """Return the bid deltas [USD/h]."""
        return np.geomspace(*self.delta_usd, self.deltas)


class ArmRun(Struct, frozen=True):
    """One job of one arm; core-hours are billed machine time times cores.

    Attributes:
        cost_usd: without what is left of the last hours [USD]; NaN if the job did not finish.
        run_s: from the start to the end of the job [s]; NaN if it did not finish.
        on_demand_core_h, paid_core_h, free_core_h: on machines that cannot be preempted, on others, and in the hours of
            evictions, which cost nothing.
        evictions: instants at which machines were taken.
    """

    cost_usd: float
    run_s: float
    on_demand_core_h: float
    paid_core_h: float
    free_core_h: float
    evictions: int


class ArmJob(Struct, frozen=True):
    """A job: the zone in which it buys, when it begins [Unix seconds], and how long it takes on demand [h]."""

    zone: str
    start_s: float
    hours: float


def play(world: PriceWorld, arm: str, job: ArmJob, choices: Choices, odds: EvictionTable) -> ArmRun:
    """Play a job.

    Args:
        world: the prices.
        arm: one of `ARMS`.
        job: what is played.
        choices: the constants.
        odds: of evictions, as learnt before; BidBrain's.
    """
    horizon_s = LONGEST * job.hours * HOUR_S
    pools = worlds.markets(world, job.zone, job.start_s, horizon_s, choices.startup_s)
    app = Application(choices.eviction_s, choices.change_s, choices.loss_per_core)
    survival = Survival()
    if arm in {STANDARD_CHECKPOINT, BIDBRAIN_CHECKPOINT}:
        survival = Survival(choices.slowdown, choices.checkpoint_s, choices.restart_s)
        app = replace(app, eviction_s=0.0, change_s=0.0)
    if arm == ON_DEMAND:
        app = replace(app, change_s=0.0)
    work = ElasticWork(CORES * float(efficiency(CORES, app)) * job.hours * HOUR_S, app, survival, _SERVER)
    known: EvictionTable | KnownPrices = _known(pools, choices) if arm == OMNISCIENT else odds
    loop = FleetLoop(
        _JOB, _policy(arm, app, survival, choices), _needs(arm, job.zone, choices), pools, work=work,
        decide_every_s=math.inf, evictions=known, looks_when_asked=True,
    )  # fmt: skip
    return _run(loop, pools, loop.play(horizon_s), work)


def _policy(arm: str, app: Application, survival: Survival, choices: Choices) -> FleetPolicy:
    if arm == ON_DEMAND:
        return fixed
    if arm in {STANDARD_CHECKPOINT, STANDARD_AGILEML}:
        return standard_bids.policy(StandardBids(CORES, _WORKER))
    if arm == JUST_ABOVE:
        return standard_bids.policy(StandardBids(CORES, _WORKER, above_usd_per_hour=choices.above_usd))
    if arm == GREEDY:
        return standard_bids.policy(StandardBids(CORES, _WORKER, switches=True))
    if survival.checkpoint_s is not None:  # what BidBrain must believe of such a job
        app = replace(app, eviction_s=survival.checkpoint_s / 2.0 + survival.restart_s, change_s=survival.restart_s)
    settings = BidBrain(app, _WORKER, choices.allocation_cores, choices.cores_max, choices.purchases_max)
    return bidbrain_policy.policy(replace(settings, whole_hour=choices.whole_hour, price_max=choices.price_max))


def _needs(arm: str, zone: str, choices: Choices) -> tuple[Slot, ...]:
    if arm in {STANDARD_CHECKPOINT, BIDBRAIN_CHECKPOINT}:
        return ()
    kind, role, count = (C4, _WORKER, MACHINES) if arm == ON_DEMAND else (SERVER_KIND, _SERVER, choices.servers)
    wants = ((SOURCE, kind.machine_type, zone, Reliability.RELIABLE),)
    return tuple(Slot(f"{role}-{number}", role, Reliability.RELIABLE, wants) for number in range(count))


def _known(pools: tuple[SimulatedMarket, ...], choices: Choices) -> KnownPrices:
    prices: dict[OfferKey, tuple[NDArray[np.float64], NDArray[np.float64]]] = {
        (SOURCE, pool.machine_type, pool.zone, pool.reliability): (pool.prices.times_s, pool.prices.values)
        for pool in pools
        if pool.reliability is Reliability.TRANSIENT
    }
    return KnownPrices(prices, choices.deltas_usd(), Instant(WALL_START))


def _run(loop: FleetLoop, pools: tuple[SimulatedMarket, ...], outcome: FleetOutcome, work: ElasticWork) -> ArmRun:
    """Return what a history came to."""
    if outcome.finish_s is None:
        return ArmRun(math.nan, math.nan, math.nan, math.nan, math.nan, work.evictions)
    end_s = outcome.finish_s
    rows = loop.rows
    place, start, end = np.array(rows.pool), np.array(rows.start), np.minimum(np.array(rows.end), end_s)
    taken = np.array(rows.taken, dtype=np.bool_) & (np.array(rows.end) < end_s)
    core = np.array([pool.cpus for pool in pools])[place]
    reliable = np.array([pool.reliability is Reliability.RELIABLE for pool in pools])[place]
    lived_s = np.where(start <= end, end - start, 0.0)
    core_h = core * lived_s / HOUR_S
    free_h = np.where(taken, core * (lived_s % HOUR_S) / HOUR_S, 0.0)
    alive = np.array(rows.end) > end_s
    rest = sum(
        _rest_usd(pools[one], start_s, end_s)
        for one, start_s in zip(place[alive].tolist(), start[alive].tolist(), strict=True)
        if start_s <= end_s
    )
    paid_h = float(core_h[~reliable].sum() - free_h.sum())
    return ArmRun(outcome.usd - rest, end_s, float(core_h[reliable].sum()), paid_h, float(free_h.sum()), work.evictions)


def _rest_usd(pool: SimulatedMarket, start_s: float, end_s: float) -> float:
    """Return what was charged for the rest of a machine's last hour, after the job [USD]."""
    used_s = (end_s - start_s) % HOUR_S
    return pool.prices.at(end_s - used_s) * (1.0 - used_s / HOUR_S) if used_s > 0.0 else 0.0
