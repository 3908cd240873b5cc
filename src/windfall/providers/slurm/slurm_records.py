"""What the provider itself remembers of its orders and machines: one SQLite file in the installation's folder.

Slurm forgets a finished job after minutes, and at once where there is no accounting what its name was.  The file needs no
write-ahead log, so it may be on a network home.  It is a memory and not the truth: without it the queue and the accounts
still show every machine that may be alive.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from windfall import codec
from windfall.market import Machine
from windfall.structs import Struct
from windfall.terms import WallTime

FILE = "slurm.db"
_BUSY_S = 30.0
_REMOVED_MAX = 50
"""How many folders one command removes at most."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sent (token TEXT PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS removed (token TEXT PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS cancelled (token TEXT PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS machines (
    machine_id TEXT PRIMARY KEY, number INTEGER NOT NULL, owner TEXT NOT NULL, token TEXT NOT NULL,
    alive INTEGER NOT NULL, asked TEXT NOT NULL DEFAULT '', seen REAL NOT NULL, changed INTEGER NOT NULL,
    document BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS machines_of ON machines (owner, changed);
CREATE INDEX IF NOT EXISTS machines_from ON machines (token);
CREATE INDEX IF NOT EXISTS machines_alive ON machines (alive) WHERE alive = 1;
"""
RELEASED, TAKEN = "released", "preempted"
"""What was asked of a machine: its release, or a rehearsal of its preemption."""


class KnownMachine(Struct, frozen=True):
    """A machine as it was last seen.

    Attributes:
        number: of its job, by which the oldest of a token is told.
        asked: `RELEASED`, `TAKEN`, or empty.
        seen: when a listing last had it.
        changed: number of its newest change, over all machines.
    """

    machine: Machine
    number: int
    asked: str
    seen: WallTime
    changed: int = 0


class SlurmRecords:
    """The records; each call is one transaction, and several processes may share them."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is read or made yet."""
        self._folder = folder

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._folder / FILE, timeout=_BUSY_S, isolation_level=None)) as found:
            found.execute("PRAGMA journal_mode = DELETE")
            found.executescript(_SCHEMA)
            found.execute("BEGIN IMMEDIATE")
            yield found
            found.execute("COMMIT")

    @property
    def exist(self) -> bool:
        """Whether anything was ever recorded."""
        return (self._folder / FILE).exists()

    def sent_at(self, token: str) -> WallTime | None:
        """Return when an order was first sent; None if it never was."""
        if not self.exist:
            return None
        with self._open() as records:
            row = records.execute("SELECT at FROM sent WHERE token = ?", (token,)).fetchone()
        return None if row is None else WallTime(row[0])

    def send(self, token: str, now: WallTime) -> None:
        """Record that an order is about to be sent."""
        with self._open() as records:
            records.execute("INSERT OR IGNORE INTO sent (token, at) VALUES (?, ?)", (token, now))

    def forget(self, token: str) -> None:
        """Record that an order was refused: nothing can come of it."""
        with self._open() as records:
            records.execute("DELETE FROM sent WHERE token = ?", (token,))

    def is_cancelled(self, token: str) -> bool:
        """Return whether a token must yield no more machines."""
        if not self.exist:
            return False
        with self._open() as records:
            return records.execute("SELECT 1 FROM cancelled WHERE token = ?", (token,)).fetchone() is not None

    def cancel(self, token: str, now: WallTime) -> None:
        """Record that a token must yield no more machines."""
        with self._open() as records:
            records.execute("INSERT OR IGNORE INTO cancelled (token, at) VALUES (?, ?)", (token, now))

    def put(self, machines: Iterable[KnownMachine]) -> None:
        """Record machines as they are now; what was asked of them meanwhile stays asked."""
        rows = list(machines)
        if not rows:
            return
        with self._open() as records:
            (newest,) = records.execute("SELECT coalesce(max(changed), 0) FROM machines").fetchone()
            for known in rows:
                newest += 1
                one = known.machine
                records.execute(
                    "INSERT INTO machines (machine_id, number, owner, token, alive, asked, seen, changed, document) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (machine_id) DO UPDATE SET "
                    "alive = excluded.alive, seen = excluded.seen, changed = excluded.changed, document = excluded.document",
                    (
                        one.machine_id, known.number, one.owner, one.token, int(one.ended is None), known.asked, known.seen,
                        newest, json.dumps(codec.encode(one)),
                    ),
                )  # fmt: skip

    def saw(self, machine_ids: Iterable[str], now: WallTime) -> None:
        """Record that a listing still had these machines."""
        with self._open() as records:
            records.executemany(
                "UPDATE machines SET seen = ? WHERE machine_id = ?", [(now, machine_id) for machine_id in machine_ids]
            )

    def ask(self, machine_id: str, what: str) -> None:
        """Record what is about to be asked of a machine; the first request counts."""
        with self._open() as records:
            records.execute("UPDATE machines SET asked = ? WHERE machine_id = ? AND asked = ''", (what, machine_id))

    def all_of(self, owner: str, since: WallTime) -> tuple[KnownMachine, ...]:
        """Return an owner's machines that are alive, or were seen after a moment."""
        return self._select("owner = ? AND (alive = 1 OR seen >= ?)", owner, since)

    def alive(self) -> tuple[KnownMachine, ...]:
        """Return all machines that are not known to be gone."""
        return self._select("alive = 1")

    def of_token(self, token: str) -> tuple[KnownMachine, ...]:
        """Return the machines of an order."""
        return self._select("token = ?", token)

    def of_names(self, machine_ids: Iterable[str]) -> tuple[KnownMachine, ...]:
        """Return the machines of these names that were seen before."""
        return self._select("machine_id IN (SELECT value FROM json_each(?))", json.dumps(list(machine_ids)))

    def find(self, machine_id: str) -> KnownMachine | None:
        """Return a machine; None if it was never seen."""
        return next(iter(self._select("machine_id = ?", machine_id)), None)

    def changed_after(self, owner: str, number: int) -> tuple[KnownMachine, ...]:
        """Return an owner's machines that have changed since the change of this number, in the order of their changes."""
        return self._select("owner = ? AND changed > ?", owner, number)

    def littered(self, before: WallTime) -> tuple[str, ...]:
        """Return orders whose machines were all gone before a moment, and whose folders may be there still."""
        if not self.exist:
            return ()
        with self._open() as records:
            rows = records.execute(
                "SELECT token FROM machines WHERE token NOT IN (SELECT token FROM removed) "
                "AND token NOT LIKE '%/%' GROUP BY token "
                "HAVING max(alive) = 0 AND max(seen) < ? ORDER BY token LIMIT ?",
                (before, _REMOVED_MAX),
            ).fetchall()
        return tuple(token for (token,) in rows)

    def removed(self, tokens: Iterable[str], now: WallTime) -> None:
        """Record that the folders of these orders are gone."""
        with self._open() as records:
            records.executemany(
                "INSERT OR IGNORE INTO removed (token, at) VALUES (?, ?)", [(token, now) for token in tokens]
            )

    def _select(self, condition: str, *values: object) -> tuple[KnownMachine, ...]:
        if not self.exist:
            return ()
        with self._open() as records:
            rows = records.execute(
                f"SELECT document, number, asked, seen, changed FROM machines WHERE {condition} ORDER BY changed",  # noqa: S608 - one of the conditions above
                values,
            ).fetchall()
        return tuple(
            KnownMachine(codec.decode(codec.parse(document), Machine), number, asked, WallTime(seen), changed)
            for document, number, asked, seen, changed in rows
        )
