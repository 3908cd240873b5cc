"""The agent's side of a session without an agent: makes the folder, publishes requests, reads what the script says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from windfall.wire import environment, script_page

DEADLINE_S = 60.0


def wait_for(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Return once the condition holds; fail with words when the deadline has passed."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s:g} s for {what}")
        time.sleep(0.002)


class FakeAgent:
    """One session folder with the pages of its ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._requests = 0

    def environment(self, *, rank: int = 0, restored: str | None = None, step: int = 0) -> dict[str, str]:
        """Return the variables that a script of this session finds."""
        names = {
            environment.SESSION: str(self.folder),
            environment.RUN: "file:///runs/test",
            environment.STEP: str(step),
        }
        names |= {environment.ATTEMPT: "1", environment.TERM: "3", "RANK": str(rank)}
        if restored is not None:
            names[environment.CHECKPOINT] = restored
        return names

    def words(self, rank: int = 0) -> memoryview:
        """Return a rank's page, waiting until the rank has made it."""
        path = self.folder / script_page.page_name(rank)
        wait_for(path.exists, f"the page of rank {rank}")
        return script_page.attach(str(path))

    def request(self, step: int, *, rank: int = 0, exact: bool = False, kind: str = "insurance") -> int:
        """Ask for a save at `step` or later; return the request's number."""
        self._requests += 1
        number, kind_index = self._requests, script_page.KINDS.index(kind)
        script_page.publish(self.words(rank), request=number, target=step, exact=exact, kind=kind_index)
        return number

    def messages(self, rank: int = 0) -> list[dict[str, object]]:
        """Return what a rank has written so far."""
        path = self.folder / script_page.messages_name(rank)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def backups(self, rank: int = 0) -> list[dict[str, object]]:
        """Return the hand-overs of a rank."""
        return [message for message in self.messages(rank) if message["type"] == "backup"]

    def start(self, script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a Python script (its text) inside the session."""
        command = [sys.executable, "-c", script, *arguments]
        return start(command, self.environment() | variables)


def start(command: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
    """Start a process whose output can be read, in a session of its own."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=os.environ | variables, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a process that must end well; return what it printed."""
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, err
    return out
