"""What a seed of the storm of a bag draws: the bag, its machines, and what its items do."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import dataclass, field

from tests.support.simulated_store import Actor
from windfall.bags import Bag, GrantedItem, ItemLease, RunnerRoom, StopItem, StopWhen
from windfall.structs import replace
from windfall.terms import Seconds
from windfall.wire import bag_layout

CALM_S = (10.0, 60.0, 200.0)
"""Nothing goes wrong any more after this time; where it is short, most of a bag runs without a new dispatcher that heals."""
ROWS_EACH = 16


@dataclass
class BagScene:
    """What a seed draws: the bag, its machines, and what its items do."""

    bag: Bag
    run_s: list[float]
    fails: list[int]
    """How often each item fails before it does not; 99 for always."""
    machines: int
    slots: list[int]
    carried: list[int]
    """Items that an earlier run has done."""
    calm_s: float
    dispatchers: int
    """How many work at once; more than one is an error of those who start them, and does no harm."""
    state_every: int
    turns_s: list[float]
    """Between two turns of each dispatcher: near the store, or far from it."""
    levels: list[float]
    """Where the values of each item's metric end: those of a good one below 5, those of a bad one above 60."""
    spare_cpus: list[float] = field(default_factory=lambda: [0.0])
    """Of each machine, too few for an item of the wanted number."""
    slower: dict[float, float] = field(default_factory=dict)
    """How many times as long an item takes on fewer processors."""
    client_lives: bool | None = None
    """Of a bag that grows, whether its client is spared until it has sealed the bag; None for one that does not grow."""

    @property
    def total(self) -> int:
        """How many items there are in the end."""
        return len(self.run_s)

    def room(self, number: int) -> RunnerRoom:
        """How much a machine runs at once."""
        slots, spare_cpus = self.slots[number % 4], self.spare_cpus[number % len(self.spare_cpus)]
        return RunnerRoom(slots, self.bag.cores, spare_cpus, 4 * (slots + 1) if self.bag.smaller else None)

    def at_most_s(self, item: int) -> float:
        """How long an item takes with all its tries."""
        limit_s, retries = self.bag.item_timeout_s, self.bag.retries_max
        if self.bag.smaller:
            # On fewer processors, and then all its tries on those that it wants.
            return self.run_s[item] * (max(self.slower.values()) + 1 + retries) + 8.0
        run_s, tries = self.run_s[item], 1 + min(self.fails[item], retries)
        if limit_s is not None and run_s > limit_s:
            run_s, tries = limit_s, 1 + retries
        return (run_s + 2.0) * tries

    def is_enough(self, done: Collection[int]) -> bool:
        """Whether these items are the share that must be done."""
        bag = self.bag
        if bag.weight is None:
            return len(done) >= math.ceil(bag.finish * bag.items)
        return sum(done) >= bag.finish * sum(range(bag.items))


@dataclass
class BagMachine:
    """A machine that is there: its name, whether its end is announced."""

    name: str
    room: RunnerRoom
    alive: bool = True
    ends_at: float | None = None
    actor: Actor | None = None
    running: dict[ItemLease, float] = field(default_factory=dict)
    items: dict[ItemLease, GrantedItem] = field(default_factory=dict)


