"""The market itself: sells, starts, evicts, takes back and settles.  One lock; no state that is not in books or folders.

A machine is told what is wanted through its folder alone and says itself what has become of it there, so that it is all
the same to it whether this process lives.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from windfall.errors import WindfallError
from windfall.market import Answer, Bill, Boot, Ended, Machine, Offer, Order, Quota, Refusal
from windfall.ports import Clock
from windfall.providers.local import records
from windfall.providers.local.books import NAME, Books
from windfall.providers.local.config import FILE, Config, load
from windfall.providers.local.prices import spot_usd_per_hour
from windfall.terms import Instant, Reliability, Seconds, WallTime
from windfall.wire.programs import program

MACHINES = "machines"
UPLINK = "WINDFALL_UPLINK"
START_AGAIN_S = 10.0
"""After how long an init that was started and did not begin is started again [s]."""
STARTS_MAX = 3
STUBBORN_S = 5.0
"""After how long an init that does not obey is killed [s]."""


@dataclass(slots=True)
class _Try:
    """Attempts to start a machine's init, of this life of the market."""

    number: int = 0
    at: Instant | None = None


class Desk:
    """A market that is open."""

    def __init__(self, folder: Path, clock: Clock, note: Callable[[str], None]) -> None:
        """Open it.

        Args:
            folder: where everything is kept.
            clock: its time; what it bills by is the wall clock.
            note: takes a line for the market's log.

        Raises:
            Misuse: `market.yaml` is wrong.
        """
        self._folder, self._clock, self._note = folder, clock, note
        self._config_stamp = self._stamp()
        self._config = load(folder)
        self._books = Books(folder)
        self._opened_at = self._books.opened_at(clock.wall())
        self._lock = threading.Lock()
        self._tries: dict[str, _Try] = {}
        self._unread: set[str] = set()
        self._children: list[subprocess.Popen[bytes]] = []
        self._sweep()

    @property
    def config(self) -> Config:
        """What is sold now: the file is read again when it has changed."""
        return self._config

    def _stamp(self) -> tuple[int, int] | None:
        try:
            stat = (self._folder / FILE).stat()
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_ino

    def _reload(self) -> None:
        stamp = self._stamp()
        if stamp == self._config_stamp:
            return
        self._config_stamp = stamp
        try:
            self._config = load(self._folder)
        except WindfallError as error:
            self._note(f"{error}; the market goes on as before")

    def _sweep(self) -> None:
        """Remove the folders of machines that were never promised: their order died with an earlier market."""
        (self._folder / MACHINES).mkdir(mode=0o700, exist_ok=True)
        for folder in (self._folder / MACHINES).iterdir():
            if self._books.machine(folder.name) is None:
                shutil.rmtree(folder, ignore_errors=True)

    def _home(self, machine_id: str) -> Path:
        return self._folder / MACHINES / machine_id

    # ------------------------------------------------------------------------------------------------------- the port

    def offers(self) -> tuple[Offer, ...]:
        """See `ports.Provider.offers`."""
        with self._lock:
            self._reload()
            now = self._clock.wall()
            return tuple(
                offer
                for kind in self._config.types
                for zone in self._config.zones
                for offer in self._offers_of(kind, zone, now)
            )

    def _offers_of(self, kind: str, zone: str, now: WallTime) -> tuple[Offer, Offer]:
        config, sold = self._config, self._config.types[kind]
        spot = Offer(
            provider=NAME,
            machine_type=kind,
            zone=zone,
            price_usd_per_hour=self._spot(kind, zone, now),
            on_demand_usd_per_hour=sold.on_demand,
            reliability=Reliability.TRANSIENT,
            notice_s=Seconds(config.notice),
            quoted_at=now,
            cpus=sold.cpus,
            memory_gib=sold.memory_gib,
            startup_s=Seconds(config.allocation_delay),
            bid=config.bids,
            refund=config.billing.refund,
        )
        on_demand = Offer(
            provider=NAME,
            machine_type=kind,
            zone=zone,
            price_usd_per_hour=sold.on_demand,
            on_demand_usd_per_hour=sold.on_demand,
            reliability=Reliability.RELIABLE,
            notice_s=Seconds(0.0),
            quoted_at=now,
            cpus=sold.cpus,
            memory_gib=sold.memory_gib,
            startup_s=Seconds(config.allocation_delay),
        )
        return spot, on_demand

    def _spot(self, kind: str, zone: str, now: WallTime) -> float:
        return spot_usd_per_hour(self._config, kind, zone, Seconds(max(0.0, now - self._opened_at)))

    def quota(self, owner: str) -> tuple[Quota, ...]:
        """See `ports.Provider.quota`."""
        with self._lock:
            self._reload()
            self._look()
            alive = self._books.alive()
            return tuple(
                Quota(kind, zone, self._config.quota_of(kind, zone), _count(alive, kind, zone, owner))
                for kind in self._config.types
                for zone in self._config.zones
            )

    def order(self, order: Order, boot: Boot) -> Answer:
        """See `ports.Provider.order`.  Folders first, then the books: without its row a folder is worth nothing."""
        with self._lock:
            self._reload()
            known = self._books.answer(order.token)
            if known is not None:
                return known
            self._look()
            now = self._clock.wall()
            count, refusal, sentence = self._decide(order, boot, now)
            ids = tuple(_name(order.token, number) for number in range(count))
            price = 0.0
            if ids:
                price = self._price(order, now)
                plan = self._boot_of(order, boot)
                for machine_id in ids:
                    records.prepare(self._home(machine_id), plan)
            answer = Answer(order.token, ids, refusal, sentence)
            due = WallTime(now + self._config.allocation_delay)
            self._books.record(answer, order, price, self._config.billing, due)
            return answer

    def _price(self, order: Order, now: WallTime) -> float:
        offer = order.offer
        if offer.reliability is Reliability.RELIABLE:
            return self._config.types[offer.machine_type].on_demand
        return self._spot(offer.machine_type, offer.zone, now)

    def _boot_of(self, order: Order, boot: Boot) -> dict[str, Any]:
        sold = self._config.types[order.offer.machine_type]
        uplink = {} if sold.uplink is None else {UPLINK: sold.uplink}
        env = {**dict(boot.env), **uplink}
        return {"argv": boot.argv, "env": env, "speed": sold.speed, "isolation": self._config.isolation}

    def _decide(self, order: Order, boot: Boot, now: WallTime) -> tuple[int, Refusal | None, str]:
        """Return how many machines are sold, why not more, and the sentence for the user."""
        if wrong := self._wrong_with(order, boot):
            return 0, Refusal.INVALID, wrong
        offer, bid = order.offer, order.bid_usd_per_hour
        place = f"{offer.machine_type} in {offer.zone}"
        price = self._price(order, now)
        if bid is not None and price > bid:
            return 0, Refusal.PRICE, f"{place} costs {price:.4f} USD/h now, more than the bid of {bid:.4f}"
        alive = self._books.alive()
        quota = self._config.quota_of(offer.machine_type, offer.zone)
        allowed = quota - _count(alive, offer.machine_type, offer.zone, order.owner)
        capacity = self._config.capacity_of(offer.machine_type, offer.zone)
        left = capacity - _count(alive, offer.machine_type, offer.zone)
        count = max(0, min(order.count_max, allowed, left))
        if count == order.count_max:
            return count, None, ""
        if allowed <= left:
            refusal, why = Refusal.QUOTA, f"the quota of {place} is {quota}"
        else:
            refusal, why = Refusal.NO_CAPACITY, f"no capacity for more of {place} now"
        if count < order.count_min:
            return 0, refusal, f"{why}: {count} of at least {order.count_min} could be had"
        return count, refusal, f"{why}: {count} of {order.count_max} bought"

    def _wrong_with(self, order: Order, boot: Boot) -> str:
        """Return why an order makes no sense here; empty if it does."""
        offer, config = order.offer, self._config
        if offer.machine_type not in config.types:
            return f"the local market sells no {offer.machine_type!r}; it has {', '.join(config.types)}"
        if offer.zone not in config.zones:
            return f"the local market has no zone {offer.zone!r}; it has {', '.join(config.zones)}"
        if not 1 <= order.count_min <= order.count_max:
            return f"{order.count_min} to {order.count_max} machines cannot be ordered"
        if order.bid_usd_per_hour is not None and not config.bids:
            return "the local market takes no bids now"
        return "" if boot.argv else "a machine needs a command to run"

    def cancel(self, token: str) -> None:
        """See `ports.Provider.cancel`."""
        with self._lock:
            self._books.cancel(token)
            for row in self._books.alive():
                if row["token"] == token:
                    self._withdraw(row, Ended.RELEASED)
            self._look()

    def _withdraw(self, row: sqlite3.Row, cause: Ended) -> bool:
        """End a machine that has not begun; False if it has."""
        word = {"withdrawn": cause.value, "at": self._clock.wall()}
        return row["began"] is None and records.begin(self._home(row["machine_id"]), word)

    def list(self, owner: str) -> tuple[Machine, ...]:
        """See `ports.Provider.list`."""
        with self._lock:
            self._look()
            return self._books.listed(owner, WallTime(self._clock.wall() - self._config.forget_after))

    def release(self, machine_id: str) -> None:
        """See `ports.Provider.release`."""
        with self._lock:
            self._take(machine_id, Ended.RELEASED, {"release": True})

    def preempt(self, machine_id: str, notice_s: Seconds | None) -> None:
        """See `ports.Provider.preempt`."""
        with self._lock:
            self._take(machine_id, Ended.PREEMPTED, {"preempt": notice_s})

    def _take(self, machine_id: str, cause: Ended, wish: dict[str, Any]) -> None:
        row = self._books.machine(machine_id)
        if row is None or row["ended"] is not None:
            return
        if not self._withdraw(row, cause):
            self._wish(machine_id, wish)
        self._look()

    def _wish(self, machine_id: str, wish: dict[str, Any]) -> None:
        """Tell a machine what is wanted, and until when it must have been done; the earliest word counts."""
        home = self._home(machine_id)
        earlier = records.read(home, "wish.json") or {}
        by = self._clock.wall() + (wish.get("preempt") or 0.0)
        if wish.get("release") or by < earlier.get("by", float("inf")):
            records.write(home, "wish.json", {**earlier, **wish, "by": min(by, earlier.get("by", by))})

    def charges(self, owner: str, cursor: str) -> Bill:
        """See `ports.Provider.charges`."""
        with self._lock:
            self._look()
            return self._books.bill(owner, cursor)

    # -------------------------------------------------------------------------------------------------- what happens

    def tick(self) -> int:
        """Let happen what is due; return how many machines have not ended."""
        with self._lock:
            self._reload()
            self._children = [child for child in self._children if child.poll() is None]
            self._look()
            alive = self._books.alive()
            for row in alive:
                if row["began"] is None:
                    self._start(row)
                else:
                    self._press(row)
            self._forget()
            return len(alive)

    def _look(self) -> None:
        """Write down what the machines' folders say; then close the bills that are due."""
        for row in self._books.alive():
            try:
                self._look_at(row)
            except (ValueError, KeyError, TypeError) as error:
                # One machine's folder that somebody wrote into must not keep the others from being billed.
                self._complain(row["machine_id"], error)
        self._books.settle(self._clock.wall())

    def _complain(self, machine_id: str, error: Exception) -> None:
        if machine_id not in self._unread:
            self._unread.add(machine_id)
            self._note(f"{machine_id}: what its folder says cannot be read ({type(error).__name__}: {error})")

    def _look_at(self, row: sqlite3.Row) -> None:
        machine_id = row["machine_id"]
        home = self._home(machine_id)
        fate = records.fate(home)
        if fate is None and not home.exists():
            # Somebody deleted it; its init has seen that and ended.
            fate = records.Fate(row["began"], self._clock.wall(), Ended.FAILED, row["taken_at"])
        if fate is not None:
            self._books.ended(machine_id, fate)
            self._tries.pop(machine_id, None)
            records.wipe_disk(home)
            self._note(f"{machine_id} ended: {fate.cause}")
            return
        start = records.read(home, "began.json")
        if start is None:
            return
        taken_at = records.announced_end(home)
        if (row["began"], row["taken_at"]) != (start["began"], taken_at):
            self._books.began(machine_id, start["began"], taken_at)

    def _start(self, row: sqlite3.Row) -> None:
        machine_id = row["machine_id"]
        tried = self._tries.setdefault(machine_id, _Try())
        if row["due"] > self._clock.wall():
            return
        if tried.at is not None and self._clock.now() < tried.at + START_AGAIN_S:
            return
        if tried.number == STARTS_MAX:
            self._withdraw(row, Ended.FAILED)
            return
        tried.number, tried.at = tried.number + 1, self._clock.now()
        home = self._home(machine_id)
        with open(home / "init.log", "ab") as log:
            self._children.append(
                subprocess.Popen(
                    program("windfall.providers.local.machine", str(home)),
                    cwd=home,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        self._note(f"{machine_id} starts")

    def _press(self, row: sqlite3.Row) -> None:
        """See that a machine that must go does, and that one must whose bid the market has passed."""
        home = self._home(row["machine_id"])
        wish = records.read(home, "wish.json")
        if wish is not None:
            if self._clock.wall() > wish["by"] + STUBBORN_S:
                records.kill_init(home)
        elif row["reliability"] == Reliability.TRANSIENT and self._is_outbid(row):
            self._wish(row["machine_id"], {"preempt": self._config.notice or None})

    def _is_outbid(self, row: sqlite3.Row) -> bool:
        """Whether the price is above the bid, or above the on-demand price where there is none."""
        kind, zone = row["machine_type"], row["zone"]
        if kind not in self._config.types or zone not in self._config.zones:
            return False
        limit = self._config.types[kind].on_demand if row["bid"] is None else row["bid"]
        return self._spot(kind, zone, self._clock.wall()) > limit

    def _forget(self) -> None:
        """Remove what is left of machines that nobody lists any more; their rows stay, for the bill."""
        before = WallTime(self._clock.wall() - self._config.forget_after)
        for machine_id in self._books.forgettable(before):
            shutil.rmtree(self._home(machine_id), ignore_errors=True)
            self._books.forget(machine_id)


def _count(rows: list[sqlite3.Row], kind: str, zone: str, owner: str | None = None) -> int:
    return sum(row["machine_type"] == kind and row["zone"] == zone and owner in (None, row["owner"]) for row in rows)


def _name(token: str, number: int) -> str:
    """Return a machine's name: another for each token and number, the same each time."""
    return f"m-{sha256(f'{token}/{number}'.encode()).hexdigest()[:12]}"
