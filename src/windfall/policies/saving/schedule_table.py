"""The plain table by which a machine saves: work done -> next save, and the default rule where the fit is not trusted.

Only the standard library, so that the agent reads it without the packages that make it.

A fit is trusted if it rests on at least `LOSSES_MIN` observed losses and its distance to the data (Kolmogorov-Smirnov)
is at most the larger of `DISTANCE_MAX` and 1.36 / sqrt(losses), what chance alone exceeds in 5 % of samples; and only up
to the oldest age that was observed.  Elsewhere the machine saves at the interval of the default rule
(`rules.adaptive_interval_s`), and the table says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from windfall.errors import Misuse
from windfall.fleet import Basis
from windfall.terms import SaveTable

LOSSES_MIN = 20
DISTANCE_MAX = 0.15
"""A little above what the published blended form leaves on its own data (0.136)."""
CRITICAL = 1.36
AGAIN_BEYOND = 0.25
"""A plan is made anew when a cost or the pace of losses has changed by this share: below, a schedule of the old values
is within a percent of the overhead of the new one, because the optimum is flat."""
NOISE_S = 0.1
"""Costs that differ by less are the same, whatever the share: saves of milliseconds cost nothing worth a plan [s]."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a fit of lives rests on.

    Attributes:
        losses: observed losses; machines released by their user are none.
        distance: the largest difference between the fitted and the observed distribution (Kolmogorov-Smirnov).
        oldest_s: the oldest age that was observed [s].
    """

    losses: int
    distance: float
    oldest_s: float


def doubt(evidence: Evidence) -> str:
    """Return why a fit is not trusted, in words; empty if it is."""
    if evidence.losses < LOSSES_MIN:
        return f"it rests on {evidence.losses} losses, fewer than {LOSSES_MIN}"
    limit = max(DISTANCE_MAX, CRITICAL / math.sqrt(evidence.losses))
    if not evidence.distance <= limit:
        return f"it is off the observed lives by {evidence.distance:.2f}, more than {limit:.2f}"
    return ""


def hand_over(
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
        work_s: the work left [s].
        age_s: the machine's age now [s].
        stall_s: of a save [s].
        evidence: what the fit of lives rests on.
        interval_s: of the default rule [s], > 0.

    Raises:
        Misuse: the schedule does not rise, or the interval is no length of time.

    Example:
        A fit of 12 losses: no schedule, an interval, and the words "... it rests on 12 losses, fewer than 20 ...".
    """
    points = tuple(float(point) for point in saves_at_s)
    if not interval_s > 0.0 or any(later <= earlier for earlier, later in zip((0.0, *points), points, strict=False)):
        raise Misuse("a table of saves needs rising amounts of work done and a positive interval")
    if why := doubt(evidence):
        return SaveTable((), 0.0, interval_s, f"the fit of lives is not used, because {why}: the default rule decides")
    if age_s + work_s + stall_s * len(points) <= evidence.oldest_s:
        return SaveTable(points, math.inf, interval_s, f"the schedule rests on {evidence.losses} losses")
    known_s, kept = max(evidence.oldest_s - age_s, 0.0), []
    for count, point in enumerate(points, start=1):
        if age_s + point + stall_s * count > evidence.oldest_s:
            break
        kept.append(point)
        known_s = evidence.oldest_s - age_s - stall_s * count
    words = f"no machine older than {evidence.oldest_s:.0f} s was observed: beyond that age the default rule decides"
    return SaveTable(tuple(kept), known_s, interval_s, words)


def why_again(made_with: Basis, now: Basis) -> str:
    """Return why the schedule should be made anew, in words; empty if it need not be.

    Example:
        Planned with a stall of 60 s, measured 20 s: "stall is 20 s, planned with 60 s".
    """
    for name, words in (
        ("stall_s", "stall"),
        ("durable_s", "time to durable"),
        ("restart_s", "restart"),
        ("life_left_s", "rest of the machine's life"),
        ("step_s", "time of a step"),
    ):
        before, after = getattr(made_with, name), getattr(now, name)
        noise_s = 0.0 if name == "step_s" else NOISE_S
        if abs(after - before) > max(AGAIN_BEYOND * before, noise_s):
            return f"{words} is {after:g} s, planned with {before:g} s"
    return ""
