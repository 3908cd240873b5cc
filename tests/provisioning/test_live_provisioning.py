"""Training to a loss by a deadline on a parameter server on a local market: two machines go, in ten seeded runs, all real.

What `windfall.apps.mlr` learns and takes is measured first, by one process: its losses clock by clock, to which spotDNN's loss
is fitted, and its kernel's time.  Small and large machines compute at 0.8 and 1.6 % of that speed (`kernel_speed`), and keep it
while that of this computer drifts (`turn_s`).
At a drawn moment two large machines go: in even runs their price rises above that on demand, with a notice, and no more of them
are sold; in odd runs they are killed without one.
"""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import least_squares

from tests.live.rig import USD_PER_HOUR, Rig, Stay
from windfall.apps import mlr
from windfall.events import Row
from windfall.fleet import PlaceOrder, ProgressObserved
from windfall.runtimes.tier_log import TierLog
from windfall.storage.object_stores import open_store
from windfall.structs import Struct
from windfall.terms import Outcome, Reliability

pytest.importorskip("ray", reason="Ray is not installed: pip install 'windfall[paramserver]'")
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1800)]
SETTINGS = {
    "observations": 178_200, "features": 60, "classes": 10, "apart": 0.12, "batch": 6600, "rate": 0.3, "decay": 1e-6, "seed": 3,
}  # fmt: skip
PARTITIONS, CLOCKS, MEASURED_CLOCKS, GOAL_CLOCK = 27, 170, 54, 33
TAKEOVER_S, NOTICE_S = 45.0, 3.0
SPEEDS = {"small": 0.008, "large": 0.016}
USD = {"small": 900.0, "large": 1400.0}
ON_DEMAND_USD = {"small": USD_PER_HOUR, "large": 1.4 * USD_PER_HOUR}
CLOSED_USD = 1.1 * ON_DEMAND_USD["large"]
WORKERS_MAX, SLACK = 5, 2.0
"""The deadline leaves so many times as long as the most workers, all large, would need, after all have joined."""
MARGIN = 0.15
"""Of the time left: the model's error for clusters, and data partitions that cannot be divided."""
TURN_OVERHEAD_S = 0.03
"""Of a turn beside its kernel on this computer: questions and answers [s]."""
RUNS, IN_TIME_MIN = 10, 9
HEARD_S = 5.0
"""From the end of a machine, or its notice, to the order of another, at most."""


class Measured(Struct, frozen=True):
    """What one process shows of the application.

    Attributes:
        losses: mean of the turns of each clock, from the first one on.
        kernel_s: processor time of a turn [s].
    """

    losses: tuple[float, ...]
    kernel_s: float


class Run(Struct, frozen=True):
    """One run.

    Attributes:
        loss: of the product's clock, as training ended; None: with its last clock.
        reached_s: from the submission until training was over and its state in the store [s].
        cost_usd: by the market's meter.
        bought: machines of each type.
        ordered_s: from the first loss or notice to the first order after it [s].
        lost: machines that went.
    """

    loss: float | None
    reached_s: float
    cost_usd: float
    bought: Counter[str]
    ordered_s: float
    lost: int


