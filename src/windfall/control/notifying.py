"""Telling users of what happened, wherever they are: a command on the controller, or a webhook.

Neither may hold up the controller: they run in a thread of their own, with a bound on time and tries, and what went
wrong is said in the controller's log.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from windfall.control.addresses import outside
from windfall.fleet import Event
from windfall.jobs import Job
from windfall.ports import Clock
from windfall.terms import Seconds

_TIMEOUT_S = 30.0
_TRIES = 3
_PAUSE_S = Seconds(2.0)
_WORDS_BYTES = 200
"""How much of what a failing command said is repeated in the log."""
_WAITING_MAX = 1000
"""So many messages wait at most; further ones are dropped with a word."""


@dataclass(frozen=True, slots=True)
class Message:
    """One thing to be told."""

    job: Job
    event: Event
    sentence: str

    def fields(self) -> dict[str, str]:
        """Return what the message says; it carries no secret."""
        return {
            "event": self.event.value,
            "job": self.job.job_id,
            "name": self.job.name,
            "user": self.job.user,
            "run": self.job.run_url,
            "sentence": self.sentence,
        }


class Notifier:
    """A queue of messages and the thread that delivers them."""

    def __init__(self, clock: Clock, say: Callable[[str], None], inside: Callable[[Job], bool]) -> None:
        """Start the thread.

        Args:
            clock: for pauses between tries.
            say: takes what went wrong.
            inside: says whether a job's webhook may lead to this very machine, or to its link.
        """
        self._inside = inside
        self._clock = clock
        self._say = say
        self._queue: queue.Queue[Message] = queue.Queue(_WAITING_MAX)
        threading.Thread(target=self._work, name="notifications", daemon=True).start()

    def tell(self, message: Message) -> None:
        """Queue a message; nothing happens if its job names nobody."""
        if message.job.notify.command is None and message.job.notify.webhook is None:
            return
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            self._say(f"{message.job.job_id}: too many notifications wait; {message.event} is not told")

    def _work(self) -> None:
        while True:
            message = self._queue.get()
            for way, deliver in (("command", _run_command), ("webhook", self._post)):
                try:
                    self._deliver(message, way, deliver)
                except Exception as error:
                    # One job's message must not be the last one of all jobs; the error's words may hold a URL's token.
                    self._say(f"{message.job.job_id}: the notification by {way} failed: {type(error).__name__}")

    def _deliver(self, message: Message, way: str, deliver: Callable[[Message], str | None]) -> None:
        trouble = None
        for _ in range(_TRIES):
            trouble = deliver(message)
            if trouble is None:
                return
            self._clock.sleep(_PAUSE_S)
        self._say(f"{message.job.job_id}: the notification of {message.event} by {way} failed: {trouble}")

    def _post(self, message: Message) -> str | None:
        return _post(message, inside=self._inside(message.job))


def _run_command(message: Message) -> str | None:
    """Run the job's command with the message in its environment; return what went wrong."""
    command = message.job.notify.command
    if command is None:
        return None
    told = {f"WINDFALL_{name.upper()}": value for name, value in message.fields().items()}
    # As the user's own shell would have it, but without what only the controller may know.
    env = {name: value for name, value in os.environ.items() if not name.startswith("WINDFALL_")} | told
    try:
        with tempfile.TemporaryFile() as words:
            code = _finished(subprocess.Popen(
                ["sh", "-c", command], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words,
                start_new_session=True,
            ))  # fmt: skip
            words.seek(max(words.seek(0, os.SEEK_END) - _WORDS_BYTES, 0))
            said = words.read(_WORDS_BYTES).decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        return f"it did not end within {_TIMEOUT_S:g} s"
    except OSError as error:
        return str(error.strerror)
    return None if code == 0 else f"exit code {code}: {said}"


def _finished(process: subprocess.Popen[bytes]) -> int:
    """Return a command's exit code; what takes too long ends, with everything that it started."""
    try:
        return process.wait(_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _post(message: Message, *, inside: bool) -> str | None:
    """Post the message to the job's webhook; return what went wrong, without the URL (it may hold a token)."""
    webhook = message.job.notify.webhook
    if webhook is None:
        return None
    try:
        url, host, named = httpx.URL(webhook), {}, {}
        if not inside:
            # To the address that was checked, whatever the name means a moment later; no proxy looks it up again.
            address = outside(url.host, url.port or (443 if url.scheme == "https" else 80))
            if address is None:
                return (
                    "it leads to the controller's own machine or network: an admin allows that with --webhooks-inside"
                )
            host, named = {"Host": url.netloc.decode()}, {"sni_hostname": url.host}
            url = url.copy_with(host=address)
        # Streamed, since the answer's body is nobody's business, however long it is.
        with (
            httpx.Client(timeout=_TIMEOUT_S, trust_env=inside, follow_redirects=False) as client,
            client.stream(
                "POST",
                url,
                content=json.dumps(message.fields()),
                headers={"Content-Type": "application/json", **host},
                extensions=named,
            ) as answer,
        ):
            return None if answer.is_success else f"status {answer.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return type(error).__name__
