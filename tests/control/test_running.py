"""A job in its thread: wishes are never lost, failures are taken up again, and it ends when its work does."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field

import pytest

from tests.control.conftest import until
from windfall.control import running
from windfall.control.running import Hooks, RunningJob
from windfall.errors import ControllerReplaced, DatabaseUnreachable
from windfall.events import Fact
from windfall.fleet import ResumeWanted, StopWanted
from windfall.terms import Instant, Seconds, WallTime

STOP, RESUME = StopWanted(False, "ada"), ResumeWanted("ada")


class NoPauses:
    """A clock on which pauses take no time, and are remembered."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def now(self) -> Instant:
        return Instant(0.0)

    def wall(self) -> WallTime:
        return WallTime(0.0)

    def sleep(self, duration_s: Seconds) -> None:
        self.pauses.append(duration_s)


@dataclass
class Job:
    """A job whose conductors do as a test says: `ended` is what they are, `errors` what their next turns raise."""

    ended: bool = False
    errors: list[Exception] = field(default_factory=list)
    journal: list[Fact] = field(default_factory=list)
    made: int = 0
    turned: int = 0
    ends: int = 0
    replaced: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    at_end: list[threading.Event] = field(default_factory=list)
    clock: NoPauses = field(default_factory=NoPauses)
    wake: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        hooks = Hooks(
            make=lambda: Conductor(self),  # type: ignore[arg-type,return-value]
            deliver=lambda _: None,
            publish=lambda _: None,
            ended=self._end,
            replaced=self.replaced.append,
            say=self.said.append,
        )
        self.running = RunningJob("gpt-1", self.clock, hooks, self.wake)

    def _end(self) -> None:
        self.ends += 1
        for event in self.at_end:
            assert event.wait(20)


class Conductor:
    """Writes wishes down, and ends when it is told to."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.wishes: queue.SimpleQueue[Fact] = queue.SimpleQueue()
        job.made += 1

    def turn(self) -> float:
        self.job.turned += 1
        taken = []
        while not self.wishes.empty():
            taken.append(self.wishes.get_nowait())
        if self.job.errors:
            raise self.job.errors.pop(0)
        self.job.journal += taken
        return 60.0

    def summary(self) -> str:
        return "stands"

    @property
    def ended(self) -> bool:
        return self.job.ended


@pytest.fixture
def job():  # type: ignore[no-untyped-def]
    one = Job()
    yield one
    one.running.leave()
    for event in one.at_end:
        event.set()


def test_a_wish_is_answered_once_it_is_in_the_journal(job: Job) -> None:
    """It wakes a loop that rests."""
    job.running.begin()
    until(lambda: job.turned == 1)
    assert job.running.wish(STOP)
    assert job.journal == [STOP]


def test_a_wish_survives_a_turn_that_fails(job: Job) -> None:
    """The conductor that drained it is thrown away; the next one gets it."""
    job.errors = [DatabaseUnreachable("gone"), DatabaseUnreachable("gone")]
    assert job.running.wish(STOP)
    assert job.journal == [STOP]
    assert job.made == 3
    assert job.clock.pauses == pytest.approx([0.4, 0.8])
    assert job.said == ["gpt-1: gone; the job is taken up again from its journal"] * 2


def test_a_wish_that_cannot_be_written_down_is_said_to_be_open(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wished is not left waiting for ever, nor told that all is well."""
    monkeypatch.setattr(running, "WISH_PATIENCE_S", 0.05)
    job.running.leave()
    assert not job.running.wish(STOP)


def test_a_day_without_a_database_ends_no_job(job: Job) -> None:
    """However often it was in vain, the pause stays bounded and the job is taken up once the database is back."""
    job.errors = [DatabaseUnreachable("gone") for _ in range(1200)]
    assert job.running.wish(STOP)
    assert job.journal == [STOP]
    assert max(job.clock.pauses) == 15.0


def test_an_error_nobody_foresaw_ends_neither_the_job_nor_the_others(job: Job) -> None:
    """It is in the controller's log with its place, and the job goes on from its journal."""
    job.errors = [KeyError("slot")]
    assert job.running.wish(STOP)
    assert "KeyError" in job.said[0]
    assert job.made == 2


def test_a_job_that_has_ended_rests_until_somebody_wishes(job: Job) -> None:
    """Its thread ends; a wish starts another one."""
    job.ended = True
    job.running.begin()
    until(lambda: not job.running.runs)
    assert job.ends == 1
    assert job.running.wish(RESUME)
    assert job.journal == [RESUME]
    until(lambda: not job.running.runs)


def test_a_wish_that_comes_while_a_job_ends_is_not_lost(job: Job) -> None:
    """Between the last turn and the end of the thread there is no gap."""
    job.ended = True
    job.at_end = [threading.Event()]
    job.running.begin()
    until(lambda: job.ends == 1)
    noted: list[bool] = []
    wisher = threading.Thread(target=lambda: noted.append(job.running.wish(RESUME)))
    wisher.start()
    until(lambda: bool(job.running._wishes))
    job.at_end[0].set()
    wisher.join(20)
    assert noted == [True]
    assert job.journal == [RESUME]


def test_a_controller_that_was_replaced_leaves_the_job_alone(job: Job) -> None:
    """No other conductor is made."""
    job.errors = [ControllerReplaced("another one has it")]
    job.running.begin()
    until(lambda: bool(job.replaced))
    assert (job.replaced, job.made) == (["another one has it"], 1)


def test_beginning_twice_is_beginning_once(job: Job) -> None:
    """A job has one thread."""
    for _ in range(5):
        job.running.begin()
    assert job.running.wish(STOP)
    assert job.made == 1
