"""What the record of a run shows the driver."""

from __future__ import annotations

from windfall.fleet import ProgressObserved
from windfall.terms import JobProgress, Outcome, Term, Unit, WorkDone


def observed(outcome: Outcome, term: int, holder: str | None, step: int, failures: int) -> ProgressObserved:
    """Return the fact of a run that one machine holds, or none."""
    safe = WorkDone(float(step), Unit.STEP)
    progress = JobProgress(safe, safe, failures, outcome, () if holder is None else (holder,))
    return ProgressObserved(Term(term), progress)
