"""Lifetimes drawn from a law that a test knows."""

from __future__ import annotations

import numpy as np

from windfall.models.lifetimes.lifetime_law import Law
from windfall.models.lifetimes.observations import Lifetimes, lifetimes_of, uniforms

H = 3600.0


def drawn(law: Law, count: int, *, seed: int = 1, watched_s: float = np.inf, in_batch: int = 4) -> Lifetimes:
    """Lifetimes of so many machines; each is stopped by its user after a time uniform up to `watched_s`."""
    lifetimes = law.sample(uniforms(seed, count))
    stops = np.full(count, np.inf) if watched_s == np.inf else uniforms(seed + 1, count) * watched_s
    batch = [str(index // in_batch) for index in range(count)]
    return lifetimes_of(np.minimum(lifetimes, stops), lifetimes <= stops, batch=batch)


def joined(**parts: Lifetimes) -> Lifetimes:
    """Lifetimes of several zones as one; batches stay apart."""
    return lifetimes_of(
        np.concatenate([part.duration_s for part in parts.values()]),
        np.concatenate([part.lost for part in parts.values()]),
        batch=[f"{zone} {number}" for zone, part in parts.items() for number in part.batch],
        keys={"zone": [zone for zone, part in parts.items() for _ in range(len(part))]},
    )
