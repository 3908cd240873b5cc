"""The market's daemon: one process per folder, on loopback, behind a token; it may be killed at any moment.

    python -m windfall.providers.local.market FOLDER [--detach]

A call is `POST /<method>` with a JSON list of arguments; the answer is `{"result": ...}`, or `{"error": sentence}` with
status 400, 401 or 500.  The daemon ends by itself when it has had neither machines nor callers for a while, or when its
folder is gone; machines that run do not notice.
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
from windfall.market import Boot, Order
from windfall.ports import Clock
from windfall.providers.local import records
from windfall.providers.local.clocks import SystemClock
from windfall.providers.local.desk import Desk
from windfall.spelling import plain
from windfall.terms import Instant, Seconds

TICK_S = 0.05
"""How often the market looks around while it has machines [s]."""
LOOK_S_IDLE = 0.25
TROUBLE_S = Seconds(1.0)
"""How long it waits after its disk refused something [s]."""
LOCK_WAIT_S = 0.5
"""How long a daemon waits for the lock: whoever asks whether there is a market holds it for a moment [s]."""
BODY_BYTES_MAX = 1 << 22
CALL_S = 30.0
"""How long a caller may take with what they send [s]."""
_CHUNK_BYTES = 1 << 16
_CALLS: Mapping[str, Any] = {
    "order": tuple[Order, Boot],
    "offers": tuple[()],
    "quota": tuple[str],
    "cancel": tuple[str],
    "list": tuple[str],
    "release": tuple[str],
    "charges": tuple[str, str],
    "preempt": tuple[str, Seconds | None],
}
"""What each call takes."""
LOCK, TOKEN, ADDRESS, LOG = "lock", "token", "daemon.json", "market.log"


def token_of(folder: Path) -> str:
    """Return the market's token, made on first use and readable by its owner alone."""
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
    """Become the one daemon of this folder; None if there is another."""
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    desk: Desk
    token: str
    heard: Callable[[], None]

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that hangs up in mid-answer is its own affair.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = CALL_S
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Answer one call: first who calls, then what; nothing is read of somebody who is not known."""
        given = self.headers.get("Authorization", "").encode(errors="replace")
        known = hmac.compare_digest(given, f"Bearer {self.server.token}".encode())
        length = self.headers.get("Content-Length", "")
        whole = length.isascii() and length.isdigit() and int(length[:12]) <= BODY_BYTES_MAX
        if self.server.desk.config.deny or not known:
            self._hang_up(401, "the local market does not know these credentials")
            return
        if not whole:
            self._hang_up(413, f"a call to the local market has {BODY_BYTES_MAX} bytes at most, and says so")
            return
        self.server.heard()
        body = self.rfile.read(int(length))
        try:
            self._reply(200, {"result": encode(self._call(self.path.strip("/"), body))})
        except ValueError as error:
            self._reply(400, {"error": f"the local market does not understand the call: {error}"})
        except (OSError, sqlite3.Error) as error:
            self._reply(500, {"error": f"the local market is broken: {error}"})

    def _call(self, method: str, body: bytes) -> object:
        if method not in _CALLS:
            raise ValueError("it has no such call")
        arguments = decode(parse(body), _CALLS[method])
        if method == "preempt" and (arguments[1] or 0.0) < 0:
            raise ValueError("a notice cannot be shorter than none")
        desk = self.server.desk
        methods: Mapping[str, Callable[..., object]] = {
            "order": desk.order,
            "offers": desk.offers,
            "quota": desk.quota,
            "cancel": desk.cancel,
            "list": desk.list,
            "release": desk.release,
            "charges": desk.charges,
            "preempt": desk.preempt,
        }
        return methods[method](*arguments)

    def _hang_up(self, status: int, why: str) -> None:
        """Answer before anything of the body is read; what was sent is dropped."""
        self.close_connection = True
        self._reply(status, {"error": why})
        # A connection that is closed on bytes that nobody has read takes the answer with it.
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
        """Keep quiet: the market's log tells of machines, not of calls."""


def serve(folder: Path, clock: Clock, ready: Callable[[], None]) -> None:
    """Be the market of a folder until nobody needs it; return at once if another daemon is.

    Args:
        folder: made if it does not exist.
        clock: the market's time.
        ready: called once callers can come.

    Raises:
        Misuse: `market.yaml` is wrong.
    """
    lock = take_lock(folder, clock)
    if lock is None:
        ready()
        return
    # Whoever sees the lock held must not find the address of an earlier daemon.
    (folder / ADDRESS).unlink(missing_ok=True)
    token = token_of(folder)
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk: the machines matter, not what is said of them
            os.write(log, f"{clock.wall():.3f} {plain(text)}\n".encode(errors="replace"))

    desk = Desk(folder, clock, note)
    server = _Server(("127.0.0.1", 0), _Handler)
    idle_since = [clock.now()]
    server.desk, server.token = desk, token
    server.heard = lambda: _now_heard(idle_since, clock)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True, name="calls").start()
    address = {"url": f"http://127.0.0.1:{server.server_port}", "pid": os.getpid()}
    records.write(folder, ADDRESS, address)
    ready()
    _run(folder, desk, clock, idle_since, note)
    # Whoever is not answered any more sees that another daemon will: in a folder made again that one may be there already.
    if records.read(folder, ADDRESS) == address:
        (folder / ADDRESS).unlink(missing_ok=True)
    server.shutdown()
    server.server_close()


def _now_heard(idle_since: list[Instant], clock: Clock) -> None:
    idle_since[0] = clock.now()


def _run(folder: Path, desk: Desk, clock: Clock, idle_since: list[Instant], note: Callable[[str], None]) -> None:
    while (folder / LOCK).exists():
        try:
            alive = desk.tick()
        except (OSError, sqlite3.Error) as error:
            note(f"the market cannot go on, and tries again: {error}")
            clock.sleep(TROUBLE_S)
            continue
        if alive:
            idle_since[0] = clock.now()
        elif clock.now() - idle_since[0] > desk.config.idle_exit:
            return
        clock.sleep(Seconds(TICK_S if alive else LOOK_S_IDLE))


def _detach(ready_fd: int) -> Callable[[], None]:
    """Leave caller and terminal behind; the returned function tells the caller that the market is open."""
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
    """Fork; return the pipe to speak into in the child.  The parent ends as soon as the child has spoken, or died."""
    heard, ready = os.pipe()
    if os.fork() == 0:
        os.close(heard)
        return ready
    os.close(ready)
    with open(heard, "rb") as pipe:
        os._exit(0 if pipe.read() else WindfallError.exit_code)


def main() -> int:
    """Run as `python -m windfall.providers.local.market FOLDER`."""
    parser = argparse.ArgumentParser(prog="windfall.providers.local.market", description="Sell machines of this host.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--detach", action="store_true", help="go on in the background once the market is open")
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
