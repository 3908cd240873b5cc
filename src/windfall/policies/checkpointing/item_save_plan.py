"""How often an item of a bag saves: the optimal schedule of work of known length, or no save where one costs more.

An item is work of w seconds that may be lost at any moment.  It is cut into n equal pieces with a save after each but
the last one, and n is that of the least expected time: for memoryless losses equal pieces are the optimum, so that this is
`optimal_schedule.optimal` in closed form, without the packages that it needs, because a runner computes it at each item's
start.
"""

from __future__ import annotations

import math

from windfall.models.preemption_rates import PreemptionHistory
from windfall.policies.checkpointing import rules
from windfall.structs import Struct
from windfall.terms import Seconds

PIECES_MAX = 1_000_000
"""An item is cut into no more pieces than this."""


class ItemSavePlan(Struct, frozen=True):
    """How often an item saves: work between two saves [s], 0 for never; and why."""

    every_s: float
    explanation: str


def expected_s(work_s: float, pieces: int, save_s: float, mttp_s: float, restart_s: float) -> float:
    """Return the expected time of work with equal pieces: (M + R) ((n - 1) (e^((t + delta) / M) - 1) + e^(t / M) - 1).

    Args:
        work_s: w [s], > 0.
        pieces: n; t = w / n.
        save_s: delta, how long a save stalls the work [s].
        mttp_s: M [s], > 0.
        restart_s: R, from a loss to work again [s].

    Validity:
        Memoryless losses; none while the item waits to start again; a save counts at once.

    Example:
        1 h of work, M 1 h, saves of 10 s, R 0: 6186 s without a save, 3872 s with 13 pieces.

    Source:
        Daly, FGCS 22(3), 2006, equation 13, with the last save left out.
    """
    piece = work_s / pieces
    try:
        saved = (pieces - 1) * math.expm1((piece + save_s) / mttp_s)
        return (mttp_s + restart_s) * (saved + math.expm1(piece / mttp_s))
    except OverflowError:
        return math.inf


def plan_item_saves(
    losses: PreemptionHistory, *, age_s: float, work_s: float | None, save_s: float, durable_s: float
) -> ItemSavePlan:
    """Return how often an item saves.

    Args:
        losses: what is known of the machine's losses.
        age_s: of the machine [s].
        work_s: how long an item takes [s]; None if that is not known: then the default rule decides.
        save_s: how long a save stalls the item [s].
        durable_s: how long it takes until a save is stored [s]; saves are no closer together.
    """
    mttp_s, restart_s = losses.mttp_s(age_s), losses.restart_s
    basis = f"losses every {mttp_s:.0f} s, a save of {save_s:.2g} s"
    if work_s is None:
        every_s = rules.adaptive_interval_s(save_s, mttp_s, restart_s, durable_s)
        return ItemSavePlan(
            Seconds(every_s), f"every {every_s:.3g} s by the default rule: {basis}; no item has ended yet"
        )
    best = _best_pieces(work_s, save_s, (mttp_s, restart_s), math.floor(work_s / max(durable_s, work_s / PIECES_MAX)))
    if best == 1:
        return ItemSavePlan(0.0, f"never: an item takes {work_s:.3g} s, and saving costs more than it brings ({basis})")
    return ItemSavePlan(work_s / best, f"every {work_s / best:.3g} s of an item's {work_s:.3g} s: {basis}")


def _best_pieces(work_s: float, save_s: float, losses_s: tuple[float, float], most: int) -> int:
    """Return the number of pieces of the least expected time, by bisection: the time is convex in it."""
    low, high = 1, max(most, 1)
    while low < high:
        middle = (low + high) // 2
        here_s, next_s = (expected_s(work_s, pieces, save_s, *losses_s) for pieces in (middle, middle + 1))
        if here_s <= next_s < math.inf:
            high = middle
        else:
            low = middle + 1
    return low
