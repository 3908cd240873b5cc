"""The mailbox: a channel through the run's store, for a controller and machines that cannot reach each other.

Each side writes its own objects and reads the other's; nothing is appended or locked, and the newest version counts.
The machine's side is in `agent.node_agent`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable

from windfall import codec, fleet
from windfall.errors import StoreError, WindfallError
from windfall.fleet import Directive, Report
from windfall.ports import Channel, Clock, ObjectStore
from windfall.structs import Struct
from windfall.terms import Instant, Seconds, Term
from windfall.wire.run_layout import CONTROLLER, directive_key, report_key

_NEVER = Instant(float("-inf"))
_BACKOFF_S_MAX = 30.0
_POLL_S, _HEARTBEAT_S, _REWRITE_S, _PERIOD_S = Seconds(2.0), Seconds(10.0), Seconds(60.0), Seconds(1.0)


class MailboxPace(Struct, frozen=True):
    """How often the controller uses the store.

    Each machine costs about 0.001 USD an hour at 0.0004 USD per 1000 reads (Amazon S3, standard, 2024), the heartbeat
    0.002 a job.

    Attributes:
        poll_s: the least time between two reads of one machine's report [s].
        heartbeat_s: between two heartbeats; many must fit into every job's dead-man limit [s].
        rewrite_s: after this time an unchanged directive is written again, in case a replaced controller has overwritten
            it [s].
        batch_max: how many machines one call reads, and writes to, at most.
    """

    poll_s: Seconds = _POLL_S
    heartbeat_s: Seconds = _HEARTBEAT_S
    rewrite_s: Seconds = _REWRITE_S
    batch_max: int = 32


class MailboxChannel:
    """`ports.Channel` through a run's store; a store that fails is retried after a pause and never raises to the caller.

    Its calls use the store in the caller's thread; `BackgroundChannel` moves them to another one.
    """

    name = "mailbox"

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        controller: Term,
        machine_ids: Callable[[], Iterable[str]],
        pace: MailboxPace | None = None,
    ) -> None:
        """Prepare; nothing is read or written yet.

        Args:
            store: of the job's run.
            clock: for the pace.
            controller: term of the controller that sends.
            machine_ids: returns the machines of the job that are alive.
            pace: how often the store is used.
        """
        self._store, self._clock, self._controller, self._machine_ids = store, clock, controller, machine_ids
        self._pace = pace or MailboxPace()
        self._read: dict[str, bytes] = {}
        self._polled_at: dict[str, Instant] = {}
        self._written: dict[str, tuple[Directive, Instant]] = {}
        self._counter = 0
        self._heartbeat_at = _NEVER
        self._failures = 0
        self._retry_at = _NEVER

    def receive(self) -> tuple[Report, ...]:
        """Return new reports of the machines that are due."""
        alive = tuple(self._machine_ids())
        self._forget(alive)
        now = self._clock.now()
        due = [name for name in alive if now >= self._polled_at.get(name, _NEVER) + self._pace.poll_s]
        due.sort(key=lambda name: (self._polled_at.get(name, _NEVER), name))
        found: list[Report] = []
        for name in due[: self._pace.batch_max]:
            if not self._try(lambda name=name: self._read_report(name, found)):  # type: ignore[misc]
                break
        return tuple(found)

    def _read_report(self, machine_id: str, found: list[Report]) -> None:
        data = self._store.get(report_key(machine_id))
        self._polled_at[machine_id] = self._clock.now()
        if data is None or data == self._read.get(machine_id):
            return
        self._read[machine_id] = data
        report = parse_report(data)
        if report is not None and report.machine_id == machine_id:
            found.append(report)

    def send(self, directives: dict[str, Directive]) -> None:
        """Write the directives that have changed, and the heartbeat if it is due."""
        now = self._clock.now()
        if now >= self._heartbeat_at + self._pace.heartbeat_s and self._try(self._write_heartbeat):
            self._heartbeat_at = now
        changed = [name for name, directive in directives.items() if self._changed(name, directive, now)]
        for name in changed[: self._pace.batch_max]:
            if not self._try(lambda name=name: self._write(name, directives[name])):  # type: ignore[misc]
                break

    def _changed(self, machine_id: str, directive: Directive, now: Instant) -> bool:
        written, at = self._written.get(machine_id, (None, _NEVER))
        return directive != written or now >= at + self._pace.rewrite_s

    def _write(self, machine_id: str, directive: Directive) -> None:
        self._store.put(directive_key(machine_id), codec.encode_document(fleet.VERSION, "directive", directive))
        self._written[machine_id] = (directive, self._clock.now())

    def _write_heartbeat(self) -> None:
        self._counter += 1
        heartbeat = {"version": 1, "term": self._controller, "counter": self._counter}
        self._store.put(CONTROLLER, json.dumps(heartbeat).encode())

    def _try(self, action: Callable[[], None]) -> bool:
        """Use the store unless it has just failed; return whether the action succeeded."""
        if self._clock.now() < self._retry_at:
            return False
        try:
            action()
        except StoreError:
            self._failures += 1
            pause_s = min(2.0 ** min(self._failures, 8) / 2, _BACKOFF_S_MAX)
            self._retry_at = Instant(self._clock.now() + pause_s)
            return False
        self._failures = 0
        return True

    def _forget(self, alive: tuple[str, ...]) -> None:
        """Forget machines that are gone; a job may have many."""
        for known in (self._read, self._polled_at, self._written):
            for name in known.keys() - set(alive):
                del known[name]


def parse_report(data: bytes) -> Report | None:
    """Return a machine's report; None if it is invalid."""
    try:
        report: Report = codec.decode_document(data, "report", Report, version=fleet.VERSION, what="a report")
    except (ValueError, WindfallError):
        return None
    return report


class BackgroundChannel:
    """Runs another channel in its own thread, so that `receive` and `send` never wait for a store."""

    def __init__(
        self, channel: Channel, clock: Clock, *, period_s: Seconds = _PERIOD_S, log: Callable[[str], None] | None = None
    ) -> None:
        """Start the thread.

        Args:
            channel: the one that may block.
            clock: for the pauses.
            period_s: between two uses of it [s].
            log: takes unexpected errors; the channel continues after them.
        """
        self._log = log
        self.name = channel.name
        self._channel, self._clock, self._period_s = channel, clock, period_s
        self._lock = threading.Lock()
        self._received: dict[str, Report] = {}
        self._directives: dict[str, Directive] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._run, name=f"channel-{self.name}", daemon=True).start()

    def receive(self) -> tuple[Report, ...]:
        """Return the newest report of each machine that came since the last call."""
        with self._lock:
            received, self._received = self._received, {}
        return tuple(received.values())

    def send(self, directives: dict[str, Directive]) -> None:
        """Make these the newest directives; they are sent within a period."""
        with self._lock:
            self._directives = dict(directives)

    def close(self) -> None:
        """End the thread after its current call."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                directives = self._directives
            try:
                self._channel.send(directives)
                received = self._channel.receive()
            except Exception as error:
                # Whatever is in the store, the channel must keep receiving.
                received = ()
                if self._log is not None:
                    self._log(f"unexpected error in the {self.name}; it continues: {type(error).__name__}: {error}")
            with self._lock:
                self._received |= {report.machine_id: report for report in received}
            self._clock.sleep(self._period_s)
