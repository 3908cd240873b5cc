"""The market engine: sells, starts, preempts, releases and bills machines.  One lock; all state is on disk.

A machine and the market communicate only through the machine's folder, so that the machine does not depend on this
process.
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
from windfall.market import Answer, Bill, BootSpec, Machine, MachineEndCause, Offer, Order, Quota, Refusal
from windfall.ports import Clock
from windfall.providers.local import machine_folder
from windfall.providers.local.market_config import FILE, MarketConfig, load
from windfall.providers.local.market_database import NAME, MarketDatabase
from windfall.providers.local.market_prices import spot_usd_per_hour
from windfall.terms import Instant, Reliability, Seconds, WallTime
from windfall.wire.python_programs import program


def offers_of(config: MarketConfig, opened_at: WallTime, now: WallTime) -> tuple[Offer, ...]:
    """Return what a market offers at a moment: each machine on spot and on demand.

    Args:
        config: of the market.
        opened_at: when it was first opened.
        now: the moment.
    """
    open_s = Seconds(max(0.0, now - opened_at))
    pairs = (_pair(config, kind, zone, open_s, now) for kind in config.types for zone in config.zones)
    return tuple(offer for pair in pairs for offer in pair)


def _pair(config: MarketConfig, kind: str, zone: str, open_s: Seconds, now: WallTime) -> tuple[Offer, Offer]:
    sold = config.types[kind]
    spot = Offer(
        provider=NAME,
        machine_type=kind,
        zone=zone,
        price_usd_per_hour=spot_usd_per_hour(config, kind, zone, open_s),
        on_demand_usd_per_hour=sold.on_demand,
        reliability=Reliability.TRANSIENT,
        notice_s=Seconds(config.notice),
        quoted_at=now,
        cpus=sold.cpus,
        memory_gib=sold.memory_gib,
        startup_s=Seconds(config.allocation_delay),
        bid=config.bids,
        refund=config.billing.refund,
        billing=config.billing.rule(Reliability.TRANSIENT),
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
        billing=config.billing.rule(Reliability.RELIABLE),
    )
    return spot, on_demand


def quotas_of(config: MarketConfig, used: Callable[[str, str], int]) -> tuple[Quota, ...]:
    """Return an owner's limits in a market.

    Args:
        config: of the market.
        used: returns how many machines of a type the owner has in a zone.
    """
    return tuple(
        Quota(kind, zone, config.quota_of(kind, zone), used(kind, zone))
        for kind in config.types
        for zone in config.zones
    )


MACHINES = "machines"
UPLINK, NETWORK = "WINDFALL_UPLINK", "WINDFALL_NETWORK"
KERNEL_SPEED, TURN_S = "WINDFALL_KERNEL_SPEED", "WINDFALL_TURN_S"
START_AGAIN_S = 10.0
"""After how long an init that has not started its machine is started again [s]."""
STARTS_MAX = 3
KILL_AFTER_S = 5.0
"""How long after its deadline an init that ignored a request is killed [s]."""


@dataclass(slots=True)
class _StartTries:
    """Attempts to start a machine's init, by this process."""

    number: int = 0
    at: Instant | None = None


