"""That a run's script succeeded, on this machine's disk, until the store has been told: then nothing is trained again.

The release of a finished run is as stubborn as patience allows.  If it gives up, or its machine's power does, what is
known here is enough: the same line, started again on this machine, only lets the run go as done.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass

from windfall.ports import Clock, ObjectStore
from windfall.storage import executor, log
from windfall.storage.state import released
from windfall.terms import Cause, Outcome, RecordKind, RunState


@dataclass(frozen=True, slots=True)
class Finished:
    """One finished run.

    Attributes:
        run_id: of the run; another run at the same URL is another one.
        term: the number of the holding under which the script ended.
        attempts, failures: as the release would have said them.
    """

    run_id: str
    term: int
    attempts: int
    failures: int


def remember(folder: str, url: str, finished: Finished) -> None:
    """Write it down, durably.

    A disk that refuses must not keep the release from being tried: then nothing is remembered.
    """
    if not folder:
        return
    path = _path(folder, url)
    said = {"v": 1, "url": url, "run_id": finished.run_id, "term": finished.term}
    said |= {"attempts": finished.attempts, "failures": finished.failures}
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(f"{path}.new", "w") as file:
            json.dump(said, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)


def recall(folder: str, url: str) -> Finished | None:
    """Return what is remembered of a URL; None for nothing, or nothing that can be read."""
    if not folder:
        return None
    try:
        with open(_path(folder, url)) as file:
            said = json.load(file)
        if said["v"] != 1 or said["url"] != url:
            return None
        return Finished(str(said["run_id"]), int(said["term"]), int(said["attempts"]), int(said["failures"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget(folder: str, url: str) -> None:
    """The store knows it."""
    with contextlib.suppress(OSError):
        os.unlink(_path(folder, url))


def let_go(store: ObjectStore, clock: Clock, finished: Finished, nonce: str) -> bool:
    """Let the run go as done under the holding that ended; say whether it is done now.

    False: another machine has taken it since, and whoever wants to say that it is done must take it first.
    """
    head = executor.run(log.read_head(finished.term), store, clock)
    if head is None or head.state.term != finished.term:
        return head is not None and head.state.outcome is Outcome.DONE
    wall = clock.wall()

    def advance(state: RunState) -> RunState:
        return released(
            state,
            outcome=Outcome.DONE,
            cause=Cause.DONE,
            wall=wall,
            attempts=finished.attempts,
            failures=finished.failures,
        )

    steps = log.append(head, advance, kind=RecordKind.RELEASE, nonce=nonce, wall=wall)
    return executor.run(steps, store, clock).state.outcome is Outcome.DONE


def _path(folder: str, url: str) -> str:
    return os.path.join(folder, f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json")
