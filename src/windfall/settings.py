"""Settings of this process that its environment may hold."""

from __future__ import annotations

import os
from collections.abc import Mapping

from windfall.terms import PATIENCE_S
from windfall.units import duration_s
from windfall.wire.environment import PATIENCE


def patience_s(environ: Mapping[str, str] = os.environ) -> float:
    """Return how long requests to an unreachable store are retried, unless the command line sets it [s].

    Raises:
        Misuse: the environment variable is not a duration.
    """
    value = environ.get(PATIENCE)
    return float(PATIENCE_S if value is None else duration_s(value, PATIENCE))
