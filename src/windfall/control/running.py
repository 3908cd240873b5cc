"""A job that is being run: its conductor in a thread of its own, made anew from the journal whenever anything fails."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from windfall.control.conductor import Conductor, Unreadable
from windfall.core.driver import JobSummary
from windfall.errors import ControllerReplaced, WindfallError
from windfall.events import Fact
from windfall.fleet import Directive, Report
from windfall.ports import Clock
from windfall.terms import Seconds

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.2, 15.0
_DOUBLINGS_MAX = 10
"""More would change nothing, and in a day without a database overflow."""
WISH_PATIENCE_S = 20.0
"""How long somebody who wishes something waits for it to be durable."""


@dataclass(eq=False, slots=True)
class _Wish:
    """What a user wants of a job; `taken` once it is in the journal."""

    fact: Fact
    taken: threading.Event = field(default_factory=threading.Event)


def _nobody(_: str) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a running job calls.

    Attributes:
        make: makes the conductor, from the journal.
        deliver: takes a machine's report into the direct channel.
        publish: takes each new summary; called after every turn that may have changed it.
        ended: called once whenever the job has ended and its bill is complete.
        replaced: another controller took the installation.
        say: takes a sentence for the controller's log.
        aside: called when the job cannot be gone on with, because its journal cannot be read; with the reason.
    """

    make: Callable[[], Conductor]
    deliver: Callable[[Report], Directive | None]
    publish: Callable[[JobSummary], None]
    ended: Callable[[], None]
    replaced: Callable[[str], None]
    say: Callable[[str], None]
    aside: Callable[[str], None] = _nobody


class RunningJob:
    """One job and its thread."""

    def __init__(self, job_id: str, clock: Clock, hooks: Hooks, wake: threading.Event) -> None:
        self._job_id = job_id
        self._clock = clock
        self._hooks = hooks
        self._wake = wake
        self._lock = threading.Lock()
        self._wishes: list[_Wish] = []
        self._thread: threading.Thread | None = None
        self._leaving = False
        self._wanted = False

    def begin(self) -> None:
        """Run the job, or go on with it; nothing happens if it runs."""
        with self._lock:
            self._wanted = True
            if not self.runs and not self._leaving:
                self._thread = threading.Thread(target=self._work, name=f"job {self._job_id}", daemon=True)
                self._thread.start()

    def leave(self) -> None:
        """Let go of the job after the present turn."""
        with self._lock:
            self._leaving = True
        self._wake.set()

    def revive(self) -> bool:
        """Take the job up again if its thread has died with work left; return whether it had."""
        died = self._wanted and not self.runs and not self._leaving
        if died:
            self.begin()
        return died

    @property
    def runs(self) -> bool:
        """Whether its thread works."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def wish(self, fact: Fact) -> bool:
        """Hand in what a user wants, and wait until it is in the journal; return whether it is by now."""
        wish = _Wish(fact)
        with self._lock:
            self._wishes.append(wish)
        self.begin()
        self._wake.set()
        return wish.taken.wait(WISH_PATIENCE_S)

    def report(self, report: Report) -> Directive | None:
        """Take a machine's report."""
        return self._hooks.deliver(report)

    # -------------------------------------------------------------------------------------------------------- the thread

    def _work(self) -> None:
        failures = 0
        while not self._leaving:
            try:
                if self._conduct():
                    return
                failures = 0
            except ControllerReplaced as error:
                self._wanted = False
                self._hooks.replaced(str(error))
                return
            except Unreadable as error:
                self._wanted = False
                self._hooks.aside(str(error))
                return
            except WindfallError as error:
                failures += 1
                self._hooks.say(f"{self._job_id}: {error}; the job is taken up again from its journal")
            except Exception:
                # A mistake of ours in one job must end neither the others nor, for good, this one.
                failures += 1
                self._hooks.say(
                    f"{self._job_id}: taken up again after an error nobody foresaw: {traceback.format_exc()}"
                )
            if failures:
                self._clock.sleep(Seconds(min(_PAUSE_S_MIN * 2.0 ** min(failures, _DOUBLINGS_MAX), _PAUSE_S_MAX)))

    def _conduct(self) -> bool:
        """Turn until the job has ended or this controller leaves; return whether the thread may end."""
        conductor = self._hooks.make()
        while not self._leaving:
            self._wake.clear()
            wait_s = self._turn(conductor)
            self._hooks.publish(conductor.summary())
            if conductor.ended:
                self._hooks.ended()
                with self._lock:
                    if not self._wishes:
                        self._thread, self._wanted = None, False
                        return True
                return False
            self._wake.wait(wait_s)
        return True

    def _turn(self, conductor: Conductor) -> Seconds:
        with self._lock:
            wishes = list(self._wishes)
        for wish in wishes:
            conductor.wishes.put(wish.fact)
        wait_s = conductor.turn()
        with self._lock:
            self._wishes = [wish for wish in self._wishes if wish not in wishes]
        for wish in wishes:
            wish.taken.set()
        return wait_s
