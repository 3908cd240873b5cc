"""What happened to a job's machines, in sentences for people: a view of the controller's journal.

One event is one sentence.  What follows from it by itself (a machine that was given back is gone, a notice is counted
down, a rehearsal is announced) is not said again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from windfall.events import Command, Fact, Row, Tell
from windfall.fleet import (
    ControllerBegan,
    Doing,
    Event,
    MachineHeard,
    MachineSilent,
    MachinesMissing,
    MachinesSeen,
    NotifyUser,
    OrderAnswered,
    OrderUnanswered,
    PlaceOrder,
    PreemptMachine,
    ReleaseMachine,
    RunObserved,
    StopRun,
)
from windfall.market import Ended, Life, Machine, Offer
from windfall.terms import NoticeLevel, Outcome, Reliability

NAMED_MAX = 3
"""More machines than this to which the same happens at once are counted, not named."""
_SHIFT_S = 5.0
"""An announced end that moves by more than this is told again."""
_ENDS = {Ended.PREEMPTED: "taken away", Ended.STOPPED: "stopped by itself"}


@dataclass(slots=True)
class Happenings:
    """Tells a job's journal; remembers what it has told.

    Attributes:
        seen: of each machine that lives, the life that was told.
        ends: when it will be taken, as told; None for a rehearsal that was told as such.
        leaving: machines of which it was said that they are given back.
    """

    seen: dict[str, Life] = field(default_factory=dict)
    ends: dict[str, float | None] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    stored: int = 0
    holder: str | None = None
    refused: str = ""
    begun: bool = False

    def of(self, row: Row) -> Iterator[str]:
        """Yield what a row tells, in order: what happened, then what was done about it."""
        for fact in row.facts:
            yield from self._of_fact(fact, row)
        yield from self._released([command for command in row.commands if isinstance(command, ReleaseMachine)])
        for command in row.commands:
            yield from self._of_command(command)

    # ------------------------------------------------------------------------------------------------------------ facts

    def _of_fact(self, fact: Fact, row: Row) -> Iterator[str]:
        match fact:
            case MachinesSeen(machines):
                yield from self._of_machines(machines)
            case MachineHeard():
                yield from self._of_report(fact, row)
            case MachinesMissing(names):
                yield f"{_names(names)}: no longer listed by the provider"
            case MachineSilent(name, for_s):
                yield f"{name} is silent on every channel for {for_s:.0f} s; that alone buys no other one"
            case OrderAnswered():
                yield from self._of_answer(fact)
            case OrderUnanswered(token, sentence):
                yield f"order {token} was not answered ({sentence}); it is looked up, never bought twice"
            case RunObserved():
                yield from self._of_run(fact)
            case ControllerBegan():
                if self.begun:
                    yield "the controller was gone, another one has taken over; the machines went on meanwhile"
                self.begun = True

    def _of_machines(self, machines: Iterable[Machine]) -> Iterator[str]:
        groups: dict[str, list[str]] = defaultdict(list)
        for machine in machines:
            told = self.seen.get(machine.machine_id)
            self.seen[machine.machine_id] = machine.life
            if told is machine.life:
                continue
            place = f"{machine.machine_type} in {machine.zone}"
            if machine.life is Life.RUNNING:
                groups[f"{place}: up, {machine.price_usd_per_hour:.4g} USD/h"].append(machine.machine_id)
            elif machine.life is Life.GONE:
                known = machine.machine_id in self.leaving
                self._forget(machine.machine_id)
                if not known and machine.cause is not Ended.RELEASED:
                    groups[_ENDS.get(machine.cause or Ended.FAILED, "broken")].append(machine.machine_id)
        for what, names in groups.items():
            yield f"{_names(names)} {what}" if ": up" not in what else f"{_names(names)}, {what}"

    def _forget(self, machine_id: str) -> None:
        self.seen.pop(machine_id, None)
        self.ends.pop(machine_id, None)
        self.leaving.discard(machine_id)

    def _of_report(self, fact: MachineHeard, row: Row) -> Iterator[str]:
        report, name = fact.report, fact.report.machine_id
        if report.level is NoticeLevel.ANNOUNCED and fact.taken_at is not None:
            told = self.ends.get(name, -1.0)
            if told is not None and abs(told - fact.taken_at) > _SHIFT_S and name not in self.leaving:
                yield f"{name} will be taken in {max(fact.taken_at - row.at, 0.0):.0f} s"
                self.ends[name] = fact.taken_at
        elif report.level is NoticeLevel.HINT and name not in self.ends:
            self.ends[name] = -1.0
            yield f"{name} may be taken soon"
        elif report.level is NoticeLevel.WITHDRAWN and self.ends.pop(name, -1.0) != -1.0:
            yield f"{name} will not be taken after all"
        if report.doing is Doing.FAILED and name not in self.leaving:
            yield f"{name} cannot do the job: {report.sentence}"

    def _of_answer(self, fact: OrderAnswered) -> Iterator[str]:
        if fact.refusal is None:
            self.refused = ""
            return
        some = f"{len(fact.machine_ids)} machines, then " if fact.machine_ids else ""
        why = f": {fact.sentence}" if fact.sentence else ""
        sentence = f"order refused: {some}{fact.refusal}{why}"
        if sentence != self.refused:
            self.refused = sentence
            yield sentence

    def _of_run(self, fact: RunObserved) -> Iterator[str]:
        if fact.saved_step > self.stored:
            self.stored = fact.saved_step
            yield f"step {fact.saved_step} is stored"
        if fact.holder is not None and fact.holder != self.holder and fact.outcome is not Outcome.DONE:
            self.holder = fact.holder
            yield f"{fact.holder} has the run{f', from step {fact.saved_step}' if fact.saved_step else ''}"

    # --------------------------------------------------------------------------------------------------------- commands

    def _released(self, commands: list[ReleaseMachine]) -> Iterator[str]:
        groups: dict[str, list[str]] = defaultdict(list)
        for command in commands:
            if command.machine_id not in self.leaving:
                self.leaving.add(command.machine_id)
                groups[command.why].append(command.machine_id)
        for why, names in groups.items():
            yield f"giving {_names(names)} back: {why}"

    def _of_command(self, command: Command) -> Iterator[str]:
        match command:
            case PlaceOrder(order):
                count = f"{order.count_max} x " if order.count_max > 1 else ""
                yield f"ordering {count}{_offered(order.offer)}"
            case PreemptMachine(name, _, notice_s):
                self.ends[name] = None
                yield f"the injector takes {name}, {'without notice' if notice_s is None else f'{notice_s:g} s of notice'}"
            case StopRun(now, reason):
                yield f"stopping the run{'' if now else ' after a save'}: {reason}"
            case NotifyUser(event, sentence) if event is Event.OVER_BUDGET:
                yield sentence
            case Tell(sentence) if " cannot do the job: " not in sentence:
                yield sentence


def _names(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known) if len(known) <= NAMED_MAX else f"{len(known)} machines"


def _offered(offer: Offer) -> str:
    kind = "spot" if offer.reliability is Reliability.TRANSIENT else "on-demand"
    return f"{offer.machine_type} in {offer.zone} ({offer.provider}, {kind}), {offer.price_usd_per_hour:.4g} USD/h"
