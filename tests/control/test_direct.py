"""The direct channel between the API's threads and a job's loop."""

from __future__ import annotations

import threading

from windfall.channels.direct import DirectChannel
from windfall.fleet import DesiredState, Directive, MachineStatus, Report
from windfall.ports import Channel
from windfall.terms import Term


def report(sequence: int, life: str = "a", machine_id: str = "m1") -> Report:
    return Report(machine_id, sequence, life, MachineStatus.WAITING)


RUN, LEAVE = Directive(Term(1), DesiredState.RUN), Directive(Term(1), DesiredState.STOP)


def test_the_newest_report_of_each_machine_is_received_once() -> None:
    """Between two polls only the newest counts, even if an older one arrives after it; then it is forgotten."""
    channel = DirectChannel(lambda: None)
    for one in (report(1), report(3), report(2), report(1, machine_id="m2")):
        channel.deliver(one)

    assert sorted(channel.receive(), key=lambda one: one.machine_id) == [report(3), report(1, machine_id="m2")]
    channel.deliver(report(2))
    assert channel.receive() == ()


def test_a_restarted_node_agent_is_received() -> None:
    """A restarted node agent counts its reports from its own start."""
    channel = DirectChannel(lambda: None)
    channel.deliver(report(9))
    channel.deliver(report(1, life="b"))

    assert channel.receive() == (report(1, life="b"),)


def test_a_machine_gets_its_directive_at_its_next_contact() -> None:
    """The answer to a report is the newest directive; None before there is one, and after it was taken back."""
    channel: Channel = DirectChannel(lambda: None)
    answers = [channel.deliver(report(1))]  # type: ignore[attr-defined]
    for directives in ({"m1": RUN, "m2": RUN}, {"m1": LEAVE}, {}):
        channel.send(directives)
        answers.append(channel.deliver(report(len(answers) + 1)))  # type: ignore[attr-defined]

    assert answers == [None, RUN, LEAVE, None]


def test_news_wakes_the_loop() -> None:
    """A new report calls the loop; a repeated one does not."""
    calls: list[int] = []
    channel = DirectChannel(lambda: calls.append(1))
    for one in (report(1), report(1), report(2)):
        channel.deliver(one)

    assert len(calls) == 2


def test_no_report_is_lost_between_threads() -> None:
    """Many machines report at once while the loop polls: the last report of each is received."""
    channel, heard, reports = DirectChannel(lambda: None), {}, 400
    names = [f"m{number}" for number in range(8)]

    def speak(name: str) -> None:
        for sequence in range(1, reports + 1):
            channel.deliver(report(sequence, machine_id=name))

    threads = [threading.Thread(target=speak, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        heard |= {one.machine_id: one.sequence for one in channel.receive()}
    heard |= {one.machine_id: one.sequence for one in channel.receive()}

    assert heard == dict.fromkeys(names, reports)
