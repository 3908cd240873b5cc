"""SciSpot's fits of lifetimes, on lives that are handed in: as the paper makes them, and with censoring beside them.

The paper fits the machines that were preempted, by least squares on their empirical distribution, and leaves out those that
their users stopped.  Its own data set has 1442 lives, 717 of them preempted; other lives of the same kind scatter.

Source:
    SciSpot, draft 2019, section 3 and Figure 1; the authors' table of R2.
"""

from __future__ import annotations

import numpy as np

from windfall.models.exact.rows import Row, cannot, compared
from windfall.models.lifetimes.kaplan import kaplan_meier
from windfall.models.lifetimes.lives import Lives
from windfall.models.lifetimes.published import LOSSES_MIN, fit_as_published
from windfall.simulation.papers.parts import Options, Tell
from windfall.simulation.papers.scispot_published import CENSORED, R2, H

R2_WITHIN, KS_WITHIN = 0.012, 0.03
"""R2 and KS of the blended form match within this; the scatter between 717 and some 500 machines is below it."""
SIGMAS = 2.0
"""Mean lives match within so many standard errors of ours."""
_NONE = (
    "a fit needs lives: give them with --data FILE.csv, one line a machine with its lifetime_s, end_event, machine_type and "
    "zone (the authors' are public as kadupitiya/goog-preemption-data)"
)


def fits(options: Options, tell: Tell) -> tuple[Row, ...]:
    """Return R2 and KS of every group beside the published ones, and R2 of the forms that the paper rejects."""
    rows: list[Row] = []
    for group, count, r2, ks, exponential, gompertz in R2:
        cells = (
            ("blended", "R2", r2, R2_WITHIN),
            ("blended", "KS", ks, KS_WITHIN),
            ("exponential", "R2", exponential, R2_WITHIN),
            ("gompertz-makeham", "R2", gompertz, R2_WITHIN),
        )
        chosen = None if options.lives is None else group_of(options.lives, group)
        if chosen is not None and chosen.losses >= LOSSES_MIN:
            tell(f"fits to {chosen.losses} preempted machines, {group}")
            rows += _fitted(group, count, cells, chosen)
            continue
        why = _NONE if chosen is None else f"the lives given have {chosen.losses} preempted machines of this group"
        for form, quantity, published, _ in cells:
            item = f"{group}, {form}"
            rows.append(cannot("SciSpot, table of R2", item, quantity, unit="", published=published, reason=why))
    return tuple(rows)


def censored(options: Options, tell: Tell) -> tuple[Row, ...]:
    """Return mean lives with censoring beside those of the preempted machines alone, on these lives and the authors'."""
    del tell
    rows = []
    source = "SciSpot's machines, not the paper"
    for group, mean_h, preempted_h in CENSORED:
        cells = (("mean life within 24 h, censored", mean_h), ("mean life of the preempted alone", preempted_h))
        chosen = None if options.lives is None else group_of(options.lives, group)
        if chosen is None or chosen.losses < LOSSES_MIN:
            why = _NONE if chosen is None else f"the lives given have {chosen.losses} preempted machines of this group"
            rows += [cannot(source, group, name, unit="h", published=value, reason=why) for name, value in cells]
            continue
        capped_h = np.minimum(chosen.duration_s, 24.0 * H) / H
        lost_h = chosen.duration_s[chosen.lost] / H
        ours = (
            (kaplan_meier(chosen).remaining(until_s=24.0 * H).mean_s / H, capped_h),
            (float(lost_h.mean()), lost_h),
        )
        for (name, published), (value, sample) in zip(cells, ours, strict=True):
            within_h = SIGMAS * float(sample.std()) / len(sample) ** 0.5
            rows.append(
                compared(
                    source,
                    group,
                    name,
                    unit="h",
                    published=published,
                    ours=value,
                    tolerance_pct=100.0 * within_h / published,
                    method=f"these lives against the authors' 1442; matches within {SIGMAS:g} standard errors of ours",
                    reason="other machines of the group, launched in other batches: machines of a batch share their fate",
                )
            )
    return tuple(rows)


def group_of(lives: Lives, group: str) -> Lives:
    """Return the lives of a machine type or zone; `all`: every one."""
    if group == "all":
        return lives
    chosen = np.zeros(len(lives), dtype=np.bool_)
    for values in lives.keys.values():
        chosen |= values == group
    return lives.where(chosen)


def _fitted(group: str, count: int, cells: tuple[tuple[str, str, float, float], ...], chosen: Lives) -> list[Row]:
    rows = [
        compared(
            "SciSpot, table of R2",
            group,
            "preempted machines",
            unit="",
            published=float(count),
            ours=float(chosen.losses),
            tolerance_pct=0.0,
            method="counted",
            reason="another selection of machines than the authors'",
        )
    ]
    found = {form: fit_as_published(chosen, form) for form in ("blended", "exponential", "gompertz-makeham")}
    for form, quantity, published, within in cells:
        ours = found[form].r2 if quantity == "R2" else found[form].ks
        rows.append(
            compared(
                "SciSpot, table of R2" if quantity == "R2" else "SciSpot's machines, not the paper",
                f"{group}, {form}",
                quantity,
                unit="",
                published=published,
                ours=ours,
                tolerance_pct=100.0 * within / abs(published),
                method=f"least squares on the preempted alone, as published; matches within {within}",
                reason=_why(form, better=ours > published),
            )
        )
    return rows


def _why(form: str, *, better: bool) -> str:
    if form != "gompertz-makeham":
        return "other machines of the group than the authors'"
    if better:
        return "the printed fit stopped in a poor local optimum: from several starts a far better one is found"
    return (
        "the printed fit is that of a hazard that falls with age; Gompertz-Makeham's grows, and a falling one knows no end "
        "of the day"
    )
