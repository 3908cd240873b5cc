"""Limits that no offer meets, or that contradict each other: which ones would do, and with which machines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from windfall.jobs import Job
from windfall.policies.deadlines import limits
from windfall.structs import Struct
from windfall.terms import Instant, Seconds
from windfall.units import time_text, usd_text

_MINUTE_S, _HOUR_S, _CENT_USD = 60.0, 3600.0, 0.01
_SHOWN_IN_HOURS_S = 360_000.0
"""From here on `time_text` shows whole hours [s]."""


class LimitOption(Struct, frozen=True):
    """What a job on some machines is expected to need.

    Attributes:
        name: of the machines.
        finish_s: from now [s]; None if unknown.
        budget_usd: the least budget, with what is held in reserve [USD].
    """

    name: str
    finish_s: float | None
    budget_usd: float


def training_s(job: Job) -> Seconds:
    """Return how long after its submission the last save of a job starts by its `max_duration` [s]; infinity without one."""
    if job.max_duration_s is None:
        return Seconds(math.inf)
    return Seconds(limits.last_save_at(Instant(0.0), job.max_duration_s, job.checkpointing.save_timeout_s))


def nearest(job: Job, options: Iterable[LimitOption]) -> str:
    """Return which deadline, budget or `max_duration` would do in place of those that no machines meet; empty if none would.

    If one limit can be kept, what the other one must be is told; if neither can, both for the fastest and the cheapest
    machines.  What is told is rounded up, so that it does.

    Args:
        job: with its limits.
        options: what the job needs on machines that it could use; those that take for ever are left out.
    """
    possible = [one for one in options if math.isfinite(one.finish_s or 0.0) and math.isfinite(one.budget_usd)]
    deadline_s, budget_usd = job.objective.deadline_s, job.objective.budget_usd
    in_time = [
        one for one in possible if deadline_s is None or (one.finish_s or 0.0) <= min(deadline_s, training_s(job))
    ]
    within = [one for one in possible if budget_usd is None or one.budget_usd <= budget_usd]
    found = []
    if budget_usd is not None and in_time:
        found.append(min(in_time, key=_cheapest))
    if deadline_s is not None and within:
        found.append(min(within, key=_fastest))
    if not found and possible:
        found = [min(possible, key=_fastest), min(possible, key=_cheapest)]
    return "; or ".join(dict.fromkeys(_words(job, one) for one in found))


def _fastest(one: LimitOption) -> tuple[float, float, str]:
    return one.finish_s or 0.0, one.budget_usd, one.name


def _cheapest(one: LimitOption) -> tuple[float, float, str]:
    return one.budget_usd, one.finish_s or 0.0, one.name


def _words(job: Job, one: LimitOption) -> str:
    deadline_s, budget_usd, finish_s = job.objective.deadline_s, job.objective.budget_usd, one.finish_s or 0.0
    time, money = time_text(time_above(finish_s)), usd_text(_above(one.budget_usd, _CENT_USD))
    changed, rest = [], []
    if deadline_s is not None and finish_s > deadline_s:
        changed.append(f"a deadline of {time}")
    elif one.finish_s is None:
        rest.append("for a last save; what the work takes is unknown")
    else:
        rest.append(f"done in {time}")
    if deadline_s is not None and finish_s > training_s(job):
        changed.append(f"a max_duration of {time_text(time_above(_duration_for(job, finish_s)))}")
    if budget_usd is None:
        rest.append(f"which takes a budget of {money}")
    elif one.budget_usd > budget_usd:
        changed.append(f"a budget of {money}")
    else:
        rest.append("within the budget")
    return f"{_joined(changed)} would do ({', '.join((one.name, *rest))})"


def _joined(parts: Sequence[str]) -> str:
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else "".join(parts)


def _duration_for(job: Job, finish_s: float) -> float:
    """Return the least `max_duration` whose last save starts no earlier than the job's end [s]."""
    kept_s = job.checkpointing.save_timeout_s + limits.SAVE_MARGIN_S
    return min(finish_s + kept_s, finish_s / (1.0 - limits.DURATION_SHARE_MAX))


def time_above(least_s: float) -> float:
    """Return a time rounded up to whole minutes, a long one to whole hours [s]."""
    return _above(least_s, _MINUTE_S if least_s < _SHOWN_IN_HOURS_S - _HOUR_S else _HOUR_S)


def _above(least: float, unit: float) -> float:
    return math.ceil(least / unit) * unit


def contradictions(job: Job) -> Iterator[str]:
    """Yield what a user should know of a deadline that `max_duration` makes pointless."""
    deadline_s, duration_s = job.objective.deadline_s, job.max_duration_s
    if deadline_s is not None and duration_s is not None and duration_s < deadline_s:
        yield (
            f"max_duration {time_text(duration_s)} stops the job before its deadline, in {time_text(deadline_s)}: only "
            "max_duration counts; make it longer, or remove one of the two"
        )
