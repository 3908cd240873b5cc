"""What fleet to have: the needs, and the machines to release by choice.

A fleet policy is asked in each turn of the driver, between the end of the job and the orders.  It answers with the whole
target, not with steps towards it: slots that are new are bought for, slots that it leaves out are drained and retired,
machines that it releases are drained, and replaced while their slot stays.  How a need becomes an order (which offer,
blocked ones, successors of machines whose end is announced) is the same for all policies.

Source: the place of BidBrain in Proteus (EuroSys 2017, section 4) and of Parcae's scheduler (NSDI 2024), which both decide
over a whole fleet and carry out the difference.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from windfall.events import Decision
from windfall.fleet import Slot
from windfall.jobs import Job, Measurement
from windfall.market import Offer, OfferKey, Quota
from windfall.models import lifetime_pool
from windfall.policies.replacement.successor import ReplacementTime
from windfall.structs import Struct
from windfall.terms import Instant, JobProgress, Reliability, Seconds

if TYPE_CHECKING:
    # Needs numpy, which a controller need not have.
    from windfall.models.price_evictions import EvictionForecast


class FleetMachine(Struct, frozen=True):
    """A machine of the fleet.

    Attributes:
        slot: the slot that it fills.
        key: of its offer.
        price_usd_per_hour: what it costs now.
        started: since when it is billed; None before.
        ends_at: its announced or chosen end; None if there is none.
        ready: whether it works or could work now.
        reuse_s, fresh_s: expected time of the work that is planned on it, and if a new machine were ordered for it now;
            0 without a trusted save schedule.
        order: token of the order that bought it.
        step_s: mean time of a step there, or of an item of a bag, as it reported last [s]; None before the first report of it.
        busy: whether it works now.
    """

    machine_id: str
    slot: str
    key: OfferKey
    price_usd_per_hour: float
    started: Instant | None
    ends_at: Instant | None
    ready: bool
    reuse_s: float = 0.0
    fresh_s: float = 0.0
    order: str = ""
    step_s: float | None = None
    busy: bool = False


class FleetAllocation(Struct, frozen=True):
    """Machines that were bought together: of one offer, at one time, with one bid.

    Attributes:
        order: token of their order.
        key: of their offer.
        bid_usd_per_hour: their price limit; None for the job's.
        price_usd_per_hour: what one of them costs now.
        started: since when the first one is billed; None before.
        slots: which they fill; each of them has a machine, and none is about to leave.
    """

    order: str
    key: OfferKey
    bid_usd_per_hour: float | None
    price_usd_per_hour: float
    started: Instant | None
    slots: tuple[str, ...]


class FleetView(Protocol):
    """What a fleet policy sees; what costs a pass over all machines is made when it is asked for."""

    @property
    def now(self) -> Instant:
        """The journal clock."""

    @property
    def submitted(self) -> Instant:
        """When the job was submitted, from which its deadline counts."""

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """The account's limits."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def needs(self) -> tuple[Slot, ...]:
        """The slots that are wanted so far; those of the runtime at the start."""

    @property
    def offers(self) -> tuple[Offer, ...]:
        """What the providers offer."""

    @property
    def progress(self) -> JobProgress | None:
        """Of the job; None before the first."""

    @property
    def awaited(self) -> frozenset[str]:
        """The slots for which an order is open."""

    @property
    def leaving(self) -> int:
        """How many machines the job still has that fill no slot of its needs: they drain, or are being released."""

    @property
    def memory(self) -> Mapping[str, float]:
        """What the policy's last target gave to be remembered; empty before."""

    def machines(self) -> Sequence[FleetMachine]:
        """The machines that fill slots."""

    def allocations(self) -> Sequence[FleetAllocation]:
        """The machines of slots that are wanted, by order."""

    def refused(self) -> frozenset[OfferKey]:
        """The offers that are not ordered now, because an order was refused."""

    def spent_usd(self) -> float:
        """The job's cost so far, by the best estimate."""


