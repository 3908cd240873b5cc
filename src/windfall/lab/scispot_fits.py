"""SciSpot's fits of lifetimes, on lifetimes passed in: as the paper fits them, and with censoring.

The paper fits the machines that were preempted, by least squares on their empirical distribution, and leaves out those
that their users stopped.  Its own data set has 1442 lifetimes, 717 of them preempted; other data sets of the same kind
scatter around its results.

Source:
    SciSpot, draft 2019, section 3 and Figure 1; the authors' table of R2.

The checkpoint program of SciSpot's authors, unchanged, as a reference; do not plan with it.

What it computes, with F the (unnormalised) distribution function of lifetimes, s the machine's age at the job's start,
delta = R = 1 min, W minutes of work left and d minutes since the start *or the last loss*:

    E(W, d) = max(W, min_i [ p (i + delta + E(W - i, d + i + delta)) + (1 - p) ((i + delta) / 2 + R + E(W, R)) ])
    p = max(0, 1 - (F(s + d + i + delta) - F(s + d)))

and at d = R, where the retry would lead to the same state, (1 - p) / p ((i + delta) / 2 + R) replaces its last term.
Differences from the exact program (`policies.checkpointing.optimal_schedule`): p is not conditional on being alive; a
loss costs half a segment; after a loss the machine's age is s + R instead of 0; the retry at d = R is dropped; results
are floored at W.  The printed schedule has, at each d, the longest interval of *all* states that the recursion visits.

Source: the behaviour of the public program of "Modeling The Temporally Constrained Preemptions of Transient Cloud VMs"
(HPDC'20); the paper's own text has M(J, t) with lost = integral x f(x) dx and P_f misprinted as F(i + delta).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.lab.published_rows import Options, Progress, PublishedRow, cannot, compared
from windfall.lab.scispot_published import CENSORED, R2, H
from windfall.models.lifetimes.least_squares import LOSSES_MIN, fit_as_published
from windfall.models.lifetimes.observations import Lifetimes, kaplan_meier

R2_WITHIN, KS_WITHIN = 0.012, 0.03
"""R2 and KS of the blended form match within this; the scatter between 717 and about 500 machines is smaller."""
SIGMAS = 2.0
"""Mean lifetimes match within this many standard errors of the computed one."""
_NONE = (
    "a fit needs lifetimes: pass them with --data FILE.csv, one line per machine with its lifetime_s, end_event, "
    "machine_type and zone (the authors' data are public as kadupitiya/goog-preemption-data)"
)


def fits(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return R2 and KS of every group next to the published ones, and R2 of the forms that the paper rejects."""
    rows: list[PublishedRow] = []
    for group, count, r2, ks, exponential, gompertz in R2:
        cells = (
            ("blended", "R2", r2, R2_WITHIN),
            ("blended", "KS", ks, KS_WITHIN),
            ("exponential", "R2", exponential, R2_WITHIN),
            ("gompertz-makeham", "R2", gompertz, R2_WITHIN),
        )
        chosen = None if options.lifetimes is None else group_of(options.lifetimes, group)
        if chosen is not None and chosen.losses >= LOSSES_MIN:
            progress(f"fits to {chosen.losses} preempted machines, {group}")
            rows += _fitted(group, count, cells, chosen)
            continue
        reason = _NONE if chosen is None else f"the data have {chosen.losses} preempted machines of this group"
        for form, quantity, published, _ in cells:
            item = f"{group}, {form}"
            rows.append(cannot("SciSpot, table of R2", item, quantity, unit="", published=published, reason=reason))
    return tuple(rows)


def censored(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return mean lifetimes with censoring and of the preempted machines alone, for these data and the authors'."""
    del progress
    rows = []
    source = "SciSpot's machines, not the paper"
    for group, mean_h, preempted_h in CENSORED:
        cells = (("mean lifetime within 24 h, censored", mean_h), ("mean lifetime of the preempted alone", preempted_h))
        chosen = None if options.lifetimes is None else group_of(options.lifetimes, group)
        if chosen is None or chosen.losses < LOSSES_MIN:
            reason = _NONE if chosen is None else f"the data have {chosen.losses} preempted machines of this group"
            rows += [cannot(source, group, name, unit="h", published=value, reason=reason) for name, value in cells]
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
                    method=f"these data against the authors' 1442; matches within {SIGMAS:g} standard errors of these data",
                    reason="other machines of the group, launched in other batches: machines of a batch share their fate",
                )
            )
    return tuple(rows)


