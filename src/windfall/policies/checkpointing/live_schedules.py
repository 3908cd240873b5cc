"""Compute the schedule of saves of a machine that trains now, from the lifetimes of an installation's machines.

The law of its losses is the one that best predicts lifetimes of its provider that it was not fitted to; its zone or
type has a law of its own where the data show this with confidence.  The schedule is the result of
`optimal_schedule.optimal`, as far ahead as it is solved within seconds and as lifetimes were observed; then the next
one follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from windfall.errors import Infeasible, Misuse
from windfall.events import ScheduleAssigned
from windfall.fleet import Lifetime, ScheduleComputed
from windfall.models import lifetime_pool
from windfall.models.exact.makespan import MakespanWorld, tabulate
from windfall.models.lifetimes import groups as lifetime_groups
from windfall.models.lifetimes import model_selection
from windfall.models.lifetimes.families import Exponential
from windfall.models.lifetimes.groups import Group, GroupLawKind
from windfall.models.lifetimes.lifetime_law import Law
from windfall.models.lifetimes.observations import kaplan_meier, observed_lifetimes
from windfall.policies.checkpointing.optimal_schedule import optimal
from windfall.policies.checkpointing.schedule_table import (
    LOSSES_MIN,
    Evidence,
    ScheduleRequest,
    default_schedule,
    doubt,
    lost_time_s,
    replan_reason,
    save_table,
)
from windfall.structs import Struct, replace
from windfall.terms import SaveTable, Seconds, WallTime

UNITS_MAX = 1200
"""How many units of work are planned at a time: takes a few seconds at most, without the interpreter's lock."""
UNITS_MIN = 100.0
"""Fewer units are not worth a schedule: it would end before the next one is computed."""
EFFORT_MAX = 4e8
"""Units of work, squared, times the machine's age in units: some seconds.  The effort grows with the age, so that an old
machine with short intervals gets a shorter plan."""
UNITS_PER_INTERVAL = 10.0
"""How many units the default rule's interval has; the optimum is flat, so a coarse unit is enough."""
TRUSTED_SHARE = 0.75
"""The share of a plan that is used if it ends before the work does; the rest keeps its end from mattering."""
SAVES_MAX = 256
"""The most saves in a table, because a table is sent with every directive."""
LIFETIMES_MAX = 1000
"""How many lifetimes are fitted, the newest: a fit of four thousand takes minutes, and old ones describe another market."""
REMAINING_LIFE_MAX_S = 30.0 * 86_400.0
"""The remaining lifetime is counted up to this bound [s], because some laws have no mean."""


class ProviderFit(Struct, frozen=True, eq=False):
    """The fitted lifetime laws of one provider's machines.

    Attributes:
        fit: of all of them; None if no law could be fitted.
        groups: the zones and types that have a law of their own.
        no_fit_reason: why there is no fit.
    """

    fit: model_selection.Fit | None
    groups: tuple[Group, ...] = ()
    no_fit_reason: str = ""


class LawEstimate(Struct, frozen=True, eq=False):
    """The lifetime law for a machine, and its evidence."""

    law: Law
    evidence: Evidence
    basis_text: str
    doubt: str = ""


def fit_provider(
    rows: Iterable[Lifetime],
    now: WallTime,
    provider: str,
    families: tuple[tuple[str, model_selection.Fitter], ...] = model_selection.FAMILIES,
) -> ProviderFit:
    """Fit the newest lifetimes of a provider's machines; takes seconds.

    Args:
        rows: of all machines of the installation, in any order.  Machines preempted in a rehearsal are censored:
            `core.job_summary`.
        now: the time up to which running machines count.
        provider: whose machines.
        families: the laws to choose from.
    """
    newest = sorted((row for row in rows if row.provider == provider), key=lambda row: row.started)[-LIFETIMES_MAX:]
    try:
        fit = model_selection.fit_lifetimes(observed_lifetimes(newest, now, provider=provider), families=families)
    except Misuse:
        return ProviderFit(None, no_fit_reason="no loss of such a machine has been observed yet")
    groups = [group for key in ("zone", "type") for group in lifetime_groups.fit_groups(fit, key)]
    return ProviderFit(fit, tuple(group for group in groups if group.kind is not GroupLawKind.POOLED))


