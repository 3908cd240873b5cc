"""What a seed of the fleet storm draws once: the job, the markets, and what will go wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tests.storms import whole_scene
from tests.support.scene import Scene
from windfall.control.provider_calls import PollingPace
from windfall.jobs import Checkpointing, Injection, Job, Objective, Resources, Use
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.terms import Reliability, RunOptions, Seconds, Usd

OWNER = "storm"
JOB = "job"
LEASE_S = whole_scene.LEASE_S
SILENT_S = 20.0
WHOLE_SHARE = 0.1
"""So many seeds run the full machine: worker reducer, script, parts, uploads; the others a lean one over the same log."""
SCHEDULED_SHARE = 0.4
"""So many seeds save by schedules; only full machines act on them."""
PACE = PollingPace(
    turn_s=Seconds(2.0), list_s=Seconds(4.0), offers_s=Seconds(10.0), bill_s=Seconds(20.0), run_s=Seconds(4.0),
    estimates_s=Seconds(300.0), silent_after_s=Seconds(SILENT_S),
)  # fmt: skip
SCHEDULES_S = Seconds(12.0)
"""Minutes of the product: how often schedules are looked at again [s]."""
FATES = (
    *("vanish", "honest", "honest", "honest", "early", "never", "withdrawn", "hint", "zombie"),
    *("flutter", "flutter", "unacknowledged", "direct cut", "mailbox cut", "both cut", "stops itself", "none"),
)


@dataclass(frozen=True)
class FleetScene:
    """The half that buys, in one seed.

    Attributes:
        whole: machines run the full worker; else a lean script over the same steps of the log.
        quiet: nothing goes wrong at all (a baseline in which every line of the bill is plain).
        life_s: mean of the time after which a fate strikes a machine [s].
        dry: (from, to, zone): the zone has no capacity meanwhile.
        no_quota: the zone in which the account may have none; None if there is none.
        tight: (zone, capacity): orders come partially.
        outage_s: how long no controller comes back, once; 0 for never.
        stop_at: a user stops the job, and resumes it later; None for never.
        falsified: a cent is added to a machine's bill (a check must turn red).
        stale: listings may miss a machine once.
        busy: chance of a fault per call that changes something [1].
        scheduled: saves follow schedules that the controller hands over (`fleet_schedules`).
    """

    seed: int
    whole: bool
    quiet: bool
    nodes: int
    job: Job
    markets: tuple[SimulatedMarket, ...]
    life_s: float
    dry: tuple[tuple[float, float, str], ...]
    no_quota: str | None
    tight: tuple[str, int] | None
    outage_s: float
    outage_at: float
    stop_at: float | None
    stop_now: bool
    resume_at: float
    stale: bool
    busy: float
    calm_s: float
    bill_lag_s: tuple[float, float]
    scheduled: bool


def _market(rng: random.Random, zone: str, reliability: Reliability) -> SimulatedMarket:
    baseline = rng.uniform(2.0, 4.0)
    spot = reliability is Reliability.TRANSIENT
    prices = [(0.0, baseline * rng.uniform(0.2, 0.4) if spot else baseline)]
    if spot and rng.random() < 0.4:
        at_s = rng.uniform(30.0, 200.0)
        prices += [
            (at_s, baseline * rng.uniform(0.4, 1.2)),
            (at_s + rng.uniform(20.0, 100.0), baseline * rng.uniform(0.2, 0.5)),
        ]
    least_s = rng.choice([1.0, 5.0])
    return SimulatedMarket(
        machine_type="m4",
        zone=zone,
        reliability=reliability,
        prices=ValueSeries.of(prices),
        on_demand_usd_per_hour=baseline,
        allocate_s=(least_s, least_s * rng.uniform(1.0, 4.0)),
        startup_s=rng.choice([None, Seconds(2 * least_s)]),
        notice_s=Seconds(rng.choice([0.0, 10.0, 30.0])) if spot else Seconds(0.0),
        bid=spot and rng.random() < 0.5,
        refund=spot and rng.random() < 0.4,
        failed_to_start=rng.choice([0.0, 0.0, 0.15]),
    )


def draw(seed: int) -> FleetScene:
    """Draw everything about the fleet; the script is drawn by `script`."""
    rng = random.Random(f"fleet {seed}")
    whole = rng.random() < WHOLE_SHARE
    scheduled = random.Random(f"schedules {seed}").random() < SCHEDULED_SHARE
    nodes = 1 if whole else rng.choice([1, 1, 1, 2, 3])
    markets = tuple(_market(rng, zone, Reliability.TRANSIENT) for zone in ("a", "b"))
    use = rng.choice([Use.SPOT, Use.AUTO, Use.AUTO])
    markets += (_market(rng, "a", Reliability.RELIABLE),)
    budget = Usd(rng.choice([0.03, 0.06])) if rng.random() < 0.1 else Usd(50.0)
    injection = None
    if rng.random() < 0.2:
        # Any of its machines' ends ends a generation: the injector never stops, and the job must be able to finish.
        means = tuple(Seconds(nodes * rng.uniform(30.0, 90.0)) for _ in range(rng.choice([1, 2])))
        injection = Injection(means, seed, rng.choice([None, Seconds(15.0)]))
    job = Job(
        job_id=JOB,
        name=JOB,
        user="user",
        run_url="memory://run",
        command=("train",),
        resources=(Resources(),),
        nodes=nodes,
        use=use,
        max_price_usd_per_hour=rng.choice([None, None, 5.0]),
        objective=Objective(budget_usd=budget),
        options=RunOptions("optimal" if scheduled else "adaptive"),
        checkpointing=Checkpointing(save_timeout_s=Seconds(30.0)),
        injection=injection,
        dead_man_s=Seconds(rng.choice([7200.0, 7200.0, 200.0])),
    )
    stop_at = rng.uniform(20.0, 150.0) if rng.random() < 0.12 else None
    return FleetScene(
        seed=seed,
        whole=whole,
        quiet=rng.random() < 0.03,
        nodes=nodes,
        job=job,
        markets=markets,
        life_s=rng.choice([30.0, 60.0, 120.0]),
        dry=tuple((at, at + rng.uniform(10.0, 90.0), rng.choice("ab")) for at in _times(rng, rng.choice([0, 0, 1, 2]))),
        no_quota=rng.choice([None, None, "a", "b"]),
        tight=rng.choice([None, None, ("a", 1), ("b", 2)]),
        outage_s=rng.choice([0.0, 0.0, 60.0, 300.0, 3600.0]) if rng.random() < 0.6 else 0.0,
        outage_at=rng.uniform(5.0, 150.0),
        stop_at=stop_at,
        stop_now=rng.random() < 0.3,
        resume_at=0.0 if stop_at is None else stop_at + rng.uniform(1.0, 120.0),
        stale=rng.random() < 0.6,
        busy=rng.choice([0.02, 0.1, 0.25]),
        calm_s=rng.uniform(150.0, 400.0),
        bill_lag_s=(0.0, rng.choice([0.0, 30.0, 300.0])),
        scheduled=scheduled,
    )


def _times(rng: random.Random, count: int) -> list[float]:
    return [rng.choice([0.0, rng.uniform(0.0, 150.0)]) for _ in range(count)]


def script(fleet: FleetScene) -> tuple[Scene, whole_scene.Habits]:
    """Draw the script and its store; the faults of a store that is a disk have their own storm."""
    scene, habits = whole_scene.draw(fleet.seed)
    calm_s = 0.0 if fleet.quiet else fleet.calm_s
    scene = replace(scene, calm_s=calm_s, step_s=max(scene.step_s, 1.0))
    if fleet.scheduled:
        scene = replace(scene, policy="optimal")
    return scene, replace(habits, on_disk=False, power_cuts=0, decays=0)
