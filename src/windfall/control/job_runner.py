"""A running job: its job loop in its own thread, restarted from the journal after each error."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from windfall.control.job_loop import JobLoop
from windfall.control.state_snapshots import JournalUnreadable
from windfall.core.driver import JobSummary
from windfall.errors import ControllerReplaced, WindfallError
from windfall.events import Fact
from windfall.fleet import Directive, Report
from windfall.ports import Clock
from windfall.structs import Struct
from windfall.terms import Seconds

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.2, 15.0
_DOUBLINGS_MAX = 10
"""More doublings would not change the pause, and would overflow in a day without a database."""
REQUEST_WAIT_S = 20.0
"""How long a user's request waits to become durable [s]."""


@dataclass(eq=False, slots=True)
class _PendingRequest:
    """A user's request to a job; `recorded` is set once it is in the journal."""

    fact: Fact
    recorded: threading.Event = field(default_factory=threading.Event)


def _ignore(_: str) -> None:
    """Do nothing with a message."""


class JobHooks(Struct, frozen=True):
    """A running job's callbacks.

    Attributes:
        make: makes the job loop, from the journal.
        deliver: puts a machine's report into the direct channel.
        publish: receives each new summary; called after every turn that may have changed it.
        ended: called each time the job has ended and its bill is complete.
        replaced: called when another controller took over the installation.
        log: writes a message to the controller's log.
        set_aside: called with the reason when the job cannot continue, because its journal cannot be read.
    """

    make: Callable[[], JobLoop]
    deliver: Callable[[Report], Directive | None]
    publish: Callable[[JobSummary], None]
    ended: Callable[[], None]
    replaced: Callable[[str], None]
    log: Callable[[str], None]
    set_aside: Callable[[str], None] = _ignore


class RunningJob:
    """One job and its thread."""

    def __init__(self, job_id: str, clock: Clock, hooks: JobHooks, wake: threading.Event) -> None:
        self._job_id = job_id
        self._clock = clock
        self._hooks = hooks
        self._wake = wake
        self._lock = threading.Lock()
        self._pending: list[_PendingRequest] = []
        self._thread: threading.Thread | None = None
        self._leaving = False
        self._has_work = False

    def start(self) -> None:
        """Start or resume the job's thread; do nothing if it runs."""
        with self._lock:
            self._has_work = True
            if not self.runs and not self._leaving:
                self._thread = threading.Thread(target=self._work, name=f"job {self._job_id}", daemon=True)
                self._thread.start()

    def leave(self) -> None:
        """Stop running the job after the present turn."""
        with self._lock:
            self._leaving = True
        self._wake.set()

    def revive(self) -> bool:
        """Restart the job's thread if it died with work left; return whether it had."""
        died = self._has_work and not self.runs and not self._leaving
        if died:
            self.start()
        return died

    @property
    def runs(self) -> bool:
        """Whether its thread works."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def request(self, fact: Fact) -> bool:
        """Queue a user's request and wait until it is in the journal; return whether it is."""
        request = _PendingRequest(fact)
        with self._lock:
            self._pending.append(request)
        self.start()
        self._wake.set()
        return request.recorded.wait(REQUEST_WAIT_S)

    def report(self, report: Report) -> Directive | None:
        """Receive a machine's report."""
        return self._hooks.deliver(report)

    # -------------------------------------------------------------------------------------------------------- the thread

    def _work(self) -> None:
        failures = 0
        while not self._leaving:
            try:
                if self._run_until_ended():
                    return
                failures = 0
            except ControllerReplaced as error:
                self._has_work = False
                self._hooks.replaced(str(error))
                return
            except JournalUnreadable as error:
                self._has_work = False
                self._hooks.set_aside(str(error))
                return
            except WindfallError as error:
                failures += 1
                self._hooks.log(f"{self._job_id}: {error}; restarting the job from its journal")
            except Exception:
                # A bug that one job meets must neither end the other jobs nor, for good, this one.
                failures += 1
                self._hooks.log(f"{self._job_id}: restarting after an unexpected error: {traceback.format_exc()}")
            if failures:
                self._clock.sleep(Seconds(min(_PAUSE_S_MIN * 2.0 ** min(failures, _DOUBLINGS_MAX), _PAUSE_S_MAX)))

    def _run_until_ended(self) -> bool:
        """Turn until the job has ended or this controller leaves; return whether the thread may end."""
        job_loop = self._hooks.make()
        while not self._leaving:
            self._wake.clear()
            wait_s = self._turn(job_loop)
            self._hooks.publish(job_loop.summary())
            if job_loop.ended:
                self._hooks.ended()
                with self._lock:
                    if not self._pending:
                        self._thread, self._has_work = None, False
                        return True
                return False
            self._wake.wait(wait_s)
        return True

    def _turn(self, job_loop: JobLoop) -> Seconds:
        with self._lock:
            requests = list(self._pending)
        for request in requests:
            job_loop.requests.put(request.fact)
        wait_s = job_loop.turn()
        with self._lock:
            self._pending = [request for request in self._pending if request not in requests]
        for request in requests:
            request.recorded.set()
        return wait_s
