"""A controller's process: the embedded one (`python -m windfall.cli.controller STATE`) and that of `windfall serve`.

Crash-only: killed at any moment it leaves a database from which the next one goes on, a lock that the kernel lets go, and a
`controller.json` at whose address nobody answers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from windfall.cli.places import ADDRESS, DATABASE, LOCK, TOKEN, local_user, prepare
from windfall.control import auth
from windfall.control.api import build as build_api
from windfall.control.connections import Connections
from windfall.control.gate import Presence
from windfall.control.saying import Saying, take_over_logging, to_stderr
from windfall.control.service import Service, StatusView
from windfall.control.serving import ApiServer, Tls, is_loopback, listen
from windfall.errors import EXIT_AGAIN, Misuse, WindfallError
from windfall.ports import Clock
from windfall.storage.clocks import SystemClock
from windfall.storage.sql import Database, UserEntry, open_database
from windfall.terms import Seconds, Term

IDLE_S = Seconds(300.0)
"""After how long without a request and without an unfinished job the embedded controller leaves."""
_LOCK_WAIT_S = Seconds(15.0)
"""How long the last controller of this folder has to end; longer than its grace for open requests."""
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
        """Make the service; nothing is begun yet.

        Args:
            state: the installation's folder.
            database: its tables.
            term: as which to write.
            clock: time.
            url: where machines reach this controller, if they can.
            leave: ends this process with a sentence (another controller took the installation).
            webhooks_inside: whether any user's webhook may lead to this very machine.
            store: where runs lie that name no store; None: in a folder of the installation's.
        """
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """What a controller is started with.

    Attributes:
        database: URL; None: SQLite in the state folder.
        url: how others call it; None: by host and port.
        idle_s: after how long without use it leaves; None: never.
        webhooks_inside: whether any user's webhook may lead to this very machine.
        store: where runs lie that name no store; None: in a folder of the installation's.
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
        """Make the state folder and open the database."""
        prepare(self.state)
        return open_database(self.database or str((self.state / DATABASE).absolute()), SystemClock())


@dataclass(frozen=True, slots=True)
class Running:
    """What a controller that has begun tells of itself."""

    url: str
    status: StatusView


def built_by_wiring() -> ServiceBuilder:
    """Return the real builder; loaded late, since it loads everything."""
    from windfall.wiring_control import build_service  # noqa: PLC0415 - it loads everything

    return build_service


def run(settings: Settings, builder: ServiceBuilder, tell: Callable[[Running], None]) -> int:
    """Be the controller of a state folder until the end; return the exit code.

    Raises:
        Misuse: another controller holds the folder, or an option is wrong.
        DatabaseUnreachable: its database does not answer.
    """
    clock = SystemClock()
    say = Saying(clock, to_stderr)
    take_over_logging(say)
    prepare(settings.state)
    with (
        _lock(settings.state, clock),
        contextlib.closing(settings.open_database()) as database,
        contextlib.closing(listen(settings.host, settings.port)) as listener,
    ):
        url = settings.url or _url(settings, listener)
        _know_local_user(settings.state, database)
        holder = f"{socket.gethostname()}, process {os.getpid()}"
        server: list[ApiServer] = []
        last_words: list[str] = []

        def leave(sentence: str) -> None:
            last_words.append(sentence)
            for one in server:
                one.leave(EXIT_AGAIN)

        service = builder(
            settings.state,
            database,
            database.take(holder),
            clock,
            url=url,
            leave=leave,
            webhooks_inside=settings.webhooks_inside,
            store=settings.store,
        )
        presence, connections = Presence(clock), Connections(clock, say)
        doorkeeper = auth.Doorkeeper(database.key(), database.users)
        app = build_api(
            service, key=database.key(), caller=doorkeeper.caller, presence=presence, connections=connections
        )
        server.append(ApiServer(app, settings.tls, connections))
        server[0].obey_signals()
        if settings.idle_s is not None:
            server[0].leave_when_idle(presence, settings.idle_s, lambda: service.status().unfinished)
        service.begin()
        try:
            tell(Running(url, service.status()))
            with _address(settings.state, url):
                code = EXIT_AGAIN if last_words else server[0].run(listener)
        finally:
            service.end()
    for sentence in last_words:
        say(sentence)
    return code


def write_private(path: Path, text: str) -> None:
    """Replace a file that only this user may read; others see the old one or the new one, whole."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


@contextlib.contextmanager
def _lock(state: Path, clock: Clock) -> Iterator[None]:
    """Be the only controller process of this folder; the kernel lets go when the process ends, however it does."""
    handle = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = clock.now() + _LOCK_WAIT_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if clock.now() >= deadline:
                    pid = os.pread(handle, 32, 0).decode() or "?"
                    raise Misuse(
                        f"a controller (process {pid}) already works in {state}: use it, end it with `kill {pid}`, or name "
                        "another folder with --state"
                    ) from error
                clock.sleep(_LOCK_LOOK_S)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _address(state: Path, url: str) -> Iterator[None]:
    """Say where this controller answers, as long as it does."""
    write_private(state / ADDRESS, json.dumps({"url": url, "pid": os.getpid()}))
    try:
        yield
    finally:
        (state / ADDRESS).unlink(missing_ok=True)  # the folder's lock is ours: nobody else has written it


def _url(settings: Settings, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    name = host if is_loopback(host) else settings.host
    if name in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not listened on
        name = socket.getfqdn()
    scheme = "http" if settings.tls is None else "https"
    return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"


def new_token() -> str:
    """Make a user's token."""
    return auth.user_token(secrets.token_urlsafe(32))


def _know_local_user(state: Path, database: Database) -> None:
    """Give whoever runs the controller a token in the state folder; an admin, since the database is theirs anyway."""
    path = state / TOKEN
    token = path.read_text().strip() if path.exists() else ""
    if not token:
        token = new_token()
        write_private(path, token + "\n")
    database.add_user(UserEntry(local_user(), auth.hash_of(token), admin=True))


def main(argv: Sequence[str], builder: Callable[[], ServiceBuilder] = built_by_wiring) -> int:
    """Be the embedded controller: `STATE [IDLE_S]`; what goes wrong is said on standard error, which is its log."""
    settings = Settings(Path(argv[0]), idle_s=Seconds(float(argv[1])) if len(argv) > 1 else IDLE_S)
    try:
        prepare(settings.state)
        os.chdir(settings.state)  # a daemon keeps nobody's folder busy
        return run(settings, builder(), lambda _: None)
    except WindfallError as error:
        print(f"windfall: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
