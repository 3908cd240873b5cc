"""What becomes of machines: they appear, speak, fall silent, are announced, taken, released, and gone."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from windfall.core.fleet_state import (
    GONE_KEPT,
    NO_TIME,
    READY,
    RELEASE_AGAIN_S,
    STRANGERS_KEPT,
    FleetTurn,
    Gone,
    SlotState,
    Unit,
)
from windfall.core.lifecycle import MachineState, OrderState
from windfall.fleet import (
    SUPERSEDED,
    CancelOrder,
    DeclareGone,
    Doing,
    MachineHeard,
    MachineSilent,
    MachinesMissing,
    MachinesSeen,
    PreemptMachine,
    PreemptWanted,
    ReleaseMachine,
    Report,
)
from windfall.market import Ended, Life, Machine, Offer, Refusal
from windfall.models.injection import life_s
from windfall.policies.keeping import backoff
from windfall.records import renewed
from windfall.terms import Instant, NoticeLevel

PROMISE_S = 120.0
"""A machine that was promised may be missing from listings for so long [s]: providers list what they sold late."""
ZOMBIE_S = 300.0
"""A machine that is listed as running and silent on every channel for so long is released [s]."""
SPEECHLESS_S = 1200.0
"""A machine that runs and has never spoken for so long is released [s]."""
_YOUNG = frozenset({MachineState.PROMISED, MachineState.PENDING, MachineState.STARTING})
_BY_LIFE = MappingProxyType({Life.PENDING: MachineState.PENDING, Life.RUNNING: MachineState.STARTING})


# ------------------------------------------------------------------------------------------------------------- listings


def seen(turn: FleetTurn, fact: MachinesSeen) -> None:
    """Machines are new in a listing, or listed otherwise."""
    for machine in fact.machines:
        unit = turn.units.get(machine.machine_id)
        if unit is not None:
            _listed(turn, unit, machine)
        elif machine.owner == turn.state.owner and machine.job_id == turn.job.job_id:
            _appeared(turn, machine)


def promised(turn: FleetTurn, machine_id: str, token: str) -> None:
    """An order was answered with a machine."""
    if machine_id in turn.units or machine_id in turn.gone:
        return
    entry = turn.orders[token]
    order, offer = entry.order, entry.order.offer
    machine = Machine(
        machine_id, order.owner, order.job_id, token, offer.provider, offer.machine_type, offer.zone, offer.reliability,
        offer.price_usd_per_hour, Life.PENDING,
    )  # fmt: skip
    _take_in(turn, Unit(machine, MachineState.PROMISED, offer, entry.placed_at))


def _appeared(turn: FleetTurn, machine: Machine) -> None:
    """Take in a machine that a listing shows and nobody named before."""
    entry = turn.orders.get(machine.token)
    offer = entry.order.offer if entry is not None else _offer_of(turn, machine)
    if machine.life is Life.GONE:
        known = machine.machine_id in turn.gone
        announced = known and turn.gone[machine.machine_id].announced
        _remember(turn, Gone(machine, announced, known and turn.gone[machine.machine_id].rehearsed))
        if known or entry is not None or turn.state.ledger.knows(machine.machine_id):
            turn.touched[machine.machine_id] = (machine, offer)
        if entry is not None and not known:
            _born_dead(turn, machine)
        return
    turn.gone.pop(machine.machine_id, None)
    at = turn.now if entry is None else entry.placed_at
    unit = _take_in(turn, Unit(machine, _BY_LIFE[machine.life], offer, at))
    _listed(turn, unit, machine)


def _offer_of(turn: FleetTurn, machine: Machine) -> Offer | None:
    key = (machine.provider, machine.machine_type, machine.zone, machine.reliability)
    return next((offer for offer in turn.state.offers if offer.key == key), None)


def _take_in(turn: FleetTurn, unit: Unit) -> Unit:
    """Give a new machine to the slot that waits for it, or to one that needs it, or back."""
    token = unit.machine.token
    slot = _slot_for(turn, token)
    unit = turn.set_unit(unit)
    turn.account(unit)
    if slot is None:
        turn.release(unit, "no slot needs it")
        return turn.units[unit.machine_id]
    role = "incumbent" if slot.incumbent is None else "successor"
    slot = turn.set_slot(slot, awaits=None, lives=slot.lives + 1, **{role: unit.machine_id})
    unit = turn.set_unit(unit, slot=slot.index, life=slot.lives)
    stranger = turn.state.strangers.get(unit.machine_id)
    if stranger is not None:
        others = {name: fact for name, fact in turn.state.strangers.items() if name != unit.machine_id}
        turn.change(strangers=MappingProxyType(others))
        heard(turn, stranger)
    return turn.units[unit.machine_id]


def _slot_for(turn: FleetTurn, token: str) -> SlotState | None:
    entry = turn.orders.get(token)
    waiting = turn.awaiting(token)
    if waiting:
        if entry is not None:
            turn.orders[token] = renewed(entry, waiting=entry.waiting - 1)
        return turn.slots[waiting.pop()]
    if entry is not None or not turn.active:
        return None
    return next((slot for slot in turn.slots if slot.incumbent is None and slot.awaits is None), None)


def _born_dead(turn: FleetTurn, machine: Machine) -> None:
    """A machine of an order came and went between two listings: its slot waits for it no longer."""
    slot = _slot_for(turn, machine.token)
    if slot is not None:
        turn.set_slot(slot, awaits=None, lives=slot.lives + 1)
        turn.lost.append((slot.index, machine.machine_id))
        turn.change(preemptions=turn.state.preemptions + (machine.cause is Ended.PREEMPTED))


def _listed(turn: FleetTurn, unit: Unit, machine: Machine) -> None:
    unit = turn.set_unit(unit, machine=machine)
    turn.account(unit)
    if machine.life is Life.GONE:
        lost(turn, unit, taken=machine.cause is Ended.PREEMPTED)
        return
    if machine.life is Life.PENDING and unit.state is MachineState.PROMISED:
        turn.become(unit, MachineState.PENDING)
    elif machine.life is Life.RUNNING and unit.running_at is None:
        _runs(turn, unit)


def _runs(turn: FleetTurn, unit: Unit) -> None:
    """A machine was seen to run for the first time."""
    began = unit.machine.began
    # Its provider's clock may differ from ours: it began after the order, and before now.
    age_s = 0.0 if began is None else min(max(turn.now - began, 0.0), max(turn.now - unit.ordered_at, 0.0))
    running_at = Instant(turn.now - age_s)
    turn.change(allocations=turn.state.allocations.add(max(running_at - unit.ordered_at, 0.0)))
    injection, dies_at = turn.job.injection, None
    if injection is not None and unit.slot is not None:
        dies_at = Instant(running_at + life_s(injection, unit.slot, unit.life))
    unit = turn.set_unit(unit, running_at=running_at, dies_at=dies_at)
    if unit.state in {MachineState.PROMISED, MachineState.PENDING}:
        turn.become(unit, MachineState.STARTING)


def missing(turn: FleetTurn, fact: MachinesMissing) -> None:
    """Two listings in a row lack machines: gone, if they are silent on every channel too."""
    for machine_id in fact.machine_ids:
        turn.gone.pop(machine_id, None)
        unit = turn.units.get(machine_id)
        if unit is None:
            continue
        young = unit.running_at is None and turn.now < unit.ordered_at + PROMISE_S
        mute = unit.report is None or unit.silent_since is not None
        if unit.state is MachineState.RELEASING or (mute and not young):
            machine = replace(unit.machine, life=Life.GONE, ended=turn.wall())
            unit = turn.set_unit(unit, machine=machine)
            turn.account(unit)
            lost(turn, unit, taken=unit.state is not MachineState.RELEASING)


def lost(turn: FleetTurn, unit: Unit, *, taken: bool) -> None:
    """A machine is gone, as its provider confirms.

    Args:
        turn: the present one.
        unit: its newest self.
        taken: whether somebody else took it.
    """
    index, ours = unit.slot, unit.state is MachineState.RELEASING
    unit = turn.detach(unit)
    turn.become(unit, MachineState.GONE)
    del turn.units[unit.machine_id]
    _remember(turn, Gone(unit.machine, unit.ends_at is not None, unit.injected))
    run = turn.state.run
    if unit.trained_in >= 0 or (run is not None and run.holder == unit.machine_id):
        turn.order(DeclareGone(unit.machine_id))
    _free_room(turn, unit)
    if ours or not turn.active:
        return
    if index is not None:
        turn.lost.append((index, unit.machine_id))
    turn.change(preemptions=turn.state.preemptions + taken)
    if unit.report is None and not taken:
        stillborn(turn, unit)
    elif index is not None:
        _went(turn, unit)


def stillborn(turn: FleetTurn, unit: Unit) -> None:
    """A machine died, or was given up, before it spoke: its offer is left alone for a while."""
    turn.change(stillborn=turn.state.stillborn + 1)
    _calm(turn, turn.state.stillborn)
    sentence = "the machine ended before its agent spoke"
    turn.blocks[unit.key] = backoff.blocked(turn.blocks.get(unit.key), None, sentence, turn.now)


def _went(turn: FleetTurn, unit: Unit) -> None:
    """A machine of a slot has come and gone: for nothing, if its script ran and did not get further."""
    if unit.trained_in >= 0 and not unit.moved:
        turn.change(barren=turn.state.barren + 1)


def _calm(turn: FleetTurn, lives: int) -> None:
    """Machines that are dead before they speak are not replaced at once: from the second round on there is a growing pause."""
    rounds = lives // len(turn.slots)
    if rounds >= 2:
        turn.change(calm_until=Instant(turn.now + backoff.pause_s(rounds - 1)))


def _moves(turn: FleetTurn, unit: Unit, step: int) -> None:
    """A machine told its step: beyond where it began, that is progress."""
    stored = 0 if turn.state.run is None else turn.state.run.saved_step
    if step > (max(stored, 0) if unit.began_step is None else unit.began_step):
        turn.change(barren=0, calm_until=NO_TIME)
        unit = turn.set_unit(unit, moved=True)
    if unit.began_step is None:
        turn.set_unit(unit, began_step=step)


def _free_room(turn: FleetTurn, unit: Unit) -> None:
    """A machine that is gone no longer counts against its provider's quota."""
    full = [key for key, block in turn.blocks.items() if block.refusal is Refusal.QUOTA and key[:2] == unit.key[:2]]
    for key in full:
        del turn.blocks[key]


