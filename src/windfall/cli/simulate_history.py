"""`windfall simulate --history`: play one history with the event engine, and show it as `windfall cost` and `explain` would."""

from __future__ import annotations

import json
from pathlib import Path

from windfall.cli.simulate import SimulationSetup
from windfall.report import cost_page, machine_timeline, simulated_history
from windfall.report.console import console
from windfall.report.simulated_history import ReadHistory
from windfall.simulation import engine
from windfall.simulation.simulated_policies import UserPolicy
from windfall.structs import replace

_NO_ZONE = "simulated"
"""Zone of machines that are not on offer."""


def play(setup: SimulationSetup, policy: str | UserPolicy, seed: int) -> ReadHistory:
    """Play a history: trial 0 of a simulation with this seed.

    Args:
        setup: the job and its scenario.
        policy: the saving policy.
        seed: of the history.

    Raises:
        Infeasible: the job can never finish.
    """
    name = policy if isinstance(policy, str) else policy.name
    injected = None if isinstance(policy, str) else policy
    built, offer = setup.built, setup.offer
    scenario = built.scenario if injected else replace(built.scenario, policy=name)
    # Where the price is not the offer's own, or there is no offer, the on-demand price is unknown: nothing to compare with.
    sold = scenario.price_usd_per_hour == offer.price_usd_per_hour < offer.on_demand_usd_per_hour
    on_demand = offer.on_demand_usd_per_hour if sold else 0.0
    pool = engine.scenario_pool(scenario, offer.machine_type, offer.zone or _NO_ZONE, on_demand)
    found = engine.history(scenario, seed=seed, policy=injected, job_id=setup.name, pool=pool)
    return simulated_history.read(found, built, f"{setup.head}, policy {name}", seed)


def show(history: ReadHistory, *, machines: bool, plot: Path | None, json_: bool) -> None:
    """Print a history.

    Args:
        history: to show.
        machines: explain the decisions of the machines instead of the controller's.
        plot: file of the picture; None for none.
        json_: print one JSON object.
    """
    if plot is not None:
        machine_timeline.draw(history.bill, history.run, plot, note=f"simulated, seed {history.seed}: ")
    if json_:
        print(json.dumps(cost_page.as_json(history.bill, history.run) | {"seed": history.seed}))
        return
    screen = console()
    screen.print(simulated_history.render(history, machines=machines, columns=screen.width))
    if plot is not None:
        screen.print(f"timeline: {plot}")
