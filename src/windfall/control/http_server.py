"""The HTTP server of the API: address, TLS and shutdown; its connections; the checks before any route.

A connection costs a descriptor from its first packet, before any of it can be read.  So connections may use only a share
of the process's descriptors.  One that has sent no request, or shown no token, has a time limit and is closed first when
the limit on connections is reached.  A connection with a request in progress is never closed.

The gate before the routes checks a request's size, its token, and whether the controller is shutting down.  It is plain
ASGI, so that the body of an unauthenticated request is neither read nor parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import json
import logging
import os
import resource
import signal
import socket
import ssl
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from windfall.control.auth import Caller
from windfall.errors import EXIT_DONE, EXIT_FAILED, EXIT_MISUSE, Misuse, WindfallError
from windfall.ports import Clock
from windfall.structs import Struct
from windfall.terms import Instant, Seconds

UNAUTHENTICATED_S_MAX = Seconds(20.0)
"""How long a connection may stay idle, or send requests without a token [s]."""
CONNECTIONS_MAX = 512
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(slots=True)
class _Connection:
    """A connection; `since`: when it was opened, or when its last request was answered."""

    socket: socket.socket
    since: Instant
    answering: int = 0
    known: bool = False


class Connections:
    """The connections of one server; used by its event loop's thread alone."""

    def __init__(self, clock: Clock, log: Callable[[str], None], limit: int | None = None) -> None:
        """Start without connections.

        Args:
            clock: for the time limit on unauthenticated connections.
            log: writes a message to the log.
            limit: most connections at a time; a share of this process's descriptors if None.
        """
        self._clock, self._log = clock, log
        self.limit = limit or max(8, min(CONNECTIONS_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 8))
        self._connections: dict[Any, _Connection] = {}

    def admit(self, connection: socket.socket, peer: Any) -> bool:
        """Add a new connection, closing the oldest unauthenticated one at the limit; False if there is none to close."""
        self.sweep()
        if len(self._connections) >= self.limit and not self.make_room():
            return False
        self._connections[_key(peer)] = _Connection(connection, self._clock.now())
        return True

    def enter(self, peer: Any) -> None:
        """Note the start of a request.

        Args:
            peer: the client, as the server names it.
        """
        line = self._connections.get(_key(peer))
        if line is not None:
            line.answering += 1

    def leave(self, peer: Any, *, known: bool) -> None:
        """Note the end of a request.

        Args:
            peer: the client, as the server names it.
            known: whether the request carried a valid token.
        """
        line = self._connections.get(_key(peer))
        if line is not None:
            line.answering, line.since, line.known = line.answering - 1, self._clock.now(), line.known or known

    def sweep(self) -> None:
        """Forget closed connections; close unauthenticated ones whose time is up."""
        now = self._clock.now()
        self._connections = {peer: line for peer, line in self._connections.items() if line.socket.fileno() >= 0}
        late = [peer for peer, line in self._unauthenticated() if now - line.since > UNAUTHENTICATED_S_MAX]
        for peer in late:
            self._cut(peer)
        if late:
            self._log("closed connections that sent no request with a token")

    def make_room(self) -> bool:
        """Close the oldest unauthenticated connection; False if there is none."""
        first = min(self._unauthenticated(), key=lambda one: one[1].since, default=None)
        if first is None:
            return False
        self._cut(first[0])
        self._log(f"the limit of {self.limit} connections is reached: closing those without a token first")
        return True

    def _unauthenticated(self) -> list[tuple[Any, _Connection]]:
        return [(peer, line) for peer, line in self._connections.items() if not (line.known or line.answering)]

    def _cut(self, peer: Any) -> None:
        # The server closes the descriptor once it sees the shutdown; closing it here would free its number too early.
        with contextlib.suppress(OSError):
            self._connections.pop(peer).socket.shutdown(socket.SHUT_RDWR)


