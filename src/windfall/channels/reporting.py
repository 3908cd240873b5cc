"""The machine's end of the direct channel: two requests to the controller's API, standard library alone."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

from windfall import codec
from windfall.errors import ControllerError, ControllerUnreachable, Misuse
from windfall.fleet import Directive, Report
from windfall.terms import Seconds
from windfall.wire.boot import Claimed, claimed_from_json

REQUEST_S = Seconds(5.0)
"""Limit on each wait within a request [s]."""
_BODY_BYTES_MAX = 4 << 20
_CLAIM = "/v1/machines/claim"


class DirectReporter:
    """Claims once, then reports with the token of this machine.  One call at a time.

    Proxies of the environment are not used: the address is what the controller said that machines reach it by.
    """

    def __init__(self, base_url: str, machine_id: str, credential: str, boot_id: str) -> None:
        """Prepare; nothing is sent yet.

        Args:
            base_url: of the controller.
            machine_id: as its provider names this machine.
            credential: one-time.
            boot_id: names this boot of it, so that a claim whose answer was lost may be repeated.

        Raises:
            Misuse: the address is not `http://host[:port]` or `https://host[:port]`.
        """
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Misuse(f"the controller's address {base_url!r} is no http:// or https:// URL")
        self._secure = parts.scheme == "https"
        self._host, self._port, self._base = parts.hostname, parts.port, parts.path.rstrip("/")
        self._where = f"{parts.scheme}://{parts.netloc}"
        self._machine_id, self._credential, self._boot_id = machine_id, credential, boot_id
        self._token: str | None = None

    def claim(self) -> Claimed:
        """Exchange the credential for a token and the job.

        Raises:
            ControllerUnreachable: nothing (usable) answers.
            ControllerError: the controller refuses.
        """
        wish = {"machine_id": self._machine_id, "credential": self._credential, "boot_id": self._boot_id}
        status, said = self._post(_CLAIM, wish)
        if status != 200:
            raise ControllerError(_refusal(self._where, status, said))
        claimed = claimed_from_json(said)
        self._token = claimed.token
        return claimed

    def report(self, report: Report) -> Directive | None:
        """Tell how this machine is; return what it shall do.

        Raises:
            ControllerUnreachable: nothing (usable) answers.
            ControllerError: the controller refuses.
        """
        path = f"/v1/machines/{quote(self._machine_id, safe='')}/report"
        status, said = self._post(path, codec.encode(report))
        if status == 204:
            return None
        if status != 200:
            raise ControllerError(_refusal(self._where, status, said))
        try:
            told: Directive = codec.decode(said, Directive)
        except ValueError as error:
            raise ControllerUnreachable(f"what answers at {self._where} is not understood: {error}") from error
        return told

    def _post(self, path: str, body: object) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        maker = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = maker(self._host, self._port, timeout=REQUEST_S)
        try:
            connection.request("POST", self._base + path, json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read(_BODY_BYTES_MAX)
            status = answer.status
        except (OSError, http.client.HTTPException) as error:
            raise ControllerUnreachable(f"no controller answers at {self._where}: {error}") from error
        finally:
            connection.close()
        if status >= 500:
            raise ControllerUnreachable(f"the controller at {self._where} answers with {status}")
        try:
            return status, codec.parse(data) if data else None
        except ValueError as error:
            raise ControllerUnreachable(f"what answers at {self._where} is not a controller") from error


def _refusal(where: str, status: int, said: object) -> str:
    reason = said.get("error") if isinstance(said, dict) else None
    return f"the controller at {where} refuses this machine ({status}{f': {reason}' if reason else ''})"
