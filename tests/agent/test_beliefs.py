"""The estimates file, from the node agent to the agent."""

from __future__ import annotations

from pathlib import Path

from windfall.agent import status_files
from windfall.agent.status_files import POLL_S, EstimatesFile
from windfall.events import EstimatesChanged, ScheduleAssigned
from windfall.simulation.virtual_time import Timeline, VirtualClock
from windfall.terms import SaveTable, Seconds, Step

GIVEN = ScheduleAssigned(SaveTable((30.0, 80.0), 100.0, 20.0, "it rests on 501 losses"), Step(30))
BELIEVED = EstimatesChanged(Seconds(900.0))


def reader(path: Path | None) -> tuple[Timeline, EstimatesFile]:
    timeline = Timeline()
    return timeline, EstimatesFile(None if path is None else str(path), VirtualClock(timeline))


def test_what_is_left_there_is_told_once(tmp_path: Path) -> None:
    """And of what comes later only what has changed."""
    path = tmp_path / "estimates.json"
    timeline, file = reader(path)
    assert file.changes() == []

    told = []
    for facts in ((BELIEVED,), (BELIEVED, GIVEN), (BELIEVED, GIVEN)):
        status_files.write(str(path), facts)
        timeline.pass_time(POLL_S)
        told.append(file.changes())
    assert told == [[BELIEVED], [GIVEN], []]
    timeline.pass_time(POLL_S)
    assert file.changes() == []


def test_what_the_journal_has_is_not_told_again(tmp_path: Path) -> None:
    """An agent that restarts has fed its journal back before it looks."""
    path = tmp_path / "estimates.json"
    status_files.write(str(path), (BELIEVED, GIVEN))
    _, file = reader(path)
    file.remember((GIVEN,))
    assert file.changes() == [BELIEVED]


def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    """Half a file, a newer one's words, a fact that is none of a controller's, no file at all: the run goes on."""
    path = tmp_path / "estimates.json"
    foreign = '{"version": 1, "facts": [{"type": "RunStopRequested", "now": true, "reason": "no"}]}'
    for text in ("", '{"version": 1, "fac', "[]", '{"version": 1, "facts": [{"type": "Tomorrow"}]}', foreign):
        path.write_text(text)
        _, file = reader(path)
        assert file.changes() == []
    assert reader(None)[1].changes() == []
    status_files.write(str(tmp_path / "no" / "such" / "folder"), (BELIEVED,))
