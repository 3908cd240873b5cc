"""From a job file to a job: read it, check it, plan it, upload its code."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from windfall.cli import client
from windfall.cli.local_zone import local_time
from windfall.cli.locations import absolute_url, local_user
from windfall.errors import ControllerError, Misuse
from windfall.jobs import Injection, Job
from windfall.linux.clock import SystemClock
from windfall.linux.random_names import new_nonce
from windfall.report.plan_report import code_json, code_warnings, plan_lines
from windfall.report.queue_report import start_text
from windfall.spec import deadline_words, fields
from windfall.spec.deadline_words import Deadline
from windfall.spec.job_file import JobFile, parse_injection, to_job
from windfall.spec.job_loader import load
from windfall.storage import bundle, object_stores
from windfall.storage.acquire_run import clone_checkpoint
from windfall.storage.bundle import PackedBundle
from windfall.storage.object_stores import check_url, folder_url
from windfall.structs import Struct
from windfall.terms import Bundle, Seconds

_RUNS = "runs"
_FOLDER = "file://"


class ObjectiveOptions(Struct, frozen=True):
    """A job's limits from the command line, as written; None leaves the job file's.

    Attributes:
        budget: the most to spend [USD].
        deadline: by when it must be done: a duration, or a time in the user's zone.
        loss: the training loss to reach.
    """

    budget: str | None = None
    deadline: str | None = None
    loss: str | None = None


class Draft(Struct, frozen=True):
    """A job that is not submitted yet.

    Attributes:
        file: its job file.
        job_id, run_url: its id, and where its run will be stored.
        injection: rehearsed preemptions.
        read_at: when the file was read, in the user's zone: a deadline such as `tomorrow 9:00` is understood as of then.
        code: what is uploaded with it.
    """

    file: JobFile
    job_id: str
    run_url: str
    injection: Injection | None
    read_at: datetime
    code: PackedBundle | None = None

    @property
    def deadline(self) -> Deadline | None:
        """How the deadline was understood; None if there is none."""
        words = self.file.objective.deadline
        return None if words is None else deadline_words.resolve(words, self.read_at)

    def lines(self, plan: dict[str, Any], *, whole: bool, starts: bool) -> Iterator[str]:
        """Yield a plan of this job as lines; if it `starts`, with the URL of its run."""
        return plan_lines(self.job(), plan, whole=whole, starts=starts)

    def complete(self, plan: dict[str, Any]) -> None:
        """Add to a plan what only this side knows: times in the user's zone, the code that would be uploaded, warnings."""
        if says := start_text(plan, SystemClock().wall_time(), local_time):
            plan["start"] = {"says": says}
        plan["code"] = code_json(self.code)
        plan["warnings"] = [*plan["warnings"], *code_warnings(self.file.run, self.file.setup, self.code)]
        plan["deadline"] = None
        if (deadline := self.deadline) is not None:
            plan["deadline"] = {"written": deadline.text, "at": deadline.at.isoformat(), "says": deadline.says}
            plan["warnings"] += [deadline.note] if deadline.note else []

    def job(self, packed: Bundle | None = None, code: str | None = None) -> Job:
        """Return the job, with its code if that is uploaded; a deadline that is a time counts from now on.

        Raises:
            Misuse: its deadline has passed since its file was read.
        """
        left_s = None
        if (deadline := self.deadline) is not None and deadline.length_s is None:
            left_s = Seconds(deadline.at.timestamp() - SystemClock().wall_time())
            if left_s <= 0.0:
                raise Misuse(f"objective.deadline has passed: it was {deadline.says}")
        return to_job(
            self.file,
            job_id=self.job_id,
            user=local_user(),
            run_url=self.run_url,
            code=code,
            bundle=packed,
            injection=self.injection,
            deadline_s=left_s,
        )


