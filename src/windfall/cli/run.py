"""`windfall plan` and `windfall run`: from a job file to a plan, and to a job that is followed to its end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.prompt import Confirm

from windfall.cli.exec import state_folder
from windfall.cli.named import extra
from windfall.errors import Misuse
from windfall.report.showing import console

if TYPE_CHECKING:
    from windfall.cli.starting import Draft

Json = Annotated[bool, Parameter(name="--json", negative="")]


def plan(
    file: Path,
    *,
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    inject: str | None = None,
    all_: Annotated[bool, Parameter(name="--all", negative="")] = False,
    state: Path | None = None,
    json_: Json = False,
) -> None:
    """Say what a job would cost and when it would be done; nothing is ever bought.

    Example: `windfall plan job.yaml`

    Args:
        file: the job file.
        set_: replace a value of the file: `--set resources.zone=zone-b`.
        inject: rehearse preemptions: "mttp=90s+300s,seed=7,notice=10s".
        all_: the other offers too, what all this rests on, and what is unknown, one by one.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object.
    """
    with extra():
        from windfall.cli import client, odds, starting  # noqa: PLC0415 - their packages are an extra
    folder = state or state_folder()
    draft = starting.read(file, set_, inject, folder, pack=True)
    job = draft.job()
    with client.connect(folder, start=True) as controller:
        told = controller.plan(job)
        told["odds"] = odds.of_plan(controller, job, told)
        draft.complete(told)
    if json_:
        print(json.dumps(told))
    else:
        _show(draft, told, whole=all_)


def run(
    file: Path,
    *,
    yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False,
    detach: Annotated[bool, Parameter(name=("--detach", "-d"))] = False,
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    inject: str | None = None,
    state: Path | None = None,
    json_: Json = False,
) -> int:
    """Run a job on machines that are bought for it, and replaced when they are taken away.

    Shows the plan, asks, then follows the job to its end.  Ctrl-C detaches: the job goes on.

    Exit code 0: done.  1: failed.  2: a mistake in file or command line.  3: nothing that can be bought does it.  4: stopped.

    Example: `windfall run job.yaml`

    Args:
        file: the job file.
        yes: do not ask.
        detach: do not follow; print the job's id.
        set_: replace a value of the file: `--set resources.zone=zone-b`.
        inject: rehearse preemptions: "mttp=90s+300s,seed=7,notice=10s".
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object a line.
    """
    with extra():
        from windfall.cli import client, odds, starting  # noqa: PLC0415 - their packages are an extra
        from windfall.cli.follow import follow  # noqa: PLC0415
    folder = state or state_folder()
    draft = starting.read(file, set_, inject, folder, pack=True)
    secrets = starting.secrets_of(draft.file)
    with client.connect(folder, start=True) as controller:
        planned = draft.job()
        told = controller.plan(planned)
        told["odds"] = odds.of_plan(controller, planned, told)
        draft.complete(told)
        if json_:
            print(json.dumps({"plan": told}), flush=True)
        else:
            _show(draft, told, whole=False, starts=True, detached=detach)
        if not yes and not _confirmed(json_=json_):
            return 0
        job = starting.with_code(draft)
        controller.submit(job, secrets)
        if detach:
            print(json.dumps({"job_id": job.job_id, "run_url": job.run_url}) if json_ else job.job_id)
            return 0
        return follow(controller, job.job_id, json_=json_)


def _show(draft: Draft, told: dict[str, Any], *, whole: bool, starts: bool = False, detached: bool = False) -> None:
    """Print a plan; where the output is a job's id, for a script to take, the plan goes to people alone."""
    for line in draft.lines(told, whole=whole, starts=starts):
        print(line, file=sys.stderr if detached else sys.stdout)
    sys.stdout.flush()


def _confirmed(*, json_: bool) -> bool:
    if json_ or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse("nobody is here to say yes to spending: add --yes (-y) if the plan may be carried out")
    return Confirm.ask("Start?", default=False, console=console())
