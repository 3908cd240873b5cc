"""A controller goes on whatever its log, its threads, and its machines' words do."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from tests.control.conftest import until
from tests.control.house import a_job
from tests.control.test_running import STOP, Job, NoPauses
from windfall import codec
from windfall.control import job_runner
from windfall.errors import DatabaseUnreachable
from windfall.events import Row
from windfall.fleet import JobSubmitted
from windfall.terms import Instant, Term, WallTime


@pytest.mark.trial("G5")
def test_a_log_that_cannot_be_written_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full disk, pipe without a reader: the error was one that could be borne, and a wish is still heard."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(job_runner, "REQUEST_WAIT_S", 5.0)
    job = Job()

    def full(_: str) -> None:
        raise OSError(28, "No space left on device")

    msgspec.structs.force_setattr(job.running._hooks, "log", full)
    job.errors = [DatabaseUnreachable("gone")]
    job.running.start()
    until(lambda: job.turned == 1)
    until(lambda: job.turned > 1 or not any(thread.name == "job gpt-1" for thread in threading.enumerate()))
    assert job.running.request(STOP)
    job.running.leave()


def test_a_thread_that_died_is_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever looks after the jobs, without a wish; one that has ended, or left, is not."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    from windfall.control.job_runner import JobHooks, RunningJob

    lives: list[str] = []

    def make() -> None:
        lives.append("made")
        raise SystemExit

    hooks = JobHooks(make, lambda _: None, lambda _: None, lambda: None, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    one = RunningJob("gpt-1", NoPauses(), hooks, threading.Event())
    assert not one.revive()
    one.start()
    until(lambda: lives == ["made"] and not one.runs)
    assert one.revive()
    until(lambda: lives == ["made"] * 2 and not one.runs)
    one.leave()
    assert not one.revive()


def test_the_log_neither_fails_nor_floods_nor_lies() -> None:
    """What cannot be written is forgotten; the same is written once a minute; no line of it is a stranger's."""
    from windfall.control.controller_log import LINES_MAX, ControllerLog

    class Clock(NoPauses):
        at = 0.0

        def now(self):  # type: ignore[no-untyped-def]
            return self.at

    written: list[str] = []
    clock = Clock()
    log = ControllerLog(clock, written.append)
    for _ in range(1000):
        log("again")
    log("a name\nwindfall: all is well\x1b[2J")
    for number in range(5000):
        log(f"noise {number}")
    assert written[0] == "windfall: again\n"
    assert written[1] == "windfall: a name\n    windfall: all is well\\x1b[2J\n"
    assert len(written) <= LINES_MAX
    clock.at = 61.0
    log("later")
    assert written[-1] == "windfall: later\n"
    assert any("again (repeated 999 times)" in line for line in written)

    def full(_: str) -> None:
        raise OSError(28, "No space left on device")

    ControllerLog(Clock(), full)("nobody hears this")


def test_the_markets_log_cannot_end_the_market(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk is full: machines are still sold, looked at and billed."""
    from windfall.linux.clock import SystemClock
    from windfall.providers.local import market_daemon

    asked = threading.Event()

    def loop(folder: Path, engine: object, clock: object, idle: object, note: object) -> None:
        note("a word")  # type: ignore[operator]
        asked.set()

    (tmp_path / market_daemon.LOG).symlink_to("/dev/full")
    monkeypatch.setattr(market_daemon, "_run", loop)
    market_daemon.serve(tmp_path, SystemClock(), lambda: None)
    assert asked.is_set()


_FIRST_READS = """
import sys, threading
from windfall import codec

sys.setswitchinterval(1e-6)
line, gate = sys.stdin.read(), threading.Barrier(4)


def read():
    gate.wait()
    codec.row_from_line(line)


threads = [threading.Thread(target=read) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_several_jobs_may_be_the_first_to_read_their_journals() -> None:
    """A controller that restarts reads all journals at once; the library that decodes them crashed the process."""
    row = Row(Term(1), 1, Instant(0.0), WallTime(0.0), (JobSubmitted(a_job(), "home"),))
    line = codec.row_to_line(row)

    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", _FIRST_READS], input=line, text=True, capture_output=True, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, "")
