"""Bugs that a fleet must not have, planted one at a time to see that the storm catches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from windfall import codec
from windfall.agent.status_files import EstimatesFile
from windfall.control.job_loop import JobLoop, LivenessTracker
from windfall.control.provider_calls import Poller
from windfall.core import driver, job_end, ledger, machines, node_agent_reducer, orders, save_schedules, worker
from windfall.core.fleet_state import FleetState, FleetTurn, TrackedMachine
from windfall.core.ledger import LedgerAccount, LedgerLine
from windfall.core.lifecycle import MACHINE, MachineState, OrderState, transition
from windfall.core.node_agent_state import NodeAgentState
from windfall.core.worker_state import WorkerTurn
from windfall.events import Fact, Row, ScheduleAssigned
from windfall.fleet import (
    RUN_DONE,
    SUPERSEDED,
    ControllerStarted,
    DesiredState,
    MachineReported,
    MachineSilent,
    MachinesMissing,
    OrderUnanswered,
    Report,
    ScheduleComputed,
)
from windfall.market import Charge, Machine
from windfall.policies.checkpointing import rules
from windfall.simulation.simulated_provider import Meter
from windfall.structs import replace
from windfall.terms import Instant, NoticeLevel, Term, Usd

if TYPE_CHECKING:
    from tests.storms.fleet import Fleet

Patch = tuple[object, str, object]
CENT = 0.01


def _handler(kind: type[Fact], handler: Callable[[FleetTurn, Any], None]) -> Patch:
    return driver, "_HANDLERS", MappingProxyType({**driver._HANDLERS, kind: handler})


# -------------------------------------------------------------------------------------------------------------- buying


def _drop_order(turn: FleetTurn, token: str) -> None:
    waiting = turn.awaiting(token)
    while waiting:
        turn.set_slot(turn.slots[waiting.pop()], awaits=None)
    turn.orders.pop(token, None)


def _token_dropped() -> tuple[Patch, ...]:
    """An order without an answer is forgotten; its slots buy again."""
    return (_handler(OrderUnanswered, lambda turn, fact: _drop_order(turn, fact.token)),)


def _new_token_on_retry() -> tuple[Patch, ...]:
    """What is asked again is asked as a new order."""

    def ask_again(turn: FleetTurn) -> None:
        for token, entry in list(turn.orders.items()):
            due = entry.state is OrderState.UNKNOWN and entry.resend_at is not None and turn.now >= entry.resend_at
            if due and entry.order.offer.provider in turn.state.listed:
                _drop_order(turn, token)

    return ((orders, "_resend", ask_again),)


def _restart_waits_for_nothing() -> tuple[Patch, ...]:
    """After a restart, orders without an answer count as never placed."""

    def started(turn: FleetTurn, fact: ControllerStarted) -> None:
        orders.controller_started(turn, fact)
        for token, entry in list(turn.orders.items()):
            if entry.state is OrderState.UNKNOWN:
                _drop_order(turn, token)
        turn.change(listed=frozenset({offer.provider for offer in turn.state.offers}))

    return (_handler(ControllerStarted, started),)


def _intent_after_the_call() -> tuple[Patch, ...]:
    def react(self: JobLoop, facts: list[Fact]) -> None:
        now = self._time.now()
        state, decisions, commands = driver.react(self.state, now, tuple(facts))
        for command in commands:
            self._note_timer(command)
            self._executor.execute(command, self._ports.clock.now())
        wall_time = self._ports.clock.wall_time()
        row = Row(self._ports.controller, self._sequence + 1, now, wall_time, tuple(facts), decisions, commands)
        self._ports.journal.append(codec.row_to_line(row))
        self.state, self._sequence = state, row.sequence
        self._apply_facts(facts)

    return ((JobLoop, "_react", react),)


# -------------------------------------------------------------------------------------------------------------- notices


def _hint_buys() -> tuple[Patch, ...]:
    real = machines._notice_reported

    def noticed(
        turn: FleetTurn, unit: TrackedMachine, level: NoticeLevel | None, preemption_at: Instant | None
    ) -> None:
        real(turn, unit, NoticeLevel.ANNOUNCED if level is NoticeLevel.HINT else level, preemption_at)

    return ((machines, "_notice_reported", noticed),)


def _unacknowledged_buys() -> tuple[Patch, ...]:
    """The provider's own word that it will take a machine is enough to buy another."""
    real = machines._listed

    def listed(turn: FleetTurn, unit: TrackedMachine, machine: Machine) -> None:
        real(turn, unit, machine)
        newer = turn.units.get(machine.machine_id)
        if machine.preemption_at is not None and newer is not None and newer.state is MachineState.LIVE:
            turn.become(newer, MachineState.PREEMPTING, ends_at=turn.now)

    return ((machines, "_listed", listed),)


