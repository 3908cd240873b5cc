"""What ends a job before its work is done: its budget, its time limit, its own failures.

The budget is hard: it includes a reserve for the cost of the last save and the release.
"""

from __future__ import annotations

import math

from windfall.events import ComparedValue, Decision
from windfall.terms import Instant, Seconds, Usd

RELEASE_S = 60.0
"""From the order to release a machine to the end of its billing, at most [s]."""
SAVE_MARGIN_S = 30.0
"""How much longer than the job's save timeout a stop with a save waits [s], for the message and its reply to arrive."""
DURATION_SHARE_MAX = 0.1
"""The largest share of `max_duration` that is kept for the last save, so that a short job still trains."""
FAILED_TO_START_MAX = 20
"""How many machines in a row may fail to start, per slot of the job, before the job fails."""
_HOUR_S = 3600.0
_NOTHING_USD = 1e-6


def reserve_usd(usd_per_hour: float, save_timeout_s: Seconds) -> Usd:
    """Return what the end of the job will still cost [USD]: rate x (last save + release).

    Args:
        usd_per_hour: of all machines together.
        save_timeout_s: how long the last save may take [s].
    """
    return Usd(usd_per_hour * reserve_s(save_timeout_s) / _HOUR_S)


def reserve_s(save_timeout_s: Seconds) -> Seconds:
    """Return how long the end of the job may still take: last save + release [s]."""
    return Seconds(save_timeout_s + RELEASE_S)


def budget_left_usd(budget_usd: Usd, due_usd: float, reserve: float) -> Usd:
    """Return what can still be spent before the job has to stop [USD]; zero or less: it has to stop now."""
    return Usd(budget_usd - due_usd - reserve)


def over_budget(budget_usd: Usd, due_usd: float, reserve: float) -> Decision | None:
    """Return the decision to stop once due + reserve >= budget, None before.

    Args:
        budget_usd: of the job [USD].
        due_usd: the best estimate of what was spent [USD].
        reserve: `reserve_usd` [USD].
    """
    if budget_left_usd(budget_usd, due_usd, reserve) > _NOTHING_USD:
        return None
    rationale = (
        ComparedValue("spent", due_usd, "USD"),
        ComparedValue("reserve for the last save and the release", reserve, "USD"),
        ComparedValue("budget", budget_usd, "USD"),
    )
    return Decision("limits", 1, "stop at the budget", rationale, ("continue",))


def budget_at(now: Instant, left_usd: float, usd_per_hour: float) -> Instant:
    """Return when only the reserve of the budget will be left, at the present rate; infinity if nothing costs."""
    if usd_per_hour <= 0.0:
        return Instant(math.inf)
    return Instant(now + left_usd / usd_per_hour * _HOUR_S)


def last_save_at(submitted_at: Instant, max_duration_s: Seconds, save_timeout_s: Seconds) -> Instant:
    """Return when the last save starts, early enough to release the machines by `max_duration` whatever the script does.

    Args:
        submitted_at: when the job was submitted.
        max_duration_s: of the job.
        save_timeout_s: how long the last save may take [s]; at most a tenth of `max_duration_s` is kept for it.
    """
    reserve_s = min(save_timeout_s + SAVE_MARGIN_S, DURATION_SHARE_MAX * max_duration_s)
    return Instant(submitted_at + max_duration_s - reserve_s)


def duration_reached(
    now: Instant, submitted_at: Instant, max_duration_s: Seconds, save_timeout_s: Seconds
) -> Decision | None:
    """Return the decision to save and stop once only the last save fits into `max_duration`, None before."""
    save_at = last_save_at(submitted_at, max_duration_s, save_timeout_s)
    if now < save_at:
        return None
    rationale = (
        ComparedValue("age", now - submitted_at, "s"),
        ComparedValue("reserve for the last save", submitted_at + max_duration_s - save_at, "s"),
        ComparedValue("max_duration", max_duration_s, "s"),
    )
    return Decision("limits", 1, "stop at max_duration", rationale, ("continue",))


def crash_loop(failures: int, failures_max: int, what: str) -> Decision | None:
    """Return the decision to give up once something has failed on its own too often, None before.

    Args:
        failures: in a row, without progress between them.
        failures_max: the number at which the job stops spending.
        what: the name of what failed.
    """
    if failures < failures_max:
        return None
    rationale = (ComparedValue(f"failures of {what}", failures, ""), ComparedValue("allowed", failures_max, ""))
    return Decision("limits", 1, "give up", rationale, ("another start",))


def no_progress(machines: int, machines_max: int) -> Decision | None:
    """Return the decision to give up once too many machines in a row have ended without progress, None before.

    Progress is a checkpoint, or a step beyond the one where the machine started.  A script that never reports steps is
    judged by the same count: nothing remains of the work of a lost machine.

    Args:
        machines: how many in a row ended without progress.
        machines_max: the number at which the job stops spending.
    """
    if machines < machines_max:
        return None
    rationale = (
        ComparedValue("machines in a row without a step", machines, ""),
        ComparedValue("allowed", machines_max, ""),
    )
    return Decision("limits", 1, "give up: no progress", rationale, ("another machine",))


def failed_to_start_max(nodes: int) -> int:
    """Return how many machines in a row may fail to start."""
    return FAILED_TO_START_MAX * nodes
