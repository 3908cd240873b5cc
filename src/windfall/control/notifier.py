"""Notifies users of a job's events by a command on the controller or by a webhook.

Neither may block the controller: they run in their own thread, with limits on time and tries, and failures go to the
controller's log.

Checks a user's webhook addresses: none may be reachable only from the controller's own machine.

The name is resolved once, all its addresses are checked, and the connection goes to an address that was checked, so that
a name that resolves differently a moment later changes nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import queue
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable

import httpx

from windfall.fleet import Event
from windfall.jobs import Job
from windfall.ports import Clock
from windfall.structs import Struct
from windfall.terms import Seconds

_INSIDE = tuple(
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16/32",  # Azure's host, which hands out a virtual machine's goal state
        "100.100.100.200/32",  # Alibaba's metadata
        "192.0.0.192/32",  # Oracle's metadata
        "fd00:ec2::/32",  # Amazon's metadata and time over IPv6
        "0.0.0.0/8",
        "::/128",
    )
)
_EMBEDDED = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96"))
"""IPv6 prefixes whose last 32 bits are an IPv4 address."""


def inside(address: str) -> bool:
    """Return whether an address is this machine, its link, or a cloud's metadata service."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        other = found.ipv4_mapped or found.sixtofour
        for network in _EMBEDDED:
            if found in network:
                other = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if other is not None and not found.is_loopback and not found.is_unspecified:
            return inside(str(other))
    special = (
        found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved
    )
    return special or any(found.version == network.version and found in network for network in _INSIDE)


def outside(host: str, port: int) -> str | None:
    """Return an address of a host that a webhook may use; None if any of its addresses is `inside`.

    Raises:
        OSError: the host cannot be resolved.
    """
    found = [str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    return None if any(inside(address) for address in found) else found[0]


_TIMEOUT_S = 30.0
_TRIES = 3
_PAUSE_S = Seconds(2.0)
_OUTPUT_BYTES = 200
"""How much of a failing command's error output is logged."""
_QUEUE_MAX = 1000
"""Most notifications that wait; more are dropped, and the drop is logged."""


class Notification(Struct, frozen=True):
    """One event of a job for its user."""

    job: Job
    event: Event
    message: str

    def fields(self) -> dict[str, str]:
        """Return the notification's content; it holds no secret."""
        return {
            "event": self.event.value,
            "job": self.job.job_id,
            "name": self.job.name,
            "user": self.job.user,
            "run": self.job.run_url,
            "message": self.message,
        }


class Notifier:
    """A queue of notifications and the thread that delivers them."""

    def __init__(self, clock: Clock, log: Callable[[str], None], inside: Callable[[Job], bool]) -> None:
        """Start the thread.

        Args:
            clock: for pauses between tries.
            log: receives failures.
            inside: returns whether a job's webhook may lead to this machine or its link.
        """
        self._inside = inside
        self._clock = clock
        self._log = log
        self._queue: queue.Queue[Notification] = queue.Queue(_QUEUE_MAX)
        threading.Thread(target=self._work, name="notifications", daemon=True).start()

    def send(self, notification: Notification) -> None:
        """Queue a notification; do nothing if its job has neither command nor webhook."""
        if notification.job.notify.command is None and notification.job.notify.webhook is None:
            return
        try:
            self._queue.put_nowait(notification)
        except queue.Full:
            self._log(
                f"{notification.job.job_id}: too many notifications are queued; dropped the one of {notification.event}"
            )

    def _work(self) -> None:
        while True:
            notification = self._queue.get()
            for channel, deliver in (("command", _run_command), ("webhook", self._post)):
                try:
                    self._deliver(notification, channel, deliver)
                except Exception as error:
                    # One job's failure must not stop the notifications of all; the error's text may hold a URL's token.
                    self._log(
                        f"{notification.job.job_id}: the notification by {channel} failed: {type(error).__name__}"
                    )

    def _deliver(self, notification: Notification, channel: str, deliver: Callable[[Notification], str | None]) -> None:
        failure = None
        for _ in range(_TRIES):
            failure = deliver(notification)
            if failure is None:
                return
            self._clock.sleep(_PAUSE_S)
        self._log(f"{notification.job.job_id}: the notification of {notification.event} by {channel} failed: {failure}")

    def _post(self, notification: Notification) -> str | None:
        return _post(notification, inside=self._inside(notification.job))


def _run_command(notification: Notification) -> str | None:
    """Run the job's command with the notification in its environment; return the failure, None on success."""
    command = notification.job.notify.command
    if command is None:
        return None
    variables = {f"WINDFALL_{name.upper()}": value for name, value in notification.fields().items()}
    # The user's own environment, without the controller's variables.
    env = {name: value for name, value in os.environ.items() if not name.startswith("WINDFALL_")} | variables
    try:
        with tempfile.TemporaryFile() as stderr:
            code = _wait_for(subprocess.Popen(
                ["sh", "-c", command], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
                start_new_session=True,
            ))  # fmt: skip
            stderr.seek(max(stderr.seek(0, os.SEEK_END) - _OUTPUT_BYTES, 0))
            output = stderr.read(_OUTPUT_BYTES).decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        return f"timed out after {_TIMEOUT_S:g} s"
    except OSError as error:
        return str(error.strerror)
    return None if code == 0 else f"exit code {code}: {output}"


def _wait_for(process: subprocess.Popen[bytes]) -> int:
    """Return a command's exit code; after the timeout kill it with everything it started."""
    try:
        return process.wait(_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _post(notification: Notification, *, inside: bool) -> str | None:
    """Post the notification to the job's webhook; return the failure without the URL (it may hold a token)."""
    webhook = notification.job.notify.webhook
    if webhook is None:
        return None
    try:
        url, host, named = httpx.URL(webhook), {}, {}
        if not inside:
            # To the checked address, even if the name resolves differently later; no proxy resolves it again.
            address = outside(url.host, url.port or (443 if url.scheme == "https" else 80))
            if address is None:
                return "it leads to the controller's own machine or network: an admin can allow that with --webhooks-inside"
            host, named = {"Host": url.netloc.decode()}, {"sni_hostname": url.host}
            url = url.copy_with(host=address)
        # Streamed, so that the answer's body, however long, is not read.
        with (
            httpx.Client(timeout=_TIMEOUT_S, trust_env=inside, follow_redirects=False) as client,
            client.stream(
                "POST",
                url,
                content=json.dumps(notification.fields()),
                headers={"Content-Type": "application/json", **host},
                extensions=named,
            ) as answer,
        ):
            return None if answer.is_success else f"status {answer.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return type(error).__name__
