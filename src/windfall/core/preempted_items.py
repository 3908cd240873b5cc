"""Decisions on items that were preempted while they ran: facts for the policy, and its answer for the bag's log.

An item has a slot of a machine, so that it is a gang of one which has lost its machine: to replenish is to run again in the
next free slot, ahead of the items that have not run; to discard it while others must take its place is to run it last, so that
it is there if they do not suffice.

Its time is the mean of the items that needed one try; one that has already run for longer takes at least as long as it ran.
On fewer processors it takes longer by the ratio of the means measured there, and so does what it had run, or saved, on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from windfall.bags import (
    ItemLease,
    ItemOutcome,
    ItemRecovery,
    ItemRecoveryAction,
    ItemState,
    RecoveryCost,
)
from windfall.core.item_table import ItemTable
from windfall.fleet import FleetFacts, MachineFacts
from windfall.models import preemption_rates
from windfall.policies.replacement.item_recovery import (
    BagShare,
    GangTime,
    ItemLoss,
    MemorylessLosses,
    RecoveryAction,
    RecoveryChoice,
    RecoveryOption,
    choose,
)
from windfall.structs import Struct, replace
from windfall.terms import Seconds
from windfall.units import cpus_text

_LEFT_SHARE = 0.01
"""Of an item of which as much is saved as others take in all, at least this share is left [1]."""
_ROUNDING = 1e-9


class PreemptedItem(Struct, frozen=True):
    """An item that was preempted while it ran.

    Attributes:
        machine_id: where it ran.
        slots: how many items that machine ran at once.
        ran_s, saved_s: how long it had run, and how much of its work is saved [s].
        cpus: on how many processors it ran, if they were fewer than it wants.
        pointless: why its metric makes another run pointless; empty if it does not.
    """

    lease: ItemLease
    machine_id: str
    slots: int
    ran_s: Seconds
    saved_s: Seconds = Seconds(0.0)
    cpus: float | None = None
    pointless: str = ""


class BagOutlook(Struct, frozen=True):
    """What a bag looks like once a record's outcomes and ends are taken in.

    Attributes:
        outcomes: those of the record.
        ended: leases that end without one.
        slots: of all machines that are left.
        fleet: what machines cost and how they are lost; None if that is not known.
        spare_cpus: the most processors of one machine on which an item of fewer could run at once.
    """

    outcomes: Sequence[ItemOutcome]
    ended: Sequence[ItemLease]
    slots: int
    fleet: FleetFacts | None
    spare_cpus: float = 0.0


def recover(table: ItemTable, items: Sequence[PreemptedItem], outlook: BagOutlook) -> tuple[ItemRecovery, ...]:
    """Return the decision on each item, one after the other: each that is discarded leaves less to spare.

    Args:
        table: before the record; its bag does not grow and was never over.
        items: that were preempted.
        outlook: what else the record says.
    """
    found: list[ItemRecovery] = []
    for one in items:
        dropped = math.fsum(table.weight(each.item) for each in found if each.action is ItemRecoveryAction.DISCARD)
        found.append(_recover(table, one, outlook, share_of(table, outlook, dropped)))
    return tuple(found)


def share_of(table: ItemTable, outlook: BagOutlook, dropped: float = 0.0) -> BagShare:
    """Return how far a bag is from its completion target, with a weight of items that are discarded besides."""
    whole = table.weight_in(*ItemState)

    def weight(outcomes: Sequence[ItemOutcome]) -> float:
        return math.fsum(table.weight(one.lease.item) for one in outcomes)

    done = [one for one in outlook.outcomes if one.end.is_done]
    failed = [one for one in outlook.outcomes if not one.end.is_done and table.fails_for_good(one)]
    returned = math.fsum(table.weight(lease.item) for lease in outlook.ended)
    return BagShare(
        whole,
        table.bag.finish,
        table.weight_in(ItemState.DONE) + weight(done),
        table.weight_in(ItemState.LEASED) - weight(outlook.outcomes) - returned,
        table.weight_in(ItemState.FAILED, ItemState.DISCARDED) + weight(failed) + dropped,
        whole / table.items,
    )


def revived(table: ItemTable, outlook: BagOutlook, recovered: Sequence[ItemRecovery]) -> tuple[int, ...]:
    """Return the discarded items that are needed after all, oldest first: without them too few can be done."""
    dropped = math.fsum(table.weight(one.item) for one in recovered if one.action is ItemRecoveryAction.DISCARD)
    share = share_of(table, outlook, dropped)
    reach, found = share.whole - share.given_up, []
    for item in table.dropped:
        if reach >= share.whole * share.target * (1.0 - _ROUNDING):
            break
        found.append(item)
        reach += table.weight(item)
    return tuple(found)


def _recover(table: ItemTable, one: PreemptedItem, outlook: BagOutlook, share: BagShare) -> ItemRecovery:
    item = one.lease.item
    if not table.timed and not one.pointless:
        reason = "no item has been timed yet"
        return ItemRecovery(item, ItemRecoveryAction.AGAIN, reason, one.ran_s, one.saved_s, None, "")
    # Where items were stopped before any was timed, the time that this one had run stands for theirs.
    item_s = table.timed_s / table.timed if table.timed else max(one.ran_s, 1.0)
    loss, unit = _loss(table, one, item_s, outlook, share)
    choice = choose(loss, replace(share, mean_runtime_s=item_s))
    action = _ACTIONS[choice.chosen.action]
    if action is ItemRecoveryAction.DISCARD and choice.chosen.usd > 0.0 and not one.pointless:
        action = ItemRecoveryAction.LAST
    cpus = choice.chosen.machines if action is ItemRecoveryAction.SMALLER else None
    return ItemRecovery(
        item, action, choice.reason, one.ran_s, one.saved_s, Seconds(item_s), unit, costs_of(choice), cpus
    )  # fmt: skip


_ACTIONS = {
    RecoveryAction.SMALLER: ItemRecoveryAction.SMALLER,
    RecoveryAction.REPLENISH: ItemRecoveryAction.AGAIN,
    RecoveryAction.DISCARD: ItemRecoveryAction.DISCARD,
}


def _loss(
    table: ItemTable, one: PreemptedItem, item_s: float, outlook: BagOutlook, share: BagShare
) -> tuple[ItemLoss, str]:
    """Return the facts about an item for the policy, and the unit of its costs."""
    bag, weight = table.bag, table.weight(one.lease.item)
    machine, fleet = MachineFacts(float(one.slots)), outlook.fleet
    known = None if fleet is None else fleet.machines.get(one.machine_id)
    machine = machine if known is None else known
    slots = outlook.slots or one.slots
    there_s = None if one.cpus is None else table.sized.mean_s(one.cpus)
    share_of_time = 1.0 if there_s is None else item_s / there_s
    saved_s = one.saved_s * share_of_time
    runtime_s = max(item_s, one.ran_s * share_of_time, saved_s)
    restart_s = preemption_rates.DEFAULT_RESTART_S if machine.restart_s is None else machine.restart_s
    time_left_s = math.inf
    if fleet is not None and fleet.time_left_s is not None:
        behind = max(share.whole * share.target - share.done - share.running - weight, 0.0)
        time_left_s = fleet.time_left_s - math.ceil(behind / share.mean / slots) * item_s
    # Where machines are left, the wait is that for a slot of theirs.
    wait_s = item_s / slots if outlook.slots else restart_s
    smaller = (
        GangTime(cpus, runtime_s * mean_s / item_s, 0.0 if cpus <= outlook.spare_cpus else wait_s)
        for cpus in bag.smaller
        if (mean_s := table.sized.mean_s(cpus)) is not None
    )
    loss = ItemLoss(
        (GangTime(bag.cores, runtime_s), *smaller),
        (),
        bag.nodes * machine.usd_per_hour / one.slots / bag.cores,
        # On several nodes it ends with the first that is lost.
        MemorylessLosses((preemption_rates.PRIOR_MTTP_S if machine.mttp_s is None else machine.mttp_s) / bag.nodes),
        wait_s,
        min(saved_s, runtime_s - _LEFT_SHARE * item_s),
        weight,
        time_left_s,
        one.pointless,
        on_one=True,
    )
    return loss, "slot-hours" if known is None else "USD"


def costs_of(choice: RecoveryChoice) -> tuple[RecoveryCost, ...]:
    """Return what each action is expected to cost, for the log."""
    return tuple(
        RecoveryCost(_name_of(one), _finite(one.usd), _finite(one.done_s), one.possible, one.reason)
        for one in choice.options
    )


def _name_of(option: RecoveryOption) -> str:
    """Return an action's name; there may be several smaller numbers of processors."""
    if option.action is not RecoveryAction.SMALLER:
        return option.action
    return f"{option.action}, on {cpus_text(option.machines)}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
