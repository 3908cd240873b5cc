"""The client of a bag that grows, in a storm: adds rows and cancels items at random moments, seals the bag, or is killed."""

from __future__ import annotations

import random
from collections import Counter

from tests.support.checks import demand
from tests.support.simulated_store import Actor, World
from windfall.bags import AddedItems, ItemRecord, ItemState
from windfall.core.item_table import CLIENT_LOST, ItemTable
from windfall.errors import StoreError
from windfall.ports import Put, SimpleOp, Steps
from windfall.storage.store_operations import create, pause, put
from windfall.wire import bag_layout

BEAT_S = 5.0
TIMES_MAX_S = 0.98
"""Clocks of actors drift by up to a hundredth against each other's."""


class BagClient:
    """What it asks for is drawn beforehand; `asked` is what has reached the store.

    Args:
        world: its store and time.
        total: how many items it adds.
        lives: whether it lives until it has sealed the bag, unless a fault of the world ends it.
        seed: of its choices.
        table: the truth about its bag.
    """

    def __init__(
        self, world: World, total: int, seed: int, tally: Counter[str], table: ItemTable, *, lives: bool
    ) -> None:
        self.world, self.total, self.tally, self.table = world, total, tally, table
        self.rng = random.Random(f"client {seed}")
        self.cancelled: set[int] = set()
        self.sealed = False
        self.beat_at = 0.0
        self.actor = world.actor("client", "elsewhere")
        world.start(self.actor, self._client())
        if not lives:
            world.at(self.rng.uniform(0.0, 120.0), lambda: world.kill(self.actor))

    def observed(self, actor: Actor, op: SimpleOp) -> None:
        """Note when its heartbeat reached the store."""
        if actor is self.actor and isinstance(op, Put) and op.key == bag_layout.CLIENT:
            self.beat_at = self.world.time

    def recorded(self, record: ItemRecord, table: ItemTable) -> None:
        """Check a record, once the table has it."""
        demand(table.items <= self.total, f"each row is taken in once: {table.items} of {self.total}")
        for item in record.cancelled:
            demand(item in self.cancelled, f"only what the client cancels is cancelled: {item}")
        if record.sealed:
            demand(self.sealed, "the bag is sealed by its client alone")
            demand(table.items == self.total, f"all rows are there when the bag is sealed: {table.items}")
        if record.closed and not table.succeeded:
            silent_s = self.world.time - self.beat_at
            enough = silent_s >= table.bag.client_silent_s * TIMES_MAX_S
            demand(enough, f"a bag that its client has not sealed ends only without it: silent for {silent_s:.1f} s")
            self.tally["closed without its client"] += 1
        self.tally["rows were added late"] += bool(record.added and record.number > 5)

    def ended_well(self, table: ItemTable) -> None:
        """Check a bag that is over: every item has ended, and only those discarded that may be."""
        demand(table.sealed or table.reason == CLIENT_LOST, f"it ends for a reason: {table.reason}")
        if table.succeeded:
            discarded = {item for item in range(table.items) if table.state(item) is ItemState.DISCARDED}
            demand(discarded <= self.cancelled, f"nothing is given up that the client needs: {discarded}")
            self.tally["sealed and over"] += 1

    def _client(self) -> Steps[object]:
        added = number = 0
        often = self.rng.choice([0.7, 0.7, 0.1])
        while not self.table.closed:
            yield from self._beat()
            if self.rng.random() < (0.1 if self.sealed else often):
                number += 1
                count = min(self.rng.choice([0, 1, 5, 30]), self.total - added)
                rows = tuple((float(item),) for item in range(added, added + count))
                added += count
                cancelled = tuple({self.rng.randrange(added) for _ in range(self.rng.choice([0, 0, 1, 4])) if added})
                self.cancelled |= set(cancelled)
                self.tally["cancelled after the seal"] += bool(self.sealed and cancelled)
                asked = AddedItems(rows, cancelled, self.sealed or (added == self.total and self.rng.random() < 0.5))
                self.sealed = asked.sealed
                yield from self._ask(bag_layout.added_items_key(number), bag_layout.added_to_bytes(asked))
            yield from pause(self.rng.uniform(0.1, BEAT_S))
        return None

    def _beat(self) -> Steps[None]:
        try:
            yield from put(bag_layout.CLIENT, repr(self.rng.random()).encode())
        except StoreError:
            self.tally["a heartbeat was lost"] += 1

    def _ask(self, key: str, data: bytes) -> Steps[None]:
        while True:
            try:
                yield from create(key, data)
            except StoreError:
                yield from self._beat()
                continue
            return
