"""Databases to test against: SQLite in a folder, and a real PostgreSQL server that a test may kill."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.engine import URL

START_LIMIT_S = 30.0


def _program(name: str) -> str | None:
    found = shutil.which(name)
    if found:
        return found
    return next((str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)), None)


def no_postgres() -> str | None:
    """Why no server can be started here; None if one can."""
    if _program("initdb") is None or _program("postgres") is None:
        return "no PostgreSQL server is installed here"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "PostgreSQL does not run as root, and there is no user postgres"
    return None


@dataclass
class Postgres:
    """A server of its own, on a Unix socket in its own folder."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    _made: list[str] = field(default_factory=list)

    @property
    def _as(self) -> dict[str, str]:
        return {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}

    def initialise(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
        command = [_program("initdb"), "-D", str(self.folder / "data"), "-U", "windfall", "-A", "trust", "--no-sync"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, check=False, env=self._env(), **self._as)
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        options = ("listen_addresses=", f"unix_socket_directories={self.folder}", "max_connections=40")
        command = [_program("postgres"), "-D", str(self.folder / "data")]
        for option in options:
            command += ["-c", option]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, env=self._env(), start_new_session=True, **self._as
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline, (self.folder / "server.log").read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill -9 the server with all of its processes, as a machine's end does."""
        if self.process is not None:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            self.process.kill()
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            self.process.wait()
            self.process = None
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def make(self, name: str) -> str:
        """Make an empty database; return its URL."""
        import psycopg

        with psycopg.connect(host=str(self.folder), user="windfall", dbname="postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        url = URL.create("postgresql", "windfall", database=name, query={"host": str(self.folder)})
        return url.render_as_string(hide_password=False)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(host=str(self.folder), user="windfall", dbname="postgres", connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "LANG": "C.UTF-8"}


@contextlib.contextmanager
def postgres_server() -> Iterator[Postgres]:
    """A running server; its folder is short, for the socket's name, and gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="wf-pg-", dir="/tmp"))
    server = Postgres(folder)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
