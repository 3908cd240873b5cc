"""From the words of a user to a job: the deadline in the user's own zone, limits from the command line, a loss as work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import tickets
from windfall.cli import job_submit
from windfall.cli.job_submit import Draft, ObjectiveOptions
from windfall.cli.local_zone import local_time
from windfall.errors import InvalidFile, Misuse
from windfall.jobs import Work
from windfall.spec import deadline_words
from windfall.terms import Unit, WallTime

WEDNESDAY = datetime(2026, 11, 25, 11, 0, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()


class SetClock:
    """A wall clock that a test sets."""

    at = WEDNESDAY

    def wall_time(self) -> WallTime:
        """Return what the test has set."""
        return WallTime(SetClock.at)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A machine in Berlin, on Wednesday 25 November 2026, 11:00."""
    monkeypatch.setattr(job_submit, "SystemClock", SetClock)
    monkeypatch.setattr(SetClock, "at", WEDNESDAY)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield monkeypatch
    monkeypatch.delenv("TZ")
    time.tzset()


def draft(folder: Path, text: str = "run: x\n", **limits: str) -> Draft:
    """Read a job file with limits from the command line."""
    (folder / "job.yaml").write_text(text)
    return job_submit.read(folder / "job.yaml", (), None, folder / "state", options=ObjectiveOptions(**limits))


def test_a_time_is_read_in_the_zone_of_the_machine_on_which_it_is_typed(
    berlin: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Friday, nine o'clock, in Berlin: the controller gets how long that is from now, and needs no zone."""
    assert draft(tmp_path, deadline="fri 9:00").job().objective.deadline_s == 46 * 3600.0
    berlin.setenv("TZ", "America/New_York")
    time.tzset()
    made = draft(tmp_path, deadline="fri 9:00")
    assert made.job().objective.deadline_s == 52 * 3600.0
    assert made.deadline is not None
    assert made.deadline.says == "Fri 2026-11-27 09:00 EST, in 2 days 4 h"


def test_what_is_typed_counts_and_not_how_long_the_plan_was_looked_at(
    berlin: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An hour before the plan is approved: a time stays the instant that was shown, a duration counts from the submission."""
    text = "run: x\nobjective: {deadline: tomorrow 9:00}\n"
    timed, counted = draft(tmp_path, text), draft(tmp_path, text, deadline="12h")
    berlin.setattr(SetClock, "at", WEDNESDAY + 14 * 3600.0)
    assert timed.job().objective.deadline_s == 8 * 3600.0
    assert counted.job().objective.deadline_s == 12 * 3600.0
    berlin.setattr(SetClock, "at", WEDNESDAY + 22 * 3600.0)
    with pytest.raises(Misuse, match=r"objective\.deadline has passed: it was Thu 2026-11-26 09:00 CET"):
        timed.job()


def test_the_same_file_means_the_coming_friday_each_week(berlin: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`fri 9:00` in a job file is good for every week; a date that has passed is refused where it stands."""
    weekly = "run: x\nobjective: {deadline: fri 9:00}\n"
    once = "run: x\nobjective: {deadline: 2026-11-27 9:00}\n"
    for text in (weekly, once):
        assert draft(tmp_path, text).job().objective.deadline_s == 46 * 3600.0
    berlin.setattr(SetClock, "at", WEDNESDAY + 7 * 86400.0)
    assert draft(tmp_path, weekly).job().objective.deadline_s == 46 * 3600.0
    with pytest.raises(
        InvalidFile, match=r"job\.yaml:2:23: objective\.deadline is in the past: '2026-11-27 9:00' was read as"
    ):
        draft(tmp_path, once)


def test_a_plan_says_how_the_deadline_was_understood(berlin: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With its instant for other programs, and a warning where a change of the clocks has a part in it."""
    del berlin
    plan: dict[str, object] = {"warnings": []}
    draft(tmp_path, deadline="2027-03-28 2:30").complete(plan)
    assert plan["deadline"] == {
        "written": "2027-03-28 2:30",
        "at": "2027-03-28T03:30:00+02:00",
        "says": "Sun 2027-03-28 03:30 CEST, in 122 days 15 h",
    }
    assert "clocks skip 02:30 on Sun 2027-03-28, when they are set forward: this is read as 03:30" in plan["warnings"]  # type: ignore[operator]


def test_a_loss_becomes_the_work_that_its_runtime_predicts(tmp_path: Path) -> None:
    """In place of `work`, from the file or the command line; what is never reached is refused with the floor."""
    text = "run: x\nruntime: tickets\nobjective: {loss: 0.4}\n"
    with tickets.installed():
        job = draft(tmp_path, text).job()
        assert (job.objective.loss, job.work) == (0.4, Work(pytest.approx(30.0), Unit.STEP))  # type: ignore[arg-type]
        assert draft(tmp_path, text, loss="1e0").job().work == Work(10.0, Unit.STEP)
        with pytest.raises(Misuse, match=r"objective\.loss 0\.1 is never reached: the loss stays above 0\.1"):
            draft(tmp_path, text, loss="0.1").job()
        with pytest.raises(
            InvalidFile, match=r"job\.yaml:3:13: objective\.loss and work both say when the job is done"
        ):
            draft(tmp_path, f"{text}work: {{steps: 3}}\n")
    with pytest.raises(
        InvalidFile,
        match=r"--loss: objective\.loss needs a runtime that predicts the training loss, and checkpoint does",
    ):
        draft(tmp_path, loss="0.4")


CHANGES = ("2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01", "2026-10-04", "2026-04-05", "2026-09-06")
"""Days on which clocks change in one of the zones."""


@given(
    st.sampled_from(["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "America/Santiago"]),
    st.datetimes(datetime(2025, 1, 1), datetime(2030, 1, 1))
    | st.builds(
        lambda day, minutes: datetime.fromisoformat(day) + timedelta(minutes=minutes),
        st.sampled_from(CHANGES),
        st.integers(0, 300),
    ),
    st.integers(0, 1),
)
def test_the_systems_zone_has_the_rules_of_its_name(name: str, shown: datetime, fold: int) -> None:
    """To the operating system, skipped and repeated times are what `zoneinfo` says, in both directions."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TZ", name)
        time.tzset()
        here, there = local_time(0.0).tzinfo, ZoneInfo(name)
        ours, theirs = (shown.replace(tzinfo=zone, fold=fold) for zone in (here, there))
        assert ours.astimezone(UTC) == theirs.astimezone(UTC)
        back, known = (theirs.astimezone(UTC).astimezone(zone) for zone in (here, there))
        assert (back.replace(tzinfo=None), back.fold) == (known.replace(tzinfo=None), known.fold)
        assert back.tzname() == known.tzname()
    time.tzset()


def test_a_zone_that_is_given_as_a_rule_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """TZ may hold a rule instead of a name: no list of zones has it, and the change of the clocks is right all the same."""
    monkeypatch.setenv("TZ", "XST5XDT,M3.2.0,M11.1.0")
    time.tzset()
    try:
        found = deadline_words.resolve(deadline_words.parse("24h"), local_time(1772946000.0))
        assert found.says == "Mon 2026-03-09 01:00 XDT, in 1 day"
        next_day = deadline_words.resolve(deadline_words.parse("tomorrow 9:00"), local_time(1772859600.0))
        assert next_day.at - datetime.fromtimestamp(1772859600.0, UTC) == timedelta(hours=24 + 9 - 1)
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
