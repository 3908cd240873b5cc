"""What a machine that was killed left on this host's disk: how far its script had come, and rows it could not ship.

A session's folder outlives its processes when they are killed.  Whoever takes the run up on the same host reads from the
pages which step was the last, and brings to the store what the dead agent could not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from windfall import codec
from windfall.errors import StoreError
from windfall.events import CheckpointRestored, Row, ScriptStarted
from windfall.ports import Clock, ObjectStore
from windfall.storage.hold import Hold, Local
from windfall.terms import Holder, Reached, Record, Seconds, Step, Term, WallTime
from windfall.wire import page

BOOKKEEPING = "hold.json"
"""In a session's folder: which term it held.  A session that ended in order is gone with its folder."""
_LOOK_S = Seconds(0.1)
"""A machine whose agent looked at its pages lived no longer than some looks after the last [s]."""
_SIGNS = (page.AGENT_NS, page.STEP_END_NS, page.STEP_BEGIN_NS, page.ACK_NS)


@dataclass(frozen=True, slots=True)
class Remains:
    """The folders of a session whose processes are gone."""

    session: str
    pages: str

    def held(self) -> dict[str, object] | None:
        """Return what its agent noted of its hold; None if it never had one, or nothing can be read."""
        try:
            with open(os.path.join(self.session, BOOKKEEPING)) as file:
                noted = json.load(file)
        except (OSError, ValueError):
            return None
        return noted if isinstance(noted, dict) else None

    def request(self) -> dict[str, object]:
        """Return what its `windfall exec` was asked for; empty if nothing can be read."""
        try:
            with open(os.path.join(self.session, "exec.json")) as file:
                asked = json.load(file)
        except (OSError, ValueError):
            return {}
        return asked if isinstance(asked, dict) else {}

    def remove(self) -> None:
        """Remove both folders."""
        shutil.rmtree(self.pages, ignore_errors=True)
        shutil.rmtree(self.session, ignore_errors=True)


def remains_of(holder: Holder, sessions: str, pages: str) -> Remains:
    """Return where a holder's session would be, among the folders of sessions and of pages on this host."""
    name = f"{holder.pid}-{holder.pid_started}"
    return Remains(os.path.join(sessions, name), os.path.join(pages, name))


def reached(left: Remains, holder: Holder, term: Term) -> Reached | None:
    """Return how far a holder had come whose processes are gone; None if it left nothing that says so.

    Of several machines that trained together one does not know how far the others were.
    """
    noted = left.held()
    if noted is None or noted.get("nonce") != holder.nonce or left.request().get("peers"):
        return None
    try:
        last, attempt, first = _journal(os.path.join(left.session, f"journal-{term:08d}.jsonl"))
        words = _pages(os.path.join(left.pages, str(attempt)))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if last is None or words is None:
        return None
    if not words:
        return Reached(attempt, first, first, last.wall, _LOOK_S, last=True)
    sign = max(one[word] for one in words for word in _SIGNS) / 1e9 + last.wall - last.at
    step = max(first, min(one[page.STEP] for one in words))
    return Reached(attempt, first, Step(step), WallTime(max(sign, last.wall)), _LOOK_S, last=True)


def _journal(path: str) -> tuple[Row | None, int, Step]:
    """Return the last row, the last start of the script, and the step from which that began."""
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
    """Map the pages of an attempt; none of them if not every rank had one.  None: they are gone."""
    if not os.path.isdir(folder):
        return None
    names = [name for name in os.listdir(folder) if name.startswith("rank-") and name.endswith(".page")]
    words = [page.attach(os.path.join(folder, name)) for name in names]
    expected = max((one[page.LOCAL_WORLD] for one in words), default=1)
    return words if len(words) >= expected else []


def bring(
    store: ObjectStore, clock: Clock, head: Record, sessions: str, url: str, *, gone: Callable[[str], bool]
) -> None:
    """Bring to the store what dead sessions of this run could not ship, and remove them.

    Args:
        store: of the run.
        clock: for the pauses of a store that is away.
        head: its newest record.
        sessions: this host's folder of sessions.
        url: the run's.
        gone: whether the processes of a session are gone, by its folder.
    """
    for name in sorted(os.listdir(sessions)):
        left = Remains(os.path.join(sessions, name), "")
        asked, noted = left.request(), left.held()
        if noted is None or asked.get("url") != url or not gone(left.session):
            continue
        left = dataclasses.replace(left, pages=str(asked.get("pages", "")))
        with contextlib.suppress(StoreError, OSError, ValueError, KeyError, TypeError):
            _ship(store, clock, head, left, noted)
            left.remove()


def _ship(store: ObjectStore, clock: Clock, head: Record, left: Remains, noted: dict[str, object]) -> None:
    term = Term(int(str(noted["term"])))
    record = dataclasses.replace(head, state=dataclasses.replace(head.state, term=term))
    output = os.path.join(left.session, "output.log")
    local = Local(clock, str, left.session, os.path.join(left.session, BOOKKEEPING), output)
    shipped = noted["output_shipped"]
    assert isinstance(shipped, list)
    hold = Hold(store, record, local, str(noted["nonce"]))
    hold.remember({}, {}, (int(shipped[0]), int(shipped[1])))
    try:
        hold.ship()
    finally:
        hold.journal.close()
