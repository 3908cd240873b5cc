"""The timeline: attempts as rows, for eyes with a screen and for eyes with a terminal."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.report import story
from windfall.errors import Misuse
from windfall.report import account_tables, attempt_timeline
from windfall.report.interval_kinds import Kind


def test_the_text_timeline_reads_like_the_story() -> None:
    """Three attempts one below the other, with restores, redone steps and the two losses where they happened."""
    shown = attempt_timeline.text(story.preempted_twice()).splitlines()

    assert shown == [
        "attempt 1 |..######S#######S-x",
        "          |                  preempted-saved: 0 steps lost",
        "attempt 2 |                         .<.###S######x",
        "          |                                      vanished: 10 steps lost",
        "attempt 3 |                                                  <..rrrrrr#########~",
        "          |0                                                               110 s",
        "# compute  r redo  S save  < restore  . start  - other  ~ finish  x loss",
    ]


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_text_timeline_keeps_to_its_columns(columns: int) -> None:
    """No line is wider than the terminal."""
    shown = attempt_timeline.text(story.preempted_twice(), columns=columns)

    assert max(len(line) for line in shown.splitlines()) <= columns


def test_the_legend_names_what_occurs_by_kind_not_by_word() -> None:
    """Kinds and marks are values of enumerations, in the order of the account; a drawing without losses has no such mark."""
    entries = [entry for entry, _ in attempt_timeline.legend(story.preempted_twice())]

    marks = [entry for entry in entries if isinstance(entry, attempt_timeline.TimelineMark)]
    assert marks == list(attempt_timeline.TimelineMark)
    assert entries[0] is Kind.COMPUTE
    assert entries[-1] is Kind.WAITING


def test_the_picture_has_the_promised_size(tmp_path: Path) -> None:
    """The picture is a PNG of 1200 x 500 pixels."""
    path = tmp_path / "timeline.png"

    attempt_timeline.draw(story.preempted_twice(), path, title="a run")

    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:24]) == (1200, 500)


def test_without_matplotlib_the_user_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture is an extra; its absence is one sentence with the command that mends it."""
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)

    with pytest.raises(Misuse, match=r"pip install .*\[plot\]"):
        attempt_timeline.draw(story.preempted_twice(), tmp_path / "t.png", title="a run")


def test_the_tables_fit_a_terminal_and_name_every_loss() -> None:
    """In 80 columns the account shows kinds, shares, causes and what is not known."""
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(account_tables.render(story.preempted_twice()))
    shown = console.export_text()

    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    for expected in ("compute", "45.5 %", "preempted-saved", "vanished", "100.0 %"):
        assert expected in shown
