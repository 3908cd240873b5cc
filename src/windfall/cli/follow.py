"""Follow a job in the terminal: its output, what happens to its machines, and how it ends."""

from __future__ import annotations

import collections
import functools
import json
import math
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator

from rich.status import Status

from windfall import codec
from windfall.cli import job_verbs
from windfall.cli.client import Client
from windfall.control.controller_views import JobView
from windfall.errors import EXIT_DONE, EXIT_FAILED, ControllerError, StoreError
from windfall.events import Row
from windfall.fleet import RUN_DONE, TERMINAL, JobPhase, JobSubmitted
from windfall.jobs import Work
from windfall.report import bag_page
from windfall.report.bag_log import BagLog, read_bag
from windfall.report.console import console
from windfall.report.event_log import EventLog
from windfall.runtimes.item_dispatcher import open_table
from windfall.spelling import plain
from windfall.storage import object_stores
from windfall.storage.store_operations import get, keys_under
from windfall.terms import Unit, WallTime
from windfall.units import count_text, duration_text
from windfall.wire.run_layout import OUTPUT

POLL_S = 0.3
RATE_OVER_S = 30.0
"""The speed shown is the average over this time [s]."""
RATE_FROM_S = 4.0
"""No speed is shown before this time [s]: steps are reported about once a second."""
BAG_S = 1.0
"""How often a bag's log is read [s]."""
PIPED_S = 10.0
"""The least time between two lines of progress in a pipe [s]."""
_COLUMNS_MAX = 100


def follow(client: Client, job_id: str, *, after: int | None = 0, seen: Iterable[str] = (), json_: bool = False) -> int:
    """Print what happens until the job has ended; return its exit code.  Ctrl-C detaches.

    Args:
        client: of the controller.
        job_id: the job.
        after: print events after this row of its journal; None: after its newest.
        seen: objects of its output that are already printed.
        json_: print one journal row per line, and one object at the end.
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
        address = client.address
        process = "" if address.process is None else f", process {address.process} of this machine"
        print(
            f"\nwindfall: detached; {job_id} keeps running under the controller at {address.url}{process}\n"
            f"  windfall logs -f {job_id}    follow it again\n  windfall stop {job_id}       save and stop",
            file=sys.stderr,
        )
        return EXIT_DONE
    finally:
        signal.signal(signal.SIGINT, before)
        if follower is not None:
            follower.close()


def _interrupt(interrupted: threading.Event, *_: object) -> None:
    """Also record Ctrl-C: an exception raised while an object is finalised would be printed and lost."""
    interrupted.set()
    raise KeyboardInterrupt


def printed(url: str) -> frozenset[str]:
    """Return the keys of the script's output so far."""
    try:
        return frozenset(object_stores.open_reader(url).run(keys_under(OUTPUT)))
    except StoreError:
        return frozenset()


class Follower:
    """What has been printed of a job so far."""

    def __init__(self, client: Client, view: JobView, *, after: int | None, seen: Iterable[str], json_: bool) -> None:
        self._client = client
        self._view = view
        self._json = json_
        self._after = after
        self._row = 0
        self._sentence = ""
        self._seen = set(seen)
        self._store = object_stores.open_reader(view.run_url)
        self._controller_away = False
        self._event_log = EventLog()
        shown = not json_ and sys.stdout.isatty() and sys.stderr.isatty()
        self._progress = FollowedProgress(shown=shown)
        self._bag: FollowedBag | None = None
        self._piped = not json_ and not shown

    def close(self) -> None:
        """Remove the progress line."""
        self._progress.hide()

    def run(self, interrupted: threading.Event) -> int:
        """Print what happens until the job has ended; return its exit code."""
        while True:
            if interrupted.is_set():
                raise KeyboardInterrupt
            over = self._poll()
            self._print_output()
            if over:
                return self._end()
            self._show_progress(time.monotonic())
            time.sleep(POLL_S)

    def _show_progress(self, now: float) -> None:
        if self._bag is None:
            self._progress.show(self._view, now)
            return
        text = self._bag.text(self._store, now)
        self._progress.show_text(f"{self._view.phase}: {text}; {_cost(self._view):.4f} USD")
        if self._piped and self._bag.due(text, now):
            self._print(text)

    def _poll(self) -> bool:
        """Print what is new; return whether the job has ended.  If the controller is away, wait for it."""
        try:
            rows = list(self._client.rows(self._view.job_id, self._row))
            view = self._client.job(self._view.job_id)
        except ControllerError as error:
            # The controller or its database is away; the job was there a moment ago, so keep following.
            if not self._controller_away:
                self._print(f"{error}; the machines keep running, and following continues when a controller answers")
            self._controller_away = True
            return False
        self._controller_away = False
        self._view = view
        for row in rows:
            self._row = row.sequence
            self._print_row(codec.row_from_line(row.line), row.line)
        if self._after is None:
            self._after = self._row
        if view.phase is JobPhase.WAITING:
            self._print_waiting(view.message)
        return view.phase in TERMINAL

    def _print_waiting(self, message: str) -> None:
        # The time until the next try counts down: only another reason is new.
        reason = message.partition("; next try in")[0]
        if reason != self._sentence:
            self._sentence = reason
            self._print(message)

    def _print_row(self, row: Row, line: str) -> None:
        self._progress.read_work(row)
        if job_verbs.is_bag([row]):
            self._bag = FollowedBag()
            self._event_log.counts_items = True
        sentences = list(self._event_log.of(row))
        if self._after is None or row.sequence <= self._after:
            return  # an old row: recorded, not printed
        if self._json:
            print(line, flush=True)
            return
        for message in sentences:
            self._print(message, row.wall_time)

    def _print(self, message: str, wall_time: float | None = None) -> None:
        if self._json:
            return
        self._progress.hide()
        when = time.strftime("%H:%M:%S", time.localtime(wall_time))
        width = min(shutil.get_terminal_size().columns, _COLUMNS_MAX) if sys.stderr.isatty() else 10_000
        text = textwrap.fill(
            f"{when} windfall: {plain(message)}", max(width, 40), subsequent_indent=" " * 9, break_on_hyphens=False
        )
        print(text, file=sys.stderr, flush=True)

    def _print_output(self) -> None:
        """Print the script's output since the last poll, as far as it has reached the store."""
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
            return  # the output can be read later; the job does not depend on it

    def _end(self) -> int:
        view = self._view
        if self._json:
            print(json.dumps({"job_id": view.job_id, "phase": view.phase, "exit_code": view.exit_code}))
        else:
            self._print(f"{view.job_id} {_end_text(view)}")
            if self._bag is not None:
                for line in self._bag.end(self._store, view):
                    print(f"windfall: {line}", file=sys.stderr)
            elif view.phase is JobPhase.FAILED:
                print(f"windfall: see why: `windfall logs {view.job_id}`", file=sys.stderr)
            print(f"windfall: see where its time and money went: `windfall cost {view.job_id}`", file=sys.stderr)
        return EXIT_FAILED if view.exit_code is None else view.exit_code


