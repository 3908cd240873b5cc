"""`windfall simulate --history`: play one history with the event engine, and show it as `windfall cost` and `explain` would."""

from __future__ import annotations

import json
from pathlib import Path

from windfall.market import Offer
from windfall.report import cost_page, machine_timeline, simulated_history
from windfall.report.console import console
from windfall.simulation import engine
from windfall.simulation.scenario_from_job import BuiltScenario
from windfall.simulation.simulated_policies import UserPolicy
from windfall.structs import Struct, replace

PLOTS = (".png", ".svg", ".pdf")


class HistoryRequest(Struct, frozen=True):
    """What the user asked to see.

    Attributes:
        seed: of the history.
        machines: explain the machines' decisions.
        plot: file of the picture.
        json_: print data.
    """

    seed: int
    machines: bool
    plot: Path | None
    json_: bool


def show(
    request: HistoryRequest, name: str, head: str, built: BuiltScenario, offer: Offer, *, policy: str | UserPolicy
) -> None:
    """Play a history and print it.

    Args:
        request: what to show.
        name: of the job.
        head: the job in one line.
        built: its scenario.
        offer: the machines.
        policy: the saving policy.

    Raises:
        Infeasible: the job can never finish.
    """
    own = None if isinstance(policy, str) else policy
    built = replace(built, scenario=replace(built.scenario, policy=policy if isinstance(policy, str) else policy.name))
    pool = engine.scenario_pool(built.scenario, offer.machine_type, offer.zone, offer.on_demand_usd_per_hour)
    found = engine.history(built.scenario, seed=request.seed, policy=own, job_id=name, pool=pool)
    history = simulated_history.read(found)
    if request.plot is not None:
        machine_timeline.draw(history.bill, history.run, request.plot)
    if request.json_:
        print(json.dumps(cost_page.as_json(history.bill, history.run) | {"seed": request.seed}))
        return
    screen = console()
    page = simulated_history.render(
        head, history, built, seed=request.seed, machines=request.machines, columns=screen.width
    )
    screen.print(page)
    if request.plot is not None:
        screen.print(f"timeline: {request.plot}")
