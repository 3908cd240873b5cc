"""What happened to a job's machines, as sentences for people: a view of the controller's journal.

One event is one sentence.  Consequences are not repeated: the end of a released machine, the countdown of a notice, the
announcement of an injected preemption.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from windfall.events import Command, Fact, LogMessage, Row
from windfall.fleet import (
    ControllerStarted,
    Event,
    MachineReported,
    MachineSilent,
    MachinesMissing,
    MachinesObserved,
    NotifyUser,
    OrderAnswered,
    OrderUnanswered,
    PlaceOrder,
    PreemptMachine,
    ProgressObserved,
    ReleaseMachine,
    StopRun,
)
from windfall.market import Machine, MachineEndCause, MachineLifecycle, Offer
from windfall.terms import JobProgress, NoticeLevel, Outcome, Reliability

NAMED_MAX = 3
"""If the same happens to more machines than this at once, they are counted, not named."""
_SHIFT_S = 5.0
"""An announced end that moves by more than this is reported again."""
_ENDS = {
    MachineEndCause.PREEMPTED: "preempted",
    MachineEndCause.STOPPED: "stopped on its own",
    MachineEndCause.EXPIRED: "at its time limit",
    MachineEndCause.CANCELLED: "cancelled past Windfall",
}


@dataclass(slots=True)
class EventLog:
    """Turns a job's journal into sentences; remembers what it has reported.

    Attributes:
        seen: the reported state of each machine that has not ended.
        ends: the reported time of its preemption; None for an injected one.
        leaving: machines whose release was reported.
        waits: reasons to wait in a queue that were reported, of each machine.
        counts_items: the job is a bag, whose items are shown elsewhere.
    """

    seen: dict[str, MachineLifecycle] = field(default_factory=dict)
    ends: dict[str, float | None] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    waits: dict[str, set[str]] = field(default_factory=dict)
    stored: float = 0.0
    holder: str | None = None
    refused: str = ""
    started: bool = False
    counts_items: bool = False

    def of(self, row: Row) -> Iterator[str]:
        """Yield a row's sentences, in order: what happened, then what was done about it."""
        for fact in row.facts:
            yield from self._of_fact(fact, row)
        yield from self._released([command for command in row.commands if isinstance(command, ReleaseMachine)])
        for command in row.commands:
            yield from self._of_command(command)

    # ------------------------------------------------------------------------------------------------------------ facts

    def _of_fact(self, fact: Fact, row: Row) -> Iterator[str]:
        match fact:
            case MachinesObserved(machines):
                yield from self._of_machines(machines)
            case MachineReported():
                yield from self._of_report(fact, row)
            case MachinesMissing(names):
                yield self._of_missing(names)
            case MachineSilent(name, silent_s) if self.seen.get(name) is not MachineLifecycle.PENDING:
                yield f"{name}: no contact for {silent_s:.0f} s; not replaced on silence alone"
            case OrderAnswered():
                yield from self._of_answer(fact)
            case OrderUnanswered(token, message):
                yield f"order {token}: no answer ({message}); looking it up, so that nothing is bought twice"
            case ProgressObserved():
                yield from self._of_progress(fact.progress)
            case ControllerStarted():
                if self.started and self.seen:
                    yield "another controller took over; the machines kept running"
                self.started = True

    def _of_machines(self, machines: Iterable[Machine]) -> Iterator[str]:
        groups: dict[tuple[str, str], list[str]] = defaultdict(list)
        for machine in machines:
            reported = self.seen.get(machine.machine_id)
            self.seen[machine.machine_id] = machine.lifecycle
            if machine.lifecycle is MachineLifecycle.PENDING and self._is_new_wait(machine):
                groups["", f"queued ({machine.pending_reason})"].append(machine.machine_id)
            if reported is machine.lifecycle:
                continue
            if machine.lifecycle is MachineLifecycle.RUNNING:
                place = f", {machine.machine_type} in {machine.zone},"
                groups[place, f"up, {machine.price_usd_per_hour:.4g} USD/h"].append(machine.machine_id)
            elif machine.lifecycle is MachineLifecycle.GONE:
                known = machine.machine_id in self.leaving
                self._forget(machine.machine_id)
                if not known and machine.cause is not MachineEndCause.RELEASED:
                    end = _ENDS.get(machine.cause or MachineEndCause.FAILED, "failed")
                    groups["", end].append(machine.machine_id)
        for (place, what), names in groups.items():
            be = ("is " if len(names) == 1 else "are ") if place or what.startswith("queued") else ""
            yield f"{_names(names)}{place} {be}{what}"

    def _is_new_wait(self, machine: Machine) -> bool:
        """Record why a machine waits; return whether that was not reported before.  A queue goes through few reasons, often."""
        reported = self.waits.setdefault(machine.machine_id, set())
        new = bool(machine.pending_reason) and machine.pending_reason not in reported
        reported.add(machine.pending_reason)
        return new

    def _of_missing(self, names: Iterable[str]) -> str:
        known = list(names)
        for name in known:
            self.seen.pop(name, None)
        return f"{_names(known)}: no longer listed by the provider"

    def _forget(self, machine_id: str) -> None:
        self.seen.pop(machine_id, None)
        self.ends.pop(machine_id, None)
        self.waits.pop(machine_id, None)
        self.leaving.discard(machine_id)

    def _of_report(self, fact: MachineReported, row: Row) -> Iterator[str]:
        report, name = fact.report, fact.report.machine_id
        if report.level is NoticeLevel.ANNOUNCED and fact.preemption_at is not None:
            reported = self.ends.get(name, -1.0)
            if reported is not None and abs(reported - fact.preemption_at) > _SHIFT_S and name not in self.leaving:
                yield f"{name} will be preempted in {max(fact.preemption_at - row.at, 0.0):.0f} s"
                self.ends[name] = fact.preemption_at
        elif report.level is NoticeLevel.HINT and name not in self.ends:
            self.ends[name] = -1.0
            yield f"{name} may be preempted soon"
        elif report.level is NoticeLevel.WITHDRAWN and self.ends.pop(name, -1.0) != -1.0:
            yield f"{name}: preemption notice withdrawn"

    def _of_answer(self, fact: OrderAnswered) -> Iterator[str]:
        if fact.refusal is None:
            self.refused = ""
            return
        some = f"{len(fact.machine_ids)} machines, then " if fact.machine_ids else ""
        reason = f": {fact.message}" if fact.message else ""
        message = f"order refused: {some}{fact.refusal}{reason}"
        if message != self.refused:
            self.refused = message
            yield message

    def _of_progress(self, progress: JobProgress) -> Iterator[str]:
        amount, unit = progress.safe.amount, progress.safe.unit
        if amount > self.stored:
            self.stored = amount
            if not self.counts_items:
                yield f"{unit} {amount:.0f} is stored"
        holder = progress.holders[0] if progress.holders else None
        if holder is not None and holder != self.holder and progress.outcome is not Outcome.DONE:
            self.holder = holder
            yield f"{holder} holds the run{f', from {unit} {amount:.0f}' if amount else ''}"

    # --------------------------------------------------------------------------------------------------------- commands

    def _released(self, commands: list[ReleaseMachine]) -> Iterator[str]:
        groups: dict[str, list[str]] = defaultdict(list)
        for command in commands:
            if command.machine_id not in self.leaving:
                self.leaving.add(command.machine_id)
                groups[command.reason].append(command.machine_id)
        for reason, names in groups.items():
            yield f"releasing {_names(names)}: {reason}"

    def _of_command(self, command: Command) -> Iterator[str]:
        match command:
            case PlaceOrder(order):
                count = f"{order.count_max} x " if order.count_max > 1 else ""
                yield f"ordering {count}{_offered(order.offer)}"
            case PreemptMachine(name, _, notice_s):
                self.ends[name] = None
                notice = "no notice" if notice_s is None else f"{notice_s:g} s of notice"
                yield f"injecting a preemption of {name}, {notice}"
            case StopRun(now, reason):
                yield f"stopping the run{'' if now else ' after a save'}: {reason}"
            case NotifyUser(event, message) if event is Event.OVER_BUDGET:
                yield message
            case LogMessage(message):
                yield message


def _names(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known) if len(known) <= NAMED_MAX else f"{len(known)} machines"


def _offered(offer: Offer) -> str:
    kind = "spot" if offer.reliability is Reliability.TRANSIENT else "on-demand"
    return f"{offer.machine_type} in {offer.zone} ({offer.provider}, {kind}), {offer.price_usd_per_hour:.4g} USD/h"