class Listener(socket.socket):
    """A listening socket whose `accept` respects the limit on connections, and survives running out of descriptors.

    Where `accept` fails for lack of descriptors, asyncio (Python 3.11) leaves the connection waiting and so writes
    hundreds of tracebacks a second without end.
    """

    connections: Connections | None = None
    _spare: int = -1

    def guard(self, connections: Connections) -> None:
        """Apply the limit of these connections from now on."""
        self.connections = connections
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the socket and the spare descriptor."""
        super().close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection within the limit.

        Raises:
            BlockingIOError: no connection waits.
            ConnectionAbortedError: one did, and was closed.
        """
        try:
            connection, peer = super().accept()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR or self.connections is None:
                raise
            self._turn_away()
            raise ConnectionAbortedError(errno.ECONNABORTED, "no descriptor is left") from error
        if self.connections is not None and not self.connections.admit(connection, peer):
            connection.close()
            raise ConnectionAbortedError(errno.ECONNABORTED, "the limit on connections is reached")
        return connection, peer

    def _turn_away(self) -> None:
        """With no descriptor left, accept the waiting connection with the spare one and close it, or it would wait."""
        assert self.connections is not None
        self.connections.make_room()
        if self._spare >= 0:
            os.close(self._spare)
        try:
            with contextlib.suppress(OSError):
                super().accept()[0].close()
        finally:
            self._spare = -1
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _key(peer: Any) -> Any:
    return tuple(peer[:2]) if isinstance(peer, (tuple, list)) else peer


BODY_BYTES_MAX = 4 * 1024 * 1024
"""Largest request body: a job file with its secrets is far smaller, and code goes to the store."""
BODY_S = 20.0
"""How long to wait for each part of a request's body [s]."""
_TOO_LARGE = f"the request is larger than {BODY_BYTES_MAX} bytes"
OPEN_PATHS = frozenset({"/v1/ping", "/v1/machines/claim"})
"""Answered without a bearer token: the ping, and the exchange of a credential for a token."""


class Presence:
    """Tracks requests in progress, so that a controller started on demand can shut down when it is idle."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._inside = 0
        self._last = clock.now()
        self._closed = False

    def enter(self) -> bool:
        """Admit a request; False if the controller is shutting down."""
        with self._lock:
            self._inside += not self._closed
            return not self._closed

    def leave(self) -> None:
        """Note that an admitted request has been answered."""
        with self._lock:
            self._inside -= 1
            self._last = self._clock.now()

    def close_if_idle(self, idle_s: Seconds, unfinished: Callable[[], int]) -> bool:
        """Close if no request came for `idle_s` and no job is unfinished; then no request is admitted any more."""
        with self._lock:
            quiet = self._inside == 0 and self._clock.now() - self._last >= idle_s
        if not quiet or unfinished() > 0:
            return False
        with self._lock:
            # A request that came meanwhile may have submitted a job.
            if self._inside == 0 and self._clock.now() - self._last >= idle_s:
                self._closed = True
        return self._closed


class Gate:
    """The ASGI middleware; `scope["windfall"]` is the `Caller`, None on an open path."""

    def __init__(
        self,
        app: ASGIApp,
        caller: Callable[[str], Caller | None],
        presence: Presence,
        connections: Connections | None = None,
    ) -> None:
        self._app = app
        self._caller = caller
        self._presence = presence
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the routes, or answer it with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not self._presence.enter():
            await refuse(send, 503, "the controller is shutting down: try again", EXIT_FAILED)
            return
        if self._connections is not None:
            self._connections.enter(scope.get("client"))
        try:
            await self._pass(scope, receive, send)
        finally:
            self._presence.leave()
            if self._connections is not None:
                self._connections.leave(scope.get("client"), known=scope.get("windfall") is not None)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            await refuse(send, 413, _TOO_LARGE, EXIT_MISUSE)
            return
        scope["windfall"] = None
        if scope["path"] not in OPEN_PATHS:
            kind, _, token = headers.get("authorization", "").partition(" ")
            try:
                known = await run_in_threadpool(self._caller, token.strip()) if kind.lower() == "bearer" else None
            except WindfallError as error:
                await refuse(send, 503, str(error), error.exit_code)
                return
            if known is None:
                message = "the controller does not know this token: set WINDFALL_TOKEN to the one you were given"
                await refuse(send, 401, message, EXIT_MISUSE)
                return
            scope["windfall"] = known
        await self._answer(scope, _LimitedBody(receive).receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            if started:
                raise
            # The place only: the text of an unexpected error may hold parts of the request.
            where = "".join(traceback.format_tb(error.__traceback__))
            logging.getLogger(__name__).error(
                "%s %s failed with %s:\n%s", scope["method"], scope["path"], type(error).__name__, where
            )
            message = f"internal error in the controller ({type(error).__name__}): its log has the details"
            await refuse(send, 500, message, EXIT_FAILED)


class _LimitedBody:
    """A request's body as it arrives, with a limit on its size and on the wait for each part."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = BODY_BYTES_MAX
        self._whole = False

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), BODY_S)
        except TimeoutError:
            raise HTTPException(408, f"the request body did not arrive within {BODY_S:g} s") from None
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._left < 0:
                raise HTTPException(413, _TOO_LARGE)
        return message


