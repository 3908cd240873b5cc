"""The list of jobs on a terminal, and quantities as people read them."""

from __future__ import annotations

import sys
import time

import pytest

from windfall.cli import job_verbs
from windfall.control.controller_views import JobView
from windfall.fleet import JobPhase
from windfall.terms import WallTime
from windfall.units import duration_text, size_text, usd_text


def view(job_id: str, phase: JobPhase, message: str, *, user: str = "ada") -> JobView:
    details = {"step": 12_000, "money": {"due_usd": 0.0012}, "rate_usd_per_hour": 0.03}
    return JobView(job_id, "gpt", user, phase, message, "file:///r", WallTime(time.time() - 130.0), details=details)


def listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *views: JobView) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    job_verbs._list(list(views), json_=False)
    return capsys.readouterr().out.splitlines()


def test_a_job_is_one_line_of_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its status is cut, and does not repeat the phase; the user is shown where there are several."""
    waits = view(
        "gpt-3f9a2c", JobPhase.WAITING, "waiting: no capacity for small in zone-b, and 2 more; next try in 9 s"
    )
    runs = view("gpt-aa11bb", JobPhase.RUNNING, "1 machine training")
    lines = listed(monkeypatch, capsys, waits, runs)

    assert len(lines) == 3
    assert "no capacity" in lines[1]
    assert "\u2026" in lines[1]
    assert "1 machine training" in lines[2]
    assert "2 min" in lines[2]
    assert "ada" not in lines[2]
    assert "bob" in listed(monkeypatch, capsys, runs, view("x-1", JobPhase.DONE, "", user="bob"))[2]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (duration_text(600.0), "10 min"),
        (duration_text(630.0), "10 min 30 s"),
        (duration_text(7200.0), "2 h"),
        (duration_text(9000.0), "2 h 30 min"),
        (size_text(1500.0), "1.5 kB"),
        (size_text(2e12), "2 TB"),
        (usd_text(1234.5), "1,234.50 USD"),
        (usd_text(0.25), "0.2500 USD"),
        (usd_text(0.0000123), "0.000012 USD"),
        (usd_text(0.0), "0 USD"),
    ],
)
def test_a_quantity_has_no_part_that_says_nothing(made: str, text: str) -> None:
    """No zero seconds after minutes, and no amount of money that rounds to nothing."""
    assert made == text
