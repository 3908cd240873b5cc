"""The mailbox: how a controller and machines that cannot reach each other talk through the run's store.

Each side writes its own objects and reads the other's; nothing is ever appended or locked, the newest counts.  The
machine's side is in `agent.keeper`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from windfall import codec, fleet
from windfall.errors import StoreError, WindfallError
from windfall.fleet import Directive, Report
from windfall.ports import Channel, Clock, ObjectStore
from windfall.terms import Instant, Seconds, Term
from windfall.wire.layout import CONTROLLER, directive_key, report_key

_NEVER = Instant(float("-inf"))
_BACKOFF_S_MAX = 30.0


_LOOK_S, _BEAT_S, _AGAIN_S, _PERIOD_S = Seconds(2.0), Seconds(10.0), Seconds(60.0), Seconds(1.0)


@dataclass(frozen=True, slots=True)
class MailPace:
    """How often the controller uses the store.

    Each machine costs about 0.001 USD an hour at 0.0004 USD per 1000 reads (Amazon S3, standard, 2024), the heartbeat
    0.002 a job.

    Attributes:
        look_s: the least time between two looks at one machine's report [s].
        beat_s: between two heartbeats [s]; many must fit into every job's dead-man limit.
        again_s: a directive that has not changed is written again after so long, in case a controller that has been
            replaced wrote over it [s].
        at_once: how many machines one call reads, and writes to, at most: a call is bounded.
    """

    look_s: Seconds = _LOOK_S
    beat_s: Seconds = _BEAT_S
    again_s: Seconds = _AGAIN_S
    at_once: int = 32


class MailboxChannel:
    """`ports.Channel` over a run's store; a store that fails is left alone for a while, and never raised to the caller.

    Its calls do what they have to in the caller's thread; `BackgroundChannel` moves them out of the way.
    """

    name = "mailbox"

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        controller: Term,
        machine_ids: Callable[[], Iterable[str]],
        pace: MailPace | None = None,
    ) -> None:
        """Prepare; nothing is read or written yet.

        Args:
            store: of the job's run.
            clock: for the pace.
            controller: term of the controller that speaks.
            machine_ids: says which machines of the job live, at each call.
            pace: how often the store is used.
        """
        self._store, self._clock, self._controller, self._machine_ids = store, clock, controller, machine_ids
        self._pace = pace or MailPace()
        self._read: dict[str, bytes] = {}
        self._looked_at: dict[str, Instant] = {}
        self._written: dict[str, tuple[Directive, Instant]] = {}
        self._counter = 0
        self._beaten_at = _NEVER
        self._failures = 0
        self._rests_until = _NEVER

    def hear(self) -> tuple[Report, ...]:
        """Return the reports that are new, of the machines whose turn it is."""
        alive = tuple(self._machine_ids())
        self._forget(alive)
        now = self._clock.now()
        due = [name for name in alive if now >= self._looked_at.get(name, _NEVER) + self._pace.look_s]
        due.sort(key=lambda name: (self._looked_at.get(name, _NEVER), name))
        found: list[Report] = []
        for name in due[: self._pace.at_once]:
            if not self._works(lambda name=name: self._look(name, found)):  # type: ignore[misc]
                break
        return tuple(found)

    def _look(self, machine_id: str, found: list[Report]) -> None:
        data = self._store.get(report_key(machine_id))
        self._looked_at[machine_id] = self._clock.now()
        if data is None or data == self._read.get(machine_id):
            return
        self._read[machine_id] = data
        report = parse_report(data)
        if report is not None and report.machine_id == machine_id:
            found.append(report)

    def tell(self, directives: dict[str, Directive]) -> None:
        """Write what has changed, and the heartbeat when it is due."""
        now = self._clock.now()
        if now >= self._beaten_at + self._pace.beat_s and self._works(self._beat):
            self._beaten_at = now
        changed = [name for name, told in directives.items() if self._is_news(name, told, now)]
        for name in changed[: self._pace.at_once]:
            if not self._works(lambda name=name: self._write(name, directives[name])):  # type: ignore[misc]
                break

    def _is_news(self, machine_id: str, told: Directive, now: Instant) -> bool:
        written, at = self._written.get(machine_id, (None, _NEVER))
        return told != written or now >= at + self._pace.again_s

    def _write(self, machine_id: str, told: Directive) -> None:
        self._store.put(directive_key(machine_id), codec.sealed(fleet.VERSION, "directive", told))
        self._written[machine_id] = (told, self._clock.now())

    def _beat(self) -> None:
        self._counter += 1
        said = {"v": 1, "term": self._controller, "counter": self._counter}
        self._store.put(CONTROLLER, json.dumps(said).encode())

    def _works(self, action: Callable[[], None]) -> bool:
        """Use the store unless it failed a moment ago; say whether it worked."""
        if self._clock.now() < self._rests_until:
            return False
        try:
            action()
        except StoreError:
            self._failures += 1
            rest_s = min(2.0 ** min(self._failures, 8) / 2, _BACKOFF_S_MAX)
            self._rests_until = Instant(self._clock.now() + rest_s)
            return False
        self._failures = 0
        return True

    def _forget(self, alive: tuple[str, ...]) -> None:
        """Keep nothing of machines that are gone: there may be many in a job's life."""
        for known in (self._read, self._looked_at, self._written):
            for name in known.keys() - set(alive):
                del known[name]


def parse_report(data: bytes) -> Report | None:
    """Return a machine's report; None if it is none that can be read."""
    try:
        report: Report = codec.opened(data, "report", Report, version=fleet.VERSION, what="a report")
    except (ValueError, WindfallError):
        return None
    return report


class BackgroundChannel:
    """Another channel in a thread of its own: `hear` and `tell` never wait, a store's retries delay nobody else."""

    def __init__(
        self, channel: Channel, clock: Clock, *, period_s: Seconds = _PERIOD_S, say: Callable[[str], None] | None = None
    ) -> None:
        """Start the thread.

        Args:
            channel: the one that may block.
            clock: for the pauses.
            period_s: between two uses of it [s].
            say: takes what nobody foresaw; the channel goes on.
        """
        self._say = say
        self.name = channel.name
        self._channel, self._clock, self._period_s = channel, clock, period_s
        self._lock = threading.Lock()
        self._heard: dict[str, Report] = {}
        self._wanted: dict[str, Directive] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._run, name=f"channel-{self.name}", daemon=True).start()

    def hear(self) -> tuple[Report, ...]:
        """Return the newest report of each machine that came since the last call."""
        with self._lock:
            heard, self._heard = self._heard, {}
        return tuple(heard.values())

    def tell(self, directives: dict[str, Directive]) -> None:
        """Make these the newest directives; they leave within a period."""
        with self._lock:
            self._wanted = dict(directives)

    def close(self) -> None:
        """Let the thread end after what it is doing."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                wanted = self._wanted
            try:
                self._channel.tell(wanted)
                heard = self._channel.hear()
            except Exception as error:
                # Whatever lies in the store, the job's machines must go on being heard.
                heard = ()
                if self._say is not None:
                    self._say(f"the {self.name} failed, and goes on: {type(error).__name__}: {error}")
            with self._lock:
                self._heard |= {report.machine_id: report for report in heard}
            self._clock.sleep(self._period_s)
