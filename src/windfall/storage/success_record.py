"""Records on the local disk that a run's script succeeded, until the store knows it, so that nothing is trained again.

The release of a finished run is retried within the retry budget.  If that fails, or the machine loses power, this record
is enough: the same command, run again on this machine, only releases the run as done.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os

from windfall.ports import Clock, ObjectStore
from windfall.storage import run_log, store_operations
from windfall.storage.run_state import released
from windfall.structs import Struct
from windfall.terms import Cause, Outcome, RecordKind, RunState


class FinishedRun(Struct, frozen=True):
    """One finished run.

    Attributes:
        run_id: the run; the URL may later be used by another run.
        term: the term in which the script ended.
        attempts, failures: the counts for the release record.
    """

    run_id: str
    term: int
    attempts: int
    failures: int


def save(folder: str, url: str, finished: FinishedRun) -> None:
    """Save the record durably.

    A disk error must not prevent the release; the record is then not saved.
    """
    if not folder:
        return
    path = _path(folder, url)
    document = {"version": 1, "url": url, "run_id": finished.run_id, "term": finished.term}
    document |= {"attempts": finished.attempts, "failures": finished.failures}
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(f"{path}.new", "w") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)


def load(folder: str, url: str) -> FinishedRun | None:
    """Return the record of a URL; None if there is none, or if it cannot be read."""
    if not folder:
        return None
    try:
        with open(_path(folder, url)) as file:
            document = json.load(file)
        if document["version"] != 1 or document["url"] != url:
            return None
        return FinishedRun(
            str(document["run_id"]), int(document["term"]), int(document["attempts"]), int(document["failures"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def delete(folder: str, url: str) -> None:
    """Delete the record, because the store knows that the run is done."""
    with contextlib.suppress(OSError):
        os.unlink(_path(folder, url))


def release_finished(store: ObjectStore, clock: Clock, finished: FinishedRun, nonce: str) -> bool:
    """Release the run as done, in the term in which the script ended; return whether it is done now.

    False: another machine has acquired the run since; it must be acquired again before it can be released as done.
    """
    head = store_operations.run(run_log.read_head(finished.term), store, clock)
    if head is None or head.state.term != finished.term:
        return head is not None and head.state.outcome is Outcome.DONE
    wall_time = clock.wall_time()

    def advance(state: RunState) -> RunState:
        return released(
            state,
            outcome=Outcome.DONE,
            cause=Cause.DONE,
            wall_time=wall_time,
            attempts=finished.attempts,
            failures=finished.failures,
        )

    steps = run_log.append(head, advance, kind=RecordKind.RELEASE, nonce=nonce, wall_time=wall_time)
    return store_operations.run(steps, store, clock).state.outcome is Outcome.DONE


def _path(folder: str, url: str) -> str:
    return os.path.join(folder, f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json")
