"""What the job needs: slots open, are retired, and their machines are drained, as the fleet policy wants it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from windfall.core import drains, gangs, job_end, ledger, machines
from windfall.core.fleet_state import FleetState, FleetTurn, SlotState, TrackedMachine
from windfall.core.lifecycle import MachineState
from windfall.core.orders import expect
from windfall.fleet import MachineStatus, Slot
from windfall.jobs import Job
from windfall.market import BillingBasis, Offer, OfferKey, Quota
from windfall.policies.acquisition import fleet_policy, fleet_policy_list, ranking
from windfall.policies.acquisition.fleet_policy import FleetAllocation, FleetEstimates, FleetMachine, FleetTarget
from windfall.policies.layout import runtime_list
from windfall.policies.layout.membership import Membership
from windfall.terms import Instant, JobProgress

RETIRED = "the job no longer needs it"


def membership_of(job: Job) -> Membership:
    """Return which of a job's machines train together."""
    return runtime_list.rules(job.runtime.name).membership(job)


def coupled(state: FleetState) -> int:
    """Return how many machines stop when one of them is lost."""
    return len(state.slots) if membership_of(state.the_job).together else 1


def open_slots(turn: FleetTurn, wanted: tuple[Slot, ...]) -> None:
    """Open the slots that are new."""
    for slot in wanted:
        if slot.id not in turn.slots:
            turn.slots[slot.id] = SlotState(slot, turn.state.slots_opened)
            turn.change(slots_opened=turn.state.slots_opened + 1)
    turn.change(needs=wanted)


def settle(turn: FleetTurn) -> None:
    """Ask the fleet policy what to have, and begin what differs."""
    if turn.active:
        target = _target(turn)
        if target is not None:
            _apply(turn, target)


def _target(turn: FleetTurn) -> FleetTarget | None:
    """Return the policy's answer; None, and the job ends, if it cannot be carried out."""
    state, name = turn.state, turn.job.fleet
    rules = runtime_list.rules(turn.job.runtime.name)
    estimates = FleetEstimates(state.rates, state.measured, expect(turn))
    try:
        target = fleet_policy_list.policy(name)(TurnView(turn), estimates)
    except Exception as error:
        problem: str | None = f"raised {type(error).__name__}: {error}"
    else:
        if (
            target.__class__ is FleetTarget
            and target.needs is state.needs
            and not target.releases
            and target.memory is None
        ):
            problem = None  # checked when these needs were new
        else:
            retiring = [slot.id for slot in turn.slots.values() if slot.retiring]
            problem = fleet_policy.flaw(target, _wanted(turn), retiring, rules.roles, rules.reliable_roles)
    if problem is None:
        return target
    job_end.fail(turn, f"the fleet policy {name} {problem}; nothing was bought for it")
    return None


def _wanted(turn: FleetTurn) -> dict[str, Slot]:
    return {slot.id: slot.need for slot in turn.slots.values() if not slot.retiring}


def _apply(turn: FleetTurn, target: FleetTarget) -> None:
    if target.needs is not turn.state.needs and target.needs != turn.state.needs:
        _change_needs(turn, target.needs)
    if target.memory is not None and target.memory != turn.state.policy_memory:
        turn.change(policy_memory=MappingProxyType(dict(target.memory)))
    for release in target.releases:
        unit = turn.units.get(release.machine_id)
        for one in () if unit is None else gangs.whole(turn, unit):
            if one.slot is not None and one.drain_at is None:
                turn.set_unit(one, drain_at=release.deadline, drain_reason=release.reason)
    if target.wake_at is not None:
        turn.later.append(Instant(max(target.wake_at, turn.now + fleet_policy.WAKE_S_MIN)))
    if target.decision is not None:
        turn.decisions.append(target.decision)


def _change_needs(turn: FleetTurn, wanted: tuple[Slot, ...]) -> None:
    """Retire the slots that are no longer wanted, change the others, open the new ones."""
    by_id = {slot.id: slot for slot in wanted}
    for slot in list(turn.slots.values()):
        if slot.retiring:
            continue
        newer = by_id.get(slot.id)
        if newer is None:
            _retire(turn, slot)
        elif newer != slot.need:
            turn.set_slot(slot, need=newer)
    open_slots(turn, wanted)


