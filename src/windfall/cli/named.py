"""What a user may call a run: its URL, or a job's id, name or beginning of its id."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windfall.cli.exec import state_folder
from windfall.cli.places import DATABASE
from windfall.control.service import JobView
from windfall.errors import Misuse
from windfall.extras import install
from windfall.spelling import nearest

if TYPE_CHECKING:
    from windfall.cli.client import Client

PACKAGES = ("fastapi", "httpx", "pydantic", "sqlalchemy", "starlette", "uvicorn", "yaml")
"""What the half that buys needs, and a machine that trains does not."""


def is_url(reference: str) -> bool:
    """Say whether a reference is a run's URL or folder; otherwise it names a job."""
    return "://" in reference or "/" in reference or os.path.isdir(reference)


@contextlib.contextmanager
def extra() -> Iterator[None]:
    """Turn a missing package of the half that buys into a sentence; put the imports that need it inside.

    Raises:
        Misuse: one of the packages is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in PACKAGES:
            raise
        raise Misuse(
            f"jobs need the package {package}, which is not installed here: {install('control')}; runs that are "
            "named by their URL need nothing more"
        ) from error


def any_jobs(state: Path | None) -> bool:
    """Say whether there may be jobs: a team's controller is named, or this user's has been here."""
    return "WINDFALL_CONTROLLER" in os.environ or ((state or state_folder()) / DATABASE).exists()


def controller(state: Path | None) -> Client:
    """Reach this user's controller; an embedded one that has jobs and does not run is started.

    Raises:
        Misuse: there are no jobs here, or a package is missing.
    """
    with extra():
        from windfall.cli.client import connect  # noqa: PLC0415 - its packages are an extra
    folder = state or state_folder()
    if not any_jobs(state):
        raise Misuse(
            f"there are no jobs here (state folder {folder}): `windfall run job.yaml` starts one; a run of `windfall exec` "
            "is named by its URL"
        )
    return connect(folder, start=True)


def find(client: Client, reference: str) -> JobView:
    """Return the job that a user means, with its details.

    Args:
        client: of the controller.
        reference: an id; a name, of which the newest job is meant; or how an id begins, if only one does.

    Raises:
        Misuse: no job is called so, or more than one id begins so.
    """
    return client.job(_chosen(client.jobs(), reference).job_id)


def _chosen(views: Sequence[JobView], reference: str) -> JobView:
    for view in views:
        if view.job_id == reference:
            return view
    if named := sorted((view for view in views if view.name == reference), key=lambda view: view.created):
        if len(named) > 1:
            print(
                f"windfall: {len(named)} jobs are called {reference}; this is the newest, {named[-1].job_id}",
                file=sys.stderr,
            )
        return named[-1]
    begun = [view for view in views if reference and view.job_id.startswith(reference)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        shown = ", ".join(view.job_id for view in begun[:4])
        raise Misuse(
            f"{len(begun)} jobs begin with {reference}: {shown}{', ...' if len(begun) > 4 else ''}; write more of it"
        )
    ids = [view.job_id for view in views]
    hint = nearest(reference, ids) if ids else "there are none yet"
    raise Misuse(f"there is no job {reference!r}; {hint} (`windfall ps` lists jobs; a run's URL has a / in it)")


def url_of(reference: str, state: Path | None) -> str:
    """Return the URL of the run that a user means, by whatever it is called.

    Raises:
        Misuse: it is a job's run, and was deleted.
    """
    if is_url(reference):
        return reference
    with controller(state) as client:
        view = find(client, reference)
    if view.run_deleted:
        raise Misuse(deleted(view))
    return view.run_url


def deleted(view: JobView) -> str:
    """Say that a job's run was deleted, and what is left of it."""
    kept = f"what {view.job_id} cost is kept (`windfall cost {view.job_id}`)"
    return f"the run of {view.job_id} was deleted, with its checkpoints, results and output; {kept}"
