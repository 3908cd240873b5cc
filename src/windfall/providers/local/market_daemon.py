"""The market's daemon: one process per folder, on loopback, behind a token; it may be killed at any moment.

    python -m windfall.providers.local.market_daemon FOLDER [--detach]

A call is `POST /<method>` with a JSON list of arguments; the answer is `{"result": ...}`, or `{"error": message}` with
status 400, 401, 413 or 500.  The daemon exits when it has had neither machines nor callers for a while, or when its
folder is gone; running machines do not notice.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hmac
import json
import os
import secrets
import signal
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from windfall.codec import decode, encode, parse
from windfall.errors import WindfallError
from windfall.linux.clock import SystemClock
from windfall.market import BootSpec, Order
from windfall.ports import Clock
from windfall.providers.local import machine_folder
from windfall.providers.local.market_engine import MarketEngine
from windfall.spelling import plain
from windfall.terms import Instant, Seconds

TICK_S = 0.05
"""Between two ticks of the market while it has machines [s]."""
TICK_S_IDLE = 0.25
RETRY_S = Seconds(1.0)
"""Pause after a disk error [s]."""
LOCK_WAIT_S = 0.5
"""How long a daemon waits for the lock, which callers hold for a moment to check whether a market runs [s]."""
BODY_BYTES_MAX = 1 << 22
CALL_S = 30.0
"""How long a caller may take to send a request [s]."""
_CHUNK_BYTES = 1 << 16
_CALLS: Mapping[str, Any] = {
    "order": tuple[Order, BootSpec],
    "offers": tuple[()],
    "quota": tuple[str],
    "cancel": tuple[str],
    "list": tuple[str],
    "release": tuple[str],
    "charges": tuple[str, str],
    "preempt": tuple[str, Seconds | None],
}
"""The types of each call's arguments."""
LOCK, TOKEN, ADDRESS, LOG = "lock", "token", "daemon.json", "market.log"


def token_of(folder: Path) -> str:
    """Return the market's token, made on first use and readable only by its owner."""
    path = folder / TOKEN
    fresh = path.with_name(f"{TOKEN}.{os.getpid()}.{threading.get_ident()}")
    if not path.exists():
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(16))
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(fresh)
    return path.read_text(encoding="ascii").strip()


def take_lock(folder: Path, clock: Clock) -> int | None:
    """Lock this folder for its only daemon; None if another daemon holds the lock."""
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    until = clock.now() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.now() >= until:
                os.close(fd)
                return None
            clock.sleep(Seconds(0.01))
        else:
            return fd


class _MarketServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    engine: MarketEngine
    token: str
    on_call: Callable[[], None]

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that disconnects before its answer is complete is not an error.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _MarketHandler(BaseHTTPRequestHandler):
    server: _MarketServer
    protocol_version = "HTTP/1.1"
    timeout = CALL_S
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Answer one call; the body of an unauthenticated call is not read."""
        given = self.headers.get("Authorization", "").encode(errors="replace")
        known = hmac.compare_digest(given, f"Bearer {self.server.token}".encode())
        length = self.headers.get("Content-Length", "")
        whole = length.isascii() and length.isdigit() and int(length[:12]) <= BODY_BYTES_MAX
        if self.server.engine.config.deny or not known:
            self._refuse(401, "the local market rejected the credentials")
            return
        if not whole:
            self._refuse(413, f"a call to the local market needs a Content-Length of at most {BODY_BYTES_MAX} bytes")
            return
        self.server.on_call()
        body = self.rfile.read(int(length))
        try:
            self._reply(200, {"result": encode(self._call(self.path.strip("/"), body))})
        except ValueError as error:
            self._reply(400, {"error": f"the local market cannot read the call: {error}"})
        except (OSError, sqlite3.Error) as error:
            self._reply(500, {"error": f"the local market failed: {error}"})

    def _call(self, method: str, body: bytes) -> object:
        if method not in _CALLS:
            raise ValueError("unknown call")
        arguments = decode(parse(body), _CALLS[method])
        if method == "preempt" and (arguments[1] or 0.0) < 0:
            raise ValueError("the notice must not be negative")
        engine = self.server.engine
        methods: Mapping[str, Callable[..., object]] = {
            "order": engine.order,
            "offers": engine.offers,
            "quota": engine.quota,
            "cancel": engine.cancel,
            "list": engine.list,
            "release": engine.release,
            "charges": engine.charges,
            "preempt": engine.preempt,
        }
        return methods[method](*arguments)

    def _refuse(self, status: int, reason: str) -> None:
        """Answer without reading the body, then discard what was sent."""
        self.close_connection = True
        self._reply(status, {"error": reason})
        # Closing a connection with unread bytes would discard the answer too.
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1.0)
            for _ in range(BODY_BYTES_MAX // _CHUNK_BYTES):
                if not self.connection.recv(_CHUNK_BYTES):
                    break

    def _reply(self, status: int, content: dict[str, object]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing: the market's log is about machines, not calls."""


