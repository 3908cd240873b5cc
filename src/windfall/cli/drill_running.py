"""A drill's process groups: started as an agent would start the script, watched from inside, ended without remains."""

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

from windfall.agent import guard, kernel, script
from windfall.agent.session import ExecRequest
from windfall.errors import Misuse, RunFailed
from windfall.ports import Clock, Restored
from windfall.report.drill_trace import Trace, parse
from windfall.sdk import drill_digest
from windfall.sdk.drill import VARIABLE
from windfall.storage.objects import folder_url
from windfall.terms import Bytes, Seconds, Step
from windfall.wire.environment import FAILPOINT
from windfall.wire.page import messages_name

POLL_S = Seconds(0.05)
GRACE_S = 3.0
"""How long a launcher may take to end after all its ranks have left."""
FRESH = Restored(None, Step(0), Bytes(0), None, ())
_SITE = '''\
"""Lets `windfall drill` watch this process; then the environment's own sitecustomize, as if this one were not there."""
import importlib.machinery, importlib.util, os, sys

here = os.path.dirname(os.path.abspath(__file__))
found = importlib.machinery.PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.abspath(p or ".") != here])
if found is not None and found.loader is not None:
    found.loader.exec_module(importlib.util.module_from_spec(found))
try:
    from windfall.sdk import drill
except ImportError:
    pass
else:
    drill.install()
'''


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to run, and for how long.

    Attributes:
        folder: of this drill alone; everything lies below it.
        fill: puts the script's code into a folder.
        steps: k: save at step k, go on for k more.
        until: monotonic time at which the drill gives up [s].
    """

    folder: Path
    argv: tuple[str, ...]
    envs: Mapping[str, str]
    fill: Callable[[Path], None]
    steps: int
    until: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class Phase:
    """What came of one process group.

    Attributes:
        began_at_s: monotonic time of its start.
        code: exit status; None if it was ended from here.
    """

    name: str
    traces: tuple[Trace, ...]
    began_at_s: float
    code: int | None
    output: Path

    def last_words(self) -> str:
        """Return the last line that the script printed."""
        lines = self.output.read_text(errors="replace").split("\n")
        return next((line.strip()[-300:] for line in reversed(lines) if line.strip()), "it printed nothing")


def run_phase(
    wanted: Wanted, name: str, clock: Clock, *, restored: Restored = FRESH, steps: int, tell: Callable[[int], None]
) -> Phase:
    """Run the script in a folder of its own until it has shown enough, has ended, or time is up.

    Args:
        wanted: what to run.
        name: of the phase; its folder's.
        clock: the time.
        restored: what it starts from; its files lie in `points/1` of the phase's folder.
        steps: how many steps to go on after save or restore.
        tell: takes the number of steps that have ended.

    Raises:
        Misuse: the command does not exist.
        RunFailed: time is up.
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
    began_at_s = clock.now()
    spare = frozenset(kernel.children_of(os.getpid()))
    kernel.become_subreaper()
    with output.open("wb") as log:
        started = _start(wanted, place, restored, log.fileno())
    try:
        base = 0 if restored is FRESH else restored.step
        by_hand = _ByHand(place, clock, save_at, steps, base)
        code = _wait(started, _Tail(place / "trace", by_hand), wanted, clock, tell)
    finally:
        _end(started, spare)
        kernel.become_subreaper(wanted=False)
    return Phase(name, _traces(place / "trace"), began_at_s, code, output)


def _start(wanted: Wanted, place: Path, restored: Restored, log: int) -> subprocess.Popen[bytes]:
    request = ExecRequest(
        url=folder_url(f"{wanted.folder}/run"),
        argv=wanted.argv,
        cwd=str(place / "work"),
        session=str(place),
        pages=str(place / "pages"),
    )
    env = script.script_environment(request, script.Start("drill", 1, 1, restored), wanted.argv)
    # Runs of a drill are not runs of the experiment.
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
            preexec_fn=lambda: kernel.die_with_parent(ours),  # noqa: PLW1509 - the drill has one thread
        )
    except OSError as error:
        raise Misuse(f"{wanted.argv[0]}: {error.strerror or error}; give a command that is on PATH") from error


