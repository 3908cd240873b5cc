"""How long a controller needs to be back in the middle of a long job, and what a journal grows by.

The restart is that of a real process, killed by SIGKILL, on a database with a job of a million rows: from its start until it
answers and the job loop has written its next row.  The yardstick is the same without snapshots: all rows are replayed.

The month is that of 100 machines on a market of 300 offers, polled every 30 s, in which each price moves four times a day:
the rows and bytes of the job's journal, against one in which each change repeats all offers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.driver import OFFER, Market
from benchmarks.harness import Benchmark
from windfall import codec
from windfall.core import driver, offer_changes
from windfall.core.fleet_state import FleetState
from windfall.events import Fact, Row
from windfall.fleet import (
    ChargesObserved,
    JobSubmitted,
    Lifetime,
    MachineReported,
    MachinesMissing,
    OffersObserved,
    PlaceOrder,
)
from windfall.jobs import Resources
from windfall.linux.clock import SystemClock
from windfall.market import Charge, Offer, Order
from windfall.storage.database import open_database
from windfall.structs import replace
from windfall.terms import Step, WallTime

ROWS, NODES = 1_000_000, 10
LIMIT_S = 2.0
SHARE_LIMIT = 0.1
"""Of the time that a full replay takes; it is far less for a million rows."""
WAIT_S = 900.0
JOB_ID = "j"
_LOSS_EVERY = 50
_PAGE = 20_000

MONTH_S, POLL_S, NODES_MONTH, OFFERS_MONTH, MOVES_A_DAY = 30 * 86400, 30, 100, 300, 4
BYTES_LIMIT = 0.05
"""Of the bytes of a journal that repeats all offers whenever one changes."""


# ------------------------------------------------------------------------------------------------------- a long journal


class Written(Market):
    """A market whose job keeps its journal."""

    def __init__(self, nodes: int, seed: int, keep: Callable[[int, str], None]) -> None:
        self.chance = random.Random(seed)
        self.rows = 0
        self.bytes = 0
        self.keep = keep
        self.lifetimes: list[Lifetime] = []
        super().__init__(nodes)

    def happens(self, *facts: Fact) -> list[Order]:
        """React, and write the row."""
        self.now += 1.0
        # The market of the controller that takes over sells nothing that would do: it buys no machine.
        asked = (Resources("local", machine_type="large"),)
        facts = tuple(
            replace(fact, job=replace(fact.job, resources=asked)) if isinstance(fact, JobSubmitted) else fact
            for fact in facts
        )
        self.state, decisions, commands = driver.react(self.state, self.now, facts)
        self.rows += 1
        line = codec.row_to_line(Row(1, self.rows, self.now, self.now, facts, decisions, commands))
        self.bytes += len(line)
        self.keep(self.rows, line)
        return [command.order for command in commands if isinstance(command, PlaceOrder)]

    def reports(self) -> None:
        """A machine tells news."""
        machine = self.chance.choice(list(self.machines.values()))
        heard = self._heard(machine).report
        self.made += 1
        self.happens(MachineReported(replace(heard, sequence=self.made, step=Step(self.made)), "direct"))

    def replaces(self) -> None:
        """A machine is lost and billed, and its successor comes."""
        for gone in self.loses([self.chance.choice(list(self.machines))]):
            assert gone.started is not None and gone.ended is not None  # noqa: PT018 - both or neither
            where = (gone.provider, gone.machine_type, gone.zone)
            self.lifetimes.append(Lifetime(gone.machine_id, *where, gone.started, gone.ended, True, False))
            name, usd = gone.machine_id, (gone.ended - gone.started) / 3600.0 * gone.price_usd_per_hour
            self.happens(ChargesObserved((Charge(name, name, usd, gone.started, gone.ended, True),), "local", name))
            self.comes()
            self.happens(MachinesMissing((name,)))


def write_job(path: Path, rows: int = ROWS, nodes: int = NODES, seed: int = 1) -> FleetState:
    """Make a database with a job in the middle of its training; return the driver's state after its last row."""
    page: list[tuple[str, int, str]] = []
    with contextlib.closing(open_database(str(path), SystemClock())) as database:
        term = database.acquire("benchmark")
        with contextlib.closing(sqlite3.connect(path)) as connection:

            def flush() -> None:
                with connection:
                    connection.executemany("INSERT INTO journal_rows VALUES (?, ?, ?)", page)
                page.clear()

            def keep(number: int, line: str) -> None:
                page.append((JOB_ID, number, line))
                if len(page) >= _PAGE:
                    flush()

            market = Written(nodes, seed, keep)
            market.comes()
            while market.rows < rows:
                if market.rows % _LOSS_EVERY == 0 and market.rows < rows - _LOSS_EVERY:
                    market.replaces()
                else:
                    market.reports()
            flush()
        database.put_lifetimes(term, market.lifetimes)
        database.add_job(term, market.state.the_job, {})
    return market.state


# ----------------------------------------------------------------------------------------------------- a real controller


