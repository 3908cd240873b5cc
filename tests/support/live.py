"""Real `windfall exec` processes, and a training script that needs the SDK alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windfall.agent.exec_request import ExecRequest, save
from windfall.agent.session_folder import REQUEST
from windfall.events import Fact, Row
from windfall.storage import object_stores, run_log, spool_journal
from windfall.terms import RunOptions, RunState, Seconds

WINDFALL = (sys.executable, "-m", "windfall.cli.main")
PATIENCE_S = 40.0
FAST = ("--lease", "3s", "--grace", "5s", "--provider", "local")


def fast(*options: str) -> tuple[str, ...]:
    """Options for short tests; those that are given replace the usual ones."""
    usual = [
        word for name, value in zip(FAST[::2], FAST[1::2], strict=True) if name not in options for word in (name, value)
    ]
    return (*usual, *options)


# A state of numbers that depends on every step taken and on nothing else; the last line printed is its digest.
TRAINER = """
import hashlib, json, os, sys, time
import windfall as wf
STEPS, STEP_S = int(os.environ.get("STEPS", "30")), float(os.environ.get("STEP_S", "0.02"))
EVERY = int(os.environ.get("EVERY", "0"))
state = {"step": 0, "weights": "seed"}
if found := wf.last():
    state = json.load(open(found))
    print("resumed at", state["step"], flush=True)
def save():
    path = f"state-{state['step']}-{os.getpid()}.json"
    json.dump(state, open(path, "w"))
    return path
def hook(name):
    code = os.environ.get(name)
    if code:
        exec(code, globals())
hook("AT_START")
while state["step"] < STEPS:
    with wf.step_context():
        time.sleep(STEP_S)
        state = {"step": state["step"] + 1, "weights": hashlib.sha256(f"{state}".encode()).hexdigest()}
    print("step", state["step"], flush=True)
    hook("AT_STEP")
    if wf.check_save() or (EVERY and state["step"] % EVERY == 0) or state["step"] == STEPS:
        wf.backup(save())
hook("AT_END")
print("weights", state["weights"], flush=True)
"""


@dataclass
class Machine:
    """One `windfall exec` in an empty folder of its own; `text` is what it has printed so far."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def text(self) -> str:
        return (self.folder / "printed").read_text(errors="replace")

    def until(self, printed: str) -> None:
        """Wait until it has printed something."""
        eventually(lambda: printed in self.text or self.process.poll() is not None, f"{printed!r} in:\n{self.text}")
        assert printed in self.text, f"it ended without saying {printed!r}:\n{self.text}"

    def code(self) -> int:
        """Wait for its end; return the exit code as a shell shows it."""
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.text}") from None
        return code if code >= 0 else 128 - code

    def vanish(self) -> None:
        """Take the machine away without a word."""
        self.process.kill()
        self.process.wait()


@dataclass
class Run:
    """A run's URL and the machines that hold it one after the other."""

    folder: Path
    url: str
    machines: list[Machine]

    @contextmanager
    def machine(self, *command: str, options: Sequence[str] = FAST, **environment: str) -> Iterator[Machine]:
        """Start a machine; at the end of the block it is gone."""
        made = self.start(*command, options=options, **environment)
        try:
            yield made
        finally:
            with suppress(ProcessLookupError):
                made.process.kill()
            made.process.wait()

    def start(self, *command: str, options: Sequence[str] = FAST, **environment: str) -> Machine:
        """Start a machine without waiting for anything."""
        here = self.folder / f"machine-{len(self.machines) + 1}"
        here.mkdir(parents=True)
        line = [*WINDFALL, "exec", *options, "--state", str(here / "state"), self.url]
        with (here / "printed").open("wb") as out:
            process = subprocess.Popen(
                [*line, *(("--", *command) if command else ())],
                cwd=here,
                env={**plain_environment(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.machines.append(Machine(process, here))
        return self.machines[-1]

    def train_managed(self, *, request: Mapping[str, Any] | None = None, **environment: str) -> Machine:
        """Start a machine that runs the trainer for a node agent; `request` are more fields of its request."""
        here = self.folder / f"machine-{len(self.machines) + 1}"
        here.mkdir(parents=True)
        script = self.folder / "train.py"
        script.write_text(TRAINER)
        asked = ExecRequest(
            self.url, (sys.executable, str(script)), str(here), RunOptions(lease_s=Seconds(3.0), grace_s=Seconds(5.0)),
            str(here / "state"), status=str(here / "status.json"), **(request or {}),
        )  # fmt: skip
        save(asked, str(here / REQUEST))
        with (here / "printed").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "windfall.agent.exec_start", str(here / REQUEST)],
                cwd=here,
                env={**plain_environment(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.machines.append(Machine(process, here))
        return self.machines[-1]

    def train(self, *, options: Sequence[str] = FAST, **environment: str) -> Machine:
        """Start a machine that runs the trainer."""
        script = self.folder / "train.py"
        script.write_text(TRAINER)
        return self.start(sys.executable, str(script), options=options, **environment)

    def say(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another verb."""
        command = [*WINDFALL, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, env=plain_environment(), check=False
        )

    def state(self) -> RunState:
        """The newest state that the log knows."""
        head = object_stores.open_reader(self.url).run(run_log.read_head())
        assert head is not None
        return head.state

    def rows(self) -> tuple[Row, ...]:
        """The journal so far."""
        return object_stores.open_reader(self.url).run(spool_journal.read_journal()).rows

    def facts(self, kind: type[Fact]) -> list[Fact]:
        """Facts of one kind, oldest first."""
        return [fact for row in self.rows() for fact in row.facts if isinstance(fact, kind)]


def new_run(folder: Path) -> Run:
    """A run in a folder store."""
    return Run(folder, f"file://{folder / 'run'}", [])


def plain_environment() -> dict[str, str]:
    """This process's environment without what another run or a cloud left in it."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("WINDFALL_", "AWS_", "WANDB_"))}
    return mine | {"COLUMNS": "80"}


def eventually(condition: Callable[[], object], what: str, limit_s: float = PATIENCE_S) -> None:
    """Wait for a condition, with a deadline."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s} s: {what}"
        time.sleep(0.01)


def undisturbed(folder: Path, steps: int) -> str:
    """The weights of the trainer that nobody disturbs."""
    script = folder / "train.py"
    script.write_text(TRAINER)
    environment = plain_environment() | {"STEPS": str(steps), "STEP_S": "0"}
    done = subprocess.run([sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, check=True)
    return done.stdout.decode().splitlines()[-1]


def living(root: Path) -> dict[Path, bytes]:
    """Every file below a folder that others write in meanwhile: what vanishes during the look is left out.

    `Path.glob` raises where a folder goes between its listing and its visit.
    """
    found: dict[Path, bytes] = {}
    for folder, _, names in os.walk(root):
        for path in (Path(folder) / name for name in names):
            with suppress(FileNotFoundError):
                if path.is_file():
                    found[path] = path.read_bytes()
    return found


def contents(root: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes; workshops of writers left out."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and ".tmp" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def load(path: Path) -> dict[str, object]:
    """A JSON file's content."""
    data: dict[str, object] = json.loads(path.read_text())
    return data