def _end_text(view: JobView) -> str:
    """Return how a job ended: `is done`, `failed: its script ...`, `was stopped by root`."""
    if view.phase is JobPhase.DONE:
        return f"is done{view.message.removeprefix(RUN_DONE)}"
    if view.phase is JobPhase.STOPPED:
        short = view.message.startswith("stopped ")
        return f"was {view.message}" if short else f"was stopped: {view.message}"
    return f"{view.phase}: {view.message}"


class FollowedBag:
    """The items of a bag that is followed, as its log in the store has them."""

    def __init__(self) -> None:
        self._log: BagLog | None = None
        self._read_at = self._printed_at = -math.inf
        self._printed = ""

    def _read(self, store: object_stores.Reader, now: float) -> None:
        """Read what is new; a store that does not answer is asked again later."""
        if now - self._read_at < BAG_S:
            return
        self._read_at = now
        try:
            if self._log is None and (found := store.run(read_bag())) is not None:
                self._log = BagLog(store.run(open_table(found.bag)))
            if self._log is not None:
                store.run(self._log.read())
        except StoreError:
            return

    def text(self, store: object_stores.Reader, now: float) -> str:
        """Return one line about the items."""
        self._read(store, now)
        return "no item yet" if self._log is None else bag_page.progress_text(self._log, WallTime(time.time()))

    def due(self, text: str, now: float) -> bool:
        """Return whether a pipe gets this line now: some seconds after the last one, if items have ended since."""
        items = text.partition(" items done")[0]
        if now - self._printed_at < PIPED_S or items == self._printed or self._log is None or not self._log.first:
            return False
        self._printed_at, self._printed = now, items
        return True

    def end(self, store: object_stores.Reader, view: JobView) -> Iterator[str]:
        """Yield what became of the items, what they cost, and what to type next."""
        self._read(store, math.inf)
        if self._log is None:
            return
        yield bag_page.progress_text(self._log, WallTime(time.time()))
        if cost := bag_page.cost_text(self._log, view.details):
            yield cost
        groups = bag_page.failures(self._log)
        if groups:
            yield f"failed: {count_text(groups[0].count, 'item', 'items')}, such as {groups[0].item}: {groups[0].problem}"
        yield from bag_page.advice(self._log, view.job_id, groups[0].item if groups else None)


def _cost(view: JobView) -> float:
    return float(view.details.get("money", {}).get("due_usd", 0.0))


class FollowedProgress:
    """The last line of the terminal: the job's progress, speed and time left."""

    def __init__(self, *, shown: bool) -> None:
        self._status = Status("", console=console(stderr=True)) if shown else None
        self._running = False
        self._work: Work | None = None
        self._steps: collections.deque[tuple[float, int]] = collections.deque()

    def read_work(self, row: Row) -> None:
        """Read the amount of work from a row, if it has it."""
        for fact in row.facts:
            if isinstance(fact, JobSubmitted):
                self._work = fact.job.work

    def show(self, view: JobView, now: float) -> None:
        """Redraw the line."""
        step = int(view.details.get("step", 0))
        while self._steps and (step < self._steps[-1][1] or now - self._steps[0][0] > RATE_OVER_S):
            self._steps.popleft()
        self._steps.append((now, step))
        if self._status is not None:
            self.show_text(self.text(view, step))

    def show_text(self, text: str) -> None:
        """Redraw the line as this text."""
        if self._status is None:
            return
        self._status.update(text)
        if not self._running:
            self._status.start()
            self._running = True

    def hide(self) -> None:
        """Remove the line, so that something else can be printed."""
        if self._status is not None and self._running:
            self._status.stop()
            self._running = False

    def text(self, view: JobView, step: int) -> str:
        """Return the line: `step 120 of 300 (40 %), 3.1 steps/s, 58 s left; 0.0012 USD`."""
        (started, first), (ended, last) = self._steps[0], self._steps[-1]
        speed = (last - first) / (ended - started) if ended - started > RATE_FROM_S else 0.0
        steps = self._work.amount if self._work is not None and self._work.unit is Unit.STEP else None
        sentences = (
            f"step {step}" if steps is None else f"step {step} of {steps:g} ({step / steps:.0%})".replace("%", " %")
        )
        if speed > 0 and view.phase is JobPhase.RUNNING:
            sentences += f", {speed:.3g} steps/s"
            if steps is not None and steps > step:
                sentences += f", {duration_text((steps - step) / speed)} left"
        return f"{view.phase}: {sentences}; {_cost(view):.4f} USD"
