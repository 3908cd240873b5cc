"""What a case of bad input is, and the place in which it happens."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.live import PATIENCE_S, TRAINER, WINDFALL, Run, plain_environment

QUICK = ("--lease", "1s", "--grace", "2s", "--provider", "local", "--max-failures", "1")


@dataclass(frozen=True)
class Prepared:
    """Runs that were made once, for copying; and one that a machine holds now."""

    waiting: Path
    done: Path
    held: Run
    servers: dict[str, dict[str, str]]


@dataclass
class Box:
    """One case's own folder: `store` is the run's place in it, `here` the current folder."""

    folder: Path
    prepared: Prepared
    environment: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def here(self) -> Path:
        return self.folder / "here"

    @property
    def started(self) -> Path:
        """A file that the script makes when it is started."""
        return self.here / "started"

    def waiting(self) -> str:
        """Put a run there that has checkpoints and waits for a machine; return its place."""
        shutil.copytree(self.prepared.waiting, self.store)
        return str(self.store)

    def done(self) -> str:
        """Put a run there that is done."""
        shutil.copytree(self.prepared.done, self.store)
        return str(self.store)

    def exec(self, url: object, *options: str) -> list[str]:
        """A line that would start the script."""
        script = f"open({str(self.started)!r}, 'w')"
        defaults = [
            word for pair in zip(QUICK[::2], QUICK[1::2], strict=True) if pair[0] not in options for word in pair
        ]
        return ["exec", *defaults, *options, str(url), "--", sys.executable, "-c", script]

    def train(self, script: str, *options: str) -> list[str]:
        """A line that runs a script of ours on a new run."""
        path = self.folder / "script.py"
        path.write_text(script)
        return ["exec", *QUICK, *options, str(self.store), "--", sys.executable, str(path)]

    def server(self, name: str) -> None:
        """Lead buckets to a server that was started for all cases."""
        self.environment |= self.prepared.servers[name]

    def nobody_answers(self) -> None:
        """Lead buckets to a port at which nobody listens."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.environment |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "a-key",
            "AWS_SECRET_ACCESS_KEY": "a-secret",
            "WINDFALL_PATIENCE": "1s",
        }

    def checkpoints(self) -> list[str]:
        """The points of the run here, oldest first, by their ids."""
        head = json.loads(max((self.store / "log").iterdir()).read_text())
        return [checkpoint["checkpoint_id"] for checkpoint in head["record"]["state"]["checkpoints"]]

    def chunks(self, checkpoint_id: str) -> list[Path]:
        """The stored bytes of a point."""
        return [path for path in self.store.rglob("*") if path.is_file() and f"/{checkpoint_id}/0/" in str(path)]

    def rewrite(self, path: Path, change: Callable[[str], str]) -> None:
        """Change a stored text."""
        text = path.read_text()
        changed = change(text)
        assert changed != text, "the case must change something"
        path.write_text(changed)

    def mounted(self, options: str) -> Path:
        """A folder on a small file system of its own, seen only by the case's process."""
        place = self.folder / "mounted"
        place.mkdir()
        unshare = ["unshare", *(["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"])]
        if shutil.which("unshare") is None or not _works([*unshare, "true"]):
            pytest.skip("no mount namespace is allowed here")
        line = f'mount -t tmpfs -o {options} none {place} && {{ {FILL}; exec "$@"; }}'
        self.prefix = (*unshare, "sh", "-c", line.replace("PLACE", str(place)), "sh")
        return place


def _works(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


FILL = "{ head -c 10000000 /dev/zero > PLACE/filler; } 2>/dev/null || true"
"""Fill a small file system, as far as it can be written."""


@dataclass(frozen=True)
class Said:
    """What came of it."""

    code: int
    out: str
    err: str

    @property
    def sentences(self) -> list[str]:
        return self.err.splitlines()


@dataclass(frozen=True)
class Case:
    """Bad input and what must be said.

    Attributes:
        name: what is wrong, as a test id.
        arrange: makes it so; returns the command line.
        code: the exit code.
        says: fragments that the sentence must hold: what is wrong, where, what to write instead.
        process: whether a process of its own is needed; else `main` is called.
        after: how many lines may go before the sentence (greetings, what is tried again).
        adds: whether records may be added to the store; what was there stays as it was in any case.
        starts: whether the script runs.
        talks: whether the script itself writes to stderr, too.
    """

    name: str
    arrange: Callable[[Box], Sequence[str]]
    code: int
    says: tuple[str, ...]
    process: bool = False
    after: int = 0
    adds: bool = False
    starts: bool = False
    talks: bool = False


def run_process(box: Box, argv: Sequence[str]) -> Said:
    """Run a line as a user would."""
    done = subprocess.run(
        [*box.prefix, *WINDFALL, *argv],
        cwd=box.here,
        env=plain_environment() | {"XDG_STATE_HOME": str(box.folder / "state")} | box.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


__all__ = ["QUICK", "TRAINER", "Box", "Case", "Prepared", "Said", "run_process"]