class AgingMachine(Protocol):
    """A machine, as far as the law of its lifetime depends on it."""

    @property
    def machine_type(self) -> str:
        """Its type."""

    @property
    def zone(self) -> str:
        """Where it is."""

    @property
    def injected(self) -> bool:
        """Whether the injector takes it, memoryless with the mean time `mttp_s`."""

    @property
    def mttp_s(self) -> Seconds | None:
        """Mean time to preemption [s]; None if it is not known."""


def estimate_law(request: AgingMachine, provider_fit: ProviderFit) -> LawEstimate | None:
    """Return the law for a machine; None if there is none."""
    if request.injected and request.mttp_s is not None:
        basis_text = f"the injector preempts machines after {request.mttp_s:.0f} s on average"
        return LawEstimate(Exponential(1.0 / request.mttp_s), Evidence(LOSSES_MIN, 0.0, math.inf), basis_text)
    fit = provider_fit.fit
    if fit is None:
        return None
    mine = {("zone", request.zone), ("type", request.machine_type)}
    group = next((group for group in provider_fit.groups if (group.key, group.value) in mine), None)
    if group is None:
        evidence = Evidence(fit.lifetimes.losses, fit.chosen.ks, fit.lifetimes.oldest_s)
        basis_text = f"{evidence.losses} losses, {fit.law.name} law"
        return LawEstimate(fit.law, evidence, basis_text, doubt(evidence) or "".join(fit.doubts[:1]))
    lifetimes = fit.lifetimes.where(fit.lifetimes.keys[group.key] == group.value)
    distance = model_selection.ks_to_kaplan(group.law, kaplan_meier(lifetimes))
    evidence = Evidence(lifetimes.losses, distance, lifetimes.oldest_s)
    basis_text = f"{lifetimes.losses} losses in {group.value}, {group.law.name} law"
    return LawEstimate(group.law, evidence, basis_text, doubt(evidence))


def make_schedule(
    request: ScheduleRequest, provider_fit: ProviderFit, rows: Sequence[Lifetime], now: WallTime
) -> ScheduleComputed | None:
    """Return the schedule for a machine, or the reason why it has none; None if nothing has changed.

    Args:
        request: the machine, its run, and its current schedule.
        provider_fit: the laws of its provider's machines.
        rows: lifetimes of all machines, for the share of losses without notice.
        now: the time up to which running machines count.
    """
    before = request.before
    if request.machines > 1:
        alone = f"schedules are for a machine that trains alone, and {request.machines} train together"
        return None if request.answered else default_schedule(request, f"{alone}: the default rule decides")
    law_estimate = estimate_law(request, provider_fit)
    no_fit_reason = provider_fit.no_fit_reason if law_estimate is None else law_estimate.doubt
    if law_estimate is None or no_fit_reason:
        explanation = f"the fit of lifetimes is not used, because {no_fit_reason}: the default rule decides"
        return None if request.answered and not request.scheduled else default_schedule(request, explanation)
    try:
        reason = "" if before is None else _replan_reason(request, before, law_estimate)
        if before is not None and not reason:
            return None
        return _trusted(request, law_estimate, _covered_share(request, rows, now), reason)
    except (Misuse, Infeasible) as error:
        explanation = f"no schedule can be computed ({error}): the default rule decides"
        return None if request.answered and not request.scheduled else default_schedule(request, explanation)


def _replan_reason(request: ScheduleRequest, before: ScheduleComputed, law_estimate: LawEstimate) -> str:
    if before.trusted or request.term != before.term:
        # The age that the machine would have had at the start of the schedule if it had lost no time since.
        age_s = max(before.age_s + lost_time_s(request, before), 0.0)
        return replan_reason(request, before, request.basis(_remaining_lifetime_s(law_estimate.law, age_s)))
    return "the fit of lifetimes can be trusted now" if request.age_s < law_estimate.evidence.oldest_s else ""


def _remaining_lifetime_s(law: Law, age_s: float) -> float:
    return law.remaining(age_s, until_s=age_s + REMAINING_LIFE_MAX_S).mean_s


