"""`windfall rm`: delete a run."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.prompt import Confirm

from windfall import wiring
from windfall.cli import run_reference
from windfall.cli.locations import absolute_url
from windfall.cli.options import Json, StateFolder, Yes
from windfall.control.controller_views import JobView
from windfall.errors import EXIT_MISUSE, Misuse
from windfall.fleet import TERMINAL
from windfall.storage import object_stores, run_log
from windfall.storage.file_store import STAGING
from windfall.storage.run_deletion import (
    LISTEN_S,
    begin_deletion,
    begun_deletion,
    belongs,
    delete_objects,
    forget_bag,
    is_silent,
)
from windfall.storage.store_operations import get, keys_under, pause
from windfall.terms import RunState
from windfall.units import duration_text
from windfall.wire import boot_data
from windfall.wire.run_layout import DELETING, FOLDERS, ITEMS, JOB, MARKER


def rm(
    run: str,
    /,
    *,
    yes: Yes = False,
    state: StateFolder = None,
    json_: Json = False,
) -> int:
    """Delete a run that has ended, and all that it left: checkpoints, results, items, journal, output and code.

    It cannot be undone.  A job remains in the list of jobs, without its run.  If this is interrupted, the same command again
    deletes the rest.

    Example: `windfall rm s3://lab/run42`

    Args:
        run: a job, or the URL of a run.
        yes: delete without asking.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object: what was deleted, and the objects that do not belong to the run.
    """
    view = None if run_reference.is_url(run) else _ended_job(run, state)
    url = absolute_url(run if view is None else view.run_url)
    reader = object_stores.open_reader(url)
    keys = reader.run(keys_under(""))
    name, holds = _checked(reader, keys, url, view, state)
    owned = [key for key in keys if belongs(key)]
    left = [key for key in keys if not belongs(key) and key != DELETING]
    if not yes and not _confirmed(f"run {name} at {url}: {holds}{len(owned)} objects", url, json_=json_):
        print("windfall: nothing was deleted", file=sys.stderr)
        return EXIT_MISUSE
    reader.run(begin_deletion(name))
    beside = 0
    if any(key.startswith(ITEMS) for key in owned):
        base, _, folder = url.rstrip("/").rpartition("/")
        beside = object_stores.open_reader(base).run(forget_bag(folder))
    reader.run(delete_objects(owned))
    _remove_folders(url)
    count = len(owned) + beside
    if json_:
        print(json.dumps({"url": run if view is None else url, "run_id": name, "deleted": count, "left": left}))
    else:
        rest = f"; kept {len(left)} objects that do not belong to it" if left else ""
        print(f"deleted run {name} at {run if view is None else url} ({count} objects){rest}")
    return 0


def _ended_job(job: str, state: Path | None) -> JobView:
    """Return a job that has ended.

    Raises:
        Misuse: it has not.
    """
    with run_reference.controller(state) as client:
        view = run_reference.find(client, job)
    _check_phase(view)
    return view


def _check_phase(view: JobView) -> None:
    if view.phase not in TERMINAL:
        raise Misuse(f"{view.job_id} is {view.phase.value}: stop it first with `windfall stop {view.job_id}`")


def _checked(
    reader: object_stores.Reader, keys: Sequence[str], url: str, view: JobView | None, state: Path | None
) -> tuple[str, str]:
    """Return the name of a run that may be deleted, and in words what it holds besides its objects.

    Raises:
        Misuse: there is none, or it has not ended.
    """
    begun = reader.run(begun_deletion())
    if begun is not None and MARKER not in keys and JOB not in keys:
        return begun, "being deleted, "
    if view is not None and view.run_deleted and MARKER not in keys:
        if not any(belongs(key) for key in keys):
            raise Misuse(run_reference.deleted(view))
        return view.job_id, "being deleted, "
    head = reader.run(run_log.read_head())
    if head is None and JOB not in keys and view is None:
        raise Misuse(f"there is no run at {url}")
    if head is not None:
        _check_marker(reader, head.state, url)
        _check_ended(reader, head.state, url)
    job_id = "" if view is None else view.job_id
    if view is None and JOB in keys:
        job_id = boot_data.boot_from_json(json.loads(reader.run(get(JOB)) or b"null")).job_id
        _check_job(reader, job_id, url, state)
    if head is None:
        return job_id, ""
    kept = f"{len(head.state.checkpoints)} checkpoints, {len(head.state.results)} results"
    return head.state.run_id, f"{head.state.outcome.value}, {kept}, "


def _check_job(reader: object_stores.Reader, job_id: str, url: str, state: Path | None) -> None:
    """Refuse a job that has not ended; one that this user's controller does not know is listened for.

    Raises:
        Misuse: it has not ended.
    """
    if run_reference.may_have_jobs(state):
        with run_reference.controller(state) as client:
            known = [view for view in client.jobs() if view.job_id == job_id and absolute_url(view.run_url) == url]
        for view in known:
            _check_phase(view)
        if known:
            return
    wait = duration_text(LISTEN_S)
    print(f"windfall: no job of yours has this run: waiting {wait} for a sign of its machines", file=sys.stderr)
    if not reader.run(is_silent(LISTEN_S)):
        raise Misuse(
            f"{job_id} at {url} has not ended: stop it first, where it was started, with `windfall stop {job_id}`"
        )


def _check_marker(reader: object_stores.Reader, state: RunState, url: str) -> None:
    """Refuse a folder that only looks like a run.

    Raises:
        Misuse: the marker is missing, or names another run.
    """
    try:
        marker = json.loads(reader.run(get(MARKER)) or b"null")
        run_id = marker.get("run_id") if isinstance(marker, dict) else None
    except ValueError:
        run_id = None
    if run_id != state.run_id:
        raise Misuse(f"{url} is not an intact run ({MARKER} does not match its log): nothing was deleted")


def _check_ended(reader: object_stores.Reader, state: RunState, url: str) -> None:
    """Refuse a run that a machine holds; if another machine has not released it, listen for one lease first.

    Raises:
        Misuse: it is held.
    """
    if state.holder is None or wiring.has_died_here(state.holder):
        return
    lease = duration_text(state.lease_s)
    print(f"windfall: {state.holder.host} has not released this run: waiting {lease} for a heartbeat", file=sys.stderr)
    first = reader.run(run_log.read_heartbeat(state.term))
    reader.run(pause(state.lease_s))
    head = reader.run(run_log.read_head())
    silent = (
        reader.run(run_log.read_heartbeat(state.term)) == first and head is not None and head.state.term == state.term
    )
    if not silent:
        raise Misuse(f"{state.holder.host} holds this run and is alive: stop it first with `windfall stop {url}`")


def _confirmed(question: str, url: str, *, json_: bool) -> bool:
    if json_ or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse(f"not a terminal: pass --yes (-y) to delete the run at {url}")
    print(question)
    return Confirm.ask("Delete it permanently?", default=False)


def _remove_folders(url: str) -> None:
    """Remove the empty folders of a run on a disk, and its temporary files."""
    folder = object_stores.folder_of(url)
    if folder is None:
        return
    root = Path(folder)
    shutil.rmtree(root / STAGING, ignore_errors=True)
    below = [path for folder in FOLDERS for path in (root / folder, *(root / folder).rglob("*"))]
    for path in (*sorted(below, reverse=True), root):
        with contextlib.suppress(OSError):
            path.rmdir()
