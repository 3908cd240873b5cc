"""Lives drawn from a law that a test knows."""

from __future__ import annotations

import numpy as np

from windfall.models.lifetimes.law import Law
from windfall.models.lifetimes.lives import Lives, lives_of, uniforms

H = 3600.0


def drawn(law: Law, count: int, *, seed: int = 1, watched_s: float = np.inf, in_batch: int = 4) -> Lives:
    """Lives of so many machines; each is stopped by its user after a time uniform up to `watched_s`."""
    lives = law.sample(uniforms(seed, count))
    stops = np.full(count, np.inf) if watched_s == np.inf else uniforms(seed + 1, count) * watched_s
    batch = [str(index // in_batch) for index in range(count)]
    return lives_of(np.minimum(lives, stops), lives <= stops, batch=batch)


def joined(**parts: Lives) -> Lives:
    """Lives of several zones as one; batches stay apart."""
    return lives_of(
        np.concatenate([part.duration_s for part in parts.values()]),
        np.concatenate([part.lost for part in parts.values()]),
        batch=[f"{zone} {number}" for zone, part in parts.items() for number in part.batch],
        keys={"zone": [zone for zone, part in parts.items() for _ in range(len(part))]},
    )
