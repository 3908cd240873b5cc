"""From a job file to a job: read it, check it, plan it, upload its code."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from windfall.cli import bag_history, client
from windfall.cli.bag_history import CarriedItem
from windfall.cli.local_zone import local_time
from windfall.cli.locations import absolute_url, local_user
from windfall.errors import ControllerError, Misuse
from windfall.jobs import Injection, Job, RuntimeSpec
from windfall.linux.clock import SystemClock
from windfall.linux.random_names import new_nonce
from windfall.report import bag_words
from windfall.report.plan_report import code_json, code_warnings, plan_lines
from windfall.report.queue_report import start_text
from windfall.spec import bag_rows, deadline_words, fields
from windfall.spec.bag_rows import BagRows
from windfall.spec.deadline_words import Deadline
from windfall.spec.job_file import JobFile, parse_injection, to_job
from windfall.spec.job_loader import load
from windfall.storage import bundle, object_stores
from windfall.storage.acquire_run import clone_checkpoint
from windfall.storage.bundle import PackedBundle
from windfall.storage.object_stores import check_url, folder_url
from windfall.structs import Struct, replace
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
        file: its job file, read from `path`.
        job_id, run_url: its id, and where its run will be stored.
        injection: rehearsed preemptions.
        read_at: when the file was read, in the user's zone: a deadline such as `tomorrow 9:00` is understood as of then.
        code: what is uploaded with it.
        rows: the items of its bag; None without one.
        carried: those that earlier runs have done.
    """

    file: JobFile
    path: Path
    job_id: str
    run_url: str
    injection: Injection | None
    read_at: datetime
    code: PackedBundle | None = None
    rows: BagRows | None = None
    carried: tuple[CarriedItem, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether it is a bag whose items are all done."""
        return self.rows is not None and len(self.carried) == len(self.rows.rows)

    @property
    def items_code(self) -> str:
        """Digest of the code that its items run: without the job file, and without the file with their parameters."""
        rows = () if self.file.bag is None or self.file.bag.rows is None else (self.file.bag.rows,)
        return bag_history.code_digest(self.code, (str(self.path), *rows))

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
        plan["warnings"] = [*plan["warnings"], *self._code_warnings()]
        plan["deadline"] = None
        if (deadline := self.deadline) is not None:
            plan["deadline"] = {"written": deadline.text, "at": deadline.at.isoformat(), "says": deadline.says}
            plan["warnings"] += [deadline.note] if deadline.note else []

    def _code_warnings(self) -> Iterator[str]:
        # Other runtimes keep the state themselves.
        saves = self.rows is None and (self.file.runtime or RuntimeSpec()).name == RuntimeSpec().name
        yield from code_warnings(self.file.run, self.file.setup, self.code, saves=saves)
        yield from bag_words.warnings(self.job(), self.file.run, self.code)

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
            rows=self.rows,
            carried=len(self.carried),
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
        warn=_warn,
        now=now,
        options={key: option for key, (option, _) in limits.items()},
    )
    return draft_of(found, file, inject, state, now=now, pack=pack)


def draft_of(found: JobFile, file: Path, inject: str | None, state: Path, *, now: datetime, pack: bool) -> Draft:
    """Give a job that was read an id; arguments and errors are those of `read`, `now` is when it was read."""
    job_id = f"{found.name}-{new_nonce()[:6]}"
    store = found.checkpoint.store or folder_url(str(state / _RUNS))
    base = absolute_url(store).rstrip("/")
    check_url(base)
    if pack and client.uses_team_controller():
        base = _team_store(found.checkpoint.store, base, state)
    code = None if found.workdir is None or not pack else bundle.pack_for_others(found.workdir)
    rows = None if found.bag is None else bag_rows.rows_of(found.bag, _warn)
    injection = None if inject is None else parse_injection(inject)
    return Draft(found, file, job_id, f"{base}/{job_id}", injection, now, code, rows)


def with_history(draft: Draft, *, limit: int | None, again: bool) -> Draft:
    """Return a draft of a bag that runs only what no earlier run of it has done; others are returned as they are.

    Args:
        draft: the job.
        limit: the most items to run, the first ones in the order in which they would run; None for all.
        again: run also what is done.

    Raises:
        Misuse: a limit that is none, or for a job without a bag.
        StoreError: the store with earlier runs does not answer.
    """
    rows, base = draft.rows, draft.run_url.rpartition("/")[0]
    if limit is not None and limit < 1:
        raise Misuse(f"--limit must be at least 1, not {limit}")
    if rows is None:
        if limit is not None or again:
            raise Misuse(f"{'--again' if again else '--limit'} is for a job with the block bag")
        return draft
    history = bag_history.BagHistory() if again else bag_history.done_before(draft.file, rows, draft.items_code, base)
    carried = history.carried
    if history.other_code:
        _warn(f"the code has changed since {history.other_code}: no item is carried over")
    if carried:
        left = len(rows.rows) - len(carried)
        runs = sorted({one.run for one in carried})
        where = ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
        _warn(f"{len(carried)} of {len(rows.rows)} items were done by {where}; {left} to run (--again runs all)")
        if left and limit is not None:
            return replace(draft, rows=bag_history.first_rows(draft.file, rows, carried, limit))
    elif limit is not None:
        return replace(draft, rows=bag_history.first_rows(draft.file, rows, (), limit))
    return replace(draft, carried=carried)


def _warn(message: str) -> None:
    print(f"windfall: {message}", file=sys.stderr)


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
    if draft.rows is not None:
        store = object_stores.open_store(draft.run_url)
        for key, data in draft.rows.objects().items():
            store.put(key, data)
        place, _, run = draft.run_url.rpartition("/")
        at = SystemClock().wall_time()
        bag_history.store(object_stores.open_reader(draft.run_url), draft.carried, place, new_nonce(), at)
        steps = bag_history.remember(draft.file, draft.rows, draft.items_code, run, at)
        object_stores.open_reader(place).run(steps)
    if draft.code is None:
        return draft.job()
    reader = object_stores.open_reader(draft.run_url)
    packed = reader.run(bundle.store(draft.code.data))
    code = reader.run(bundle.store_listing(bundle.listing(draft.code.folder)))
    return draft.job(packed, code)
