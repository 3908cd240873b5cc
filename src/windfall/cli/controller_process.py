"""The controller's process: the embedded one (`python -m windfall.cli.controller_process STATE`) or `windfall serve`.

Crash-only: killed at any moment, it leaves a database that the next one continues from, a lock that the kernel releases,
and a `controller.json` whose address no longer answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from windfall.cli.locations import ADDRESS, DATABASE, LOCK, TOKEN, local_user, lock_file, prepare
from windfall.control import auth
from windfall.control.api import build as build_api
from windfall.control.controller_log import ControllerLog, take_over_logging, to_stderr
from windfall.control.controller_views import Service, StatusView
from windfall.control.http_server import ApiServer, Connections, Presence, Tls, is_loopback, listen
from windfall.errors import EXIT_RETRY, Misuse, WindfallError
from windfall.linux.clock import SystemClock
from windfall.ports import Clock
from windfall.storage.database import Database, UserEntry, open_database
from windfall.structs import Struct
from windfall.terms import Seconds, Term

IDLE_S = Seconds(300.0)
"""The embedded controller exits after this long without a request or an unfinished job."""
_LOCK_WAIT_S = Seconds(15.0)
"""How long to wait for this folder's previous controller to end; longer than its grace for open requests."""
_LOCK_LOOK_S = Seconds(0.1)


class ServiceBuilder(Protocol):
    """Puts conductors behind the API."""

    def __call__(
        self,
        state: Path,
        database: Database,
        term: Term,
        clock: Clock,
        *,
        url: str,
        leave: Callable[[str], None],
        webhooks_inside: bool,
        store: str | None,
    ) -> Service:
        """Create the service without starting it.

        Args:
            state: the installation's folder.
            database: its tables.
            term: under which it writes.
            clock: time.
            url: where machines reach this controller, if they can.
            leave: ends this process with a sentence (another controller took over the installation).
            webhooks_inside: whether any user's webhook may point to this machine.
            store: for runs whose job file names no store; None: a folder of the installation.
        """
        ...


class Settings(Struct, frozen=True):
    """The options of a controller.

    Attributes:
        database: URL; None: SQLite in the state folder.
        url: where others reach it; None: host and port.
        idle_s: exit after this long without use [s]; None: never.
        webhooks_inside: whether any user's webhook may point to this machine.
        store: for runs whose job file names no store; None: a folder of the installation.
    """

    state: Path
    database: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    url: str | None = None
    tls: Tls | None = None
    idle_s: Seconds | None = None
    webhooks_inside: bool = False
    store: str | None = None

    def open_database(self) -> Database:
        """Create the state folder and open the database."""
        prepare(self.state)
        return open_database(self.database or str((self.state / DATABASE).absolute()), SystemClock())


class RunningController(Struct, frozen=True):
    """The address and status of a controller that has started."""

    url: str
    status: StatusView


def default_builder() -> ServiceBuilder:
    """Return the builder for real use; imported late, because it imports everything."""
    from windfall.wiring_control import build_service  # noqa: PLC0415 - it imports everything

    return build_service


def run(settings: Settings, builder: ServiceBuilder, on_ready: Callable[[RunningController], None]) -> int:
    """Run the controller of a state folder until it ends; return the exit code.

    Raises:
        Misuse: another controller holds the folder, or an option is wrong.
        DatabaseUnreachable: its database does not answer.
    """
    clock = SystemClock()
    log = ControllerLog(clock, to_stderr)
    take_over_logging(log)
    prepare(settings.state)
    with (
        _lock(settings.state, clock),
        contextlib.closing(settings.open_database()) as database,
        contextlib.closing(listen(settings.host, settings.port)) as listener,
    ):
        url = settings.url or _url(settings, listener)
        _register_local_user(settings.state, database)
        holder = f"{socket.gethostname()}, process {os.getpid()}"
        server: list[ApiServer] = []
        exit_messages: list[str] = []

        def leave(message: str) -> None:
            exit_messages.append(message)
            for one in server:
                one.leave(EXIT_RETRY)

        service = builder(
            settings.state,
            database,
            database.acquire(holder),
            clock,
            url=url,
            leave=leave,
            webhooks_inside=settings.webhooks_inside,
            store=settings.store,
        )
        presence, connections = Presence(clock), Connections(clock, log)
        authenticator = auth.Authenticator(database.key(), database.users)
        app = build_api(
            service, key=database.key(), caller=authenticator.caller, presence=presence, connections=connections
        )
        server.append(ApiServer(app, settings.tls, connections))
        server[0].handle_signals()
        if settings.idle_s is not None:
            server[0].leave_when_idle(presence, settings.idle_s, lambda: service.status().unfinished)
        service.start()
        try:
            on_ready(RunningController(url, service.status()))
            with _published_address(settings.state, url):
                code = EXIT_RETRY if exit_messages else server[0].run(listener)
        finally:
            service.end()
    for message in exit_messages:
        log(message)
    return code


def write_private(path: Path, text: str) -> None:
    """Replace a file that only this user may read, atomically."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@contextlib.contextmanager
def _lock(state: Path, clock: Clock) -> Iterator[None]:
    """Be the only controller process of this folder; the kernel releases the lock when the process ends."""
    handle = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = clock.now() + _LOCK_WAIT_S
    try:
        while True:
            try:
                lock_file(handle, state, wait=False)
                break
            except BlockingIOError as error:
                if clock.now() >= deadline:
                    pid = os.pread(handle, 32, 0).decode() or "?"
                    raise Misuse(
                        f"a controller (process {pid}) is already running in {state}: use it, end it with `kill {pid}`, or "
                        "choose another folder with --state"
                    ) from error
                clock.sleep(_LOCK_LOOK_S)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _published_address(state: Path, url: str) -> Iterator[None]:
    """Publish where this controller answers, while it runs."""
    write_private(state / ADDRESS, json.dumps({"url": url, "pid": os.getpid()}))
    try:
        yield
    finally:
        (state / ADDRESS).unlink(missing_ok=True)  # this process holds the folder's lock: no other has written it


def _url(settings: Settings, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    name = host if is_loopback(host) else settings.host
    if name in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not listened on
        name = socket.getfqdn()
    scheme = "http" if settings.tls is None else "https"
    return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"


def new_token() -> str:
    """Create a user's token."""
    return auth.user_token(secrets.token_urlsafe(32))


def _register_local_user(state: Path, database: Database) -> None:
    """Give the user who runs the controller a token in the state folder, as an admin: they own the database anyway."""
    path = state / TOKEN
    token = path.read_text().strip() if path.exists() else ""
    if not token:
        token = new_token()
        write_private(path, token + "\n")
    database.add_user(UserEntry(local_user(), auth.hash_of(token), admin=True))


def main(argv: Sequence[str], builder: Callable[[], ServiceBuilder] = default_builder) -> int:
    """Run the embedded controller: `STATE [IDLE_S]`; errors go to standard error, which is its log."""
    settings = Settings(Path(argv[0]), idle_s=Seconds(float(argv[1])) if len(argv) > 1 else IDLE_S)
    try:
        prepare(settings.state)
        os.chdir(settings.state)  # a daemon must not keep a user's folder busy
        return run(settings, builder(), lambda _: None)
    except WindfallError as error:
        print(f"windfall: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
