"""What preemptions cost a job on an offer, in time: the difference to the same machines if they were never preempted."""

from __future__ import annotations

import math

from windfall.policies.acquisition.ranking import HORIZON_S
from windfall.policies.planning.estimates import NumberBasis, OfferEstimate, PlanNumberKey
from windfall.structs import Struct
from windfall.terms import Reliability, Seconds

_ASSUMABLE = (PlanNumberKey.MTTP, PlanNumberKey.SILENT_SHARE, PlanNumberKey.SAVE_STALL, PlanNumberKey.PREPARATION)


class PreemptionCosts(Struct, frozen=True):
    """What preemptions cost.

    Attributes:
        work_s: the work over which they are counted: the job's, or a stated stretch where that is unknown [s].
        work_known: whether it is the job's.
        preemptions: expected in that time.
        redo_s: work done again [s].
        save_s: the script stalled by saves [s].
        restart_s: waiting for new machines and getting them ready, beyond the first [s].
        machine_hours: billed for all of that [h].
        notice_s: what a preempted machine has from the first sign to its end [s].
        assumed: the numbers that rest on no measurement.
    """

    work_s: Seconds
    work_known: bool
    preemptions: float
    redo_s: Seconds
    save_s: Seconds
    restart_s: Seconds
    machine_hours: float
    notice_s: Seconds
    assumed: tuple[PlanNumberKey, ...]

    @property
    def share(self) -> float:
        """Extra time for each second of work."""
        return (self.redo_s + self.save_s + self.restart_s) / self.work_s


def preemption_costs(found: OfferEstimate) -> PreemptionCosts | None:
    """Return what preemptions cost on an offer; None for a machine that cannot be preempted, or if nothing is ever done.

    Args:
        found: the estimate for the offer.
    """
    if found.offer.reliability is Reliability.RELIABLE:
        return None
    work_s = found.work_s or HORIZON_S
    lossy, calm = found.expect(work_s), found.reliable.expect(work_s)
    if not math.isfinite(lossy.wall_s):
        return None
    waits_s = lossy.allocate_s + lossy.prepare_s - calm.allocate_s - calm.prepare_s
    return PreemptionCosts(
        work_s=Seconds(work_s),
        work_known=found.work_s is not None,
        preemptions=lossy.preemptions,
        redo_s=Seconds(lossy.redo_s),
        save_s=Seconds(lossy.save_s),
        restart_s=Seconds(waits_s),
        machine_hours=(found.billed_s(lossy) - calm.billed_s) / 3600.0,
        notice_s=Seconds(found.fit.notice_s),
        assumed=tuple(one.name for one in found.numbers if one.basis is NumberBasis.ASSUMED and one.name in _ASSUMABLE),
    )
