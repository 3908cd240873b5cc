"""The table by which a machine saves: work done -> next save, and the default rule where the fit is not trusted.

This module needs only the standard library, so that the agent reads a table without the packages that compute it.

A fit is trusted if it is based on at least `LOSSES_MIN` observed losses and its distance to the data (Kolmogorov-Smirnov)
is at most the larger of `DISTANCE_MAX` and 1.36 / sqrt(losses), what chance alone exceeds in 5 % of samples; and only up
to the oldest observed age.  Elsewhere the machine saves at the interval of the default rule
(`rules.adaptive_interval_s`), and the table's explanation says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from windfall.errors import Misuse
from windfall.fleet import Basis
from windfall.structs import Struct
from windfall.terms import SaveTable

LOSSES_MIN = 20
DISTANCE_MAX = 0.15
"""A little above what the published blended form leaves on its own data (0.136)."""
KS_CRITICAL = 1.36
REPLAN_CHANGE = 0.25
"""A schedule is recomputed when a cost or the rate of losses has changed by this share.  Below it, the old schedule's
overhead is within a percent of the new one's, because the optimum is flat."""
COST_NOISE_S = 0.1
"""Costs that differ by less count as equal [s]: saves of milliseconds cost too little to replan for."""


class Evidence(Struct, frozen=True):
    """The evidence behind a fit of lifetimes.

    Attributes:
        losses: observed losses; machines released by their user do not count.
        distance: the largest difference between the fitted and the observed distribution (Kolmogorov-Smirnov).
        oldest_s: the oldest observed age [s].
    """

    losses: int
    distance: float
    oldest_s: float


def doubt(evidence: Evidence) -> str:
    """Return why a fit is not trusted; empty if it is."""
    if evidence.losses < LOSSES_MIN:
        return f"it is based on {evidence.losses} losses, fewer than {LOSSES_MIN}"
    limit = max(DISTANCE_MAX, KS_CRITICAL / math.sqrt(evidence.losses))
    if not evidence.distance <= limit:
        return f"it differs from the observed lifetimes by {evidence.distance:.2f}, more than {limit:.2f}"
    return ""


def save_table(
    saves_at_s: Sequence[float],
    *,
    work_s: float,
    age_s: float,
    stall_s: float,
    evidence: Evidence,
    interval_s: float,
) -> SaveTable:
    """Return the table for one machine: the schedule as far as the fit can be trusted, then the default rule.

    Args:
        saves_at_s: the schedule: work done from now at which to save [s].
        work_s: the remaining work [s].
        age_s: the machine's age now [s].
        stall_s: of a save [s].
        evidence: behind the fit of lifetimes.
        interval_s: of the default rule [s], > 0.

    Raises:
        Misuse: the schedule does not ascend, or the interval is not positive.

    Example:
        A fit of 12 losses: no schedule, an interval, and "... it is based on 12 losses, fewer than 20 ...".
    """
    saves = tuple(float(save) for save in saves_at_s)
    if not interval_s > 0.0 or any(later <= earlier for earlier, later in zip((0.0, *saves), saves, strict=False)):
        raise Misuse("a table of saves needs ascending amounts of work and a positive interval")
    if reason := doubt(evidence):
        return SaveTable(
            (), 0.0, interval_s, f"the fit of lifetimes is not used, because {reason}: the default rule decides"
        )
    if age_s + work_s + stall_s * len(saves) <= evidence.oldest_s:
        return SaveTable(saves, math.inf, interval_s, f"based on {evidence.losses} losses")
    known_s, kept = max(evidence.oldest_s - age_s, 0.0), []
    for count, save in enumerate(saves, start=1):
        if age_s + save + stall_s * count > evidence.oldest_s:
            break
        kept.append(save)
        known_s = evidence.oldest_s - age_s - stall_s * count
    words = f"no machine older than {evidence.oldest_s:.0f} s was observed: beyond that age the default rule decides"
    return SaveTable(tuple(kept), known_s, interval_s, words)


def changed_input(made_with: Basis, now: Basis) -> str:
    """Return which input has changed so much that the schedule has to be recomputed; empty if none has.

    Example:
        Planned with a stall of 60 s, measured 20 s: "stall is 20 s, planned with 60 s".
    """
    for name, words in (
        ("stall_s", "stall"),
        ("durable_s", "time to durable"),
        ("restart_s", "restart"),
        ("remaining_lifetime_s", "remaining lifetime"),
        ("step_s", "step time"),
    ):
        before, after = getattr(made_with, name), getattr(now, name)
        noise_s = 0.0 if name == "step_s" else COST_NOISE_S
        if abs(after - before) > max(REPLAN_CHANGE * before, noise_s):
            return f"{words} is {after:g} s, planned with {before:g} s"
    return ""
