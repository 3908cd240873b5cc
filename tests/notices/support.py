"""What the notice tests share: a watched source, a service that can be made to fail, and a rig for each format."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from windfall.linux.clock import SystemClock
from windfall.notices.aws import AwsNotices
from windfall.notices.azure import AzureNotices
from windfall.notices.google import GoogleNotices
from windfall.ports import NoticeSource
from windfall.terms import Notice, NoticeLevel, Seconds
from windfall.wire.metadata_server import MetadataServer, serve

CLOCK = SystemClock()
PATIENCE_S = 10.0
POLL_S = Seconds(0.05)
NOTICE_S = 30.0
FORMATS = ("aws", "google", "azure")


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds; fail, naming it, when it does not within `PATIENCE_S`."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.002)


class Front(ThreadingHTTPServer):
    """Passes requests on to a metadata service, or fails as real ones do, by `mode`.

    Modes: `pass`, `500`, `404`, `garbage` (a page of HTML), `stall` (no answer), `drip` (a byte at a time for ever),
    `short` (the connection breaks inside the body), `flood` (an endless body), `hang-up`, `impatient` (long polls are
    answered at once), `nameless` (the machine's name is not told), `misnamed` (an error page in its place), `crowd`
    (every event lists a second machine).
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, back_url: str) -> None:
        super().__init__(("127.0.0.1", 0), _FrontHandler)
        self.back_url, self.mode, self.requests = back_url, "pass", 0
        self.closed = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay quiet: clients that give up are the subject here."""

    def fail_for(self, mode: str, requests: int) -> None:
        """Fail in this way until so many further requests have come."""
        self.mode = mode
        seen = self.requests
        eventually(lambda: self.requests >= seen + requests, f"{requests} requests in mode {mode}")


class _FrontHandler(BaseHTTPRequestHandler):
    server: Front

    def _handle(self) -> None:
        self.server.requests += 1
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        mode = self.server.mode
        if mode in ("pass", "impatient", "crowd") or (
            mode in ("nameless", "misnamed") and "compute/name" not in self.path
        ):
            self._pass_on(body)
        elif mode in ("500", "404", "nameless"):
            self.send_error(500 if mode == "nameless" else int(mode))
        elif mode in ("garbage", "misnamed"):
            self._send(200, {"ETag": "x"}, b'<html>{"Events": [{"action": TRUE</html>')
        elif mode == "stall":
            self.server.closed.wait(60)
        elif mode == "short":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nTRUE")
        elif mode in ("drip", "flood"):
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while not self.server.closed.wait(0.01 if mode == "drip" else 0):
                self.wfile.write(b" " if mode == "drip" else b" " * 65536)

    def _pass_on(self, body: bytes) -> None:
        parts = urlsplit(self.server.back_url)
        back = http.client.HTTPConnection(parts.hostname, parts.port, timeout=90)
        path = self.path.split("?wait_for_change")[0] if self.server.mode == "impatient" else self.path
        try:
            back.request(self.command, path, body=body or None, headers=dict(self.headers.items()))
            answer = back.getresponse()
            content = answer.read()
            if self.server.mode == "crowd":
                content = content.replace(b'"Resources": [', b'"Resources": ["another-vm", ')
            headers = {name: value for name, value in answer.getheaders() if name != "Content-Length"}
            self._send(answer.status, headers, content)
        finally:
            back.close()

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = _handle  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


class Watch:
    """A source at work in its thread, with what it delivered and when."""

    def __init__(self, source: NoticeSource) -> None:
        self.source = source
        self.notices: list[Notice] = []
        self.at: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=source.watch, args=(self._deliver, self._stop.is_set))

    def _deliver(self, notice: Notice) -> None:
        self.at.append(CLOCK.now())
        self.notices.append(notice)

    def start(self) -> Watch:
        """Start the source's thread; `stop` ends it."""
        self._thread.start()
        return self

    def __enter__(self) -> Watch:
        return self.start()

    def __exit__(self, *_: object) -> None:
        assert self._thread.is_alive(), "the source died"
        assert self.stop() < 1.0, "the source did not stop"

    def stop(self) -> float:
        """Stop the source; return how long it took [s]."""
        started = time.monotonic()
        self._stop.set()
        self._thread.join(PATIENCE_S)
        return time.monotonic() - started

    def wait_for(self, count: int) -> list[Notice]:
        """Wait for this many notices and return all."""
        eventually(lambda: len(self.notices) >= count, f"{count} notices, have {self.notices}")
        return self.notices

    @property
    def levels(self) -> list[NoticeLevel]:
        """The levels of what was delivered, in order."""
        return [notice.level for notice in self.notices]


@dataclass
class Rig:
    """A format's service, the front before it, and the source that reads it."""

    provider: str
    server: MetadataServer
    front: Front
    source: NoticeSource

    def more_polls(self, count: int = 0) -> None:
        """Let the source ask this many more times, by default until each of its paths was asked again."""
        count = count or {"aws": 4, "google": 2, "azure": 3}[self.provider]
        seen = self.front.requests
        eventually(lambda: self.front.requests >= seen + count, f"{count} more requests")

    def announce(self, notice_s: float = NOTICE_S) -> float:
        """Announce the end; return its deadline on this machine's monotonic clock."""
        deadline = self.server.announce(notice_s)
        now, wall_time = CLOCK.now(), CLOCK.wall_time()
        return now + notice_s if self.provider == "google" else now + deadline - wall_time


def make_source(provider: str, url: str, poll_s: Seconds = POLL_S, notice_s: float = NOTICE_S) -> NoticeSource:
    """A source without an allowance for the clock's error, so that deadlines can be compared."""
    none = Seconds(0.0)
    if provider == "aws":
        return AwsNotices(CLOCK, url, poll_s=poll_s, margin_s=none)
    if provider == "google":
        return GoogleNotices(CLOCK, url, poll_s=poll_s, margin_s=none, wait_s=1, notice_s=Seconds(notice_s))
    return AzureNotices(CLOCK, url, poll_s=poll_s, margin_s=none)


@contextlib.contextmanager
def rig(provider: str, poll_s: Seconds = POLL_S) -> Iterator[Rig]:
    """Start a service and a front; nothing watches yet."""
    with serve([], provider, now=CLOCK.wall_time) as server, Front(server.url) as front:
        yield Rig(provider, server, front, make_source(provider, front.url, poll_s))
