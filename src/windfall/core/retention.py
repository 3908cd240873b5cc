"""Which committed points may go (thesis, section 5.2): insurance, emergency and stop points go when newer ones are there.

Pure: what is no longer wanted follows from the live points alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from windfall.terms import CheckpointRef, SaveKind, Step

WHOLE_MIN = 2
"""So many whole points always stay: the newest may turn out to be damaged."""
GRACE_S = 60.0
"""How long a superseded point stays, because a contender may just be restoring it (deletes cannot be fenced) [s]."""

_PERIODIC: Final = SaveKind.PERIODIC


def is_due_anyway(step: Step, own: Sequence[Step]) -> bool:
    """Return whether the user's own saves, evenly apart, have one at a step: then it stays, though it was asked for.

    A script that is asked at a step at which it would have saved anyway hands over once, and cannot say why.

    Args:
        step: of the save.
        own: steps of the user's own saves, rising.
    """
    if len(own) < 2 or step <= own[-1]:
        return step in own
    return (step - own[-1]) % (own[-1] - own[-2]) == 0


def superseded(
    points: tuple[CheckpointRef, ...], *, keep: int | None = None, damaged: frozenset[str] = frozenset()
) -> tuple[CheckpointRef, ...]:
    """Return the points that may be deleted.

    The two newest whole points stay, whatever their kind.  Of the others periodic ones stay, or the `keep` newest of
    them; insurance, emergency and stop points go.

    Args:
        points: the live points in the order of their commits.
        keep: how many periodic points the user wants; None for all.
        damaged: ids of points known not to be whole: they never count as whole, and periodic ones of them stay for
            the user to look at.

    Returns:
        In the order of their commits.
    """
    whole = [point for point in points if point.checkpoint_id not in damaged] if damaged else points
    if len(whole) < WHOLE_MIN or len(points) == WHOLE_MIN:
        return ()
    periodic = [point for point in whole if point.kind is _PERIODIC]
    if not periodic and not damaged:
        return points[:-WHOLE_MIN]
    kept = {point.checkpoint_id for point in whole[-WHOLE_MIN:]}
    if periodic:
        wanted = len(periodic) if keep is None else min(keep, len(periodic))
        kept |= {point.checkpoint_id for point in periodic[len(periodic) - wanted :]}
    gone = [point for point in points if point.checkpoint_id not in kept]
    return tuple([point for point in gone if point.kind is not _PERIODIC or point.checkpoint_id not in damaged])
