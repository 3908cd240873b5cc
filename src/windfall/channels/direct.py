"""The direct channel: machines call the controller's API and receive their directive in the response.

The machine's end of the direct channel: two requests to the controller's API.  Standard library only.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from windfall import codec
from windfall.errors import ControllerError, ControllerUnreachable, Misuse
from windfall.fleet import Directive, Report
from windfall.terms import Seconds
from windfall.wire.boot_data import ClaimResponse, claimed_from_json


class DirectChannel:
    """`ports.Channel` of one job, between the API's threads, which deliver reports, and the job's loop.

    Args:
        wake: called from an API thread when a report arrives, so that the loop starts its next turn at once.
    """

    name = "direct"

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._undelivered: dict[str, Report] = {}
        self._latest: dict[str, tuple[str, int]] = {}
        self._directives: dict[str, Directive] = {}

    def deliver(self, report: Report) -> Directive | None:
        """Take a machine's report; return its directive, None if it has none yet.

        If reports of the same life of a node agent arrive out of order, the newest is kept; the older one still gets a
        response.
        """
        with self._lock:
            machine_id = report.machine_id
            life, sequence = self._latest.get(machine_id, ("", 0))
            is_new = life != report.incarnation or sequence < report.sequence
            if is_new:
                self._latest[machine_id] = (report.incarnation, report.sequence)
                self._undelivered[machine_id] = report
            directive = self._directives.get(machine_id)
        if is_new:
            self._wake()
        return directive

    def receive(self) -> tuple[Report, ...]:
        """Return the newest report of each machine that came since the last call."""
        with self._lock:
            received, self._undelivered = self._undelivered, {}
        return tuple(received.values())

    def send(self, directives: dict[str, Directive]) -> None:
        """Replace all directives; machines without one are forgotten."""
        with self._lock:
            gone = self._directives.keys() - directives.keys()
            self._directives = dict(directives)
            for machine_id in gone:
                self._latest.pop(machine_id, None)


REQUEST_S = Seconds(5.0)
"""Limit on each wait of a request [s]."""
_BODY_BYTES_MAX = 4 << 20
_CLAIM = "/v1/machines/claim"


class DirectReporter:
    """Claims the job once, then reports with this machine's token.  One call at a time.

    The environment's proxies are not used, because the controller chose an address that its machines can reach.
    """

    def __init__(self, base_url: str, machine_id: str, credential: str, boot_id: str) -> None:
        """Prepare; nothing is sent yet.

        Args:
            base_url: of the controller.
            machine_id: as its provider names this machine.
            credential: one-time.
            boot_id: identifies this boot, so that a claim can be repeated if its response was lost.

        Raises:
            Misuse: the address is not `http://host[:port]` or `https://host[:port]`.
        """
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Misuse(f"the controller's address {base_url!r} is not an http:// or https:// URL")
        self._secure = parts.scheme == "https"
        self._host, self._port, self._base = parts.hostname, parts.port, parts.path.rstrip("/")
        self._where = f"{parts.scheme}://{parts.netloc}"
        self._machine_id, self._credential, self._boot_id = machine_id, credential, boot_id
        self._token: str | None = None

    def claim(self) -> ClaimResponse:
        """Exchange the credential for a token and the job.

        Raises:
            ControllerUnreachable: no usable response.
            ControllerError: the controller refuses.
        """
        request = {"machine_id": self._machine_id, "credential": self._credential, "boot_id": self._boot_id}
        status, content = self._post(_CLAIM, request)
        if status != 200:
            raise ControllerError(_refusal(self._where, status, content))
        claimed = claimed_from_json(content)
        self._token = claimed.token
        return claimed

    def report(self, report: Report) -> Directive | None:
        """Send a report; return the controller's directive, None if it has none yet.

        Raises:
            ControllerUnreachable: no usable response.
            ControllerError: the controller refuses.
        """
        path = f"/v1/machines/{quote(self._machine_id, safe='')}/report"
        status, content = self._post(path, codec.encode(report))
        if status == 204:
            return None
        if status != 200:
            raise ControllerError(_refusal(self._where, status, content))
        try:
            directive: Directive = codec.decode(content, Directive)
        except ValueError as error:
            raise ControllerUnreachable(f"invalid response from {self._where}: {error}") from error
        return directive

    def _post(self, path: str, body: object) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        maker = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = maker(self._host, self._port, timeout=REQUEST_S)
        try:
            connection.request("POST", self._base + path, json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read(_BODY_BYTES_MAX)
            status = response.status
        except (OSError, http.client.HTTPException) as error:
            raise ControllerUnreachable(f"cannot reach the controller at {self._where}: {error}") from error
        finally:
            connection.close()
        if status >= 500:
            raise ControllerUnreachable(f"the controller at {self._where} responded with status {status}")
        try:
            return status, codec.parse(data) if data else None
        except ValueError as error:
            raise ControllerUnreachable(f"{self._where} is not a controller: its response is not JSON") from error


def _refusal(where: str, status: int, content: object) -> str:
    reason = content.get("error") if isinstance(content, dict) else None
    return f"the controller at {where} refused this machine ({status}{f': {reason}' if reason else ''})"