def _bought_at_each_notice() -> tuple[Patch, ...]:
    """Each announcement buys a successor, also for a machine that has one."""

    def reported(turn: FleetTurn, fact: MachineReported) -> None:
        unit = turn.units.get(fact.report.machine_id)
        if unit is not None and unit.slot is not None and fact.report.level is NoticeLevel.ANNOUNCED:
            slot = turn.slots[unit.slot]
            if slot.incumbent == unit.machine_id and slot.successor is not None:
                turn.set_unit(turn.units[slot.successor], slot=None)
                turn.set_slot(slot, successor=None)
        machines.report_received(turn, fact)

    return (_handler(MachineReported, reported),)


def _withdrawn_kept() -> tuple[Patch, ...]:
    return ((machines, "_withdraw_successor", lambda turn, unit: None),)


# ------------------------------------------------------------------------------------------------------ life and death


def _one_channel_trusted() -> tuple[Patch, ...]:
    """Reports in the mailbox do not count as contact."""
    real = LivenessTracker.receive

    def receive(
        self: LivenessTracker, reports: Iterable[Report], channel: str, now: Instant, at: Instant
    ) -> list[MachineReported]:
        before = {report.machine_id: self._contacts.get(report.machine_id) for report in reports}
        since = {name: ear.received_at for name, ear in before.items() if ear is not None}
        changes = real(self, reports, channel, now, at)
        if channel == "mailbox":
            for name, received_at in since.items():
                self._contacts[name].received_at = received_at
        return changes

    return ((LivenessTracker, "receive", receive),)


def _missing_once() -> tuple[Patch, ...]:
    """A machine that one listing lacks is gone, whatever it says itself."""
    real = Poller._compare

    def compare(self: Poller, state: Any, name: str, unanswered: tuple[str, ...], listing: Any) -> list[Fact]:
        facts = real(self, state, name, unanswered, listing)
        listed = {machine.machine_id for machine in listing}
        running = [unit.machine_id for unit in state.units.values() if unit.running_at is not None]
        missing = tuple(sorted(set(running) - listed))
        return [*facts, MachinesMissing(missing)] if missing else facts

    def gone(turn: FleetTurn, fact: MachinesMissing) -> None:
        for machine_id in fact.machine_ids:
            if machine_id in turn.units:
                machines.lost(turn, turn.units[machine_id], preempted=True)

    return (Poller, "_compare", compare), _handler(MachinesMissing, gone)


def _gone_by_silence() -> tuple[Patch, ...]:
    def silent(turn: FleetTurn, fact: MachineSilent) -> None:
        unit = turn.units.get(fact.machine_id)
        if unit is not None:
            machines.lost(turn, unit, preempted=True)

    return (_handler(MachineSilent, silent),)


def _not_released(words: str) -> Callable[[], tuple[Patch, ...]]:
    """Machines that are to go for this reason are not given back, nor told to leave, which alone would end them too."""

    def plant() -> tuple[Patch, ...]:
        real, direct = FleetTurn.release, driver._desired_state

        def release(self: FleetTurn, unit: TrackedMachine, reason: str) -> None:
            if words not in reason:
                real(self, unit, reason)
            elif unit.state is not MachineState.RELEASING:
                state = transition(MACHINE, unit.state, MachineState.RELEASING)
                self.set_unit(unit, state=state, released_at=self.now, reason=reason)

        def desired_state(state: FleetState, unit: TrackedMachine, member: bool) -> DesiredState:
            forgotten = unit.state is MachineState.RELEASING and words in unit.reason
            return DesiredState.WAIT if forgotten else direct(state, unit, member)

        return (
            (FleetTurn, "release", release),
            (machines, "_release_again", lambda turn, unit: None),
            (driver, "_desired_state", desired_state),
        )

    return plant


