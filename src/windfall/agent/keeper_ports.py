"""What the keeper of a machine needs from the world: the same keeper runs on machines and, on simulated ports, in storms."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from windfall.core.keeping_facts import KeeperFact, Standing, StartExec, Who
from windfall.events import Fact
from windfall.fleet import Directive, Report
from windfall.ports import Clock, ObjectStore
from windfall.wire.boot import BootData, Claimed

Secrets = tuple[tuple[str, str], ...]
"""Names and values."""
Facts = tuple[KeeperFact, ...]


class Direct(Protocol):
    """The direct way to the controller.  Calls block for a bounded time and may raise `ControllerUnreachable`."""

    def claim(self) -> Claimed:
        """Exchange the one-time credential; a second call of the same machine gets the same answer.

        Raises:
            ControllerError: the controller refuses.
        """
        ...

    def report(self, report: Report) -> Directive | None:
        """Tell, and return what the controller wants; None if it does not know yet.

        Raises:
            ControllerError: the controller refuses.
        """
        ...


class Exec(Protocol):
    """At most one `windfall exec` at a time.  No call blocks."""

    def start(self, boot: BootData, secrets: Secrets, how: StartExec) -> None:
        """Start it."""
        ...

    def tell(self, facts: Sequence[Fact]) -> None:
        """Leave facts for its agent, in place of those before."""
        ...

    def stop(self, *, now: bool) -> None:
        """Ask it to end, after a save or `now`."""
        ...

    def kill(self) -> None:
        """End it and everything below it."""
        ...

    def poll(self) -> int | None:
        """Return the exit code once after its end; None while it runs, and when none was started."""
        ...

    def standing(self) -> Standing | None:
        """Return where the run stands; None as long as this machine does not hold it."""
        ...

    def last_words(self) -> str:
        """Return the last sentence of Windfall's that it printed."""
        ...


class Calls(Protocol):
    """Carries out calls that may block."""

    def start(self, name: str, call: Callable[[], Facts], otherwise: Facts) -> None:
        """Begin a call; `otherwise` is what is known if it fails in a way nobody foresaw."""
        ...

    def ended(self) -> Facts:
        """Return what came of the calls that have ended since the last question."""
        ...


@dataclass(frozen=True, slots=True)
class KeeperPorts:
    """Everything a keeper touches.

    Attributes:
        direct: None where the machine knows no address of its controller.
        store: of the run: the mailbox is in it.
        exec_: the run's agent.
        prepare: brings code and setup in place; raises `WindfallError`: with a `StoreError` it is tried again.
        heard: returns the notices and wishes since the last question.
        calls: for `direct`, `store` and `prepare`.
        power: ends the machine, saying why.
    """

    clock: Clock
    store: ObjectStore
    direct: Direct | None
    exec_: Exec
    prepare: Callable[[BootData, Secrets], None]
    heard: Callable[[], Facts]
    calls: Calls
    power: Callable[[str], None]
    who: Who


class ThreadCalls:
    """`Calls` in a thread each, so that a store that does not answer silences nobody on the direct channel."""

    def __init__(self, wake: Callable[[], None], tell: Callable[[str], None]) -> None:
        """Prepare; `wake` is called at each end, `tell` with errors that nobody foresaw."""
        self._ended: queue.SimpleQueue[Facts] = queue.SimpleQueue()
        self._wake, self._tell = wake, tell

    def start(self, name: str, call: Callable[[], Facts], otherwise: Facts) -> None:
        """Begin a call."""
        threading.Thread(target=self._run, args=(name, call, otherwise), name=f"keeper-{name}", daemon=True).start()

    def _run(self, name: str, call: Callable[[], Facts], otherwise: Facts) -> None:
        try:
            facts = call()
        except Exception as error:
            self._tell(f"{name} failed unexpectedly: {type(error).__name__}: {error}")
            facts = otherwise
        self._ended.put(facts)
        self._wake()

    def ended(self) -> Facts:
        """Return what came of the calls that have ended."""
        found: list[KeeperFact] = []
        while not self._ended.empty():
            found += self._ended.get()
        return tuple(found)
