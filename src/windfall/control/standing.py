"""How a job is shown: its row in the database and what its conductor says, as one view."""

from __future__ import annotations

from typing import Any

from windfall.control.means import Entry
from windfall.control.service import JobView
from windfall.errors import EXIT_FAILED
from windfall.fleet import JobPhase
from windfall.terms import Unit, WallTime

DELETED = "run_deleted"
"""In a job's kept summary: its run was found to be deleted."""
_BRIEF = ("step", "saved_step", "money", "rate_usd_per_hour", "preemptions")
"""What a list of jobs shows of each."""


def view(entry: Entry, stands: dict[str, Any], now: WallTime, *, whole: bool) -> JobView:
    """Return a job as people see it.

    Args:
        entry: its row.
        stands: its summary, as it is kept.
        now: on the controller's wall clock.
        whole: with all details, and not as a list shows it.
    """
    job, sentence = entry.job, stands.get("sentence", "submitted")
    deleted = bool(stands.get(DELETED))
    return JobView(
        job_id=job.job_id,
        name=job.name,
        user=job.user,
        phase=JobPhase(stands.get("phase", entry.phase)),
        sentence=f"{sentence}; its run was deleted" if deleted else sentence,
        run_url=job.run_url,
        created=entry.created,
        exit_code=stands.get("exit_code"),
        finish_at=_finish_at(entry, stands, now),
        dead_man_s=job.dead_man_s,
        run_deleted=deleted,
        details=stands if whole else {name: stands[name] for name in _BRIEF if name in stands},
    )


def _finish_at(entry: Entry, stands: dict[str, Any], now: WallTime) -> WallTime | None:
    """Return when a running job is done if it goes on as it did since it was submitted; None if nobody can say."""
    job, step = entry.job, stands.get("step", 0)
    if stands.get("phase") != JobPhase.RUNNING or job.work is None or job.work.unit is not Unit.STEP or step <= 0:
        return None
    return WallTime(now + max(0.0, job.work.amount - step) * (now - entry.created) / step)


def shelved(who: tuple[str, str, str], created: WallTime, sentence: str, run_url: str = "") -> JobView:
    """Show a job that is set aside: `who` is its id, its name and its user."""
    return JobView(*who, JobPhase.FAILED, sentence, run_url, created, exit_code=EXIT_FAILED)
