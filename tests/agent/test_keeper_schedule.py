"""A schedule on its way through a machine: the directive, a real node agent, a real agent, the run's journal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.keepers import RUN, Controller, RunSite, serving
from tests.support.live import eventually, new_run
from windfall.channels.mailbox import MailboxChannel, MailboxPace
from windfall.core.replay import explain, replay
from windfall.events import ScheduleAssigned
from windfall.fleet import Directive, MachineStatus, Report
from windfall.linux.clock import SystemClock
from windfall.storage.object_stores import open_store
from windfall.structs import replace
from windfall.terms import SaveTable, Seconds, Step, Term

pytestmark = pytest.mark.real


@pytest.fixture
def place(tmp_path: Path) -> Iterator[RunSite]:
    made = RunSite(tmp_path, new_run(tmp_path))
    yield made
    made.clear()


def scheduled(place: RunSite, machine: str, report: Report, since: float) -> Directive:
    """What the controller then says: a save after each second of work from the last save on, known for an hour.

    `since`: a monotonic time before the machine's start. A step takes what it sleeps, and more on a busy computer.
    """
    assert report.saved_step is not None
    assert report.costs is not None, f"{machine} says what its saves cost"
    assert report.step is not None
    assert report.step_s is not None
    at_most_s = (time.monotonic() - since) / report.step
    assert 0.01 <= report.step_s <= at_most_s, "the script sleeps for 10 ms in each step"
    table = SaveTable(tuple(float(second) for second in range(1, 60)), 3_600.0, 600.0, "it rests on 501 losses")
    return replace(RUN, schedule=ScheduleAssigned(table, Step(report.saved_step)))


def saved_by_schedule(place: RunSite) -> bool:
    return any("by the schedule: it rests on 501 losses" in line for line in explain(place.run.rows()))


def test_a_directive_with_a_schedule_reaches_the_script(place: RunSite) -> None:
    """On the direct channel: the fact is in the run's journal, saves follow the table, and replay decides the same."""
    with serving(Controller(place.job(policy="optimal"), directives={"m-1": RUN})) as controller:
        since = time.monotonic()
        place.machine(controller)
        eventually(lambda: (said := controller.newest()) and said.costs, "the first save is measured")
        controller.directives["m-1"] = told = scheduled(place, "m-1", controller.newest(), since)
        saved = controller.newest().saved_step
        eventually(lambda: saved_by_schedule(place) and controller.newest().saved_step > saved + 100, "two saves by it")

    assert place.run.facts(ScheduleAssigned) == [told.schedule]
    assert replay(place.run.rows()) == []
    text = "\n".join(explain(place.run.rows()))
    assert "to learn what saving costs" in text
    assert "by the default rule: no schedule was made for this machine yet" in text


def test_a_schedule_comes_through_the_store_too(place: RunSite) -> None:
    """A machine without an address of its controller finds it in its mailbox."""
    place.put_job(place.job(policy="optimal"))
    pace = MailboxPace(poll_s=Seconds(0.1), heartbeat_s=Seconds(0.5))
    box = MailboxChannel(open_store(place.run.url), SystemClock(), Term(3), lambda: ("m-1",), pace)
    since = time.monotonic()
    place.machine(None)
    told, heard = RUN, []

    def hears() -> Report | None:
        box.send({"m-1": told})
        heard.extend(said for said in box.receive() if said.status is MachineStatus.TRAINING and said.costs is not None)
        return heard[-1] if heard else None

    eventually(hears, "the first save is measured")
    told = scheduled(place, "m-1", heard[-1], since)
    eventually(lambda: hears() and saved_by_schedule(place), "a save by the schedule")
    assert place.run.facts(ScheduleAssigned) == [told.schedule]