def draw(seed: int) -> BagScene:
    """Draw a scene."""
    rng = random.Random(f"bag {seed}")
    items = rng.choice([1, 7, 40, 120])
    parts = tuple(bag_layout.rows_key("d", part) for part in range(-(-items // ROWS_EACH)))
    bag = Bag(
        items, ("x",), parts, ROWS_EACH,
        finish=rng.choice([1.0, 1.0, 0.9, 0.5]), item_timeout_s=rng.choice([None, Seconds(60.0)]),
        retries_max=rng.choice([0, 2]), at_once_max=rng.choice([None, None, 3]), seed=seed,
    )  # fmt: skip
    more = random.Random(f"more of bag {seed}")
    if more.random() < 0.4:
        bag = replace(bag, reduce="reduce")
    if more.random() < 0.3 and items > 1:
        bag = replace(bag, weight="x")
    typical_s = rng.choice([0.5, 5.0, 20.0])
    bad = rng.choice([0.0, 0.1])
    client_lives = rng.choice([None, None, True, False])
    if client_lives is not None:
        bag = replace(bag, items=0, rows=(), finish=1.0, shuffled=False, grows=True, reduce=None, weight=None)
    scene = BagScene(
        bag,
        [rng.expovariate(1.0 / typical_s) for _ in range(items)],
        [rng.choice([1, 2, 3, 99]) if rng.random() < bad else 0 for _ in range(items)],
        rng.choice([1, 2, 4]),
        [rng.choice([1, 2, 8]) for _ in range(4)],
        sorted(more.sample(range(items), items // 3)) if more.random() < 0.3 and client_lives is None else [],
        rng.choice(CALM_S),
        rng.choice([1, 1, 2]),
        rng.choice([2, 5, 40]),
        [rng.choice([0.25, 0.25, 5.0]) for _ in range(4)],
        [0.0] * items,
        client_lives=client_lives,
    )
    if not bag.grows:
        scene = _with_ends(scene, random.Random(f"ends of bag {seed}"))
        scene = _with_sizes(scene, random.Random(f"sizes of bag {seed}"))
        scene = _with_stops(scene, random.Random(f"stops of bag {seed}"))
    return scene


def _with_sizes(scene: BagScene, rng: random.Random) -> BagScene:
    """Let the items of some bags run on fewer processors too, and mostly for less of their time together."""
    if rng.random() < 0.35:
        scene.bag = replace(scene.bag, cores=4.0, smaller=rng.choice([(2.0,), (2.0, 1.0), (3.0, 1.0)]))
        scene.spare_cpus = [rng.choice([0.0, 1.0, 2.0, 3.0]) for _ in range(4)]
        if rng.random() < 0.6 and scene.bag.finish >= 0.9:
            # Time enough to measure, and then to lose what runs; other ends need the times that they have.
            scene.run_s = [rng.uniform(4.0, 12.0) for _ in scene.run_s]
            scene.fails = [0 if rng.random() < 0.9 else fails for fails in scene.fails]
            scene.calm_s, scene.slots = max(CALM_S), [rng.choice([1, 1, 2]) for _ in range(4)]
        scene.slower = {cpus: 1.0 + rng.random() * (4.0 / cpus - 1.0) for cpus in scene.bag.smaller}
    return scene


def _with_ends(scene: BagScene, rng: random.Random) -> BagScene:
    """Let some bags end by a metric, and some lack what they had discarded."""
    bag = scene.bag
    if rng.random() < 0.25:
        rule = rng.choice(
            [
                StopWhen("y", rng.choice([1, 5]), above=2.0 * rng.randrange(bag.items)),
                StopWhen("y", rng.choice([1, 5]), below=2.0 * rng.randrange(bag.items)),
                StopWhen("y", rng.choice([1, 5]), no_gain=rng.choice([1, 5, 20]), goal=rng.choice(["min", "max"])),
                StopWhen("y", 2, standard_error=rng.uniform(0.1, 0.5) * bag.items),
            ]
        )
        scene.bag = replace(bag, stop_when=rule)
    elif rng.random() < 0.6:
        scene.bag = replace(bag, finish=rng.choice([0.5, 0.7]), retries_max=0)
        scene.fails = [99 if rng.random() < 0.4 else 0 for _ in scene.fails]
        # Equal times, so that one that has run for long is not put off instead.
        scene.run_s = [rng.uniform(25.0, 30.0) for _ in scene.run_s]
        scene.calm_s = max(CALM_S)
    return scene


def _with_stops(scene: BagScene, rng: random.Random) -> BagScene:
    """Let some bags stop running items: their bad ones run for long, so that what is not stopped is seen."""
    if scene.bag.stop_when is not None or rng.random() < 0.35:
        return scene
    rule = rng.choice(
        [
            StopItem("y", above=40.0, from_progress=rng.choice([0.0, 0.0, 0.5])),
            StopItem("y", median="min", from_progress=rng.choice([0.0, 0.05]), done_min=rng.choice([3, 10])),
            StopItem("y", call="rules.py:worse"),
        ]
    )
    finish = 1.0 if rng.random() < 0.4 else scene.bag.finish
    scene.bag = replace(scene.bag, stop_item=rule, item_timeout_s=None, finish=finish)
    scene.levels = [rng.uniform(60.0, 90.0) if rng.random() < 0.3 else rng.uniform(0.0, 5.0) for _ in scene.run_s]
    scene.run_s = [
        rng.uniform(45.0, 60.0) if level > 50.0 else run_s
        for level, run_s in zip(scene.levels, scene.run_s, strict=True)
    ]
    scene.calm_s = rng.choice((60.0, 300.0))
    return scene
