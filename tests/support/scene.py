"""What a seed draws once, and the run as the store of the world has it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from windfall.terms import CheckpointRef, SaveCosts


@dataclass(frozen=True)
class Scene:
    """What a seed draws once."""

    seed: int
    ranks: int
    sharded: bool
    shared_folder: bool
    steps: int
    step_s: float
    stall_s: float
    size: int
    rate: float
    latency_s: float
    commit_s: float
    periodic: int
    evaluation: int
    evaluation_s: float
    policy: str
    broken: bool
    store_faults: float
    calm_s: float
    failures_max: int = 3
    lease_s: float = 30.0

    @staticmethod
    def draw(seed: int) -> Scene:
        """Draw a scene."""
        rng = random.Random(f"scene {seed}")
        step_s = rng.choice([0.5, 1.0, 3.0])
        steps = rng.randint(60, 150)
        return Scene(
            seed=seed,
            ranks=rng.choice([1, 1, 2, 4]),
            sharded=rng.random() < 0.7,
            shared_folder=rng.random() < 0.3,
            steps=steps,
            step_s=step_s,
            stall_s=rng.choice([0.05, 0.3, 1.0]),
            size=rng.choice([10**6, 10**8, 10**9]),
            rate=rng.choice([10**7, 5 * 10**7, 10**9]),
            latency_s=rng.choice([0.05, 0.5]),
            commit_s=rng.choice([0.05, 0.4]),
            periodic=rng.choice([0, 0, 10, 17]),
            evaluation=rng.choice([0, 0, 13]),
            evaluation_s=step_s * rng.choice([2.0, 6.0]),
            policy=rng.choice(["adaptive", "adaptive", "adaptive", "thesis", "young-daly", "every:9steps", "never"]),
            broken=rng.random() < 0.12,
            store_faults=rng.choice([0.0, 0.0, 0.0, 0.1, 0.3]),
            calm_s=steps * step_s * rng.uniform(2.0, 5.0) + 60.0,
        )


@dataclass
class Store:
    """The run as the store has it."""

    live: list[CheckpointRef] = field(default_factory=list)
    content: dict[str, frozenset[tuple[int, int]]] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    term: int = 0
    records: int = 0
    attempts: int = 0
    failures: int = 0
    preemptions: int = 0
    announced: int = 0
    costs: SaveCosts | None = None
    upload_began: float = -1.0

    def whole(self) -> list[CheckpointRef]:
        """Points that a restart can use."""
        return [checkpoint for checkpoint in self.live if checkpoint.checkpoint_id not in self.damaged]

    @property
    def step(self) -> int:
        """What a restart would restore."""
        whole = self.whole()
        return whole[-1].step if whole else 0
