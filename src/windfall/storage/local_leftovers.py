"""Files left on this host by killed sessions: the script's last progress, and journal rows that were not shipped.

A session's folder remains when its processes are killed.  A machine that resumes the run on the same host reads the last
step from the pages, and ships what the dead agent could not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable

from windfall import codec
from windfall.errors import StoreError
from windfall.events import CheckpointRestored, Row, ScriptStarted
from windfall.ports import Clock, ObjectStore
from windfall.storage.run_lease import LocalSession, StoreLease
from windfall.structs import Struct, replace
from windfall.terms import Holder, LastProgress, Record, Seconds, Step, Term, WallTime
from windfall.wire import script_page

REQUEST_FILE = "exec.json"
"""File in a session's folder with its request, as `agent.exec_request` writes it."""
STATE_FILE = "lease.json"
"""File in a session's folder that records its term; a session that ended normally has removed its folder."""
_LOOK_S = Seconds(0.1)
"""An agent polls its pages, so the machine ended at most a few polls after the last one [s]."""
_SIGNS = (script_page.AGENT_NS, script_page.STEP_END_NS, script_page.STEP_START_NS, script_page.ACK_NS)


class SessionLeftovers(Struct, frozen=True):
    """The folders of a session whose processes are gone."""

    session: str
    pages: str

    def lease_state(self) -> dict[str, object] | None:
        """Return its agent's lease state; None if it had no lease, or if it cannot be read."""
        try:
            with open(os.path.join(self.session, STATE_FILE)) as file:
                lease_state = json.load(file)
        except (OSError, ValueError):
            return None
        return lease_state if isinstance(lease_state, dict) else None

    def request(self) -> dict[str, object]:
        """Return the request of its `windfall exec`; empty if it cannot be read."""
        try:
            with open(os.path.join(self.session, REQUEST_FILE)) as file:
                request = json.load(file)["request"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return request if isinstance(request, dict) else {}

    def remove(self) -> None:
        """Remove both folders."""
        shutil.rmtree(self.pages, ignore_errors=True)
        shutil.rmtree(self.session, ignore_errors=True)


def leftovers_of(holder: Holder, sessions: str, pages: str) -> SessionLeftovers:
    """Return the folders of a holder's session, whether or not they exist."""
    name = f"{holder.pid}-{holder.pid_started}"
    return SessionLeftovers(os.path.join(sessions, name), os.path.join(pages, name))


def last_progress(leftovers: SessionLeftovers, holder: Holder, term: Term) -> LastProgress | None:
    """Return the last progress of a holder whose processes are gone; None if its files do not show it.

    With several machines, one does not know the progress of the others.
    """
    lease_state = leftovers.lease_state()
    if lease_state is None or lease_state.get("nonce") != holder.nonce or leftovers.request().get("peers"):
        return None
    try:
        last, attempt, first = _journal(os.path.join(leftovers.session, f"journal-{term:08d}.jsonl"))
        words = _pages(os.path.join(leftovers.pages, str(attempt)))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if last is None or words is None:
        return None
    if not words:
        return LastProgress(attempt, first, first, last.wall_time, _LOOK_S, last=True)
    last_sign = max(one[word] for one in words for word in _SIGNS) / 1e9 + last.wall_time - last.at
    step = max(first, min(one[script_page.STEP] for one in words))
    return LastProgress(attempt, first, Step(step), WallTime(max(last_sign, last.wall_time)), _LOOK_S, last=True)


def _journal(path: str) -> tuple[Row | None, int, Step]:
    """Return the last row, the last attempt, and the step from which it started."""
    last, attempt, first = "", 0, Step(0)
    with open(path, encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                break
            last = line
            if f'"{CheckpointRestored.__name__}"' in line or f'"{ScriptStarted.__name__}"' in line:
                for fact in codec.row_from_line(line).facts:
                    if isinstance(fact, CheckpointRestored):
                        first = fact.step
                    elif isinstance(fact, ScriptStarted):
                        attempt = fact.attempt
    return (codec.row_from_line(last) if last else None), attempt, first


def _pages(folder: str) -> list[memoryview] | None:
    """Map the pages of an attempt; empty if not every rank had one, None if they are gone."""
    if not os.path.isdir(folder):
        return None
    names = [name for name in os.listdir(folder) if name.startswith("rank-") and name.endswith(".page")]
    words = [script_page.attach(os.path.join(folder, name)) for name in names]
    expected = max((one[script_page.LOCAL_WORLD] for one in words), default=1)
    return words if len(words) >= expected else []


def ship_leftovers(
    store: ObjectStore, clock: Clock, head: Record, sessions: str, url: str, *, gone: Callable[[str], bool]
) -> None:
    """Ship the remaining rows and output of dead sessions of this run, and remove their folders.

    Args:
        store: the run's store.
        clock: for pauses between retries.
        head: the run's newest record.
        sessions: this host's folder of sessions.
        url: the run's URL.
        gone: returns whether the processes of a session are gone, given its folder.
    """
    for name in sorted(os.listdir(sessions)):
        leftovers = SessionLeftovers(os.path.join(sessions, name), "")
        request_data, lease_state = leftovers.request(), leftovers.lease_state()
        if lease_state is None or request_data.get("url") != url or not gone(leftovers.session):
            continue
        leftovers = replace(leftovers, pages=str(request_data.get("pages", "")))
        with contextlib.suppress(StoreError, OSError, ValueError, KeyError, TypeError):
            _ship(store, clock, head, leftovers, lease_state)
            leftovers.remove()


def _ship(
    store: ObjectStore, clock: Clock, head: Record, leftovers: SessionLeftovers, lease_state: dict[str, object]
) -> None:
    term = Term(int(str(lease_state["term"])))
    record = replace(head, state=replace(head.state, term=term))
    output = os.path.join(leftovers.session, "output.log")
    local = LocalSession(clock, str, leftovers.session, os.path.join(leftovers.session, STATE_FILE), output)
    shipped = lease_state["output_shipped"]
    assert isinstance(shipped, list)
    lease = StoreLease(store, record, local, str(lease_state["nonce"]))
    lease.resume({}, {}, (int(shipped[0]), int(shipped[1])))
    try:
        lease.ship()
    finally:
        lease.journal.close()
