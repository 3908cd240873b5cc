"""`windfall plan` and `windfall run`: from a job file to a plan, and to a job that is followed to its end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.prompt import Confirm

from windfall.cli.locations import state_folder
from windfall.cli.options import Detach, InjectSpec, Json, SetValues, StateFolder, Switch, Yes
from windfall.errors import Infeasible, Misuse
from windfall.extras import for_jobs
from windfall.linux.clock import SystemClock
from windfall.policies.planning import forecasts
from windfall.policies.policy_registry import ELASTIC
from windfall.report import plan_plot
from windfall.report.console import console

if TYPE_CHECKING:
    from windfall.cli.client import Client
    from windfall.cli.job_submit import Draft
    from windfall.control.planner import Planner


def plan(
    job_file: Path,
    /,
    *,
    set_: SetValues = (),
    budget: str | None = None,
    deadline: str | None = None,
    loss: str | None = None,
    inject: InjectSpec = None,
    all_: Switch = False,
    plot: Annotated[Path | None, Parameter(name="--plot", metavar="FOLDER")] = None,
    state: StateFolder = None,
    json_: Json = False,
) -> None:
    """Show what a job would cost and when it would finish.  Never buys anything.

    Example: `windfall plan job.yaml`

    Args:
        job_file: the job file (YAML).
        set_: override a value of the job file: `--set resources.zone=zone-b`.  Repeatable.
        budget: the most to spend [USD], in place of the job file's: 40.
        deadline: by when the job must be done, in place of the job file's: 12h from now, or a time in your zone, such as
            "fri 9:00", "tomorrow 9:00", 18:00 or 2027-01-31T18:00; another zone behind it: "fri 9:00 Europe/Berlin".
        loss: the training loss to reach, in place of the job file's; for runtimes that predict how much work that takes.
        inject: plan with rehearsed preemptions: "mttp=90s+300s,seed=7,notice=10s".
        all_: also show the other offers, and every number with its source.
        plot: draw cost against finish of what was compared into this folder, with light and dark background.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object.
    """
    with for_jobs():
        from windfall.cli import client, job_submit, ray_cluster  # noqa: PLC0415 - their packages are an extra
    folder = state or state_folder()
    options = job_submit.ObjectiveOptions(budget, deadline, loss)
    draft = job_submit.read(job_file, set_, inject, folder, options=options, pack=True)
    ray_cluster.check_cluster(draft.file)
    draft = job_submit.with_history(draft, limit=None, again=False)
    if draft.is_done:
        _log("all items are done: nothing to plan")
        if json_:
            print(json.dumps({"items": len(draft.carried), "carried": len(draft.carried)}))
        return
    with client.planner(folder) as controller:
        planned = _planned(controller, draft)
    if plot is not None:
        for path in plan_plot.draw(planned, draft.file.name or "job", plot):
            _log(f"wrote {path}")
    if json_:
        print(json.dumps(planned))
    else:
        _show(draft, planned, whole=all_)


def run(
    job_file: Path,
    /,
    *,
    yes: Yes = False,
    detach: Detach = False,
    set_: SetValues = (),
    budget: str | None = None,
    deadline: str | None = None,
    loss: str | None = None,
    inject: InjectSpec = None,
    limit: Annotated[int | None, Parameter(metavar="N")] = None,
    again: Switch = False,
    state: StateFolder = None,
    json_: Json = False,
) -> int:
    """Run a job on machines that Windfall orders, and replaces when they are preempted.

    Shows the plan, asks for confirmation, then follows the job to its end.  Ctrl-C detaches; the job keeps running.

    Exit codes: 0 done, 1 failed, 2 wrong job file or command line, 3 no offer meets the job, 4 stopped by its budget
    or max_duration, 6 stopped by a user.

    Example: `windfall run job.yaml`

    Args:
        job_file: the job file (YAML).
        yes: start without asking.
        detach: return once the job is submitted, and print only its id on standard output.
        set_: override a value of the job file: `--set resources.zone=zone-b`.  Repeatable.
        budget: the most to spend [USD], in place of the job file's: 40.
        deadline: by when the job must be done, in place of the job file's: 12h from now, or a time in your zone, such as
            "fri 9:00", "tomorrow 9:00", 18:00 or 2027-01-31T18:00; another zone behind it: "fri 9:00 Europe/Berlin".
        loss: the training loss to reach, in place of the job file's; for runtimes that predict how much work that takes.
        inject: rehearse preemptions: "mttp=90s+300s,seed=7,notice=10s".
        limit: of a bag, run only the first N items in the order in which they would run.
        again: of a bag, run also the items that an earlier run of the same bag has done.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object per line.
    """
    with for_jobs():
        from windfall.cli import client, job_submit, ray_cluster  # noqa: PLC0415 - their packages are an extra
        from windfall.cli.follow import follow  # noqa: PLC0415
    folder = state or state_folder()
    options = job_submit.ObjectiveOptions(budget, deadline, loss)
    draft = job_submit.read(job_file, set_, inject, folder, options=options, pack=True)
    ray_cluster.check_cluster(draft.file)
    draft = job_submit.with_history(draft, limit=limit, again=again)
    if draft.is_done:
        _log("all items are done: nothing to run")
        if json_:
            print(json.dumps({"job_id": None, "items": len(draft.carried), "carried": len(draft.carried)}))
        return 0
    secrets = job_submit.secrets_of(draft.file)
    with client.connect(folder, start=True) as controller:
        planned = _planned(controller, draft)
        if json_:
            print(json.dumps({"plan": planned}), flush=True)
        else:
            _show(draft, planned, whole=False, starts=True, detached=detach)
        if not yes and not _confirmed(json_=json_):
            return 0
        job = job_submit.upload_code(draft)
        controller.submit(job, secrets, forecasts.of_plan(job, planned, SystemClock().wall_time()))
        if detach:
            print(json.dumps({"job_id": job.job_id, "run_url": job.run_url}) if json_ else job.job_id)
            return 0
        return follow(controller, job.job_id, json_=json_)


def _planned(controller: Client | Planner, draft: Draft) -> dict[str, Any]:
    """Return the plan of a job as JSON, with its odds and its code.

    Raises:
        Infeasible: no offer meets the job; the message also has the deadline as it was understood.
    """
    with for_jobs():
        from windfall.simulation import plan_odds  # noqa: PLC0415 - its packages are an extra
    job = draft.job()
    try:
        planned = controller.plan(job)
    except Infeasible as error:
        if (deadline := draft.deadline) is None:
            raise
        raise Infeasible(f"{error} (deadline: {deadline.says})") from error
    planned["odds"] = plan_odds.of_plan(controller, job, planned, _log)
    if job.runtime.name == ELASTIC:
        from windfall.cli import plan_shapes  # noqa: PLC0415 - needs numpy

        plan_shapes.complete(job, planned)
    draft.complete(planned)
    return planned


def _log(message: str) -> None:
    print(f"windfall: {message}", file=sys.stderr)


def _show(draft: Draft, planned: dict[str, Any], *, whole: bool, starts: bool = False, detached: bool = False) -> None:
    """Print a plan; with --detach on standard error, because standard output holds the job's id alone."""
    for line in draft.lines(planned, whole=whole, starts=starts):
        print(line, file=sys.stderr if detached else sys.stdout)
    sys.stdout.flush()


def _confirmed(*, json_: bool) -> bool:
    if json_ or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse("not a terminal: pass --yes (-y) to approve the cost")
    return Confirm.ask("Start?", default=False, console=console())
