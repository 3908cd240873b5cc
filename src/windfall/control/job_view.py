"""A job's view for display, from its row in the database and its job loop's summary."""

from __future__ import annotations

from typing import Any

from windfall.control.controller_views import JobView
from windfall.control.dependencies import Entry
from windfall.errors import EXIT_FAILED
from windfall.fleet import JobPhase
from windfall.terms import Unit, WallTime

DELETED = "run_deleted"
"""Key in a job's stored summary: its run was found to be deleted."""
_BRIEF = ("step", "saved_step", "money", "rate_usd_per_hour", "preemptions")
"""The summary's fields that a list of jobs shows."""


def view(entry: Entry, summary: dict[str, Any], now: WallTime, *, whole: bool) -> JobView:
    """Return a job's view.

    Args:
        entry: its row.
        summary: its summary, as stored.
        now: on the controller's wall clock.
        whole: with all details, rather than those a list shows.
    """
    job, message = entry.job, summary.get("message", "submitted")
    deleted = bool(summary.get(DELETED))
    return JobView(
        job_id=job.job_id,
        name=job.name,
        user=job.user,
        phase=JobPhase(summary.get("phase", entry.phase)),
        message=f"{message}; its run was deleted" if deleted else message,
        run_url=job.run_url,
        created=entry.created,
        exit_code=summary.get("exit_code"),
        finish_at=_finish_at(entry, summary, now),
        dead_man_s=job.dead_man_s,
        run_deleted=deleted,
        details=_items(entry) | (summary if whole else {name: summary[name] for name in _BRIEF if name in summary}),
    )


def _items(entry: Entry) -> dict[str, Any]:
    work = entry.job.work
    return {"items": int(work.amount)} if work is not None and work.unit is Unit.ITEM else {}


def _finish_at(entry: Entry, summary: dict[str, Any], now: WallTime) -> WallTime | None:
    """Return when a running job is done at its pace since the submission; None if that cannot be estimated."""
    job, step = entry.job, summary.get("step", 0)
    if (
        summary.get("phase") != JobPhase.RUNNING
        or job.work is None
        or job.work.unit not in (Unit.STEP, Unit.ITEM)
        or step <= 0
    ):
        return None
    return WallTime(now + max(0.0, job.work.amount - step) * (now - entry.created) / step)


def set_aside_view(who: tuple[str, str, str], created: WallTime, message: str, run_url: str = "") -> JobView:
    """Return the view of a job that is set aside; `who` is its id, name and user."""
    return JobView(*who, JobPhase.FAILED, message, run_url, created, exit_code=EXIT_FAILED)