class FleetEstimates(Struct, frozen=True):
    """What is believed.

    Attributes:
        rates: mean times to preemption of this installation, by offer.
        measured: earlier runs of this job.
        replacement: the expected time of a replacement.
        evictions: the odds that a bid is exceeded, by offer; None where no history of prices is known.
    """

    rates: tuple[lifetime_pool.Rate, ...]
    measured: tuple[Measurement, ...]
    replacement: ReplacementTime
    evictions: EvictionForecast | None = None


class MachineDrain(Struct, frozen=True):
    """A machine to release.

    Attributes:
        deadline: when it is released at the latest, its work handed over or not.
        reason: for users, and for the bill.
    """

    machine_id: str
    deadline: Instant
    reason: str


class FleetTarget(Struct, frozen=True):
    """The fleet to have.

    Attributes:
        needs: all slots, those that stay included.
        releases: machines to release although their slot stays: a successor takes their place first.
        wake_at: when to ask again at the latest; None if only news matter.
        decision: what was compared, if the target differs from what there is; None otherwise.
        memory: what the next view has as `memory`: a policy keeps nothing itself.  None: what it had.
    """

    needs: tuple[Slot, ...]
    releases: tuple[MachineDrain, ...] = ()
    wake_at: Instant | None = None
    decision: Decision | None = None
    memory: Mapping[str, float] | None = None


FleetPolicy = Callable[[FleetView, FleetEstimates], FleetTarget]


class FleetPolicyRules(Struct, frozen=True):
    """A fleet policy that has settings, or does not fit every job.

    Attributes:
        policy: reads its settings from the job.
        check: returns what is wrong with settings, None if they are valid.
        job_check: returns why a job whose settings are valid cannot have this policy; None if it can.
        step_times: whether it decides by `FleetMachine.step_s`, so that it is asked again when that changes.
        ages: whether it retires machines by what their next item is expected to take at their age.
    """

    policy: FleetPolicy
    check: Callable[[Mapping[str, Any]], str | None]
    job_check: Callable[[Job], str | None]
    step_times: bool = False
    ages: bool = False


