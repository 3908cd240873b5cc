"""A job in its thread: requests are never lost, errors restart it, and it ends when its work does."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field

import pytest

from tests.control.conftest import until
from windfall.control import job_runner
from windfall.control.job_runner import JobHooks, RunningJob
from windfall.errors import ControllerReplaced, DatabaseUnreachable
from windfall.events import Fact
from windfall.fleet import JobResumeRequested, JobStopRequested
from windfall.terms import Instant, Seconds, WallTime

STOP, RESUME = JobStopRequested(False, "ada"), JobResumeRequested("ada")


class NoPauses:
    """A clock on which pauses take no time, and are remembered."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def now(self) -> Instant:
        return Instant(0.0)

    def wall_time(self) -> WallTime:
        return WallTime(0.0)

    def sleep(self, duration_s: Seconds) -> None:
        self.pauses.append(duration_s)


@dataclass
class Job:
    """A job whose job loops are scripted by the test: `ended` is what they are, `errors` what their next turns raise."""

    ended: bool = False
    errors: list[Exception] = field(default_factory=list)
    journal: list[Fact] = field(default_factory=list)
    made: int = 0
    turned: int = 0
    ends: int = 0
    replaced: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    at_end: list[threading.Event] = field(default_factory=list)
    clock: NoPauses = field(default_factory=NoPauses)
    wake: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        hooks = JobHooks(
            make=lambda: JobLoop(self),  # type: ignore[arg-type,return-value]
            deliver=lambda _: None,
            publish=lambda _: None,
            ended=self._end,
            replaced=self.replaced.append,
            log=self.logged.append,
        )
        self.running = RunningJob("gpt-1", self.clock, hooks, self.wake)

    def _end(self) -> None:
        self.ends += 1
        for event in self.at_end:
            assert event.wait(20)


class JobLoop:
    """Records requests, and ends when the test says so."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.requests: queue.SimpleQueue[Fact] = queue.SimpleQueue()
        job.made += 1

    def turn(self) -> float:
        self.job.turned += 1
        taken = []
        while not self.requests.empty():
            taken.append(self.requests.get_nowait())
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


def test_a_request_is_answered_once_it_is_in_the_journal(job: Job) -> None:
    """It wakes an idle loop."""
    job.running.start()
    until(lambda: job.turned == 1)
    assert job.running.request(STOP)
    assert job.journal == [STOP]


def test_a_request_survives_a_failing_turn(job: Job) -> None:
    """The job loop that drained it is discarded; the next one gets it."""
    job.errors = [DatabaseUnreachable("gone"), DatabaseUnreachable("gone")]
    assert job.running.request(STOP)
    assert job.journal == [STOP]
    assert job.made == 3
    assert job.clock.pauses == pytest.approx([0.4, 0.8])
    assert job.logged == ["gpt-1: gone; restarting the job from its journal"] * 2


def test_a_request_that_cannot_be_recorded_is_reported_as_open(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user neither waits for ever nor gets a false success."""
    monkeypatch.setattr(job_runner, "REQUEST_WAIT_S", 0.05)
    job.running.leave()
    assert not job.running.request(STOP)


def test_a_day_without_a_database_ends_no_job(job: Job) -> None:
    """However often it was in vain, the pause stays bounded and the job restarts once the database is back."""
    job.errors = [DatabaseUnreachable("gone") for _ in range(1200)]
    assert job.running.request(STOP)
    assert job.journal == [STOP]
    assert max(job.clock.pauses) == 15.0


def test_an_unexpected_error_ends_neither_the_job_nor_the_others(job: Job) -> None:
    """It is in the controller's log with its place, and the job restarts from its journal."""
    job.errors = [KeyError("slot")]
    assert job.running.request(STOP)
    assert "KeyError" in job.logged[0]
    assert job.made == 2


def test_a_job_that_has_ended_rests_until_a_request(job: Job) -> None:
    """Its thread ends; a request starts another one."""
    job.ended = True
    job.running.start()
    until(lambda: not job.running.runs)
    assert job.ends == 1
    assert job.running.request(RESUME)
    assert job.journal == [RESUME]
    until(lambda: not job.running.runs)


def test_a_request_that_comes_while_a_job_ends_is_not_lost(job: Job) -> None:
    """Between the last turn and the end of the thread there is no gap."""
    job.ended = True
    job.at_end = [threading.Event()]
    job.running.start()
    until(lambda: job.ends == 1)
    noted: list[bool] = []
    wisher = threading.Thread(target=lambda: noted.append(job.running.request(RESUME)))
    wisher.start()
    until(lambda: bool(job.running._pending))
    job.at_end[0].set()
    wisher.join(20)
    assert noted == [True]
    assert job.journal == [RESUME]


def test_a_controller_that_was_replaced_leaves_the_job_alone(job: Job) -> None:
    """No other job loop is made."""
    job.errors = [ControllerReplaced("another one has it")]
    job.running.start()
    until(lambda: bool(job.replaced))
    assert (job.replaced, job.made) == (["another one has it"], 1)


def test_starting_twice_starts_one_thread(job: Job) -> None:
    """A job has one thread."""
    for _ in range(5):
        job.running.start()
    assert job.running.request(STOP)
    assert job.made == 1