def _covered_share(request: ScheduleRequest, rows: Sequence[Lifetime], now: WallTime) -> float:
    """Return the share of losses that come with a notice in which an emergency save fits."""
    if not request.covers:
        return 0.0
    if request.injected:
        return 1.0 - request.losses.unannounced_share()
    keys = (request.provider, request.machine_type, request.zone)
    silent = next((row.silent_share for row in lifetime_pool.pool(rows, now) if row.rate[:3] == keys), None)
    return 1.0 - (request.losses.unannounced_share() if silent is None else silent)


def _trusted(
    request: ScheduleRequest, law_estimate: LawEstimate, covered_share: float, reason: str
) -> ScheduleComputed:
    interval_s = request.interval_s(covered_share)
    unit_s, work_s = _horizon(request, law_estimate.evidence.oldest_s, interval_s)
    until_s = max(request.age_s, request.prepare_s) + 2.0 * work_s + 60.0 * request.stall_s
    with np.errstate(divide="ignore"):
        lifetimes = tabulate(
            law_estimate.law.log_survival, until_s=until_s, cell_s=max(unit_s / 2.0, until_s / 100_000.0)
        )
    world = MakespanWorld(
        lifetimes, request.stall_s, request.durable_s, request.allocate_s, request.prepare_s, covered_share
    )
    found = optimal(world, work_s, age_s=request.age_s, unit_s=unit_s)
    table = save_table(
        found.saves_at_s,
        work_s=found.work_s,
        age_s=request.age_s,
        stall_s=request.stall_s,
        evidence=law_estimate.evidence,
        interval_s=interval_s,
    )
    whole = request.work_s is not None and found.work_s >= request.work_s - unit_s
    table = _bounded(table, found.work_s + interval_s if whole else TRUSTED_SHARE * found.work_s)
    explanation = f"based on {law_estimate.basis_text}" if not request.injected else law_estimate.basis_text
    if table.horizon_s < (request.work_s or math.inf):
        explanation += f"; known for {table.horizon_s:.0f} s of work"
    assigned = ScheduleAssigned(replace(table, explanation=explanation), request.from_step, request.term)
    basis = replace(
        request.basis(_remaining_lifetime_s(law_estimate.law, request.age_s)),
        reuse_s=found.expected.expected_s,
        fresh_s=found.expected.from_nothing_s,
    )
    planned_s = Seconds(found.work_s if whole else request.work_s or math.ceil(2.0 * found.work_s))
    return ScheduleComputed(
        request.machine_id,
        request.term,
        assigned,
        basis,
        request.age_s,
        planned_s,
        trusted=table.horizon_s > 0.0,
        reason=reason,
    )


def _horizon(request: ScheduleRequest, oldest_s: float, interval_s: float) -> tuple[float, float]:
    """Return a unit of work, and how much work to plan [s]: all, or as much as is known and solved quickly.

    Raises:
        Infeasible: too little work can be planned.
    """
    unit_s = max(interval_s / UNITS_PER_INTERVAL, request.stall_s, request.step_s / 2.0)
    if request.work_s is not None:
        unit_s = min(unit_s, request.work_s)
    observed_s = max(2.0 * (oldest_s - request.age_s), 2.0 * interval_s)
    needed_s = min(request.work_s or math.inf, observed_s, UNITS_MAX * unit_s)
    ages = max(request.age_s, request.prepare_s) / unit_s
    units = min(math.sqrt(EFFORT_MAX / max(ages, 1.0)), UNITS_MAX)
    if units < min(UNITS_MIN, needed_s / unit_s):
        raise Infeasible(f"saves every {interval_s:.0f} s are too frequent to plan for an age of {request.age_s:.0f} s")
    return unit_s, min(needed_s, units * unit_s)


def _bounded(table: SaveTable, known_s: float) -> SaveTable:
    known_s = min(table.horizon_s, known_s)
    saves = tuple(round(save, 3) for save in table.saves_at_s if save <= known_s)
    if len(saves) > SAVES_MAX:
        saves, known_s = saves[:SAVES_MAX], saves[SAVES_MAX - 1]
    return replace(table, saves_at_s=saves, horizon_s=round(known_s, 3), interval_s=round(table.interval_s, 3))
