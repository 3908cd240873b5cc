"""What a seed of the whole storm draws once, and the state that its script trains: a chain of checksums over the steps."""

from __future__ import annotations

import functools
import hashlib
import random
from dataclasses import dataclass

from tests.support.scene import Scene

LEASE_S = 10.0
START = "0" * 64


@dataclass(frozen=True)
class Habits:
    """How this run's store and script behave.

    Attributes:
        on_disk: the store is a folder, else a remote store.
        machines: how many may contend at once.
        as_folder: a part is a folder with several files, else one file.
        prunes: the script deletes its own older saves.
        power_cuts: how often the host of the store's disk loses its power.
        decays: how often bytes of a stored point decay.
    """

    on_disk: bool
    machines: int
    as_folder: bool
    prunes: bool
    power_cuts: int
    decays: int


def draw(seed: int) -> tuple[Scene, Habits]:
    rng = random.Random(f"whole {seed}")
    step_s = rng.choice([0.5, 1.0, 2.0])
    steps = rng.randint(20, 40)
    scene = Scene(
        seed=seed,
        ranks=rng.choice([1, 2, 3]),
        sharded=rng.random() < 0.8,
        shared_folder=rng.random() < 0.2,
        steps=steps,
        step_s=step_s,
        stall_s=rng.choice([0.05, 0.3]),
        size=600,
        rate=1000.0,
        latency_s=0.1,
        commit_s=0.1,
        periodic=rng.choice([0, 0, 5, 9]),
        evaluation=rng.choice([0, 0, 13]),
        evaluation_s=2 * step_s,
        policy=rng.choice(["adaptive", "thesis", "every:4steps", "every:6steps", "every:5s", "never"]),
        broken=rng.random() < 0.08,
        store_faults=0.0,
        calm_s=steps * step_s * rng.uniform(1.0, 3.0) + 30.0,
        lease_s=LEASE_S,
    )
    habits = Habits(
        on_disk=rng.random() < 0.5,
        machines=rng.choice([2, 2, 3, 4]),
        as_folder=rng.random() < 0.5,
        prunes=rng.random() < 0.3,
        power_cuts=rng.choice([0, 1, 2, 4]),
        decays=rng.choice([0, 0, 1, 2]),
    )
    return scene, habits


def one_step(value: str, step: int) -> str:
    """Train one step: the state after it follows from the state before it."""
    return hashlib.sha256(f"{value} {step}".encode()).hexdigest()


@functools.cache
def chain(step: int) -> str:
    """Return the state after `steps` of an uninterrupted run."""
    return START if step == 0 else one_step(chain(step - 1), step)


def written(rank: int, step: int, value: str) -> bytes:
    """Return what a rank writes down of its state: several chunks, of a length that differs from step to step."""
    head = f"{rank} {step} {value} ".encode()
    filling = hashlib.sha256(head).digest() * 12
    return head + filling[: 40 * (2 + (step + rank) % 6)]


def read(data: bytes) -> tuple[int, int, str]:
    """Return rank, step and state as they were written down.

    Raises:
        ValueError: the bytes are not what `written` gave.
    """
    rank, step, value = data.split(b" ", 3)[:3]
    found = int(rank), int(step), value.decode()
    if written(*found) != data:
        raise ValueError("a torn state")
    return found


def file_name(rank: int) -> str:
    return f"r{rank}.pt"


def expected(scene: Scene, step: int) -> dict[str, bytes]:
    """Return the files of a whole point at a step."""
    ranks = range(scene.ranks) if scene.sharded else (0,)
    return {file_name(rank): written(rank, step, chain(step)) for rank in ranks}
