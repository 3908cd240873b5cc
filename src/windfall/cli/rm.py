"""`windfall rm`: delete a run."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.prompt import Confirm

from windfall import wiring
from windfall.cli import run_reference
from windfall.cli.options import Json, StateFolder, Yes
from windfall.cli.run_verbs import open_run
from windfall.errors import EXIT_MISUSE, Misuse
from windfall.fleet import TERMINAL
from windfall.storage import object_stores, run_log
from windfall.storage.store_operations import delete_all, get, keys_under, pause
from windfall.terms import RunState
from windfall.units import duration_text
from windfall.wire.run_layout import FILES, FOLDERS, MARKER


def rm(
    run: str,
    /,
    *,
    yes: Yes = False,
    state: StateFolder = None,
    json_: Json = False,
) -> int:
    """Delete a run that has ended: checkpoints, results, journal, output and code.

    It cannot be undone.  A job remains in the list of jobs, without its run.

    Example: `windfall rm s3://lab/run42`

    Args:
        run: a job, or the URL of a run.
        yes: delete without asking.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object: what was deleted, and the objects that do not belong to the run.
    """
    url = run if run_reference.is_url(run) else _run_of(run, state)
    reader, run_state = open_run(url)
    _check_marker(reader, run_state, url)
    _check_ended(reader, run_state, url)
    keys = reader.run(keys_under(""))
    owned = [key for key in keys if key in FILES or key.startswith(FOLDERS)]
    left = [key for key in keys if key not in set(owned)]
    if not yes and not _confirmed(run_state, url, len(owned), json_=json_):
        print("windfall: nothing was deleted", file=sys.stderr)
        return EXIT_MISUSE
    for group in _in_order(owned):
        reader.run(delete_all(group))
    _remove_folders(url)
    if json_:
        print(json.dumps({"url": url, "run_id": run_state.run_id, "deleted": len(owned), "left": left}))
    else:
        rest = f"; kept {len(left)} objects that do not belong to it" if left else ""
        print(f"deleted run {run_state.run_id} at {url} ({len(owned)} objects){rest}")
    return 0


def _run_of(job: str, state: Path | None) -> str:
    """Return the URL of a job's run.

    Raises:
        Misuse: the job has not ended.
    """
    with run_reference.controller(state) as client:
        view = run_reference.find(client, job)
    if view.phase not in TERMINAL:
        raise Misuse(f"{view.job_id} is {view.phase.value}: stop it first with `windfall stop {view.job_id}`")
    if view.run_deleted:
        raise Misuse(run_reference.deleted(view))
    return view.run_url


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


def _confirmed(state: RunState, url: str, count: int, *, json_: bool) -> bool:
    if json_ or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse(f"not a terminal: pass --yes (-y) to delete the run at {url}")
    kept = f"{len(state.checkpoints)} checkpoints, {len(state.results)} results"
    print(f"run {state.run_id} at {url}: {state.outcome.value}, {kept}, {count} objects")
    return Confirm.ask("Delete it permanently?", default=False)


def _in_order(keys: list[str]) -> Iterator[list[str]]:
    """Yield the marker first, so that no machine resumes a half-deleted run, and the log last."""
    yield [key for key in keys if key in FILES]
    for folder in FOLDERS:
        yield [key for key in keys if key.startswith(folder)]


def _remove_folders(url: str) -> None:
    """Remove the empty folders of a run on a disk, and its temporary files."""
    if "://" in url and not url.startswith("file://"):
        return
    root = Path(url.removeprefix("file://"))
    shutil.rmtree(root / ".tmp", ignore_errors=True)
    below = [path for folder in FOLDERS for path in (root / folder, *(root / folder).rglob("*"))]
    for path in (*sorted(below, reverse=True), root):
        with contextlib.suppress(OSError):
            path.rmdir()
