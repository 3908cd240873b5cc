"""The HTTP server of the API: address, TLS, connections and shutdown."""

from __future__ import annotations

import contextlib
import ipaddress
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from windfall.control.connections import Connections, Listener
from windfall.control.request_gate import Presence
from windfall.errors import EXIT_DONE, Misuse, WindfallError
from windfall.structs import Struct
from windfall.terms import Seconds

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