def _retire(turn: FleetTurn, slot: SlotState) -> None:
    slot = turn.set_slot(slot, retiring=True)
    machines.stop_awaiting(turn, slot)
    deadline = Instant(turn.now + turn.job.checkpointing.save_timeout_s)
    for machine_id in (slot.successor, slot.incumbent):
        if machine_id is not None and turn.units[machine_id].state is not MachineState.RELEASING:
            drains.drain(turn, turn.units[machine_id], deadline, RETIRED)


def forget_retired(turn: FleetTurn) -> None:
    """Forget retired slots once their machines have left."""
    empty = [slot.id for slot in turn.slots.values() if slot.retiring and slot.incumbent is None]
    for slot_id in empty:
        del turn.slots[slot_id]


@dataclass(slots=True)
class TurnView:
    """`fleet_policy.FleetView` of a turn."""

    turn: FleetTurn

    @property
    def now(self) -> Instant:
        """The journal clock."""
        return self.turn.now

    @property
    def submitted(self) -> Instant:
        """When the job was submitted."""
        return self.turn.state.submitted_at

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """The account's limits."""
        return self.turn.state.quotas

    @property
    def job(self) -> Job:
        """The job."""
        return self.turn.job

    @property
    def needs(self) -> tuple[Slot, ...]:
        """The slots that are wanted so far."""
        return self.turn.state.needs

    @property
    def offers(self) -> tuple[Offer, ...]:
        """What the providers offer."""
        return self.turn.state.offers

    @property
    def progress(self) -> JobProgress | None:
        """Of the job."""
        observed = self.turn.state.progress
        return None if observed is None else observed.progress

    @property
    def awaited(self) -> frozenset[str]:
        """The slots for which an order is open."""
        return frozenset(slot.id for slot in self.turn.slots.values() if slot.awaits is not None)

    @property
    def leaving(self) -> int:
        """How many machines there are that fill no slot of the needs."""
        slots = self.turn.slots
        return sum(unit.slot is None or slots[unit.slot].retiring for unit in self.turn.units.values())

    @property
    def memory(self) -> Mapping[str, float]:
        """What the policy's last target gave to be remembered."""
        return self.turn.state.policy_memory

    def machines(self) -> Sequence[FleetMachine]:
        """The machines that fill slots."""
        return tuple(_fleet_machines(self.turn))

    def allocations(self) -> Sequence[FleetAllocation]:
        """The machines of slots that are wanted, by order."""
        return fleet_policy.allocations(self.machines(), self.needs)

    def refused(self) -> frozenset[OfferKey]:
        """The offers that are not ordered now, because an order was refused."""
        return ranking.blocked(self.turn.blocks, self.now)

    def spent_usd(self) -> float:
        """The job's cost so far."""
        return ledger.totals(self.turn.state.ledger, self.turn.wall_time()).due_usd


def _fleet_machines(turn: FleetTurn) -> Iterable[FleetMachine]:
    for unit in turn.units.values():
        if unit.slot is not None:
            ends = [at for at in (unit.ends_at, unit.drain_at) if at is not None]
            yield FleetMachine(
                unit.machine_id,
                unit.slot,
                unit.key,
                _price_usd_per_hour(turn, unit),
                unit.running_at,
                min(ends, default=None),
                unit.ready,
                *_expected_times_s(turn, unit.machine_id),
                unit.machine.token,
                None if unit.report is None else unit.report.step_s,
                unit.report is not None and unit.report.status is MachineStatus.TRAINING,
            )


def _price_usd_per_hour(turn: FleetTurn, unit: TrackedMachine) -> float:
    """Return what a machine costs now: the newest price, or by started hours that of the present one [USD/h]."""
    account = turn.state.ledger.open.get(unit.machine_id)
    if account is None or account.billing.basis is not BillingBasis.STARTED_HOUR:
        return unit.machine.price_now_usd_per_hour
    return account.price_now_usd_per_hour(turn.wall_time())


def _expected_times_s(turn: FleetTurn, machine_id: str) -> tuple[float, float]:
    """Return the expected time of the planned work on a machine, and on a new one [s]; zeros without a trusted schedule."""
    weighed = turn.state.weighed.get(machine_id)
    if weighed is not None:
        return weighed.reuse_s, weighed.fresh_s
    found = turn.state.schedules.get(machine_id)
    return (found.basis.reuse_s, found.basis.fresh_s) if found is not None and found.trusted else (0.0, 0.0)
