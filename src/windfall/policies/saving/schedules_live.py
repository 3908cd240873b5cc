"""From the lives of an installation's machines to the schedule of saves of one that trains now.

The law of its losses is the one that best predicts lives of its provider that it was not fitted to, of its zone or its
type where these surely have one of their own.  The schedule is the programme's (`schedule.optimal`), as far ahead as is
solved within seconds and as lives were observed; the next one follows on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from windfall.errors import Infeasible, Misuse
from windfall.events import SaveTableGiven
from windfall.fleet import Lifetime, ScheduleMade
from windfall.models import pool
from windfall.models.exact.makespan import World
from windfall.models.exact.survival import tabulate
from windfall.models.lifetimes import choosing, goodness, grouping
from windfall.models.lifetimes.families import Exponential
from windfall.models.lifetimes.grouping import Group, How
from windfall.models.lifetimes.kaplan import kaplan_meier
from windfall.models.lifetimes.law import Law
from windfall.models.lifetimes.lives import lives_from
from windfall.policies.saving.replanning import ScheduleWish, by_default, lost_s, why_anew
from windfall.policies.saving.schedule import optimal
from windfall.policies.saving.schedule_table import LOSSES_MIN, Evidence, doubt, hand_over
from windfall.terms import SaveTable, Seconds, WallTime

UNITS_MAX = 1200
"""So many units of work are planned at a time: some seconds at most, without the interpreter's lock."""
UNITS_MIN = 100.0
"""Fewer are not worth a schedule: they would be over before the next one is made."""
EFFORT_MAX = 4e8
"""Units of work, squared, times the machine's age in units: seconds.  The effort grows with the age, so that what is
planned of an old machine with short intervals has to be shorter."""
UNITS_PER_INTERVAL = 10.0
"""A unit is so much shorter than the default rule's interval: the optimum is flat."""
SURE_SHARE = 0.75
"""Of a plan that ends before the work does, the rest is only there so that its end does not matter."""
SAVES_MAX = 256
"""A table is sent with every directive: it has no more points than this."""
LIVES_MAX = 1000
"""So many lives are fitted, the newest: a fit of four thousand takes minutes, and old ones tell of another market."""
LIFE_COUNTED_S = 30.0 * 86_400.0
"""The rest of a machine's life is counted for so long [s]: some laws have no mean."""


@dataclass(frozen=True, eq=False, slots=True)
class Known:
    """What is known of the losses of one provider's machines.

    Attributes:
        fit: of all of them; None if no law could be fitted.
        groups: which zones and which types have a law of their own.
        why_not: why there is no fit, in words.
    """

    fit: choosing.Fit | None
    groups: tuple[Group, ...] = ()
    why_not: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Belief:
    """The law that speaks for a machine, and what it rests on."""

    law: Law
    evidence: Evidence
    words: str
    doubt: str = ""


def know(
    rows: Iterable[Lifetime],
    now: WallTime,
    provider: str,
    families: tuple[tuple[str, choosing.Fitter], ...] = choosing.FAMILIES,
) -> Known:
    """Fit the newest lives of a provider's machines; takes seconds.

    Args:
        rows: of all machines of the installation, in any order.  Those that were taken as a rehearsal are censored:
            `core.views`.
        now: until when running lives count.
        provider: whose.
        families: the laws to choose from.
    """
    newest = sorted((row for row in rows if row.provider == provider), key=lambda row: row.began)[-LIVES_MAX:]
    try:
        fit = choosing.fit_lives(lives_from(newest, now, provider=provider), families=families)
    except Misuse:
        return Known(None, why_not="no loss of such a machine was observed yet")
    groups = [group for key in ("zone", "type") for group in grouping.fit_groups(fit, key)]
    return Known(fit, tuple(group for group in groups if group.how is not How.POOLED))


def believe(wish: ScheduleWish, known: Known) -> Belief | None:
    """Return the law for a machine; None if there is none."""
    if wish.injected and wish.mttp_s is not None:
        words = f"the injector takes machines after {wish.mttp_s:.0f} s in the mean"
        return Belief(Exponential(1.0 / wish.mttp_s), Evidence(LOSSES_MIN, 0.0, math.inf), words)
    fit = known.fit
    if fit is None:
        return None
    mine = {("zone", wish.zone), ("type", wish.machine_type)}
    group = next((group for group in known.groups if (group.key, group.value) in mine), None)
    if group is None:
        evidence = Evidence(fit.lives.losses, fit.chosen.ks, fit.lives.oldest_s)
        words = f"{evidence.losses} losses, {fit.law.name} law"
        return Belief(fit.law, evidence, words, doubt(evidence) or "".join(fit.doubts[:1]))
    lives = fit.lives.where(fit.lives.keys[group.key] == group.value)
    distance = goodness.ks_to_kaplan(group.law, kaplan_meier(lives))
    evidence = Evidence(lives.losses, distance, lives.oldest_s)
    words = f"{lives.losses} losses in {group.value}, {group.law.name} law"
    return Belief(group.law, evidence, words, doubt(evidence))


