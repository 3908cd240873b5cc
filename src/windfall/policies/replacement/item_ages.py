"""Whether a machine is kept for its next item, by the lifetimes of its provider's machines (`reuse`).

Source: SciSpot (draft 2019), sections 4.2 to 4.4: jobs of a bag reuse machines, but not old ones.
"""

from __future__ import annotations

import numpy as np

from windfall.errors import Misuse
from windfall.fleet import AgeWeighed
from windfall.models.exact.makespan import MakespanWorld, tabulate
from windfall.policies.checkpointing.live_schedules import LawEstimate, ProviderFit, estimate_law
from windfall.policies.replacement import reuse
from windfall.policies.replacement.age_requests import AgeRequest

_CELLS = 400
"""Cells of the table of survival for one item; at most `_CELLS_MAX` in all."""
_CELLS_MAX = 100_000


def weigh(request: AgeRequest, provider_fit: ProviderFit) -> AgeWeighed:
    """Return the expected time of a machine's next item there and on a new one; zeros where no law is trusted.

    A law is trusted up to the oldest age that was observed: nothing is said of an item on a machine that is older.

    Args:
        request: the machine and its items.
        provider_fit: the laws of its provider's machines.
    """
    estimate = estimate_law(request, provider_fit)
    if estimate is None or estimate.doubt or request.age_s > estimate.evidence.oldest_s:
        return AgeWeighed(request.machine_id, request.age_s, request.item_s)
    try:
        found = reuse.decide(_world(request, estimate), request.item_s, request.age_s)
    except Misuse:
        return AgeWeighed(request.machine_id, request.age_s, request.item_s)
    # A time that no machine lasts for is written as one that is longer than any other: JSON has no infinity.
    reuse_s, fresh_s = (min(time_s, TIME_S_MAX) for time_s in (found.reuse_s, found.fresh_s))
    return AgeWeighed(request.machine_id, request.age_s, request.item_s, reuse_s, fresh_s)


TIME_S_MAX = 1e9
"""In place of an infinite time [s]."""


def _world(request: AgeRequest, estimate: LawEstimate) -> MakespanWorld:
    until_s = max(request.age_s, request.prepare_s) + request.item_s
    cell_s = max(request.item_s / _CELLS, until_s / _CELLS_MAX)
    with np.errstate(divide="ignore"):
        lifetimes = tabulate(estimate.law.log_survival, until_s=until_s + 2.0 * cell_s, cell_s=cell_s)
    return MakespanWorld(lifetimes, 0.0, None, request.allocate_s, request.prepare_s)