def _remember(turn: FleetTurn, gone: Gone) -> None:
    turn.gone[gone.machine.machine_id] = gone
    if len(turn.gone) > max(GONE_KEPT, 8 * len(turn.slots)):
        del turn.gone[next(iter(turn.gone))]


# --------------------------------------------------------------------------------------------------------------- voices


def heard(turn: FleetTurn, fact: MachineHeard) -> None:
    """A machine spoke, on any channel."""
    report = fact.report
    unit = turn.units.get(report.machine_id)
    if unit is None:
        if report.machine_id not in turn.gone:
            strangers = {**turn.state.strangers, report.machine_id: fact}
            kept = dict(list(strangers.items())[-STRANGERS_KEPT:])
            turn.change(strangers=MappingProxyType(kept))
        return
    if _stale(unit, report):
        return
    if unit.report is None:
        turn.change(stillborn=0)
    unit = turn.set_unit(unit, report=report, heard_at=turn.now, silent_since=None)
    if unit.state in _YOUNG:
        unit = turn.become(unit, MachineState.LIVE)
    if report.doing in READY and unit.ready_at is None:
        since = unit.ordered_at if unit.running_at is None else unit.running_at
        turn.change(boots=turn.state.boots.add(max(turn.now - since, 0.0)))
        unit = turn.set_unit(unit, ready_at=turn.now)
    if report.doing is Doing.TRAINING:
        unit = turn.set_unit(unit, trained_in=max(unit.trained_in, report.generation))
    if report.step is not None and not unit.moved:
        _moves(turn, unit, report.step)
        unit = turn.units[unit.machine_id]
    _noticed(turn, unit, report.level, fact.taken_at)