class MarketEngine:
    """An open market."""

    def __init__(self, folder: Path, clock: Clock, log: Callable[[str], None]) -> None:
        """Open the market.

        Args:
            folder: the market's folder.
            clock: its time; bills use the wall clock.
            log: writes a line to the market's log.

        Raises:
            Misuse: `market.yaml` is wrong.
        """
        self._folder, self._clock, self._log = folder, clock, log
        self._config_stamp = self._stamp()
        self._config = load(folder)
        self._database = MarketDatabase(folder)
        self._opened_at = self._database.opened_at(clock.wall_time())
        self._database.enforce_prices(self._config, clock.wall_time())
        self._lock = threading.Lock()
        self._tries: dict[str, _StartTries] = {}
        self._unread: set[str] = set()
        self._children: list[subprocess.Popen[bytes]] = []
        self._sweep()

    @property
    def config(self) -> MarketConfig:
        """The current configuration; the file is read again when it has changed."""
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
            self._log(f"{error}; the market keeps its previous configuration")
            return
        self._database.enforce_prices(self._config, self._clock.wall_time())

    def _sweep(self) -> None:
        """Remove the folders of machines whose order never became durable, because the daemon was killed."""
        (self._folder / MACHINES).mkdir(mode=0o700, exist_ok=True)
        for folder in (self._folder / MACHINES).iterdir():
            if self._database.machine(folder.name) is None:
                shutil.rmtree(folder, ignore_errors=True)

    def _home(self, machine_id: str) -> Path:
        return self._folder / MACHINES / machine_id

    # ------------------------------------------------------------------------------------------------------- the port

    def offers(self) -> tuple[Offer, ...]:
        """See `ports.Provider.offers`."""
        with self._lock:
            self._reload()
            return offers_of(self._config, self._opened_at, self._clock.wall_time())

    def _spot(self, kind: str, zone: str, now: WallTime) -> float:
        return spot_usd_per_hour(self._config, kind, zone, Seconds(max(0.0, now - self._opened_at)))

    def quota(self, owner: str) -> tuple[Quota, ...]:
        """See `ports.Provider.quota`."""
        with self._lock:
            self._reload()
            self._refresh()
            alive = self._database.alive()
            return quotas_of(self._config, lambda kind, zone: _count(alive, kind, zone, owner))

    def order(self, order: Order, boot: BootSpec) -> Answer:
        """See `ports.Provider.order`.  Folders first, then the database: a folder without its row has no effect."""
        with self._lock:
            self._reload()
            known = self._database.answer(order.token)
            if known is not None:
                return known
            self._refresh()
            now = self._clock.wall_time()
            count, refusal, message = self._decide(order, boot, now)
            ids = tuple(_name(order.token, number) for number in range(count))
            price = 0.0
            if ids:
                price = self._price(order, now)
                plan = self._boot_of(order, boot)
                for machine_id in ids:
                    machine_folder.prepare(self._home(machine_id), plan)
            answer = Answer(order.token, ids, refusal, message)
            due = WallTime(now + self._config.allocation_delay)
            self._database.record(answer, order, price, self._config.billing, due)
            return answer

    def _price(self, order: Order, now: WallTime) -> float:
        offer = order.offer
        if offer.reliability is Reliability.RELIABLE:
            return self._config.types[offer.machine_type].on_demand
        return self._spot(offer.machine_type, offer.zone, now)

    def _boot_of(self, order: Order, boot: BootSpec) -> dict[str, Any]:
        sold = self._config.types[order.offer.machine_type]
        block = dict(boot.block)
        uplink = block.get("uplink", sold.uplink)
        kernel_speed = f"{sold.kernel_speed:g}" if sold.kernel_speed < 1.0 else None
        turn_s = f"{sold.turn_s:g}" if sold.turn_s else None
        limits = {UPLINK: uplink, NETWORK: sold.network, KERNEL_SPEED: kernel_speed, TURN_S: turn_s}
        env = {**boot.environment(), **{name: value for name, value in limits.items() if value is not None}}
        speed = block.get("speed", sold.speed)
        return {"argv": boot.argv, "env": env, "speed": speed, "isolation": self._config.isolation}

    def _decide(self, order: Order, boot: BootSpec, now: WallTime) -> tuple[int, Refusal | None, str]:
        """Return how many machines are sold, why not more, and the message for the user."""
        if wrong := self._wrong_with(order, boot):
            return 0, Refusal.INVALID, wrong
        offer, bid = order.offer, order.bid_usd_per_hour
        place = f"{offer.machine_type} in {offer.zone}"
        price = self._price(order, now)
        if bid is not None and price > bid:
            return 0, Refusal.PRICE, f"{place} costs {price:.4f} USD/h now, more than the bid of {bid:.4f} USD/h"
        alive = self._database.alive()
        quota = self._config.quota_of(offer.machine_type, offer.zone)
        allowed = quota - _count(alive, offer.machine_type, offer.zone, order.owner)
        capacity = self._config.capacity_of(offer.machine_type, offer.zone)
        left = capacity - _count(alive, offer.machine_type, offer.zone)
        count = max(0, min(order.count_max, allowed, left))
        if count == order.count_max:
            return count, None, ""
        if allowed <= left:
            refusal, reason = Refusal.QUOTA, f"the quota of {place} is {quota}"
        else:
            refusal, reason = Refusal.NO_CAPACITY, f"no capacity for more of {place} now"
        if count < order.count_min:
            return 0, refusal, f"{reason}: {count} of at least {order.count_min} available"
        return count, refusal, f"{reason}: {count} of {order.count_max} bought"

    def _wrong_with(self, order: Order, boot: BootSpec) -> str:
        """Return why an order is invalid here; empty if it is valid."""
        offer, config = order.offer, self._config
        if offer.machine_type not in config.types:
            return f"the local market has no machine type {offer.machine_type!r}: choose {', '.join(config.types)}"
        if offer.zone not in config.zones:
            return f"the local market has no zone {offer.zone!r}: choose {', '.join(config.zones)}"
        if not 1 <= order.count_min <= order.count_max:
            return f"{order.count_min} to {order.count_max} machines cannot be ordered"
        if order.bid_usd_per_hour is not None and not config.bids:
            return "the local market does not accept bids"
        return "" if boot.argv else "a machine needs a command to run"

    def cancel(self, token: str) -> None:
        """See `ports.Provider.cancel`."""
        with self._lock:
            self._database.cancel(token)
            for row in self._database.alive():
                if row["token"] == token:
                    self._withdraw(row, MachineEndCause.RELEASED)
            self._refresh()

    def _withdraw(self, row: sqlite3.Row, cause: MachineEndCause) -> bool:
        """End a machine that has not started; False if it has."""
        word = {"withdrawn": cause.value, "at": self._clock.wall_time()}
        return row["started"] is None and machine_folder.decide_start(self._home(row["machine_id"]), word)

    def list(self, owner: str) -> tuple[Machine, ...]:
        """See `ports.Provider.list`."""
        with self._lock:
            self._refresh()
            now = self._clock.wall_time()
            return self._database.listed(owner, WallTime(now - self._config.forget_after), now)

    def release(self, machine_id: str) -> None:
        """See `ports.Provider.release`."""
        with self._lock:
            self._take(machine_id, MachineEndCause.RELEASED, {"release": True})

    def preempt(self, machine_id: str, notice_s: Seconds | None) -> None:
        """See `ports.Provider.preempt`."""
        with self._lock:
            self._take(machine_id, MachineEndCause.PREEMPTED, {"preempt": notice_s})

    def _take(self, machine_id: str, cause: MachineEndCause, request: dict[str, Any]) -> None:
        row = self._database.machine(machine_id)
        if row is None or row["ended"] is not None:
            return
        for one in self._database.allocated(row):
            if one["ended"] is None and not self._withdraw(one, cause):
                self._request_end(one["machine_id"], request)
        self._refresh()

    def _request_end(self, machine_id: str, request: dict[str, Any]) -> None:
        """Ask a machine to end, and by when; of several requests the earliest counts."""
        home = self._home(machine_id)
        earlier = machine_folder.read(home, "request.json") or {}
        by = self._clock.wall_time() + (request.get("preempt") or 0.0)
        if request.get("release") or by < earlier.get("by", float("inf")):
            machine_folder.write(home, "request.json", {**earlier, **request, "by": min(by, earlier.get("by", by))})

    def charges(self, owner: str, cursor: str) -> Bill:
        """See `ports.Provider.charges`."""
        with self._lock:
            self._refresh()
            return self._database.bill(owner, cursor)

    # -------------------------------------------------------------------------------------------------- what happens

    def tick(self) -> int:
        """Do what is due; return how many machines have not ended."""
        with self._lock:
            self._reload()
            self._children = [child for child in self._children if child.poll() is None]
            self._refresh()
            alive = self._database.alive()
            for row in alive:
                if row["started"] is None:
                    self._start(row)
                else:
                    self._enforce(row)
            self._forget()
            return len(alive)

    def _refresh(self) -> None:
        """Record what the machines' folders say; then settle the bills that are due."""
        for row in self._database.alive():
            try:
                self._refresh_machine(row)
            except (ValueError, KeyError, TypeError) as error:
                # A damaged folder of one machine must not keep the others from being billed.
                self._log_unreadable(row["machine_id"], error)
        self._database.settle(self._clock.wall_time())

    def _log_unreadable(self, machine_id: str, error: Exception) -> None:
        if machine_id not in self._unread:
            self._unread.add(machine_id)
            self._log(f"{machine_id}: cannot read its folder ({type(error).__name__}: {error})")

    def _refresh_machine(self, row: sqlite3.Row) -> None:
        machine_id = row["machine_id"]
        home = self._home(machine_id)
        end = machine_folder.machine_end(home)
        if end is None and not home.exists():
            # The folder was deleted; the init has noticed that and ended.
            end = machine_folder.MachineEnd(
                row["started"], self._clock.wall_time(), MachineEndCause.FAILED, row["preemption_at"]
            )
        if end is not None:
            self._database.ended(machine_id, end)
            self._tries.pop(machine_id, None)
            machine_folder.wipe_disk(home)
            self._log(f"{machine_id} ended: {end.cause}")
            return
        start = machine_folder.read(home, "started.json")
        if start is None:
            return
        preemption_at = machine_folder.announced_end(home)
        if (row["started"], row["preemption_at"]) != (start["started"], preemption_at):
            self._database.started(machine_id, start["started"], preemption_at)

    def _start(self, row: sqlite3.Row) -> None:
        machine_id = row["machine_id"]
        if any(one["ended"] is not None for one in self._database.allocated(row)):
            self._withdraw(row, MachineEndCause.PREEMPTED)
            return
        tries = self._tries.setdefault(machine_id, _StartTries())
        if row["due"] > self._clock.wall_time():
            return
        if tries.at is not None and self._clock.now() < tries.at + START_AGAIN_S:
            return
        if tries.number == STARTS_MAX:
            self._withdraw(row, MachineEndCause.FAILED)
            return
        tries.number, tries.at = tries.number + 1, self._clock.now()
        home = self._home(machine_id)
        with open(home / "init.log", "ab") as log:
            self._children.append(
                subprocess.Popen(
                    program("windfall.providers.local.machine_init", str(home)),
                    cwd=home,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        self._log(f"{machine_id} starts")

    def _enforce(self, row: sqlite3.Row) -> None:
        """Kill a machine that is overdue to end; preempt one whose bid the price has passed, or whose gang lost another."""
        home = self._home(row["machine_id"])
        request = machine_folder.read(home, "request.json")
        if request is None and any(one["ended"] is not None for one in self._database.allocated(row)):
            self._request_end(row["machine_id"], {"preempt": None})
        elif request is not None:
            if self._clock.wall_time() > request["by"] + KILL_AFTER_S:
                machine_folder.kill_init(home)
        elif row["reliability"] == Reliability.TRANSIENT and self._is_outbid(row):
            self._request_end(row["machine_id"], {"preempt": self._config.notice or None})

    def _is_outbid(self, row: sqlite3.Row) -> bool:
        """Return whether the price is above the bid, or above the on-demand price if there is no bid."""
        kind, zone = row["machine_type"], row["zone"]
        if kind not in self._config.types or zone not in self._config.zones:
            return False
        limit = self._config.types[kind].on_demand if row["bid"] is None else row["bid"]
        return self._spot(kind, zone, self._clock.wall_time()) > limit

    def _forget(self) -> None:
        """Delete the folders of machines that are no longer listed; their rows are kept, for the bill."""
        before = WallTime(self._clock.wall_time() - self._config.forget_after)
        for machine_id in self._database.forgettable(before):
            shutil.rmtree(self._home(machine_id), ignore_errors=True)
            self._database.forget(machine_id)


def _count(rows: list[sqlite3.Row], kind: str, zone: str, owner: str | None = None) -> int:
    return sum(row["machine_type"] == kind and row["zone"] == zone and owner in (None, row["owner"]) for row in rows)


def _name(token: str, number: int) -> str:
    """Return a machine's name, which is a function of token and number."""
    return f"m-{sha256(f'{token}/{number}'.encode()).hexdigest()[:12]}"