def read(
    file: Path,
    sets: tuple[str, ...],
    inject: str | None,
    state: Path,
    *,
    options: ObjectiveOptions | None = None,
    pack: bool = False,
) -> Draft:
    """Read a job file and give the job an id.

    Args:
        file: the job file.
        sets: `key=value` that override it.
        inject: an injection as text.
        state: this installation's folder, which stores runs whose job file names no store.
        options: limits that override the job file's.
        pack: the job is to run: pack its code too, and ask a team's controller where its run is stored.

    Raises:
        Misuse: something in them is wrong; the message says where.
        ControllerError: a team's controller has no store for runs.
    """
    now = local_time(SystemClock().wall_time())
    overrides = {}
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise Misuse(f"--set: must be KEY=VALUE, for example --set resources.zone=zone-b, not {text!r}")
        overrides[key] = value
    limits = {key: (option, value) for option, key, value in _limits(options or ObjectiveOptions(), now)}
    found = load(
        str(file),
        overrides=overrides | {key: value for key, (_, value) in limits.items()},
        warn=lambda message: print(f"windfall: {message}", file=sys.stderr),
        now=now,
        options={key: option for key, (option, _) in limits.items()},
    )
    job_id = f"{found.name}-{new_nonce()[:6]}"
    store = found.checkpoint.store or folder_url(str(state / _RUNS))
    base = absolute_url(store).rstrip("/")
    check_url(base)
    if pack and client.uses_team_controller():
        base = _team_store(found.checkpoint.store, base, state)
    code = None if found.workdir is None or not pack else bundle.pack_for_others(found.workdir)
    return Draft(found, job_id, f"{base}/{job_id}", None if inject is None else parse_injection(inject), now, code)


def _limits(options: ObjectiveOptions, now: datetime) -> Iterator[tuple[str, str, str]]:
    """Yield the limits of the command line: the option, the key of the job file that it overrides, and the value.

    Raises:
        Misuse: one of them is wrong; the message says which.
    """
    if options.budget is not None:
        _checked("--budget", fields.money, _number(options.budget))
        yield "--budget", "objective.budget_usd", options.budget
    if options.deadline is not None:
        _checked("--deadline", lambda text: deadline_words.resolve(fields.deadline(text), now), options.deadline)
        yield "--deadline", "objective.deadline", options.deadline
    if options.loss is not None:
        _checked("--loss", fields.loss, options.loss)
        yield "--loss", "objective.loss", options.loss


def _number(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def _checked(option: str, check: Callable[[object], object], value: object) -> None:
    try:
        check(value)
    except ValueError as error:
        raise Misuse(f"{option} {error}") from error


def _team_store(named: str | None, base: str, state: Path) -> str:
    """Return where a run under a team's controller is stored: the job file's store, or else the controller's.

    Raises:
        Misuse: it would be a folder that the controller, or this machine, cannot reach.
    """
    if named is not None:
        if base.startswith(_FOLDER):
            raise Misuse(
                f"checkpoint.store: {named} is a folder on this machine, which the controller and its machines cannot "
                "reach: use an object store (s3://..., gs://..., az://...), or leave the key out to use the controller's"
            )
        return base
    with client.connect(state, start=False) as controller:
        status = controller.status()
    if not status.store:
        raise ControllerError("the controller has no store for runs: set checkpoint.store in the job file")
    if status.store.startswith(_FOLDER) and status.host != socket.gethostname():
        raise Misuse(
            f"checkpoint.store is missing: the controller keeps runs in a folder on {status.host}, which this machine "
            "cannot reach; set an object store, or start the controller with `windfall serve --store s3://...`"
        )
    return status.store


def secrets_of(file: JobFile) -> dict[str, str]:
    """Return the values of the job's secrets from this environment.

    Raises:
        Misuse: one of them is not set.
    """
    values = {}
    for name in file.secrets:
        if name not in os.environ:
            raise Misuse(f"secret {name} is not set: export {name}, then run `windfall run` again")
        values[name] = os.environ[name]
    return values


def upload_code(draft: Draft) -> Job:
    """Upload code and initial checkpoint to the run's store; the digest links measurements to the code version."""
    if draft.file.checkpoint.from_ is not None:
        source = object_stores.open_reader(absolute_url(draft.file.checkpoint.from_))
        target = object_stores.open_reader(draft.run_url)
        clone_checkpoint(source.store, target.store, target.clock, new_nonce)
    if draft.code is None:
        return draft.job()
    reader = object_stores.open_reader(draft.run_url)
    packed = reader.run(bundle.store(draft.code.data))
    code = reader.run(bundle.store_listing(bundle.listing(draft.code.folder)))
    return draft.job(packed, code)