def fixed(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
    """Return the fleet that the runtime needs, unchanged: n machines of the best-ranked offers, each replaced when it ends."""
    del estimates
    return FleetTarget(view.needs)


def allocations(machines: Sequence[FleetMachine], needs: Sequence[Slot]) -> tuple[FleetAllocation, ...]:
    """Return the machines of slots that are wanted, by order; those that are about to leave are left out."""
    wanted = {slot.id: slot for slot in needs}
    groups: dict[tuple[str, OfferKey], list[FleetMachine]] = {}
    for machine in machines:
        if machine.slot in wanted and machine.ends_at is None:
            groups.setdefault((machine.order, machine.key), []).append(machine)
    return tuple(
        FleetAllocation(
            order,
            key,
            wanted[found[0].slot].bid_usd_per_hour,
            found[0].price_usd_per_hour,
            min((one.started for one in found if one.started is not None), default=None),
            tuple(one.slot for one in found),
        )
        for (order, key), found in groups.items()
    )


def machines_held(job: Job, held: Sequence[FleetAllocation]) -> collections.Counter[OfferKey]:
    """Return how many machines are held of each offer, as `ranking.pool_room` wants it; empty if the job has no such limit."""
    found: collections.Counter[OfferKey] = collections.Counter()
    if job.limits.pool_machines_max is not None:
        for one in held:
            found[one.key] += len(one.slots)
    return found


def kept(needs: tuple[Slot, ...], awaited: frozenset[str], filled: frozenset[str]) -> list[Slot]:
    """Return the slots that have a machine or await one, and those of machines that cannot be preempted.

    Args:
        needs: the slots that are wanted so far.
        awaited: those for which an order is open.
        filled: those of the allocations that stay.
    """
    if not awaited and len(filled) == len(needs):  # allocations are of slots that are wanted: all have a machine
        return list(needs)
    stay = filled | awaited
    return [slot for slot in needs if slot.id in stay or slot.reliability is Reliability.RELIABLE]


def new_slot_ids(role: str, now: Instant, needs: Sequence[Slot]) -> Iterator[str]:
    """Yield ids for new slots: a policy keeps nothing between calls, so they come from the time.

    A slot's id is never used again, so a second decision of the same instant counts on from the first.

    Args:
        role: of the slots.
        now: the journal clock.
        needs: the slots that are wanted so far, those that the decision drops included.
    """
    name = f"{role}-{round(now * 1000.0):x}-"
    used = [int(slot.id.removeprefix(name)) for slot in needs if slot.id.startswith(name)]
    for number in itertools.count(max(used, default=-1) + 1):
        yield f"{name}{number}"


def price_limit_usd(job: Job, bid_usd_per_hour: float | None) -> float | None:
    """Return the price limit of new orders: the lower of the job's and the policy's bid; None without either [USD/h]."""
    limits = [usd for usd in (job.max_price_usd_per_hour, bid_usd_per_hour) if usd is not None]
    return min(limits, default=None)


def flaw(
    target: object,
    slots: Mapping[str, Slot],
    retiring: Collection[str],
    roles: Sequence[str],
    reliable_roles: Sequence[str],
) -> str | None:
    """Return what is wrong with a policy's answer, None if it can be carried out.

    Args:
        target: the answer.
        slots: the slots that are wanted so far, by id.
        retiring: ids of retired slots whose machines have not left yet.
        roles: of the job's runtime.
        reliable_roles: those that need a machine that cannot be preempted.
    """
    if not isinstance(target, FleetTarget):
        return f"returned {type(target).__name__} instead of a FleetTarget"
    if not isinstance(target.needs, tuple) or not all(isinstance(slot, Slot) for slot in target.needs):
        return "returned needs that are no slots"
    if not all(isinstance(release, MachineDrain) for release in target.releases):
        return "returned releases that name no machine"
    memory = target.memory or {}
    if len(memory) > MEMORY_MAX or not all(isinstance(value, float) for value in memory.values()):
        return f"returned a memory of something else than at most {MEMORY_MAX} numbers"
    flaws = [_slot_flaw(slot, slots.get(slot.id), roles, reliable_roles) for slot in target.needs]
    flaws = [_id_flaw([slot.id for slot in target.needs], retiring), *flaws, _gang_flaw(target.needs, slots)]
    return next((found for found in flaws if found is not None), None)


def _id_flaw(ids: Sequence[str], retiring: Collection[str]) -> str | None:
    for name, count in collections.Counter(ids).items():
        if count > 1:
            return f"named the slot {name} twice"
        if name in retiring:
            return f"named the slot {name} again, which it has retired; open another"
    return None


def _gang_flaw(needs: Sequence[Slot], slots: Mapping[str, Slot]) -> str | None:
    """Return which gang would change its size: its machines are one allocation."""
    wanted, known = (collections.Counter(slot.gang for slot in some if slot.gang) for some in (needs, slots.values()))
    changed = [gang for gang in wanted if gang in known and wanted[gang] != known[gang]]
    if not changed:
        return None
    gang = changed[0]
    return f"changed gang {gang} from {known[gang]} slots to {wanted[gang]}; retire all of it and open another"


def _slot_flaw(slot: Slot, known: Slot | None, roles: Sequence[str], reliable_roles: Sequence[str]) -> str | None:
    if not slot.id:
        return "named a slot without an id"
    if slot.role not in roles:
        return f"gave slot {slot.id} the role {slot.role!r}; the runtime has {', '.join(roles)}"
    if slot.role in reliable_roles and slot.reliability is not Reliability.RELIABLE:
        return f"asked for slot {slot.id} ({slot.role}) on any machine; it needs one that cannot be preempted"
    if known is not None and (known.role, known.gang) != (slot.role, slot.gang):
        return f"changed the role or gang of slot {slot.id}; retire it and open another"
    return _bid_flaw(slot, known)


def _bid_flaw(slot: Slot, known: Slot | None) -> str | None:
    bid = slot.bid_usd_per_hour
    if bid is not None and not bid > 0.0:
        return f"bid {bid:g} USD/h for slot {slot.id}; a bid is above zero"
    if known is not None and known.bid_usd_per_hour != bid:
        return f"changed the bid of slot {slot.id}; a machine keeps its bid: retire the slot and open another"
    return None


MEMORY_MAX = 16
"""How many numbers a policy may be reminded of."""
WAKE_S_MIN = Seconds(1.0)
"""A policy is not asked again earlier than this, unless there is news [s]."""