async def refuse(send: Send, status: int, message: str, exit_code: int) -> None:
    """Answer with an error."""
    body = json.dumps({"error": message, "exit_code": exit_code}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_GRACE_S = 5
"""How long requests in progress may take when the controller ends [s]."""
_CHECKS_PER_IDLE = 10
_BACKLOG = 512
_TICKS_PER_SWEEP = 10
"""The server ticks ten times a second."""
PORT_MAX = 65535


class Tls(Struct, frozen=True):
    """Certificate chain and private key, PEM files."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Check that a server can use the files.

        Raises:
            Misuse: it cannot; with the reason.
        """
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise Misuse(f"--tls-cert {self.certificate} and --tls-key {self.key} cannot be used: {error}") from error


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, tls: Tls | None, *, insecure: bool) -> None:
    """Refuse to send tokens over a network without encryption, unless `insecure` allows it.

    Raises:
        Misuse: with what to do.
    """
    if tls is not None:
        tls.check()
    elif not is_loopback(host) and not insecure:
        raise Misuse(
            f"--host {host} lets other machines connect, and without TLS tokens and secrets cross the network unencrypted: "
            "pass --tls-cert and --tls-key, or --insecure if a proxy in front of it encrypts"
        )


def listen(host: str, port: int) -> Listener:
    """Return a listening socket; port 0 means any free port.

    Raises:
        Misuse: this machine has no such address, or the port is in use.
    """
    if not 0 <= port <= PORT_MAX:
        raise Misuse(f"--port {port} is not a port: choose one from 1 to {PORT_MAX}, or 0 for any free port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = Listener(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise Misuse(f"cannot listen on --host {host} --port {port}: {error.strerror}") from error
    return listener


class _ApiHttpServer(uvicorn.Server):
    """uvicorn's server, which also closes idle unauthenticated connections."""

    def __init__(self, config: uvicorn.Config, connections: Connections | None) -> None:
        super().__init__(config)
        self._connections = connections

    async def on_tick(self, counter: int) -> bool:
        if self._connections is not None and counter % _TICKS_PER_SWEEP == 0:
            self._connections.sweep()
        return await super().on_tick(counter)


class ApiServer:
    """Serves the API from the main thread until `leave` is called or a signal arrives."""

    def __init__(self, app: FastAPI, tls: Tls | None, connections: Connections | None = None) -> None:
        self._connections = connections
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            http="h11",
            ws="none",
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
        )
        self._server = _ApiHttpServer(config, connections)
        self._ended = threading.Event()
        self._exit_code = EXIT_DONE

    def handle_signals(self) -> None:
        """Shut down gracefully on SIGTERM and Ctrl-C from now on; call this from the main thread.

        While `run` serves, the HTTP server handles both itself, and afterwards passes them on to these handlers.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.leave(EXIT_DONE))

    def run(self, listener: Listener) -> int:
        """Serve until the end; return the process's exit code."""
        if self._connections is not None:
            listener.guard(self._connections)
        try:
            self._server.run(sockets=[listener])
        finally:
            self._ended.set()
        return self._exit_code

    def leave(self, exit_code: int) -> None:
        """Shut down soon; may be called from any thread, also before `run`."""
        self._exit_code = exit_code
        self._server.should_exit = True

    def leave_when_idle(self, presence: Presence, idle_s: Seconds, unfinished: Callable[[], int]) -> None:
        """Shut down once no request came for `idle_s` and no job is unfinished."""

        def watch() -> None:
            while not self._ended.wait(idle_s / _CHECKS_PER_IDLE):
                with contextlib.suppress(WindfallError):  # an unreachable database may hold an unfinished job
                    if presence.close_if_idle(idle_s, unfinished):
                        self.leave(EXIT_DONE)
                        return

        threading.Thread(target=watch, name="idle", daemon=True).start()