def _wait(
    started: subprocess.Popen[bytes], tail: _Tail, wanted: Wanted, clock: Clock, tell: Callable[[int], None]
) -> int | None:
    left_at: float | None = None
    while started.poll() is None:
        tail.read()
        tell(tail.ended)
        if tail.all_left and left_at is None:
            left_at = clock.now()
        if left_at is not None and (tail.by_hand or clock.now() - left_at > GRACE_S):
            return None
        if clock.now() > wanted.until:
            raise RunFailed(
                f"the script had ended {tail.ended} steps when the {wanted.limit_s:g} s of the drill were over: "
                "give it longer with --limit, or fewer steps with --steps; if it hangs, its output (--keep) says where"
            )
        clock.sleep(POLL_S)
    return started.returncode


def _end(started: subprocess.Popen[bytes], spare: frozenset[int]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    guard.kill_descendants(os.getpid(), spare)


class _ByHand:
    """Hand-overs of a script in another language, which nobody watches from inside, written down as a trace.

    Attributes:
        used: whether there were any.

    Args:
        place: the phase's folder.
        save_at: the step from which on a hand-over is held; 0 after a restore.
        steps: how many steps to go on.
        base: at which the script started.
    """

    def __init__(self, place: Path, clock: Clock, save_at: int, steps: int, base: int) -> None:
        self._messages = place / "pages" / "1" / messages_name(0)
        self._trace = place / "trace" / "rank-0.jsonl"
        self._clock, self._save_at, self._steps, self._base = clock, save_at, steps, base
        self._position = 0
        self._saved: int | None = None
        self.used = False

    def read(self) -> None:
        """Take what was handed over since; nothing if the script is watched from inside."""
        if not self._messages.exists() or (self._trace.exists() and not self.used):
            return
        with self._messages.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            message = json.loads(line)
            if message["it"] == "backup" and message["path"] is not None:
                self._take(Path(message["path"]), message["step"])

    def _take(self, path: Path, step: int) -> None:
        ended = step - self._base
        items = {"file:checkpoint": {"d": drill_digest.content(str(path))}}
        self._write({"m": "end", "n": ended, "step": step, "items": items, "same": []})
        if self._save_at and ended >= self._save_at and self._saved is None:
            self._saved = ended
            held = self._trace.parent / "held" / "0" / path.name
            held.parent.mkdir(parents=True)
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, held)
            self._write({"m": "backup", "n": ended, "path": str(held), "stall_s": None})
        begun = self._saved if self._save_at else 0
        if begun is not None and ended >= begun + self._steps:
            self._write({"m": "left", "n": ended})

    def _write(self, line: dict[str, object]) -> None:
        self.used = True
        with self._trace.open("a") as file:
            file.write(json.dumps(line | {"at_s": self._clock.now()}) + "\n")


class _Tail:
    """What the traces say while they grow."""

    def __init__(self, folder: Path, by_hand: _ByHand) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._left: set[Path] = set()
        self._by_hand = by_hand
        self.ended = 0

    @property
    def by_hand(self) -> bool:
        """Whether the script is in another language, and does not know when it has done enough."""
        return self._by_hand.used

    @property
    def all_left(self) -> bool:
        """Whether every rank that wrote a trace went on to the end of the drill."""
        return bool(self._read) and self._left == set(self._read)

    def read(self) -> None:
        """Read on."""
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


def _traces(folder: Path) -> tuple[Trace, ...]:
    found = []
    for path in folder.glob("rank-*.jsonl"):
        with path.open() as file:
            found.append(parse(int(path.stem.removeprefix("rank-")), file))
    return tuple(sorted(found, key=lambda trace: trace.rank))
