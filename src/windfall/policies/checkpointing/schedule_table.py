"""The table by which a machine saves (work done -> next save), and when to recompute it.

This module needs only the standard library, so that the agent reads a table without the packages that compute it.

A fit is trusted if it is based on at least `LOSSES_MIN` observed losses and its distance to the data (Kolmogorov-Smirnov)
is at most the larger of `DISTANCE_MAX` and 1.36 / sqrt(losses), what chance alone exceeds in 5 % of samples; and only up
to the oldest observed age.  Elsewhere the machine saves at the interval of the default rule
(`rules.adaptive_interval_s`), and the table's explanation says so.

A schedule starts at the machine's last save, because all later work is unsaved; step, age and remaining work are those
at that save.  `live_schedules` computes it.  It is recomputed

* when the run resumes, has rolled back, or has reached the end of the schedule;
* when a cost, the step time or the remaining lifetime at the planned age has changed by a quarter (`changed_input`),
  also because the machine has lost time and is older than planned (`lost_time_s`);
* where there was none: once the fit of lifetimes can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from windfall.errors import Misuse
from windfall.events import ScheduleAssigned
from windfall.fleet import Basis, ScheduleComputed
from windfall.models.preemption_rates import PreemptionHistory, providers
from windfall.policies import policy_registry
from windfall.policies.checkpointing import rules
from windfall.structs import Struct
from windfall.terms import SaveCosts, SaveTable, Seconds, Step, Term

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
        ("durable_s", "time until committed"),
        ("restart_s", "restart"),
        ("remaining_lifetime_s", "remaining lifetime"),
        ("step_s", "step time"),
    ):
        before, after = getattr(made_with, name), getattr(now, name)
        noise_s = 0.0 if name == "step_s" else COST_NOISE_S
        if abs(after - before) > max(REPLAN_CHANGE * before, noise_s):
            return f"{words} is {after:g} s, planned with {before:g} s"
    return ""


POLICY = policy_registry.OPTIMAL
INTERVAL_S_MAX = 1e9
"""In place of "never" in a table, which has to be plain JSON [s]."""


class ScheduleRequest(Struct, frozen=True):
    """A machine that trains by policy `optimal`, and the inputs of its schedule.

    Attributes:
        machines: how many train together.
        term: in which it holds the run.
        from_step: step of its last save, where the schedule starts.
        age_s: of the machine at that step [s].
        work_s: remaining from there [s]; None if unknown.
        step_s: mean time of a step [s].
        costs: of saves.
        allocate_s, prepare_s: from a loss to the next machine's start, and from there to training [s].
        notice_s: the notice that machines of its kind get before a preemption [s]; 0 for none.
        mttp_s: the mean time to preemption that the machine was given [s]; None if none.
        injected: the injector takes the machine, memoryless with that mean.
        before: its current schedule; None before the first.
    """

    machine_id: str
    provider: str
    machine_type: str
    zone: str
    machines: int
    term: Term
    from_step: Step
    age_s: Seconds
    work_s: Seconds | None
    step_s: Seconds
    costs: SaveCosts
    allocate_s: Seconds
    prepare_s: Seconds
    notice_s: Seconds
    mttp_s: Seconds | None = None
    injected: bool = False
    before: ScheduleComputed | None = None

    @property
    def answered(self) -> bool:
        """Whether the machine got an answer in this term: a schedule, or the reason why there is none."""
        return self.before is not None and self.before.term == self.term

    @property
    def scheduled(self) -> bool:
        """Whether that answer is a schedule."""
        return self.before is not None and self.before.trusted and self.answered

    @property
    def stall_s(self) -> float:
        """How long a save stalls the script [s]."""
        return self.costs.stall_s

    @property
    def durable_s(self) -> float:
        """From the start of a save to its commit [s]."""
        return self.costs.stall_s + self.costs.upload_s + self.costs.commit_s

    @property
    def restart_s(self) -> float:
        """From a loss to training again [s]."""
        return self.allocate_s + self.prepare_s

    @property
    def covers(self) -> bool:
        """Whether an emergency save fits the notice."""
        return rules.emergency_fits(self.notice_s, self.step_s, self.stall_s, self.costs.upload_s, self.costs.commit_s)

    @property
    def losses(self) -> PreemptionHistory:
        """The machine's own preemption history, as far as it was given."""
        provider = self.provider if self.provider in providers() else "local"
        return PreemptionHistory(
            provider, mttp_given_s=self.mttp_s, restart_given_s=self.restart_s, notice_given_s=self.notice_s
        )

    def interval_s(self, covered_share: float) -> float:
        """Return the interval of the default rule [s].

        Args:
            covered_share: the share of losses that an emergency save covers.
        """
        if covered_share >= 1.0:
            return INTERVAL_S_MAX
        mean_s = self.losses.mttp_s(self.age_s) / (1.0 - covered_share)
        interval_s = rules.adaptive_interval_s(self.stall_s, mean_s, self.restart_s, self.durable_s)
        return min(max(interval_s, self.step_s), INTERVAL_S_MAX)

    def basis(self, remaining_lifetime_s: float) -> Basis:
        """Return the inputs of a schedule for this request."""
        return Basis(self.stall_s, self.durable_s, self.restart_s, remaining_lifetime_s, self.step_s)


def default_schedule(request: ScheduleRequest, explanation: str, remaining_lifetime_s: float = 0.0) -> ScheduleComputed:
    """Return the answer without a schedule, and the reason: the default rule decides from the start."""
    table = SaveTable((), 0.0, request.interval_s(0.0), explanation)
    assigned = ScheduleAssigned(table, request.from_step, request.term)
    basis, work_s = request.basis(remaining_lifetime_s), Seconds(request.work_s or 0.0)
    return ScheduleComputed(request.machine_id, request.term, assigned, basis, request.age_s, work_s, trusted=False)


def lost_time_s(request: ScheduleRequest, before: ScheduleComputed) -> float:
    """Return how much older the machine is at this step than its schedule expects [s], beyond work and saves.

    This is time in which the script restarted on this machine in this term, or trained steps that were lost.
    """
    done_s = (request.from_step - before.schedule.from_step) * request.step_s
    saves = sum(save <= done_s for save in before.schedule.table.saves_at_s)
    return request.age_s - (before.age_s + done_s + saves * request.stall_s)


def replan_reason(request: ScheduleRequest, before: ScheduleComputed, now: Basis) -> str:
    """Return why a trusted schedule has to be recomputed; empty if it still holds.

    Args:
        request: the machine's current state.
        before: its current schedule.
        now: `before.basis` as measured now, with the remaining lifetime at the planned age plus the time lost since.
    """
    table, start = before.schedule.table, before.schedule.from_step
    if request.term != before.term:
        return f"the run resumed at step {request.from_step}"
    if request.from_step < start:
        return f"the run rolled back to step {request.from_step}, before step {start}, where the schedule starts"
    done_s = (request.from_step - start) * request.step_s
    last_s = table.saves_at_s[-1] if table.saves_at_s else table.horizon_s
    # If it ends before the work does, the next one starts at its last save; else both end together.
    end_s = min(last_s, table.horizon_s) if table.horizon_s < before.work_s else table.horizon_s
    if done_s >= end_s - request.step_s / 2.0:
        return f"it ended after {done_s:.0f} s of work"
    return changed_input(before.basis, now)