@dataclasses.dataclass
class Restarts:
    """A controller that is started and killed on one database again and again.

    Attributes:
        folder: of the installation.
        log: what the controllers said.
    """

    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "controller.db"

    def start(self, *, snapshot: bool = True) -> tuple[float, float]:
        """Start a controller and kill it; return when it answered and when its job reacted [s].

        Args:
            snapshot: wait until the job has one before the kill; a job of few rows never has.
        """
        before = self.rows_written()
        address = self.folder / "controller.json"
        address.unlink(missing_ok=True)
        variables = {name: value for name, value in os.environ.items() if not name.startswith("WINDFALL_")}
        with (self.folder / "log").open("ab") as log:
            began = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "windfall.cli.controller_process", str(self.folder), "3600"],
                env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                answered = began + self._until(lambda: self._answers(address, process), began)
                reacted = self._until(lambda: self.rows_written() > before, began)
                if snapshot:
                    self._until(lambda: self._scalar("SELECT count(*) FROM snapshots") > 0, began)
            finally:
                process.kill()
                process.wait()
        return answered - began, reacted

    def forget_snapshots(self) -> None:
        """Leave the journal alone."""
        with contextlib.closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute("DELETE FROM snapshots")

    def rows_written(self) -> int:
        """Return the number of rows in the journal."""
        return self._scalar("SELECT max(sequence) FROM journal_rows")

    def rows_after(self, number: int) -> Iterator[Row]:
        """Yield what controllers added to the journal."""
        with contextlib.closing(open_database(str(self.database), SystemClock())) as database:
            for _, line in database.rows(JOB_ID, after=number):
                yield codec.row_from_line(line)

    def close(self) -> None:
        """Remove everything; a market whose folder is gone ends by itself."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _scalar(self, query: str) -> int:
        with contextlib.closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            return int(connection.execute(query).fetchone()[0])

    def _answers(self, address: Path, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, (self.folder / "log").read_text()[-2000:]
        try:
            url = json.loads(address.read_text())["url"]
            with urllib.request.urlopen(f"{url}/v1/ping", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, ValueError):
            return False

    def _until(self, done: Callable[[], bool], began: float) -> float:
        while not done():
            assert time.perf_counter() < began + WAIT_S, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.005)
        return time.perf_counter() - began


def opened(folder: Path) -> Restarts:
    """An installation on whose market nothing is for sale that the job could use."""
    (folder / "market").mkdir(parents=True, mode=0o700)
    (folder / "market" / "market.yaml").write_text("types: {small: {on_demand: 36.0}}\nzones: [here]\nidle_exit: 5s\n")
    return Restarts(folder)


def restart() -> Benchmark:
    """A million rows: back from the newest snapshot, or from the first row."""
    installation = opened(Path(tempfile.mkdtemp(prefix="windfall-restart-")) / "state")
    write_job(installation.database)
    installation.start()

    def ours() -> float:
        answered, reacted = installation.start()
        print(f"    restart of {ROWS:,} rows: answers after {answered:.2f} s, its job reacts after {reacted:.2f} s")
        assert max(answered, reacted) < LIMIT_S, "a restart takes less than two seconds"
        return reacted

    def yardstick() -> float:
        installation.forget_snapshots()
        return installation.start()[1]

    return Benchmark(
        name="restart: 1,000,000 rows, snapshot vs replay",
        ours=ours,
        yardstick=yardstick,
        target=SHARE_LIMIT,
        at_most=True,
        unit="s",
        rounds=2,
        close=installation.close,
    )


# ------------------------------------------------------------------------------------------------------ a month's journal


def offers_of(count: int) -> tuple[Offer, ...]:
    """So many kinds of machines; the first is what the job has."""
    return (
        OFFER,
        *(replace(OFFER, machine_type=f"type-{number}", zone=f"zone-{number % 6}") for number in range(count - 1)),
    )


@functools.cache
def month(*, whole: bool, days: int = 30, seed: int = 1) -> tuple[int, int]:
    """Simulate a month's journal; return its rows and bytes.

    Args:
        whole: each change of an offer repeats all of them, as in version 4.
        days: the length of the month.
        seed: of losses and prices.
    """
    market = Written(NODES_MONTH, seed, lambda _number, _line: None)
    offers = offers_of(OFFERS_MONTH)
    market.happens(OffersObserved(offers))
    market.comes()
    moves_per_poll = OFFERS_MONTH * MOVES_A_DAY * POLL_S / 86400
    losses_per_poll = NODES_MONTH * POLL_S / 86400  # a machine lives for a day
    for poll in range(days * 86400 // POLL_S):
        market.now = max(market.now, 1e9 + poll * POLL_S)
        if market.chance.random() < losses_per_poll:
            market.replaces()
        if market.chance.random() < moves_per_poll:
            place = market.chance.randrange(1, len(offers))
            usd = round(market.chance.uniform(0.2, 0.9), 4)
            moved = replace(offers[place], price_usd_per_hour=usd)
            offers = (*offers[:place], moved, *offers[place + 1 :])
            offers = tuple(replace(offer, quoted_at=WallTime(market.now)) for offer in offers)
            seen = OffersObserved(offers)
            fact = seen if whole else offer_changes.difference(market.state, seen)
            if fact is not None:
                market.happens(fact)
    return market.rows, market.bytes


def journal_month() -> Benchmark:
    """A month's journal as differences, against one that repeats all offers."""

    def told(*, whole: bool) -> float:
        rows, size = month(whole=whole)
        print(f"    a month, {'all offers' if whole else 'differences'}: {rows:,} rows, {size / 1e6:,.1f} MB")
        return size / 1e6

    return Benchmark(
        name="journal: a month by differences vs all offers",
        ours=lambda: told(whole=False),
        yardstick=lambda: told(whole=True),
        target=BYTES_LIMIT,
        at_most=True,
        unit="MB",
        rounds=2,
    )


def benchmarks() -> list[Callable[[], Benchmark]]:
    """What `python -m benchmarks restart` measures."""
    return [journal_month, restart]
