"""One request to a metadata service: no proxy, no redirect, bounded in time and size, interruptible at any moment.

`urllib` would send link-local requests to `http_proxy`, and its time limit is one per read: a service that answers a
byte at a time would hold the caller for ever.  Here the limit is on the whole exchange.
"""

from __future__ import annotations

import errno
import http.client
import io
import os
import select
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from windfall.ports import Clock
from windfall.terms import Seconds

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BODY_BYTES_MAX = 1 << 20
SLICE_S = Seconds(0.05)
"""How long a wait may go without asking whether it was stopped [s]."""


class NoAnswer(Exception):
    """The service gave no usable answer: unreachable, too slow, too long, broken, or the caller was stopped."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP response; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(
    url: str,
    *,
    clock: Clock,
    timeout_s: Seconds,
    stopped: Callable[[], bool],
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Answer:
    """Send one request and return the whole answer.

    Args:
        url: `http://host[:port]/path[?query]`.
        clock: measures `timeout_s`.
        timeout_s: limit on the whole exchange, connecting included [s].
        stopped: asked at least every `SLICE_S`; once true the request is given up.
        method: the HTTP method.
        headers: request headers.
        body: request body.

    Raises:
        NoAnswer: for every reason for which there is no whole answer.
    """
    parts = urlsplit(url)
    until = clock.now() + timeout_s

    def check() -> None:
        if stopped():
            raise NoAnswer("stopped")
        if clock.now() >= until:
            raise NoAnswer(f"no answer from {parts.netloc} within {timeout_s:g} s")

    host, port = parts.hostname or "", parts.port or 80
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    try:
        with _connected(host, port, check) as sock:
            sock.settimeout(timeout_s)
            connection = http.client.HTTPConnection(host, port)
            connection.sock = sock
            connection.request(method, target, body=body, headers={**(headers or {}), "Connection": "close"})
            return _response(sock, method, check)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(f"{parts.netloc}: {error!r}") from error


def _response(sock: socket.socket, method: str, check: Callable[[], None]) -> Answer:
    response = http.client.HTTPResponse(_Patient(sock, check), method=method)  # type: ignore[arg-type]
    with response:
        response.begin()
        body = response.read(BODY_BYTES_MAX + 1)
        if len(body) > BODY_BYTES_MAX:
            raise NoAnswer(f"an answer of more than {BODY_BYTES_MAX} bytes")
        if response.length:
            raise NoAnswer("the answer broke off")
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


def _connected(host: str, port: int, check: Callable[[], None]) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        status = sock.connect_ex(address)
        if status == errno.EINPROGRESS:
            _wait(sock, select.POLLOUT, check)
            status = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if status:
            raise OSError(status, os.strerror(status))
    except BaseException:
        sock.close()
        raise
    return sock


def _wait(sock: socket.socket, event: int, check: Callable[[], None]) -> None:
    poller = select.poll()
    poller.register(sock, event)
    check()
    while not poller.poll(SLICE_S * 1000):
        check()


class _Patient(io.RawIOBase):
    """A socket's incoming side as `http.client` reads it, checking between waits whether to go on."""

    def __init__(self, sock: socket.socket, check: Callable[[], None]) -> None:
        self._sock, self._check = sock, check

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        _wait(self._sock, select.POLLIN, self._check)
        return self._sock.recv_into(buffer)