def _stale(unit: Unit, report: Report) -> bool:
    old = unit.report
    return old is not None and old.life == report.life and report.sequence < old.sequence


def _noticed(turn: FleetTurn, unit: Unit, level: NoticeLevel | None, taken_at: Instant | None) -> None:
    """Take in what a machine itself says of its end; a hint says nothing that could be acted on."""
    if unit.state is MachineState.RELEASING:
        return
    if level in {NoticeLevel.ANNOUNCED, NoticeLevel.GONE}:
        ends_at = turn.now if taken_at is None or level is NoticeLevel.GONE else taken_at
        turn.become(unit, MachineState.DOOMED, ends_at=ends_at)
    elif level is NoticeLevel.WITHDRAWN and unit.state is MachineState.DOOMED:
        unit = turn.become(unit, MachineState.LIVE, ends_at=None)
        _withdraw_successor(turn, unit)


def _withdraw_successor(turn: FleetTurn, unit: Unit) -> None:
    """What was announced will not happen: nobody is needed in the machine's place."""
    if unit.slot is None:
        return
    slot = turn.slots[unit.slot]
    if slot.incumbent != unit.machine_id:
        return
    if slot.awaits is not None:
        token = slot.awaits
        turn.set_slot(slot, awaits=None)
        turn.awaiting(token)
        turn.awaiting(token)[:] = [index for index in turn.awaiting(token) if index != slot.index]
        entry = renewed(turn.orders[token], waiting=turn.orders[token].waiting - 1)
        turn.orders[token] = entry
        if entry.waiting == 0:
            cancel(turn, token)
    if slot.successor is not None:
        # It stays the slot's until it is gone: should the end be announced again, there must not be a third machine.
        turn.release(turn.units[slot.successor], "the notice was withdrawn")


