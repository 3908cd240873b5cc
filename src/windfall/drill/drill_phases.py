"""A drill's process groups: started as an agent starts the script, watched from inside, and ended completely."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from windfall.agent import script_environment
from windfall.agent.exec_request import ExecRequest
from windfall.drill import digest
from windfall.drill.drill_trace import ScriptTrace, parse
from windfall.drill.watch import VARIABLE
from windfall.errors import Misuse, RunFailed
from windfall.linux import processes
from windfall.ports import Clock, Restored
from windfall.storage.object_stores import folder_url
from windfall.terms import Bytes, RunOptions, Seconds, Step
from windfall.wire.environment import FAILPOINT
from windfall.wire.script_page import messages_name

POLL_S = Seconds(0.05)
GRACE_S = 3.0
"""How long a launcher may take to exit after all its ranks have exited [s]."""
FRESH = Restored(None, Step(0), Bytes(0), None, ())
_SITE = '''\
"""Runs the environment's own sitecustomize, then lets `windfall drill` watch this process."""
import importlib.machinery, importlib.util, os, sys

here = os.path.dirname(os.path.abspath(__file__))
found = importlib.machinery.PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.abspath(p or ".") != here])
if found is not None and found.loader is not None:
    found.loader.exec_module(importlib.util.module_from_spec(found))
try:
    from windfall.drill import watch
except ImportError:
    pass
else:
    watch.install()
