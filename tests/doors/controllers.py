"""A team's controller as a process of its own, as somebody from outside meets it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

START = "import sys; from windfall.cli.main import main; sys.exit(main(sys.argv[1:]))"


def windfall(*words: str, timeout_s: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command line; what does not end in time has exit code None there: -999."""
    command = [sys.executable, "-c", START, *words]
    try:
        return subprocess.run(
            command, env={**os.environ, **env}, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return subprocess.CompletedProcess(command, -999, said.decode() if isinstance(said, bytes) else said, "")


@dataclass
class Controller:
    """A running controller."""

    process: subprocess.Popen[str]
    url: str
    state: Path
    log: Path

    def ask(self, path: str, timeout_s: float = 20.0) -> httpx.Response:
        """Ask as the user who runs it."""
        token = (self.state / "token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=timeout_s, trust_env=False)

    def ps(self) -> list[dict[str, Any]]:
        """What `windfall ps --json` shows."""
        done = windfall(
            "ps", "--json", WINDFALL_CONTROLLER=self.url, WINDFALL_TOKEN=(self.state / "token").read_text().strip()
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@contextlib.contextmanager
def serving(state: Path, *options: str, descriptors: int | None = None, **env: str) -> Iterator[Controller]:
    """`windfall serve` on a free port, its log in a file; killed at the end."""
    limit = (
        ""
        if descriptors is None
        else f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors},) * 2); "
    )
    log = state.parent / f"{state.name}.log"
    command = [sys.executable, "-c", limit + START, "serve", "--state", str(state), "--port", "0", *options]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **env}
        ) as process,
    ):
        try:
            assert process.stdout is not None
            found = None
            for line in process.stdout:
                found = found or re.search(r"listens at (\S+)", line)
                if "add a user" in line:
                    break
            assert found is not None, f"no controller came up: {log.read_text()[-2000:]}"
            yield Controller(process, found[1], state, log)
        finally:
            process.kill()


def until(done: Callable[[], object], limit_s: float = 30.0) -> None:
    """Wait on a condition."""
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.05)


def tables(state: Path) -> sqlite3.Connection:
    """The database of a state folder, made by its own program if it is not there."""
    if not (state / "controller.db").exists():
        assert windfall("serve", "--state", str(state), "--users").returncode == 0
    return sqlite3.connect(state / "controller.db", isolation_level=None)


def put_job(
    state: Path, job: dict[str, Any], phase: str = "done", summary: str = '{"settled": true, "phase": "done"}'
) -> None:
    """Write a row into the table of jobs, past every check."""
    row = (job["job_id"], job["user"], job["name"], json.dumps(job), phase, summary, 1.0)
    with contextlib.closing(tables(state)) as database:
        database.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)", row)
