"""The market's database: orders, machines and bills in one SQLite file; an answer is durable before a caller gets it.

The lines of a bill are calculated from the market's own records of start, end and price.  They share no code with the
buyer's accounting, so that comparing the two is a real check.

What a machine runs is not stored here but in the machine's own folder, since it may hold a credential.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from windfall.errors import ProviderUnreachable
from windfall.market import (
    PRICES_LISTED_S,
    Answer,
    Bill,
    BillingBasis,
    Charge,
    Machine,
    MachineEndCause,
    MachineLifecycle,
    Order,
    PriceChange,
    Refusal,
)
from windfall.providers.local.machine_folder import MachineEnd
from windfall.providers.local.market_config import Billing, MarketConfig
from windfall.providers.local.market_prices import PricesInForce
from windfall.structs import Struct
from windfall.terms import Reliability, Usd, WallTime

DIGITS = 9
"""Decimal digits of a dollar to which a line is rounded; cents would add up to dollars over many short machines."""
CHANGES_LISTED = 256
"""How many changes of a machine's price a listing shows at most; only a rehearsal's pace makes more in an hour."""
_INSTANT = 1e-9
"""A share of an hour that is too short to count: wall clocks are sums."""


class MachineUsage(Struct, frozen=True):
    """A machine's start, end and prices as the market recorded them.

    Attributes:
        price_usd_per_hour: at the purchase.
        changes: of the price in effect, from the start of the machine on; empty where the price does not move.
    """

    machine_id: str
    price_usd_per_hour: float
    started: WallTime
    ended: WallTime
    cause: MachineEndCause
    reliability: Reliability = Reliability.TRANSIENT
    changes: tuple[PriceChange, ...] = ()

    def price_at(self, moment: float) -> float:
        """Return the price in effect [USD/h]."""
        place = bisect.bisect_right(self.changes, moment, key=lambda change: change.since)
        return self.changes[place - 1].usd_per_hour if place else self.price_usd_per_hour


def lines(usage: MachineUsage, billing: Billing, *, settled: bool) -> tuple[Charge, ...]:
    """Return a machine's lines on the bill: one for its time, and a negative one for a refund if there is one.

    The refund is the amount billed for the hour in which the machine was preempted.

    Args:
        usage: the machine's record.
        billing: the rule at the time of purchase.
        settled: whether the bill is final.
    """
    lasted_s = usage.ended - usage.started
    whole = math.floor(lasted_s / billing.hour + _INSTANT)
    free_since = WallTime(usage.started + whole * billing.hour)
    billed_until = usage.started + max(lasted_s, billing.minimum)
    if billing.by == "hour":
        begun = math.ceil((billed_until - usage.started) / billing.hour - _INSTANT)
        hours = [usage.price_at(usage.started + hour * billing.hour) * billing.hour / 3600.0 for hour in range(begun)]
        usd, free_usd = math.fsum(hours), math.fsum(hours[whole:])
    else:
        usd = _seconds_usd(usage, usage.started, billed_until)
        free_usd = _seconds_usd(usage, free_since, max(billed_until, free_since))
    time_line = _bill_line(usage, "time", usd, usage.started, settled=settled)
    refunded = billing.refund and usage.reliability is Reliability.TRANSIENT
    if not (refunded and usage.cause is MachineEndCause.PREEMPTED):
        return (time_line,)
    return time_line, _bill_line(usage, "refund", -free_usd, free_since, settled=settled)


def _seconds_usd(usage: MachineUsage, since: float, until: float) -> float:
    """Return the cost of the seconds between two moments, each at the price in effect [USD]."""
    edges = [since, *(change.since for change in usage.changes if since < change.since < until), until]
    return math.fsum(usage.price_at(edge) * (later - edge) / 3600.0 for edge, later in itertools.pairwise(edges))


def _bill_line(usage: MachineUsage, what: str, usd: float, since: WallTime, *, settled: bool) -> Charge:
    return Charge(
        charge_id=f"{usage.machine_id}-{what}",
        machine_id=usage.machine_id,
        amount_usd=Usd(round(usd, DIGITS)),
        started=since,
        ended=usage.ended,
        settled=settled,
    )


FILE = "market.db"
NAME = "local"
ADDRESS = "127.0.0.1"
_DIGITS_MAX = 18
_SCHEMA = """
CREATE TABLE IF NOT EXISTS opening (one INTEGER PRIMARY KEY CHECK (one = 1), at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS prices (since REAL PRIMARY KEY, config TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS orders (
    token TEXT PRIMARY KEY, refusal TEXT, message TEXT NOT NULL, cancelled INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS machines (
    machine_id TEXT PRIMARY KEY, token TEXT NOT NULL, owner TEXT NOT NULL, job_id TEXT NOT NULL,
    machine_type TEXT NOT NULL, zone TEXT NOT NULL, reliability TEXT NOT NULL, price REAL NOT NULL, bid REAL,
    billing TEXT NOT NULL, due REAL NOT NULL, started REAL, preemption_at REAL, ended REAL, cause TEXT,
    closed INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS machines_alive ON machines (ended) WHERE ended IS NULL;
CREATE INDEX IF NOT EXISTS machines_open ON machines (closed) WHERE closed = 0;
CREATE INDEX IF NOT EXISTS machines_of ON machines (owner, ended);
CREATE INDEX IF NOT EXISTS machines_from ON machines (token);
CREATE TABLE IF NOT EXISTS bill (
    line INTEGER PRIMARY KEY AUTOINCREMENT, charge_id TEXT NOT NULL, machine_id TEXT NOT NULL, owner TEXT NOT NULL,
    amount REAL NOT NULL, started REAL NOT NULL, ended REAL NOT NULL, settled INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS bill_of ON bill (owner, line);
"""


def read_opened_at(folder: Path) -> WallTime | None:
    """Return when a closed market was first opened, without writing to its file; None if it never was.

    Raises:
        ProviderUnreachable: the file cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
            row = database.execute("SELECT at FROM opening").fetchone()
    except sqlite3.Error as error:
        raise ProviderUnreachable(f"the local market cannot read {path}: {error}") from error
    return None if row is None else WallTime(row[0])


class MarketDatabase:
    """The open file; every method is one transaction."""

    def __init__(self, folder: Path) -> None:
        self._db = sqlite3.connect(folder / FILE, check_same_thread=False, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._prices: PricesInForce | None = None
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(_SCHEMA)
        columns = {row["name"] for row in self._db.execute("PRAGMA table_info(machines)")}
        if "allocation" not in columns:  # a market that was opened before gangs were sold
            with contextlib.suppress(sqlite3.OperationalError):  # another process has just added it
                self._db.execute("ALTER TABLE machines ADD COLUMN allocation TEXT NOT NULL DEFAULT ''")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def opened_at(self, now: WallTime) -> WallTime:
        """Return when this market was first opened, which is time 0 of its price series."""
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO opening (one, at) VALUES (1, ?)", (now,))
            return WallTime(db.execute("SELECT at FROM opening").fetchone()["at"])

    # -------------------------------------------------------------------------------------------------------- prices

    def enforce_prices(self, config: MarketConfig, now: WallTime) -> None:
        """Record that prices follow from this configuration from now on, unless they did before."""
        text = config.model_dump_json(include={"types", "zones", "prices"})
        with self._transaction() as db:
            newest = db.execute("SELECT since, config FROM prices ORDER BY since DESC LIMIT 1").fetchone()
            if newest is None or newest["config"] != text:
                since = now if newest is None else max(now, newest["since"])
                db.execute("INSERT OR REPLACE INTO prices VALUES (?, ?)", (since, text))
            rows = db.execute("SELECT since, config FROM prices ORDER BY since").fetchall()
        configs = tuple((WallTime(row["since"]), MarketConfig.model_validate_json(row["config"])) for row in rows)
        self._prices = PricesInForce(self.opened_at(now), configs)

    def _changes(self, row: sqlite3.Row, since: WallTime, until: WallTime) -> tuple[PriceChange, ...]:
        """Return the price in effect at a moment, and its changes after it; nothing where a machine's price does not move."""
        reliability = Reliability(row["reliability"])
        basis = Billing.model_validate_json(row["billing"]).rule(reliability).basis
        if self._prices is None or reliability is Reliability.RELIABLE or basis is BillingBasis.PURCHASE:
            return ()
        return self._prices.changes(row["machine_type"], row["zone"], since, until)

    def _listed_changes(self, row: sqlite3.Row, now: WallTime) -> tuple[PriceChange, ...]:
        """Return the newest changes, and the price at the machine's start if that is not the one at the purchase."""
        if row["started"] is None:
            return ()
        until = now if row["ended"] is None else min(now, _billed_until(row))
        since = max(row["started"], until - PRICES_LISTED_S)
        changes = self._changes(row, since, until)
        if changes and (since > row["started"] or changes[0].usd_per_hour == row["price"]):
            changes = changes[1:]
        return changes[-CHANGES_LISTED:]

    # -------------------------------------------------------------------------------------------------------- orders

    def answer(self, token: str) -> Answer | None:
        """Return the answer to an order's token; None if the token is unknown."""
        row = self._db.execute("SELECT * FROM orders WHERE token = ?", (token,)).fetchone()
        if row is None:
            return None
        found = self._db.execute("SELECT machine_id FROM machines WHERE token = ? ORDER BY machine_id", (token,))
        refusal = Refusal.CANCELLED if row["cancelled"] else row["refusal"] and Refusal(row["refusal"])
        return Answer(token, tuple(item["machine_id"] for item in found), refusal or None, row["message"])

    def record(self, answer: Answer, order: Order, price: float, billing: Billing, due: WallTime) -> None:
        """Store an order and its machines, in one transaction."""
        with self._transaction() as db:
            db.execute("INSERT INTO orders VALUES (?, ?, ?, 0)", (answer.token, answer.refusal, answer.message))
            offer = order.offer
            bought = (order.token, order.owner, order.job_id, offer.machine_type, offer.zone, offer.reliability)
            terms = (price, order.bid_usd_per_hour, billing.model_dump_json(), due, order.token if order.gang else "")
            db.executemany(
                "INSERT INTO machines (machine_id, token, owner, job_id, machine_type, zone, reliability, price, bid,"
                " billing, due, allocation) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(machine_id, *bought, *terms) for machine_id in answer.machine_ids],
            )

    def cancel(self, token: str) -> None:
        """Mark a token as cancelled, ordered or not."""
        message = "the order was cancelled"
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO orders VALUES (?, NULL, ?, 1)", (token, message))
            db.execute("UPDATE orders SET cancelled = 1, message = ? WHERE token = ?", (message, token))

    # ------------------------------------------------------------------------------------------------------- machines

    def alive(self) -> list[sqlite3.Row]:
        """Return the rows of all machines that have not ended, in the order of their due times."""
        return self._db.execute("SELECT * FROM machines WHERE ended IS NULL ORDER BY due, machine_id").fetchall()

    def allocated(self, row: sqlite3.Row) -> list[sqlite3.Row]:
        """Return the rows of the machines that live and end with a machine: its gang, or itself."""
        if not row["allocation"]:
            return [row]
        return self._db.execute("SELECT * FROM machines WHERE allocation = ?", (row["allocation"],)).fetchall()

    def machine(self, machine_id: str) -> sqlite3.Row | None:
        """Return the row of a machine."""
        row = self._db.execute("SELECT * FROM machines WHERE machine_id = ?", (machine_id,)).fetchone()
        assert row is None or isinstance(row, sqlite3.Row)
        return row

    def listed(self, owner: str, since: WallTime, now: WallTime) -> tuple[Machine, ...]:
        """Return an owner's machines, without those that ended before `since`, and their prices until now."""
        rows = self._db.execute(
            "SELECT * FROM machines WHERE owner = ? AND (ended IS NULL OR ended >= ?) ORDER BY due, machine_id",
            (owner, since),
        )
        return tuple(_machine(row, self._listed_changes(row, now)) for row in rows)

    def started(self, machine_id: str, at: WallTime, preemption_at: WallTime | None) -> None:
        """Record that a machine runs, and when it will be preempted."""
        with self._transaction() as db:
            db.execute(
                "UPDATE machines SET started = ?, preemption_at = ? WHERE machine_id = ?",
                (at, preemption_at, machine_id),
            )

    def ended(self, machine_id: str, end: MachineEnd) -> None:
        """Record a machine's end, and its lines on the bill, not yet settled."""
        with self._transaction() as db:
            db.execute(
                "UPDATE machines SET started = ?, preemption_at = ?, ended = ?, cause = ?, closed = ? WHERE machine_id = ?",
                (end.started, end.preemption_at, end.ended, end.cause, end.started is None, machine_id),
            )
            row = db.execute("SELECT * FROM machines WHERE machine_id = ?", (machine_id,)).fetchone()
            if end.started is not None:
                self._enter(row, settled=False)

    def settle(self, now: WallTime) -> None:
        """Close the bills whose lag has passed."""
        rows = self._db.execute("SELECT * FROM machines WHERE closed = 0 AND ended IS NOT NULL").fetchall()
        due = [row for row in rows if _billed_until(row) + Billing.model_validate_json(row["billing"]).lag <= now]
        if not due:
            return
        with self._transaction() as db:
            for row in due:
                db.execute("UPDATE machines SET closed = 1 WHERE machine_id = ?", (row["machine_id"],))
                self._enter(row, settled=True)

    def _enter(self, row: sqlite3.Row, *, settled: bool) -> None:
        usage = MachineUsage(
            row["machine_id"],
            row["price"],
            row["started"],
            row["ended"],
            MachineEndCause(row["cause"]),
            Reliability(row["reliability"]),
            self._changes(row, row["started"], _billed_until(row)),
        )
        for line in lines(usage, Billing.model_validate_json(row["billing"]), settled=settled):
            self._db.execute(
                "INSERT INTO bill (charge_id, machine_id, owner, amount, started, ended, settled)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    line.charge_id,
                    line.machine_id,
                    row["owner"],
                    line.amount_usd,
                    line.started,
                    line.ended,
                    line.settled,
                ),
            )

    def bill(self, owner: str, cursor: str) -> Bill:
        """Return each line that is new or has changed since a cursor, in its newest version.

        Raises:
            ValueError: the cursor is invalid.
        """
        rows = self._db.execute(
            "SELECT bill.*, job_id FROM bill JOIN machines USING (machine_id)"
            " WHERE bill.owner = ? AND line > ? ORDER BY line",
            (owner, _line(cursor)),
        ).fetchall()
        newest = {row["charge_id"]: row for row in rows}
        return Bill(tuple(map(_charge, newest.values())), str(rows[-1]["line"]) if rows else cursor)

    def forgettable(self, before: WallTime) -> Iterable[str]:
        """Return the machines that ended before a moment and whose bills are settled."""
        rows = self._db.execute("SELECT machine_id FROM machines WHERE closed = 1 AND ended < ?", (before,))
        return [row["machine_id"] for row in rows]

    def forget(self, machine_id: str) -> None:
        """Record that a machine's folder is deleted; its row is kept, for tokens and bills."""
        with self._transaction() as db:
            db.execute("UPDATE machines SET closed = 2 WHERE machine_id = ?", (machine_id,))


def _billed_until(row: sqlite3.Row) -> WallTime:
    """Return when the time ends that an ended machine is billed for, a minimum included."""
    if row["started"] is None:
        return WallTime(row["ended"])
    return WallTime(max(row["ended"], row["started"] + Billing.model_validate_json(row["billing"]).minimum))


def _line(cursor: str) -> int:
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= _DIGITS_MAX):
        raise ValueError("the cursor is invalid")
    return int(cursor or 0)


def _charge(row: sqlite3.Row) -> Charge:
    return Charge(
        charge_id=row["charge_id"],
        machine_id=row["machine_id"],
        amount_usd=Usd(row["amount"]),
        started=row["started"],
        ended=row["ended"],
        settled=bool(row["settled"]),
        job_id=row["job_id"],
    )


def _machine(row: sqlite3.Row, changes: tuple[PriceChange, ...]) -> Machine:
    life = (
        MachineLifecycle.GONE
        if row["ended"] is not None
        else MachineLifecycle.PENDING
        if row["started"] is None
        else MachineLifecycle.RUNNING
    )
    return Machine(
        machine_id=row["machine_id"],
        owner=row["owner"],
        job_id=row["job_id"],
        token=row["token"],
        provider=NAME,
        machine_type=row["machine_type"],
        zone=row["zone"],
        reliability=Reliability(row["reliability"]),
        price_usd_per_hour=row["price"],
        lifecycle=life,
        started=row["started"],
        ended=row["ended"],
        cause=None if row["cause"] is None else MachineEndCause(row["cause"]),
        preemption_at=row["preemption_at"],
        address=ADDRESS,
        allocation=row["allocation"],
        price_changes=changes,
    )
