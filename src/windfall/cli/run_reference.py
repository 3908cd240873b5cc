"""How a user refers to a run: by its URL, or by a job's id, id prefix or name."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windfall.cli.locations import DATABASE, state_folder
from windfall.control.controller_views import JobView
from windfall.errors import Misuse
from windfall.extras import for_jobs
from windfall.spelling import nearest

if TYPE_CHECKING:
    from windfall.cli.client import Client


def is_url(reference: str) -> bool:
    """Return whether a reference is a run's URL or folder; otherwise it names a job."""
    return "://" in reference or "/" in reference or os.path.isdir(reference)


def may_have_jobs(state: Path | None) -> bool:
    """Return whether there may be jobs: a team's controller is configured, or this user's own has run here."""
    return "WINDFALL_CONTROLLER" in os.environ or ((state or state_folder()) / DATABASE).exists()


def controller(state: Path | None) -> Client:
    """Connect to this user's controller; start the embedded one if it has jobs and is not running.

    Raises:
        Misuse: there are no jobs here, or a package is missing.
    """
    with for_jobs():
        from windfall.cli.client import connect  # noqa: PLC0415 - its packages are an extra
    folder = state or state_folder()
    if not may_have_jobs(state):
        raise Misuse(
            f"there are no jobs here (state folder {folder}): start one with `windfall run job.yaml`, or give the URL of "
            "a run that `windfall exec` started"
        )
    return connect(folder, start=True)


def find(client: Client, reference: str) -> JobView:
    """Return the job that a user refers to, with its details.

    Args:
        client: of the controller.
        reference: an id; a name, which means the newest job with that name; or the prefix of one id.

    Raises:
        Misuse: no job matches, or several ids have that prefix.
    """
    return client.job(_chosen(client.jobs(), reference).job_id)


def _chosen(views: Sequence[JobView], reference: str) -> JobView:
    for view in views:
        if view.job_id == reference:
            return view
    if named := sorted((view for view in views if view.name == reference), key=lambda view: view.created):
        if len(named) > 1:
            print(
                f"windfall: {len(named)} jobs are named {reference}; using the newest, {named[-1].job_id}",
                file=sys.stderr,
            )
        return named[-1]
    matching = [view for view in views if reference and view.job_id.startswith(reference)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        shown = ", ".join(view.job_id for view in matching[:4])
        raise Misuse(
            f"{reference!r} matches {len(matching)} jobs: {shown}{', ...' if len(matching) > 4 else ''}; type more of "
            "the id"
        )
    ids = [view.job_id for view in views]
    if not ids:
        raise Misuse(f"there is no job {reference!r}, and no jobs yet; to name a run, give its URL or a path with a /")
    hint = nearest(reference, ids)
    raise Misuse(f"there is no job {reference!r}; {hint} (list jobs with `windfall ps`; the URL of a run contains a /)")


def url_of(reference: str, state: Path | None) -> str:
    """Return the URL of the run that a user refers to.

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
    """Return the message that a job's run was deleted, and what is kept of it."""
    kept = f"its costs are kept (`windfall cost {view.job_id}`)"
    return f"the run of {view.job_id} was deleted, with its checkpoints, results and output; {kept}"
