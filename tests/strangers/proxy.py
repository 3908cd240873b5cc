"""A proxy before a store that speaks HTTP, which does to its connections what networks and stores do: by plan, or by seed.

    with proxy(endpoint) as between:
        between.plan(Rule("reset after", "PUT", "log/00000002"))
        ...  # whatever reaches the store by `between.endpoint`

A rule hits the requests whose method and path it names, from the `skip`-th on, `times` of them.  A seed (`between.storm`)
draws a fault for each request with a given chance.  `between.hits` says what was done to whom.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

FAULTS = (
    "reset before",  # the connection is reset when the request's head has come: nothing reached the store
    "reset in",  # half of the request's body was read, then the reset: nothing reached the store
    "reset after",  # the store did what it was asked, its reply is lost
    "cut",  # the store did it, half of its reply's body comes
    "500",  # not carried out
    "503",
    "500 after",  # carried out, and answered with 500 all the same
    "404 cut",  # not carried out: a 404 of which half the body comes
    "slow",  # the reply takes `seconds` longer
    "refuse",  # this request is reset, and nobody listens for `seconds`
)
WORDS = {500: b"InternalError", 503: b"SlowDown", 404: b"NoSuchKey"}
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends a reset and not an end of file."""


@dataclass
class Rule:
    """One fault for some requests.

    Attributes:
        fault: one of `FAULTS`.
        method: of the requests it hits; empty for all.
        path: a regular expression that is searched in the path (bucket and key, as it is meant, without the query).
        times: how many requests it hits; 0 for all that come.
        skip: how many that fit pass before it begins.
        seconds: of "slow" and "refuse".
    """

    fault: str
    method: str = ""
    path: str = ""
    times: int = 1
    skip: int = 0
    seconds: float = 1.0
    hits: int = 0
    _passed: int = 0

    def __post_init__(self) -> None:
        assert self.fault in FAULTS, f"{self.fault!r} is none of {FAULTS}"

    def strikes(self, method: str, path: str) -> bool:
        """Say whether this request is hit, and count it."""
        if (self.method and method != self.method) or not re.search(self.path, path):
            return False
        if self._passed < self.skip:
            self._passed += 1
            return False
        if self.times and self.hits >= self.times:
            return False
        self.hits += 1
        return True