'''


@dataclass(frozen=True, slots=True)
class DrillRequest:
    """What to run, and for how long.

    Attributes:
        folder: the drill's own folder; everything lies below it.
        fill: copies the script's code into a folder.
        steps: k: save at step k, then run k more steps.
        until: monotonic time at which the drill gives up [s].
        limit_s: the same limit as a duration, for messages [s].
    """

    folder: Path
    argv: tuple[str, ...]
    envs: Mapping[str, str]
    fill: Callable[[Path], None]
    steps: int
    until: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class DrillPhase:
    """The result of one process group.

    Attributes:
        started_at_s: monotonic time of its start.
        code: exit status; None if the drill ended it.
    """

    name: str
    traces: tuple[ScriptTrace, ...]
    started_at_s: float
    code: int | None
    output: Path

    def last_output_line(self) -> str:
        """Return the last line that the script printed."""
        lines = self.output.read_text(errors="replace").split("\n")
        return next((line.strip()[-300:] for line in reversed(lines) if line.strip()), "it printed nothing")


def run_phase(
    wanted: DrillRequest,
    name: str,
    clock: Clock,
    *,
    restored: Restored = FRESH,
    steps: int,
    on_step: Callable[[int], None],
) -> DrillPhase:
    """Run the script in a separate folder until it has run enough steps, has ended, or the time is up.

    Args:
        wanted: what to run.
        name: of the phase and its folder.
        clock: the clock.
        restored: the checkpoint to start from; its files lie in `checkpoints/1` of the phase's folder.
        steps: how many steps to run after the save or restore.
        on_step: called with the number of completed steps.

    Raises:
        Misuse: the command does not exist.
        RunFailed: the time is up.
    """
    place = wanted.folder / name
    work = place / "work"
    for folder in (work, place / "pages" / "1", place / "trace", place / "watch"):
        folder.mkdir(parents=True)
    wanted.fill(work)
    (place / "watch" / "sitecustomize.py").write_text(_SITE)
    save_at = wanted.steps if restored is FRESH else 0
    task = {"folder": str(place / "trace"), "save_at": save_at, "steps": steps, "inside": str(wanted.folder)}
    (place / "watch" / "task.json").write_text(json.dumps(task))
    output = place / "output.log"
    started_at_s = clock.now()
    spare = frozenset(processes.children_of(os.getpid()))
    processes.become_subreaper()
    with output.open("wb") as log:
        started = _start(wanted, place, restored, log.fileno())
    try:
        base = 0 if restored is FRESH else restored.step
        by_hand = _ShellHandovers(place, clock, save_at, steps, base)
        code = _wait(started, _Tail(place / "trace", by_hand), wanted, clock, on_step)
    finally:
        _end(started, spare)
        processes.become_subreaper(enabled=False)
    return DrillPhase(name, _traces(place / "trace"), started_at_s, code, output)


def _start(wanted: DrillRequest, place: Path, restored: Restored, log: int) -> subprocess.Popen[bytes]:
    request = ExecRequest(
        url=folder_url(f"{wanted.folder}/run"),
        argv=wanted.argv,
        cwd=str(place / "work"),
        options=RunOptions(),
        state="",
        session=str(place),
        pages=str(place / "pages"),
    )
    env = script_environment.script_environment(
        request, script_environment.ScriptStart("drill", 1, 1, restored), wanted.argv
    )
    # Experiment trackers must not record a drill.
    env |= {"WANDB_MODE": "disabled", VARIABLE: str(place / "watch" / "task.json"), **wanted.envs}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(place / "watch"), env.get("PYTHONPATH"))))
    env.pop(FAILPOINT, None)
    ours = os.getpid()
    try:
        return subprocess.Popen(
            wanted.argv,
            cwd=place / "work",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: processes.die_with_parent(ours),  # noqa: PLW1509 - the drill has one thread
        )
    except OSError as error:
        raise Misuse(f"{wanted.argv[0]}: {error.strerror or error}; use a command that is on PATH") from error


def _wait(
    started: subprocess.Popen[bytes], tail: _Tail, wanted: DrillRequest, clock: Clock, on_step: Callable[[int], None]
) -> int | None:
    left_at: float | None = None
    while started.poll() is None:
        tail.read()
        on_step(tail.ended)
        if tail.all_left and left_at is None:
            left_at = clock.now()
        if left_at is not None and (tail.by_hand or clock.now() - left_at > GRACE_S):
            return None
        if clock.now() > wanted.until:
            raise RunFailed(
                f"the script completed {tail.ended} steps within the drill's limit of {wanted.limit_s:g} s: raise --limit "
                "or lower --steps; if the script hangs, keep its output with --keep to see where"
            )
        clock.sleep(POLL_S)
    return started.returncode


def _end(started: subprocess.Popen[bytes], spare: frozenset[int]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    processes.kill_descendants(os.getpid(), spare)


class _ShellHandovers:
    """The trace of a script in another language, written from its calls of `windfall backup`.

    Attributes:
        used: whether there were any calls.

    Args:
        place: the phase's folder.
        clock: the clock.
        save_at: copy the first checkpoint at or after this step; 0 after a restore.
        steps: how many steps to run after the save or restore.
        base: the step at which the script started.
    """

    def __init__(self, place: Path, clock: Clock, save_at: int, steps: int, base: int) -> None:
        self._messages = place / "pages" / "1" / messages_name(0)
        self._trace = place / "trace" / "rank-0.jsonl"
        self._clock, self._save_at, self._steps, self._base = clock, save_at, steps, base
        self._position = 0
        self._saved: int | None = None
        self.used = False

    def read(self) -> None:
        """Process the checkpoints handed over since the last call; none if the script is watched from inside."""
        if not self._messages.exists() or (self._trace.exists() and not self.used):
            return
        with self._messages.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            message = json.loads(line)
            if message["type"] == "backup" and message["path"] is not None:
                self._take(Path(message["path"]), message["step"])

    def _take(self, path: Path, step: int) -> None:
        ended = step - self._base
        items = {"file:checkpoint": {"d": digest.content(str(path))}}
        self._write({"m": "end", "n": ended, "step": step, "items": items, "same": []})
        if self._save_at and ended >= self._save_at and self._saved is None:
            self._saved = ended
            held = self._trace.parent / "held" / "0" / path.name
            held.parent.mkdir(parents=True)
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, held)
            self._write({"m": "backup", "n": ended, "path": str(held), "stall_s": None})
        first = self._saved if self._save_at else 0
        if first is not None and ended >= first + self._steps:
            self._write({"m": "left", "n": ended})

    def _write(self, line: dict[str, object]) -> None:
        self.used = True
        with self._trace.open("a") as file:
            file.write(json.dumps(line | {"at_s": self._clock.now()}) + "\n")


class _Tail:
    """Reads the traces while they grow."""

    def __init__(self, folder: Path, by_hand: _ShellHandovers) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._left: set[Path] = set()
        self._by_hand = by_hand
        self.ended = 0

    @property
    def by_hand(self) -> bool:
        """Whether the script is in another language, so that the drill must end it."""
        return self._by_hand.used

    @property
    def all_left(self) -> bool:
        """Whether every rank that wrote a trace ran to the end of the drill."""
        return bool(self._read) and self._left == set(self._read)

    def read(self) -> None:
        """Read what was added since the last call."""
        self._by_hand.read()
        for path in self._folder.glob("rank-*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                if line.startswith(b'{"m": "end"'):
                    self.ended = max(self.ended, int(line[:60].split(b":")[2].split(b",")[0]))
                elif line.startswith(b'{"m": "left"'):
                    self._left.add(path)


def _traces(folder: Path) -> tuple[ScriptTrace, ...]:
    found = []
    for path in folder.glob("rank-*.jsonl"):
        with path.open() as file:
            found.append(parse(int(path.stem.removeprefix("rank-")), file))
    return tuple(sorted(found, key=lambda trace: trace.rank))