def cancel(turn: FleetTurn, token: str) -> None:
    """Cancel an order of which nothing is wanted any more."""
    entry = turn.orders[token]
    if entry.state is OrderState.CANCELLED:
        return
    turn.order(CancelOrder(token, entry.order.offer.provider))
    turn.orders[token] = renewed(entry, state=OrderState.CANCELLED, waiting=0, ask_at=None, unsure=True)


def silent(turn: FleetTurn, fact: MachineSilent) -> None:
    """Nothing was heard of a machine on any channel for a while."""
    unit = turn.units.get(fact.machine_id)
    if unit is None or (unit.report is None and unit.running_at is None):
        return  # what has not started owes no word
    since = Instant(turn.now - fact.for_s)
    if unit.heard_at is not None:
        since = max(since, unit.heard_at)
    turn.set_unit(unit, silent_since=since)


def alive_by_run(turn: FleetTurn, machine_id: str | None) -> None:
    """The run's log shows progress of its holder: that is a sign of life, whatever the channels say."""
    unit = None if machine_id is None else turn.units.get(machine_id)
    if unit is not None and unit.report is not None:
        turn.set_unit(unit, heard_at=turn.now, silent_since=None)


# ----------------------------------------------------------------------------------------------------------- every turn


def watch(turn: FleetTurn) -> None:
    """Look at every machine once: who is due to be released, taken, or given back again."""
    for unit in list(turn.units.values()):
        if unit.state is MachineState.RELEASING:
            _release_again(turn, unit)
        elif unit.silent_since is not None or unit.report is None:
            _speechless(turn, unit)
        elif unit.doing is Doing.FAILED:
            _failed(turn, unit)
        if unit.dies_at is not None and not unit.injected:
            _inject(turn, unit)
        if unit.ends_at is not None:
            _superseded(turn, unit)


