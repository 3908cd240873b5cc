"""What ends a job although it could go on: its budget, its time, its own failures.

The budget is hard: what the last save and the release will cost is kept in reserve inside it.
"""

from __future__ import annotations

import math

from windfall.events import Because, Decision
from windfall.terms import Instant, Seconds, Usd

RELEASE_S = 60.0
"""From the order to release a machine to the end of its billing, at most [s]."""
SAVE_ROOM_S = 30.0
"""How much longer than the job's save timeout a stop with a save waits [s]: the message must arrive, and the answer."""
DURATION_SHARE_MAX = 0.1
"""So much of `max_duration` is kept for the last save, at most: a short job is there to train."""
STILLBORN_MAX = 20
"""So many machines in a row may die before they speak, per slot of the job; then the job has failed."""
_HOUR_S = 3600.0
_NOTHING_USD = 1e-6


def reserve_usd(usd_per_hour: float, save_timeout_s: Seconds) -> Usd:
    """Return what the end of the job will still cost [USD]: rate x (last save + release).

    Args:
        usd_per_hour: of all machines together.
        save_timeout_s: how long the last save may take [s].
    """
    return Usd(usd_per_hour * (save_timeout_s + RELEASE_S) / _HOUR_S)


def budget_left_usd(budget_usd: Usd, due_usd: float, reserve: float) -> Usd:
    """Return what may still be spent before the end must begin [USD]; not positive: it must begin now."""
    return Usd(budget_usd - due_usd - reserve)


def over_budget(budget_usd: Usd, due_usd: float, reserve: float) -> Decision | None:
    """Return the decision to stop once due + reserve >= budget, None before.

    Args:
        budget_usd: of the job [USD].
        due_usd: the best that is known of what was spent [USD].
        reserve: `reserve_usd` [USD].
    """
    if budget_left_usd(budget_usd, due_usd, reserve) > _NOTHING_USD:
        return None
    because = (
        Because("spent", due_usd, "USD"),
        Because("reserve for the last save and the release", reserve, "USD"),
        Because("budget", budget_usd, "USD"),
    )
    return Decision("limits", 1, "stop at the budget", because, ("go on",))


def budget_at(now: Instant, left_usd: float, usd_per_hour: float) -> Instant:
    """Return when the budget will be used up but for the reserve, at the present rate; infinity if nothing costs."""
    if usd_per_hour <= 0.0:
        return Instant(math.inf)
    return Instant(now + left_usd / usd_per_hour * _HOUR_S)


def save_begins_at(began_at: Instant, max_duration_s: Seconds, save_timeout_s: Seconds) -> Instant:
    """Return when the last save begins, so that the machines can be given back at `max_duration` whatever the script does.

    Args:
        began_at: when the job was submitted.
        max_duration_s: of the job.
        save_timeout_s: how long the last save may take [s]; no more than a tenth of `max_duration_s` is kept for it.
    """
    reserve_s = min(save_timeout_s + SAVE_ROOM_S, DURATION_SHARE_MAX * max_duration_s)
    return Instant(began_at + max_duration_s - reserve_s)


def out_of_time(now: Instant, began_at: Instant, max_duration_s: Seconds, save_timeout_s: Seconds) -> Decision | None:
    """Return the decision to save and stop once only the last save fits into the job's time, None before."""
    begins_at = save_begins_at(began_at, max_duration_s, save_timeout_s)
    if now < begins_at:
        return None
    because = (
        Because("age", now - began_at, "s"),
        Because("reserve for the last save", began_at + max_duration_s - begins_at, "s"),
        Because("max_duration", max_duration_s, "s"),
    )
    return Decision("limits", 1, "stop at max_duration", because, ("go on",))


def crash_loop(failures: int, failures_max: int, what: str) -> Decision | None:
    """Return the decision to give up once something has failed by itself too often, None before.

    Args:
        failures: in a row, without progress between them.
        failures_max: at which the spending stops.
        what: failed, in words.
    """
    if failures < failures_max:
        return None
    because = (Because(f"failures of {what}", failures, ""), Because("allowed", failures_max, ""))
    return Decision("limits", 1, "give up", because, ("another start",))


def no_progress(lives: int, lives_max: int) -> Decision | None:
    """Return the decision to give up once machines have come and gone without one step too often, None before.

    A step counts that goes beyond where its machine began, and a checkpoint.  A script that never tells a step is judged
    by the same count: of what a lost machine did for it nothing stays.

    Args:
        lives: of machines in a row that ended without progress.
        lives_max: at which the spending stops.
    """
    if lives < lives_max:
        return None
    because = (Because("machines in a row without a step", lives, ""), Because("allowed", lives_max, ""))
    return Decision("limits", 1, "give up: no progress", because, ("another machine",))


def stillborn_max(nodes: int) -> int:
    """Return how many machines in a row may die before they speak."""
    return STILLBORN_MAX * nodes
