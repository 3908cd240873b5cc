"""`windfall plan` and `windfall run`: from a job file to a plan, and to a job that is followed to its end."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.prompt import Confirm

from windfall import wiring
from windfall.cli.client import connect
from windfall.cli.controller import local_user
from windfall.cli.exec import absolute_url, state_folder
from windfall.cli.follow import follow
from windfall.errors import Misuse
from windfall.jobs import Injection, Job
from windfall.report.plan import plan_lines
from windfall.spec.jobfile import JobFile, parse_injection, to_job
from windfall.spec.loading import load
from windfall.storage import bundle
from windfall.storage.objects import check_url
from windfall.terms import Bundle

Json = Annotated[bool, Parameter(name="--json", negative="")]
_RUNS = "runs"


@dataclass(frozen=True, slots=True)
class _Draft:
    """A job file on its way to a job."""

    file: JobFile
    job_id: str
    run_url: str
    injection: Injection | None

    def job(self, packed: Bundle | None = None, code: str | None = None) -> Job:
        return to_job(
            self.file,
            job_id=self.job_id,
            user=local_user(),
            run_url=self.run_url,
            code=code,
            bundle=packed,
            injection=self.injection,
        )


def plan(
    file: Path,
    *,
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    inject: str | None = None,
    state: Path | None = None,
    json_: Json = False,
) -> None:
    """Say what a job would cost and when it would be done; nothing is ever bought.

    Example: `windfall plan job.yaml`

    Args:
        file: the job file.
        set_: replace a value of the file: `--set resources.zone=zone-b`.
        inject: rehearse preemptions: "mttp=90s+300s,seed=7,notice=10s".
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object.
    """
    folder = state or state_folder()
    draft = _draft(file, set_, inject, folder)
    with connect(folder, start=True) as client:
        told = client.plan(draft.job())
    if json_:
        print(json.dumps(told))
    else:
        _show(draft, told)


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

    Example: `windfall run job.yaml`

    Args:
        file: the job file.
        yes: do not ask.
        detach: do not follow; print the job's name.
        set_: replace a value of the file: `--set resources.zone=zone-b`.
        inject: rehearse preemptions: "mttp=90s+300s,seed=7,notice=10s".
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object a line.
    """
    folder = state or state_folder()
    draft = _draft(file, set_, inject, folder)
    secrets = _secrets(draft.file)
    with connect(folder, start=True) as client:
        told = client.plan(draft.job())
        if json_:
            print(json.dumps({"plan": told}), flush=True)
        else:
            _show(draft, told)
        if not yes and not _confirmed(json_=json_):
            return 0
        job = _with_code(draft)
        client.submit(job, secrets)
        if detach:
            print(json.dumps({"job_id": job.job_id, "run_url": job.run_url}) if json_ else job.job_id)
            return 0
        return follow(client, job.job_id, json_=json_)


def _draft(file: Path, sets: tuple[str, ...], inject: str | None, state: Path) -> _Draft:
    overrides = {}
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise Misuse(f"--set: {text!r} is not key=value; for example --set resources.zone=zone-b")
        overrides[key] = value
    read = load(str(file), overrides=overrides, warn=lambda sentence: print(f"windfall: {sentence}", file=sys.stderr))
    job_id = f"{read.name}-{wiring.new_nonce()[:6]}"
    store = read.checkpoint.store or f"file://{(state / _RUNS).absolute()}"
    base = absolute_url(store).rstrip("/")
    check_url(base)
    return _Draft(read, job_id, f"{base}/{job_id}", None if inject is None else parse_injection(inject))


def _secrets(file: JobFile) -> dict[str, str]:
    """Return the values of the job's secrets from this environment."""
    values = {}
    for name in file.secrets:
        if name not in os.environ:
            raise Misuse(f"secret {name} has no value here: export {name} before `windfall run`")
        values[name] = os.environ[name]
    return values


def _show(draft: _Draft, told: dict[str, object]) -> None:
    console = Console(highlight=False)
    for line in plan_lines(draft.job(), told):
        console.print(line, markup=False)


def _confirmed(*, json_: bool) -> bool:
    if json_ or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse("nobody is here to say yes to spending: add --yes (-y) if the plan above may be carried out")
    return Confirm.ask("Start?", default=False)


def _with_code(draft: _Draft) -> Job:
    """Bring the code to the run's store; its digest makes measurements of the same code known again."""
    if draft.file.workdir is None:
        return draft.job()
    reader = wiring.open_reader(draft.run_url)
    packed = reader.run(bundle.store(bundle.pack(draft.file.workdir)))
    code = reader.run(bundle.store_listing(bundle.listing(draft.file.workdir)))
    return draft.job(packed, code)
