"""One request to a metadata service: no proxy, no redirect, limited in time and size, interruptible at any moment.

`urllib` would send link-local requests to `http_proxy`, and its time limit applies to each read, so a service that sends
one byte at a time would block the caller forever.  Here the limit applies to the whole exchange.

What the metadata sources share: deduplication, deadlines on this machine's clock, bounded waits.
"""

from __future__ import annotations

import errno
import http.client
import io
import os
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from windfall.notices.signals import SLICE_S
from windfall.ports import Clock
from windfall.structs import Struct
from windfall.terms import Instant, Notice, NoticeLevel, Seconds
from windfall.wire.notice_formats import CloudNotice

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BODY_BYTES_MAX = 1 << 20


class MetadataUnavailable(Exception):
    """No usable response: the service is unreachable, too slow or broken, or the caller was stopped."""


class MetadataResponse(Struct, frozen=True):
    """A whole HTTP response; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def fetch(
    url: str,
    *,
    clock: Clock,
    timeout_s: Seconds,
    stopped: Callable[[], bool],
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> MetadataResponse:
    """Send one request and return the whole response.

    Args:
        url: `http://host[:port]/path[?query]`.
        clock: measures `timeout_s`.
        timeout_s: limit on the whole exchange, including the connection [s].
        stopped: called at least every `SLICE_S`; once true, the request is abandoned.
        method: the HTTP method.
        headers: request headers.
        body: request body.

    Raises:
        MetadataUnavailable: there is no whole response, for whatever reason.
    """
    parts = urlsplit(url)
    until = clock.now() + timeout_s

    def check() -> None:
        if stopped():
            raise MetadataUnavailable("stopped")
        if clock.now() >= until:
            raise MetadataUnavailable(f"no response from {parts.netloc} within {timeout_s:g} s")

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
        raise MetadataUnavailable(f"{parts.netloc}: {error!r}") from error


def _response(sock: socket.socket, method: str, check: Callable[[], None]) -> MetadataResponse:
    response = http.client.HTTPResponse(_CheckedSocket(sock, check), method=method)  # type: ignore[arg-type]
    with response:
        response.begin()
        body = response.read(BODY_BYTES_MAX + 1)
        if len(body) > BODY_BYTES_MAX:
            raise MetadataUnavailable(f"the response has more than {BODY_BYTES_MAX} bytes")
        if response.length:
            raise MetadataUnavailable("the response is incomplete")
        return MetadataResponse(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


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


class _CheckedSocket(io.RawIOBase):
    """The incoming side of a socket for `http.client`, with a check whether to continue between waits."""

    def __init__(self, sock: socket.socket, check: Callable[[], None]) -> None:
        self._sock, self._check = sock, check

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        _wait(self._sock, select.POLLIN, self._check)
        return self._sock.recv_into(buffer)


CLOCK_ERROR_S = Seconds(1.0)
"""Default allowance for the difference between the cloud's clock and this machine's; documents have whole seconds [s]."""
POLL_S = Seconds(1.0)
"""Default time between two polls [s]."""
BACKOFF_S_MAX = Seconds(5.0)
"""Longest wait after failed requests: a sixth of the shortest notice (30 s) [s]."""
DEADLINE_FAR_S = Seconds(86_400.0)
"""If a deadline is further away than this, before or after now, one of the two clocks is wrong [s]."""
DEADLINE_MOVED_S = Seconds(0.5)
"""Two readings that differ by less are the same deadline, because documents have whole seconds [s]."""


class NoticeDeduplicator:
    """The current notices of one path; delivers each change once."""

    def __init__(self, source: str, clock: Clock, margin_s: Seconds, deliver: Callable[[Notice], None]) -> None:
        self._source, self._clock, self._margin_s, self._deliver = source, clock, margin_s, deliver
        self._reported: dict[str, Notice] = {}

    def observe(self, current: Sequence[CloudNotice], *, default_deadline: Instant) -> None:
        """Compare a document with the previous one and deliver the changes, withdrawals first.

        A deadline is translated in every call, so that a step of the wall clock corrects it.

        Args:
            current: all notices of the path now; notices that are missing are withdrawn.
            default_deadline: for an announcement without a deadline; of several values the earliest counts.
        """
        now = {notice.notice_id: self._translate(notice, default_deadline) for notice in current}
        for notice_id in [known for known in self._reported if known not in now]:
            del self._reported[notice_id]
            self._deliver(Notice(NoticeLevel.WITHDRAWN, self._source, notice_id))
        for notice_id, notice in now.items():
            if not _same(self._reported.get(notice_id), notice):
                self._reported[notice_id] = notice
                self._deliver(notice)

    def _translate(self, notice: CloudNotice, default_deadline: Instant) -> Notice:
        before = self._reported.get(notice.notice_id)
        if notice.level is NoticeLevel.HINT:
            return self._hint(notice, before)
        if notice.deadline is None:
            deadline = default_deadline - self._margin_s
            if before is not None and before.deadline is not None:
                deadline = min(deadline, before.deadline)
            return self._announced(notice, deadline)
        left_s = notice.deadline - self._clock.wall_time()
        if abs(left_s) > DEADLINE_FAR_S:
            return self._hint(notice, before)
        return self._announced(notice, self._clock.now() + left_s - self._margin_s)

    def _announced(self, notice: CloudNotice, deadline: float) -> Notice:
        return Notice(NoticeLevel.ANNOUNCED, self._source, notice.notice_id, Instant(deadline))

    def _hint(self, notice: CloudNotice, before: Notice | None) -> Notice:
        # An announced event whose document has become invalid is still announced.
        return before or Notice(NoticeLevel.HINT, self._source, notice.notice_id)


def _same(before: Notice | None, notice: Notice) -> bool:
    if before is None or before.level is not notice.level:
        return False
    if before.deadline is None or notice.deadline is None:
        return before.deadline == notice.deadline
    return abs(before.deadline - notice.deadline) < DEADLINE_MOVED_S


def pause(clock: Clock, until: Instant, stopped: Callable[[], bool]) -> None:
    """Sleep until an instant, or until stopped."""
    while not stopped() and (left_s := until - clock.now()) > 0:
        clock.sleep(Seconds(min(left_s, SLICE_S)))


def backoff_s(poll_s: Seconds, failures: int) -> Seconds:
    """Return the time from one request to the next after this many failures in a row [s]."""
    return Seconds(max(poll_s, min(BACKOFF_S_MAX, poll_s * 2 ** min(failures, 16))))
