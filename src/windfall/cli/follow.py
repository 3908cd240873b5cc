"""Following a job in the terminal: what its script prints, what happens to its machines, what becomes of it."""

from __future__ import annotations

import json
import sys
import time

from windfall import codec, wiring
from windfall.cli.client import Client
from windfall.control.service import JobView
from windfall.errors import EXIT_DONE, EXIT_FAILED, ControllerUnreachable, StoreError
from windfall.events import Row
from windfall.fleet import JobPhase
from windfall.report.happenings import sentences
from windfall.storage.operations import get, keys_under
from windfall.wire.layout import OUTPUT

POLL_S = 0.3
OVER = (JobPhase.DONE, JobPhase.FAILED, JobPhase.STOPPED)


def follow(client: Client, job_id: str, *, json_: bool = False) -> int:
    """Print what happens until the job has ended; return its exit code.  Ctrl-C lets go of it, and says so."""
    view = client.job(job_id)
    try:
        return _Follower(client, view, json_=json_).run()
    except KeyboardInterrupt:
        place = client.place
        process = "" if place.process is None else f", process {place.process} of this machine"
        print(
            f"\nwindfall: detached; {job_id} goes on under the controller at {place.url}{process}.\n"
            f"  windfall logs -f {job_id}    follow it again\n  windfall stop {job_id}       save and stop",
            file=sys.stderr,
        )
        return EXIT_DONE


class _Follower:
    """What was shown so far."""

    def __init__(self, client: Client, view: JobView, *, json_: bool) -> None:
        self._client = client
        self._view = view
        self._json = json_
        self._row = 0
        self._sentence = ""
        self._seen: set[str] = set()
        self._store = wiring.open_reader(view.run_url)
        self._away = False

    def run(self) -> int:
        while True:
            over = self._look()
            self._print_output()
            if over:
                return self._end()
            time.sleep(POLL_S)

    def _look(self) -> bool:
        """Print the news; return whether the job has ended.  A controller that is away is waited for."""
        try:
            rows = list(self._client.rows(self._view.job_id, self._row))
            view = self._client.job(self._view.job_id)
        except ControllerUnreachable as error:
            if not self._away:
                print(f"windfall: {error}; the machines go on meanwhile", file=sys.stderr)
            self._away = True
            return False
        self._away = False
        self._view = view
        for row in rows:
            self._row = row.sequence
            self._tell(codec.row_from_line(row.line), row.line)
        if view.sentence != self._sentence and view.sentence.startswith("waiting"):
            self._say(view.sentence)
        self._sentence = view.sentence
        return view.phase in OVER

    def _tell(self, row: Row, line: str) -> None:
        if self._json:
            print(line, flush=True)
            return
        for sentence in sentences(row):
            self._say(sentence, row.wall)

    def _say(self, sentence: str, wall: float | None = None) -> None:
        if not self._json:
            when = time.strftime("%H:%M:%S", time.localtime(wall))
            print(f"{when} windfall: {sentence}", file=sys.stderr, flush=True)

    def _print_output(self) -> None:
        """Print what the script printed since the last look, as far as it has come to the store."""
        if self._json:
            return
        try:
            for key in self._store.run(keys_under(OUTPUT)):
                if key not in self._seen:
                    data = self._store.run(get(key))
                    self._seen.add(key)
                    sys.stdout.buffer.write(data or b"")
            sys.stdout.buffer.flush()
        except StoreError:
            return  # the run's output can be read again later; the job does not depend on it

    def _end(self) -> int:
        view = self._view
        if self._json:
            print(json.dumps({"job_id": view.job_id, "phase": view.phase, "exit_code": view.exit_code}))
        else:
            self._say(view.sentence)
            print(f"windfall: `windfall cost {view.job_id}` has the account", file=sys.stderr)
        return EXIT_FAILED if view.exit_code is None else view.exit_code