def make(wish: ScheduleWish, known: Known, rows: Sequence[Lifetime], now: WallTime) -> ScheduleMade | None:
    """Return the schedule that a machine is to have, or the reason why it has none; None if nothing has changed.

    Args:
        wish: the machine, its run, and the schedule that it has.
        known: of its provider's losses.
        rows: lives of all machines, for the share of losses without notice.
        now: until when running lives count.
    """
    before = wish.before
    if wish.machines > 1:
        alone = f"schedules are for a machine that trains alone, and {wish.machines} train together"
        return None if wish.answered else by_default(wish, f"{alone}: the default rule decides")
    belief = believe(wish, known)
    why_not = known.why_not if belief is None else belief.doubt
    if belief is None or why_not:
        says = f"the fit of lives is not used, because {why_not}: the default rule decides"
        return None if wish.answered and not wish.scheduled else by_default(wish, says)
    try:
        why = "" if before is None else _why(wish, before, belief)
        if before is not None and not why:
            return None
        return _trusted(wish, belief, _covered_share(wish, rows, now), why)
    except (Misuse, Infeasible) as error:
        says = f"no schedule can be made ({error}): the default rule decides"
        return None if wish.answered and not wish.scheduled else by_default(wish, says)


def _why(wish: ScheduleWish, before: ScheduleMade, belief: Belief) -> str:
    if before.trusted or wish.term != before.term:
        # As old as the machine would have been at the begin, had it come here without the time that it has lost since.
        age_s = max(before.age_s + lost_s(wish, before), 0.0)
        return why_anew(wish, before, wish.basis(_life_left_s(belief.law, age_s)))
    return "the fit of lives can be trusted now" if wish.age_s < belief.evidence.oldest_s else ""


def _life_left_s(law: Law, age_s: float) -> float:
    return law.remaining(age_s, until_s=age_s + LIFE_COUNTED_S).mean_s


def _covered_share(wish: ScheduleWish, rows: Sequence[Lifetime], now: WallTime) -> float:
    """Return the share of losses that come with a notice in which an emergency save fits."""
    if not wish.covers:
        return 0.0
    if wish.injected:
        return 1.0 - wish.losses.unannounced_share()
    keys = (wish.provider, wish.machine_type, wish.zone)
    silent = next((row.silent_share for row in pool.pool(rows, now) if row.rate[:3] == keys), None)
    return 1.0 - (wish.losses.unannounced_share() if silent is None else silent)


def _trusted(wish: ScheduleWish, belief: Belief, covered_share: float, why: str) -> ScheduleMade:
    interval_s = wish.interval_s(covered_share)
    unit_s, work_s = _horizon(wish, belief.evidence.oldest_s, interval_s)
    until_s = max(wish.age_s, wish.prepare_s) + 2.0 * work_s + 60.0 * wish.stall_s
    with np.errstate(divide="ignore"):
        lives = tabulate(belief.law.log_survival, until_s=until_s, cell_s=max(unit_s / 2.0, until_s / 100_000.0))
    world = World(lives, wish.stall_s, wish.durable_s, wish.allocate_s, wish.prepare_s, covered_share)
    found = optimal(world, work_s, age_s=wish.age_s, unit_s=unit_s)
    table = hand_over(
        found.saves_at_s,
        work_s=found.work_s,
        age_s=wish.age_s,
        stall_s=wish.stall_s,
        evidence=belief.evidence,
        interval_s=interval_s,
    )
    whole = wish.work_s is not None and found.work_s >= wish.work_s - unit_s
    table = _bounded(table, found.work_s + interval_s if whole else SURE_SHARE * found.work_s)
    says = f"it rests on {belief.words}" if not wish.injected else belief.words
    if table.known_s < (wish.work_s or math.inf):
        says += f"; known for {table.known_s:.0f} s of work"
    given = SaveTableGiven(replace(table, says=says), wish.from_step, wish.term)
    basis = wish.basis(_life_left_s(belief.law, wish.age_s))
    planned_s = Seconds(found.work_s if whole else wish.work_s or math.ceil(2.0 * found.work_s))
    return ScheduleMade(
        wish.machine_id, wish.term, given, basis, wish.age_s, planned_s, trusted=table.known_s > 0.0, why=why
    )


def _horizon(wish: ScheduleWish, oldest_s: float, interval_s: float) -> tuple[float, float]:
    """Return a unit of work, and how much work is planned [s]: all, or as far as it can be known and soon solved.

    Raises:
        Infeasible: too little could be.
    """
    unit_s = max(interval_s / UNITS_PER_INTERVAL, wish.stall_s, wish.step_s / 2.0)
    if wish.work_s is not None:
        unit_s = min(unit_s, wish.work_s)
    observed_s = max(2.0 * (oldest_s - wish.age_s), 2.0 * interval_s)
    wanted_s = min(wish.work_s or math.inf, observed_s, UNITS_MAX * unit_s)
    ages = max(wish.age_s, wish.prepare_s) / unit_s
    units = min(math.sqrt(EFFORT_MAX / max(ages, 1.0)), UNITS_MAX)
    if units < min(UNITS_MIN, wanted_s / unit_s):
        raise Infeasible(f"saves every {interval_s:.0f} s are too frequent to plan for an age of {wish.age_s:.0f} s")
    return unit_s, min(wanted_s, units * unit_s)


def _bounded(table: SaveTable, known_s: float) -> SaveTable:
    known_s = min(table.known_s, known_s)
    points = tuple(round(point, 3) for point in table.saves_at_s if point <= known_s)
    if len(points) > SAVES_MAX:
        points, known_s = points[:SAVES_MAX], points[SAVES_MAX - 1]
    return replace(table, saves_at_s=points, known_s=round(known_s, 3), interval_s=round(table.interval_s, 3))