class OneTurn:
    """`Table` of a turn that reads one process's values."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.pushed = values, np.zeros_like(values)

    def pull(self, rows: np.ndarray) -> np.ndarray:
        """The values of rows."""
        found: np.ndarray = self.values[rows]
        return found

    def push(self, rows: np.ndarray, changes: np.ndarray) -> None:
        """Add at the end."""
        self.pushed[rows] += changes


@functools.cache
def measured() -> Measured:
    """Train in this process for a while."""
    program = mlr.program(SETTINGS, PARTITIONS)
    values, loaded = program.first(np.arange(program.rows)), [program.load(data) for data in range(PARTITIONS)]
    losses, times_s = [], []
    for clock in range(1, MEASURED_CLOCKS + 1):
        turns, found = [OneTurn(values) for _ in loaded], []
        for turn, data in zip(turns, loaded, strict=True):
            began_s = time.thread_time()
            found.append(program.compute(data, clock, turn))
            times_s.append(time.thread_time() - began_s)
        values = values + sum(turn.pushed for turn in turns)
        losses.append(statistics.fmean(one for one in found if one is not None))
    return Measured(tuple(losses), statistics.median(times_s))


def goal() -> float:
    """The loss to reach: what one process has after some clocks."""
    return round(measured().losses[GOAL_CLOCK], 4)


def turn_s(machine_type: str) -> float:
    """How long a turn takes on a machine type [s]."""
    return measured().kernel_s / SPEEDS[machine_type] + TURN_OVERHEAD_S


def deadline_s() -> float:
    """From the submission until the loss is to be reached [s]."""
    return TAKEOVER_S + SLACK * GOAL_CLOCK * PARTITIONS * turn_s("large") / WORKERS_MAX


def profile() -> dict[str, Any]:
    """Return the constants of spotDNN's model: its loss fitted to the measured one, turn by turn.

    The steps of this runtime do not depend on how many machines compute them.
    """
    losses, turns = np.array(measured().losses), PARTITIONS * np.arange(MEASURED_CLOCKS)

    def error(constants: np.ndarray) -> np.ndarray:
        scale, floor = np.exp(constants[0]), constants[1]
        found: np.ndarray = scale / (turns + scale / (losses[0] - floor)) + floor - losses
        return found

    (log_scale, floor) = least_squares(error, (np.log(100.0), 0.9 * losses[-1])).x
    return {
        "workload": {
            # Transfers are within one computer: their time is in that of a turn.
            "parameters_mb": 1e-3, "required_mb_per_s": 1e3, "alpha1": 0.01, "beta1": 0.0,
            "gamma2": -1e-9, "gamma3": float(np.exp(log_scale)), "workers_power": 0.0,
            "gamma5": float(floor), "start_loss": float(losses[0]),
        },
        "platform": {"server_mb_per_s": 1e4, "pcie_mb_per_s": 1e6},
        "workers": {
            name: {"batch": float(SETTINGS["batch"]), "compute_s": turn_s(name)} for name in SPEEDS
        },
    }  # fmt: skip


def market(closes_s: float | None) -> dict[str, Any]:
    """Return two zones; large machines are not sold in the first one from a moment on, None for always."""
    closed = [] if closes_s is None else [[closes_s, CLOSED_USD]]
    return {
        "types": {
            name: {"on_demand": ON_DEMAND_USD[name], "kernel_speed": speed, "turn_s": measured().kernel_s}
            for name, speed in SPEEDS.items()
        },
        "zones": ["zone-a", "zone-b"],
        "capacity": {"large": 2, "default": 6},
        "prices": {
            "points": {
                "small/zone-a": [[0, USD["small"]]],
                "small/zone-b": [[0, USD["small"] + 50.0]],
                "large/zone-a": [[0, USD["large"]], *closed],
                "large/zone-b": [[0, USD["large"] + 50.0]],
            }
        },
    }


def job() -> dict[str, Any]:
    """Return a job that is to reach a loss by a deadline."""
    tiers = {
        "workers": f"1..{WORKERS_MAX}", "clocks": CLOCKS, "partitions": PARTITIONS, "staleness": 1, "app": "windfall.apps.mlr",
        "settings": SETTINGS, "profile": profile(),
    }  # fmt: skip
    return {
        "name": "tiers",
        "run": "python -m windfall.apps.mlr",
        "runtime": {"paramserver": tiers},
        "fleet": {"spotdnn": {"takeover_s": TAKEOVER_S, "margin": MARGIN, "decide_every_s": 5.0}},
        "objective": {"loss": goal(), "deadline": f"{deadline_s():.0f}s"},
        "resources": {"infra": "local", "use_spot": True},
    }


def workers(rig: Rig, job_id: str) -> list[Stay]:
    """Return the machines that may vanish, by the market's books."""
    return [stay for stay in rig.stays(job_id) if stay.price not in ON_DEMAND_USD.values()]