def serve(folder: Path, clock: Clock, ready: Callable[[], None]) -> None:
    """Serve a folder's market until it is idle; return at once if another daemon does.

    Args:
        folder: made if it does not exist.
        clock: the market's time.
        ready: called once calls are accepted.

    Raises:
        Misuse: `market.yaml` is wrong.
    """
    lock = take_lock(folder, clock)
    if lock is None:
        ready()
        return
    # A caller that sees the lock held must not find the address of an earlier daemon.
    (folder / ADDRESS).unlink(missing_ok=True)
    token = token_of(folder)
    log_fd = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def log(text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk must not stop the machines for the sake of a log line
            os.write(log_fd, f"{clock.wall_time():.3f} {plain(text)}\n".encode(errors="replace"))

    engine = MarketEngine(folder, clock, log)
    server = _MarketServer(("127.0.0.1", 0), _MarketHandler)
    idle_since = [clock.now()]
    server.engine, server.token = engine, token
    server.on_call = lambda: _reset_idle(idle_since, clock)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True, name="calls").start()
    address = {"url": f"http://127.0.0.1:{server.server_port}", "pid": os.getpid()}
    machine_folder.write(folder, ADDRESS, address)
    ready()
    _run(folder, engine, clock, idle_since, log)
    # Removed, so that callers start another daemon; if the folder was recreated, the address may be the other's already.
    if machine_folder.read(folder, ADDRESS) == address:
        (folder / ADDRESS).unlink(missing_ok=True)
    server.shutdown()
    server.server_close()


def _reset_idle(idle_since: list[Instant], clock: Clock) -> None:
    idle_since[0] = clock.now()


def _run(
    folder: Path, engine: MarketEngine, clock: Clock, idle_since: list[Instant], log: Callable[[str], None]
) -> None:
    while (folder / LOCK).exists():
        try:
            alive = engine.tick()
        except (OSError, sqlite3.Error) as error:
            log(f"the market failed and tries again: {error}")
            clock.sleep(RETRY_S)
            continue
        if alive:
            idle_since[0] = clock.now()
        elif clock.now() - idle_since[0] > engine.config.idle_exit:
            return
        clock.sleep(Seconds(TICK_S if alive else TICK_S_IDLE))


def _detach(ready_fd: int) -> Callable[[], None]:
    """Detach from caller and terminal; the returned function notifies the caller that the market is open."""
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)

    def ready() -> None:
        os.write(ready_fd, b"open\n")
        os.close(ready_fd)
        os.dup2(nothing, 2)

    return ready


def _fork() -> int:
    """Fork; return the write end of a pipe in the child.  The parent exits once the child has written, or died."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.close(read_end)
        return write_end
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        os._exit(0 if pipe.read() else WindfallError.exit_code)


def main() -> int:
    """Run as `python -m windfall.providers.local.market_daemon FOLDER`."""
    parser = argparse.ArgumentParser(
        prog="windfall.providers.local.market_daemon", description="Sell machines of this host."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--detach", action="store_true", help="continue in the background once the market is open")
    options = parser.parse_args()
    os.umask(0o077)
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()
    ready = _detach(_fork()) if options.detach else lambda: None
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        serve(folder, SystemClock(), ready)
    except (WindfallError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return WindfallError.exit_code
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
