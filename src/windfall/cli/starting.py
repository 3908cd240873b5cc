"""From a job file to a job: read, checked, planned, its code brought to the store."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windfall import wiring
from windfall.cli import client
from windfall.cli.exec import absolute_url
from windfall.cli.places import local_user
from windfall.errors import ControllerError, Misuse
from windfall.jobs import Injection, Job
from windfall.report.code import code_told, code_warnings
from windfall.report.plan import plan_lines
from windfall.spec.jobfile import JobFile, parse_injection, to_job
from windfall.spec.loading import load
from windfall.storage import bundle
from windfall.storage.bundle import Packed
from windfall.storage.objects import check_url, folder_url
from windfall.storage.seeding import seed
from windfall.terms import Bundle

_RUNS = "runs"
_FOLDER = "file://"


@dataclass(frozen=True, slots=True)
class Draft:
    """A job file on its way to a job."""

    file: JobFile
    job_id: str
    run_url: str
    injection: Injection | None
    code: Packed | None = None

    def lines(self, told: dict[str, Any], *, whole: bool, starts: bool) -> Iterator[str]:
        """Yield a plan of this job as lines; if it `starts`, with the place of its run."""
        return plan_lines(self.job(), told, whole=whole, starts=starts)

    def complete(self, told: dict[str, Any]) -> None:
        """Add to a plan what only this side knows: the code that would travel, and what speaks against it."""
        told["code"] = code_told(self.code)
        told["warnings"] = [*told["warnings"], *code_warnings(self.file.run, self.file.setup, self.code)]

    def job(self, packed: Bundle | None = None, code: str | None = None) -> Job:
        """Return the job, with its code if that has been brought to the store."""
        return to_job(
            self.file,
            job_id=self.job_id,
            user=local_user(),
            run_url=self.run_url,
            code=code,
            bundle=packed,
            injection=self.injection,
        )


def read(file: Path, sets: tuple[str, ...], inject: str | None, state: Path, *, pack: bool = False) -> Draft:
    """Read a job file and name the job.

    Args:
        file: the job file.
        sets: `key=value` that win over it.
        inject: an injection as text.
        state: this installation's folder, where runs lie that name no store.
        pack: the job is to run: pack its code too, as it will travel, and let a team's controller say where the run lies.

    Raises:
        Misuse: something in them is wrong; the message names the place.
        ControllerError: a team's controller is asked for its store, and does not say.
    """
    overrides = {}
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise Misuse(f"--set: {text!r} is not key=value; for example --set resources.zone=zone-b")
        overrides[key] = value
    found = load(str(file), overrides=overrides, warn=lambda sentence: print(f"windfall: {sentence}", file=sys.stderr))
    job_id = f"{found.name}-{wiring.new_nonce()[:6]}"
    store = found.checkpoint.store or folder_url(str(state / _RUNS))
    base = absolute_url(store).rstrip("/")
    check_url(base)
    if pack and client.is_teams():
        base = _teams_store(found.checkpoint.store, base, state)
    code = None if found.workdir is None or not pack else bundle.pack_for_others(found.workdir)
    return Draft(found, job_id, f"{base}/{job_id}", None if inject is None else parse_injection(inject), code)


def _teams_store(named: str | None, base: str, state: Path) -> str:
    """Return where a run under a team's controller lies: as the job file says, else where that controller keeps runs.

    Raises:
        Misuse: it would be a folder that the controller, or this machine, does not reach.
    """
    if named is not None:
        if base.startswith(_FOLDER):
            raise Misuse(
                f"checkpoint.store: {named} is a folder of this machine, which the controller and its machines do not reach: "
                "name an object store (s3://..., gs://..., az://...), or leave it out for the controller's own"
            )
        return base
    with client.connect(state, start=False) as controller:
        status = controller.status()
    if not status.store:
        raise ControllerError("the controller names no store for runs: name one in the job file (checkpoint.store)")
    if status.store.startswith(_FOLDER) and status.host != socket.gethostname():
        raise Misuse(
            f"checkpoint.store is missing: the controller keeps runs in a folder of {status.host}, which this machine does "
            "not reach; name an object store, or have the controller started with `windfall serve --store s3://...`"
        )
    return status.store


def secrets_of(file: JobFile) -> dict[str, str]:
    """Return the values of the job's secrets from this environment.

    Raises:
        Misuse: one of them is not there.
    """
    values = {}
    for name in file.secrets:
        if name not in os.environ:
            raise Misuse(f"secret {name} has no value here: export {name} before `windfall run`")
        values[name] = os.environ[name]
    return values


def with_code(draft: Draft) -> Job:
    """Bring code and first checkpoint to the run's store; the code's digest makes measurements of the same code known again."""
    if draft.file.checkpoint.from_ is not None:
        source = wiring.open_reader(absolute_url(draft.file.checkpoint.from_))
        target = wiring.open_reader(draft.run_url)
        seed(source.store, target.store, target.clock, wiring.new_nonce)
    if draft.code is None:
        return draft.job()
    reader = wiring.open_reader(draft.run_url)
    packed = reader.run(bundle.store(draft.code.data))
    code = reader.run(bundle.store_listing(bundle.listing(draft.code.folder)))
    return draft.job(packed, code)
