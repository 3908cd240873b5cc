"""The thesis' simulation in closed form: time and cost of a long run that loses a machine every M on average.

W seconds of work in steps of t, a save of delta every k steps, beta to upload one, A to allocate a machine, P to
prepare it.  A loss costs A + P and the redone work x; the number of losses is the wall time over M, and the wall time
includes saves, waits and redone work, so that

    N = T / M,    T = W + saves + A + P + N (A + P + x)    =>    T = (W + saves + A + P) / (1 - (A + P + x) / M)

With an insurance save every k steps, x = (k t + delta) / 2 + t + delta + beta: half a cycle, plus the current step in
full, plus a save that counts only once it is uploaded.  With emergency saves nothing is redone and x = delta + beta, one
save.

This is the thesis' *accounting*: every loss costs the same, and a loss during a wait costs no less.
`models.expected_runtime` has the exact expectation, a few per mille shorter because a restart also shortens the current
cycle.

Source: thesis, sections 4.1 and 6.2.2; the formula is derived from what Tables 6.2 and 6.3 count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windfall.errors import Infeasible


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of the thesis' simulation; durations in seconds.

    Attributes:
        steps: of the run.
        step_s, save_s, backup_s: t, delta, beta.
        allocate_s, prepare_s: A, P.
        mttp_s: M; infinite for a machine that is never preempted.
        interval_steps: k, between two insurance saves or two of the user's own.
        emergency: whether an emergency save covers every loss.
    """

    steps: int
    step_s: float
    save_s: float
    backup_s: float
    allocate_s: float
    prepare_s: float
    mttp_s: float
    interval_steps: int
    emergency: bool = False


@dataclass(frozen=True, slots=True)
class Totals:
    """A column of the thesis' tables [s]; `compute_s` includes `recompute_s`."""

    compute_s: float
    recompute_s: float
    save_s: float
    allocate_s: float
    prepare_s: float
    total_s: float
    losses: float

    def cost_usd(self, price_usd_per_hour: float) -> float:
        """Return the cost [USD]: the thesis bills all time, waits included."""
        return self.total_s / 3600.0 * price_usd_per_hour


def totals(given: Inputs) -> Totals:
    """Return a column of Table 6.2 or 6.3; the module docstring has the equations.

    Raises:
        Infeasible: a loss costs more than the mean time between losses.

    Example:
        GPT-117M, 51 steps: 484 835 s, published 484 894 s.
    """
    saves_s = given.steps / given.interval_steps * given.save_s
    redone_s = 0.0
    if not given.emergency:
        cycle_s = given.interval_steps * given.step_s + given.save_s
        redone_s = cycle_s / 2.0 + given.step_s + given.save_s + given.backup_s
    rescue_s = given.save_s + given.backup_s if given.emergency else 0.0
    again_s = given.allocate_s + given.prepare_s
    work_s = given.steps * given.step_s
    share = (again_s + redone_s + rescue_s) / given.mttp_s
    if share >= 1.0:
        raise Infeasible(
            f"each loss costs {share * given.mttp_s:.0f} s and one occurs every {given.mttp_s:.0f} s: the run never ends"
        )
    total_s = (work_s + saves_s + again_s) / (1.0 - share)
    losses = 0.0 if math.isinf(given.mttp_s) else total_s / given.mttp_s
    return Totals(
        compute_s=work_s + losses * redone_s,
        recompute_s=losses * redone_s,
        save_s=saves_s + losses * rescue_s,
        allocate_s=(losses + 1.0) * given.allocate_s,
        prepare_s=(losses + 1.0) * given.prepare_s,
        total_s=total_s,
        losses=losses,
    )
