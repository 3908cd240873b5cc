"""Following a job in the terminal: what its script prints, what happens to its machines, what becomes of it."""

from __future__ import annotations

import collections
import functools
import json
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterable

from rich.status import Status

from windfall import codec, wiring
from windfall.cli.client import Client
from windfall.control.service import JobView
from windfall.errors import EXIT_DONE, EXIT_FAILED, ControllerError, StoreError
from windfall.events import Row
from windfall.fleet import TERMINAL, JobPhase, JobSubmitted
from windfall.jobs import Work
from windfall.report.happenings import Happenings
from windfall.report.showing import console
from windfall.spelling import plain
from windfall.storage.operations import get, keys_under
from windfall.terms import Unit
from windfall.units import duration_text
from windfall.wire.layout import OUTPUT

POLL_S = 0.3
RATE_OVER_S = 30.0
"""The speed that is shown is that of so much time."""
RATE_FROM_S = 4.0
"""None is shown before so much was seen: steps are heard of a second's worth at a time."""
_COLUMNS_MAX = 100


def follow(client: Client, job_id: str, *, after: int | None = 0, seen: Iterable[str] = (), json_: bool = False) -> int:
    """Print what happens until the job has ended; return its exit code.  Ctrl-C lets go of it, and says so.

    Args:
        client: of the controller.
        job_id: the job.
        after: the row of its journal behind which it is told; None: its newest.
        seen: objects of its output that need not be printed again.
        json_: one journal row a line, and one object at the end.
    """
    follower = None
    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, functools.partial(_interrupt, interrupted))
    try:
        follower = Follower(client, client.job(job_id), after=after, seen=seen, json_=json_)
        return follower.run(interrupted)
    except KeyboardInterrupt:
        if follower is not None:
            follower.close()
        place = client.place
        process = "" if place.process is None else f", process {place.process} of this machine"
        print(
            f"\nwindfall: detached; {job_id} goes on under the controller at {place.url}{process}\n"
            f"  windfall logs -f {job_id}    follow it again\n  windfall stop {job_id}       save and stop",
            file=sys.stderr,
        )
        return EXIT_DONE
    finally:
        signal.signal(signal.SIGINT, before)
        if follower is not None:
            follower.close()


def _interrupt(interrupted: threading.Event, *_: object) -> None:
    """Remember Ctrl-C too: raised while an object is finalised, the exception would be printed and forgotten."""
    interrupted.set()
    raise KeyboardInterrupt


def printed(url: str) -> frozenset[str]:
    """Return the objects that the script's output consists of so far."""
    try:
        return frozenset(wiring.open_reader(url).run(keys_under(OUTPUT)))
    except StoreError:
        return frozenset()


