"""The HTTP server around the API: where it listens, who may, and how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
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
from windfall.control.gate import Presence
from windfall.errors import EXIT_DONE, Misuse, WindfallError
from windfall.terms import Seconds

_GRACE_S = 5
"""How long requests that are being answered may take when the controller ends."""
_LOOKS_PER_IDLE = 10
_BACKLOG = 512
_TICKS_PER_SWEEP = 10
"""The server ticks ten times a second."""
PORT_MAX = 65535


@dataclasses.dataclass(frozen=True, slots=True)
class Tls:
    """Certificate chain and private key, PEM files."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Refuse files that no server could use.

        Raises:
            Misuse: with the reason.
        """
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise Misuse(f"--tls-cert {self.certificate} and --tls-key {self.key} cannot be used: {error}") from error


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, tls: Tls | None, *, insecure: bool) -> None:
    """Refuse to show tokens to a network without encryption, unless somebody said that this is wanted.

    Raises:
        Misuse: with what to do.
    """
    if tls is not None:
        tls.check()
    elif not is_loopback(host) and not insecure:
        raise Misuse(
            f"--host {host} lets other machines in, and without TLS the network sees tokens and secrets: give --tls-cert "
            "and --tls-key, or say --insecure if something in front of it encrypts"
        )


def listen(host: str, port: int) -> Listener:
    """Return a listening socket; port 0: any free one.

    Raises:
        Misuse: this machine has no such address, or somebody else listens there.
    """
    if not 0 <= port <= PORT_MAX:
        raise Misuse(f"--port {port} is no port: choose one from 1 to {PORT_MAX}, or 0 for any that is free")
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
        raise Misuse(f"--host {host} --port {port} cannot be listened on: {error.strerror}") from error
    return listener


class _Server(uvicorn.Server):
    """uvicorn's, which also looks after who is connected."""

    def __init__(self, config: uvicorn.Config, connections: Connections | None) -> None:
        super().__init__(config)
        self._connections = connections

    async def on_tick(self, counter: int) -> bool:
        if self._connections is not None and counter % _TICKS_PER_SWEEP == 0:
            self._connections.sweep()
        return await super().on_tick(counter)


class ApiServer:
    """Serves the API from the main thread until somebody says `leave`, or a signal does."""

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
        self._server = _Server(config, connections)
        self._ended = threading.Event()
        self._exit_code = EXIT_DONE

    def obey_signals(self) -> None:
        """End in good order at SIGTERM and Ctrl-C, from now on; the main thread calls this.

        While `run` serves, the HTTP server takes both itself, and afterwards hands them on to these.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.leave(EXIT_DONE))

    def run(self, listener: Listener) -> int:
        """Serve until the end; return the exit code for the process."""
        if self._connections is not None:
            listener.guard(self._connections)
        try:
            self._server.run(sockets=[listener])
        finally:
            self._ended.set()
        return self._exit_code

    def leave(self, exit_code: int) -> None:
        """End soon; from any thread, also before `run`."""
        self._exit_code = exit_code
        self._server.should_exit = True

    def leave_when_idle(self, presence: Presence, idle_s: Seconds, unfinished: Callable[[], int]) -> None:
        """From now on leave once nobody asked anything for so long and nothing is left to do."""

        def watch() -> None:
            while not self._ended.wait(idle_s / _LOOKS_PER_IDLE):
                with contextlib.suppress(WindfallError):  # a database that does not answer now may know of a job
                    if presence.close_if_idle(idle_s, unfinished):
                        self.leave(EXIT_DONE)
                        return

        threading.Thread(target=watch, name="idle", daemon=True).start()
