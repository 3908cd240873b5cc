"""The odds of a plan: P50 and P90 of its cost and finish, computed where the plan is shown."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from windfall import codec
from windfall.errors import ControllerError, Infeasible, WindfallError
from windfall.extras import install
from windfall.jobs import Job
from windfall.market import Offer
from windfall.policies.planning.estimates import OfferEstimate, PlanInputs, estimate_from
from windfall.policies.policy_registry import SPOTDNN
from windfall.units import share_text

if TYPE_CHECKING:
    from windfall.simulation.bag_odds import BagOdds
    from windfall.simulation.odds import Odds
    from windfall.simulation.outcomes import Trials
    from windfall.simulation.scenario import Scenario

NUMERIC = ("numpy", "numba", "llvmlite")
SEED = 0
TRIALS_MIN = 1_000
_LOSSES = 2e7
"""The most losses to simulate, so that the user does not wait too long."""
_SAVES = 1.5e6
"""The most saves to simulate, one by one: a second or two on one core."""
_SAVES_MAX = 6_000
"""If a run has more saves than this, not even the fewest trials are simulated."""


class KnowledgeSource(Protocol):
    """Where the inputs of a plan come from: the controller, or `control.planner.Planner`."""

    def plan_inputs(self, job: Job) -> PlanInputs:
        """Return the data that a plan of a job is based on."""
        ...


def offer_of(plan: dict[str, Any]) -> Offer:
    """Return the chosen offer of a plan.

    Raises:
        ControllerError: the plan is of another version.
    """
    try:
        offer: Offer = codec.decode({"type": Offer.__name__, **plan["chosen"]["offer"]}, Offer)
    except (KeyError, TypeError, ValueError) as error:
        raise ControllerError(
            "cannot read the controller's plan: use the same version of Windfall here and for the controller"
        ) from error
    return offer


def of_plan(
    controller: KnowledgeSource, job: Job, plan: dict[str, Any], log: Callable[[str], object]
) -> dict[str, Any] | None:
    """Return the odds of a plan as JSON; None if its cost and finish are unknown.

    Args:
        controller: has the data that the plan is based on.
        job: what is planned.
        plan: the plan as JSON.
        log: is told what takes long.
    """
    expected = plan["chosen"]["expected"]
    if expected is None:
        return None
    trials = int(_LOSSES / (1.0 + expected["preemptions"]))
    if trials < TRIALS_MIN:
        return _too_many(expected["preemptions"])
    try:
        if plan.get("bag") is not None or plan.get("fleet") is not None:
            return (
                _of_bag(job, plan["bag"]) if plan.get("fleet") is None else _of_fleets(controller, job, plan["fleet"])
            )
        from windfall.simulation import odds  # noqa: PLC0415 - needs numpy, where trials are played numba too
        from windfall.simulation.scenario_from_job import build_scenario  # noqa: PLC0415

        known = controller.plan_inputs(job)
        estimate = estimate_from(known, job, offer_of(plan))
        built = build_scenario(job, estimate, known.measured)
        trials = _trials(estimate, min(trials, odds.TRIALS))
        found = odds.odds(built.scenario, job.objective, partial(_play, log), trials=trials, seed=SEED)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in NUMERIC:
            raise
        return _unknown(f"P50 and P90 need {package}: {install('control')}")
    except WindfallError as error:
        return _unknown(f"P50 and P90 are unknown: {error}")
    return _as_json(found)


def _of_fleets(controller: KnowledgeSource, job: Job, fleets: dict[str, Any]) -> dict[str, Any]:
    """Return the odds of a plan's fleet, and add its own to each other fleet of the plan."""
    from windfall.simulation import fleet_odds  # noqa: PLC0415 - needs numpy

    if job.fleet == SPOTDNN:
        return _unknown("P50 and P90 are unknown: machines that take over after a loss are not simulated here")
    offers = tuple(codec.decode({"type": Offer.__name__, **offer}, Offer) for offer in fleets["offers"])
    rows = [
        row for row in (fleets["chosen"], fleets["runner_up"], fleets["on_demand"], *fleets["front"]) if row is not None
    ]
    found = fleet_odds.odds_of(job, offers, controller.plan_inputs(job), [row["counts"] for row in rows])
    for row, one in zip(rows, found, strict=True):
        losses = row["losses_per_hour"] * row["finish_s"] / 3600.0
        row["odds"] = _too_many(losses) if one is None else _as_json(one)
    odds: dict[str, Any] = rows[0]["odds"]
    return odds


def _of_bag(job: Job, course: dict[str, Any]) -> dict[str, Any]:
    """Return the odds of a bag."""
    from windfall.policies.planning.bag_plan import BagCourse  # noqa: PLC0415 - needs numpy
    from windfall.simulation import bag_odds  # noqa: PLC0415 - needs numpy

    known: BagCourse = codec.decode({"type": BagCourse.__name__, **course}, BagCourse)
    return _as_json(bag_odds.odds_of(known, job.objective.deadline_s, job.objective.budget_usd, seed=SEED))


def _trials(found: OfferEstimate, most: int) -> int:
    """Return how many runs to simulate in a short time; 0 if even the fewest take too long."""
    saves = (found.work_s or 0.0) / found.saving.interval_s
    if saves > _SAVES_MAX:
        return 0
    return max(min(most, int(_SAVES / (1.0 + saves))), TRIALS_MIN)


def _play(log: Callable[[str], object], scenario: Scenario, trials: int, seed: int) -> Trials:
    if not trials:
        raise Infeasible("a run has too many saves for a quick answer; use `windfall simulate`")
    from windfall.simulation import kernels  # noqa: PLC0415 - needs numba, and compiles

    if kernels.compiles(scenario):
        log("compiling the simulation, once for this installation (about ten seconds)")
    return kernels.simulate(scenario, trials=trials, seed=seed)


def _too_many(losses: float) -> dict[str, Any]:
    return _unknown(f"not computed: a run is expected to lose {losses:.0f} machines")


def _unknown(says: str) -> dict[str, Any]:
    return {"cost_usd": None, "finish_s": None, "in_time": None, "in_budget": None, "trials": 0, "says": says}


def _as_json(found: Odds | BagOdds) -> dict[str, Any]:
    pairs = {name: dict(zip(("p50", "p90"), getattr(found, name), strict=True)) for name in ("cost_usd", "finish_s")}
    counted = f"from {found.trials:,} simulated runs" if found.trials else "computed exactly"
    kept = ", ".join(
        f"{what} in {share_text(share)} of runs"
        for what, share in (("done by the deadline", found.in_time), ("within the budget", found.in_budget))
        if share is not None
    )
    says = f"{kept}; P50 and P90 {counted}; details: `windfall simulate`".removeprefix("; ")
    return {**pairs, "in_time": found.in_time, "in_budget": found.in_budget, "trials": found.trials, "says": says}
