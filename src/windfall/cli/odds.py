"""How sure a plan is: its P50 and P90 of cost and finish, calculated where the plan is shown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from windfall.cli.client import offer_of
from windfall.control.service import KnownView
from windfall.errors import Infeasible, WindfallError
from windfall.extras import install
from windfall.jobs import Job
from windfall.market import Offer
from windfall.models import pool
from windfall.policies.prospects import Knowledge, Prospect, prospect
from windfall.report.measured import merge
from windfall.units import share_text

if TYPE_CHECKING:
    from windfall.simulation.odds import Odds
    from windfall.simulation.outcomes import Trials
    from windfall.simulation.scenario import Scenario

NUMERIC = ("numpy", "numba", "llvmlite")
SEED = 0
TRIALS_MIN = 1_000
_LOSSES = 2e7
"""How many losses may be played before a user has waited long enough."""
_SAVES = 1.5e6
"""... and how many saves, which are walked through one by one: a second or two of a core."""
_SAVES_MAX = 6_000
"""Of a run: with more, not even the fewest trials are played."""


class Knowing(Protocol):
    """What is asked: `cli.client.Client`."""

    def known(self, job: Job) -> KnownView:
        """Return what a plan of a job rests on."""
        ...


def believed(job: Job, offer: Offer, known: KnownView) -> Prospect:
    """Return what is believed of a job on an offer, by what the controller knows."""
    pooled = pool.pool(known.lifetimes, known.now)
    return prospect(job, offer, Knowledge((), merge(known.measured), pooled, known.look_s))


def of_plan(controller: Knowing, job: Job, told: dict[str, Any]) -> dict[str, Any] | None:
    """Return the odds of a plan as JSON; None where it knows no cost and finish.

    Args:
        controller: is asked what the plan rests on.
        job: what is planned.
        told: the plan.
    """
    expected = told["chosen"]["expected"]
    if expected is None:
        return None
    trials = int(_LOSSES / (1.0 + expected["preemptions"]))
    if trials < TRIALS_MIN:
        return _unknown(f"not calculated: a run is expected to lose {expected['preemptions']:.0f} machines")
    try:
        from windfall.simulation import odds  # noqa: PLC0415 - needs numpy, where trials are played numba too
        from windfall.simulation.from_job import pose  # noqa: PLC0415

        known = controller.known(job)
        asked = believed(job, offer_of(told), known)
        posed = pose(job, asked, known.measured)
        trials = _trials(asked, min(trials, odds.TRIALS))
        found = odds.odds(posed.scenario, job.objective, _play, trials=trials, seed=SEED)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in NUMERIC:
            raise
        return _unknown(f"P50 and P90 need {package}: {install('control')}")
    except WindfallError as error:
        return _unknown(f"P50 and P90 are not known: {error}")
    return _as_json(found)


def _trials(found: Prospect, most: int) -> int:
    """Return how many runs are played, so that it does not take too long; 0: even the fewest would."""
    saves = (found.work_s or 0.0) / found.saving.interval_s
    if saves > _SAVES_MAX:
        return 0
    return max(min(most, int(_SAVES / (1.0 + saves))), TRIALS_MIN)


def _play(scenario: Scenario, trials: int, seed: int) -> Trials:
    if not trials:
        raise Infeasible("a run makes too many saves for a quick answer; `windfall simulate` takes its time")
    from windfall.simulation import kernels  # noqa: PLC0415 - needs numba, and compiles

    if kernels.compiles(scenario):
        print(
            "windfall: the simulation is compiled first, once for this installation (some ten seconds)", file=sys.stderr
        )
    return kernels.simulate(scenario, trials=trials, seed=seed)


def _unknown(says: str) -> dict[str, Any]:
    return {"cost_usd": None, "finish_s": None, "in_time": None, "in_budget": None, "trials": 0, "says": says}


def _as_json(found: Odds) -> dict[str, Any]:
    pairs = {name: dict(zip(("p50", "p90"), getattr(found, name), strict=True)) for name in ("cost_usd", "finish_s")}
    counted = f"in {found.trials} simulated runs" if found.trials else "calculated exactly"
    kept = ", ".join(
        f"{what} in {share_text(share)} of runs"
        for what, share in (("done by the deadline", found.in_time), ("within the budget", found.in_budget))
        if share is not None
    )
    says = f"{kept}; P50 and P90 {counted}: `windfall simulate` tells more".removeprefix("; ")
    return {**pairs, "in_time": found.in_time, "in_budget": found.in_budget, "trials": found.trials, "says": says}