def run(rig: Rig, seed: int) -> Run:
    """Run the job; two machines go meanwhile."""
    goes_s, priced = _goes_s(seed), seed % 2 == 0
    rig.start_controller()
    job_id = rig.submit(job(), None)
    submitted = rig.rows(job_id)[0].wall_time

    def of_first_zone() -> list[Stay]:
        return [one for one in workers(rig, job_id) if one.price == USD["large"] and one.ended is None]

    if not priced:
        rig.until(lambda: rig.rows(job_id)[-1].wall_time - submitted >= goes_s, "the moment comes", 90.0)
        for stay in of_first_zone():
            rig.take(stay.machine_id, None)
    told = rig.ended(job_id, 3.0 * deadline_s())
    assert told["phase"] == "done", told["message"]
    rig.check(job_id, told, nodes=9)
    return seen(rig, job_id, submitted)


def _goes_s(seed: int) -> float:
    return random.Random(seed).uniform(45.0, 70.0)


def seen(rig: Rig, job_id: str, submitted: float) -> Run:
    """Return what the market's books, the journal and the run's log say of the run."""
    layout, stays = TierLog(open_store(rig.run_url(job_id))).newest_layout(), workers(rig, job_id)
    assert layout is not None
    gone = [one for one in stays if one.cause == "preempted"]
    assert len(gone) == 2, f"two machines go: {stays}"
    lost = min(min(one.told or one.ended or 0.0, one.ended or 0.0) for one in gone)
    orders = [row.wall_time for row in rig.rows(job_id) if row.wall_time > lost and _orders_workers(row)]
    assert orders, "others are bought"
    names = {price: name for name, usd in USD.items() for price in (usd, usd + 50.0)}
    # One that is ordered while the price rises is sold at the new one, and goes at once.
    names[CLOSED_USD] = "large"
    return Run(
        None if layout.reached is None else layout.reached.loss,
        next(row.wall_time for row in rig.rows(job_id) if _is_done(row)) - submitted,
        rig.metered_usd(job_id),
        Counter(names[one.price] for one in stays),
        orders[0] - lost,
        len(gone),
    )


def _orders_workers(row: Row) -> bool:
    return any(
        isinstance(one, PlaceOrder) and one.order.offer.reliability is Reliability.TRANSIENT for one in row.commands
    )


def _is_done(row: Row) -> bool:
    return any(isinstance(fact, ProgressObserved) and fact.progress.outcome is Outcome.DONE for fact in row.facts)


@pytest.fixture
def new_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Makes installations; each is closed."""
    made: list[Rig] = []

    def make(number: int, **given: Any) -> Rig:
        made.append(Rig(tmp_path / f"lab-{number}", **given))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def one_run(new_rig: Callable[..., Rig], seed: int) -> Run:
    """Run and print."""
    rig = new_rig(seed, market=market(_goes_s(seed) if seed % 2 == 0 else None), notice_s=NOTICE_S)
    found = run(rig, seed)
    rig.close()
    loss = "not reached" if found.loss is None else f"{found.loss:.4f} of {goal():g}"
    print(
        f"{seed}: loss {loss} after {found.reached_s:.1f} of {deadline_s():.0f} s, {found.cost_usd:.2f} USD, bought "
        f"{dict(found.bought)}, {found.lost} lost, others ordered after {found.ordered_s:.2f} s",
        flush=True,
    )
    return found


def is_met(found: Run) -> bool:
    """Whether a run reached its loss in time."""
    return found.loss is not None and found.loss <= goal() and found.reached_s <= deadline_s()


def test_the_goal_is_met_although_two_machines_go(new_rig: Callable[..., Rig]) -> None:
    """In nine of ten runs at least; others are ordered at once."""
    found = [one_run(new_rig, seed) for seed in range(RUNS)]

    assert all(one.ordered_s <= HEARD_S for one in found)
    assert sum(is_met(one) for one in found) >= IN_TIME_MIN
