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

from windfall.control.gate import Presence
from windfall.errors import EXIT_DONE, Misuse, WindfallError
from windfall.terms import Seconds

_GRACE_S = 5
"""How long requests that are being answered may take when the controller ends."""
_LOOKS_PER_IDLE = 10
_BACKLOG = 512


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


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0: any free one.

    Raises:
        Misuse: this machine has no such address, or somebody else listens there.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
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


class ApiServer:
    """Serves the API from the main thread until somebody says `leave`, or a signal does."""

    def __init__(self, app: FastAPI, tls: Tls | None) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACE_S,
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
        )
        self._server = uvicorn.Server(config)
        self._ended = threading.Event()
        self._exit_code = EXIT_DONE

    def obey_signals(self) -> None:
        """End in good order at SIGTERM and Ctrl-C, from now on; the main thread calls this.

        While `run` serves, the HTTP server takes both itself, and afterwards hands them on to these.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.leave(EXIT_DONE))

    def run(self, listener: socket.socket) -> int:
        """Serve until the end; return the exit code for the process."""
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
