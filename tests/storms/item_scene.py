"""What a seed of the storm of a bag draws: the bag, its machines, and what its items do."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import dataclass

from windfall.bags import Bag, StopItem, StopWhen
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
    client_lives: bool | None = None
    """Of a bag that grows, whether its client is spared until it has sealed the bag; None for one that does not grow."""

    @property
    def total(self) -> int:
        """How many items there are in the end."""
        return len(self.run_s)

    def at_most_s(self, item: int) -> float:
        """How long an item takes with all its tries."""
        limit_s, run_s, tries = (
            self.bag.item_timeout_s,
            self.run_s[item],
            1 + min(self.fails[item], self.bag.retries_max),
        )
        if limit_s is not None and run_s > limit_s:
            run_s, tries = limit_s, 1 + self.bag.retries_max
        return (run_s + 2.0) * tries

    def is_enough(self, done: Collection[int]) -> bool:
        """Whether these items are the share that must be done."""
        bag = self.bag
        if bag.weight is None:
            return len(done) >= math.ceil(bag.finish * bag.items)
        return sum(done) >= bag.finish * sum(range(bag.items))


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
        client_lives,
    )
    if bag.grows:
        return scene
    return _with_stops(_with_ends(scene, random.Random(f"ends of bag {seed}")), random.Random(f"stops of bag {seed}"))


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