def _release_again(turn: FleetTurn, unit: Unit) -> None:
    again_at = Instant(unit.released_at + RELEASE_AGAIN_S)
    if turn.now >= again_at:
        turn.set_unit(unit, released_at=turn.now)
        turn.order(ReleaseMachine(unit.machine_id, unit.machine.provider, unit.why))
        again_at = Instant(turn.now + RELEASE_AGAIN_S)
    turn.later.append(again_at)


def _speechless(turn: FleetTurn, unit: Unit) -> None:
    """Release a machine that runs, as far as its provider knows, but does not speak; it is replaced once it is gone."""
    if unit.machine.life is not Life.RUNNING:
        return
    if unit.report is None:
        assert unit.running_at is not None, "a listing that says running was taken in"
        limit, why = Instant(unit.running_at + SPEECHLESS_S), "it has never spoken"
    else:
        assert unit.silent_since is not None, "it spoke, and fell silent"
        limit, why = Instant(unit.silent_since + ZOMBIE_S), "listed as running, but silent on every channel"
    if turn.now < limit:
        turn.later.append(limit)
        return
    if unit.report is None:
        stillborn(turn, unit)
    turn.tell(f"{unit.machine_id} is given back: {why}")
    turn.release(unit, why)


def _failed(turn: FleetTurn, unit: Unit) -> None:
    """A machine cannot do the job: that is the job's failure, not a preemption."""
    assert unit.report is not None, "it said so"
    sentence = unit.report.sentence or "it does not say why"
    turn.change(machine_failures=turn.state.machine_failures + 1, failure=f"{unit.machine_id}: {sentence}")
    turn.tell(f"{unit.machine_id} cannot do the job: {sentence}")
    turn.release(unit, "it failed")


def _inject(turn: FleetTurn, unit: Unit) -> None:
    injection, dies_at = turn.job.injection, unit.dies_at
    assert injection is not None, "only an injection sets a machine's end"
    assert dies_at is not None, "this one has such an end"
    if turn.now < dies_at:
        turn.later.append(dies_at)
    elif turn.units[unit.machine_id].state is not MachineState.RELEASING:
        turn.set_unit(turn.units[unit.machine_id], injected=True)
        turn.order(PreemptMachine(unit.machine_id, unit.machine.provider, injection.notice_s))


def preempt_wanted(turn: FleetTurn, fact: PreemptWanted) -> None:
    """A user rehearses: the provider takes the machine, and its life says nothing of the market."""
    unit = turn.units.get(fact.machine_id)
    if unit is not None and unit.state is not MachineState.RELEASING:
        turn.set_unit(unit, injected=True)
        turn.order(PreemptMachine(unit.machine_id, unit.machine.provider, fact.notice_s))


def _superseded(turn: FleetTurn, unit: Unit) -> None:
    """Release a machine whose end was announced once its successor can do without it."""
    if unit.slot is None or turn.units[unit.machine_id].state is not MachineState.DOOMED:
        return
    slot = turn.slots[unit.slot]
    successor = None if slot.successor is None else turn.units[slot.successor]
    assert unit.ends_at is not None, "a doomed machine has an end"
    if turn.now < unit.ends_at:
        turn.later.append(unit.ends_at)
    if successor is None or not successor.ready or slot.incumbent != unit.machine_id:
        return
    holds = turn.state.run is not None and turn.state.run.holder == successor.machine_id
    idle = unit.doing is not Doing.TRAINING and unit.trained_in >= 0
    if turn.now >= unit.ends_at or holds or idle:
        # It would have been taken: giving it back a little earlier makes it no less a preemption.
        turn.change(preemptions=turn.state.preemptions + 1)
        index = unit.slot
        _went(turn, unit)
        turn.release(turn.set_unit(turn.detach(unit), superseded_in=index), SUPERSEDED)