@dataclass
class Proxy:
    """What stands between; made by `proxy`."""

    upstream: str
    port: int = 0
    hits: list[tuple[str, str, str]] = field(default_factory=list)
    """(fault, method, path) of each request that was hit, in order."""
    seen: list[tuple[str, str]] = field(default_factory=list)
    """(method, path) of all requests."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._storm: tuple[random.Random, float, tuple[str, ...], float] | None = None
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._closed = False
        self._listen()

    @property
    def endpoint(self) -> str:
        """Where the product is sent."""
        return f"http://127.0.0.1:{self.port}"

    def plan(self, *rules: Rule) -> None:
        """Add rules; the first that fits a request decides."""
        with self._lock:
            self._rules.extend(rules)

    def storm(self, seed: int, chance: float, *, faults: tuple[str, ...] = FAULTS, seconds: float = 1.0) -> None:
        """Draw a fault for each request from now on, until `calm`."""
        with self._lock:
            self._storm = random.Random(seed), chance, faults, seconds

    def calm(self) -> None:
        """Do nothing more to anybody."""
        with self._lock:
            self._rules, self._storm = [], None

    def refuse(self, seconds: float) -> None:
        """Let nobody listen for some time; connections that are open are reset."""
        with self._lock:
            listener, self._listener = self._listener, None
            left, self._open = self._open, set()
        if listener is None:
            return
        # A thread in accept() keeps the port: it is woken before the socket is closed.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in left:
            _reset(connection)
        threading.Timer(seconds, self._listen).start()

    def close(self) -> None:
        """End it for good."""
        self._closed = True
        self.refuse(0.0)

    # ------------------------------------------------------------------------------------------------- the connections

    def _listen(self) -> None:
        if self._closed:
            return
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for _ in range(200):
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", self.port))
                break
            time.sleep(0.05)
        listener.listen(64)
        self.port, self._listener = listener.getsockname()[1], listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, address = listener.accept()
                with self._lock:
                    self._open.add(connection)
                threading.Thread(target=self._serve, args=(connection, address), daemon=True).start()

    def _serve(self, connection: socket.socket, address: tuple[str, int]) -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            _Handler(connection, address, self)
        with self._lock:
            self._open.discard(connection)
        with contextlib.suppress(OSError):
            connection.close()

    def fault_for(self, method: str, path: str) -> tuple[str, float]:
        """Return what is done to a request, empty for nothing, and the seconds that belong to it."""
        with self._lock:
            self.seen.append((method, path))
            rule = next((rule for rule in self._rules if rule.strikes(method, path)), None)
            found = ("", 0.0) if rule is None else (rule.fault, rule.seconds)
            if rule is None and self._storm is not None:
                rng, chance, faults, seconds = self._storm
                if rng.random() < chance:
                    found = (rng.choice(faults), rng.uniform(0.0, seconds))
            if found[0]:
                self.hits.append((found[0], method, path))
            return found


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection: each request is read, passed on, and answered, as far as its fault allows."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Proxy  # type: ignore[assignment]

    def log_message(self, *_: object) -> None:
        """`Proxy.seen` tells."""

    def _pass_on(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        fault, seconds = self.server.fault_for(self.command, unquote(urlsplit(self.path).path))
        if fault in ("reset before", "refuse"):
            self._reset()
            if fault == "refuse":
                self.server.refuse(seconds)
            return
        body = self.rfile.read(length // 2 if fault == "reset in" else length)
        if fault == "reset in":
            self._reset()
        elif fault in ("500", "503", "404 cut"):
            status = int(fault[:3])
            data = b"<Error><Code>%s</Code><Message>%s</Message></Error>" % (WORDS[status], b"by plan " * 40)
            self._answer(status, [("Content-Type", "application/xml")], data, cut=fault.endswith("cut"))
        else:
            self._forward(body, fault, seconds)

    def _forward(self, body: bytes, fault: str, seconds: float) -> None:
        upstream = urlsplit(self.server.upstream)
        inner = http.client.HTTPConnection(upstream.hostname or "", upstream.port, timeout=60)
        try:
            inner.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                inner.putheader(name, value)
            inner.endheaders(body)
            reply = inner.getresponse()
            data = reply.read()
        finally:
            inner.close()
        if fault == "reset after":
            self._reset()
            return
        if fault == "slow":
            time.sleep(seconds)
        if fault == "500 after":
            self._answer(500, [("Content-Type", "application/xml")], b"<Error><Code>InternalError</Code></Error>")
            return
        skipped = ("content-length", "connection", "transfer-encoding", "keep-alive")
        headers = [(name, value) for name, value in reply.getheaders() if name.lower() not in skipped]
        length = reply.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(reply.status, headers, data, cut=fault == "cut", length=length)

    def _answer(
        self, status: int, headers: list[tuple[str, str]], data: bytes, *, cut: bool = False, length: str | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            # What was written arrives; what is missing never does.
            self.wfile.flush()
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)
            self.close_connection = True

    def _reset(self) -> None:
        self.close_connection = True
        _reset(self.connection)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass_on  # noqa: N815 - as the base class wants it


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        # `close` alone waits for the files made of the socket.
        connection.shutdown(socket.SHUT_RD)
    if (number := connection.detach()) >= 0:
        with contextlib.suppress(OSError):
            os.close(number)


@contextlib.contextmanager
def proxy(endpoint: str) -> Iterator[Proxy]:
    """A proxy before the server at `endpoint`, for the block."""
    made = Proxy(endpoint)
    try:
        yield made
    finally:
        made.close()