def _stale_controller_followed() -> tuple[Patch, ...]:
    real = node_agent_reducer._absorb_contact

    def receive(state: NodeAgentState, now: Instant, fact: Any) -> NodeAgentState:
        return real(replace(state, controller=Term(0)), now, fact)

    return ((node_agent_reducer, "_absorb_contact", receive),)


# ---------------------------------------------------------------------------------------------------------------- money


def _charge_counted_twice() -> tuple[Patch, ...]:
    def booked(account: LedgerAccount, charge: Charge) -> LedgerAccount:
        line = LedgerLine(charge.charge_id, charge.amount_usd, charge.ended, settled=True)
        return replace(account, lines=(*account.lines, line))

    return ((ledger, "_record_charge", booked),)


def _falsified_charge() -> tuple[Patch, ...]:
    """The provider bills a cent more than its meter says."""
    real = Meter.settle

    def settle(self: Meter, owner: str, lines: tuple[Charge, ...]) -> None:
        real(self, owner, tuple(replace(line, amount_usd=Usd(line.amount_usd + CENT)) for line in lines))

    return ((Meter, "settle", settle),)


# ------------------------------------------------------------------------------------------------------------ schedules


def _earlier_terms_schedule() -> tuple[Patch, ...]:
    """A schedule that comes late is followed, whichever holding of the run it was made for."""

    def given(turn: WorkerTurn, fact: ScheduleAssigned) -> None:
        turn.change(table=fact.table, table_step=fact.from_step)

    return ((worker, "_HANDLERS", MappingProxyType({**worker._HANDLERS, ScheduleAssigned: given})),)


def _schedule_beyond_its_end() -> tuple[Patch, ...]:
    """Where a schedule ends, nothing is saved for long."""
    real = rules.scheduled_work_s

    def work_s(done_s: float, saves_at_s: tuple[float, ...], known_s: float, interval_s: float) -> float:
        return real(done_s, saves_at_s, known_s, 10.0 * interval_s)

    return ((rules, "scheduled_work_s", work_s),)


def _schedule_for_all() -> tuple[Patch, ...]:
    """What was made for one machine is told to each."""

    def made(turn: FleetTurn, fact: ScheduleComputed) -> None:
        save_schedules.schedule_computed(turn, fact)
        turn.change(schedules=MappingProxyType(dict.fromkeys(turn.units, fact)))

    return (_handler(ScheduleComputed, made),)


SCHEDULE_BUGS: dict[str, Callable[[], tuple[Patch, ...]]] = {
    "schedule of an earlier term followed": _earlier_terms_schedule,
    "schedule followed beyond its end": _schedule_beyond_its_end,
    "schedule told to every machine": _schedule_for_all,
    "schedule told to the worker again": lambda: ((EstimatesFile, "remember", lambda self, facts: None),),
}
"""Those that only machines with schedules can show."""

BUGS: dict[str, Callable[[], tuple[Patch, ...]]] = {
    "token dropped": _token_dropped,
    "new token on retry": _new_token_on_retry,
    "listing not awaited after a restart": _restart_waits_for_nothing,
    "intent journaled after the call": _intent_after_the_call,
    "hint buys": _hint_buys,
    "unacknowledged notice buys": _unacknowledged_buys,
    "successor bought at each notice": _bought_at_each_notice,
    "successor kept after a withdrawal": _withdrawn_kept,
    "one channel trusted": _one_channel_trusted,
    "missing once is gone": _missing_once,
    "gone by silence": _gone_by_silence,
    "superseded machine kept": _not_released(SUPERSEDED),
    "release forgotten at the end": _not_released(RUN_DONE),
    "stale controller followed": _stale_controller_followed,
    "charge counted twice": _charge_counted_twice,
    "charge falsified": _falsified_charge,
    **SCHEDULE_BUGS,
    "budget ignored": lambda: ((job_end, "over_budget", lambda turn, more_usd_per_hour: False),),
}


@contextmanager
def bug(name: str, world: Fleet) -> Iterator[None]:
    """Plant one bug."""
    del world
    with ExitStack() as stack:
        for target, attribute, wrong in BUGS[name]():
            stack.enter_context(patch.object(target, attribute, wrong))
        yield