class Follower:
    """What was shown so far."""

    def __init__(self, client: Client, view: JobView, *, after: int | None, seen: Iterable[str], json_: bool) -> None:
        self._client = client
        self._view = view
        self._json = json_
        self._after = after
        self._row = 0
        self._sentence = ""
        self._seen = set(seen)
        self._store = wiring.open_reader(view.run_url)
        self._away = False
        self._happenings = Happenings()
        self._progress = Progress(shown=not json_ and sys.stdout.isatty() and sys.stderr.isatty())

    def close(self) -> None:
        """Take the line of progress away."""
        self._progress.hide()

    def run(self, interrupted: threading.Event) -> int:
        """Print what happens until the job has ended; return its exit code."""
        while True:
            if interrupted.is_set():
                raise KeyboardInterrupt
            over = self._look()
            self._print_output()
            if over:
                return self._end()
            self._progress.show(self._view, time.monotonic())
            time.sleep(POLL_S)

    def _look(self) -> bool:
        """Print the news; return whether the job has ended.  A controller that is away is waited for."""
        try:
            rows = list(self._client.rows(self._view.job_id, self._row))
            view = self._client.job(self._view.job_id)
        except ControllerError as error:
            # It is away, or its database is: the job was there a moment ago, and is no reason to end.
            if not self._away:
                self._say(f"{error}; the machines go on meanwhile, and this goes on when one answers")
            self._away = True
            return False
        self._away = False
        self._view = view
        for row in rows:
            self._row = row.sequence
            self._take(codec.row_from_line(row.line), row.line)
        if self._after is None:
            self._after = self._row
        if view.phase is JobPhase.WAITING:
            self._tell_waiting(view.sentence)
        return view.phase in TERMINAL

    def _tell_waiting(self, sentence: str) -> None:
        # The time until the next try is counted down: only another reason is news.
        reason = sentence.partition("; tried again")[0]
        if reason != self._sentence:
            self._sentence = reason
            self._say(sentence)

    def _take(self, row: Row, line: str) -> None:
        self._progress.learn(row)
        told = list(self._happenings.of(row))
        if self._after is None or row.sequence <= self._after:
            return  # the past: it is only remembered
        if self._json:
            print(line, flush=True)
            return
        for sentence in told:
            self._say(sentence, row.wall)

    def _say(self, sentence: str, wall: float | None = None) -> None:
        if self._json:
            return
        self._progress.hide()
        when = time.strftime("%H:%M:%S", time.localtime(wall))
        width = min(shutil.get_terminal_size().columns, _COLUMNS_MAX) if sys.stderr.isatty() else 10_000
        text = textwrap.fill(
            f"{when} windfall: {plain(sentence)}", max(width, 40), subsequent_indent=" " * 9, break_on_hyphens=False
        )
        print(text, file=sys.stderr, flush=True)

    def _print_output(self) -> None:
        """Print what the script printed since the last look, as far as it has come to the store."""
        if self._json:
            return
        try:
            for key in self._store.run(keys_under(OUTPUT)):
                if key not in self._seen:
                    data = self._store.run(get(key))
                    self._seen.add(key)
                    self._progress.hide()
                    sys.stdout.buffer.write(data or b"")
            sys.stdout.buffer.flush()
        except StoreError:
            return  # the run's output can be read again later; the job does not depend on it

    def _end(self) -> int:
        view = self._view
        if self._json:
            print(json.dumps({"job_id": view.job_id, "phase": view.phase, "exit_code": view.exit_code}))
        else:
            self._say(f"{view.job_id} is {view.phase}: {view.sentence}")
            print(f"windfall: `windfall cost {view.job_id}` has the account", file=sys.stderr)
        return EXIT_FAILED if view.exit_code is None else view.exit_code


class Progress:
    """The last line of a terminal: how far the job is, how fast, and when it may be done."""

    def __init__(self, *, shown: bool) -> None:
        self._status = Status("", console=console(stderr=True)) if shown else None
        self._running = False
        self._work: Work | None = None
        self._steps: collections.deque[tuple[float, int]] = collections.deque()

    def learn(self, row: Row) -> None:
        """Take in what there is to do, where a row tells it."""
        for fact in row.facts:
            if isinstance(fact, JobSubmitted):
                self._work = fact.job.work

    def show(self, view: JobView, now: float) -> None:
        """Draw the line anew."""
        step = int(view.details.get("step", 0))
        while self._steps and (step < self._steps[-1][1] or now - self._steps[0][0] > RATE_OVER_S):
            self._steps.popleft()
        self._steps.append((now, step))
        if self._status is None:
            return
        self._status.update(self.text(view, step))
        if not self._running:
            self._status.start()
            self._running = True

    def hide(self) -> None:
        """Take the line away, so that something else can be printed."""
        if self._status is not None and self._running:
            self._status.stop()
            self._running = False

    def text(self, view: JobView, step: int) -> str:
        """Return the line: `step 120 of 300 (40 %), 3.1 steps/s, 58 s to go; 0.0012 USD`."""
        (began, first), (ended, last) = self._steps[0], self._steps[-1]
        speed = (last - first) / (ended - began) if ended - began > RATE_FROM_S else 0.0
        steps = self._work.amount if self._work is not None and self._work.unit is Unit.STEP else None
        told = f"step {step}" if steps is None else f"step {step} of {steps:g} ({step / steps:.0%})".replace("%", " %")
        if speed > 0 and view.phase is JobPhase.RUNNING:
            told += f", {speed:.3g} steps/s"
            if steps is not None and steps > step:
                told += f", {duration_text((steps - step) / speed)} to go"
        cost = view.details.get("money", {}).get("due_usd", 0.0)
        return f"{view.phase}: {told}; {cost:.4f} USD"
