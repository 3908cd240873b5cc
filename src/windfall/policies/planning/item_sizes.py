"""On how many processors an item runs: those that it wants, or fewer in a trial that measures how long it takes there.

An item of a bag wants a number of processors; where its program also runs on fewer, a restart after a preemption may be on
fewer (`replacement.item_recovery`), if the time there is measured.  So once the time on the wanted number is known, a few later
items run on each smaller number.

Source: SciSpot (draft 2019), section 4.3: "once we have found the appropriate server, we then explore the application's
performance at smaller cluster sizes, which helps in the job-group policies".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from windfall.fleet import FleetFacts
from windfall.structs import Struct

TRIALS = 2
"""Items that are timed on each number of processors."""
TRIES_MAX = 6
"""Items that are started on a smaller number at most: some may be lost, or fail, there."""


class SizeTrials(Struct, frozen=True):
    """What is known of items on a number of processors.

    Attributes:
        timed: items whose time is measured.
        tried: items that were to run on it in a trial.
        trying: of those, items that have not ended.
    """

    timed: int = 0
    tried: int = 0
    trying: int = 0


def size_to_try(
    sizes: Sequence[float],
    known: Mapping[float, SizeTrials],
    waiting: int,
    at_once: int,
    fleet: FleetFacts | None = None,
) -> float | None:
    """Return on how many processors the next item runs in a trial; None: on those that it wants.

    Args:
        sizes: the wanted number of processors, then the smaller ones.
        known: of each of them; none where nothing is.
        waiting: items that wait.
        at_once: items that run at once.  Once they take all that wait, a trial would come too late to be of use.
        fleet: the machines; None if nothing is known of them.  Where none can be preempted, a trial brings nothing.

    Example:
        Of [4, 2, 1], with two items timed on 4 and none on 2 and 1: 2; with two under way there: 1.
    """
    if fleet is not None and not any(one.mttp_s is None or one.mttp_s < math.inf for one in fleet.machines.values()):
        return None
    if waiting <= at_once or known.get(sizes[0], SizeTrials()).timed < TRIALS:
        return None
    for size in sizes[1:]:
        one = known.get(size, SizeTrials())
        if one.timed + one.trying < TRIALS and one.tried < TRIES_MAX:
            return size
    return None
