"""What happened to a job's machines, in sentences for people: a view of the controller's journal."""

from __future__ import annotations

from collections.abc import Iterator

from windfall.events import Command, Fact, Row, Tell
from windfall.fleet import (
    Doing,
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
from windfall.market import Ended, Life, Machine
from windfall.terms import NoticeLevel


def sentences(row: Row) -> Iterator[str]:
    """Yield what a row tells a user, in order: what happened, then what was done about it."""
    for fact in row.facts:
        yield from _of_fact(fact, row)
    for command in row.commands:
        yield from _of_command(command)


def _of_fact(fact: Fact, row: Row) -> Iterator[str]:
    match fact:
        case MachinesSeen(machines):
            for machine in machines:
                yield from _of_machine(machine)
        case MachineHeard():
            yield from _of_report(fact, row)
        case MachinesMissing(names):
            yield f"{', '.join(names)}: no longer listed by the provider"
        case MachineSilent(name, for_s):
            yield f"{name} is silent on every channel for {for_s:.0f} s"
        case OrderAnswered(_, names, refusal, sentence) if refusal is not None:
            some = f"{len(names)} machines, then " if names else ""
            yield f"order answered: {some}{refusal}: {sentence}" if sentence else f"order answered: {some}{refusal}"
        case OrderUnanswered(token, sentence):
            yield f"order {token} was not answered ({sentence}); it is looked up, never bought twice"
        case RunObserved(_, _, holder, saved, _) if saved:
            yield f"step {saved} is stored{f'; {holder} trains' if holder else ''}"


def _of_machine(machine: Machine) -> Iterator[str]:
    what = f"{machine.machine_id} ({machine.provider} {machine.machine_type} in {machine.zone})"
    if machine.life is Life.RUNNING and machine.taken_at is None:
        yield f"{what} runs at {machine.price_usd_per_hour:.4g} USD/h"
    elif machine.life is Life.GONE:
        words = {Ended.PREEMPTED: "was taken away", Ended.RELEASED: "was given back", Ended.STOPPED: "stopped itself"}
        yield f"{what} {words.get(machine.cause or Ended.FAILED, 'failed')}"


def _of_report(fact: MachineHeard, row: Row) -> Iterator[str]:
    report = fact.report
    if report.level is NoticeLevel.ANNOUNCED and fact.taken_at is not None:
        yield f"{report.machine_id} will be taken in {max(fact.taken_at - row.at, 0.0):.0f} s"
    elif report.level is NoticeLevel.HINT:
        yield f"{report.machine_id} may be taken soon"
    elif report.doing is Doing.FAILED:
        yield f"{report.machine_id} cannot do the job: {report.sentence}"


def _of_command(command: Command) -> Iterator[str]:
    match command:
        case PlaceOrder(order):
            offer = order.offer
            count = f"{order.count_max} x " if order.count_max > 1 else ""
            kind = f"{offer.provider} {offer.machine_type} in {offer.zone}, {offer.reliability}"
            yield f"ordering {count}{kind}, {offer.price_usd_per_hour:.4g} USD/h each"
        case ReleaseMachine(name, _, why):
            yield f"giving {name} back: {why}"
        case PreemptMachine(name, _, notice_s):
            yield f"the injector takes {name}, {'without notice' if notice_s is None else f'{notice_s:g} s of notice'}"
        case StopRun(now, reason):
            yield f"stopping the run{'' if now else ' after a save'}: {reason}"
        case NotifyUser(event, sentence):
            yield f"{event}: {sentence}"
        case Tell(sentence):
            yield sentence
