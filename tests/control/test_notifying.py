"""Notifying users: a real command, a real web server, and no job that blocks the others."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.control.conftest import until
from tests.control.house import a_job
from tests.control.test_running import NoPauses
from tests.support.processes import alive
from windfall.control import notifier as notifier_module
from windfall.control.notifier import Notification, Notifier
from windfall.fleet import Event
from windfall.jobs import Notify


@dataclass
class Hook:
    """A webhook: what was posted to it, and how it answers."""

    url: str = ""
    posted: list[dict[str, str]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    endless: threading.Event | None = None


@contextlib.contextmanager
def listening() -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(hook.statuses.pop(0) if hook.statuses else 200)
            self.end_headers()
            while hook.endless is not None and not hook.endless.wait(0.01):
                with contextlib.suppress(OSError):
                    self.wfile.write(b"x" * 1000)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    hook.url = f"http://127.0.0.1:{server.server_port}/T0KEN"
    try:
        yield hook
    finally:
        if hook.endless is not None:
            hook.endless.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    with listening() as one:
        yield one


@pytest.fixture
def logged() -> list[str]:
    return []


@pytest.fixture
def notifier(logged: list[str]) -> Notifier:
    return Notifier(NoPauses(), logged.append, lambda _: True)


def message(event: Event = Event.DONE, *, command: str | None = None, webhook: str | None = None) -> Notification:
    return Notification(a_job(notify=Notify(command, webhook)), event, "the run is done")


def test_a_command_finds_the_event_in_its_environment_and_nothing_of_the_controller(
    notifier: Notifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only the controller may know stays with it."""
    monkeypatch.setenv("WINDFALL_TOKEN", "wu.secret")
    out = tmp_path / "out"
    notifier.send(message(Event.PREEMPTED, command=f"env | grep ^WINDFALL_ | sort > {out}.part; mv {out}.part {out}"))
    until(out.exists)
    assert out.read_text().splitlines() == [
        "WINDFALL_EVENT=preempted",
        "WINDFALL_JOB=gpt-1",
        "WINDFALL_MESSAGE=the run is done",
        "WINDFALL_NAME=gpt",
        "WINDFALL_RUN=memory://run",
        "WINDFALL_USER=ada",
    ]


def test_a_webhook_is_posted_to_until_it_takes_the_message(notifier: Notifier, hook: Hook, logged: list[str]) -> None:
    """A server that is broken for a moment loses nothing."""
    hook.statuses = [503]
    notifier.send(message(webhook=hook.url))
    until(lambda: len(hook.posted) == 2)
    assert hook.posted[1] == {
        "event": "done", "job": "gpt-1", "name": "gpt", "user": "ada", "run": "memory://run",
        "message": "the run is done",
    }  # fmt: skip
    assert logged == []


def test_a_failing_webhook_is_logged_without_its_address(notifier: Notifier, hook: Hook, logged: list[str]) -> None:
    """Its URL may hold a token; the tries are bounded."""
    hook.statuses = [500] * 9
    notifier.send(message(webhook=hook.url))
    until(lambda: bool(logged))
    assert logged == ["gpt-1: the notification of done by webhook failed: status 500"]
    assert len(hook.posted) == 3


def test_a_failing_command_is_logged_with_the_end_of_its_output(notifier: Notifier, logged: list[str]) -> None:
    """Also where they are no text."""
    notifier.send(message(command="printf '\\377no mail program\\n' >&2; exit 3"))
    until(lambda: bool(logged))
    assert logged == ["gpt-1: the notification of done by command failed: exit code 3: \ufffdno mail program"]


@pytest.mark.parametrize("bad", ["http://[", "http://\u2028/", "nonsense", "command\0"])
def test_no_message_is_the_last_one(notifier: Notifier, hook: Hook, logged: list[str], bad: str) -> None:
    """What one job's owner wrote cannot stop the notifications of the others."""
    notifier.send(message(command=bad) if "\0" in bad else message(webhook=bad))
    notifier.send(message(webhook=hook.url))
    until(lambda: bool(hook.posted))
    assert len(logged) == 1


def test_an_endless_answer_blocks_no_other_notification(notifier: Notifier, hook: Hook) -> None:
    """The status is all that is read of it."""
    with listening() as endless:
        endless.endless = threading.Event()
        notifier.send(message(webhook=endless.url))
        notifier.send(message(webhook=hook.url))
        until(lambda: bool(hook.posted), 10.0)
    assert len(endless.posted) == 1


def test_a_command_that_takes_too_long_ends_with_everything_it_started(
    notifier: Notifier, logged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is left on the controller."""
    monkeypatch.setattr(notifier_module, "_TIMEOUT_S", 0.3)
    monkeypatch.setattr(notifier_module, "_TRIES", 1)
    notifier.send(message(command=f"sleep 1000 & echo $! > {tmp_path}/pid; wait"))
    until(lambda: bool(logged))
    assert logged == ["gpt-1: the notification of done by command failed: timed out after 0.3 s"]
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(pid))


def test_what_a_command_leaves_running_blocks_no_other_notification(notifier: Notifier, hook: Hook) -> None:
    """A program that it put into the background may keep running, and holds no pipe of the controller."""
    notifier.send(message(command="sleep 3 & exit 0"))
    notifier.send(message(webhook=hook.url))
    until(lambda: bool(hook.posted), 2.0)


def test_a_flood_is_dropped_and_logged(logged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Notifying never blocks a job, and the queue has a limit."""
    monkeypatch.setattr(notifier_module, "_QUEUE_MAX", 2)
    started = threading.Event()
    held = threading.Event()

    def hold(_: Notification) -> None:
        started.set()
        assert held.wait(20)

    monkeypatch.setattr(notifier_module, "_run_command", hold)
    notifier = Notifier(NoPauses(), logged.append, lambda _: True)
    notifier.send(message(command="true"))
    assert started.wait(20)
    for _ in range(3):
        notifier.send(message(command="true"))
    held.set()
    assert logged == ["gpt-1: too many notifications are queued; dropped the one of done"]
