"""The file by which a machine's keeper tells its agent what the controller believes."""

from __future__ import annotations

from pathlib import Path

from windfall.agent import beliefs
from windfall.agent.beliefs import LOOK_S, BeliefsFile
from windfall.events import BeliefsChanged, SaveTableGiven
from windfall.simulation.clock import Timeline, VirtualClock
from windfall.terms import SaveTable, Seconds, Step

GIVEN = SaveTableGiven(SaveTable((30.0, 80.0), 100.0, 20.0, "it rests on 501 losses"), Step(30))
BELIEVED = BeliefsChanged(Seconds(900.0))


def reader(path: Path | None) -> tuple[Timeline, BeliefsFile]:
    timeline = Timeline()
    return timeline, BeliefsFile(None if path is None else str(path), VirtualClock(timeline))


def test_what_is_left_there_is_told_once(tmp_path: Path) -> None:
    """And of what comes later only what has changed."""
    path = tmp_path / "beliefs.json"
    timeline, file = reader(path)
    assert file.news() == []

    told = []
    for facts in ((BELIEVED,), (BELIEVED, GIVEN), (BELIEVED, GIVEN)):
        beliefs.write(str(path), facts)
        timeline.pass_time(LOOK_S)
        told.append(file.news())
    assert told == [[BELIEVED], [GIVEN], []]
    timeline.pass_time(LOOK_S)
    assert file.news() == []


def test_what_the_journal_has_is_not_told_again(tmp_path: Path) -> None:
    """An agent that restarts has fed its journal back before it looks."""
    path = tmp_path / "beliefs.json"
    beliefs.write(str(path), (BELIEVED, GIVEN))
    _, file = reader(path)
    file.remember((GIVEN,))
    assert file.news() == [BELIEVED]


def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    """Half a file, a newer one's words, a fact that is none of a controller's, no file at all: the run goes on."""
    path = tmp_path / "beliefs.json"
    foreign = '{"v": 1, "facts": [{"is": "StopAsked", "now": true, "reason": "no"}]}'
    for text in ("", '{"v": 1, "fac', "[]", '{"v": 1, "facts": [{"is": "Tomorrow"}]}', foreign):
        path.write_text(text)
        _, file = reader(path)
        assert file.news() == []
    assert reader(None)[1].news() == []
    beliefs.write(str(tmp_path / "no" / "such" / "folder"), (BELIEVED,))
