"""A training whose iterations are tickets: the loss falls with each number that is done, as spotDNN's equation 3 has it.

With equal batches and no contention, an iteration of n workers takes 1 / (loss - floor) up by 1 / (scale sqrt(n)).  The
counter adds this up for as many workers as have a number in their hands; nothing of `models.asp` is used for it.
"""

from __future__ import annotations

import math

from windfall.models.asp import AspModel, AspPlatform, AspWorker, AspWorkload

FLOOR, START = 0.1, 2.1
"""The loss of no end of numbers, and that before the first."""


def gain(scale: float, workers: int) -> float:
    """Return by how much a number takes 1 / (loss - floor) up, if so many workers do one."""
    return 1.0 / (scale * math.sqrt(workers))


def loss(gained: float) -> float:
    """Return the loss for the sum of all gains."""
    return FLOOR + 1.0 / (1.0 / (START - FLOOR) + gained)


def model(scale: float, work_s: dict[str, float]) -> AspModel:
    """Return what the runtime knows of itself.

    Args:
        scale: of the loss with one worker [numbers].
        work_s: how long a worker of each machine type takes for a number [s].
    """
    # So small that batch and transfers do not matter.
    tiny, large = 1e-6, 1e6
    load = AspWorkload("tickets", tiny, 1.0, 0.05, 0.0, None, -tiny, scale, None, FLOOR, START)
    types = tuple(AspWorker(name, 1, tiny, time_s) for name, time_s in work_s.items())
    return AspModel(load, AspPlatform(large, large), types)