def group_of(lifetimes: Lifetimes, group: str) -> Lifetimes:
    """Return the lifetimes of a machine type or zone; all of them for `all`."""
    if group == "all":
        return lifetimes
    chosen = np.zeros(len(lifetimes), dtype=np.bool_)
    for values in lifetimes.keys.values():
        chosen |= values == group
    return lifetimes.where(chosen)


def _fitted(
    group: str, count: int, cells: tuple[tuple[str, str, float, float], ...], chosen: Lifetimes
) -> list[PublishedRow]:
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
                reason=_reason(form, better=ours > published),
            )
        )
    return rows


def _reason(form: str, *, better: bool) -> str:
    if form != "gompertz-makeham":
        return "other machines of the group than the authors'"
    if better:
        return "the printed fit stopped in a poor local optimum: several starting points find a far better one"
    return (
        "the printed fit has a hazard that falls with age; Gompertz-Makeham's hazard grows, and a falling one cannot show "
        "the limit of 24 h"
    )


Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Published:
    """What the authors' program prints.

    Attributes:
        expected_min: its "expected makespan" [min].
        saves_at_min: its schedule: the start of each segment, from the job's start [min]; the first is 0.
    """

    expected_min: float
    saves_at_min: tuple[int, ...]


def published_schedule(cdf: Callable[[Array], Array], job_min: int, age_min: int = 0) -> Published:
    """Return what the authors' program computes, in minutes, with save and restart of 1 min each.

    Args:
        cdf: F, not clipped, at ages in minutes.
        job_min: the job's length [min], >= 1.
        age_min: s, the machine's age at its start [min].

    Example:
        4 h at age 0 with A .4137, tau1 .9 h, tau2 .76 h, b 24 h: 249.642 min.
    """
    if job_min < 1 or age_min < 0:
        raise Misuse(f"job length {job_min} min, machine age {age_min} min: they must be at least 1 and 0")
    ages = np.arange(age_min, age_min + 2 * job_min + 4, dtype=np.float64)
    expected, intervals, met = _recursion(job_min, np.ascontiguousarray(cdf(ages), dtype=np.float64))
    longest = np.where(met, intervals, 0).max(axis=0)
    saves = [0]
    while (following := saves[-1] + int(longest[saves[-1]])) <= job_min:
        saves.append(following)
        if longest[following] == 0:
            break
    return Published(float(expected[job_min, 0]), tuple(saves))


@njit(cache=True)
def _met(job, width):  # type: ignore[no-untyped-def]  # compiled
    """Return the states (minutes left, minutes since the start or the last loss) that the recursion visits."""
    met = np.zeros((job + 1, width), np.bool_)
    met[job, 0] = True
    for work in range(job, 0, -1):
        met[work, 1] = True
        for done in range(width):
            if met[work, done]:
                for i in range(1, work):
                    met[work - i, done + i + 1] = True
    return met


@njit(cache=True)
def _recursion(job, cdf):  # type: ignore[no-untyped-def]  # compiled
    """Return E, the chosen intervals, and the states visited; in each row, the state after a loss (d = 1) is first."""
    width = 2 * job + 3
    met = _met(job, width)
    expected, intervals = np.zeros((job + 1, width)), np.zeros((job + 1, width), np.int64)
    for work in range(1, job + 1):
        for turn in range(width):
            done = 1 if turn == 0 else 0 if turn == 1 else turn
            best, chosen = np.inf, 0
            for i in range(1, work + 1 if met[work, done] else 1):
                lived = max(0.0, 1.0 - (cdf[done + i + 1] - cdf[done]))
                lost = (i + 1) / 2.0 + 1.0
                if done == 1:
                    failed = (1.0 - lived) / (lived if lived > 0.0 else 1.0) * lost
                else:
                    failed = (1.0 - lived) * (lost + expected[work, 1])
                value = max(lived * (i + 1.0 + expected[work - i, min(done + i + 1, width - 1)]) + failed, float(work))
                if value < best:
                    best, chosen = value, i
            expected[work, done], intervals[work, done] = best, chosen
    return expected, intervals, met
