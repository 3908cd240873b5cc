"""`windfall rm`: a run that nobody needs any more, deleted with all that it is."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.prompt import Confirm

from windfall import wiring
from windfall.cli import named
from windfall.cli.runs import open_run
from windfall.errors import EXIT_MISUSE, Misuse
from windfall.fleet import TERMINAL
from windfall.storage import log
from windfall.storage.operations import delete_all, get, keys_under, pause
from windfall.terms import RunState
from windfall.units import duration_text
from windfall.wire.layout import FILES, FOLDERS, MARKER


def rm(
    run: str,
    *,
    yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False,
    state: Annotated[Path | None, Parameter(name="--state")] = None,
    json_: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Delete a run that is over: checkpoints, results, journal, output, code.  Nothing brings it back.

    Example: `windfall rm s3://lab/run42`

    Args:
        run: a job, or a run's URL.  A job stays in the list of jobs, without its run.
        yes: do not ask.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object: what was deleted, and what lies there and belongs to no run.
    """
    url = run if named.is_url(run) else _run_of(run, state)
    reader, stands = open_run(url)
    _check_marker(reader, stands, url)
    _check_over(reader, stands, url)
    keys = reader.run(keys_under(""))
    ours = [key for key in keys if key in FILES or key.startswith(FOLDERS)]
    left = [key for key in keys if key not in set(ours)]
    if not yes and not _confirmed(stands, url, len(ours), json_=json_):
        print("windfall: nothing was deleted", file=sys.stderr)
        return EXIT_MISUSE
    for group in _in_order(ours):
        reader.run(delete_all(group))
    _remove_folders(url)
    if json_:
        print(json.dumps({"url": url, "run_id": stands.run_id, "deleted": len(ours), "left": left}))
    else:
        rest = f"; {len(left)} objects there belong to no run and were left alone" if left else ""
        print(f"run {stands.run_id} at {url} is deleted ({len(ours)} objects){rest}")
    return 0


def _run_of(job: str, state: Path | None) -> str:
    """Return the URL of a job's run.

    Raises:
        Misuse: the job is not over.
    """
    with named.controller(state) as client:
        view = named.find(client, job)
    if view.phase not in TERMINAL:
        raise Misuse(f"{view.job_id} is {view.phase.value}: `windfall stop {view.job_id}` first")
    if view.run_deleted:
        raise Misuse(named.deleted(view))
    return view.run_url


def _check_marker(reader: wiring.Reader, state: RunState, url: str) -> None:
    """Refuse a place that only looks like a run.

    Raises:
        Misuse: the marker is not there, or names another run.
    """
    try:
        marker = json.loads(reader.run(get(MARKER)) or b"null")
        run_id = marker.get("run_id") if isinstance(marker, dict) else None
    except ValueError:
        run_id = None
    if run_id != state.run_id:
        raise Misuse(f"{url} is not a whole run ({MARKER} does not name the run of its log): nothing was deleted")


def _check_over(reader: wiring.Reader, state: RunState, url: str) -> None:
    """Refuse a run that a machine holds; one that fell silent elsewhere is watched for a lease first.

    Raises:
        Misuse: it is held.
    """
    if state.holder is None or wiring.has_died_here(state.holder):
        return
    lease = duration_text(state.lease_s)
    print(f"windfall: {state.holder.host} has not let go of this run: listening for {lease}", file=sys.stderr)
    first = reader.run(log.read_beat(state.term))
    reader.run(pause(state.lease_s))
    head = reader.run(log.read_head())
    silent = reader.run(log.read_beat(state.term)) == first and head is not None and head.state.term == state.term
    if not silent:
        raise Misuse(f"{state.holder.host} holds this run and is alive: `windfall stop {url}` first")


def _confirmed(state: RunState, url: str, count: int, *, json_: bool) -> bool:
    if json_ or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse(f"nobody is here to say yes: add --yes (-y) to delete the run at {url}")
    kept = f"{len(state.checkpoints)} checkpoints, {len(state.results)} results"
    print(f"run {state.run_id} at {url}: {state.outcome.value}, {kept}, {count} objects")
    return Confirm.ask("Delete all of it for good?", default=False)


def _in_order(keys: list[str]) -> Iterator[list[str]]:
    """Yield the marker first, so that no machine takes up what is half deleted, and the log last."""
    yield [key for key in keys if key in FILES]
    for folder in FOLDERS:
        yield [key for key in keys if key.startswith(folder)]


def _remove_folders(url: str) -> None:
    """Remove the folders of a run on a disk that are empty now, with the writers' workshop."""
    if "://" in url and not url.startswith("file://"):
        return
    root = Path(url.removeprefix("file://"))
    shutil.rmtree(root / ".tmp", ignore_errors=True)
    below = [path for folder in FOLDERS for path in (root / folder, *(root / folder).rglob("*"))]
    for path in (*sorted(below, reverse=True), root):
        with contextlib.suppress(OSError):
            path.rmdir()
